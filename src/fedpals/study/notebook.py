"""A progress display below the cell of a notebook."""

from __future__ import annotations

import io
import time

from rich.console import Console
from rich.progress import Progress

_SECONDS = 0.25
"""Time between updates."""
_WIDTH = 100
"""Characters of a line."""


class NotebookDisplay:
    """Shows a progress display as HTML, renewed in place; rich itself would need ipywidgets for that."""

    def __init__(self, progress: Progress) -> None:
        from IPython.display import display

        self._progress = progress
        self._shown = time.monotonic()
        self._handle = display(self._html(), display_id=True)

    def refresh(self, *, last: bool = False) -> None:
        """Renew what is shown, unless that was just done; the ``last`` state is always shown."""
        if last or time.monotonic() - self._shown > _SECONDS:
            self._shown = time.monotonic()
            self._handle.update(self._html())

    def _html(self) -> object:
        from IPython.display import HTML

        console = Console(file=io.StringIO(), record=True, width=_WIDTH, force_jupyter=False, emoji=False)
        console.print(self._progress.get_renderable())
        return HTML(console.export_html(inline_styles=True, code_format="<pre>{code}</pre>"))
