"""kill -9 at random instants: a real daemon, its history read after each kill and compared with what it had acknowledged.

    python benchmarks/chaos_kills.py FOLDER SECONDS KILLS SEED URL...     (begun by benchmarks/chaos.py)

Each life is a fork of this process, which has loaded everything: it begins in some ten milliseconds. Time runs 600 times as
fast, so that many kills come within a booking. A life writes to a pipe before and after each booking. After the kill every
sum and the demand must hold what was acknowledged, to the last request, and of a booking in progress all or nothing.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
import traceback
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import common
from chaos_servers import Clock, Engine
from common import TIER
from waiting import free_port

SPEED = 600.0
REPLICAS = 2
SHORTEST_LIFE_SECONDS, LONGEST_LIFE_SECONDS = 0.05, 1.2
BETWEEN_LIVES_SECONDS = 600.0
REQUESTS = "requests_finished"


def kill_lives(folder: Path, seconds: float, most: int, chance: random.Random) -> list[str]:
    """Return what did not hold. The engines live here, the lives and their killer in a process without threads."""
    folder.mkdir(parents=True, exist_ok=True)
    clock = Clock(SPEED, time.time())
    engines = [Engine(clock, 15.0 * n) for n in range(REPLICAS)]
    words = (str(folder), str(seconds), str(most), str(chance.randrange(1_000_000)), *(e.url for e in engines))
    failed = []
    with subprocess.Popen([sys.executable, __file__, *words], stdout=subprocess.PIPE, text=True) as killer:
        assert killer.stdout is not None
        for line in killer.stdout:
            print(line, end="", flush=True)
            if line.startswith("FAILED "):
                failed.append(line.strip().removeprefix("FAILED "))
    for engine in engines:
        engine.die()
    if killer.returncode:
        failed.append(f"the killer ended with {killer.returncode}")
    return failed


@dataclass(frozen=True, slots=True)
class Booking:
    """Finished requests of one booking, and the same as demand counts them (`rules.telemetry.arrivals`, to halves)."""

    requests: float = 0.0
    demand: float = 0.0


def read_bookings(lines: Iterable[str]) -> tuple[list[Booking], Booking]:
    """Return the acknowledged bookings of a life, and that in progress when it was killed."""
    acknowledged, in_progress = [], Booking()
    for line in lines:
        if line == "done\n":
            acknowledged.append(in_progress)
            in_progress = Booking()
        elif line.endswith("\n"):
            in_progress = Booking(*map(float, line.split()))
    return acknowledged, in_progress


def announce_bookings(end: int) -> None:
    """Write to a pipe before and after each booking of this process, from now on."""
    from agent.history.schema import group_demand
    from agent.history.store import HistoryStore

    book = HistoryStore.book

    def announced_book(self: HistoryStore, minutes: Iterable[object] = (), *others: object, **named: object) -> None:
        bookings = tuple(minutes)
        amount = sum(part.slice.window.counters.get(REQUESTS, 0.0) for part in bookings)  # type: ignore[attr-defined]
        parts = group_demand(bookings).values()  # type: ignore[arg-type]
        served = sum(part.completed for minute in parts for part in minute)
        os.write(end, f"{amount!r} {served!r}\n".encode())
        book(self, bookings, *others, **named)  # type: ignore[arg-type]
        os.write(end, b"done\n")

    HistoryStore.book = announced_book  # type: ignore[method-assign,assignment]


def live(config: Path, begin: float, end: int, log: Path) -> None:
    """Run the daemon in a process of its own, until it is killed."""
    from fast_daemon import build_daemon

    from agent.daemon import jobs

    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(output, 1)
    os.dup2(output, 2)
    announce_bookings(end)
    # Read once, when the daemon is made: upkeep comes every tenth of a second.
    jobs.SECONDS[jobs.UPKEEP] = 0.1 * SPEED
    build_daemon(config, Clock(SPEED, begin)).run()


def sum_history(path: Path) -> dict[str, float]:
    """Return finished requests by every sum."""
    from agent.history.store import HistoryStore

    if not path.exists() or not path.stat().st_size:
        return dict.fromkeys(("minutes", "quarters", "hours", "demand"), 0.0)
    with HistoryStore.open_reader(path) as reader:
        rows = {"minutes": reader.minutes, "quarters": reader.replica_bins, "hours": reader.bins}
        sums = {}
        for name, read in rows.items():
            binned = read(TIER, 0.0, 1e11)
            sums[name] = sum(part.window.counters.get(REQUESTS, 0.0) for part in binned)
        (sums["demand"],) = reader._connection.execute("SELECT coalesce(sum(completed), 0.0) FROM demand").fetchone()
    # Demand is spread over minutes in fractions of requests.
    return {name: round(value, 6) for name, value in sums.items()}


def main(folder: Path, seconds: float, most: int, chance: random.Random, urls: list[str]) -> None:
    targets = [{"url": url, "tier": TIER, "replica": f"r{n}"} for n, url in enumerate(urls)]
    keys = {"data_dir": "data", "scrape_interval": "15s", "scrape_timeout": "1s", "gpus": {"source": "none"}}
    keys |= {"forecast": {"enabled": False}, "web": {"listen": f"127.0.0.1:{free_port()}"}}
    config = common.write_config(folder, {"plan": str(common.PLAN), "targets": targets, **keys})
    history, log = folder / "data" / "history.db", folder / "log"
    began, now = time.monotonic(), time.time()
    before = sum_history(history)
    count = bookings = within_booking = 0
    while count < most and time.monotonic() - began < seconds:
        acknowledged, in_progress, lasted = kill_one_life(config, now, log, chance)
        now += lasted * SPEED + chance.uniform(0.0, BETWEEN_LIVES_SECONDS)
        after = sum_history(history)
        for name, value in after.items():
            field = "demand" if name == "demand" else "requests"
            missing = value - before[name] - sum(getattr(booking, field) for booking in acknowledged)
            if min(abs(missing), abs(missing - getattr(in_progress, field))) > 1e-3:
                print(f"FAILED kill {count}: {name} is off by {missing}: {acknowledged}, {in_progress}", flush=True)
        if len({amount for name, amount in after.items() if name != "demand"}) != 1:
            print(f"FAILED kill {count}: the sums differ: {after}", flush=True)
        before, count = after, count + 1
        bookings, within_booking = bookings + len(acknowledged), within_booking + bool(in_progress.requests)
        if count % 20 == 0:
            check_file(history, "quick_check")
    check_file(history, "integrity_check")
    if "Traceback" in (text := log.read_text(errors="replace")):
        print(f"FAILED a life logged a traceback: {text[text.index('Traceback') :][:2000].splitlines()[-1]}")
    if not bookings:
        print("FAILED no life booked anything")
    print(f"{count} kills, {within_booking} within a booking; {bookings} bookings, {before['hours']:.0f} requests")


def kill_one_life(config: Path, now: float, log: Path, chance: random.Random) -> tuple[list[Booking], Booking, float]:
    """Return the acknowledged bookings, that in progress, and how long the life lasted in seconds."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read_end)
        try:
            live(config, now, write_end, log)
        except BaseException:  # noqa: BLE001 - it is in the log, which is read
            traceback.print_exc()
        finally:
            os._exit(1)
    os.close(write_end)
    started = time.monotonic()
    time.sleep(chance.uniform(SHORTEST_LIFE_SECONDS, LONGEST_LIFE_SECONDS))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    with os.fdopen(read_end) as lines:
        return *read_bookings(lines), time.monotonic() - started


def check_file(history: Path, check: str) -> None:
    if not history.exists():
        return
    with contextlib.closing(sqlite3.connect(f"file:{history}?mode=ro", uri=True)) as connection:
        rows = connection.execute(f"PRAGMA {check}").fetchall()
    if rows != [("ok",)]:
        print(f"FAILED {check}: {rows[:3]}", flush=True)


if __name__ == "__main__":
    import agent.daemon.assembly
    import agent.daemon.daemon
    import agent.history.service
    import agent.http_server.server  # noqa: F401 - loaded once for all lives

    main(Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]), random.Random(int(sys.argv[4])), sys.argv[5:])
