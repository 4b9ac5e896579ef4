"""The answer of the front page: which method to use, how sure that is, and the command to use it."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fedpals.experiments.experiment import Column
from fedpals.report.choices import Choice, best_by_method, choices, differences, mean_of, overall, points
from fedpals.report.exhibit import METRICS
from fedpals.report.finished import EVALUATIONS, FinishedExperiment
from fedpals.report.paired import Paired
from fedpals.report.sheet import VERDICT_MARKS, Cell, Mark, Sheet
from fedpals.shift.evaluation import Correction, Evaluation, SelectedBy

_MAX_ROWS = 6
_MAX_COLUMNS = 6
_MAX_BARS = 8
"""Number of methods that are compared in a picture."""
_PREDICTABLE = (Correction.RECOMMENDED, Correction.CALIBRATED, Correction.PRIOR, Correction.RAW)
"""Uses that `fedpals predict` knows."""


@dataclass(frozen=True)
class Bar:
    """A choice in the picture; positions and lengths are in % of its width."""

    title: str
    use: str
    text: str
    start: float
    length: float
    low: float
    high: float
    best: bool


@dataclass(frozen=True)
class Advice:
    """A recommendation: its sentence, and the commands that follow it."""

    headline: str
    text: str
    commands: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Answer:
    """What the front page says."""

    finished: FinishedExperiment
    """The experiment that it is drawn from."""
    advice: Sequence[Advice]
    """The best choice; after one with a network of its own, the best with everybody's network, and after one that
    `fedpals predict` does not know, the best that it knows."""
    certainty: Sequence[str]
    """How sure it is, in sentences."""
    bars: Sequence[Bar]
    zero: float
    """Position of the baseline in the picture, in %."""
    table: Sheet
    left_out: int
    """Rows that the table has no room for."""


def answer(experiments: Sequence[FinishedExperiment]) -> Answer | None:
    """Draw the answer from the first experiment that compares methods; None if there is none."""
    for finished in experiments:
        ranked = choices(finished)
        if len(best_by_method(ranked)) > 1:
            return _answer(finished, ranked, experiments)
    return None


def _answer(
    finished: FinishedExperiment, ranked: Sequence[Choice], experiments: Sequence[FinishedExperiment]
) -> Answer:
    best, same = ranked[0], next((choice for choice in ranked if not choice.method.apart), ranked[0])
    advice = [_advice(finished, best, f"Use {best.title}")]
    if same is not best:
        advice.append(_advice(finished, same, f"With the same network for every method: {same.title}"))
    usable = next((choice for choice in ranked if choice.evaluation.correction in _PREDICTABLE), best)
    if best.evaluation.correction not in _PREDICTABLE and usable not in (best, same):
        advice.append(_advice(finished, usable, f"Best that fedpals predict can use: {usable.title}"))
    rivals = best_by_method(choice for choice in ranked if choice.method.apart == same.method.apart)
    bars, zero = _bars(best_by_method(ranked)[:_MAX_BARS], best)
    return Answer(
        finished,
        advice,
        [*_behind(finished, same, rivals), *_overall(experiments), _care(ranked)],
        bars,
        zero,
        _table(finished, ranked, best, same),
        max(0, len(finished.rows) - _MAX_ROWS),
    )


def _advice(finished: FinishedExperiment, choice: Choice, headline: str) -> Advice:
    assert finished.baseline is not None
    metric = METRICS[finished.experiment.metric]
    mean = f"the mean of {len(choice.pairs)} rows" if len(choice.pairs) > 1 else f"{next(iter(choice.pairs))}"
    gain = f"{points(choice.gain)} {finished.baseline.name} as trained"
    apart = " Part of that is its network, which the others do not have." if choice.method.apart else ""
    text = f"In {mean} its test {metric} is {gain}: {choice.record}.{apart} {_target_data(finished, choice)}"
    return Advice(headline, text, commands(finished, choice))


def _target_data(finished: FinishedExperiment, choice: Choice) -> str:
    """Say what a choice needs of the target, and what of it was used to find it."""
    evaluation = choice.evaluation
    if evaluation.selected_by is SelectedBy.VALIDATION and not evaluation.correction.uses_last_round:
        return "Its rounds were selected on labelled validation samples of the target."
    need = "It needs no sample of the target, only its label marginal"
    # The recipe is ours: on somebody's own runs, their test samples had no part in it.
    if Evaluation.RECOMMENDED in (evaluation, choice.method.chosen_by) and not finished.records:
        return f"{need}; but its recipe was found by test accuracies of tuning seeds, so its lead is optimistic."
    return f"{need}."


def commands(finished: FinishedExperiment, choice: Choice) -> tuple[str, ...]:
    """Return the commands that train with a choice on one's own data, and predict."""
    # What was held out may stand with all runs of an experiment instead of with the method.
    held_out = {s.run["held_out"] for s in finished.runs if s.method == choice.method.name and "held_out" in s.run}
    keys = {**choice.method.run, **_shared_point(finished, choice.method, choice.evaluation)}
    keys |= {"held_out": max(held_out)} if held_out else {}
    texts = {key: f"{value:g}" if isinstance(value, float) else value for key, value in keys.items()}
    flags = " ".join(f"--{key.replace('_', '-')} {shlex.quote(text)}" for key, text in texts.items())
    train = f"fedpals run --task mine.npz --client-key client --target T.csv {flags}"
    use = choice.evaluation.correction
    if use not in _PREDICTABLE:
        return (train,)
    return train, f"fedpals predict RUN_FOLDER new.npz --use {use.value}"


