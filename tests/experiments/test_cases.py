"""Label counts to solve for, counted from files of a data folder."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedpals.data.official import search_path
from fedpals.errors import InputError
from fedpals.experiments.cases import Case, CountsFile
from fedpals.experiments.experiment import DEFINITIONS, read_experiment
from fedpals.experiments.results import Results

ROWS = """alia_file,wilds_split,location_remapped,y,count
a,train,12,0,5
a,train,3,7,2
b,train,12,7,1
b,train,12,0,1
a,test,99,7,3
b,test,98,9,1
a,id_test,12,0,50
"""
NAMES = "y,category_id,name,english\n0,0,empty,empty\n7,1,panthera,Jaguar\n8,2,x,Nobody\n9,3,y,Agouti\n"
CASE = Case(
    name="cameras",
    file=CountsFile(path="part/counts.csv", labels="part/names.csv", clients="train", target="test"),
)


@pytest.fixture
def folder(tmp_path: Path, nowhere: Path) -> Path:
    del nowhere
    (tmp_path / "part").mkdir()
    (tmp_path / "part" / "counts.csv").write_text(ROWS)
    (tmp_path / "part" / "names.csv").write_text(NAMES)
    return tmp_path


def test_cameras_of_one_split_are_clients_and_the_pooled_other_is_the_target(folder: Path) -> None:
    case = CASE.counted(folder)
    assert case.labels == ["empty", "Jaguar", "Agouti"]
    assert case.clients == ["camera 3", "camera 12"]
    assert case.counts == [[0, 2, 0], [6, 1, 0]]
    assert case.target == [0.0, 0.75, 0.25]
    assert (case.name, case.file) == (CASE.name, CASE.file)


def test_missing_files_are_named_with_the_places_they_are_expected_at(folder: Path) -> None:
    for name in ("counts.csv", "names.csv"):
        path = folder / "part" / name
        text = path.read_text()
        path.unlink()
        with pytest.raises(InputError, match=f"part/{name}: no such file; it is expected at {path} or "):
            CASE.counted(folder)
        path.write_text(text)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("wilds_split", "split", "has no column wilds_split; it needs"),
        ("3,7,2", "3,7,many", "invalid literal for int.*'many'; cameras, labels and counts must be whole numbers"),
        ("test,9", "val,9", "no samples of split 'test'; its splits are id_test, train, val"),
    ],
)
def test_files_that_do_not_hold_what_they_must(old: str, new: str, words: str, folder: Path) -> None:
    path = folder / "part" / "counts.csv"
    path.write_text(ROWS.replace(old, new))
    with pytest.raises(InputError, match=f"{path}.*{words}"):
        CASE.counted(folder)


def test_a_case_has_counts_or_a_file() -> None:
    with pytest.raises(ValueError, match="case 'empty' needs labels, counts and target, or a file"):
        Case(name="empty")
    case = Case(name="given", labels=["a"], counts=[[1]], target=[1.0])
    assert case.counted() is case


def test_results_keep_what_was_counted_and_show_nothing_else(folder: Path) -> None:
    results = Results(folder / "results")
    results.path.mkdir()
    (results.path / "experiment.toml").write_text(
        'title = "t"\nsource = "s"\nscale.desk = {}\n'
        '[[case]]\nname = "given"\nlabels = ["a"]\ncounts = [[1]]\ntarget = [1.0]\n'
        '[[case]]\nname = "cameras"\n[case.file]\npath = "part/counts.csv"\nlabels = "part/names.csv"\n'
        'clients = "train"\ntarget = "test"\n'
    )
    assert [case.name for case in results.experiment.case] == ["given"]
    assert results.case(CASE) is None
    results.keep_cases([CASE.counted(folder)])
    (folder / "part" / "counts.csv").unlink()
    again = Results(results.path)
    assert [case.name for case in again.experiment.case] == ["given", "cameras"]
    assert again.case(CASE) == again.experiment.case[1]
    assert again.experiment.case[1].counts == [[0, 2, 0], [6, 1, 0]]
    other = CASE.model_copy(update={"file": CASE.file and CASE.file.model_copy(update={"clients": "id_test"})})
    assert again.case(other) is None, "another definition has to be counted anew"
    (results.path / "cases.json").write_text("[{")
    with pytest.raises(InputError, match=r"cases.json: not the cases of an experiment; delete it"):
        again.case(CASE)


def test_the_published_fragment_of_iwildcam_is_what_its_title_says() -> None:
    (case,) = read_experiment("iwildcam", DEFINITIONS).case
    assert case.file is not None
    if not any((base / case.file.path).is_file() for base in search_path()):
        pytest.skip(f"{case.file.path} is in no data folder")
    counted = case.counted()
    counts = np.array(counted.counts)
    assert counts.shape == (15, 7)
    assert case.name.endswith("15 cameras, 7 of 182 labels")
    assert counts.sum() == 6052
    # By hand: 8,483 + 2,224 samples of the test split, of which 4,533 + 625 show impalas.
    assert counted.target[counted.labels.index("Impala")] == (4533 + 625) / (8483 + 2224)
    assert sum(counted.target) == pytest.approx(1.0)
