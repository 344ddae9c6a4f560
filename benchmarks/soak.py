"""A week's cycles of a real daemon in minutes: what grows?

    python benchmarks/soak.py                    # ten minutes, or a week's cycles where they are over sooner
    python benchmarks/soak.py --minutes 60 --cycles 40320

The daemon is a process of its own, on a clock that is 15 s further with each cycle, and cycles as fast as the machine makes
them. Pods come and go under new names (a reload each), engines restart and come back with other bucket edges, one pod of each
generation never answers (its alert fires and is resolved), an Alertmanager takes posts, forecasts are made, and upkeep and
retention run by that clock. Memory, files and threads are read every second. Exit code 1 where a bound is broken.
"""

from __future__ import annotations

import re
import signal
import sqlite3
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from math import nan
from pathlib import Path
from statistics import linear_regression, median
from typing import Any

import common

from agent.demo.engines import CAST, track
from agent.demo.engines import HERE as DEMO
from agent.sources.recording import load

MB = 1e6
CYCLE_SECONDS = 15.0
WEEK_CYCLES = 40_320
PODS = 4
GENERATION_CYCLES = 240
"""An hour of the daemon's clock."""

DROPPED_EDGES = re.compile(rb'^[^#\n]*_bucket\{[^\n]*le="(?:0\.1|0\.5|2\.5|10\.0)"[^\n]*\n', re.MULTILINE)

GROWTH_BYTES, YOUNG_GROWTH_BYTES, YOUNG_CYCLES = 0.5 * MB, 2.0 * MB, 10_000
"""Of resident memory in 1,000 cycles: for days caches fill and the allocator spreads, most on the first. Python's blocks,
which a leak is made of, have a bound of their own."""

GROWTH_BLOCKS = 2.0
"""A cycle, of hundreds of thousands. A list that grows by a record a cycle is 3 and more."""

REPLICAS, TIERS = 5, 3
REPLICA_BYTES, TIER_DAY_BYTES, FINDING_BYTES, UNKNOWN_BYTES = 6_500_000.0, 400_000.0, 3_000.0, 450.0
"""docs/history.md, "How big"."""

WAL_BYTES = 20 * MB
"""The history's write-ahead log after a checkpoint, and the room of its first pages."""

LOG_BYTES = 400.0
"""A cycle: a finding that begins or ends is a line; a cycle is none."""

LEAST_SAMPLES = 4
GENERATIONS = 2
"""Of pods that may be exported at once: those of before a reload are there until the cycle after it."""

PERIOD_CYCLES, FULL_CYCLES = 2 * GENERATION_CYCLES, 1500
"""After a period the load is the same again: every other generation has other bucket edges. After `FULL_CYCLES` all that
looks back has filled: two hours of findings are 480 cycles, minutes look back one hour, the history's cache has 2 MB."""

ENOUGH_CYCLES = FULL_CYCLES + 5 * PERIOD_CYCLES
"""Blocks differ by some thousand from period to period: over two that would be 2 a cycle."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The daemon at one moment. `generations` of pods are in its metrics. `blocks` are Python's after cycle `looked_at`.
    `findings` and `unknowns` of the history are only in the last sample."""

    seconds: float
    cycles: int
    rss_bytes: int
    files: int
    threads: int
    series: int
    generations: int
    defects: int
    looked_at: int
    blocks: int
    history_bytes: int = 0
    log_bytes: int = 0
    reloads: int = 0
    posts: int = 0
    findings: int = 0
    unknowns: int = 0


# ---- bounds ----


def slope(samples: Sequence[Sample]) -> float:
    """Return resident bytes a cycle, over the second half and after FULL_CYCLES; NaN for under four samples of it."""
    half = [each for each in samples if 2 * each.cycles >= samples[-1].cycles and each.cycles >= FULL_CYCLES]
    cycles = [each.cycles for each in half]
    if len(set(cycles)) < LEAST_SAMPLES:
        return nan
    return linear_regression(cycles, [each.rss_bytes for each in half]).slope


