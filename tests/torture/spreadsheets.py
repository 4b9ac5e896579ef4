"""Label counts and targets that are not what they should be."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial

from tests.torture.harness import Case

COUNTS = "store,a,b,c\nNorth,80,20,0\nSouth,10,60,30\nWest,5,5,40\n"
TARGET = "label,probability\na,0.2\nb,0.3\nc,0.5\n"
WEIGHTS = ("weights", "c.csv", "--target", "t.csv")


def cases() -> Iterator[Case]:
    """Yield cases of `fedpals weights`."""
    yield Case("weights: good", WEIGHTS, ("FedPALS", "covered"), {"c.csv": COUNTS, "t.csv": TARGET}, code=0)
    yield from _cells()
    yield from _tables()
    yield from _targets()
    yield from _options()
    yield from _names()


def _weights(name: str, *words: str, counts: str | bytes = COUNTS, target: str | bytes = TARGET) -> Case:
    return Case(f"weights: {name}", WEIGHTS, words, {"c.csv": counts, "t.csv": target})


def _cells() -> Iterator[Case]:
    """One cell of the counts is wrong: its place, its value and what to write instead are named."""
    bad = {
        "-1": "is negative",
        "-0.5": "is negative",
        "1.5": "is fractional",
        "1.450": "may mean 1450 or 1.45",
        "5.000": "may mean 5000 or 5",
        "nan": "is not a finite number",
        "inf": "is not a finite number",
        "-inf": "is not a finite number",
        "1e400": "is not a finite number",
        "1e308": "is too large",
        "99999999999999999999": "is too large",
        "9007199254740994": "is too large",
        "abc": "write digits only",
        "2O": "write digits only",
        "l0": "write digits only",
        "0x10": "write digits only",
        "0b1": "write digits only",
        "1_000": "write digits only",
        "1e": "write digits only",
        "--1": "write digits only",
        "1 000": "without a separator for thousands",
        "1'000": "without a separator for thousands",
        "1.000.000": "without a separator for thousands",
        '"1,000"': "may mean 1000 or 1",
        '"1.250,0"': "write 1250, without a separator for thousands",
        "10%": "counts of samples, not percentages",
        "10 %": "counts of samples, not percentages",
        "": "--blank-is-zero",
        "  ": "blank cells mean 0",
        "∞": "write digits only",
        "½": "write digits only",
        "=1+1": "write digits only",
        "#DIV/0!": "write digits only",
        "None": "write digits only",
        "12:30": "write digits only",
    }
    for cell, words in bad.items():
        counts = COUNTS.replace("South,10", f"South,{cell}")
        yield _weights(
            f"count {cell!r}",
            "c.csv",
            "South" if words.startswith("is ") else "line 3",
            words,
            counts=counts,
        )
    after_blank = COUNTS.replace("South,10", "\n\nSouth,abc")
    yield _weights("line numbers count blank lines", "c.csv, line 5", "'abc'", counts=after_blank)
    quoted = COUNTS.replace("North", '"North\nEast"').replace("South,10", "South,abc")
    yield _weights("line numbers count lines within quotes", "c.csv, line 4", "'abc'", counts=quoted)
    yield _weights("a cell of 200,000 characters", "c.csv", "line 3", counts=COUNTS.replace("South", "x" * 200_000))
    yield _weights("a number of 5,000 digits", "c.csv", counts=COUNTS.replace("South,10", "South," + "9" * 5000))
    yield _weights("a number with a huge exponent", "c.csv", counts=COUNTS.replace("South,10", "South,1e99999999999"))


def _tables() -> Iterator[Case]:
    """The table as a whole is wrong."""
    yield _weights("empty file", "c.csv: the file is empty", counts="")
    yield _weights("only blank lines", "c.csv: the file is empty", counts="\n\n \n")
    yield _weights("only a header", "no clients below the header", counts="store,a,b,c\n")
    yield _weights("a short row", "c.csv, line 3: 3 cells", "the header has 4", counts=COUNTS.replace(",60,30", ",60"))
    yield _weights("a long row", "c.csv, line 3: 5 cells", counts=COUNTS.replace(",60,30", ",60,30,1"))
    yield _weights("a client twice", "'North' occurs twice", counts=COUNTS.replace("South", "North"))
    yield _weights("a label twice", "'a' occurs twice", counts=COUNTS.replace("store,a,b", "store,a,a"))
    yield _weights("no header", "t.csv", "'1'", counts="1,2,3\n1,2,3\n4,5,6\n")
    yield _weights("no labels", "names no label", counts="store\nNorth\nSouth\n")
    yield _weights("all clients empty", "at least one must have samples", counts="store,a,b,c\nN,0,0,0\nS,0,0,0\n")
    yield _weights("a column of sums", "'total'", "remove it", counts="store,a,b,c,total\nN,1,2,3,6\nS,4,5,6,15\n")
    yield _weights("a row of sums", "'Total'", "remove it", counts=f"{COUNTS}Total,95,85,70\n")
    yield _weights("Latin-1", "c.csv", "UTF-8", counts=COUNTS.replace("North", "Nörd").encode("latin-1"))
    yield _weights("UTF-16", "c.csv", "UTF-8", counts=COUNTS.encode("utf-16"))
    yield _weights("a ZIP file", "c.csv", counts=b"PK\x03\x04" + bytes(range(256)))
    yield _weights("null bytes", "c.csv", counts=COUNTS.encode().replace(b"80", b"8\x000"))
    yield _weights("an open quote", "c.csv", counts=COUNTS.replace("South", '"South'))
    missing = {"t.csv": TARGET}
    yield Case("weights: no such file", WEIGHTS, ("c.csv: no such file",), missing)
    yield Case("weights: no such target", WEIGHTS, ("t.csv: no such file",), {"c.csv": COUNTS})
    yield Case("weights: counts are a folder", WEIGHTS, ("c.csv is a folder",), {"c.csv/x": "", **missing})
    yield Case("weights: target is a folder", WEIGHTS, ("t.csv is a folder",), {"c.csv": COUNTS, "t.csv/x": ""})


def _targets() -> Iterator[Case]:
    """The target is incomplete, or no probabilities."""
    for numbers, total in {
        ("0.2", "0.3", "0"): "0.5",
        ("0.2", "0.3", "1"): "1.5",
        ("0.1", "0.2", "0"): "0.3",
        ("0.5", "0.5", "0.5"): "1.5",
        ("0.2", "0.3", "0.4"): "0.9",
        ("20%", "30%", "40%"): "90",
        ("20%", "30%", "0%"): "50",
        ("1", "0.5", "0"): "1.5",
    }.items():
        yield _weights(f"target {numbers}", "t.csv", f"sum to {total}", "rounding", target=_target(*numbers))
    for cell in ("-0.1", "nan", "inf", "abc", "", "0x1", "1e999", "0,2;", "-0.0001"):
        quoted = f'"{cell}"' if "," in cell else cell
        yield _weights(f"target cell {cell!r}", "t.csv", "label 'a'", target=_target(quoted, "0.3", "0.5"))
    yield _weights("target of zeros", "t.csv", "empty", target=_target("0", "0", "0"))
    yield _weights("target too large to add", "t.csv", target=_target("1e308", "1e308", "1e308"))
    yield _weights("target with an exponent beyond reason", "t.csv", target=_target("0e99999999999", "0.3", "0.5"))
    yield _weights("target with a total", "'Sum'", "remove it", target="a,2\nb,3\nc,5\nSum,10\n")
    yield _weights("target with thousands", "t.csv, line 2", "5000 or 5", target=_target("5.000", "800", "20"))
    yield _weights("mixed signs", "t.csv", "percent sign", target=_target("20%", "0.3", "0.5"))
    yield _weights("target label twice", "t.csv", "'a' occurs twice", target=TARGET.replace("b,", "a,"))
    yield _weights("target of three columns", "t.csv", "two columns", target="label,p,q\na,1,2\nb,2,3\n")
    yield _weights("target is empty", "t.csv: the file is empty", target="")
    yield _weights("target is only a header", "t.csv", target="label,probability\n")
    yield _weights("target misses a label", "t.csv", "'c'", "--missing-is-zero", target="a,0.4\nb,0.6\n")
    yield _weights(
        "target misspells a label",
        "did you mean 'shirt'",
        counts="s,shirt,bag\nN,1,2\n",
        target="shirts,0.5\nbag,0.5\n",
    )
    yield _weights("a mistyped first row", "t.csv, line 1", "'2O'", target="a,2O\nb,30\nc,50\n")
    yield _weights("target of other labels", "t.csv", "'a'", target="x,0.4\ny,0.6\n")


def _target(*numbers: str) -> str:
    return "label,probability\n" + "".join(f"{label},{number}\n" for label, number in zip("abc", numbers, strict=True))


def _options() -> Iterator[Case]:
    good = {"c.csv": COUNTS, "t.csv": TARGET}
    for flag, value, words in (
        ("--ess", "0", "ess"),
        ("--ess", "-1", "ess"),
        ("--ess", "1.5", "ess"),
        ("--ess", "nan", "ess"),
        ("--ess", "inf", "ess"),
        ("--ess", "abc", "abc"),
        ("--lam", "-1", "lam"),
        ("--lam", "nan", "lam"),
        ("--lam", "abc", "abc"),
        ("--grid", "0", "grid"),
        ("--grid", "-3", "grid"),
        ("--grid", "1.5", "1.5"),
        ("--grid", "99999999999999999999", "grid"),
        ("--plot", "p.gif", "p.gif"),
        ("--plot", "noending", "noending"),
        ("--explore", "e.txt", "e.txt"),
        ("--nonsense", "1", "--nonsense"),
    ):
        yield Case(f"weights: {flag} {value}", (*WEIGHTS, flag, value), (words,), good)
    yield Case("weights: two choices", (*WEIGHTS, "--ess", "0.5", "--lam", "1"), ("give only one of them",), good)
    for flag, name in (("--plot", "f.png"), ("--explore", "f.html"), ("--csv", "f.csv")):
        folder = {**good, f"{name}/x": ""}
        yield Case(f"weights: {flag} is a folder", (*WEIGHTS, flag, name), (name, "is a folder"), folder)
        blocked = {**good, "block": ""}
        yield Case(f"weights: {flag} below a file", (*WEIGHTS, flag, f"block/{name}"), ("block",), blocked)
        full = f"weights: {flag} on a full disk"
        yield Case(full, (*WEIGHTS, flag, name), (name, "free some space"), good, most_bytes=64)
        pipe = partial(os.mkfifo, name)
        yield Case(f"weights: {flag} is a pipe", (*WEIGHTS, flag, name), (name, "pipe"), good, prepare=pipe)


def _names() -> Iterator[Case]:
    """Names are printed as they are, and do nothing to a terminal or a spreadsheet."""
    counts = COUNTS.replace("North", "a:smile:b").replace("South", "[red]x[/red]").replace("West", "esc\x1b[31mape")
    files = {"c.csv": counts, "t.csv": TARGET}
    yield Case("weights: names with markup", WEIGHTS, ("a:smile:b", "[red]x[/red]", "esc\\x1b[31mape"), files, code=0)
    yield Case("weights: an ASCII terminal", WEIGHTS, ("FedPALS",), files, code=0, encoding="ascii")
