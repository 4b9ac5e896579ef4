"""Places that are not what they should be: folders, disks, terminals, experiments, other commands."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tests.torture.harness import Case

RUN = ("run", "--task", "digits", "--model", "logistic", "--rounds", "1", "--clients", "4", "--method", "fedavg")
DEFINITION = """
title = "Small"
source = ""
run = { task = "digits", model = "logistic", rounds = 1, clients = 4 }
[scale.desk]
seeds = 1
[[row]]
name = "C = 3"
run = { labels_per_client = 3 }
[[method]]
name = "FedAvg"
run = { method = "fedavg" }
grid = { learning_rate = [0.1] }
"""


def cases() -> Iterator[Case]:
    """Yield cases of places."""
    yield from _outputs()
    yield from _experiments()
    yield from _other_commands()


def _outputs() -> Iterator[Case]:
    yield Case("out: a file", (*RUN, "--out", "runs"), ("runs",), {"runs": ""})
    yield Case("out: below a file", (*RUN, "--out", "block/runs"), ("block",), {"block": ""})
    yield Case("out: too long", (*RUN, "--out", "x" * 300), ("File name too long",), code=1)
    yield Case("out: a loop", (*RUN, "--out", "loop"), ("loop",), prepare=lambda: Path("loop").symlink_to("loop"))
    yield Case("out: an ASCII terminal", RUN, ("FedAvg", "Records"), code=0, encoding="ascii")
    yield Case("out: a full disk", RUN, ("free some space",), most_bytes=64, may_write=True)
    yield Case("report: a file", ("report", "file"), ("file",), {"file": ""})
    yield Case("report: nothing there", ("report", "."), ("neither experiment.toml nor finished runs",))
    yield Case("report: missing", ("report", "nowhere"), ("nowhere: no such folder",))


def _experiments() -> Iterator[Case]:
    def case(name: str, definition: str, *words: str, arguments: tuple[str, ...] = ("small",)) -> Case:
        command = ("reproduce", *arguments, "--experiments", "e", "--workers", "1")
        return Case(f"experiment: {name}", command, words, {"e/small.toml": definition})

    yield Case("experiment: no folder", ("reproduce", "--list", "--experiments", "nope"), ("nope",))
    yield Case("experiment: no folder to run", ("reproduce", "x", "--experiments", "nope"), ("nope",))
    yield Case("experiment: an empty folder", ("reproduce", "--list", "--experiments", "e"), ("e",), {"e/readme": ""})
    yield Case("experiment: a file", ("reproduce", "--list", "--experiments", "e"), ("e",), {"e": ""})
    yield case("unknown", DEFINITION, "smal", "did you mean 'small'", arguments=("smal",))
    yield case("unknown scale", DEFINITION, "scale", "huge", "desk", arguments=("small", "--scale", "huge"))
    yield case("unknown device", DEFINITION, "gpu", arguments=("small", "--device", "gpu"))
    yield case("empty grid", DEFINITION.replace("[0.1]", "[]"), "small.toml", "grid")
    yield case("grid is no list", DEFINITION.replace("[0.1]", "0.1"), "small.toml", "grid")
    yield case(
        "grid of a wrong key", DEFINITION.replace("learning_rate =", "learning_rat ="), "small.toml", "learning_rat"
    )
    yield case("grid of a wrong value", DEFINITION.replace("[0.1]", '["fast"]'), "small.toml", "fast")
    yield case("no title", DEFINITION.replace('title = "Small"', ""), "small.toml", "title")
    yield case("no rows", DEFINITION.split("[[row]]")[0], "small.toml", "[[row]]")
    yield case("seeds are text", DEFINITION.replace("seeds = 1", 'seeds = "many"'), "small.toml", "seeds", "many")
    yield case("no seeds", DEFINITION.replace("seeds = 1", "seeds = 0"), "small.toml", "seeds", "0")
    yield case("unknown method", DEFINITION.replace('"fedavg"', '"fedavgg"'), "small.toml", "fedavgg")
    yield case("unknown key", DEFINITION.replace("rounds", "round"), "small.toml", "round")
    yield case("unknown table", DEFINITION + "[nonsense]\nx = 1\n", "small.toml", "nonsense")
    yield case("a row twice", DEFINITION.replace("[[method]]", '[[row]]\nname = "C = 3"\n[[method]]'), "C = 3", "twice")
    yield case("not TOML", "= 3", "small.toml", "TOML")


def _other_commands() -> Iterator[Case]:
    app = {"app/pyproject.toml": "[project]\nname = 'x'\n"}
    yield Case("flower: no app", ("flower", "up", "nowhere"), ("nowhere",))
    yield Case("flower: settings that are none", ("flower", "up", "app", "-c", "nonsense"), ("nonsense",), app)
    yield Case("flower: an unknown setting", ("flower", "up", _example(), "-c", "roundz=2"), ("roundz",))
    yield Case("data: unknown", ("data", "show", "digitz"), ("did you mean 'digits'",))
    yield Case("data: get unknown", ("data", "get", "digitz"), ("digitz",))
    yield Case("data: seed", ("data", "show", "digits", "--seed", "-1"), ("--seed",))
    yield Case("data: clients", ("data", "show", "digits", "--clients", "0"), ("clients", "0"))
    yield Case("data: plot", ("data", "show", "digits", "--plot", "x.gif"), ("x.gif",))
    yield Case("data: plot is a folder", ("data", "show", "digits", "--plot", "x.png"), ("x.png",), {"x.png/y": ""})
    yield Case("unknown command", ("nonsense",), ("nonsense",))


def _example() -> str:
    return str(Path(__file__).parents[2] / "examples" / "flower")
