"""A user's own data sets that cannot be used."""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from tests.torture.harness import Case

RUN = ("run", "--rounds", "1", "--model", "logistic")
GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(60, 4)).astype(np.float32)
Y = np.arange(60) % 3
SITE = np.repeat(["north", "south", "west"], 20)


def npz(**arrays: Any) -> bytes:
    """Return a .npz file as bytes."""
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def cases() -> Iterator[Case]:
    """Yield cases of data sets in files and folders."""
    yield from _arrays()
    yield from _archives()
    yield from _tables()
    yield from _images()
    yield from _targets()


def _own(name: str, content: bytes, *words: str, flags: tuple[str, ...] = ("--client-key", "site")) -> Case:
    arguments = (*RUN, "--task", "d.npz", *flags, *(("--target-client", "west") if flags else ()))
    return Case(f"npz: {name}", arguments, words, {"d.npz": content})


def _arrays() -> Iterator[Case]:
    def changed(array: Any, at: Any, value: Any) -> Any:
        copy = array.copy()
        copy[at] = value
        return copy

    good = {"x": X, "y": Y, "site": SITE}
    yield _own("y is short", npz(x=X, y=Y[:-1], site=SITE), "d.npz: y", "59")
    yield _own("clients are short", npz(x=X, y=Y, site=SITE[:-1]), "59")
    yield _own("x is missing", npz(y=Y, site=SITE), "no array x")
    yield _own("y is missing", npz(x=X, site=SITE), "no array y")
    yield _own("clients are missing", npz(x=X, y=Y), "no array site")
    yield _own("an unused array", npz(**good, extra=Y), "'extra'", "nothing uses")
    yield _own("no samples", npz(x=X[:0], y=Y[:0], site=SITE[:0]), "no samples")
    yield _own("no features", npz(x=X[:, :0], y=Y, site=SITE), "d.npz: x", "(60, 0)")
    yield _own("x is text", npz(x=X.astype(str), y=Y, site=SITE), "d.npz: x", "must be numbers")
    yield _own("x is complex", npz(x=X + 1j, y=Y, site=SITE), "d.npz: x", "must be numbers")
    yield _own("x is times", npz(x=X.astype("datetime64[s]"), y=Y, site=SITE), "d.npz: x", "must be numbers")
    yield _own("x is one-dimensional", npz(x=X[:, 0], y=Y, site=SITE), "d.npz: x", "(60,)")
    yield _own("x is five-dimensional", npz(x=X[:, :, None, None, None], y=Y, site=SITE), "d.npz: x")
    yield _own("x has NaN", npz(x=changed(X, (3, 1), np.nan), y=Y, site=SITE), "x[3, 1]", "impute")
    yield _own("x has infinity", npz(x=changed(X, (3, 1), np.inf), y=Y, site=SITE), "x[3, 1]", "inf")
    yield _own("x beyond float32", npz(x=changed(X.astype(float), (3, 1), 1e300), y=Y, site=SITE), "x[3, 1]")
    yield _own("a column of NaN", npz(x=changed(X, (slice(None), 1), np.nan), y=Y, site=SITE), "x[0, 1]")
    yield _own("y is fractional", npz(x=X, y=Y + 0.5, site=SITE), "d.npz: y[0]", "0.5")
    yield _own("y has NaN", npz(x=X, y=changed(Y.astype(float), 2, np.nan), site=SITE), "d.npz: y[2]", "nan")
    yield _own("y is negative", npz(x=X, y=Y - 1, site=SITE), "-1")
    yield _own("y is complex", npz(x=X, y=Y + 1j, site=SITE), "d.npz: y")
    yield _own("a label of 10⁹", npz(x=X, y=changed(Y, 0, 10**9), site=SITE), "1000000000")
    yield _own("a label of 10¹⁸", npz(x=X, y=changed(Y, 0, 10**18), site=SITE), "1000000000000000000")
    yield _own(
        "a label of 2⁶⁴ − 1", npz(x=X, y=changed(Y.astype(np.uint64), 0, 2**64 - 1), site=SITE), "18446744073709551615"
    )
    yield _own("one label", npz(x=X, y=Y * 0, site=SITE), "label")
    yield _own("one client", npz(x=X, y=Y, site=np.repeat("west", 60)), "no client is left")
    yield _own("labels twice", npz(**good, labels=["a", "a", "b"]), "'a'", "twice")
    yield _own("too few names", npz(**good, labels=["a", "b"]), "y[2] is 2", "2 labels")
    yield _own("objects", npz(x=X, y=Y, site=SITE.astype(object)), "d.npz", "plain arrays")
    yield _own("no target client", npz(x=X, y=Y, site=np.repeat(["north", "south", "east"], 20)), "west", "east")
    yield _own("domain has a gap", npz(x=X, y=Y, domain=Y.astype(float)), "domain", flags=())
    yield _own("two samples", npz(x=X[:2], y=Y[:2], site=SITE[[0, 59]]), "d.npz")


