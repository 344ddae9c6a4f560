"""kill -9 at random instants: a real daemon, its history read after each kill and compared with what it had acknowledged.

    python benchmarks/chaos_kills.py FOLDER SECONDS KILLS SEED URL...     (begun by benchmarks/chaos.py)

Each life is a fork of this process, which has loaded everything: it begins in some ten milliseconds. Time runs 600 times as
fast, so that many kills come within a booking. A life tells through a pipe what it is about to book and what was booked. After
the kill every sum and the demand must hold what was acknowledged, to the last request, and of what was under way all or nothing.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import sqlite3
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
if __name__ == "__main__":
    sys.path[:0] = [str(ROOT)]
    sys.path.append(str(ROOT / "benchmarks"))

import yaml

SPEED = 600.0
REPLICAS = 2
SHORTEST_LIFE_SECONDS, LONGEST_LIFE_SECONDS = 0.05, 1.2
BETWEEN_LIVES_SECONDS = 600.0
FINISHED = "requests_finished"
TIER = "cpu-small"
EVER = (0.0, 1e11)


def kills(folder: Path, seconds: float, most: int, chance: random.Random, say: Callable[[str], None]) -> list[str]:
    """What did not hold. The engines live here, the lives and their killer in a process without threads."""
    from chaos_engine import Clock, Engine

    folder.mkdir(parents=True, exist_ok=True)
    clock = Clock(SPEED)
    engines = [Engine(clock, 15.0 * n) for n in range(REPLICAS)]
    words = (str(folder), str(seconds), str(most), str(chance.randrange(1_000_000)), *(e.url for e in engines))
    command = [sys.executable, str(Path(__file__)), *words]
    try:
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as killer:
            assert killer.stdout is not None
            told = [line.rstrip("\n") for line in killer.stdout]
    finally:
        for engine in engines:
            engine.die()
    for line in told:
        say(line)
    failed = [line.removeprefix("FAILED ") for line in told if line.startswith("FAILED ")]
    return failed + ([f"the killer ended with {killer.returncode}"] if killer.returncode else [])


@dataclass(slots=True)
class Life:
    """What one life told before it was killed: requests that were booked, and those of a booking that was under way."""

    booked: float = 0.0
    served: float = 0.0
    """The same as demand counts them (`rules.telemetry.arrivals`), rounded to halves."""
    bookings: int = 0
    under_way: float = 0.0
    served_under_way: float = 0.0


def read(lines: Iterable[str]) -> Life:
    """A line that was cut off is one that was not told."""
    life = Life()
    for line in lines:
        word, _, value = line.partition(" ")
        if not line.endswith("\n"):
            break
        if word == "begin":
            life.under_way, life.served_under_way = map(float, value.split())
        elif word == "done\n":
            life.booked, life.under_way, life.bookings = life.booked + life.under_way, 0.0, life.bookings + 1
            life.served, life.served_under_way = life.served + life.served_under_way, 0.0
    return life


def _tell(end: int) -> None:
    """From now on bookings of this process are told before and after."""
    from agent.history.codec import group_demand
    from agent.history.store import HistoryStore

    book = HistoryStore.book

    def told_book(self: HistoryStore, minutes: Iterable[object] = (), *others: object, **named: object) -> None:
        bookings = tuple(minutes)
        amount = sum(one.slice.window.counters.get(FINISHED, 0.0) for one in bookings)  # type: ignore[attr-defined]
        parts = group_demand(bookings).values()  # type: ignore[arg-type]
        served = sum(part.completed for minute in parts for part in minute)
        os.write(end, f"begin {amount!r} {served!r}\n".encode())
        book(self, bookings, *others, **named)  # type: ignore[arg-type]
        os.write(end, b"done\n")

    HistoryStore.book = told_book  # type: ignore[method-assign,assignment]


def _live(config: Path, begin: float, end: int, log: Path) -> None:
    """One life, in a process of its own, which ends by being killed."""
    from chaos_daemon import Clock, made

    from agent.daemon import jobs

    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(output, 1)
    os.dup2(output, 2)
    _tell(end)
    # Before the daemon is made, which reads it once: upkeep comes every tenth of a second.
    jobs.SECONDS[jobs.UPKEEP] = 0.1 * SPEED
    made(config, Clock(SPEED, time.monotonic(), begin), SPEED).run()


def held(path: Path) -> dict[str, float]:
    """Finished requests by every sum."""
    from agent.history.store import HistoryStore

    if not path.exists() or not path.stat().st_size:
        return dict.fromkeys(("minutes", "quarters", "hours", "demand"), 0.0)
    with HistoryStore.open_reader(path) as reader:
        several = {
            "minutes": reader.minutes(TIER, *EVER),
            "quarters": reader.replica_bins(TIER, *EVER),
            "hours": reader.bins(TIER, *EVER),
        }
        found = {
            name: sum(one.window.counters.get(FINISHED, 0.0) for one in binned) for name, binned in several.items()
        }
        (found["demand"],) = reader._connection.execute("SELECT coalesce(sum(completed), 0.0) FROM demand").fetchone()
        # Demand is spread over minutes in fractions of requests.
        return {name: round(value, 6) for name, value in found.items()}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as closing:
        return int(closing.getsockname()[1])


def _configuration(folder: Path, urls: list[str]) -> Path:
    data = {
        "plan": str(ROOT / "tests" / "plans" / "cpu-small.yaml"),
        "data_dir": "data",
        "scrape_interval": "15s",
        "scrape_timeout": "1s",
        "targets": [{"url": url, "tier": TIER, "replica": f"r{n}"} for n, url in enumerate(urls)],
        "gpus": {"source": "none"},
        "forecast": {"enabled": False},
        "web": {"listen": f"127.0.0.1:{free_port()}"},
    }
    path = folder / "sizewatch.yaml"
    path.write_text(yaml.safe_dump(data))
    return path


def main(folder: Path, seconds: float, most: int, chance: random.Random, urls: list[str]) -> None:
    config, history, log = _configuration(folder, urls), folder / "data" / "history.db", folder / "log"
    began, now = time.monotonic(), time.time()
    before = held(history)
    count = bookings = within_booking = 0
    while count < most and time.monotonic() - began < seconds:
        life, lasted = _one_life(config, now, log, chance)
        now += lasted * SPEED + chance.uniform(0.0, BETWEEN_LIVES_SECONDS)
        after = held(history)
        for name, value in after.items():
            told, under_way = life.booked, life.under_way
            if name == "demand":
                told, under_way = life.served, life.served_under_way
            grown = value - before[name]
            if min(abs(grown - told), abs(grown - told - under_way)) > 1e-3:
                print(f"FAILED kill {count}: {name} grew by {value - before[name]}, told: {life}", flush=True)
        if len({amount for name, amount in after.items() if name != "demand"}) != 1:
            print(f"FAILED kill {count}: the sums differ: {after}", flush=True)
        before, count = after, count + 1
        bookings, within_booking = bookings + life.bookings, within_booking + bool(life.under_way)
        if count % 20 == 0:
            _whole(history, "quick_check")
    _whole(history, "integrity_check")
    if "Traceback" in (text := log.read_text(errors="replace")):
        print(f"FAILED a life logged a traceback: {text[text.index('Traceback') :][:2000].splitlines()[-1]}")
    if not bookings:
        print("FAILED no life booked anything")
    print(
        f"{count} kills: {bookings} bookings acknowledged, {within_booking} kills within a booking;"
        f" {before['hours']:.0f} requests in every sum"
    )


def _one_life(config: Path, now: float, log: Path, chance: random.Random) -> tuple[Life, float]:
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read_end)
        try:
            _live(config, now, write_end, log)
        except BaseException:  # noqa: BLE001 - said in the log, which is looked at
            traceback.print_exc()
        finally:
            os._exit(1)
    os.close(write_end)
    started = time.monotonic()
    time.sleep(chance.uniform(SHORTEST_LIFE_SECONDS, LONGEST_LIFE_SECONDS))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    with os.fdopen(read_end) as lines:
        return read(lines), time.monotonic() - started


def _whole(history: Path, check: str) -> None:
    if not history.exists():
        return
    with contextlib.closing(sqlite3.connect(f"file:{history}?mode=ro", uri=True)) as connection:
        told = connection.execute(f"PRAGMA {check}").fetchall()
    if told != [("ok",)]:
        print(f"FAILED {check}: {told[:3]}", flush=True)


if __name__ == "__main__":
    import agent.daemon.assembly
    import agent.daemon.daemon
    import agent.history.service
    import agent.http_server.server  # noqa: F401 - loaded once for all lives

    main(Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]), random.Random(int(sys.argv[4])), sys.argv[5:])
