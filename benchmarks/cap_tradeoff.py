"""What a cap on the weights costs and gives: squared distance, ESS and ε, as docs/cap-tradeoff.svg.

    python benchmarks/cap_tradeoff.py [--out docs/cap-tradeoff.svg]

The stores of examples/retail. ε is that of one round at δ = 1e-5 with a noise of fixed size, σ = C/2: what the cap
alone gives. Where noise grows with the cap, σ = z C max_weight, ε stays and the noise falls instead.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

import fedpals
from fedpals.engine.privacy import epsilon
from fedpals.labels.tables import read_counts, read_target

RETAIL = Path(__file__).parents[1] / "examples" / "retail"
SIGMA, DELTA, LAM = 0.5, 1e-5, 0.0
"""In units of C; δ; and λ of FedPALS: the best match."""


def tradeoff(caps: np.ndarray) -> list[tuple[float, float, float, float]]:
    """Return squared distance, ESS in %, σ/C at z = 1 and ε for every cap."""
    counts, target = read_counts(RETAIL / "stores.csv"), read_target(RETAIL / "new-store.csv").shares
    rows = []
    for cap in caps.tolist():
        weights = fedpals.solve(counts, target, lam=LAM, max_weight=cap)
        largest = float(weights.alpha.max())
        rows.append((weights.squared_distance, 100 * weights.ess, cap, epsilon(largest / SIGMA, DELTA)))
    return rows


def draw(caps: np.ndarray, rows: list[tuple[float, float, float, float]]) -> Figure:
    """Return a panel per quantity over the cap."""
    figure = Figure(figsize=(9.0, 2.6), layout="constrained")
    titles = ("squared distance to T", "ESS in %", "σ of noise at z = 1, in units of C", "ε of a round at σ = C/2")
    for position, title in enumerate(titles):
        axes = figure.add_subplot(1, 4, position + 1)
        axes.plot(caps, [row[position] for row in rows], color="#0072b2")
        axes.set(title=title, xlabel="max_weight", ylim=(0, None))
        axes.title.set_fontsize(9)
        axes.tick_params(labelsize=8)
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def main() -> None:
    """Draw the figure, and print some of its points."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/cap-tradeoff.svg"))
    arguments = parser.parse_args()
    caps = np.linspace(0.17, 0.5, 67)
    rows = tradeoff(caps)
    mpl.rcParams.update({"svg.hashsalt": "fedpals", "svg.fonttype": "none", "font.family": "DejaVu Sans"})
    draw(caps, rows).savefig(arguments.out, metadata={"Date": None})
    for cap, row in list(zip(caps, rows, strict=True))[::10]:
        print(f"{cap:.2f}: distance {row[0]:.4f}, ESS {row[1]:.0f} %, σ {row[2]:.2f} C, ε {row[3]:.2f}")


if __name__ == "__main__":
    main()
