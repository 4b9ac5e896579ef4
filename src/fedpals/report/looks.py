"""Look of a method, the same in every figure: the colour of its kind, and its own line style and marker."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

# Okabe and Ito's palette: distinguishable with any kind of colour vision.
BLUE, ORANGE, GREEN, RED, GREY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#666666"
PURPLE, SKY, BLACK = "#CC79A7", "#56B4E9", "#000000"
GAP = "#FEFEFE"
"""Colour of gaps, which show the paper; not the white of text on dark cells."""

CSS = {
    BLUE: "var(--blue)",
    ORANGE: "var(--orange)",
    GREEN: "var(--green)",
    RED: "var(--red)",
    GREY: "var(--grey)",
    PURPLE: "var(--purple)",
    SKY: "var(--sky)",
    BLACK: "currentColor",
    GAP: "var(--paper)",
}
"""Names of the colours in the page's style sheet, where they are lighter on a dark page."""
_COLOURS = {
    "fedpals": BLUE,
    "fedavg": ORANGE,
    "fedprox": GREEN,
    "scaffold": RED,
    "afl": PURPLE,
    "fedrs_graded": SKY,
    "fedrs_binary": SKY,
    "oracle": GREY,
}
"""Colour by method of a run; black for any other, such as combinations."""
_STYLES = {"-": "none", "--": "7 4", "-.": "8 3 2 3", ":": "2 3"}
"""Line styles, and their dashes in the legend of the page."""
_MARKERS = dict(zip("os^vDPX*<>hp", "●■▲▼◆✚✖★◀▶⬢⬟", strict=True))
"""Markers, and their characters on the page."""


@dataclass(frozen=True)
class Look:
    """Colour, line style and marker; ``number`` is the method's index in its experiment."""

    number: int
    colour: str
    style: str
    marker: str

    @property
    def css(self) -> str:
        """Name of the colour on the page."""
        return CSS[self.colour]

    @property
    def dashes(self) -> str:
        """Dashes of the line on the page."""
        return _STYLES[self.style]

    @property
    def sign(self) -> str:
        """Character of the marker on the page."""
        return _MARKERS[self.marker]


def looks(methods: Iterable[tuple[str, Mapping[str, Any]]]) -> dict[str, Look]:
    """Return a look per name, from the names and the keys of their runs.

    Methods of one kind, for instance FedPALS at several ESS, have the same colour and different line styles.

    >>> some = looks([("a", {"method": "fedpals"}), ("b", {"method": "fedpals"}), ("c", {"method": "fedavg"})])
    >>> [(look.colour, look.style, look.marker) for look in some.values()]
    [('#0072B2', '-', 'o'), ('#0072B2', '--', 's'), ('#E69F00', '-', '^')]
    """
    uses: Counter[str] = Counter()
    result = {}
    for number, (name, keys) in enumerate(methods):
        colour = _COLOURS.get(str(keys.get("method")), BLACK)
        style = list(_STYLES)[uses[colour] % len(_STYLES)]
        uses[colour] += 1
        result[name] = Look(number, colour, style, list(_MARKERS)[number % len(_MARKERS)])
    return result
