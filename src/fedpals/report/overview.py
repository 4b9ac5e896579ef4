"""A study at a glance, as data for its page: light, advice, curves, estimates, weights and label mix.

The page of a finished study has the data inside; the page of `fedpals watch` asks for them again and again.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from fedpals.engine.recorded import ServerView
from fedpals.labels import LabelCounts
from fedpals.report import light
from fedpals.report.advice import advice, mismatch, sentence_of_choices, shortage_sentence
from fedpals.report.looks import Look, looks
from fedpals.report.majority import Majority, sampling_error, typical_error
from fedpals.report.paired import Paired
from fedpals.report.run_checks import label_shift, weights_by_client
from fedpals.report.table import Spread
from fedpals.report.watched import USES, WatchedRun
from fedpals.shift import Homogeneity, Tally
from fedpals.shift.evaluation import Correction
from fedpals.weights import Weights, solve

_MAX_POINTS = 150
"""Number of points of a curve."""
_MAX_BARS = 20
"""Number of clients and of labels that are drawn: the largest."""
_MAX_REASONS = 5
_DIGITS = 5


def overview(runs: Sequence[WatchedRun], title: str) -> dict[str, Any]:
    """Return the data of a study's page, federation by federation."""
    names = dict.fromkeys(run.federation for run in runs)
    return {
        "title": title,
        "runs": len(runs),
        "finished": sum(run.finished for run in runs),
        "federations": [_federation(name, [run for run in runs if run.federation == name]) for name in names],
    }


def _federation(name: str, runs: Sequence[WatchedRun]) -> dict[str, Any]:
    by_method: dict[str, list[WatchedRun]] = {}
    for run in runs:
        by_method.setdefault(run.method, []).append(run)
    styles = looks((title, {"method": members[0].kind}) for title, members in by_method.items())
    view = next((run.view for run in runs if run.view is not None), None)
    checks = _checks(by_method)
    return {
        "name": name,
        "light": light.worst(checks),
        "checks": [{"light": check.light, "text": check.text} for check in checks],
        "advice": _advice(by_method, view),
        "progress": [_progress(title, members) for title, members in by_method.items()],
        "table": _table(by_method),
        "charts": [chart for chart in _charts(by_method, styles, view) if chart["lines"] or chart["bars"]],
        "refused": _refusals(runs),
    }


def _progress(title: str, members: Sequence[WatchedRun]) -> dict[str, Any]:
    planned = [run.planned for run in members]
    return {
        "method": title,
        "rounds": sum(len(run.lines) for run in members),
        "planned": sum(p for p in planned if p is not None) if None not in planned else None,
        "runs": len(members),
        "finished": sum(run.finished for run in members),
    }


@lru_cache(maxsize=64)
def _solved(view: ServerView, lam: float | None, ess: float | None) -> Weights:
    counts = LabelCounts.of(view.counts, clients=list(map(view.client, range(len(view.counts)))), labels=view.labels)
    return solve(counts, view.target, lam=lam, ess=ess)


@lru_cache(maxsize=64)
def _label_shift(tallies: str, seed: int, view: ServerView | None) -> Homogeneity:
    """Test label shift with tallies, given as JSON: once, because it takes a second."""
    return label_shift([Tally.from_json(tally) for tally in json.loads(tallies)], seed, view)


