"""Recorded engines served over HTTP as if they ran now.

Owns the mapping from the demo's clock to a recording's. When a recording ends it begins
anew as a restarted engine: start times are moved along, everything else is served as it was recorded.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass

from agent.demo.page_server import PageServer
from agent.sources.recording import Recording, Scrape, scrapes

_START_TIMES = re.compile(rb"^(process_start_time_seconds|vllm:prompt_tokens_created\{[^}]*\}) (\S+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedTrack:
    """One recorded target: its scrapes in order, and where in it the demo begins (seconds after its first scrape)."""

    name: str
    scrapes: tuple[Scrape, ...]
    begin: float

    def round(self, elapsed: float) -> int:
        """How often the recording has begun anew by then."""
        return int((self.begin + elapsed) // (self.scrapes[-1].t - self.scrapes[0].t))

    def scrape_at(self, elapsed: float) -> tuple[Scrape, float]:
        """The scrape that stood at `elapsed` seconds of the demo, and by how much its times have moved."""
        first, last = self.scrapes[0].t, self.scrapes[-1].t
        length = last - first
        moved = self.round(elapsed) * length
        place = first + self.begin + elapsed - moved
        return self.scrapes[bisect_right(self.scrapes, place, key=lambda scrape: scrape.t) - 1], moved


def track(recording: Recording, name: str, begin: float) -> RecordedTrack:
    """The first target of a recording as a track. The demo's recordings are whole: a broken one raises ValueError."""
    problems: list[str] = []
    found = tuple(s for s in scrapes(recording, problems) if s.target == 0)
    if problems or len(found) < 2:
        raise ValueError(f"{recording.folder} is not a whole recording: {problems}")
    return RecordedTrack(name=name, scrapes=found, begin=begin)


class Player:
    """Serves `/NAME/metrics` of each track at the demo's time, which begins with the first page that is asked for."""

    def __init__(self, tracks: tuple[RecordedTrack, ...], clock: Callable[[], float]) -> None:
        self._tracks = {t.name: t for t in tracks}
        self._clock = clock
        self._begin: float | None = None
        self._server = PageServer(self._tracks, self.page)

    def start(self) -> None:
        self._server.start()

    def url(self, name: str) -> str:
        return self._server.url(name)

    def stop(self) -> None:
        """Closes the port; also of a player that was never started."""
        self._server.stop()

    def rounds(self) -> dict[str, int]:
        """How often each recording has begun anew."""
        elapsed = self._elapsed()
        return {name: track.round(elapsed) for name, track in self._tracks.items()}

    def page(self, name: str) -> bytes | None:
        """The page at this moment; None where the recording holds a failed scrape."""
        scrape, moved = self._tracks[name].scrape_at(self._elapsed())
        if scrape.body is None or not moved:
            return scrape.body
        return _START_TIMES.sub(lambda found: found[1] + b" %r" % (float(found[2]) + moved), scrape.body)

    def _elapsed(self) -> float:
        now = self._clock()
        self._begin = now if self._begin is None else self._begin
        return now - self._begin
