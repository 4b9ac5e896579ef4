"""How long to wait for the rest, once those who have answered are enough."""

from __future__ import annotations

import time

_SLOWNESS = 3.0
"""How many times longer than the longest so far a pause between two answers may be."""


class Patience:
    """A wait for answers: it is over when there was no news for ``seconds``, or longer where answers take longer."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._last_news = time.monotonic()
        self._longest_pause = 0.0

    def renew(self) -> None:
        """Begin anew, as when somebody else is asked."""
        self._last_news = time.monotonic()

    def hear(self) -> None:
        """Note that somebody has answered."""
        now = time.monotonic()
        self._longest_pause = max(self._longest_pause, now - self._last_news)
        self._last_news = now

    @property
    def is_over(self) -> bool:
        """Whether nothing has been heard for so long that nothing is to be expected."""
        return time.monotonic() - self._last_news >= max(self.seconds, _SLOWNESS * self._longest_pause)
