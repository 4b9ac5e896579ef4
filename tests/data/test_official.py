from __future__ import annotations

import gzip
import hashlib
import sys
import tarfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from fedpals.data import official
from fedpals.data.official import OfficialFiles, ensure, find, read, search_path
from fedpals.errors import InputError, MissingExtraError

CONTENT = b"what the publisher made"
SET = OfficialFiles(
    name="tiny",
    folder="tiny-1.0",
    checksums={
        "a.bin": "md5:" + hashlib.md5(CONTENT, usedforsecurity=False).hexdigest(),
        "b.gz": "sha256:" + hashlib.sha256(CONTENT).hexdigest(),
    },
    by_hand="apt-get install tiny",
)


def lay_out(base: Path, content: bytes = CONTENT) -> Path:
    root = base / SET.folder
    root.mkdir(parents=True)
    (root / "a.bin").write_bytes(content)
    # The header holds the time of packing, which the checksum must not see.
    (root / "b.gz").write_bytes(gzip.compress(content, mtime=len(str(base))))
    return root


def test_places_are_searched_in_order(nowhere: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDPALS_DATA", str(tmp_path / "variable"))
    given = tmp_path / "given"
    assert search_path(given) == (given, tmp_path / "variable", nowhere, official.DEBIAN)
    assert find(SET, given) is None
    for base in (official.DEBIAN, nowhere, tmp_path / "variable", given):
        root = lay_out(base)
        assert find(SET, given) == root
    assert find(SET, given / SET.folder) == given / SET.folder


def test_home_is_the_place_without_any_variable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("FEDPALS_DATA", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert search_path() == (tmp_path / ".cache" / "fedpals", Path("/usr/share/datasets"))


def test_content_is_checked_and_gunzipped(tmp_path: Path) -> None:
    root = lay_out(tmp_path)
    assert read(SET, root, "a.bin") == read(SET, root, "b.gz") == CONTENT


def test_absent_files_say_where_they_were_looked_for_and_how_to_get_them(nowhere: Path) -> None:
    lay_out(nowhere)
    (nowhere / SET.folder / "a.bin").unlink()
    with pytest.raises(InputError) as caught:
        ensure(SET)
    message = str(caught.value)
    assert message.startswith("tiny: cannot find a.bin, b.gz; searched ")
    assert str(nowhere / "tiny-1.0") in message
    assert str(official.DEBIAN / "tiny-1.0") in message
    assert message.endswith("To get them: apt-get install tiny")


def test_a_set_without_a_download_is_not_downloaded(nowhere: Path) -> None:
    with pytest.raises(InputError, match=f"searched {nowhere}"):
        ensure(SET, download=True)


@pytest.mark.parametrize(("name", "algorithm"), [("a.bin", "md5"), ("b.gz", "sha256")])
def test_a_wrong_file_is_named_with_both_checksums(tmp_path: Path, name: str, algorithm: str) -> None:
    root = lay_out(tmp_path, CONTENT[:-1])
    found = hashlib.new(algorithm, CONTENT[:-1]).hexdigest()
    expected = SET.checksums[name].partition(":")[2]
    with pytest.raises(
        InputError, match=rf"{name} is not .* {expected} expected, {found} found .* apt-get install tiny"
    ):
        read(SET, root, name)


@pytest.mark.parametrize("damage", [lambda raw: raw[:-9], lambda raw: b"\0" + raw, lambda _: b""])
def test_a_damaged_archive_is_named(tmp_path: Path, damage: object) -> None:
    path = lay_out(tmp_path) / "b.gz"
    path.write_bytes(damage(path.read_bytes()))  # type: ignore[operator]
    with pytest.raises(InputError, match=r"b\.gz (cannot be read|is not the official file)"):
        read(SET, path.parent, "b.gz")


@pytest.fixture
def site(tmp_path: Path) -> Iterator[str]:
    """A publisher's site on this machine, which serves the files and an archive of them."""
    root = lay_out(tmp_path / "site")
    with tarfile.open(tmp_path / "site" / "tiny.tar.gz", "w:gz") as archive:
        archive.add(root, SET.folder)
    quiet = type("Quiet", (SimpleHTTPRequestHandler,), {"log_message": lambda *_: None})
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(quiet, directory=str(tmp_path / "site")))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_files_are_downloaded_to_the_first_place_searched(nowhere: Path, site: str, tmp_path: Path) -> None:
    online = replace(SET, downloads={f"{site}/tiny-1.0/{name}": None for name in SET.checksums})
    with pytest.raises(InputError, match=r"To get them: apt-get install tiny, or fedpals data get tiny$"):
        ensure(online)
    assert ensure(online, download=True) == nowhere / "tiny-1.0"
    assert ensure(online) == nowhere / "tiny-1.0"
    assert ensure(online, tmp_path / "given", download=True) == nowhere / "tiny-1.0"


def test_an_archive_is_checked_and_unpacked(nowhere: Path, site: str, tmp_path: Path) -> None:
    packed = (tmp_path / "site" / "tiny.tar.gz").read_bytes()
    checksum = "md5:" + hashlib.md5(packed, usedforsecurity=False).hexdigest()
    online = replace(SET, downloads={f"{site}/tiny.tar.gz": checksum})
    assert ensure(online, tmp_path / "given", download=True) == tmp_path / "given" / "tiny-1.0"
    wrong = replace(SET, downloads={f"{site}/tiny.tar.gz": "md5:" + "0" * 32})
    with pytest.raises(InputError, match=r"tiny\.tar\.gz could not be downloaded .* does not match"):
        ensure(wrong, download=True)
    assert find(SET) is None
    assert nowhere.is_dir()


def test_a_download_that_is_not_the_official_file_is_refused(nowhere: Path, site: str, tmp_path: Path) -> None:
    (tmp_path / "site" / "tiny-1.0" / "a.bin").write_bytes(b"an error page")
    online = replace(SET, downloads={f"{site}/tiny-1.0/{name}": None for name in SET.checksums})
    with pytest.raises(InputError, match=rf"{nowhere}.*a\.bin is not the official file"):
        ensure(online, download=True)


def test_without_a_network_the_message_says_what_to_do(nowhere: Path) -> None:
    # Nothing listens on port 9 of this machine, so the connection fails at once.
    offline = replace(SET, downloads={"http://127.0.0.1:9/a.bin": None})
    with pytest.raises(InputError) as caught:
        ensure(offline, download=True)
    message = str(caught.value)
    assert "http://127.0.0.1:9/a.bin could not be downloaded" in message
    assert f"a.bin, b.gz into {nowhere / 'tiny-1.0'} another way: apt-get install tiny" in message


@pytest.mark.usefixtures("nowhere")
def test_downloading_without_pooch_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pooch", None)
    online = replace(SET, downloads={"http://127.0.0.1:9/a.bin": None})
    with pytest.raises(MissingExtraError, match=r"downloading tiny needs .*fedpals\[learn\]"):
        ensure(online, download=True)
