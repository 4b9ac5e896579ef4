"""Aggregation weights: fedpals against general QP libraries, side by side in one run.

    python benchmarks/weights.py [--quick] [--json FILE]

Every solver starts from the same label counts and target and must return α for the paper's equation, with
each λ of the paper's grid: the three whose ESS lie a quarter, a half and three quarters of the way from the
best match to FedAvg. Rounds are interleaved; the table shows the ratio of the best times, summed over the
grid and for each λ (their time / ours: larger is better for us), and how much worse their objective is than
ours at the worst of the three. `fedpals` is the whole of `fedpals.solve`, validation and certificate
included; `core` is the same on counts that were validated before. Solvers that could not finish within the
time limit, or failed, are shown as such.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing as mp
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse
from scipy.optimize import minimize, nnls

import fedpals
from fedpals.rng import generator

Array = npt.NDArray[np.float64]
LIMIT_SECONDS = 180.0
_OURS_A_ROUND = 5
"""Our calls per call of theirs: the first finds their data in the processor's caches."""
_SECONDS = 1.5
"""What is quicker than this is repeated, interleaved with ours."""


@dataclass(frozen=True)
class Case:
    """A size, and how its clients look."""

    clients: int
    labels: int
    sparse: bool = False

    @property
    def name(self) -> str:
        """(M,K), as in the tables."""
        return f"({self.clients:g},{self.labels}{' sparse' if self.sparse else ''})"

    def make(self) -> tuple[Any, Array, tuple[float, ...]]:
        """Return counts, target, and the λ of the paper's grid (appendix "Choice of λ") of three.

        Clients differ in size and have Dirichlet(0.3) label mixes, or five labels each.
        """
        rng = generator(0, "benchmark", self.name)
        M, K = self.clients, self.labels
        sizes = np.exp(rng.normal(6.0, 1.0, M)).astype(np.int64) + 10
        target = rng.dirichlet(np.ones(K))
        if self.sparse:
            held = rng.integers(0, K, (M, 5))
            data = rng.integers(1, 200, (M, 5))
            rows = np.repeat(np.arange(M), 5)
            counts: Any = sparse.csr_array((data.ravel(), (rows, held.ravel())), shape=(M, K))
            counts.sum_duplicates()
        else:
            counts = np.floor(rng.dirichlet(np.full(K, 0.3), M) * sizes[:, None]).astype(np.int64)
            counts[:, 0] += 1
        return counts, target, tuple(weights.lam for weights in fedpals.ess_grid(counts, target, 3))


CASES = (
    Case(9, 10),
    Case(100, 182),
    Case(10**4, 100),
    Case(10**5, 10),
    Case(10**6, 10),
    Case(10**6, 100, sparse=True),
)


def _data(counts: Any) -> tuple[Any, Array]:
    n = np.asarray(counts.sum(axis=1), dtype=np.float64).ravel()
    if sparse.issparse(counts):
        scale: Any = sparse.diags_array(1.0 / n)
        return sparse.csr_array(scale @ counts), n
    return counts / n[:, None], n


def _factored(counts: Any, target: Array, lam: float) -> tuple[Any, Array, Any, Array, int, int]:
    """QP in (α, r): min ½xᵀPx subject to Sᵀα + r = T, Σα = 1, α ≥ 0; sparse, no M×M matrix."""
    S, n = _data(counts)
    M, K = S.shape
    P = sparse.diags_array(np.concatenate([2 * lam / n, np.full(K, 2.0)])).tocsc()
    top = sparse.hstack([sparse.csc_array(S.T), sparse.eye_array(K)])
    stacked: Any = sparse.vstack([top, sparse.hstack([sparse.csc_array(np.ones((1, M))), sparse.csc_array((1, K))])])
    return P, np.zeros(M + K), stacked.tocsc(), np.concatenate([target, [1.0]]), M, K


def ours(counts: Any, target: Array, lam: float) -> Array:
    return fedpals.solve(counts, target, lam=lam).alpha


def _cvxpy(counts: Any, target: Array, lam: float, **options: Any) -> Array:
    import cvxpy as cp

    S, n = _data(counts)
    alpha = cp.Variable(S.shape[0], nonneg=True)
    fit = cp.sum_squares(target - S.T @ alpha) + lam * cp.sum_squares(cp.multiply(1 / np.sqrt(n), alpha))
    cp.Problem(cp.Minimize(fit), [cp.sum(alpha) == 1]).solve(**options)
    return np.asarray(alpha.value)


def cvxpy_default(counts: Any, target: Array, lam: float) -> Array:
    return _cvxpy(counts, target, lam)


def cvxpy_clarabel(counts: Any, target: Array, lam: float) -> Array:
    return _cvxpy(counts, target, lam, solver="CLARABEL")


