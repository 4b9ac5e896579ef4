"""How compiled functions are kept for the next process; tried with a small function of the same kind as the step."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fedpals.models.compiled import loading
from fedpals.models.compiled.loading import MachineCode, load

MODULE = """
from ctypes import CFUNCTYPE, POINTER, byref, c_double, c_int32, c_int64, c_void_p
import sys
from fedpals.models.compiled.loading import load

def compute(n):
    total = 0.0
    for i in range(n):
        total += 1.0 / (i + 1)
    return total

def compile_():
    from numba.core import types
    from fedpals.models.compiled.compiling import machine_code
    return machine_code(compute, types.float64(types.int64))

result = c_double()
function = CFUNCTYPE(c_int32, POINTER(c_double), c_void_p, c_int64)(load("compute", compile_))
assert function(byref(result), None, 1000) == 0
print(repr(result.value), int("numba" not in sys.modules))
"""


PATH = os.environ.get("PYTHONPATH", "")


def start(folder: Path, before: str = "") -> subprocess.Popen[str]:
    """Compile in another process, with the cache in a folder of its own."""
    script = folder / "compute.py"
    script.write_text(MODULE, encoding="utf-8")
    return subprocess.Popen(
        [sys.executable, "-c", f"{before}\nimport compute"],
        env={**os.environ, "NUMBA_CACHE_DIR": str(folder / "cache"), "PYTHONPATH": f"{folder}{os.pathsep}{PATH}"},
        stdout=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> tuple[str, int]:
    """Return the result, and 1 if it was computed without the compiler."""
    output, _ = process.communicate()
    assert process.returncode == 0
    result, hits = output.split()
    return result, int(hits)


def test_processes_that_compile_at_once_do_not_disturb_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDPALS_LANES", "8")
    together = [finish(process) for process in [start(tmp_path), start(tmp_path)]]
    assert len(list(tmp_path.rglob("*.o"))) == 1
    assert finish(start(tmp_path)) == (together[0][0], 1)
    assert together[0][0] == together[1][0]
    monkeypatch.setenv("FEDPALS_LANES", "16")
    assert finish(start(tmp_path)) == (together[0][0], 0)  # another processor's code is no use
    assert len(list(tmp_path.rglob("*.o"))) == 2


def test_without_a_folder_to_write_to_it_is_compiled_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("no folder", encoding="utf-8")
    assert finish(start(tmp_path))[1] == 0
    assert not list(tmp_path.rglob("*.o"))


def loaded(name: str, compiled: MachineCode) -> object:
    """What is loaded where compiling gives ``compiled``; the code itself, since these tests do not link it."""
    return load(name, lambda: compiled)


def test_damaged_code_is_compiled_again_and_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(loading, "_link", lambda function: function)
    code, other = MachineCode("symbol", bytes(range(256))), MachineCode("symbol", b"newly compiled")
    assert loaded("one", code) == loaded("one", other) == code
    (file,) = tmp_path.iterdir()
    whole = file.read_bytes()
    for damaged in (b"", whole[:-1], whole[:100] + bytes([whole[100] ^ 1]) + whole[101:]):
        file.write_bytes(damaged)
        assert loaded("one", other) == other
        assert file.read_bytes() == bytes(other)


def test_without_a_wish_code_is_kept_beside_the_sources_or_in_the_users_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(loading, "__file__", str(tmp_path / "package" / "loading.py"))
    monkeypatch.setattr(loading, "_link", lambda function: function)
    code, elsewhere = MachineCode("symbol", b"code"), MachineCode("symbol", b"other code")
    (tmp_path / "package").write_text("no folder: as good as one that cannot be written to", encoding="utf-8")
    assert loaded("one", code) == loaded("one", elsewhere) == code
    assert [path.parent for path in tmp_path.rglob("*.o")] == [tmp_path / "fedpals" / "compiled"]
    (tmp_path / "package").unlink()
    assert loaded("two", elsewhere) == loaded("two", code) == elsewhere
    assert [path.parent.name for path in tmp_path.rglob("two*.o")] == ["__pycache__"]


def test_where_no_home_is_known_code_is_kept_beside_the_sources_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NUMBA_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # what it returns for a user without a home
    monkeypatch.setattr(loading, "__file__", str(tmp_path / "package" / "loading.py"))
    monkeypatch.setattr(loading, "_link", lambda function: function)
    code, other = MachineCode("symbol", b"code"), MachineCode("symbol", b"other code")
    assert loaded("one", code) == loaded("one", other) == code
    assert [path.parent.name for path in tmp_path.rglob("*.o")] == ["__pycache__"]


def test_lanes_are_8_or_16() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import fedpals.models.compiled.processor"],
        env={**os.environ, "FEDPALS_LANES": "12"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "FEDPALS_LANES is '12'; set it to 8 or 16" in done.stderr
