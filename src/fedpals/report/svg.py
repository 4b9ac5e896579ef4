"""A figure as part of a page: in the page's fonts and colours, light or dark, and with a description."""

from __future__ import annotations

import io
import re
from html import escape
from typing import TYPE_CHECKING

from fedpals.report.looks import CSS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLOURS = {**{colour.lower(): name for colour, name in CSS.items()}, "#f2f2f2": "var(--absent)"}
_SETTINGS = {"svg.fonttype": "none", "svg.hashsalt": "fedpals", "font.family": "sans-serif"}
_METADATA = dict.fromkeys(("Creator", "Date", "Format", "Type"))


def inline(figure: Figure, prefix: str, description: str) -> str:
    """Return a figure as an ``svg`` element whose ids begin with ``prefix``, described for those who cannot see it."""
    import matplotlib as mpl

    buffer = io.BytesIO()
    with mpl.rc_context(_SETTINGS):
        figure.savefig(buffer, format="svg", transparent=True, metadata=_METADATA)
    text = buffer.getvalue().decode()
    text = text[text.index("<svg") :]
    text = re.sub(r"<style .*?</style>", "", text, flags=re.DOTALL)  # it would style the whole page
    text = re.sub(r' (?:width|height)="[\d.]+pt"', "", text, count=2)
    text = re.sub(r'\bid="', f'id="{prefix}-', text)
    text = re.sub(r'(url\(|href=")#', rf"\1#{prefix}-", text)
    text = re.sub(r"#[0-9a-f]{6}\b", lambda match: _COLOURS.get(match[0], match[0]), text)
    return text.replace("<svg ", f'<svg role="img" aria-label="{escape(description)}" fill="currentColor" ', 1)
