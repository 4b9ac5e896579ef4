from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import fedpals
from fedpals import InputError
from fedpals.experiments.results import Summary
from fedpals.report.finished import FinishedExperiment
from fedpals.report.sheet import Sheet
from fedpals.shift.evaluation import Evaluation

pytest.importorskip("matplotlib", reason="figures need the extra 'plots'")

from fedpals.report.exhibit import Exhibit
from fedpals.report.views import exhibits
from tests.report import made


def only(view: str, **changes: Any) -> Exhibit:
    (exhibit,) = exhibits(made.finished(show=[view], **changes))
    return exhibit


def texts(sheet: Sheet) -> list[list[str]]:
    return [[cell.text for cell in row] for row in sheet.rows]


def test_rounds_that_the_estimate_selected_are_drawn_too() -> None:
    by_estimate = {Evaluation.RAW: Evaluation.RAW_BY_ESTIMATE, Evaluation.PRIOR: Evaluation.PRIOR_BY_ESTIMATE}
    runs = [
        s.model_copy(update={"selected": {by_estimate[e]: s.selected[e] for e in by_estimate}})
        for s in made.summaries()
    ]
    (exhibit,) = exhibits(made.finished(runs, show=["table"]))
    assert [len(ax.patches) for ax in made.figure(exhibit).axes] == [6, 6]  # three methods, as trained and +prior


def test_the_table_has_mean_and_std_and_the_papers_numbers() -> None:
    exhibit = only("table")
    assert exhibit.sheet.columns == ("row", "evaluation", "FedPALS", "FedAvg", "Oracle")
    assert texts(exhibit.sheet) == [
        ["C = 3", "as trained", "92.0 ± 2.8", "65.0 ± 7.1", "98.0 ± 1.4"],
        ["C = 3", "as trained: difference to FedAvg", "+27.0 ± 3.0 better", "", "+33.0 ± 4.0 better"],
        ["C = 3", "+prior", "93.0 ± 2.8", "66.0 ± 7.1", "99.0 ± 1.4"],
        ["C = 3", "+prior: difference to FedAvg", "+27.0 ± 3.0 better", "", "+33.0 ± 4.0 better"],
        ["C = 3", "in the paper", "92.4 ± 2.1", "67.1 ± 22.0", ""],
        ["C = 6", "as trained", "87.0 ± 1.4", "89.0 ± 12.7", "95.0 ± 0.0"],
        ["C = 6", "as trained: difference to FedAvg", "-2.0 ± 8.0 equal", "", "+6.0 ± 9.0 equal"],
        ["C = 6", "+prior", "88.0 ± 1.4", "90.0 ± 12.7", "96.0 ± 0.0"],
        ["C = 6", "+prior: difference to FedAvg", "-2.0 ± 8.0 equal", "", "+6.0 ± 9.0 equal"],
    ]
    assert [[cell.mark for cell in row[2:]] for row in exhibit.sheet.rows] == [
        ["best", "", "quiet"],
        ["green", "", "green"],
        ["best", "", "quiet"],
        ["green", "", "green"],
        ["quiet", "quiet", "quiet"],
        ["near", "best", "quiet"],
        ["quiet", "", "quiet"],
        ["near", "best", "quiet"],
        ["quiet", "", "quiet"],
    ]
    assert exhibit.sheet.rows[0][2].note == "chosen: ess = 0.25; 2 seeds; selected round 2 on average"
    assert "Bold: the best mean of a column, without Oracle; underlined" in exhibit.caption
    assert "Best mean as trained: FedPALS in 1; FedAvg in 1 of 2 columns." in exhibit.caption
    apart = [{**m.model_dump(), "apart": m.name == "FedAvg"} for m in made.finished().experiment.method]
    exhibit = only("table", method=apart)
    assert [[cell.mark for cell in row[2:]] for row in exhibit.sheet.rows][5::2] == [["", "", "quiet"]] * 2
    assert "Bold" not in exhibit.caption
    diverged = [s.model_copy(update={"diverged": s.seed == 0}) for s in made.summaries()]
    (exhibit,) = exhibits(made.finished(diverged, show=["table"]))
    assert "2 seeds; selected round 2 on average; 1 of them diverged later" in exhibit.sheet.rows[0][2].note


