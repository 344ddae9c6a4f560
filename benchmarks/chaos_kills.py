"""kill -9 at random instants: a real daemon, its history read after each kill and compared with what it had acknowledged.

Each life is forked by a server that has loaded everything: it begins in some ten milliseconds. Time runs 600 times as
fast, so that many kills come within a booking. A life writes to a pipe before and after each booking. After the kill every
sum and the demand must hold what was acknowledged, to the last request, and of a booking in progress all or nothing.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import sqlite3
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import common
from chaos_servers import Clock, Engine
from common import TIER
from waiting import free_port

from agent.history.schema import group_demand
from agent.history.store import HistoryStore

SPEED = 600.0
REPLICAS = 2
SHORTEST_LIFE_SECONDS, LONGEST_LIFE_SECONDS = 0.05, 1.2
BETWEEN_LIVES_SECONDS = 600.0
REQUESTS = "requests_finished"


@dataclass(frozen=True, slots=True)
class Booking:
    """Finished requests of one booking, and the same as demand counts them (`rules.telemetry.arrivals`, to halves)."""

    requests: float = 0.0
    demand: float = 0.0


def read_bookings(pipe: Connection) -> tuple[list[Booking], Booking]:
    """Return the acknowledged bookings of a life that was killed, and that in progress."""
    acknowledged, in_progress = [], Booking()
    with contextlib.suppress(EOFError):
        while True:
            booking = pipe.recv()
            if booking is None:
                acknowledged.append(in_progress)
            in_progress = booking or Booking()
    return acknowledged, in_progress


def live(config: Path, begin: float, pipe: Connection, log: Path) -> None:
    """Run the daemon in a process of its own, until it is killed. It writes to the pipe before and after each booking."""
    from fast_daemon import build_daemon

    from agent.daemon import jobs

    book = HistoryStore.book

    def announced_book(self: HistoryStore, minutes: Iterable[object] = (), *others: object, **named: object) -> None:
        bookings = tuple(minutes)
        amount = sum(part.slice.window.counters.get(REQUESTS, 0.0) for part in bookings)
        parts = group_demand(bookings).values()
        pipe.send(Booking(amount, sum(part.completed for minute in parts for part in minute)))
        book(self, bookings, *others, **named)
        pipe.send(None)

    HistoryStore.book = announced_book
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(output, 1)
    os.dup2(output, 2)
    # Read once, when the daemon is made: upkeep comes every tenth of a second.
    jobs.SECONDS[jobs.UPKEEP] = 0.1 * SPEED
    build_daemon(config, Clock(SPEED, begin)).run()


def sum_history(path: Path) -> dict[str, float]:
    """Return finished requests by every sum."""
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


def kill_lives(folder: Path, seconds: float, most: int, chance: random.Random) -> list[str]:
    """Kill lives until `seconds` or `most` are over. Return what did not hold."""
    folder.mkdir(parents=True, exist_ok=True)
    clock = Clock(SPEED, time.time())
    engines = [Engine(clock, 15.0 * n) for n in range(REPLICAS)]
    targets = [{"url": engine.url, "tier": TIER, "replica": f"r{n}"} for n, engine in enumerate(engines)]
    keys = {"data_dir": "data", "scrape_interval": "15s", "scrape_timeout": "1s", "gpus": {"source": "none"}}
    keys |= {"forecast": {"enabled": False}, "web": {"listen": f"127.0.0.1:{free_port()}"}}
    config = common.write_config(folder, {"plan": str(common.PLAN), "targets": targets, **keys})
    # The server that forks finds the modules by it.
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)
    multiprocessing.set_forkserver_preload(["__main__", "fast_daemon"])
    try:
        return _kill_lives(config, seconds, most, chance)
    finally:
        del os.environ["PYTHONPATH"]
        for engine in engines:
            engine.die()


def _kill_lives(config: Path, seconds: float, most: int, chance: random.Random) -> list[str]:
    folder, failed, context = config.parent, list[str](), multiprocessing.get_context("forkserver")
    history, log = folder / "data" / "history.db", folder / "log"
    began, now = time.monotonic(), time.time()
    before = sum_history(history)
    count = bookings = within_booking = 0
    while count < most and time.monotonic() - began < seconds:
        reader, writer = context.Pipe(duplex=False)
        process = context.Process(target=live, args=(config, now, writer, log))
        process.start()
        writer.close()
        started = time.monotonic()
        time.sleep(chance.uniform(SHORTEST_LIFE_SECONDS, LONGEST_LIFE_SECONDS))
        process.kill()
        process.join()
        with reader:
            acknowledged, in_progress = read_bookings(reader)
        now += (time.monotonic() - started) * SPEED + chance.uniform(0.0, BETWEEN_LIVES_SECONDS)
        after = sum_history(history)
        for name, value in after.items():
            field = "demand" if name == "demand" else "requests"
            missing = value - before[name] - sum(getattr(booking, field) for booking in acknowledged)
            if min(abs(missing), abs(missing - getattr(in_progress, field))) > 1e-3:
                failed.append(f"kill {count}: {name} is off by {missing}: {acknowledged}, {in_progress}")
        if len({amount for name, amount in after.items() if name != "demand"}) != 1:
            failed.append(f"kill {count}: the sums differ: {after}")
        before, count = after, count + 1
        bookings, within_booking = bookings + len(acknowledged), within_booking + bool(in_progress.requests)
        if count % 20 == 0:
            failed += check_file(history, "quick_check")
    failed += check_file(history, "integrity_check")
    if "Traceback" in (text := log.read_text(errors="replace")):
        failed.append(f"a life logged a traceback: {text[text.index('Traceback') :][:2000].splitlines()[-1]}")
    if not bookings:
        failed.append("no life booked anything")
    print(f"{count} kills, {within_booking} within a booking; {bookings} bookings, {before['hours']:.0f} requests")
    return failed


def check_file(history: Path, check: str) -> list[str]:
    """Return what SQLite finds wrong with the file."""
    if not history.exists():
        return []
    with contextlib.closing(sqlite3.connect(f"file:{history}?mode=ro", uri=True)) as connection:
        rows = connection.execute(f"PRAGMA {check}").fetchall()
    return [] if rows == [("ok",)] else [f"{check}: {rows[:3]}"]
