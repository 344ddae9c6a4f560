"""What a history costs: on disk by replica and day, each minute, each hour, and when a report is made of it.

    python benchmarks/history.py [--replicas 20] [--days 2] [--folder DIR]

Minutes of engines that are simulated as for `sizewatch demo --history` are booked by the daemon's own writer. Prints the
size of each table, what it will be after its retention, and time and memory of `sizewatch report`.
"""

from __future__ import annotations

import math
import resource
import sqlite3
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, closing
from pathlib import Path

import common

from agent.config.files import load_plan
from agent.demo.simulation.scenario import Pattern, TierRun, TierScenario
from agent.demo.simulation.weeks import WatchedTier
from agent.history.schema import MINUTES, QUARTERS
from agent.history.store import HistoryStore

PLAN, TIER = common.ROOT / "agent" / "demo" / "simulation" / "plan.yaml", "chat-h100"
HOUR, DAY = 3600, 86_400
REPORT_SECONDS, REPORT_MIB = 20.0, 300.0
REPLICA_BYTES, TIER_DAY_BYTES = 6_500_000, 400_000
"""Stated in docs/history.md: of minutes and quarters of a replica, and of a tier's hours and demand a day."""


def simulate_tier(replicas: int, begin: float) -> WatchedTier:
    """Return a tier from `begin` on (unix seconds): simulated engines at a load that follows day and week, and chance."""
    plan = load_plan(PLAN).tiers[TIER]
    assert plan.curve is not None
    busiest = 0.85 * plan.curve.points[-1].completed_rps * replicas
    scenario = TierScenario(tier=TIER, replicas=replicas, pattern=Pattern(busiest=busiest, peak_hour=12.0))
    return WatchedTier(TierRun(scenario, plan, begin, 1), plan, begin)


def main() -> int:
    """Print the figures. Return 1 where a goal is not met."""
    options = common.build_parser(__doc__, replicas=20, days=2.0, folder=Path).parse_args()
    with ExitStack() as stack:
        folder = options.folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sizewatch-history-")))
        path, now = folder / "history.db", time.time() // DAY * DAY
        with HistoryStore(path) as store:
            _book(store, options.replicas, now, options.days)
            store.prune(now + HOUR)
        met = _print_size(path, options.replicas, options.days)
        met += _measure_report(folder, f"{math.ceil(options.days)}d")
    return int(not all(met))


def _book(store: HistoryStore, replicas: int, now: float, days: float) -> None:
    """Book the days before `now`, and print what a minute takes."""
    written, wall, cpu = _written_bytes(), 0.0, 0.0
    count = round(days * 1440)
    begin = now - 60.0 * count
    tier = simulate_tier(replicas, begin)
    for number in range(1, count + 1):
        t = begin + 60.0 * number
        tier.run.advance(t)
        tier.watch(t)
        began, began_cpu = time.monotonic(), time.process_time()
        store.book(tier.minutes)
        wall, cpu = wall + time.monotonic() - began, cpu + time.process_time() - began_cpu
        tier.minutes.clear()
    each = (_written_bytes() - written) / count / 1000
    print(f"booking a minute: {wall / count * 1e3:.0f} ms, {cpu / count * 1e3:.0f} ms of CPU, {each:.0f} kB written")


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
    return [
        common.print_goal("minutes and quarters of a replica, MB", of_replica / 1e6, REPLICA_BYTES / 1e6),
        common.print_goal("hours and demand of a tier and day, MB", of_day / 1e6, TIER_DAY_BYTES / 1e6),
    ]


def _measure_report(folder: Path, since: str) -> list[bool]:
    """Run the command as a person does. Memory is the kernel's count for that process, the only child."""
    targets = [{"url": "http://127.0.0.1:9/metrics", "tier": TIER}]
    config = common.write_config(folder, {"plan": str(PLAN), "data_dir": ".", "targets": targets})
    command = [sys.executable, "-m", "agent", "report", "-c", str(config), "--since", since]
    command += ["--out", str(folder / "report")]
    began = time.monotonic()
    subprocess.run(command, cwd=common.ROOT, stdout=subprocess.DEVNULL, check=True)
    seconds, used = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return [
        common.print_goal(f"report --since {since}, wall seconds", seconds, REPORT_SECONDS),
        common.print_goal(f"report --since {since}, peak MiB", used.ru_maxrss / 1024, REPORT_MIB, "{:.0f}"),
    ]


def _written_bytes() -> int:
    """Return the bytes that this process has had written to disk."""
    lines = Path("/proc/self/io").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("write_bytes"))


if __name__ == "__main__":
    sys.exit(main())