def _shared_point(finished: FinishedExperiment, method: Column, evaluation: Evaluation) -> dict[str, str | float]:
    """Return those of the tuned settings that have one value in all rows."""
    tuned = [m[0].point for row in finished.rows if (m := finished.members(row, method, evaluation))]
    return {k: v for k, v in (tuned[0] if tuned else {}).items() if all(point.get(k) == v for point in tuned)}


def _behind(finished: FinishedExperiment, best: Choice, rivals: Sequence[Choice]) -> list[str]:
    """Say by how much the next method is behind, and what the same use gives the baseline."""
    assert finished.baseline is not None
    own = best.method, best.evaluation
    sentences = []
    if len(rivals) > 1:
        other = rivals[1]
        lead = _lead(differences(finished, own, (other.method, other.evaluation)).values())
        sentences.append(f"{best.title} and the next method, {other.title}, differ by {lead}.")
    if best.method.name != finished.baseline.name:
        pairs = differences(finished, own, (finished.baseline, best.evaluation)).values()
        if pairs and best.evaluation is not next(iter(finished.evaluations)):
            title = f"{finished.baseline.name}{best.ending}"
            sentences.append(f"What the method itself adds: {best.title} and {title} differ by {_lead(pairs)}.")
    return sentences


def _lead(pairs: Iterable[Paired]) -> str:
    lead = mean_of(pairs)
    chance = "" if lead.error is None else f", which is {'no ' if lead.verdict() == 'equal' else ''}more than chance"
    return f"{lead.text()} points{chance}"


def _overall(experiments: Sequence[FinishedExperiment]) -> list[str]:
    """Say how often FedPALS is better than the baseline, over all experiments."""
    counted = [overall(experiments, e, EVALUATIONS[e]) for e in (Evaluation.RAW, Evaluation.PRIOR)]
    told = "; ".join(o.sentence for o in counted if o.verdicts)
    return [f"FedPALS against FedAvg with the same use, in all experiments together: {told}."] if told else []


def _care(ranked: Sequence[Choice]) -> str:
    seeds = sorted({pair.seeds for pair in ranked[0].pairs.values()})
    span = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    return (
        f"Differences are paired by seed ({span} per row), ± one standard error; better or worse means by more than "
        f"two. The best of {len(ranked)} choices always looks a little better than it is."
    )


def _bars(compared: Sequence[Choice], best: Choice) -> tuple[list[Bar], float]:
    """Return a bar per choice from the baseline to its gain, with whiskers of two standard errors."""
    gains = [(choice.gain.difference, 2 * (choice.gain.error or 0.0)) for choice in compared]
    spans = [(gain - error, gain + error) for gain, error in gains]
    low, high = min(0.0, *(span[0] for span in spans)), max(0.0, *(span[1] for span in spans))
    width = (high - low) or 1.0

    def place(value: float) -> float:
        return round(100 * (value - low) / width, 2)

    bars = []
    for choice, span in zip(compared, spans, strict=True):
        ends = sorted((0.0, choice.gain.difference))
        start = place(ends[0])
        length = round(place(ends[1]) - start, 2)
        use, text = choice.ending.strip(" ()"), choice.gain.text()
        bar = Bar(choice.method.name, use, text, start, length, place(span[0]), place(span[1]), choice is best)
        bars.append(bar)
    return bars, place(0.0)


def _table(finished: FinishedExperiment, ranked: Sequence[Choice], best: Choice, same: Choice) -> Sheet:
    """Return at most six rows and columns: the baseline, and what its use, the weights and both together change."""
    assert finished.baseline is not None
    first = next(iter(finished.evaluations))
    own = [choice for choice in ranked if choice.method.apart == same.method.apart]
    raw = next((c for c in own if c.evaluation is first and c.method.name != finished.baseline.name), None)
    used = next((c for c in own if c.method.name == finished.baseline.name and c.evaluation is same.evaluation), None)
    shown = list(dict.fromkeys(choice for choice in (raw, used, same, best) if choice is not None and choice.pairs))
    shown = [c for c in shown if not (c.method.name == finished.baseline.name and c.evaluation is first)]
    for choice in ranked:  # where these coincide, there is room for the next
        if len(shown) < min(3, len(ranked) - 1) and choice not in shown and choice.gain.difference:
            shown.append(choice)
    rows = []
    for row in finished.rows[:_MAX_ROWS]:
        reference = finished.spread(row, finished.baseline, first)
        cells = [Cell(f"{100 * reference.mean:.1f}" if reference else None)]
        spreads = [finished.spread(row, c.method, c.evaluation) for c in shown]
        highest = max((s.mean for s in spreads if s), default=0.0)
        for choice, spread in zip(shown, spreads, strict=True):
            pair: Paired | None = choice.pairs.get(row.name)
            below = ((pair.text(), VERDICT_MARKS[pair.verdict()]),) if pair else ()
            mark: Mark = "best" if spread and spread.mean == highest else ""
            cells.append(Cell(f"{100 * spread.mean:.1f}" if spread else None, mark, "", below))
        rows.append([Cell(row.name), *cells])
    titles = [f"{finished.baseline.name} (as trained)", *(choice.title for choice in shown)]
    return Sheet.of(["row", *titles][:_MAX_COLUMNS], [cells[:_MAX_COLUMNS] for cells in rows])
