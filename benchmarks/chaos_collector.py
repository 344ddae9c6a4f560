"""What scrapes the engines and the node agent into the store, by the clock of the run, as Prometheus or vmagent would.

Owns the thread that scrapes, what it keeps while the store takes nothing, and what can go wrong with it: `mode` is a row of
MODES. A page that Prometheus would not take is `up` 0. It must not judge a page: that is the fleet's.
"""

from __future__ import annotations

import re
import threading
import time
import urllib.request
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from http.client import HTTPException

from chaos_engine import Clock, Engine
from chaos_store import Victoria

INTERVAL_SECONDS = 10.0
TIMEOUT_SECONDS = 0.25
MOST_BYTES = 1_000_000
MOST_LINES = 3_000
"""As `sample_limit` of Prometheus: else one page fills the store with series, and what reads it is out of sight for its range."""
MOST_KEPT = 4_000_000
"""Bytes that wait for a store that is away; the oldest go first."""

WRITE_SECONDS = 1.0
SEND_SECONDS = 0.1
SWAPPED = 8
_LINE = re.compile(rb"([a-zA-Z_:][a-zA-Z0-9_:]*)(\{[^\n]*\})? ([^ \n]+)(?: [0-9]+)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One page that is scraped: `url` is asked for each time, `labels` are put on every series, `renamed` are texts of its lines
    that are written otherwise."""

    name: str
    url: Callable[[], str]
    labels: Mapping[str, str]
    renamed: tuple[bytes, bytes] = (b"", b"")


MISSING = "r1"

Chosen = Callable[[str, bytes], bytes]
"""Of a source's name and its text, what goes to the store."""

MODES: Mapping[str, Chosen] = {
    "well": lambda name, text: text,
    "all_missing": lambda name, text: b"",
    "one_missing": lambda name, text: b"" if name == MISSING else _without(MISSING, text),
}


def _without(replica: str, text: bytes) -> bytes:
    own = f'replica="{replica}"'.encode()
    return b"".join(line for line in text.splitlines(keepends=True) if own not in line)


class Collector:
    """Begins with `start`. `late` keeps everything back until it is taken back, then sends the newest first; `swapped` sends every
    few scrapes the other way round."""

    def __init__(self, store: Victoria, clock: Clock, sources: Iterable[Source]) -> None:
        self._store, self._clock = store, clock
        self.mode = "well"
        self.late = self.swapped = False
        self._waiting: deque[bytes] = deque()
        self._ended = threading.Event()
        # As Prometheus does: a target that hangs keeps no other waiting.
        self._threads = [threading.Thread(target=self._scrape, args=(one,), daemon=True) for one in sources]
        self._threads.append(threading.Thread(target=self._send, daemon=True))

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._ended.set()
        for thread in self._threads:
            if thread.is_alive():
                thread.join()

    def behave(self) -> None:
        self.mode, self.late, self.swapped = "well", False, False

    def _scrape(self, source: Source) -> None:
        due, step = time.monotonic(), INTERVAL_SECONDS / self._clock.speed
        while not self._ended.wait(max(0.0, due - time.monotonic())):
            due = max(due + step, time.monotonic())
            t = self._clock()
            page = fetched(source.url())
            self._waiting.append(MODES[self.mode](source.name, b"".join(text(source, page, t))))

    def _send(self) -> None:
        while not self._ended.wait(SEND_SECONDS):
            while sum(map(len, tuple(self._waiting))) > MOST_KEPT:
                self._waiting.popleft()
            if self.late or (self.swapped and len(self._waiting) < SWAPPED):
                continue
            lots = [self._waiting.popleft() for _ in range(len(self._waiting))]
            # After a silence, and where it is swapped, the newest first.
            if lots and not self._sent(b"".join(reversed(lots))):
                self._waiting.extendleft(reversed(lots))

    def _sent(self, lines: bytes) -> bool:
        try:
            self._store.write(lines, WRITE_SECONDS)
        except (OSError, HTTPException):
            return False
        return True


def past(store: Victoria, engines: Mapping[str, Engine], since: float, until: float) -> None:
    """The engines' pages of a time before the run, as if they had been scraped then."""
    for name, engine in engines.items():
        source = Source(name=name, url=str, labels=labels_of(name))
        count = int((until - since) // INTERVAL_SECONDS)
        times = (since + place * INTERVAL_SECONDS for place in range(count))
        store.write(b"".join(line for t in times for line in text(source, engine.page_at(t), t)), 60.0)


def labels_of(name: str) -> dict[str, str]:
    """What Prometheus puts on the series of an engine."""
    return {"job": "engines", "instance": name}


def text(source: Source, page: bytes | None, t: float) -> Iterator[bytes]:
    """The lines that are written of a page, and of none."""
    more = ",".join(f'{name}="{value}"' for name, value in source.labels.items()).encode()
    stamp = round(t * 1000)
    lines = tuple(_series(page.replace(*source.renamed), more, stamp)) if page is not None else (None,)
    whole = [line for line in lines if line is not None]
    if len(whole) < len(lines):
        yield b"up{%b} 0 %d\n" % (more, stamp)
        return
    yield from whole
    yield b"up{%b} 1 %d\n" % (more, stamp)


def _series(page: bytes, more: bytes, stamp: int) -> Iterator[bytes | None]:
    """The lines of a page, each series once; None for one that is no line of the format."""
    seen = set()
    for line in page.split(b"\n"):
        if not line.strip() or line.startswith(b"#"):
            continue
        found = _LINE.fullmatch(line)
        if found is None:
            yield None
            return
        name, labels, value = found[1], (found[2] or b"{}")[1:-1].rstrip(b","), found[3]
        if (name, labels) not in seen:
            seen.add((name, labels))
            yield b"%b{%b%b%b} %b %d\n" % (name, labels, b"," if labels else b"", more, value, stamp)


def fetched(url: str) -> bytes | None:
    """A whole page with 200 and no redirect to another scheme, in time; else None."""
    until = time.monotonic() + TIMEOUT_SECONDS
    found = b""
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS) as result:
            # A page in chunks tells no length: its end is marked, and http.client raises where the mark is missing.
            length = result.headers.get("Content-Length")
            while piece := result.read1(65536):
                found += piece
                if time.monotonic() > until or len(found) > MOST_BYTES:
                    return None
            whole = length is None or len(found) == int(length)
            return found if whole and found.count(b"\n") <= MOST_LINES else None
    except (OSError, HTTPException, ValueError):
        return None
