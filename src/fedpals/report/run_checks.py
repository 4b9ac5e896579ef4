"""The test of label shift on finished runs: a line per run, and which of them to trust."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedpals.engine.recorded import RoundLine, ServerView
from fedpals.errors import InputError
from fedpals.experiments.results import FinalView
from fedpals.report.light import check_label_shift
from fedpals.report.text_table import html_table, text_table
from fedpals.shift import Homogeneity, Tally, homogeneity
from fedpals.shift.tally import pooled
from fedpals.simulation.record import Record

_NAMED = 4
"""Number of clients or labels that are named in a cell."""
COLUMNS = "p: probability of such differences by chance; V: their size; balanced: balanced accuracy."
WHICH_TO_TRUST = (
    "Trust the runs whose model tells the labels apart (a high balanced accuracy), normally FedAvg's: where a model "
    "predicts nearly always the same label, differences between clients cannot show."
)


@dataclass(frozen=True)
class CheckedRun:
    """A finished run and its test of label shift."""

    folder: Path
    federation: str
    method: str
    """Title of the method."""
    seed: int
    clients: int
    """Number of clients that were asked."""
    samples: int
    """Number of held-out samples."""
    balanced_accuracy: float
    """Mean recall over the labels that were held out: whether the model tells them apart."""
    test: Homogeneity
    advice: str
    """What to do, in one or two sentences; to leave out clients that carry most of the weight would be none."""

    @property
    def title(self) -> str:
        """What was tested."""
        who = f"{self.federation}, {self.method}, seed {self.seed}"
        return f"{who}: {self.clients} clients, {self.samples:,} held-out samples"


@dataclass(frozen=True)
class RunChecks:
    """Tests of label shift, a row per run; prints as text, and as HTML in a notebook."""

    runs: tuple[CheckedRun, ...]

    @property
    def rows(self) -> list[dict[str, Any]]:
        """A row per run, ready for ``pandas.DataFrame``."""
        return [
            {
                "federation": run.federation,
                "method": run.method,
                "seed": run.seed,
                "light": run.test.light,
                "p": run.test.p,
                "effect": run.test.effect,
                "balanced accuracy": run.balanced_accuracy,
                "clients that differ": list(run.test.broken_clients),
                "not testable": list(run.test.untested),
            }
            for run in self.runs
        ]

    def texts(self) -> list[list[str]]:
        """Return the table's header and rows; the federation is named where there are several."""
        table = [
            [
                row["federation"],
                row["method"],
                str(row["seed"]),
                row["light"],
                f"{row['p']:.2g}",
                f"{row['effect']:.2f}",
                f"{100 * row['balanced accuracy']:.1f}",
                _some(row["clients that differ"]),
                _some(row["not testable"]),
            ]
            for row in self.rows
        ]
        header = ["federation", "method", "seed", "light", "p", "V", "balanced, %", "who differs", "not testable"]
        table.insert(0, header)
        several = len({run.federation for run in self.runs}) > 1
        return table if several else [row[1:] for row in table]

    def __str__(self) -> str:
        return "\n".join([text_table(self.texts()), COLUMNS, WHICH_TO_TRUST])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return html_table(self.texts(), [COLUMNS, WHICH_TO_TRUST])


def check_run(record: Record) -> CheckedRun:
    """Test label shift with the tallies of a finished run."""
    run, tallies, view = record.run, record.tallies(), record.server_view()
    together = pooled(tallies)
    seen = together.samples > 0
    test = label_shift(tallies, run.seed, view)
    carried = {run.method.full_title: weights_by_client(record.lines()[-1], view)}
    return CheckedRun(
        record.path,
        run.data.name,
        run.method.full_title,
        run.seed,
        len(tallies),
        int(together.samples.sum()),
        float(np.mean(together.correct[seen] / together.samples[seen])) if seen.any() else 0.0,
        test,
        check_label_shift(test, carried).text,
    )


def check_runs(records: Iterable[Record]) -> RunChecks:
    """Test label shift in every run whose clients held samples out."""
    listed = list(records)
    testable = [record for record in listed if record.run.knowledge.held_out is not None]
    if not testable:
        raise InputError(
            f"the clients of none of the {len(listed)} runs held anything out to tell about the model; run them with "
            "--held-out 0.1 (held_out=0.1 in Python)"
        )
    return RunChecks(tuple(map(check_run, testable)))


def label_shift(tallies: Sequence[Tally], seed: int, view: ServerView | FinalView | None) -> Homogeneity:
    """Test label shift; clients and labels have the names that the server knows."""
    if view is None:
        return homogeneity(tallies, seed)
    # Where samples were pooled to train on, the server has one client, but each holds its own samples out.
    known = view.clients is not None and len(view.clients) == len(tallies)
    return homogeneity(tallies, seed, clients=view.clients if known else None, labels=view.labels)


def weights_by_client(line: RoundLine, view: ServerView) -> dict[str, float]:
    """Return a round's weights, by the clients' names as in the test: their numbers, if the server knows none."""
    weights = zip(line.weights.participants, line.weights.alpha, strict=True)
    return {view.clients[row] if view.clients else str(row): alpha for row, alpha in weights}


def _some(names: Sequence[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")
