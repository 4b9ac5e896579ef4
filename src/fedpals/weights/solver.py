"""`solve`, `ess_grid` and `coverage`, the functions that users call."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from operator import index
from typing import Any

import numpy as np
import numpy.typing as npt

from fedpals.errors import InputError
from fedpals.labels import LabelCounts, match
from fedpals.weights.capped_instance import CappedInstance
from fedpals.weights.instance import Instance, Weights
from fedpals.weights.projection import Projection
from fedpals.weights.threads import one_blas_thread

_LAM = "a number ≥ 0, or math.inf for FedAvg"
_ESS = "a fraction of all samples in (0, 1], for instance 0.5"


def solve(
    counts: Any,
    target: npt.ArrayLike | Mapping[str, float],
    *,
    lam: float | None = None,
    ess: float | None = None,
    max_weight: float | None = None,
) -> Weights:
    """Solve for the aggregation weights.

        α = argmin over the simplex  ‖T − Σ α_i S_i‖² + λ Σ α_i²/n_i

    Parameters
    ----------
    counts
        M×K label counts, one client per row: numpy, nested lists, pandas, scipy sparse, or `LabelCounts`.
        For partial participation pass the participants' rows (`LabelCounts.subset`).
    target
        T: K probabilities, or a mapping (or pandas Series) from label name to probability.
    lam
        λ ≥ 0. ``math.inf`` is FedAvg; 0 is the limit λ → 0⁺, which is the projection of T onto the
        clients' hull with the largest effective sample size.
    ess
        Effective sample size as a fraction of N in (0, 1], given instead of λ. If it is below the ESS of
        the limit λ → 0⁺, that limit is returned and ``clamped`` is true.
    max_weight
        Largest weight that a client may have; no limit unless given. At least 1/(number of clients with samples). An
        ESS that no such weights reach is ``clamped`` as well.

    Raises
    ------
    InputError
        If the input is not valid; names argument, row, label and value.
    CertificateError
        If the answer could not be proven optimal.

    Examples
    --------
    >>> weights = solve([[80, 20], [10, 90]], [0.5, 0.5], lam=0)
    >>> weights.alpha.round(4).tolist()
    [0.5714, 0.4286]
    >>> weights.covered
    True
    """
    if (lam is None) == (ess is None):
        raise InputError("give either lam=… or ess=…, for instance ess=0.5")
    value = 0.0
    if lam is not None and not (value := _number("lam", lam, _LAM)) >= 0:
        raise InputError(f"lam is {lam}; it must be {_LAM}")
    if ess is not None and not 0 < (value := _number("ess", ess, _ESS)) <= 1:
        raise InputError(f"ess is {ess}; it must be {_ESS}")
    with one_blas_thread(getattr(counts, "shape", ())):
        instance = _instance(counts, target, max_weight)
        return instance.at_ess(value)[0] if lam is None else instance.at_mu(value / instance.problem.N)


def ess_grid(
    counts: Any,
    target: npt.ArrayLike | Mapping[str, float],
    l: int,  # noqa: E741
    *,
    max_weight: float | None = None,
) -> tuple[Weights, ...]:
    """Solve for ``l`` equally spaced ESS between that of λ → 0⁺ and FedAvg's 100 %, both excluded.

    This is the paper's strategy if it is unclear which λ to try (appendix "Choice of λ"), in ascending
    order of ESS. The result is empty if T is the pooled marginal: there is no ESS in between. With ``max_weight``,
    the grid ends below the highest ESS that it allows.
    """
    try:
        l = index(l)  # noqa: E741
    except TypeError:
        raise InputError(f"l is {reprlib.repr(l)}; it must be a whole number, for instance 10") from None
    if l < 1:
        raise InputError(f"l is {l}; a grid needs at least one value")
    with one_blas_thread(getattr(counts, "shape", ())):
        instance = _instance(counts, target, max_weight)
        lowest, highest = instance.limit.ess, instance.problem.highest_ess
        if lowest >= highest:
            return ()
        answers, start = [], None
        for ess in np.linspace(highest, lowest, l + 2)[1:-1].tolist():
            weights, start = instance.at_ess(ess, start)
            answers.append(weights)
        return tuple(reversed(answers))


def coverage(counts: Any, target: npt.ArrayLike | Mapping[str, float]) -> Projection:
    """Decide, with a proof, whether T is covered by the clients (Assumption 2); also return its squared distance."""
    with one_blas_thread(getattr(counts, "shape", ())):
        return _instance(counts, target).projection


def _instance(counts: Any, target: npt.ArrayLike | Mapping[str, float], max_weight: float | None = None) -> Instance:
    checked, T = match(LabelCounts.of(counts), target)
    if max_weight is None:
        return Instance(checked, T)
    return CappedInstance(checked, T, _number("max_weight", max_weight, "in (0, 1], for instance 0.2"))


def _number(name: str, value: Any, needed: str) -> float:
    """Return an argument that should be one real number as float, whatever type of number it has."""
    if type(value) is float:
        return value
    is_complex = getattr(getattr(value, "dtype", None), "kind", "") == "c"
    if is_complex or isinstance(value, (str, bytes, bytearray)) or getattr(value, "ndim", 0):
        raise _no_number(name, value, needed)
    try:
        return float(value)
    except OverflowError:
        raise InputError(f"{name} is beyond what a float can hold; it must be {needed}") from None
    except (TypeError, ValueError):
        raise _no_number(name, value, needed) from None


def _no_number(name: str, value: object, needed: str) -> InputError:
    return InputError(f"{name} is {reprlib.repr(value)}; it must be {needed}")
