"""A study: the finished runs of several methods, to look at and to choose from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedpals.data import Federation
from fedpals.engine.metrics import HeldOutMetrics, Metrics
from fedpals.engine.round import EssChoice
from fedpals.errors import InputError
from fedpals.report.majority import Majority, sampling_error
from fedpals.report.run_checks import RunChecks, check_runs
from fedpals.shift.evaluation import Correction, Evaluation, SelectedBy
from fedpals.simulation.record import Record, SelectedRound
from fedpals.study.table import StudyTable, Value, build_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from fedpals.engine.target_model import TargetModel

METRICS = ("accuracy", "balanced_accuracy", "log_loss", "auc", "macro_f1")
"""What tables and curves can show."""
_USES = (Correction.RAW, Correction.PRIOR, Correction.CALIBRATED, Correction.RECOMMENDED)
"""Ways to use a model, the simplest first."""


@dataclass(frozen=True, eq=False)
class Study:
    """The finished runs of several methods on one federation."""

    runs: tuple[Record, ...]
    """Records of all runs, method by method; each has a folder on disk."""
    federation: Federation | None = None
    """Clients and target, where they were given in Python."""
    network: Callable[..., Any] | None = None
    """The class or function of the user's own network."""

    @property
    def methods(self) -> tuple[str, ...]:
        """Titles of the methods, in their order."""
        return tuple(dict.fromkeys(record.run.method.full_title for record in self.runs))

    @property
    def has_test(self) -> bool:
        """Whether the target has samples to test on; otherwise all numbers are the clients' estimates."""
        return bool(self.runs[0].result().test_samples)

    def table(self, metric: str = "accuracy", *, baseline: str = "FedAvg") -> StudyTable:
        """Return mean ± std over seeds of every method and use, and paired differences to a baseline.

        On the target's test samples where it has any; else as estimated from samples that clients held out. Beside
        accuracy stand the balanced accuracy and what always predicting the target's most frequent label would score.

        Parameters
        ----------
        metric
            accuracy, balanced_accuracy, log_loss, auc (two labels) or macro_f1 (test samples only).
        baseline
            Title of the method that others are compared with, seed by seed; the first method where it is missing.
        """
        _check(metric)
        values = {
            (record.run.method.full_title, record.run.seed, use): value
            for record in self.runs
            for use in _USES
            if (value := self._value(record, use, metric)) is not None
        }
        if not values:
            raise InputError(f"metric is {metric!r}, which these runs do not have; give one of {', '.join(METRICS)}")
        majority = Majority.of(self.runs[0].server_view())
        return build_table(values, metric, baseline, estimated=not self.has_test, majority=majority)

    def check(self) -> RunChecks:
        """Test label shift in every run, as `fedpals check` does: a row per run, and which of them to trust."""
        return check_runs(self.runs)

    def history(self) -> list[dict[str, Any]]:
        """Return a row per method, seed, round and correction, ready for ``pandas.DataFrame``."""
        return list(self._history())

    def plot(self, metric: str = "accuracy", *, correction: str = "raw", ax: Axes | None = None) -> Axes:
        """Draw learning curves, mean and one standard deviation over seeds; return matplotlib's axes.

        ``metric`` may also be "ess": the effective sample size of every round, where it was chosen while training;
        then the band is the range over seeds, and dots are the candidates with their estimated target losses.
        """
        if metric != "ess":
            _check(metric)
        from fedpals.report.figures import new_figure
        from fedpals.report.lines import Series, draw_candidates, draw_ess, draw_series
        from fedpals.report.looks import looks

        if ax is None:
            new_figure(1, 1)  # raises where matplotlib is missing
            import matplotlib.pyplot as plt  # whose figures notebooks show by themselves

            ax = plt.subplots(figsize=(7, 4.2), layout="constrained")[1]
        kinds = {record.run.method.full_title: record.run.method.name for record in self.runs}
        known_looks = looks((title, {"method": name}) for title, name in kinds.items())
        if metric == "ess":
            chosen = {title: [[choice.ess for choice in run] for run in runs] for title, runs in self._chosen().items()}
            if not chosen:
                raise InputError("metric is 'ess', but no run chose its ESS while training; train with ess='auto'")
            series = [Series.range_of_rounds(known_looks[title], runs) for title, runs in chosen.items()]
            draw_ess(ax, series, list(chosen))
            if candidates := self._candidates():
                draw_candidates(ax, candidates)
            ax.set_title("\n".join(self.choices().values()), fontsize="small", wrap=True)
            ax.legend(frameon=False, fontsize="small")
            return ax
        curves: dict[str, list[list[float]]] = {}
        for record in self.runs:
            values = [self._round_value(line.scores(Correction(correction)), metric) for line in record.lines()]
            if all(value is not None for value in values):
                curves.setdefault(record.run.method.full_title, []).append([v for v in values if v is not None])
        if not curves:
            raise InputError(f"no run has {metric} with the correction {correction!r} in every round")
        percent = metric != "log_loss"
        series = [Series.of_rounds(known_looks[title], lines) for title, lines in curves.items()]
        draw_series(ax, series, list(curves), scale=100 if percent else 1)
        what = "target" if self.has_test else "estimated target"
        ax.set_xlabel("round")
        ax.set_ylabel(f"{what} {metric.replace('_', ' ')}" + (" (%)" if percent else ""))
        ax.legend(frameon=False, fontsize="small")
        return ax

    def report(self, path: Path | str) -> Path:
        """Write a page about the study, whole in one ``.html`` file, and return its path.

        It has a traffic light with its reasons, advice, coverage, label mix, weights, curves, estimates with their
        standard errors, and the effective sample size of every round.
        """
        from fedpals.report.study_page import write_study_page
        from fedpals.report.watched import WatchedRun

        write_study_page([WatchedRun.of_record(record) for record in self.runs], Path(path), "Study")
        return Path(path)

    def choices(self) -> dict[str, str]:
        """Return a sentence for every method that chose its ESS while training: which, and why."""
        from fedpals.report.advice import sentence_of_choices

        return {title: sentence_of_choices(runs) for title, runs in self._chosen().items() if any(runs)}

    def _chosen(self) -> dict[str, list[list[EssChoice]]]:
        """Return the choices of every round, a list per seed, of the methods that chose their ESS while training."""
        chosen: dict[str, list[list[EssChoice]]] = {}
        for record in self.runs:
            if record.run.method.weighting.chooses:
                choices = [line.choice for line in record.lines() if line.choice is not None]
                chosen.setdefault(record.run.method.full_title, []).append(choices)
        return chosen

    def _candidates(self) -> list[tuple[int, float, float]]:
        """Return round, ESS and estimated loss above the smallest of the round, of all that were compared."""
        choices = [(line.round, line.choice) for record in self.runs for line in record.lines() if line.choice]
        return [
            (number, ess, loss - min(choice.losses))
            for number, choice in choices
            for ess, loss in zip(choice.candidates, choice.losses, strict=True)
        ]

    def best(self, *, method: str | None = None) -> TargetModel:
        """Return the model to use: of the best method and correction, that of the best seed.

        Methods and corrections are compared by their mean score over seeds. The score is the target accuracy that
        clients' held-out samples estimate; the target's test samples choose nothing. ``method`` is the only method to
        choose from. What was chosen stands in the model's ``facts``: method, seed, correction, round and estimate.
        """
        scores: dict[tuple[str, Correction], list[tuple[SelectedRound, Record]]] = {}
        for record in self.runs:
            title, name = record.run.method.full_title, record.run.method.name
            for use in _USES:
                if method in (None, title, name) and (selected := self._selected(record, use)) is not None:
                    scores.setdefault((title, use), []).append((selected, record))
        if not scores:
            raise InputError(f"method is {method!r}; the methods are {', '.join(self.methods)}")
        # Of equal means the first is taken: the simplest use of the first method.
        (_, use), candidates = max(scores.items(), key=lambda item: sum(s.score for s, _ in item[1]) / len(item[1]))
        selected, record = max(candidates, key=lambda candidate: candidate[0].score)
        from fedpals.engine.target_model import TargetModel  # torch takes a second to load: only where it is used

        model = TargetModel.load(record.model(use), self.network, trust=True)  # the user named it to `train`
        model.facts = replace(
            model.facts,
            method=record.run.method.full_title,
            seed=record.run.seed,
            estimate=selected.clients.target_accuracy if selected.clients else None,
            standard_error=selected.clients.standard_error if selected.clients else None,
        )
        return model

    def __repr__(self) -> str:
        seeds, clients = len({record.run.seed for record in self.runs}), self.runs[0].result().clients
        return f"<Study of {', '.join(self.methods)}; {seeds} seeds; {clients} clients>"

    def _selected(self, record: Record, use: Correction) -> SelectedRound | None:
        """Return the round whose model was saved with a correction."""
        selected = record.result().selected
        if use is Correction.RECOMMENDED:
            return selected.get(Evaluation.RECOMMENDED)
        rule = SelectedBy.ESTIMATE if record.run.knowledge.held_out is not None else SelectedBy.VALIDATION
        return selected.get(Evaluation.of(use, rule))

    def _value(self, record: Record, use: Correction, metric: str) -> Value | None:
        selected = self._selected(record, use)
        worth = None if selected is None else selected.test if self.has_test else selected.clients
        value = _metric(worth, metric)
        if value is None:
            return None
        error = None
        if metric == "accuracy":
            samples = record.result().test_samples
            error = worth.standard_error if isinstance(worth, HeldOutMetrics) else sampling_error(value, samples)
        return Value(value, error, _metric(worth, "balanced_accuracy"))

    def _round_value(self, scores: Any, metric: str) -> float | None:
        return None if scores is None else _metric(scores.test if self.has_test else scores.clients, metric)

    def _history(self) -> Iterator[dict[str, Any]]:
        for record in self.runs:
            run = record.run
            for line in record.lines():
                for correction in (Correction.RAW, Correction.PRIOR, Correction.CALIBRATED):
                    scores = line.scores(correction)
                    if scores is None:
                        continue
                    row = {"method": run.method.full_title, "seed": run.seed, "round": line.round, "loss": line.loss}
                    row |= {} if line.choice is None else {"ess": line.choice.ess}
                    row["correction"] = correction.value
                    for part in ("validation", "test"):
                        values = getattr(scores, part)
                        row |= {f"{part}_{m}": getattr(values, m) for m in METRICS if values is not None}
                    if scores.clients is not None:
                        for metric in METRICS:
                            if (estimate := scores.clients.estimate(metric)) is not None:
                                row[f"estimated_{metric}"] = estimate.value
                                row[f"estimated_{metric}_error"] = estimate.standard_error
                    yield row


def _check(metric: str) -> None:
    if metric not in METRICS:
        raise InputError(f"metric is {metric!r}; give one of {', '.join(METRICS)}")


def _metric(values: Metrics | HeldOutMetrics | None, metric: str) -> float | None:
    if values is None:
        return None
    if isinstance(values, HeldOutMetrics):
        estimate = values.estimate(metric)
        return None if estimate is None else estimate.value
    value: float | None = getattr(values, metric)
    return value