def block_growth(samples: Sequence[Sample]) -> float:
    """Return blocks a cycle: the median over all pairs of looks that whole periods lie between; NaN without any."""
    looks = {each.looked_at: each.blocks for each in samples if each.looked_at >= FULL_CYCLES}
    slopes = []
    for first in looks:
        for last in looks:
            if first < last and (last - first) % PERIOD_CYCLES == 0:
                slopes.append((looks[last] - looks[first]) / (last - first))
    return median(slopes) if slopes else nan


def print_bounds(samples: Sequence[Sample]) -> bool:
    """Print the course and each bound. Return whether all hold; NaN, of too few cycles, does not."""
    if len(samples) < LEAST_SAMPLES:
        raise SystemExit(f"soak: {len(samples)} samples are too few to judge growth: let it run for longer")
    rows = []
    for place in range(9):
        sample = samples[place * (len(samples) - 1) // 8]
        bytes_of = (sample.rss_bytes, sample.history_bytes, sample.log_bytes)
        numbers = (sample.cycles, sample.reloads, sample.files, sample.threads, sample.series, sample.blocks)
        rows.append((f"{sample.seconds:.0f}", *map(str, numbers), *(f"{size / MB:.1f}" for size in bytes_of)))
    head = "seconds", "cycles", "reloads", "files", "threads", "series", "blocks", "RSS MB", "history MB", "log MB"
    common.print_table(head, rows)
    first, last = samples[0], samples[-1]
    days = last.cycles * CYCLE_SECONDS / 86_400
    stated = WAL_BYTES + REPLICAS * REPLICA_BYTES + days * TIERS * TIER_DAY_BYTES
    stated += last.findings * FINDING_BYTES + last.unknowns * UNKNOWN_BYTES
    limit = GROWTH_BYTES if last.cycles >= YOUNG_CYCLES else YOUNG_GROWTH_BYTES
    log = (last.log_bytes - first.log_bytes) / max(1, last.cycles - first.cycles)
    holds = [
        common.print_goal("memory, MB in 1,000 cycles", 1000 * slope(samples) / MB, limit / MB, "{:+.3f}"),
        common.print_goal("Python's blocks a cycle", block_growth(samples), GROWTH_BLOCKS, "{:+.3f}"),
        _print_quarters(samples, "open files", lambda each: each.files, 2),
        _print_quarters(samples, "threads", lambda each: each.threads, 1),
        _print_quarters(samples, "series in /metrics", lambda each: each.series, 0.05 * last.series),
        common.print_goal("generations of pods", max(each.generations for each in samples), GENERATIONS),
        common.print_goal(f"history after {days:.1f} days, MB", last.history_bytes / MB, stated / MB),
        common.print_goal("log, bytes a cycle", log, LOG_BYTES),
        common.print_goal("unexpected errors", last.defects, 0),
    ]
    print(f"{last.cycles} cycles, {last.reloads} reloads, {last.posts} posts of alerts")
    return all(holds)


def _print_quarters(samples: Sequence[Sample], name: str, of: Callable[[Sample], float], slack: float) -> bool:
    quarter = max(1, len(samples) // 4)
    before, after = max(map(of, samples[-2 * quarter : -quarter])), max(map(of, samples[-quarter:]))
    return common.print_goal(f"{name}, fourth quarter over third", after - before, slack)


# ---- the run of role standalone ----


class World:
    """The engines and the Alertmanager, all behind one server on loopback."""

    def __init__(self) -> None:
        self._tracks = [track(load(DEMO / "recordings" / p.recording)[0], p.tier, p.begin) for p in CAST]
        self._pages = Counter[str]()
        self.posts = self.generation = 0

    def respond(self, path: str, body: bytes) -> tuple[int, bytes]:
        pod = path.strip("/").partition("/")[0]
        if body or path.startswith("/api"):
            self.posts += 1
            return 200, b""
        page = self._page(pod) if pod.startswith("slot-") else None
        return (503, b"") if page is None else (200, page)

    def _page(self, pod: str) -> bytes | None:
        """Return the next page of a pod, 15 s further. Every other generation has other bucket edges."""
        self._pages[pod] += 1
        pages = self._tracks[int(pod.rpartition("-")[2]) % len(self._tracks)]
        page = pages.scrape_at(self._pages[pod] * CYCLE_SECONDS)[0].body
        if page is not None and self.generation % 2:
            return DROPPED_EDGES.sub(b"", page)
        return page


def build_keys(folder: Path, url: str, generation: int) -> dict[str, Any]:
    """Return the configuration of one generation of pods."""
    targets = []
    for n, slot in enumerate([f"slot-{n}" for n in range(PODS)] + ["dead"]):
        tier = CAST[n % len(CAST)].tier
        targets.append({"url": f"{url}/{slot}/metrics", "tier": tier, "replica": f"pod-{generation}-{slot}"})
    return {
        "plan": str(DEMO / "plan.yaml"),
        "targets": targets,
        "scrape_interval": "15s",
        "gpus": {"source": "none"},
        "data_dir": str(folder / "data"),
        "alerting": {"path": "posts", "alertmanagers": [{"url": url}]},
        "report": {"enabled": False},
    }


def soak_standalone(minutes: float, folder: Path, cycles: int) -> list[Sample]:
    """Run the daemon and read it every second, until so many minutes or cycles are over."""
    world = World()
    server = common.Server(world.respond)
    keys = build_keys(folder, server.url, 0)
    daemon = common.Agent(folder, keys, Path(__file__).parent / "fast_daemon.py", folder)
    daemon.start()
    samples: list[Sample] = []
    began = time.monotonic()
    try:
        # A slow machine has four times as long, until enough periods can be compared.
        while time.monotonic() - began < minutes * 60.0 * (1 if samples and samples[-1].cycles >= ENOUGH_CYCLES else 4):
            time.sleep(1.0)
            if not daemon.is_alive:
                raise SystemExit(f"the daemon ended: {daemon.log.read_text()[-2000:]}")
            metrics = daemon.metrics()
            if not metrics:
                continue
            samples.append(_sample(time.monotonic() - began, daemon, metrics, folder, world))
            if samples[-1].cycles >= cycles:
                break
            generation = samples[-1].cycles // GENERATION_CYCLES
            if generation > world.generation:
                world.generation = generation
                web = {"listen": f"127.0.0.1:{daemon.port}"}
                (folder / "fresh").mkdir(exist_ok=True)
                fresh = common.write_config(folder / "fresh", build_keys(folder, server.url, generation) | {"web": web})
                fresh.replace(daemon.config)
                daemon.send(signal.SIGHUP)
    finally:
        if daemon.stop() != 0:
            raise SystemExit(f"the daemon did not end in order: {daemon.log.read_text()[-2000:]}")
    with closing(sqlite3.connect(folder / "data" / "history.db")) as connection:
        unknowns, spans = connection.execute("SELECT sum(kind = 'unknown'), count(*) FROM spans").fetchone()
    samples[-1] = replace(samples[-1], unknowns=unknowns, findings=spans - unknowns)
    return samples


def _sample(seconds: float, daemon: common.Agent, metrics: common.Metrics, folder: Path, world: World) -> Sample:
    # An incident's alert names the replica with which it began for as long as the incident lasts.
    current = " ".join(name for name in metrics if not name.startswith("sizewatch_incident"))
    history, blocks = folder / "data" / "history.db", folder / "blocks"
    looked_at, count = map(int, blocks.read_text().split()) if blocks.exists() else (0, 0)
    mebibytes, files, threads = daemon.size()
    return Sample(
        seconds=seconds,
        cycles=int(common.total(metrics, "sizewatch_cycles_total")),
        rss_bytes=round(mebibytes * 2**20),
        files=files,
        threads=threads,
        series=len(metrics),
        generations=len(set(re.findall(r'replica="pod-(\d+)-', current))),
        defects=int(common.total(metrics, "sizewatch_cycle_errors_total")),
        looked_at=looked_at,
        blocks=count,
        history_bytes=history.stat().st_size if history.exists() else 0,
        log_bytes=daemon.log.stat().st_size,
        reloads=int(common.total(metrics, "sizewatch_config_reloads_total")),
        posts=world.posts,
    )


def main() -> int:
    options = common.build_parser(__doc__, minutes=10.0, cycles=WEEK_CYCLES).parse_args()
    with tempfile.TemporaryDirectory(prefix="sizewatch-soak-") as name:
        samples = soak_standalone(options.minutes, Path(name), options.cycles)
    return int(not print_bounds(samples))


if __name__ == "__main__":
    raise SystemExit(main())
