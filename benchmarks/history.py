"""What a history of a large fleet costs: on disk, each minute, each hour, and when a report is made of it.

    python benchmarks/history.py [--replicas 200] [--weeks 13] [--folder DIR] [--only-size]

Fills a history (`benchmarks/history_filling.py`; some minutes and about a gigabyte of disk), then prints its size by table, what
a minute's booking and an hour's upkeep take, the longest time that the file was held, how long readers take, and the time and
memory of `sizewatch report`, as a process of its own. Each figure that has a goal stands beside it. With --folder it is kept,
and a folder that is filled already is measured again without filling (the last part, what the daemon does, has changed it by then).
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from history_filling import DAY, HOUR, SHARES, WEEK, Filling, Tier, fleet

from agent.history.service import HistoryService
from agent.history.store import HistoryStore

REPORT_SECONDS, REPORT_MIB = 20.0, 300.0
REPLICA_BYTES, TIER_DAY_BYTES = 6_500_000, 400_000
"""Stated in docs/history.md."""

FEWEST = 10
"""Replicas that fill three tiers."""

MINUTES_BOOKED = 10
MIB = 1024 * 1024


class Timed(HistoryStore):
    """A store that remembers how long it held the file at most."""

    longest = 0.0

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with super()._transaction():
            began = time.monotonic()
            yield
            done = time.monotonic()
        # With the commit, which syncs.
        self.longest = max(self.longest, time.monotonic() - min(began, done))


def main() -> int:
    """Prints the figures; 1 where a goal is not met."""
    options = _options()
    if options.part:
        print(json.dumps(_daemon(options.folder, options.replicas, options.now, options.weeks)))
        return 0
    with ExitStack() as ends:
        folder = options.folder or Path(ends.enter_context(tempfile.TemporaryDirectory(prefix="sizewatch-history-")))
        folder.mkdir(parents=True, exist_ok=True)
        return _measure(folder, options.replicas, options.weeks, options.only_size)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replicas", type=int, default=200)
    parser.add_argument("--weeks", type=float, default=13.0)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--only-size", action="store_true", help="fill, print the size, and end")
    parser.add_argument("--part", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--now", type=float, default=0.0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.replicas < FEWEST:
        parser.error(f"--replicas: at least {FEWEST}, for three tiers")
    return options


def _measure(folder: Path, replicas: int, weeks: float, only_size: bool) -> int:
    path, now = folder / "history.db", time.time()
    if not path.exists():
        began = time.monotonic()
        tiers = fleet(folder, replicas)
        with HistoryStore(path) as store:
            Filling(store, tiers, now, weeks).run()
        print(f"filled within {time.monotonic() - began:.0f} s", flush=True)
    met = [_size(path, replicas, weeks)]
    if only_size:
        return int(not all(met))
    _readers(path, fleet(folder, replicas), now, weeks)
    for since in (f"{round(weeks * 7)}d", "7d"):
        met.append(_report(folder, since))
    _told_daemon(folder, replicas, weeks, now)
    return int(not all(met))


def _size(path: Path, replicas: int, weeks: float) -> bool:
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        tables = connection.execute(
            "SELECT CASE WHEN name LIKE 'sqlite_autoindex_%' THEN 'keys' ELSE name END AS kind, sum(pgsize) AS size"
            " FROM dbstat GROUP BY kind HAVING size > 100000 ORDER BY size DESC"
        ).fetchall()
        rows = [
            (table, *connection.execute(f"SELECT count(*), avg(length(body)) FROM {table}").fetchone())
            for table in ("minutes", "quarters", "hours")
        ]
    connection.close()
    for name, size in tables:
        print(f"  {name:12} {size / MIB:8.1f} MiB")
    for table, count, size in rows:
        print(f"  {table:12} {count:8} rows, {size:5.0f} bytes each")
    total = path.stat().st_size
    allowed = replicas * REPLICA_BYTES + weeks * 7 * len(SHARES) * TIER_DAY_BYTES
    return _told(f"{replicas} replicas in {len(SHARES)} tiers, MiB", total / MIB, round(allowed / MIB), "{:.0f}")


def _readers(path: Path, tiers: tuple[Tier, ...], now: float, weeks: float) -> None:
    tier = tiers[0].name
    today = now // DAY * DAY
    with HistoryStore.open_reader(path) as reader:
        questions: tuple[tuple[str, Callable[[], object]], ...] = (
            ("hours of a tier, a day", lambda: reader.bins(tier, today - DAY, today)),
            (
                "minutes of a tier, an hour",
                lambda: reader.minutes(tier, today - DAY, today - DAY + HOUR),
            ),
            (
                "quarters of a tier, an hour",
                lambda: reader.replica_bins(tier, today - DAY, today - DAY + HOUR),
            ),
            ("demand of a tier, all weeks", lambda: reader.demand(tier, now - weeks * WEEK, now)),
            ("plan versions, all weeks", lambda: reader.plan_versions(tier, now - weeks * WEEK, now)),
        )
        for name, ask in questions:
            began = time.monotonic()
            ask()
            print(f"  read {name}: {time.monotonic() - began:.3f} s")


def _report(folder: Path, since: str) -> bool:
    """The command as a person runs it; time and memory are the kernel's count for that process."""
    command = [sys.executable, "-m", "agent", "report", "-c", str(folder / "sizewatch.yaml"), "--since", since]
    began = time.monotonic()
    process = subprocess.Popen([*command, "--out", str(folder / f"report-{since}")], stdout=subprocess.PIPE)
    assert process.stdout is not None
    said = process.stdout.read().decode()
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    wall, cpu = time.monotonic() - began, used.ru_utime + used.ru_stime
    if process.returncode != 0:
        raise SystemExit(f"report ended with {process.returncode}: {said}")
    quick = _told(f"report --since {since}: {cpu:.1f} s of CPU, wall seconds", wall, REPORT_SECONDS, "{:.1f}")
    return _told(f"report --since {since}: peak memory, MiB", used.ru_maxrss / 1024, REPORT_MIB, "{:.0f}") and quick


