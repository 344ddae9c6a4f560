"""Recorded engines under the live loop on a simulated clock: role node without sockets and without waiting."""

import gzip
import json
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml
from loops import scrape_loop
from waiting import StandingClock

from agent.config.peer import Peer
from agent.errors import ScrapeError, ScrapeFailure
from agent.scrape.scrapers import Scrapers, Target
from agent.sources.recording import Recording, Scrape, load, scrapes
from rules.plan.load_bins import TierContext
from rules.verdicts.verdict import Finding

_START_TIMES = re.compile(r"^(process_start_time_seconds|\S+_created(?:\{[^}]*\})?) (\S+)$", re.MULTILINE)


def lay(folder: Path, begin: float, into: Path, apart: float = 0.0) -> Path:
    """Write the recording as it would be if its first scrape had been at `begin` (unix seconds).

    The scrapes of its targets lie so many seconds `apart`."""
    made = into / f"{folder.name}-{begin:.0f}"
    made.mkdir()
    shutil.copy(folder / "recording.yaml", made)
    files = [one["file"] for one in yaml.safe_load((folder / "recording.yaml").read_text())["targets"]]
    told = {name: list(map(json.loads, gzip.decompress((folder / name).read_bytes()).splitlines())) for name in files}
    by = begin - min(lines[0]["t"] for lines in told.values())
    for place, (name, lines) in enumerate(told.items()):
        with gzip.open(made / name, "wt", compresslevel=1) as file:
            for line in lines:
                line["t"] += by + place * apart
                if "text" in line:
                    line["text"] = _START_TIMES.sub(lambda at: f"{at[1]} {float(at[2]) + by!r}", line["text"])
                file.write(json.dumps(line) + "\n")
    return made


@dataclass
class RecordedEngine:
    """The latest recorded answer of a target at the clock's time. It tells no release."""

    scrapes: Sequence[Scrape]
    clock: StandingClock

    def fetch(self) -> bytes:
        """Return the page. Raise ScrapeError where the recording has none."""
        before = [one for one in self.scrapes if one.t <= self.clock.now]
        if not before or before[-1].body is None:
            raise ScrapeError(ScrapeFailure.CONNECT, before[-1].error if before else "it has not begun")
        return before[-1].body

    def close(self) -> None:
        """Nothing is held."""


def cycle_times(recording: Recording) -> list[float]:
    """Return when each round of the recorder was over."""
    times: list[float] = []
    met: set[int] = set()
    for one in scrapes(recording, []):
        if not met or one.target in met:
            met = set()
            times.append(one.t)
        met.add(one.target)
        times[-1] = one.t
    return times


def live_findings(folder: Path, contexts: dict[str, TierContext], times: Sequence[float]) -> list[Finding]:
    """Return what the loop of role node finds that scrapes the recorded engines at these times."""
    recording, _ = load(folder)
    lines = list(scrapes(recording, []))
    clock = StandingClock()
    targets, engines = [], {}
    for place, one in enumerate(recording.targets):
        options = Peer(url=f"http://127.0.0.1/{place}/metrics", timeout_seconds=60.0)
        engines[options.url] = RecordedEngine([line for line in lines if line.target == place], clock)
        targets.append(
            Target(
                tier=one.tier,
                replica=one.replica,
                pool=one.pool,
                peer=options,
                engine=one.engine,
                engine_version=one.engine_version,
            )
        )
    silent = RecordedEngine((), clock)
    scrapers = Scrapers(targets, clock=clock, fetcher=lambda options, accept="": engines.get(options.url, silent))
    parts = scrape_loop(targets, contexts, scrapers, clock)
    try:
        for clock.now in times:
            parts.loop.run_cycle()
        return [*parts.runtime.past, *parts.loop.state.open_findings()]
    finally:
        parts.loop.stop()
