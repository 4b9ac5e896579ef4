"""What a cap on the weights costs: `solve(..., max_weight)` against the same without the cap, interleaved.

    python benchmarks/cap.py [--problems 60]

Random clients (Dirichlet(0.3) labels, lognormal sizes); an ESS between 30 and 80 %, its λ, or λ → 0⁺; a cap drawn below
the largest weight (it binds) or 1.2 times that weight (it does not). Prints the ratio of the best of interleaved times:
the median, the 90th percentile and the largest over problems, and the median milliseconds with the cap. Below a cap
that binds, an ESS may be out of reach: the answer is then that of λ → 0⁺, and its time is compared with that of λ → 0⁺
without the cap.
"""

from __future__ import annotations

import argparse
import time
from functools import partial
from itertools import product
from typing import Any

import numpy as np

import fedpals
from fedpals.rng import generator

_SIZES = ((9, 10), (20, 10), (48, 10), (30, 182), (100, 10), (100, 182), (1000, 10))
_REPEATS = {"λ": 25, "ESS": 10, "λ → 0⁺": 5}


def times(kind: str, clients: int, labels: int, number: int) -> tuple[float, float, float, float] | None:
    """Return the seconds with a cap that binds, of the same without, with one that does not bind, and without."""
    rng = generator(number, "cap", clients, labels)
    sizes = np.exp(rng.normal(6.0, 1.0, clients)).astype(np.int64) + 10
    mixes = rng.dirichlet(np.full(labels, 0.3), clients)
    counts = np.array([rng.multinomial(n, mix) for n, mix in zip(sizes, mixes, strict=True)])
    counts[:, 0] += 1
    target = rng.dirichlet(np.ones(labels))
    ess = float(rng.uniform(0.3, 0.8))
    free = fedpals.solve(counts, target, ess=ess)
    choice: dict[str, Any] = {"λ": {"lam": free.lam}, "ESS": {"ess": ess}, "λ → 0⁺": {"lam": 0.0}}[kind]
    free = free if kind != "λ → 0⁺" else fedpals.solve(counts, target, lam=0.0)
    largest = float(free.alpha.max())
    cap = float(rng.uniform(max(1.02 / clients, 0.3 * largest), 0.95 * largest))
    if (kind != "λ → 0⁺" and not 0 < free.lam < np.inf) or not 1.0 / clients <= cap < largest:
        return None
    solve: Any = partial(fedpals.solve, counts, target)
    roomy = min(1.0, 1.2 * largest)
    in_reach = kind != "ESS" or not solve(**choice, max_weight=cap).clamped
    cases = (
        partial(solve, **choice, max_weight=cap), partial(solve, **(choice if in_reach else {"lam": 0.0})),
        partial(solve, **choice, max_weight=roomy), partial(solve, **choice),
    )  # fmt: skip
    best = [np.inf] * len(cases)
    for _ in range(_REPEATS[kind]):
        for i, case in enumerate(cases):
            start = time.perf_counter()
            case()
            best[i] = min(best[i], time.perf_counter() - start)
    return best[0], best[1], best[2], best[3]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", type=int, default=60, help="per size")
    options = parser.parse_args()
    for kind, (clients, labels) in product(_REPEATS, _SIZES):
        drawn = [times(kind, clients, labels, number) for number in range(options.problems)]
        seconds = np.array([row for row in drawn if row is not None])
        for name, (with_cap, without) in (("binds", seconds[:, :2].T), ("does not bind", seconds[:, 2:].T)):
            ratios = with_cap / without
            print(
                f"{kind} ({clients},{labels}) a cap that {name:14s} median {np.median(ratios):.2f}, 90 % "
                f"{np.quantile(ratios, 0.9):.2f}, largest {ratios.max():.2f}, {1000 * np.median(with_cap):.2f} ms, of "
                f"{len(ratios)} problems",
                flush=True,
            )


if __name__ == "__main__":
    main()
