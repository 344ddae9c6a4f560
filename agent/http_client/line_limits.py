"""Limits on the lines of an exposition page, applied while it arrives: comments and blank lines cost memory too."""

from __future__ import annotations

from agent.errors import ScrapeError, ScrapeFailure

MOST_LINES = 20_000
"""Lines of any kind."""

MOST_LINE_BYTES = 16_384
"""The longest line that we know, of vLLM's configuration, has 1,153 bytes."""


class LineLimits:
    """Count of the lines of one page, which arrives in parts. `begun` says whether one came."""

    def __init__(self) -> None:
        self.begun = False
        self._lines = 0
        self._open = 0
        """Bytes of the line that the last part did not end."""

    def check(self, part: bytes) -> None:
        """Count the next part. Raise ScrapeError (too_large) at the first line too many or too long."""
        self.begun = self.begun or bool(part)
        self._lines += part.count(b"\n")
        if self._lines > MOST_LINES:
            raise ScrapeError(ScrapeFailure.TOO_LARGE, f"the page has more than {MOST_LINES} lines")
        # Leap from line end to line end: a page of short lines takes a step for each 16 KiB.
        begin = -self._open
        while len(part) - begin > MOST_LINE_BYTES:
            end = part.rfind(b"\n", max(begin, 0), begin + MOST_LINE_BYTES + 1)
            if end < 0:
                raise ScrapeError(ScrapeFailure.TOO_LARGE, f"the page has a line of more than {MOST_LINE_BYTES} bytes")
            begin = end + 1
        self._open = len(part) - 1 - part.rfind(b"\n") if b"\n" in part else self._open + len(part)