def osqp(counts: Any, target: Array, lam: float, **options: Any) -> Array:
    import osqp as library

    P, q, A, b, M, K = _factored(counts, target, lam)
    bounds = sparse.hstack([sparse.eye_array(M), sparse.csc_array((M, K))])
    solver = library.OSQP()
    solver.setup(
        P, q, sparse.vstack([A, bounds]).tocsc(),
        np.concatenate([b, np.zeros(M)]), np.concatenate([b, np.full(M, np.inf)]), verbose=False, **options,
    )  # fmt: skip
    return np.asarray(solver.solve().x[:M])


def osqp_accurate(counts: Any, target: Array, lam: float) -> Array:
    """OSQP's default tolerance of 1e-3 stops early; this one asks for an answer comparable to the others'."""
    return osqp(counts, target, lam, eps_abs=1e-9, eps_rel=1e-9, max_iter=100_000)


def piqp(counts: Any, target: Array, lam: float) -> Array:
    import piqp as library

    P, q, A, b, M, K = _factored(counts, target, lam)
    lower = np.concatenate([np.zeros(M), np.full(K, -np.inf)])
    solver = library.SparseSolver()
    solver.setup(P, q, A, b, None, None, None, lower, np.full(M + K, np.inf))
    solver.solve()
    return np.asarray(solver.result.x[:M])


def quadprog(counts: Any, target: Array, lam: float) -> Array:
    import quadprog as library

    S, n = _data(counts)
    M = n.size
    G = S @ S.T
    G.flat[:: M + 1] += lam / n
    C = np.hstack([np.ones((M, 1)), np.eye(M)])
    b = np.zeros(M + 1)
    b[0] = 1.0
    return np.asarray(library.solve_qp(G, S @ target, C, b, 1)[0])


def daqp(counts: Any, target: Array, lam: float) -> Array:
    import daqp as library

    S, n = _data(counts)
    M = n.size
    G = S @ S.T
    G.flat[:: M + 1] += lam / n
    lower, upper = np.zeros(M + 1), np.full(M + 1, 1e30)
    lower[-1] = upper[-1] = 1.0
    sense = np.zeros(M + 1, dtype=np.int32)
    sense[-1] = 5  # an equality
    return np.asarray(library.solve(G, -S @ target, np.ones((1, M)), upper, lower, sense)[0])


def scipy_nnls(counts: Any, target: Array, lam: float) -> Array:
    S, n = _data(counts)
    A = np.vstack([(S - target).T, np.diag(np.sqrt(lam / n)), np.ones((1, n.size))])
    b = np.zeros(len(A))
    b[-1] = 1.0
    x = nnls(A, b, maxiter=100 * n.size)[0]
    return np.asarray(x / x.sum())


def scipy_slsqp(counts: Any, target: Array, lam: float) -> Array:
    S, n = _data(counts)

    def value(alpha: Array) -> Any:
        r = target - alpha @ S
        return float(r @ r + lam * alpha @ (alpha / n)), -2 * S @ r + 2 * lam * alpha / n

    start = n / n.sum()
    constraint: Any = {"type": "eq", "fun": lambda a: a.sum() - 1, "jac": lambda a: np.ones_like(a)}
    bounds = [(0, None)] * n.size
    return np.asarray(minimize(value, start, jac=True, bounds=bounds, constraints=constraint, method="SLSQP").x)


DENSE_ONLY_UP_TO: dict[Callable[..., Array], int] = {quadprog: 2000, daqp: 2000, scipy_nnls: 2000, scipy_slsqp: 500}
"""Methods that need M×M memory, or M³ work, are not tried beyond so many clients."""
PEERS: dict[str, Callable[..., Array]] = {
    "cvxpy": cvxpy_default,
    "cvxpy+Clarabel": cvxpy_clarabel,
    "OSQP": osqp,
    "OSQP 1e-9": osqp_accurate,
    "PIQP": piqp,
    "quadprog": quadprog,
    "DAQP": daqp,
    "NNLS": scipy_nnls,
    "SLSQP": scipy_slsqp,
}
GENERAL = ("cvxpy", "cvxpy+Clarabel", "OSQP", "OSQP 1e-9", "PIQP")
SOLVED = 1e-6
"""Relative error of the objective beyond which a library has not solved the problem."""


def _objective(counts: Any, target: Array, lam: float, alpha: Array) -> float:
    S, n = _data(counts)
    alpha = np.maximum(alpha, 0.0)
    alpha = alpha / alpha.sum()
    r = target - alpha @ S
    return float(r @ r + lam * alpha @ (alpha / n))


def _best(call: Callable[[], Any], repeats: int) -> float:
    best = np.inf
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - start)
    return best


