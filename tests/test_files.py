"""Files that are whole or not at all."""

from __future__ import annotations

import errno
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fedpals.errors import InputError
from fedpals.files import replacing


def test_a_block_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("before")

    def fail() -> None:
        with replacing(path) as temporary:
            temporary.write_text("half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


def test_the_contents_reach_the_disk_before_the_name_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []

    def noted(name: str) -> None:
        operation = getattr(os, name)

        def noting(*arguments: Any) -> None:
            order.append(name)
            operation(*arguments)

        monkeypatch.setattr(os, name, noting)

    noted("fsync")
    noted("replace")
    with replacing(tmp_path / "a.txt") as temporary:
        temporary.write_text("new")
    assert order == ["fsync", "replace"]


@pytest.mark.parametrize(
    ("code", "remedy"),
    [(errno.ENOSPC, "free some space, or choose another folder"), (errno.EROFS, "choose another folder")],
)
def test_what_the_system_refuses_is_one_sentence(code: int, remedy: str, tmp_path: Path) -> None:
    message = rf"a\.txt: cannot be written \({os.strerror(code)}\); {remedy}$"
    with pytest.raises(InputError, match=message), replacing(tmp_path / "a.txt"):
        raise OSError(code, os.strerror(code))
    assert not list(tmp_path.iterdir())


def test_a_folder_in_the_place_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "a.txt").mkdir()
    with pytest.raises(InputError, match="it is a folder: give the name of a file"), replacing(tmp_path / "a.txt"):
        pass


def test_left_overs_of_dead_processes_go_and_those_of_living_ones_stay(tmp_path: Path) -> None:
    dead = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], stdout=subprocess.PIPE, check=True)
    node = platform.node()
    gone = tmp_path / f".a-{node}-{int(dead.stdout)}-abcd1234.txt"
    stay = [
        tmp_path / f".a-{node}-{os.getpid()}-abcd1234.txt",  # alive
        tmp_path / f".a-another{node}-{int(dead.stdout)}-abcd1234.txt",  # on another machine
        tmp_path / f".b-{node}-{int(dead.stdout)}-abcd1234.txt",  # for another file
        tmp_path / ".a-notes.txt",  # the user's own
    ]
    for path in (gone, *stay):
        path.touch()
    with replacing(tmp_path / "a.txt") as temporary:
        temporary.write_text("new")
    assert set(tmp_path.iterdir()) == {*stay, tmp_path / "a.txt"}
