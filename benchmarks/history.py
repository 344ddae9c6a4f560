"""What a history costs: on disk by replica and day, each minute, each hour, and when a report is made of it.

    python benchmarks/history.py [--replicas 20] [--days 2] [--folder DIR]

A real vLLM's minute (`agent/demo/recordings`) is scaled to a load that follows day and week, its counts drawn again, and
booked minute by minute by the daemon's own writer. Prints the size of each table and what it will be after its retention, how
long readers take, and time and memory of `sizewatch report`.
"""

from __future__ import annotations

import math
import os
import random
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import common
import recorded
from common import PLAN, TIER

from agent.config.files import load_plan
from agent.history.schema import HOURS, MINUTES, QUARTERS
from agent.history.service import HistoryService
from agent.history.store import HistoryStore
from agent.scrape.scrapers import PageReader
from agent.sources.recording import load, scrapes
from rules.evaluator.observation import ClosedMinute
from rules.plan.load_bins import TierContext, bin_window, build_tier_context
from rules.plan.schema import plan_version
from rules.replicas.state import ScrapeTrack, record_success
from rules.telemetry.windows import Window, sum_windows

HOUR, DAY = 3600, 86_400
REPORT_SECONDS, REPORT_MIB = 20.0, 300.0
REPLICA_BYTES, TIER_DAY_BYTES = 6_500_000, 400_000
"""Stated in docs/history.md: of minutes and quarters of a replica, and of a tier's hours and demand a day."""


def recorded_windows() -> Iterator[Window]:
    recording, _ = load(recorded.folder("steady_quiet"))
    reader, track = PageReader(recording.targets[0].engine), ScrapeTrack()
    for scrape in scrapes(recording, []):
        if scrape.body is not None:
            track, window = record_success(track, reader.read(scrape.body, scrape.t))
            if window is not None and window.covered_seconds > 0:
                yield window


