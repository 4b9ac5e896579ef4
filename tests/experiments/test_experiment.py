"""What an experiment's file says, layer over layer, and which runs come of it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from fedpals.errors import InputError
from fedpals.experiments.experiment import (
    DEFINITIONS,
    TUNING_SEED,
    Experiment,
    Point,
    cells,
    choose_points,
    grid_points,
    read_experiment,
    reported_runs,
    tuning_runs,
)
from fedpals.shift.evaluation import Evaluation
from tests.experiments.conftest import TINY, definition

SHIPPED = sorted(path.stem for path in DEFINITIONS.glob("*.toml"))


def new_experiment(**keys: Any) -> Experiment:
    """An experiment of one row and one method, where the keys do not say otherwise."""
    basic = {
        "title": "t",
        "source": "s",
        "scale": {"desk": {}},
        "row": [{"name": "row"}],
        "method": [{"name": "FedAvg", "run": {"method": "fedavg"}}],
    }
    return Experiment.model_validate({**basic, **keys})


LAYERS: list[tuple[int, dict[str, Any]]] = [
    (1, {"run": {"rounds": 1}}),
    (2, {"scale": {"desk": {"run": {"rounds": 2}}}}),
    (3, {"row": [{"name": "row", "run": {"rounds": 3}}]}),
    (4, {"row": [{"name": "row", "run": {"rounds": 3}, "scale": {"desk": {"rounds": 4}}}]}),
    (5, {"method": [{"name": "FedAvg", "run": {"method": "fedavg", "rounds": 5}}]}),
    (6, {"row": [{"name": "row", "run": {"rounds": 3}, "method": {"FedAvg": {"rounds": 6}}}]}),
]


@pytest.mark.parametrize("depth", range(1, len(LAYERS) + 1))
def test_what_is_more_particular_wins(depth: int) -> None:
    keys: dict[str, Any] = {}
    for _, layer in LAYERS[:depth]:
        keys |= layer
    experiment = new_experiment(**keys)
    (planned,) = reported_runs(experiment, "desk", choose_points(experiment, {}))
    assert planned.run.server.rounds == LAYERS[depth - 1][0]


def test_a_tuned_point_wins_over_the_row_and_keys_of_another_scale_say_nothing() -> None:
    row = {"name": "row", "run": {"learning_rate": 0.3}, "scale": {"paper": {"rounds": 9}}}
    experiment = new_experiment(
        grid={"learning_rate": [0.7]}, scale={"desk": {"run": {"rounds": 2}}, "paper": {}}, row=[row]
    )
    (desk,) = reported_runs(experiment, "desk", choose_points(experiment, {}))
    (paper,) = reported_runs(experiment, "paper", choose_points(experiment, {}))
    assert (desk.run.plan.learning_rate, desk.run.server.rounds, paper.run.server.rounds) == (0.7, 2, 9)


def test_a_methods_grid_widens_the_experiments_and_a_row_replaces_values() -> None:
    experiment = new_experiment(
        grid={"learning_rate": [0.1, 0.2]},
        row=[
            {"name": "a"},
            {"name": "b", "grid": {"learning_rate": [3.0], "ess": [0.9]}},
            {"name": "c", "method": {"FedPALS": {"learning_rate": 0.4}}},
        ],
        method=[
            {"name": "FedAvg", "run": {"method": "fedavg"}},
            {"name": "FedPALS", "run": {"method": "fedpals"}, "grid": {"ess": [0.25, 0.5]}},
            {"name": "fixed", "run": {"method": "fedavg", "learning_rate": 0.5}},
        ],
    )
    a, b, c = experiment.row
    fedavg, fedpals, fixed = experiment.method
    assert grid_points(experiment, a, fedavg) == [{"learning_rate": 0.1}, {"learning_rate": 0.2}]
    assert grid_points(experiment, a, fedpals) == [
        {"learning_rate": rate, "ess": ess} for rate in (0.1, 0.2) for ess in (0.25, 0.5)
    ]
    # A row gives other values to a key of the grid, never a key that the method does not tune.
    assert grid_points(experiment, b, fedavg) == [{"learning_rate": 3.0}]
    assert grid_points(experiment, b, fedpals) == [{"learning_rate": 3.0, "ess": 0.9}]
    # What a method has fixed, everywhere or in this row, is not tuned.
    assert grid_points(experiment, a, fixed) == [{}]
    assert grid_points(experiment, c, fedpals) == [{"ess": 0.25}, {"ess": 0.5}]


def test_tuning_and_reported_runs_share_no_seed_and_what_has_no_choice_is_not_tuned(tiny: Experiment) -> None:
    tuning = tuning_runs(tiny, "desk")
    reported = reported_runs(tiny, "desk", choose_points(tiny, {}))
    assert len(tuning) == 2 * (2 + 4)
    assert {planned.run.seed for planned in tuning} == {TUNING_SEED}
    assert [(p.row, p.method, p.run.seed) for p in reported] == [
        ("C = 2", "FedAvg", 0),
        ("C = 2", "FedAvg", 1),
        ("C = 2", "FedPALS", 0),
        ("C = 2", "FedPALS", 1),
        ("C = 3", "FedAvg", 0),
        ("C = 3", "FedPALS", 0),
    ]
    assert {planned.run.server.rounds for planned in reported_runs(tiny, "paper", choose_points(tiny, {}))} == {4}
    alone = new_experiment(grid={"learning_rate": [0.1]})
    assert tuning_runs(alone, "desk") == []


def test_tuning_may_have_keys_and_rows_of_its_own() -> None:
    experiment = new_experiment(
        grid={"learning_rate": [0.1, 0.2]},
        row=[{"name": "a"}, {"name": "b"}],
        tuning={"rows": ["b"], "seeds": 3, "scale": {"desk": {"rounds": 7}}},
    )
    tuning = tuning_runs(experiment, "desk")
    assert {(planned.row, planned.run.server.rounds) for planned in tuning} == {("b", 7)}
    assert len(tuning) == 2 * 3
    assert {
        planned.run.server.rounds for planned in reported_runs(experiment, "desk", choose_points(experiment, {}))
    } == {60}


def test_a_method_may_have_fewer_seeds_at_one_scale(tiny: Experiment, tmp_path: Path) -> None:
    fewer = Experiment.read(definition(tmp_path, TINY.replace('"fedavg" }', '"fedavg" }\nseeds = { paper = 2 }')))
    points = choose_points(fewer, {})
    assert reported_runs(fewer, "desk", points) == reported_runs(tiny, "desk", points)
    assert [(p.row, p.method, p.run.seed) for p in reported_runs(fewer, "paper", points)] == [
        ("C = 2", "FedAvg", 0),
        ("C = 2", "FedAvg", 1),
        ("C = 2", "FedPALS", 0),
        ("C = 2", "FedPALS", 1),
        ("C = 2", "FedPALS", 2),
        ("C = 3", "FedAvg", 0),
        ("C = 3", "FedPALS", 0),
    ]


def test_rows_may_leave_methods_out(tiny: Experiment) -> None:
    row = tiny.row[0].model_copy(update={"methods": ["FedPALS"]})
    experiment = tiny.model_copy(update={"row": [row, tiny.row[1]]})
    cells = {(p.row, p.method) for p in reported_runs(experiment, "desk", choose_points(experiment, {}))}
    assert cells == {("C = 2", "FedPALS"), ("C = 3", "FedAvg"), ("C = 3", "FedPALS")}


RAW, PRIOR = Evaluation.RAW, Evaluation.PRIOR
SMALL: Point = {"learning_rate": 0.05}
LARGE: Point = {"learning_rate": 0.2}


def rated(tiny: Experiment, *results: tuple[Point, float]) -> Point:
    return choose_points(tiny, {("C = 2", "FedAvg", RAW): list(results)})["C = 2", "FedAvg"][RAW]


def test_the_best_mean_on_validation_is_chosen(tiny: Experiment) -> None:
    assert rated(tiny, (SMALL, 0.5), (LARGE, 0.4), (SMALL, 0.5), (LARGE, 0.7)) == LARGE
    assert rated(tiny, (SMALL, 0.6), (LARGE, 0.4), (SMALL, 0.6), (LARGE, 0.7)) == SMALL


def test_of_equally_good_points_the_first_is_chosen(tiny: Experiment) -> None:
    assert rated(tiny, (LARGE, 0.5), (SMALL, 0.5)) == SMALL
    assert rated(tiny) == SMALL


def test_a_run_that_diverged_counts_as_nothing(tiny: Experiment) -> None:
    assert rated(tiny, (SMALL, 0.4), (SMALL, 0.4), (LARGE, 0.7)) == SMALL
    assert rated(tiny, (SMALL, 0.3), (SMALL, 0.3), (LARGE, 0.7)) == LARGE


def test_every_row_has_its_own_choice_unless_rows_are_shared(tiny: Experiment) -> None:
    validation = {
        ("C = 2", "FedAvg", RAW): [(SMALL, 0.9), (LARGE, 0.1)],
        ("C = 3", "FedAvg", RAW): [(SMALL, 0.2), (LARGE, 0.8)],
    }
    own = choose_points(tiny, validation)
    assert (own["C = 2", "FedAvg"], own["C = 3", "FedAvg"]) == ({RAW: SMALL}, {RAW: LARGE})
    for shared, point in ((["C = 3"], LARGE), (["C = 2", "C = 3"], SMALL)):
        tuning = tiny.tuning.model_copy(update={"rows": shared})
        both = choose_points(tiny.model_copy(update={"tuning": tuning}), validation)
        assert both["C = 2", "FedAvg"] == both["C = 3", "FedAvg"] == {RAW: point}


def test_an_evaluation_that_is_used_has_a_point_of_its_own(tiny: Experiment) -> None:
    tuning = tiny.tuning.model_copy(update={"uses": [RAW, PRIOR]})
    experiment = tiny.model_copy(update={"tuning": tuning})
    scores = {
        ("C = 2", "FedAvg", RAW): [(SMALL, 0.9), (LARGE, 0.1)],
        ("C = 2", "FedAvg", PRIOR): [(SMALL, 0.2), (LARGE, 0.8)],
    }
    points = choose_points(experiment, scores)
    assert points["C = 2", "FedAvg"] == {RAW: SMALL, PRIOR: LARGE}
    planned = [p for p in reported_runs(experiment, "desk", points) if p.row == "C = 2" and p.run.seed == 0]
    chosen = [(p.method, p.point.get("learning_rate"), p.chosen_for) for p in planned]
    assert chosen == [("FedAvg", 0.05, (RAW,)), ("FedAvg", 0.2, (PRIOR,)), ("FedPALS", 0.05, ())]  # one for both


def test_points_may_be_chosen_at_one_scale_for_all(tiny: Experiment) -> None:
    tuned = tiny.model_copy(update={"tuning": tiny.tuning.model_copy(update={"at": "desk"})})
    assert tuning_runs(tuned, "paper") == tuning_runs(tuned, "desk") == tuning_runs(tiny, "desk")
    assert tuning_runs(tiny, "paper") != tuning_runs(tiny, "desk")
    points = choose_points(tuned, {})
    assert reported_runs(tuned, "paper", points) == reported_runs(tiny, "paper", points)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('source = "Table 0"', 'sourse = "Table 0"', "'sourse' is not a known key; did you mean 'source'?"),
        ("[tuning]\nseeds", "[tuning]\nsedes", "'tuning.sedes' is not a known key; did you mean 'seeds'?"),
        ("rounds = 2", "ronuds = 2", "C = 2, FedAvg, scale desk: 'ronuds' is not a known key; did you mean 'rounds'?"),
        ("{ rounds = 4 }", "{ rounds = 0 }", "scale paper: rounds is 0"),
        ('method = "fedavg"', 'method = "fedavgg"', "did you mean 'fedavg'?"),
        ("seeds = 2", "seeds = 0", "scale.desk.seeds is 0"),
        ("seeds = 1\n\n[scale", 'rows = ["C = 4"]\n\n[scale', "tuning.rows: there is no 'C = 4'; did you mean 'C = "),
        ("[tuning]\nseeds", '[tuning]\nat = "dsek"\nseeds', "tuning.at: there is no 'dsek'; did you mean 'desk'?"),
        (
            '"fedavg" }',
            '"fedavg" }\nseeds = { paepr = 2 }',
            "seeds of method 'FedAvg': there is no 'paepr'; did you mean",
        ),
        ("seeds = 1\nrun", 'methods = ["FedPAL"]\nrun', "'C = 3': there is no 'FedPAL'; did you mean 'FedPALS'?"),
        ('"fedavg" }', '"fedavg" }\nchosen_by = "prior/estimate"', "'prior/estimate', but no client holds samples out"),
        (
            "seeds = 1\nrun",
            "method = { FedPAL = { rounds = 1 } }\nrun",
            "there is no 'FedPAL'; did you mean 'FedPALS'?",
        ),
        ("[grid]", "[grid", "not a TOML file"),
    ],
)
def test_mistakes_are_named_with_the_file_and_a_remedy(old: str, new: str, words: str, tmp_path: Path) -> None:
    assert old in TINY
    path = definition(tmp_path, TINY.replace(old, new, 1))
    with pytest.raises(InputError, match=f"(?s){re.escape(str(path))}: .*{re.escape(words)}"):
        read_experiment("tiny", path.parent)


def test_unknown_experiments_and_scales(tiny: Experiment, tmp_path: Path) -> None:
    folder = definition(tmp_path, TINY).parent
    with pytest.raises(InputError, match=r"'tinny', which .* does not have; did you mean 'tiny'"):
        read_experiment("tinny", folder)
    with pytest.raises(InputError, match=r"'zebra', which .* does not have; there are tiny"):
        read_experiment("zebra", folder)
    with pytest.raises(InputError, match=r"no experiments .* --experiments"):
        read_experiment("tiny", tmp_path / "elsewhere")
    with pytest.raises(InputError, match="scale is 'huge'; this experiment has desk, paper"):
        tiny.at("huge")


def test_the_papers_experiments_are_all_there() -> None:
    assert {
        "table1", "sparsity-cifar10", "sparsity-fashion", "dirichlet-cifar10", "dynamics", "local-epochs", "clients",
        "pacs", "pacs-noise", "iwildcam", "synthetic", "simplex",
    } <= set(SHIPPED)  # fmt: skip


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_experiments_can_be_planned_at_both_scales(name: str) -> None:
    experiment = read_experiment(name, DEFINITIONS)
    assert list(experiment.scale) == ["desk", "paper"]
    assert experiment.row or experiment.case
    names = {method.name for method in experiment.method}
    assert all(row.reported.keys() <= names for row in experiment.row), "a number of the paper without a method"
    for scale in experiment.scale:
        planned = reported_runs(experiment, scale, choose_points(experiment, {}))
        keys = {plan.key for plan in planned}
        assert len(keys) == len(planned), "two runs of the experiment are the same"
        assert not keys & {plan.key for plan in tuning_runs(experiment, scale)}


def test_table1_has_the_methods_of_the_paper_and_its_rivals_with_the_papers_seeds() -> None:
    experiment = read_experiment("table1", DEFINITIONS)
    planned = reported_runs(experiment, "desk", choose_points(experiment, {}))
    assert len(experiment.row) == 6
    only_from_scratch = {
        "Recommended, from scratch",
        "Pooled, same recipe",
        "Pooled, large batches",
        "Oracle, same recipe",
    }
    for row in experiment.row:
        # The paper has FedProx+FedPALS on PACS alone; the binary FedRS is there where it differs most.
        absent = only_from_scratch if row.name == "PACS" else {"FedProx+FedPALS"}
        absent = absent if "β" in row.name else absent | {"FedRS, binary"}
        for method in experiment.method:
            seeds = 0 if method.name in absent else 3 if row.name == "PACS" else 8
            assert [p.run.seed for p in planned if (p.row, p.method) == (row.name, method.name)] == list(range(seeds))
    fewer = {method.name for method in experiment.method if method.seeds}
    assert fewer.isdisjoint(experiment.row[0].reported), "the paper's methods have all seeds at every scale"


@pytest.mark.parametrize("name", ["table1", "table1-features"])
def test_every_method_of_table1_is_tuned_on_its_own_row_from_six_points(name: str) -> None:
    experiment = read_experiment(name, DEFINITIONS)
    for row, method in cells(experiment):
        assert len(grid_points(experiment, row, method)) == 6
        assert row.tuned_as is None
    assert experiment.tuning.uses == [RAW, PRIOR]
