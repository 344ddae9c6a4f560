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
EVER = (0.0, 1e11)


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


@dataclass(slots=True)
class Life:
    """What one life wrote before it was killed: requests that were booked, and those of a booking in progress.

    `served` counts the same as demand does (`rules.telemetry.arrivals`), rounded to halves.
    """

    booked: float = 0.0
    served: float = 0.0
    bookings: int = 0
    in_progress: float = 0.0
    served_in_progress: float = 0.0

    def read(self, lines: Iterable[str]) -> Life:
        """Add the lines. One that was cut off was not written."""
        for line in lines:
            word, _, values = line.partition(" ")
            if not line.endswith("\n"):
                break
            if word == "begin":
                self.in_progress, self.served_in_progress = map(float, values.split())
            elif word == "done\n":
                self.booked, self.in_progress, self.bookings = self.booked + self.in_progress, 0.0, self.bookings + 1
                self.served, self.served_in_progress = self.served + self.served_in_progress, 0.0
        return self


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
        os.write(end, f"begin {amount!r} {served!r}\n".encode())
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
        rows = {
            "minutes": reader.minutes(TIER, *EVER),
            "quarters": reader.replica_bins(TIER, *EVER),
            "hours": reader.bins(TIER, *EVER),
        }
        sums = {}
        for name, binned in rows.items():
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
        life, lasted = kill_one_life(config, now, log, chance)
        now += lasted * SPEED + chance.uniform(0.0, BETWEEN_LIVES_SECONDS)
        after = sum_history(history)
        for name, value in after.items():
            booked, in_progress = life.booked, life.in_progress
            if name == "demand":
                booked, in_progress = life.served, life.served_in_progress
            grown = value - before[name]
            if min(abs(grown - booked), abs(grown - booked - in_progress)) > 1e-3:
                print(f"FAILED kill {count}: {name} grew by {grown}, written: {life}", flush=True)
        if len({amount for name, amount in after.items() if name != "demand"}) != 1:
            print(f"FAILED kill {count}: the sums differ: {after}", flush=True)
        before, count = after, count + 1
        bookings, within_booking = bookings + life.bookings, within_booking + bool(life.in_progress)
        if count % 20 == 0:
            check_file(history, "quick_check")
    check_file(history, "integrity_check")
    if "Traceback" in (text := log.read_text(errors="replace")):
        print(f"FAILED a life logged a traceback: {text[text.index('Traceback') :][:2000].splitlines()[-1]}")
    if not bookings:
        print("FAILED no life booked anything")
    print(
        f"{count} kills: {bookings} bookings acknowledged, {within_booking} kills within a booking;"
        f" {before['hours']:.0f} requests in every sum"
    )


def kill_one_life(config: Path, now: float, log: Path, chance: random.Random) -> tuple[Life, float]:
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
        return Life().read(lines), time.monotonic() - started


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