def _checks(by_method: Mapping[str, Sequence[WatchedRun]]) -> list[light.Check]:
    runs = [run for members in by_method.values() for run in members]
    checks: list[light.Check | None] = []
    views = {(run.view.counts, run.view.target): run for run in runs if run.view is not None}
    limits = {run.seed: _solved(run.view, 0.0, None) for run in views.values() if run.view is not None}
    if limits:
        seed = max(limits, key=lambda seed: mismatch(limits[seed].target, limits[seed].projection.point))
        where = f" (seed {seed}, the farthest of {len(limits)})" if len(limits) > 1 else ""
        checks.append(light.check_coverage(limits[seed], where))
    for title, members in by_method.items():
        ess = [values[-1] for run in members if (values := run.ess())]
        if ess and min(ess) < 1 - 1e-6:  # of FedAvg there is nothing to say
            checks.append(light.check_ess(title, float(np.median(ess))))
    # FedAvg's model is asked first: one that is made for the target may predict nearly always the same label.
    tested = next((run for run in sorted(runs, key=lambda run: run.kind != "fedavg") if run.tallies), None)
    if tested is not None:
        tallies = json.dumps([tally.to_json() for tally in tested.tallies])
        carried = {title: _last_weights(members) for title, members in by_method.items()}
        checks.append(light.check_label_shift(_label_shift(tallies, tested.seed, tested.view), carried))
    rounds = [line for run in runs for line in run.lines]
    if rounds:
        checks.append(light.check_refusals(sum(r.refused for r in runs), sum(line.participants for line in rounds)))
        worth = [run.worth(Correction.RAW) for run in runs]
        errors = [w[1].standard_error for w in worth if w and w[1] and w[1].standard_error is not None]
        unseen = max((_unseen_share(run.view) for run in views.values() if run.view), default=0.0)
        checks.append(light.check_estimate(max(errors, default=None), unseen))
    if (majority := _majority(runs)) is not None:
        finished = {title: members for title, members in by_method.items() if all(run.finished for run in members)}
        checks.append(light.check_guess(majority, _no_better(finished, majority)))
    diverged = [f"{run.method}, seed {run.seed}" for run in runs if run.result and run.result.diverged]
    checks.append(light.check_divergence(diverged))
    return [check for check in checks if check is not None]


def _last_weights(members: Sequence[WatchedRun]) -> dict[str, float]:
    """Return the weights of the last round, by client; the mean over a method's runs."""
    total: dict[str, float] = {}
    for run in members:
        if run.lines and run.view is not None:
            for name, alpha in weights_by_client(run.lines[-1], run.view).items():
                total[name] = total.get(name, 0.0) + alpha / len(members)
    return total


def _majority(runs: Sequence[WatchedRun]) -> Majority | None:
    view = next((run.view for run in runs if run.view is not None), None)
    return None if view is None else Majority.of(view)


def _no_better(by_method: Mapping[str, Sequence[WatchedRun]], majority: Majority) -> list[str]:
    """Name the methods, with their uses, whose accuracy is not above a constant guess."""
    named = []
    for title, members in by_method.items():
        if uses := [name for use, name in USES.items() if _is_guess(members, use, majority)]:
            named.append(f"{title} {', '.join(uses)}")
    return named


def _is_guess(members: Sequence[WatchedRun], use: Correction, majority: Majority) -> bool:
    """Return whether a method's accuracy, on test samples or else as estimated, is not above a constant guess."""
    tests, estimates = _by_seed(members, use)
    if tests:
        mean = sum(tests.values()) / len(tests)
        samples = max((run.result.test_samples for run in members if run.result), default=0)
        return not majority.beaten_by(mean, sampling_error(mean, samples))
    if not estimates:
        return False
    mean = sum(value for value, _ in estimates.values()) / len(estimates)
    return not majority.beaten_by(mean, typical_error(error for _, error in estimates.values()))


def _unseen_share(view: ServerView) -> float:
    """Return the share of the target whose labels no client has."""
    columns = zip(view.target, zip(*view.counts, strict=True), strict=True)
    return sum(share for share, column in columns if not any(column))


def _advice(by_method: Mapping[str, Sequence[WatchedRun]], view: ServerView | None) -> list[str]:
    """Return sentences on weights, shortage and chosen ESS."""
    if view is None:
        return []
    sentences = [shortage_sentence(_solved(view, 0.0, None))]
    for title, members in by_method.items():
        run = members[0]
        ess = run.ess()
        chosen = [[line.choice for line in member.lines if line.choice is not None] for member in members]
        if any(chosen):
            sentences.append(f"{title}: {sentence_of_choices(chosen)}")
        if ess and ess[-1] < 1 - 1e-6 and len(run.lines[-1].weights.participants) == len(view.counts):
            seed = f", seed {run.seed}" if len(members) > 1 else ""
            sentences.append(f"{title}{seed}: {advice(_solved(view, None, round(max(ess[-1], 1e-3), 3)))}")
    return [sentence for sentence in dict.fromkeys(sentences) if sentence]