def _archives() -> Iterator[Case]:
    yield _own("empty file", b"", "d.npz", "numpy.savez")
    yield _own("no ZIP file", b"hello world", "d.npz", "numpy.savez")
    yield _own("cut short", npz(x=X, y=Y, site=SITE)[:-60], "d.npz", "numpy.savez")
    middle = bytearray(npz(x=X, y=Y, site=SITE))
    middle[200:300] = bytes(100)
    yield _own("damaged", bytes(middle), "d.npz")
    single = io.BytesIO()
    np.save(single, X)
    yield _own("a .npy file", single.getvalue(), "d.npz", "numpy.savez")
    yield _own("a header of 4 TB", _huge_header((10**6, 10**6)), "d.npz")
    yield _own("a header of negative size", _huge_header((-1, 4)), "d.npz")
    yield Case("npz: no such file", (*RUN, "--task", "nowhere.npz"), ("nowhere.npz",))
    yield Case("npz: a folder", (*RUN, "--task", "d.npz"), ("d.npz",), {"d.npz/x": ""})


def _huge_header(shape: tuple[int, int]) -> bytes:
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": shape})
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("x.npy", header.getvalue())
        for name, array in (("y", Y), ("site", SITE)):
            content = io.BytesIO()
            np.save(content, array)
            archive.writestr(f"{name}.npy", content.getvalue())
    return file.getvalue()


def _tables() -> Iterator[Case]:
    table = "site,age,dose,label\n" + "".join(
        f"{SITE[i]},{X[i, 0]:.3f},{X[i, 1]:.3f},{'ab'[Y[i] % 2]}\n" for i in range(60)
    )
    run = (*RUN, "--task", "d.csv", "--client-column", "site", "--target-client", "west")

    def case(name: str, content: str | bytes, *words: str, flags: tuple[str, ...] = ()) -> Case:
        return Case(f"table: {name}", (*run, *flags), words, {"d.csv": content})

    first = f"{X[0, 0]:.3f}"
    for cell in ("abc", "1,5", "1.2.3", "12:30", "0x10", "--1", "<5"):
        quoted = f'"{cell}"' if "," in cell else cell
        yield case(f"cell {cell!r}", table.replace(first, quoted, 1), "d.csv, line 2", "'age'", repr(cell))
    for cell in ("inf", "1e999", "-inf"):
        yield case(f"cell {cell!r}", table.replace(first, cell, 1), "d.csv", "'age'", "finite")
    for cell in ("", "NA", "nan", "?"):
        yield case(f"missing {cell!r}", table.replace(first, cell, 1), "d.csv", "impute")
    yield case("no such label column", table, "'lable'", "did you mean 'label'", flags=("--label-column", "lable"))
    yield case("no such client column", table.replace("site,", "place,", 1), "'site'", "d.csv")
    yield case("empty", "", "d.csv")
    yield case("only a header", "site,age,dose,label\n", "d.csv", "no rows")
    yield case("a short row", table.replace(f",{first}", "", 1), "d.csv", "line 2")
    yield case("a column twice", table.replace("age,dose", "age,age", 1), "'age'", "twice")
    yield case("no numbers", "site,label\nnorth,a\nwest,b\n", "d.csv")
    yield case("Latin-1", table.replace("north", "nörd").encode("latin-1"), "d.csv", "UTF-8")
    yield case("a cell of 200,000 characters", table.replace("north", "n" * 200_000, 1), "d.csv")


def png(width: int, height: int, rows: bytes = b"") -> bytes:
    """Return a grey PNG whose header may claim more than there is."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def _images() -> Iterator[Case]:
    good = png(8, 8, b"".join(b"\0" + bytes(range(8 * i, 8 * i + 8)) for i in range(8)))
    folder = {f"im/{site}/{label}/{i}.png": good for site in ("n", "s", "w") for label in "ab" for i in range(10)}
    run = (*RUN, "--task", "im", "--image-size", "8", "--target-client", "w")

    def case(name: str, files: dict[str, bytes], *words: str) -> Case:
        return Case(f"images: {name}", run, words, files, may_write=True)  # images are read while training

    bad = "im/n/a/0.png"
    yield case("no image", {**folder, bad: b"hello"}, "0.png")
    yield case("empty file", {**folder, bad: b""}, "0.png")
    yield case("cut short", {**folder, bad: good[:40]}, "0.png")
    yield case("a bomb", {**folder, bad: png(60_000, 60_000, bytes(1000))}, "0.png")
    yield case("a larger bomb", {**folder, bad: png(2**31 - 1, 2**31 - 1)}, "0.png")
    yield case("no folders", {"im/x.png": good}, "im", "subfolders")
    yield case("an empty folder", {**folder, "im/n/c/readme.txt": b"x"}, "no images")


def _targets() -> Iterator[Case]:
    content = npz(x=X, y=Y, site=SITE)
    run = (*RUN, "--task", "d.npz", "--client-key", "site", "--target", "t.csv")
    for target, words in {
        "0,0.5\n1,0.4\n2,0\n": ("t.csv", "sum to 0.9"),
        "0,0.5\n1,0.5\n": ("target", "'2'"),
        "0,0.5\n1,0.25\n2,0.125\n3,0.125\n": ("'3'",),
        "": ("t.csv",),
        "0,x\n1,0.5\n2,0.5\n": ("target", "'0'"),
    }.items():
        yield Case(f"own target {target!r}", run, words, {"d.npz": content, "t.csv": target})
    yield Case("own target is missing", run, ("t.csv: no such file",), {"d.npz": content})
