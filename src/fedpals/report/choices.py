"""Choices of a method and a way to use its model, ranked by what they gain over the baseline as trained."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from fedpals.experiments.experiment import Column
from fedpals.report.finished import FinishedExperiment, is_limit
from fedpals.report.paired import Paired, Verdict
from fedpals.shift.evaluation import Correction, Evaluation

_METHOD = "fedpals"
"""The method that the package is about."""


@dataclass(frozen=True, eq=False)
class Choice:
    """A method and an evaluation of its models, compared with the baseline as trained."""

    method: Column
    evaluation: Evaluation
    use: str
    """Title of the evaluation."""
    pairs: Mapping[str, Paired]
    """Difference to the baseline as trained, by row."""
    gain: Paired
    """Mean of the rows' differences."""

    @property
    def title(self) -> str:
        """Method and evaluation in one phrase."""
        return f"{self.method.name}{self.ending}"

    @property
    def ending(self) -> str:
        """The evaluation, as it follows the name of the method."""
        use = self.use.removesuffix(", no target data")
        return f" {use}" if use.startswith("+") else f" ({use})"

    @property
    def verdicts(self) -> Counter[Verdict]:
        """Number of rows in which it is better than, equal to and worse than the baseline."""
        return Counter(pair.verdict() for pair in self.pairs.values())

    @property
    def record(self) -> str:
        """The verdicts in words: ``better in 5 of 6 rows, equal in 1``."""
        counts, rows = self.verdicts, len(self.pairs)
        parts = [(word, counts[word]) for word in _WORDS if counts[word]]
        if not parts:
            return f"one seed in {rows} rows" if rows > 1 else "one seed"
        first, *others = [f"{word} in {number}" for word, number in parts]
        return ", ".join([f"{first} of {rows} {'rows' if rows > 1 else 'row'}", *others])


_WORDS: tuple[Verdict, ...] = ("better", "equal", "worse")


def mean_of(pairs: Iterable[Paired]) -> Paired:
    """Return the mean of independent differences d_r ± e_r of R rows: Σ d_r / R ± (Σ e_r²)^½ / R.

    >>> mean_of([Paired(0.5, 0.3, 8), Paired(0.25, 0.4, 8)])
    Paired(difference=0.375, error=0.25, seeds=16)
    """
    listed = list(pairs)
    errors = [pair.error for pair in listed if pair.error is not None]
    error = math.hypot(*errors) / len(listed) if len(errors) == len(listed) else None
    return Paired(sum(pair.difference for pair in listed) / len(listed), error, sum(pair.seeds for pair in listed))


def choices(finished: FinishedExperiment) -> list[Choice]:
    """Return the choices that every row has, the largest gain first; without Oracle and Pooled, which nobody can use.

    Where no choice has all rows, those that have the most. Without a baseline there are none.
    """
    if finished.baseline is None or not finished.evaluations:
        return []
    first = next(iter(finished.evaluations))
    ranked = []
    for method in finished.methods:
        for evaluation, use in finished.evaluations.items():
            pairs = differences(finished, (method, evaluation), (finished.baseline, first))
            if pairs and not is_limit(method.run):
                ranked.append(Choice(method, evaluation, use, pairs, mean_of(pairs.values())))
    most = max((len(choice.pairs) for choice in ranked), default=0)
    return sorted((c for c in ranked if len(c.pairs) == most), key=lambda choice: -choice.gain.difference)


def differences(
    finished: FinishedExperiment, own: tuple[Column, Evaluation], other: tuple[Column, Evaluation]
) -> dict[str, Paired]:
    """Return the paired differences of two methods, each with an evaluation, by row that has both."""
    pairs = {
        row.name: Paired.of(finished.scores(row, *own), finished.scores(row, *other))
        for row in finished.rows
    }  # fmt: skip
    return {name: pair for name, pair in pairs.items() if pair is not None}


def best_by_method(ranked: Iterable[Choice]) -> list[Choice]:
    """Return every method at its best evaluation, in the order of ``ranked``."""
    best: dict[str, Choice] = {}
    for choice in ranked:
        best.setdefault(choice.method.name, choice)
    return list(best.values())


def finding(finished: FinishedExperiment) -> str:
    """Say in a sentence what came out of an experiment; empty where nothing can be compared."""
    ranked = choices(finished)
    rivals = {choice.method.name for choice in ranked}
    if finished.baseline is not None and len(rivals) > 1:
        best, reference = ranked[0], f"{finished.baseline.name} as trained"
        own = next((c for c in ranked if _is_plain(c)), None)
        also = f"; {own.title}: {own.gain.text()}" if own and own is not best else ""
        return f"Best: {best.title}, {points(best.gain)} {reference}{also}."
    return _unpaired(finished)


def points(gain: Paired) -> str:
    """Return a difference in words: ``4.8 ± 1.8 points above``."""
    error = "" if gain.error is None else f" ± {100 * gain.error:.1f}"
    return f"{100 * abs(gain.difference):.1f}{error} points {'below' if gain.difference < 0 else 'above'}"


def _is_plain(choice: Choice) -> bool:
    """Return whether it is FedPALS as trained, with the network of the others."""
    plain = choice.method.run.get("method") == _METHOD and not choice.method.apart
    return plain and choice.evaluation.correction is Correction.RAW


def _unpaired(finished: FinishedExperiment) -> str:
    """Say which choices are best, or between which values the only method is, where there is no baseline."""
    means = {
        (method.name, use): {row.name: s.mean for row in finished.rows if (s := finished.spread(row, method, e))}
        for method in finished.methods
        for e, use in finished.evaluations.items()
    }
    complete = {key: values for key, values in means.items() if len(values) == len(finished.rows)}
    if not complete:
        return ""
    totals = {key: sum(values.values()) for key, values in complete.items()}
    best = max(totals, key=totals.__getitem__)
    if len(finished.methods) > 1:
        first = next(iter(finished.evaluations.values()))
        plain = max((key for key in totals if key[1] == first), key=totals.__getitem__, default=best)
        said = [f"{' '.join(key)} ({100 * totals[key] / len(finished.rows):.1f} %)" for key in (plain, best)]
        return "Best in the mean: " + "; of all uses ".join(dict.fromkeys(said)) + "."
    (method, use), values = best, complete[best]
    low, high = min(values, key=values.__getitem__), max(values, key=values.__getitem__)
    if low == high:
        return f"{method} {use}: {100 * values[low]:.1f} %."
    return f"{method} {use}: from {100 * values[low]:.1f} % ({low}) to {100 * values[high]:.1f} % ({high})."


@dataclass(frozen=True)
class Overall:
    """Rows of all experiments in which FedPALS is better than, equal to and worse than the baseline."""

    use: str
    verdicts: Counter[Verdict]

    @property
    def sentence(self) -> str:
        """The counts in words."""
        rows = self.verdicts.total()
        parts = ", ".join(f"{word} in {self.verdicts[word]}" for word in _WORDS)
        return f"{self.use}: {parts} of {rows} row{'s' if rows > 1 else ''}"


def overall(experiments: Iterable[FinishedExperiment], evaluation: Evaluation, use: str) -> Overall:
    """Compare the first FedPALS of every experiment with its baseline, both with one evaluation, row by row."""
    verdicts: Counter[Verdict] = Counter()
    for finished in experiments:
        own = next((m for m in finished.methods if m.run.get("method") == _METHOD and not m.apart), None)
        if own is not None and finished.baseline is not None:
            pairs = differences(finished, (own, evaluation), (finished.baseline, evaluation)).values()
            verdicts.update(v for pair in pairs if (v := pair.verdict()))
    return Overall(use, verdicts)