def _table(by_method: Mapping[str, Sequence[WatchedRun]]) -> dict[str, Any]:
    """Return mean ± std on test samples, estimates ± standard error, and paired differences to the first method."""
    rows = []
    majority = _majority([run for members in by_method.values() for run in members])
    baseline = next((title for title in by_method if title == "FedAvg"), next(iter(by_method), ""))
    for title, members in by_method.items():
        for use, name in USES.items():
            tests, estimates = _by_seed(members, use)
            if not (tests or estimates):
                continue
            reference = _by_seed(by_method[baseline], use)
            pair = Paired.of(tests, reference[0]) or Paired.of(*({s: v for s, (v, _) in e.items()} for e in (
                estimates, reference[1])))  # fmt: skip
            other = title != baseline and pair is not None
            rows.append(
                {
                    "method": title,
                    "use": name,
                    "test": _test_text(list(tests.values())) if tests else "",
                    "estimate": _estimate_text(estimates.values()) if estimates else "",
                    "balanced": _balanced_text(members, use),
                    "difference": pair.text() if other and pair else "",
                    "verdict": pair.verdict() if other and pair else "",
                    "guess": majority is not None and _is_guess(members, use, majority),
                    "seeds": len(members),
                }
            )
    return {
        "baseline": baseline,
        "rows": rows,
        "final": all(r.result for m in by_method.values() for r in m),
        "majority": "" if majority is None else majority.sentence,
    }


def _by_seed(
    members: Sequence[WatchedRun], use: Correction
) -> tuple[dict[int, float], dict[int, tuple[float, float | None]]]:
    """Return test accuracies, and estimates with their standard errors, by seed."""
    tests: dict[int, float] = {}
    estimates: dict[int, tuple[float, float | None]] = {}
    for run in members:
        test, clients = run.worth(use) or (None, None)
        if test is not None:
            tests[run.seed] = test.accuracy
        if clients is not None:
            estimates[run.seed] = clients.target_accuracy, clients.standard_error
    return tests, estimates


def _test_text(values: Sequence[float]) -> str:
    """Write mean ± std over seeds; of one seed there is no spread."""
    return str(Spread.of(values)) if len(values) > 1 else f"{100 * values[0]:.1f}"


def _estimate_text(estimates: Any) -> str:
    """Write the mean of estimates, ± the standard error that one of them has (root mean square)."""
    values = [value for value, _ in estimates]
    error = typical_error(error for _, error in estimates)
    return f"{100 * sum(values) / len(values):.1f}" + ("" if error is None else f" ± {100 * error:.1f}")


def _balanced_text(members: Sequence[WatchedRun], use: Correction) -> str:
    """Write the mean balanced accuracy over seeds, on test samples or else as estimated; nothing where unknown."""
    values = []
    for run in members:
        test, clients = run.worth(use) or (None, None)
        if test is not None and test.balanced_accuracy is not None:
            values.append(test.balanced_accuracy)
        elif test is None and clients is not None and clients.balanced_accuracy is not None:
            values.append(clients.balanced_accuracy.value)
    return f"{100 * sum(values) / len(values):.1f}" if values else ""


def _charts(
    by_method: Mapping[str, Sequence[WatchedRun]], styles: Mapping[str, Look], view: ServerView | None
) -> list[dict[str, Any]]:
    tests: dict[str, list[list[float]]] = {}
    estimates: dict[str, list[list[float]]] = {}
    ess: dict[str, list[list[float]]] = {}
    for title, members in by_method.items():
        for run in members:
            raw = [line.raw for line in run.lines]
            for values, group in (
                ([score.test.accuracy for score in raw if score.test], tests),
                ([score.clients.target_accuracy for score in raw if score.clients], estimates),
                (run.ess(), ess),
            ):
                if values:
                    group.setdefault(title, []).append(values)
    errors = {title: _errors(members) for title, members in by_method.items()}
    charts = [
        _lines("Estimated target accuracy", "%, from the clients' held-out samples; band: standard error", estimates,
               styles, errors),
        _lines("Target accuracy", "%, on test samples; band: standard deviation over seeds", tests, styles),
        _lines("Effective sample size", "% of the participants' samples; band: range over seeds", ess, styles,
               of_range=True),
    ]  # fmt: skip
    return [*charts, *(_bars(by_method, styles, view) if view is not None else [])]


