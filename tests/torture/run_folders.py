"""Run folders that were damaged, and commands that are given the wrong ones."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tests.torture.harness import Case, attempt

RUN = ("run", "--task", "digits", "--model", "logistic", "--rounds", "2", "--clients", "4", "--held-out", "0.2")


def cases(folder: Path) -> Iterator[Case]:
    """Yield cases of a finished run, which is computed in ``folder`` first."""
    base = folder / "base"
    base.mkdir()
    done = attempt(Case("a run to damage", (*RUN, "--out", str(base / "runs")), ("Records",), code=0))
    assert done.code == 0, done.output
    run = next(base.glob("runs/*/*/*")).relative_to(base).as_posix()
    yield from _damaged(base, run)
    yield from _resumed(base, run)
    yield from _inputs(base, run)


def _damaged(base: Path, run: str) -> Iterator[Case]:
    """Readers name the file; nothing is made up."""
    readers = {
        "result.json": (("report", "runs"), ("check", run), ("predict", run, "x.npz")),
        "config.toml": (("report", "runs"), ("check", run), ("predict", run, "x.npz"), ("estimate-target", run)),
        "weights.json": (("report", "runs"),),
        "metrics.jsonl": (("report", "runs"),),
        "tallies.json": (("check", run), ("estimate-target", run)),
        "model-recommended.safetensors": (("predict", run, "x.npz"),),
    }
    inputs = {"x.npz": _digits()}
    for name, commands in readers.items():
        whole = (base / run / name).read_bytes()
        damages = {"empty": b"", "cut": whole[: len(whole) // 2], "foreign": b'{"a": 1}\n', "bytes": b"\xff\xfe\x00"}
        for damage, content in damages.items():
            for command in commands:
                if name == "result.json" and damage != "empty" and command[0] == "predict":
                    continue  # does not need its content
                case = f"damaged: {command[0]}, {name} {damage}"
                yield Case(case, command, (name,), {**inputs, f"{run}/{name}": content}, folder=base)
    for name in ("config.toml", "result.json"):
        missing = Path(run) / name
        words = ("no run there",) if name == "config.toml" else ("not finished",)
        yield Case(f"missing: {name}", ("check", run), words, folder=base, prepare=missing.unlink)


def _resumed(base: Path, run: str) -> Iterator[Case]:
    """The same command again: what is damaged is computed again, or named."""
    whole = (base / run / "result.json").read_bytes()
    for damage, content in {"empty": b"", "cut": whole[:50], "foreign": b'{"a": 1}'}.items():
        for flags in ((), ("--no-resume",)):
            yield Case(
                f"again: result.json {damage} {' '.join(flags)}",
                (*RUN, *flags),
                ("Records",),
                {f"{run}/result.json": content},
                code=0,
                folder=base,
            )
    state = f"{run}/checkpoint/state.safetensors"
    whole = (base / state).read_bytes()
    for damage, content in {"empty": b"", "cut": whole[:50], "foreign": b"hello", "zeros": bytes(len(whole))}.items():
        yield Case(
            f"again: checkpoint {damage}",
            RUN,
            ("state.safetensors", "Records"),
            {state: content},
            code=0,
            folder=base,
            prepare=(Path(run) / "result.json").unlink,
        )


def _inputs(base: Path, run: str) -> Iterator[Case]:
    """Inputs that the model of a run cannot take."""

    def case(name: str, x: object, *words: str) -> Case:
        file = io.BytesIO()
        np.savez(file, x=np.asarray(x))
        return Case(f"predict: {name}", ("predict", run, "x.npz"), words, {"x.npz": file.getvalue()}, folder=base)

    yield case("another size", np.zeros((3, 1, 9, 9), np.uint8), "9")
    yield case("vectors", np.zeros((3, 64), np.float32), "x")
    yield case("no samples", np.zeros((0, 1, 8, 8), np.uint8), "no samples")
    yield case("text", np.array([["a", "b"]]), "x.npz: x")
    yield Case("predict: no inputs", ("predict", run, "x.npz"), ("x.npz",), folder=base)
    yield Case("predict: no run", ("predict", "nowhere", "x.npz"), ("nowhere",), {"x.npz": _digits()})
    digits = {"x.npz": _digits()}
    yield Case("predict: unknown use", ("predict", run, "x.npz", "--use", "best"), ("best",), digits, folder=base)
    target: dict[str, bytes | str] = {**digits, "t.csv": "0,0.5\n1,0.4\n"}
    yield Case("predict: bad target", ("predict", run, "x.npz", "--target", "t.csv"), ("t.csv",), target, folder=base)
    out: dict[str, bytes | str] = {**digits, "p.csv/x": ""}
    yield Case("predict: out is a folder", ("predict", run, "x.npz", "-o", "p.csv"), ("p.csv",), out, folder=base)
    yield Case("estimate: level", ("estimate-target", run, "--level", "2"), ("level", "2"), folder=base)
    yield Case("estimate: by", ("estimate-target", run, "--by", "magic"), ("magic",), folder=base)
    yield Case(
        "report: a full disk", ("report", "runs"), ("free some space",), folder=base, most_bytes=64, may_write=True
    )
    yield Case("check: no run there", ("check", "empty"), ("empty: no finished run there",), {"empty/x": ""})
    yield Case("check: nowhere", ("check", "nowhere"), ("nowhere",))


def _digits() -> bytes:
    file = io.BytesIO()
    np.savez(file, x=np.zeros((3, 1, 8, 8), np.uint8))
    return file.getvalue()