def _in_child(case: Case, name: str, queue: Any) -> None:
    """Time one peer in a process of its own, so that one that hangs can be ended."""
    counts, target, grid = case.make()
    solver = PEERS[name]
    solver(*Case(9, 10).make()[:2], 1.0)  # imports
    fedpals.solve(counts, target, lam=grid[0])
    theirs, mine, worse = [], [], []
    for lam in grid:
        start = time.perf_counter()
        alpha = solver(counts, target, lam)
        first = time.perf_counter() - start
        us, them = (partial(method, counts, target, lam) for method in (ours, solver))
        best, own = first, _best(us, _OURS_A_ROUND)
        for _ in range(int(np.clip(_SECONDS / first, 1, 200)) - 1):
            best, own = min(best, _best(them, 1)), min(own, _best(us, _OURS_A_ROUND))
        f, g = (_objective(counts, target, lam, a) for a in (ours(counts, target, lam), alpha))
        theirs.append(best)
        mine.append(own)
        worse.append((g - f) / f)
    queue.put((theirs, mine, max(worse)))


def against(case: Case, name: str) -> dict[str, Any]:
    """Compare one peer with us on one case."""
    cap = DENSE_ONLY_UP_TO.get(PEERS[name])
    if cap is not None and (case.clients > cap or case.sparse):
        return {"status": "-"}
    context = mp.get_context("spawn")
    queue = context.Queue()
    child = context.Process(target=_in_child, args=(case, name, queue))
    child.start()
    child.join(LIMIT_SECONDS)
    if child.is_alive():
        child.kill()
        child.join()
        return {"status": f">{LIMIT_SECONDS:.0f} s"}
    if child.exitcode:
        return {"status": "failed"}
    theirs, mine, worse = queue.get()
    return {
        "status": "ok",
        "seconds": theirs,
        "ours": mine,
        "ratio": sum(theirs) / sum(mine),
        "ratios": [a / b for a, b in zip(theirs, mine, strict=True)],
        "worse": worse,
    }


def _peak_child(case: Case, queue: Any) -> None:
    """Report how far one solve raises the resident memory above what the counts themselves take (Linux)."""
    counts, target, (_, lam, _) = case.make()
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak of making the counts
    before = _status("VmRSS")
    fedpals.solve(counts, target, lam=lam)
    queue.put(_status("VmHWM") - before)


def _status(key: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(key)).split()[1])


def footprint(case: Case) -> dict[str, float]:
    """Our own figures: time, time over one read pass of S, peak memory over S's own."""
    counts, target, (_, lam, _) = case.make()
    validated = fedpals.LabelCounts.of(counts)
    S = validated.marginals
    held = S.data.nbytes + S.indices.nbytes + S.indptr.nbytes if sparse.issparse(S) else S.nbytes
    values = S.data if sparse.issparse(S) else S
    repeats = 300 if case.clients < 1000 else 7
    whole = _best(lambda: fedpals.solve(counts, target, lam=lam), repeats)
    core = _best(lambda: fedpals.solve(validated, target, lam=lam), repeats)
    limit = _best(lambda: fedpals.solve(validated, target, lam=0), min(repeats, 5))
    read = _best(lambda: values.sum(), repeats)
    context = mp.get_context("spawn")
    queue = context.Queue()
    child = context.Process(target=_peak_child, args=(case, queue))
    child.start()
    peak = queue.get()
    child.join()
    return {
        "seconds": whole,
        "core": core,
        "limit": limit,
        "passes": core / read,
        "memory": peak / held,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="only the sizes up to 10,000 clients")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    results: dict[str, Any] = {}
    for case in CASES:
        if options.quick and case.clients > 10**4:
            continue
        own = footprint(case)
        print(
            f"\n{case.name}: fedpals {own['seconds'] * 1e3:.3g} ms (core {own['core'] * 1e3:.3g} ms = "
            f"{own['passes']:.1f} reads of S; λ → 0⁺ {own['limit'] * 1e3:.3g} ms), "
            f"peak memory above the counts {own['memory']:.2f} × S"
        )
        rows = {name: against(case, name) for name in PEERS}
        for name, row in rows.items():
            if row["status"] == "ok":
                each = ", ".join(f"{ratio:.3g}" for ratio in row["ratios"])
                print(f"  {name:15s} {row['ratio']:9.2f} × our time ({each}), objective worse by {row['worse']:.0e}")
            else:
                print(f"  {name:15s} {row['status']:>9s}")
        finished = {n: r["ratio"] for n, r in rows.items() if r["status"] == "ok"}
        if finished:
            fastest = min(finished, key=lambda n: finished[n])
            print(f"  fastest of all: {fastest}; our time is {1 / finished[fastest]:.2g} × its")
        for what, limit in (("", np.inf), (f" that solves it to {SOLVED:g}", SOLVED)):
            general = {n: r for n, r in finished.items() if n in GENERAL and rows[n]["worse"] <= limit}
            if general:
                best = min(general, key=lambda n: general[n])
                print(f"  fastest general QP library{what}: {best}; we are {general[best]:.3g} × faster")
        results[case.name] = {"fedpals": own, "peers": rows}
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