def _told_daemon(folder: Path, replicas: int, weeks: float, now: float) -> None:
    command = [sys.executable, __file__, "--part", "--folder", str(folder), "--replicas", str(replicas)]
    done = subprocess.run([*command, "--weeks", str(weeks), "--now", str(now)], stdout=subprocess.PIPE, check=True)
    for name, value in json.loads(done.stdout).items():
        print(f"  {name}: {value}")


def _daemon(folder: Path, replicas: int, now: float, weeks: float) -> dict[str, str]:
    """What the daemon's side costs, in a process of its own."""
    tiers = fleet(folder, replicas)
    with Timed(folder / "history.db") as store:
        filling = Filling(store, tiers, now, weeks)
        minutes = [filling.minute(now // 60 * 60 + 60.0 * number) for number in range(MINUTES_BOOKED)]
        before = _memory(), _written(), time.monotonic(), time.process_time()
        for minute in minutes:
            store.book(minute)
        wall, cpu = (
            (time.monotonic() - before[2]) / MINUTES_BOOKED,
            (time.process_time() - before[3]) / MINUTES_BOOKED,
        )
        written = (_written() - before[1]) / MINUTES_BOOKED / 1e3
        found = {
            "booking a minute": f"{wall * 1e3:.0f} ms, {cpu * 1e3:.0f} ms of CPU, {written:.0f} kB written",
            "a minute held the file at most": f"{store.longest * 1e3:.0f} ms",
        }
        store.longest, began = 0.0, time.monotonic()
        store.prune(now + HOUR)
        found["retention of an hour"] = f"{time.monotonic() - began:.2f} s"
        keeping = HistoryService(lambda: store)
        began = time.monotonic()
        keeping.long_answers({one.name: one.context for one in tiers}, {one.name: one.version for one in tiers}, now)
        found["rules over days"] = f"{time.monotonic() - began:.2f} s"
        found["memory: before, most"] = f"{before[0]:.0f}, {_memory():.0f} MiB"
    return found


def _memory() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _written() -> int:
    """Bytes that this process has had written to disk."""
    with open("/proc/self/io", encoding="ascii") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("write_bytes"))


def _told(name: str, value: float, goal: float, style: str) -> bool:
    met = value <= goal
    print(f"{name} {style.format(value)}, at most {goal:g}: {'met' if met else 'NOT MET'}", flush=True)
    return met


if __name__ == "__main__":
    sys.exit(main())
