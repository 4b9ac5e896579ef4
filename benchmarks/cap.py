"""What a cap on the weights costs: `solve(..., max_weight)` against the same without the cap, interleaved.

    python benchmarks/cap.py [--problems 60]

Random clients (Dirichlet(0.3) labels, lognormal sizes); an ESS between 30 and 80 %, its λ, or λ → 0⁺; a cap drawn below
the largest weight (it binds) or 1.2 times that weight (it does not). Prints the ratio of the best of interleaved times:
the median, the 90th percentile and the largest over problems. With a cap that binds, an ESS may be out of reach: then
the answer is that of λ → 0⁺, which takes longer.
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


def ratios(kind: str, clients: int, labels: int, number: int) -> tuple[float, float] | None:
    """Return capped time / uncapped time of a problem, for a cap that binds and one that does not."""
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
    solve: Any = partial(fedpals.solve, counts, target, **choice)
    best = [np.inf] * 3
    for _ in range(_REPEATS[kind]):
        for i, max_weight in enumerate((None, cap, min(1.0, 1.2 * largest))):
            start = time.perf_counter()
            solve(max_weight=max_weight)
            best[i] = min(best[i], time.perf_counter() - start)
    return best[1] / best[0], best[2] / best[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", type=int, default=60, help="per size")
    options = parser.parse_args()
    for kind, (clients, labels) in product(_REPEATS, _SIZES):
        found = [r for number in range(options.problems) if (r := ratios(kind, clients, labels, number)) is not None]
        for name, values in zip(("binds", "does not bind"), np.array(found).T, strict=True):
            print(
                f"{kind} ({clients},{labels}) a cap that {name:14s} median {np.median(values):.2f}, 90 % "
                f"{np.quantile(values, 0.9):.2f}, largest {values.max():.2f}, of {len(values)} problems",
                flush=True,
            )


if __name__ == "__main__":
    main()
