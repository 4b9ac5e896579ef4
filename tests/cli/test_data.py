"""`fedpals data` as a user types it, and the validation behind it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from fedpals.cli import main
from fedpals.data import Task
from tests.cli.test_weights import refused, run
from tests.data.test_sources import need


@pytest.fixture
def nothing_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the data sets in this user's cache, and the network."""
    monkeypatch.delenv("FEDPALS_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for protocol in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(protocol, "http://127.0.0.1:9")


def words(text: str) -> str:
    return " ".join(text.split())


class TestList:
    @pytest.mark.usefixtures("nothing_installed")
    def test_every_set_with_what_it_is_and_where_or_how(self) -> None:
        process = run("data")
        assert process.returncode == 0
        output = words(process.stdout)
        assert "digits 1,797 grey 8×8 images, 10 labels sklearn" in output
        assert "synthetic 3 Gaussian labels in the plane generated" in output
        assert "cifar10 60,000 colour 32×32 images, 10 labels not found: unpack the binary version" in output
        assert "fedpals data get cifar10" in output

    @pytest.mark.usefixtures("nothing_installed")
    def test_a_folder_is_searched_first(self, tmp_path: Path) -> None:
        root = tmp_path / "iwildcam_v2.0"
        root.mkdir()
        for name in ("metadata.csv", "categories.csv"):
            (root / name).touch()
        assert "iwildcam_v2.0" in run("data", "--folder", ".", cwd=tmp_path).stdout.split("182 labels")[1].split()[0]

    def test_help_has_examples(self) -> None:
        for arguments in ((), ("show",)):
            assert "Examples" in run("data", *arguments, "--help").stdout


class TestGet:
    def test_what_needs_no_files(self) -> None:
        process = run("data", "get", "digits")
        assert (process.returncode, process.stdout) == (0, "digits: no files needed; read 1,797 samples of 10 labels\n")

    def test_what_is_there_is_checked(self) -> None:
        need("fashion-mnist")
        process = run("data", "get", "fashion-mnist")
        assert process.returncode == 0
        assert "read 70,000 samples of 10 labels" in process.stdout

    @pytest.mark.usefixtures("nothing_installed")
    def test_without_network(self, tmp_path: Path) -> None:
        pytest.importorskip("pooch", reason="downloads need the extra 'learn'")
        error = refused("data", "get", "cifar10", "--folder", "here", cwd=tmp_path)
        assert "cifar-10-binary.tar.gz could not be downloaded to here" in error
        assert "another way: unpack the binary version" in error
        assert not [path for path in tmp_path.rglob("*") if path.is_file()]

    @pytest.mark.usefixtures("nothing_installed")
    @pytest.mark.parametrize(
        "arguments", [("--folder", "mine", "get", "iwildcam"), ("get", "iwildcam", "--folder", "mine")]
    )
    def test_a_folder_before_or_after_the_command(self, arguments: tuple[str, ...], tmp_path: Path) -> None:
        assert "searched mine/iwildcam_v2.0, " in refused("data", *arguments, cwd=tmp_path)

    def test_an_unknown_set(self) -> None:
        error = refused("data", "get", "cifar")
        assert "'cifar' is not a known data set (digits, synthetic, fashion-mnist, cifar10" in error
        assert "did you mean 'cifar10'?" in error


class TestShow:
    def test_digits(self) -> None:
        process = run("data", "show", "digits")
        assert process.returncode == 0
        lines = process.stdout.splitlines()
        assert lines[0] == "digits, C = 3, seed 0"
        federation = Task().federation(0)
        table = [line.split() for line in lines if line.split()[:1] in [[name] for name in (*"012345678", "target")]][
            :10
        ]
        shares = np.vstack([np.asarray(federation.counts.marginals), federation.target])
        assert [row[0] for row in table] == [*"012345678", "target"]
        for row, marginal in zip(table, shares, strict=True):
            assert row[-10:] == ["33" if share else "·" for share in marginal]
        assert {row[1] for row in table[:-1]} == {f"{federation.counts.sizes[0]:.0f}"}
        output = words(process.stdout)
        assert f"9 to train on, N = {federation.counts.total:.0f} samples" in output
        assert f"{federation.validation.size} samples for validation, {federation.test.size} for test" in output
        assert "not covered: even the best mix is wrong for 67 % of samples" in output
        assert "FedAvg squared distance 0.31" in output
        assert "at λ → 0⁺, ESS 33.3% = 243 samples" in output
        assert "--json shows all" not in output

    def test_synthetic_is_covered_until_delta_says_otherwise(self) -> None:
        assert "covered: some mix" in run("data", "show", "synthetic").stdout
        process = run("data", "show", "synthetic", "--delta", "0.5", "--seed", "3")
        assert "synthetic, δ = 0.5, seed 3" in process.stdout
        assert "not covered" in process.stdout

    def test_long_names_become_letters_with_a_legend(self) -> None:
        need("fashion-mnist")
        process = run("data", "show", "fashion-mnist", "--beta", "0.1")
        assert "fashion-mnist, β = 0.1, seed 0" in process.stdout
        assert "client n a b c d e f g h i j" in words(process.stdout)
        assert "j ankle boot" in words(process.stdout)
        assert "<1" in process.stdout

    def test_many_clients_and_labels_are_cut_and_said_so(self, tmp_path: Path) -> None:
        y = np.repeat(np.arange(40), np.arange(200, 600, 10))
        labels = [f"species [{k}]" for k in range(40)]
        np.savez(tmp_path / "own.npz", x=np.zeros((y.size, 1)), y=y, labels=labels)
        process = run("data", "show", "own.npz", "--beta", "0.3", "--clients", "41", cwd=tmp_path)
        assert process.returncode == 0, process.stderr
        output = words(process.stdout)
        assert "the first 30 of 40 clients, the 20 most common of 40 labels; --json shows all" in output
        assert "species [" in output
        assert max(map(len, process.stdout.splitlines())) <= 80
        header, *rows = [line.split() for line in process.stdout.splitlines()[2:35]]
        assert header == ["client", "n", *"abcdefghijklmnopqrst", "rest"]
        assert [row[0] for row in rows if row] == [*map(str, range(30)), "target"]
        for row in rows[:30]:
            shares = [float(cell.replace("·", "0").replace("<1", "0.2")) for cell in row[2:]]
            assert sum(shares) == pytest.approx(100, abs=11)

    def test_a_plot_is_written(self, tmp_path: Path) -> None:
        pytest.importorskip("matplotlib", reason="figures need the extra 'plots'")
        process = run("data", "show", "digits", "--plot", "deep/m.png", cwd=tmp_path)
        assert "Figure: deep/m.png" in process.stdout
        assert (tmp_path / "deep" / "m.png").read_bytes().startswith(b"\x89PNG")

    def test_json_is_everything_and_nothing_else(self) -> None:
        arguments = ("--labels-per-client", "2", "--clients", "5", "--samples-per-client", "20", "--seed", "7")
        output = json.loads(run("data", "show", "digits", *arguments, "--json").stdout)
        task = Task(labels_per_client=2, clients=5, samples_per_client=20)
        federation = task.federation(7)
        assert Task.model_validate(output["task"]) == task
        assert (output["seed"], output["oracle"]) == (7, False)
        assert output["labels"] == list("0123456789")
        assert output["sizes"] == [20] * 4
        assert output["samples"] == 80
        assert np.array_equal(np.array(output["counts"]) / 20, np.asarray(federation.counts.marginals))
        assert output["target"] == federation.target.tolist()
        assert output["validation_samples"] == federation.validation.size
        assert output["test_samples"] == federation.test.size
        assert output["covered"] is federation.coverage.covered
        assert output["projection"]["squared_distance"] == pytest.approx(federation.coverage.squared_distance)
        for weights in (output["fedavg"], output["best_match"]):
            assert sum(weights["alpha"]) == pytest.approx(1)
        assert (
            output["projection"]["squared_distance"]
            <= output["best_match"]["squared_distance"] * (1 + 1e-12)
            <= output["fedavg"]["squared_distance"]
        )
        assert 0 < output["best_match"]["ess"] <= 1
        assert output["best_match"]["effective_samples"] == pytest.approx(80 * output["best_match"]["ess"])

    def test_an_oracle_has_no_shift(self) -> None:
        output = json.loads(run("data", "show", "digits", "--oracle", "--json").stdout)
        assert output["oracle"] is True
        assert output["fedavg"]["squared_distance"] < 1e-3

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (("digitz",), "'digitz' is neither a known data set (digits, synthetic"),
            (("digitz",), "did you mean 'digits'?"),
            (("none.npz",), "nor an existing file or folder"),
            (("digits", "--beta", "0.1", "--labels-per-client", "2"), "give one of them"),
            (("digits", "--delta", "0.5"), "delta does not apply to digits"),
            (("digits", "--clients", "0"), "clients is 0; it must be greater than or equal to 1"),
            (("digits", "--beta", "nan"), "beta is nan; it must be a finite number"),
            (("digits", "--labels-per-client", "11"), "the data has 10 labels; give 1 to 10"),
            (("digits", "--samples-per-client", "3000"), "use at most 81"),
            (("digits", "--seed", "-1"), "--seed"),
            (("digits", "--clients", "many"), "--clients"),
            (("digits", "--plot", "m.gif"), "figures are written as"),
            ((), "Missing argument"),
        ],
    )
    def test_bad_input(
        self,
        arguments: tuple[str, ...],
        message: str,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        # In this process, for a second each is much; one of them is typed for real below.
        plot = () if "--plot" in arguments else ("--plot", "m.png")
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["fedpals", "data", "show", *arguments, *plot])
        with pytest.raises(SystemExit) as error:
            main()
        captured = capsys.readouterr()
        assert (error.value.code, captured.out) == (2, "")
        assert message in words(captured.err)
        assert list(tmp_path.iterdir()) == []

    def test_bad_input_as_typed(self, tmp_path: Path) -> None:
        error = refused("data", "show", "digits", "--beta", "-1", "--plot", "m.png", cwd=tmp_path)
        assert error == "Error: beta is -1.0; it must be greater than 0"
        assert list(tmp_path.iterdir()) == []