class Traffic:
    """Minutes of replicas at a load, drawn from a recorded minute."""

    def __init__(self, context: TierContext, version: str, replicas: int) -> None:
        assert context.curve is not None
        self._curve, self._version = context.curve, version
        self._replicas = tuple(f"vllm-{number}" for number in range(replicas))
        self._chance = random.Random(1)
        self._base = sum_windows(recorded_windows())

    def minutes(self, t: float) -> list[ClosedMinute]:
        """Return the minute from `t` (unix seconds) of all replicas."""
        minutes = []
        for replica in self._replicas:
            binned = bin_window(self._window(t), self._curve, replica)
            minutes.append(ClosedMinute(tier=TIER, plan_version=self._version, slice=binned))
        return minutes

    def _window(self, t: float) -> Window:
        """Return a minute at a share of the benchmark's top load, by hour and weekday, and by chance."""
        base, chance = self._base, self._chance
        day = 0.5 - 0.5 * math.cos(2 * math.pi * (t % DAY) / DAY)
        weekday = 0.6 if int(t // DAY + 4) % 7 in (0, 6) else 1.0
        load = (0.15 + 0.7 * day * weekday) * chance.lognormvariate(0.0, 0.12)
        start, end = (round(t + at + chance.uniform(0.0, 0.02), 3) for at in (0.0, 60.0))
        covered = end - start
        share = load * self._curve.points[-1].completed_rps * covered / base.counters["requests_finished"]
        histograms = {}
        for name, parts in base.histograms.items():
            scaled = []
            for part in parts:
                total = (part.total or 0.0) * share * chance.gauss(1.0, 0.03)
                scaled.append(
                    replace(part, counts=tuple(self._draw(count * share) for count in part.counts), total=total)
                )
            histograms[name] = tuple(scaled)
        gauges = {}
        for name, gauge in base.gauges.items():
            integral = gauge.integral / gauge.seconds * covered
            if name != "engine_awake":
                integral *= share * chance.gauss(1.0, 0.05)
            gauges[name] = replace(gauge, integral=integral, seconds=covered, samples=4.0)
        counters = {name: self._draw(value * share) for name, value in base.counters.items()}
        spans = {"start": start, "end": end, "expected_seconds": covered, "covered_seconds": covered}
        return replace(base, **spans, counters=counters, histograms=histograms, gauges=gauges)

    def _draw(self, mean: float) -> float:
        """Return a whole number near the mean, as far as a Poisson count is from it."""
        return float(max(0, round(self._chance.gauss(mean, math.sqrt(mean))))) if mean > 0 else 0.0


def main() -> int:
    """Print the figures. Return 1 where a goal is not met."""
    parser = common.build_parser(__doc__)
    parser.add_argument("--replicas", type=int, default=20)
    parser.add_argument("--days", type=float, default=2.0)
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    keys = load_plan(PLAN).tiers[TIER]
    context, version = build_tier_context(TIER, keys), plan_version(keys)
    traffic = Traffic(context, version, options.replicas)
    with ExitStack() as stack:
        folder = options.folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sizewatch-history-")))
        path, now = folder / "history.db", time.time() // DAY * DAY
        with HistoryStore(path) as store:
            _book(store, traffic, now, options.days)
            began = time.monotonic()
            HistoryService(lambda: store).long_answers({TIER: context}, {TIER: version}, now)
            print(f"rules over days: {time.monotonic() - began:.2f} s")
            began = time.monotonic()
            store.prune(now + HOUR)
            print(f"retention of an hour: {time.monotonic() - began:.2f} s")
        met = [
            *_print_size(path, options.replicas, options.days),
            *_measure_report(folder, f"{math.ceil(options.days)}d"),
        ]
    return int(not all(met))


def _book(store: HistoryStore, traffic: Traffic, now: float, days: float) -> None:
    """Book the days before `now`, and print what a minute takes."""
    written, booking, cpu, longest = _written_bytes(), 0.0, 0.0, 0.0
    count = round(days * 1440)
    for number in range(count):
        minutes = traffic.minutes(now - 60.0 * (count - number))
        began, began_cpu = time.monotonic(), time.process_time()
        store.book(minutes)
        took = time.monotonic() - began
        booking, cpu, longest = booking + took, cpu + time.process_time() - began_cpu, max(longest, took)
    each = (_written_bytes() - written) / count / 1000
    print(f"booking a minute: {booking / count * 1e3:.0f} ms, {cpu / count * 1e3:.0f} ms of CPU, {each:.0f} kB written")
    print(f"the longest booking: {longest * 1e3:.0f} ms")


def _print_size(path: Path, replicas: int, days: float) -> list[bool]:
    """Print each table and its size after its retention. Return whether they keep to what the page on history states."""
    query = "SELECT name, sum(pgsize) FROM dbstat GROUP BY name HAVING sum(pgsize) > 20000 ORDER BY 2 DESC"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        sizes = dict(connection.execute(query).fetchall())
    for name, size in sizes.items():
        print(f"  {name:28} {size / 1e6:8.2f} MB")
    of_replica, of_day = 0.0, (sizes.get("hours", 0) + sizes.get("demand", 0)) / days
    for kind in (MINUTES, QUARTERS):
        kept = kind.keep_seconds / DAY
        of_replica += sizes.get(kind.table, 0) / min(days, kept) * kept / replicas
    print(f"  hours are kept for {HOURS.keep_seconds / DAY:.0f} days")
    return [
        common.print_goal("minutes and quarters of a replica, MB", of_replica / 1e6, REPLICA_BYTES / 1e6),
        common.print_goal("hours and demand of a tier and day, MB", of_day / 1e6, TIER_DAY_BYTES / 1e6),
    ]


def _measure_report(folder: Path, since: str) -> list[bool]:
    """Run the command as a person does. Time and memory are the kernel's count for that process."""
    targets = [{"url": "http://127.0.0.1:9/metrics", "tier": TIER}]
    config = common.write_config(folder, {"plan": str(PLAN), "data_dir": ".", "targets": targets})
    command = [sys.executable, "-m", "agent", "report", "-c", str(config), "--since", since]
    command += ["--out", str(folder / "report")]
    began = time.monotonic()
    process = subprocess.Popen(command, cwd=common.ROOT, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise SystemExit(f"report ended with {process.returncode}")
    return [
        common.print_goal(f"report --since {since}, wall seconds", time.monotonic() - began, REPORT_SECONDS),
        common.print_goal(f"report --since {since}, peak MiB", used.ru_maxrss / 1024, REPORT_MIB, "{:.0f}"),
    ]


def _written_bytes() -> int:
    """Return the bytes that this process has had written to disk."""
    lines = Path("/proc/self/io").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("write_bytes"))


if __name__ == "__main__":
    sys.exit(main())