def test_selections_without_target_data_have_lines_where_clients_held_samples_out() -> None:
    held_out = made.summary("C = 3", "FedPALS", 0, 0.5)
    held_out = held_out.model_copy(
        update={"selected": {**held_out.selected, Evaluation.CALIBRATED_BY_ESTIMATE: made.selected(0.7, at=1)}}
    )
    runs = [held_out, made.summary("C = 3", "FedAvg", 0, 0.6), made.summary("C = 6", "FedAvg", 0, 0.6)]
    (exhibit,) = exhibits(made.finished(runs, show=["table"]))
    assert texts(exhibit.sheet)[:5] == [
        ["C = 3", "as trained", "50.0 ± 0.0", "60.0 ± 0.0"],
        ["C = 3", "as trained: difference to FedAvg", "-10.0", ""],
        ["C = 3", "+prior", "51.0 ± 0.0", "61.0 ± 0.0"],
        ["C = 3", "+prior: difference to FedAvg", "-10.0", ""],
        ["C = 3", "calibrated, no target data", "70.0 ± 0.0", ""],
    ]
    assert "selected round 1" in exhibit.sheet.rows[4][2].note
    assert [row[1] for row in texts(exhibit.sheet) if row[0] == "C = 6"] == ["as trained", "+prior"]


def test_bars_beside_the_table_are_its_numbers() -> None:
    ax: Any = made.figure(only("table")).axes[0]
    assert [bar.get_width() for bar in ax.patches] == pytest.approx([92, 65, 98, 93, 66, 99])
    reported = next(line for line in ax.lines if line.get_label() == "in the paper")
    assert list(reported.get_xdata()) == pytest.approx([92.4, 67.1])


def test_a_single_method_is_not_the_best_of_anything() -> None:
    (exhibit,) = exhibits(made.finished([made.summary("C = 3", "FedAvg", 0, 0.5)], show=["table"]))
    assert texts(exhibit.sheet)[0] == ["C = 3", "as trained", "50.0 ± 0.0"]
    assert {cell.mark for row in exhibit.sheet.rows[:2] for cell in row} == {""}


def test_the_experiment_says_which_metric() -> None:
    exhibit = only("table", metric="macro_f1")
    assert texts(exhibit.sheet)[0][2] == "46.0 ± 1.4"
    assert exhibit.title == "Test macro-F1"


def test_curves_go_through_the_means_at_every_x() -> None:
    exhibit = only("curve")
    raw, prior = made.figure(exhibit).axes
    for ax, shift in ((raw, 0), (prior, 100 * made.PRIOR)):
        lines: Any = ax.lines
        assert list(lines[0].get_xdata()) == [3, 6]
        assert list(lines[0].get_ydata()) == pytest.approx([92 + shift, 87 + shift])
        assert list(lines[1].get_ydata()) == pytest.approx([65 + shift, 89 + shift])
        assert ax.get_xlabel() == "labels per client C"
    assert list(exhibit.legend) == ["FedPALS", "FedAvg", "Oracle"]
    assert texts(exhibit.sheet)[3][:4] == ["C = 6", "6", "+prior", "88.0 ± 1.4"]


def test_a_logarithmic_axis_and_rows_without_a_place_on_it() -> None:
    assert made.figure(only("curve", logarithmic=True)).axes[0].get_xscale() == "log"
    rows = [{"name": "C = 3"}, {"name": "C = 6"}]
    ax = made.figure(only("curve", row=rows)).axes[0]
    assert [label.get_text() for label in ax.get_xticklabels()] == ["C = 3", "C = 6"]


@pytest.mark.parametrize(("first", "fit"), [(3.0, True), (5.9, False)])
def test_places_that_would_overlap_are_not_named_one_by_one(first: float, fit: bool) -> None:
    rows = [{"name": "C = 3", "x": first}, {"name": "C = 6", "x": 6}, {"name": "C = 9", "x": 9}]
    runs = [*made.summaries(), made.summary("C = 9", "FedAvg", 0, 0.5)]
    (exhibit,) = exhibits(made.finished(runs, show=["curve"], row=rows))
    ticks = [label.get_text() for label in made.figure(exhibit).axes[0].get_xticklabels()]
    assert (ticks == [f"{first:g}", "6", "9"]) == fit


def test_distance_is_over_seeds_and_never_oracles() -> None:
    exhibit = only("distance")
    row = [cell.value for cell in exhibit.sheet.rows[0]]
    assert row == ["C = 3", 3.0, pytest.approx(0.15), pytest.approx(0.05 * np.sqrt(2)), 2]
    line: Any = made.figure(exhibit).axes[0].lines[0]
    assert list(line.get_ydata()) == pytest.approx([0.15, 0.15])


