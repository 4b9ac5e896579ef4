"""How a method looks, the same in every figure: a colour for its kind, a line style and a marker of its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

# Okabe and Ito's palette: distinguishable with any kind of colour vision.
BLUE, ORANGE, GREEN, RED, GREY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#666666"
PURPLE, SKY, BLACK = "#CC79A7", "#56B4E9", "#000000"

CSS = {
    BLUE: "var(--blue)",
    ORANGE: "var(--orange)",
    GREEN: "var(--green)",
    RED: "var(--red)",
    GREY: "var(--grey)",
    PURPLE: "var(--purple)",
    SKY: "var(--sky)",
    BLACK: "currentColor",
}
"""What the page's style sheet calls them: they are lighter where the page is dark."""
_COLOURS = {
    "fedpals": BLUE,
    "fedavg": ORANGE,
    "fedprox": GREEN,
    "scaffold": RED,
    "afl": PURPLE,
    "fedrs": SKY,
    "oracle": GREY,
}
"""By method of a run; black for any other, such as combinations."""
_STYLES = {"-": "none", "--": "7 4", "-.": "8 3 2 3", ":": "2 3"}
"""Line styles, and their dashes where the page draws them itself."""
_MARKERS = dict(zip("os^vDPX*<>hp", "●■▲▼◆✚✖★◀▶⬢⬟", strict=True))
"""Markers, and the characters that are them on the page."""


@dataclass(frozen=True)
class Look:
    """Colour, line style and marker; ``number`` is the method's place in its experiment."""

    number: int
    colour: str
    style: str
    marker: str

    @property
    def css(self) -> str:
        """The colour's name on the page."""
        return CSS[self.colour]

    @property
    def dashes(self) -> str:
        """The line style on the page."""
        return _STYLES[self.style]

    @property
    def sign(self) -> str:
        """The marker on the page."""
        return _MARKERS[self.marker]


def looks(methods: Iterable[tuple[str, Mapping[str, Any]]]) -> dict[str, Look]:
    """Return a look per name, from names and the keys of their runs.

    Methods of one kind share the colour and differ in line style: FedPALS at several ESS, for instance.

    >>> some = looks([("a", {"method": "fedpals"}), ("b", {"method": "fedpals"}), ("c", {"method": "fedavg"})])
    >>> [(look.colour, look.style, look.marker) for look in some.values()]
    [('#0072B2', '-', 'o'), ('#0072B2', '--', 's'), ('#E69F00', '-', '^')]
    """
    seen: Counter[str] = Counter()
    found = {}
    for number, (name, keys) in enumerate(methods):
        colour = _COLOURS.get(str(keys.get("method")), BLACK)
        style = list(_STYLES)[seen[colour] % len(_STYLES)]
        seen[colour] += 1
        found[name] = Look(number, colour, style, list(_MARKERS)[number % len(_MARKERS)])
    return found
