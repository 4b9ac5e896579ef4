"""Never worse than an independent solver, and the certificate is true in exact arithmetic."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import numpy.typing as npt
import pytest
import quadprog
from hypothesis import given, settings
from hypothesis import strategies as st

import fedpals
import fedpals.weights.instance
from tests.weights.exact import Exact
from tests.weights.problems import Drawn, problems

Array = npt.NDArray[np.float64]


def independent(drawn: Drawn) -> Array | None:
    """The same optimum by Goldfarb and Idnani's dual active-set method; None where it gives up."""
    sizes = drawn.counts.sum(axis=1)
    kept = sizes > 0
    root = np.sqrt(sizes[kept] / sizes.sum())
    B = drawn.counts[kept] / sizes[kept, None] * root[:, None]
    M = root.size
    bounds = np.zeros(M + 1)
    bounds[0] = 1.0
    try:
        x = quadprog.solve_qp(
            B @ B.T + drawn.mu * np.eye(M), B @ drawn.target, np.hstack([root[:, None], np.eye(M)]), bounds, 1
        )[0]
    except ValueError:
        return None
    alpha = np.zeros(sizes.size)
    alpha[kept] = np.maximum(x * root, 0.0)
    return alpha


def objective(drawn: Drawn, alpha: Array) -> float:
    """‖T − Sᵀα‖² + μΣα²/w at α/Σα; written with T − S, so that the rounding of Σα does not enter."""
    sizes = drawn.counts.sum(axis=1)
    kept = sizes > 0
    a = alpha[kept] / alpha[kept].sum()
    r = a @ (drawn.target - drawn.counts[kept] / sizes[kept, None])
    return float(r @ r + drawn.mu * np.sum(a * a / (sizes[kept] / sizes.sum())))


def assert_no_worse(drawn: Drawn) -> None:
    weights = fedpals.solve(drawn.counts, drawn.target, lam=drawn.lam)
    assert weights.alpha.min() >= 0
    assert weights.alpha.sum() == pytest.approx(1, abs=1e-13)
    assert (weights.alpha[drawn.counts.sum(axis=1) == 0] == 0).all()
    assert weights.certificate.relative_gap <= 1e-6
    other = independent(drawn)
    if other is not None:
        best = objective(drawn, other)
        assert objective(drawn, weights.alpha) <= best * (1 + 1e-12)
        assert objective(drawn, weights.alpha) - weights.certificate.gap <= best * (1 + 1e-12)


@settings(max_examples=2000, deadline=None)
@given(problems(most_clients=60, most_labels=14))
def test_never_worse_than_an_independent_solver(drawn: Drawn) -> None:
    assert_no_worse(drawn)


@settings(max_examples=1500, deadline=None)
@given(problems(most_clients=60, most_labels=14))
def test_newton_alone_is_never_worse_either(drawn: Drawn) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fedpals.weights.instance, "QP_CLIENTS", 0)
        assert_no_worse(drawn)


@settings(max_examples=40, deadline=None)
@given(problems(most_clients=400, most_labels=30, largest=1e5))
def test_never_worse_with_hundreds_of_clients(drawn: Drawn) -> None:
    assert_no_worse(drawn)


def as_fractions(alpha: Array) -> list[Fraction]:
    return [Fraction(float(a)) for a in alpha]


@settings(max_examples=200, deadline=None)
@given(problems(most_clients=6, most_labels=5, largest=1e6))
def test_the_certificate_is_true_in_exact_arithmetic(drawn: Drawn) -> None:
    weights = fedpals.solve(drawn.counts, drawn.target, lam=drawn.lam)
    exact = Exact(drawn.counts, weights.target, Fraction(weights.lam) / int(drawn.counts.sum()))
    if weights.lam == 0:
        return
    optimum = exact.optimum()
    found = as_fractions(weights.alpha)
    total = sum(found, Fraction(0))
    gap = exact.objective([a / total for a in found]) - exact.objective(optimum)
    assert float(gap) <= weights.certificate.gap
    assert float(sum(abs(a - b) for a, b in zip(found, optimum, strict=True))) <= weights.certificate.error


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from(["random", "covered", "a client"]))
def test_the_limit_agrees_with_exact_arithmetic(seed: int, kind: str) -> None:
    """With sizes and weights that are powers of two, T is exactly where it should be."""
    rng = np.random.default_rng(seed)
    M, K = int(rng.integers(1, 7)), int(rng.integers(1, 6))
    sizes = 2 ** rng.integers(0, 12, M)
    mixes = rng.dirichlet(np.full(K, rng.choice([0.3, 5.0])), M)
    counts = np.stack([rng.multinomial(n, p) for n, p in zip(sizes, mixes, strict=True)])
    S = counts / sizes[:, None]
    makers: dict[str, Callable[[], Array]] = {
        "random": lambda: rng.multinomial(64, rng.dirichlet(np.ones(K))) / 64,
        "covered": lambda: (rng.multinomial(16, rng.dirichlet(np.ones(M))) / 16) @ S,
        "a client": lambda: S[rng.integers(M)],
    }
    target = makers[kind]()
    weights = fedpals.solve(counts, target, lam=0)
    optimum = Exact(counts, target, Fraction(1, 10**60)).optimum()
    error = float(sum(abs(a - b) for a, b in zip(as_fractions(weights.alpha), optimum, strict=True)))
    assert error <= weights.certificate.error
    assert weights.certificate.error < 1e-6
    if kind != "random":
        assert weights.covered


def test_no_warning_escapes_from_extreme_scales() -> None:
    counts = [[1, 0, 0], [0, 10**9, 1], [10**6, 0, 10**6], [0, 0, 0]]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for lam in (0.0, 1e-12, 1.0, 1e12, 1e30, float("inf")):
            weights = fedpals.solve(counts, [0.2, 0.3, 0.5], lam=lam)
            assert weights.alpha[3] == 0
            assert weights.alpha.sum() == pytest.approx(1)