def test_dynamics_have_a_panel_per_row_and_end_where_the_shortest_run_does() -> None:
    runs = made.summaries()
    runs[0] = made.summary("C = 3", "FedPALS", 0, 0.9, curve=[0.1, 0.5, 0.7])
    (exhibit,) = exhibits(made.finished(runs, show=["dynamics"]))
    first, second = (ax for ax in made.figure(exhibit).axes)
    line: Any = first.lines[0]
    assert list(line.get_ydata()) == pytest.approx([10, (50 + 94) / 2])
    assert (first.get_title(), second.get_title()) == ("C = 3", "C = 6")
    assert texts(exhibit.sheet)[1][:3] == ["C = 3", "2", "72.0 ± 31.1"]


def test_the_chosen_ess_has_a_panel_per_row_that_chose_it() -> None:
    assert exhibits(made.finished(show=["ess"])) == []
    chosen = [[1.0, 0.5, 0.4, 0.4], [1.0, 0.7, 0.4, 0.4]]
    runs = [made.summary("C = 3", "FedPALS", seed, 0.9, ess=ess) for seed, ess in enumerate(chosen)]
    (exhibit,) = exhibits(made.finished([*runs, made.summary("C = 6", "FedAvg", 0, 0.6)], show=["ess"]))
    (ax,) = made.figure(exhibit).axes
    line: Any = ax.lines[0]
    assert ax.get_title() == "C = 3"
    assert list(line.get_ydata()) == pytest.approx([100, 60, 40, 40])
    assert texts(exhibit.sheet)[1] == ["C = 3", "FedPALS", "2", "60.0 ± 14.1"]
    assert "C = 3, FedPALS: The ESS fell from 100 % to 40 % by round 3: weights nearer" in exhibit.caption


def test_a_row_whose_ess_was_chosen_while_training_shows_its_last() -> None:
    summary = made.summary("C = 3", "FedPALS", 0, 0.9, ess=[1.0, 0.4])
    runs = [summary.model_copy(update={"run": {**summary.run, "ess": "auto"}})]
    method = {"name": "FedPALS", "run": {"method": "fedpals", "ess": "auto"}}
    finished = made.finished(runs, show=["weights"], method=[method])
    assert [view.ess for view in finished.federations] == [0.4]
    assert len(exhibits(finished)) == 1


def test_labels_that_the_target_lacks_are_left_out() -> None:
    exhibit = only("labels")
    assert texts(exhibit.sheet)[:2] == [["C = 3", "shirt", "92", "65", "98"], ["C = 3", "boot", "46", "32.5", "49"]]
    ax: Any = made.figure(exhibit).axes[0]
    assert [bar.get_height() for bar in ax.patches] == pytest.approx([92, 46, 65, 32.5, 98, 49])


def test_a_row_without_runs_of_a_method_leaves_its_column_empty() -> None:
    runs = [made.summary("C = 3", "FedPALS", 0, 0.5), made.summary("C = 3", "FedAvg", 0, 0.6)]
    (exhibit,) = exhibits(made.finished([*runs, made.summary("C = 6", "FedAvg", 0, 0.8)], show=["labels"]))
    assert texts(exhibit.sheet) == [
        ["C = 3", "shirt", "50", "60"],
        ["C = 3", "boot", "25", "30"],
        ["C = 6", "shirt", "", "80"],
        ["C = 6", "boot", "", "40"],
    ]
    assert "boot" in exhibit.sheet.latex("")


def test_heat_maps_and_weights_are_of_every_federation() -> None:
    views = exhibits(made.finished(show=["heatmap", "weights"]))
    assert [exhibit.name for exhibit in views] == ["heatmap-c-3", "heatmap-c-6", "weights-c-3", "weights-c-6"]
    assert [exhibit.federation for exhibit in views] == ["C = 3", "C = 6"] * 2
    assert [cell.value for cell in views[0].sheet.rows[1]] == ["client 1", 100, 0.1, 0.6, 0.3]
    assert [cell.value for cell in views[0].sheet.rows[-1]] == ["target", None, *made.TARGET]
    weights = views[2]
    solved = fedpals.solve(made.COUNTS, made.TARGET, ess=0.75)
    largest = weights.sheet.rows[0]
    assert (largest[0].value, largest[1].value) == ("client 3", 200)
    assert largest[-1].value == pytest.approx(solved.alpha[3], abs=1e-9)


