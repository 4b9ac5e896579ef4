"""`fedpals demo`: seven methods on real images, for a target with other labels."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedpals.cli.run import compute, expand, need_torch
from fedpals.cli.terminal import escape, new_console
from fedpals.report.figures import check_figure_path, save_figure
from fedpals.simulation.settings import SweepSettings

SETTINGS = {
    "task": "digits",
    "labels_per_client": 3,
    "model": "logistic",
    "method": "fedavg,fedprox,scaffold,afl,fedrs,fedpals,oracle",
    "ess": 0.25,
    "rounds": 40,
    "epochs": 2,
    "batch_size": 16,
    "held_out": 0.2,
}


def demo(
    workers: Annotated[int, typer.Option(min=1, help="Processes.")] = 2,
    seeds: Annotated[int, typer.Option(min=1, help="Independent repetitions.")] = 8,
    out: Annotated[Path, typer.Option(help="Folder for records and the figure.")] = Path("out/demo"),
) -> None:
    """Train seven methods on real images of digits for a target with other labels, in about a minute."""
    figure = out / "demo.png"
    need_torch("fedpals demo", here=workers == 1)
    check_figure_path(figure)
    from fedpals.report.lines import comparison_figure

    console = new_console()
    console.print(
        "Nine clients have images of three digits each. The target has only three digits, drawn independently. The "
        "server knows\nthe clients' label counts and the target's label marginal. Rounds are selected by an estimate "
        "from the clients' held-out\nsamples; images of the target are used only for testing.\n"
    )
    records = compute(expand(SETTINGS, seeds), SweepSettings(out / "runs", workers), console)
    save_figure(comparison_figure(records), figure)
    console.print(f"Figure: {escape(str(figure))}", soft_wrap=True)
