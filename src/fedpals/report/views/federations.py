"""Federations: label marginals, aggregation weights, and the simplex of three labels."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from functools import partial

import numpy as np

from fedpals.errors import InputError
from fedpals.report.exhibit import Exhibit
from fedpals.report.figures import Panel, by_size, draw_simplex, weights_panels
from fedpals.report.finished import FederationView, FinishedExperiment
from fedpals.report.heatmap import marginals_panel
from fedpals.report.sheet import Cell, Sheet, Value
from fedpals.weights import Weights, ess_grid, solve

_ESS = (0.25, 0.5, 0.75)
"""ESS values of the weights figure, as in the paper, if no method sets one."""


def heatmap(finished: FinishedExperiment) -> list[Exhibit]:
    """Label marginals of clients and target, for every federation."""
    exhibits = []
    for name, federation in slugs(finished.federations).items():
        counts, target = federation.counts, federation.target
        S = counts.marginals if isinstance(counts.marginals, np.ndarray) else counts.marginals.toarray()
        names = [counts.label(k) for k in range(counts.shape[1])]
        lines: list[list[Value]] = [
            [counts.client(i), int(counts.sizes[i]), *map(float, shares)] for i, shares in enumerate(S)
        ]
        seed = "" if federation.seed is None else f", seed {federation.seed}"
        exhibits.append(
            Exhibit(
                f"heatmap-{name}",
                "Label marginals",
                f"Label shares of every client, and of the target below them: {federation.name}{seed}.",
                Sheet.of(["client", "samples", *names], [*lines, ["target", None, *map(float, target)]]),
                [marginals_panel(counts, target, title=federation.name)],
                federation=federation.name,
            )
        )
    return exhibits


def weights(finished: FinishedExperiment) -> list[Exhibit]:
    """Weights of clients sorted by size, FedAvg's as dots, for several ESS."""
    given = {method.run["ess"] for method in finished.experiment.method if "ess" in method.run}
    values = sorted(float(ess) for ess in given - {"auto"})
    exhibits = []
    for name, federation in slugs(finished.federations).items():
        solutions = _solutions(federation, values or _ESS)
        first = solutions[0]
        counts, order = first.counts, by_size(first)
        lines: list[list[Value]] = [
            [counts.client(i), int(counts.sizes[i]), float(first.fedavg[i]), *(float(w.alpha[i]) for w in solutions)]
            for i in order
        ]
        exhibits.append(
            Exhibit(
                f"weights-{name}",
                "Aggregation weights",
                f"Weights of the clients, the largest client first: {federation.name}. The larger the effective sample "
                "size, the closer FedPALS (bars) is to FedAvg (dots).",
                Sheet.of(["client", "samples", "FedAvg", *(f"ESS {100 * w.ess:.0f} %" for w in solutions)], lines),
                weights_panels(solutions),
                federation=federation.name,
            )
        )
    return exhibits


def _solutions(federation: FederationView, values: Iterable[float]) -> list[Weights]:
    """Solve for every ESS; values below the smallest possible ESS give one solution together."""
    weights = [solve(federation.counts, federation.target, ess=ess) for ess in values]
    return [w for i, w in enumerate(weights) if not (w.clamped and i + 1 < len(weights) and weights[i + 1].clamped)]


def simplex(finished: FinishedExperiment) -> list[Exhibit]:
    """Clients, target, projection and FedAvg in the simplex of three labels, a panel per case."""
    panels = []
    lines: list[list[Value | Cell]] = []
    for case in finished.experiment.case:
        if len(case.labels) != 3:
            raise InputError(
                f"{finished.name}: case {case.name!r} has {len(case.labels)} labels; the simplex is drawn for three"
            )
        federation = next(f for f in finished.federations if f.name == case.name)
        counts, target = federation.counts, federation.target
        limit, fedavg = (solve(counts, target, lam=lam) for lam in (0.0, math.inf))
        path = (limit, *ess_grid(counts, target, 3), fedavg)
        panels.append(Panel(case.name, partial(draw_simplex, solutions=path), (5.0, 4.0)))
        for name, point, squared_distance in (
            ("target T", target, 0.0),
            ("α⁰S, its projection", limit.projection.point, limit.projection_squared_distance),
            ("FedAvg", fedavg.marginal, fedavg.squared_distance),
        ):
            lines.append([case.name, name, *map(float, point), squared_distance])
    caption = (
        "The target's label marginal T, its projection α⁰S onto the hull of the clients' marginals, and the mix that "
        "results from FedAvg. The green line is the path of FedPALS as λ grows."
    )
    names = finished.experiment.case[0].labels if finished.experiment.case else []
    sheet = Sheet.of(["case", "point", *names, "squared distance to T"], lines)
    covered = sum(row[-1].value == 0 for row in sheet.rows if row[1].text.startswith("α⁰S"))
    said = f"Of {len(panels)} targets {covered} can be matched exactly by a mix of the clients."
    return [Exhibit("simplex", "Label simplex", caption, sheet, panels, finding=said)] if panels else []


def slugs(federations: Iterable[FederationView]) -> dict[str, FederationView]:
    """Return federations by a name that is valid for files."""
    federation_by_slug: dict[str, FederationView] = {}
    for federation in federations:
        plain = federation.name.lower().replace("β", "beta").replace("λ", "lambda").replace("δ", "delta")
        slug = re.sub(r"[^a-z0-9.]+", "-", plain).strip("-.") or "row"
        while slug in federation_by_slug:
            slug += "-again"
        federation_by_slug[slug] = federation
    return federation_by_slug
