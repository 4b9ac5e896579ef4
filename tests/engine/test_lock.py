"""A folder has one writer at a time, and none after its process has ended."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from fedpals.engine.lock import locked
from fedpals.errors import InputError

HOLD = """
import sys, time
from pathlib import Path
from fedpals.engine.lock import locked
with locked(Path(sys.argv[1])) as free:
    print(free, flush=True)
    time.sleep(60)
"""


def test_a_folder_has_one_owner_and_is_free_afterwards(tmp_path: Path) -> None:
    folder = tmp_path / "some" / "run"
    with locked(folder) as first, locked(folder) as second, locked(tmp_path / "other") as other:
        assert (first, second, other) == (True, False, True)
    assert not list(tmp_path.iterdir()), "folders that nothing was written to"
    with locked(folder) as again:
        assert again
        (folder / "result").touch()
    assert [path.name for path in folder.iterdir()] == ["result"]


def test_the_lock_ends_with_its_process_even_if_that_is_killed(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "True\n"
        with locked(tmp_path) as free:
            assert not free
        process.kill()
        process.wait()
    with locked(tmp_path) as free:
        assert free


def test_whoever_waits_never_overlaps(tmp_path: Path) -> None:
    inside, overlaps, turns = 0, 0, 0

    def work() -> None:
        nonlocal inside, overlaps, turns
        for _ in range(50):
            with locked(tmp_path / "folder", wait=True) as free:
                assert free
                inside += 1
                overlaps += inside > 1
                turns += 1
                inside -= 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (turns, overlaps) == (200, 0)


@pytest.mark.parametrize("name", ["file/run", "file", "dangling"])
def test_a_folder_that_cannot_be_made_is_named(name: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    with (
        pytest.raises(InputError, match=rf"{name}/\.lock: cannot be written \(.*\); choose another folder"),
        locked(tmp_path / name),
    ):
        pass