def test_an_ess_below_the_smallest_is_shown_once() -> None:
    (exhibit, *_) = exhibits(made.finished(show=["weights"]))
    assert fedpals.solve(made.COUNTS, made.TARGET, ess=0.5).clamped
    assert exhibit.sheet.columns[3:] == ("ESS 58 %", "ESS 75 %")


def test_methods_that_name_an_ess_decide_which_are_shown() -> None:
    methods = [{"name": f"FedPALS {ess}", "run": {"method": "fedpals", "ess": ess}} for ess in (0.9, 0.8)]
    (exhibit, *_) = exhibits(made.finished(show=["weights"], method=methods))
    assert exhibit.sheet.columns[3:] == ("ESS 80 %", "ESS 90 %")


CASE = {"name": "A", "labels": ["0", "1", "2"], "counts": [[8, 2, 0], [2, 8, 0]], "target": [0.2, 0.3, 0.5]}


def test_the_simplex_shows_target_projection_and_fedavg() -> None:
    exhibit = only("simplex", case=[CASE])
    by_name = {str(row[1].value): row for row in exhibit.sheet.rows}
    assert [cell.value for cell in by_name["FedAvg"][2:]] == pytest.approx([0.5, 0.5, 0, 0.09 + 0.04 + 0.25])
    projection = fedpals.coverage(CASE["counts"], CASE["target"])  # type: ignore[arg-type]
    assert [cell.value for cell in by_name["α⁰S, its projection"][2:5]] == pytest.approx(projection.point.tolist())
    legend: Any = made.figure(exhibit).axes[0].get_legend()
    assert any("target" in text.get_text() for text in legend.get_texts())


def test_a_case_with_two_labels_has_no_simplex() -> None:
    case = {"name": "A", "labels": ["0", "1"], "counts": [[8, 2]], "target": [0.5, 0.5]}
    with pytest.raises(InputError, match="made: case 'A' has 2 labels; the simplex is drawn for three"):
        only("simplex", case=[case])


def test_an_experiment_without_what_a_view_needs_simply_does_not_show_it() -> None:
    finished = made.finished()
    bare = [run.model_copy(update={"curve": [], "federation": None}) for run in finished.runs]
    views = exhibits(FinishedExperiment("made", finished.experiment, tuple(bare)))
    assert [exhibit.name for exhibit in views] == ["table", "curve", "distance", "labels"]


def test_names_of_files_are_plain_and_different() -> None:
    cases = [{**CASE, "name": name} for name in ("β = 0.1", "β=0.1", "../../x")]
    views = exhibits(made.finished([], show=["heatmap"], case=cases))
    assert [exhibit.name for exhibit in views] == ["heatmap-beta-0.1", "heatmap-beta-0.1-again", "heatmap-x"]


def test_coverage_is_shown_apart_where_a_label_is_missing() -> None:
    whole = texts(only("coverage").sheet)
    assert [row[:3] for row in whole] == [
        [name, f"every label of the target, {title}", "2"]
        for name in ("C = 3", "C = 6")
        for title in ("as trained", "+prior")
    ]
    assert whole[0][3:] == ["92.0 ± 2.8", "65.0 ± 7.1", "98.0 ± 1.4"]
    finished = made.finished(show=["coverage"])

    def without_boots(summary: Summary) -> Summary:
        if (summary.row, summary.seed) != ("C = 3", 0) or summary.federation is None:
            return summary
        counts = [[*row[:2], 0] for row in summary.federation.counts]
        return summary.model_copy(update={"federation": summary.federation.model_copy(update={"counts": counts})})

    (exhibit,) = exhibits(replace(finished, runs=tuple(map(without_boots, finished.runs))))
    lines = texts(exhibit.sheet)
    assert [row[:3] for row in lines[:4]] == [
        ["C = 3", f"{group}, {title}", "1"]
        for group in ("every label of the target", "a label is missing")
        for title in ("as trained", "+prior")
    ]
    means = [[float(cell.split()[0]) for cell in row[3:]] for row in lines[:4]]
    assert np.allclose(np.mean([means[0], means[2]], axis=0), [92.0, 65.0, 98.0])