def _errors(members: Sequence[WatchedRun]) -> list[float]:
    """Return the standard error of the first run's estimate, by round."""
    scores = [line.raw.clients for line in members[0].lines]
    return [score.standard_error or 0.0 for score in scores if score is not None]


def _lines(
    title: str,
    unit: str,
    curves: Mapping[str, Sequence[Sequence[float]]],
    styles: Mapping[str, Look],
    errors: Mapping[str, Sequence[float]] | None = None,
    *,
    of_range: bool = False,
) -> dict[str, Any]:
    """Return curves of points: round, mean over seeds, and the ends of the band.

    The band is ± ``errors``, or else the range over seeds, or one standard deviation.
    """
    lines = []
    for method, runs in curves.items():
        longest = max(map(len, runs))
        step = math.ceil(longest / _MAX_POINTS)
        points = []
        for i in (*range(0, longest - 1, step), longest - 1):
            values = [run[i] for run in runs if i < len(run)]
            spread = Spread.of(values)
            width = spread.std if errors is None else [*errors[method], *[0.0] * longest][i]
            band = (min(values), max(values)) if of_range else (spread.mean - width, spread.mean + width)
            points.append([i + 1, *(round(100 * value, 2) for value in (spread.mean, *band))])
        look = styles[method]
        lines.append({"name": method, "colour": look.css, "dashes": look.dashes, "points": points})
    return {"title": title, "unit": unit, "lines": lines, "bars": []}


def _bars(
    by_method: Mapping[str, Sequence[WatchedRun]], styles: Mapping[str, Look], view: ServerView
) -> list[dict[str, Any]]:
    """Return the last weights of the first run of every method, and the label mix that they give."""
    counts = np.asarray(view.counts, dtype=np.float64)
    sizes = counts.sum(axis=1)
    marginals = counts / np.maximum(sizes, 1.0)[:, None]
    alphas: dict[str, Any] = {}
    for title, members in by_method.items():
        run = max(members, key=lambda member: len(member.lines))
        if run.lines and len(run.view.counts if run.view else ()) == len(counts):
            alphas[title] = np.zeros(len(counts))
            alphas[title][list(run.lines[-1].weights.participants)] = run.lines[-1].weights.alpha
    has_fedavg = any(members[0].kind == "fedavg" for members in by_method.values())
    series = {**({} if has_fedavg else {"all samples alike": sizes / sizes.sum()}), **alphas}
    if not series:
        return []
    colours = {"all samples alike": "var(--grey)", "target": "var(--red)"} | {m: styles[m].css for m in alphas}
    clients = np.sort(np.argsort(-np.max(list(series.values()), axis=0), kind="stable")[:_MAX_BARS])
    mixes = {name: alpha @ marginals for name, alpha in series.items()} | {"target": np.asarray(view.target)}
    labels = np.sort(np.argsort(-np.max(list(mixes.values()), axis=0), kind="stable")[:_MAX_BARS])

    def groups(values: Mapping[str, Any], shown: Any) -> list[dict[str, Any]]:
        return [
            {"name": name, "colour": colours[name], "values": np.round(100 * v[shown], _DIGITS).tolist()}
            for name, v in values.items()
        ]

    return [
        {
            "title": "Weights of the clients",
            "unit": _shown("%, in the last round", len(clients), len(counts), "clients"),
            "lines": [],
            "names": [view.client(i) for i in clients.tolist()],
            "bars": groups(series, clients),
        },
        {
            "title": "Label mix",
            "unit": _shown("% of samples, as weighted, beside the target's", len(labels), len(view.labels), "labels"),
            "lines": [],
            "names": [view.labels[k] for k in labels.tolist()],
            "bars": groups(mixes, labels),
        },
    ]


def _shown(text: str, shown: int, total: int, what: str) -> str:
    return text if shown == total else f"{text}; {shown} of {total:,} {what}"


def _refusals(runs: Sequence[WatchedRun]) -> list[str]:
    """Return the last refused updates, in words."""
    said = [
        f"{run.method}, seed {run.seed}, round {line.round}: {_name(run, refusal.client)}: {refusal.reason}"
        for run in runs
        for line in run.lines
        for refusal in line.refused
    ]
    return said[-_MAX_REASONS:]


def _name(run: WatchedRun, client: int) -> str:
    return run.view.client(client) if run.view is not None else f"client {client}"
