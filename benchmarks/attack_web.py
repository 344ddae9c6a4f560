"""The web server under clients that mean it harm: bodies that do not come, polls, idle connections, wrong passwords, floods."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import socket
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from attacks import Attack, World, health, metrics

from agent.http_server.credentials import users_line
from agent.http_server.options import WEBHOOK

TOKEN = "a-token-of-the-webhook"
CROWD = tuple(f"127.0.0.{number}" for number in range(2, 10))
POLLERS = 32
LABEL = "x" * 900
"""Four of them are nearly all that an alert's labels may have."""
LONG_LABEL = "x" * 60_000

_told: defaultdict[World, Counter[str]] = defaultdict(Counter)
_notes: dict[World, str] = {}


def once_up(act: Callable[[World], None]) -> Callable[[World], None]:
    """Return the act, begun when the daemon answers: before, a client could get the port that the daemon needs."""

    def begin(world: World) -> None:
        while health(world)[0] != 200:
            if world.over.wait(0.5):
                return
        act(world)

    return begin


def receive_alerts(world: World, config: dict[str, Any]) -> None:
    """Configure the webhook."""
    (world.folder / "hook").write_text(TOKEN)
    config["alerting"] = {"receiver": {"bearer_token_file": str(world.folder / "hook")}}


def ask_passwords(world: World, config: dict[str, Any]) -> None:
    """Configure users of one password, and a token with which the harness reads /metrics."""
    line = users_line("user", b"right").partition(":")[2]
    (world.folder / "users").write_text("".join(f"user{n}:{line}\n" for n in range(1_000)))
    (world.folder / "token").write_text(TOKEN)
    config["web"] |= {
        "basic_auth_users_file": str(world.folder / "users"),
        "bearer_token_file": str(world.folder / "token"),
    }
    world.headers["Authorization"] = f"Bearer {TOKEN}"


def post(length: int, *more: str) -> bytes:
    lines = (f"POST {WEBHOOK} HTTP/1.1", "Host: localhost", "Content-Type: application/json", *more)
    return "\r\n".join((*lines, f"Content-Length: {length}", "", "")).encode()


def connect(world: World, address: str = "127.0.0.1") -> socket.socket:
    return socket.create_connection(("127.0.0.1", world.port), timeout=5, source_address=(address, 0))


def say(world: World, request: bytes, address: str = "127.0.0.1") -> str:
    """Return the status of the answer to one request, or what became of it."""
    try:
        with connect(world, address) as sock:
            sock.sendall(request)
            answer = sock.recv(65_536)
            while sock.recv(65_536):
                pass
            return answer[9:12].decode() or "hung up"
    except OSError as error:
        return type(error).__name__


def repeat(world: World, step: Callable[[int], None], number: int = 1, pause: float = 0.0) -> None:
    """Run `step` with a running number in several threads, over and over, until the end."""

    def run(place: int) -> None:
        count = place
        while not world.over.wait(pause):
            step(count)
            count += number

    threads = [threading.Thread(target=run, args=(place,), daemon=True) for place in range(number)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()


def expect_flood(world: World) -> None:
    """Announce bodies that never come, on 64 connections at a time, without credentials."""

    def step(number: int) -> None:
        _told[world][say(world, post(100_000, "Expect: 100-continue"), CROWD[number % len(CROWD)])] += 1

    repeat(world, step, 64, pause=0.001)


def slow_bodies(world: World) -> None:
    """Send bodies above 64 KiB with the right token, and their end a byte at a time."""

    def step(number: int) -> None:
        with contextlib.suppress(OSError), connect(world, CROWD[number % len(CROWD)]) as sock:
            sock.sendall(post(500_000, f"Authorization: Bearer {TOKEN}") + b" " * 70_000)
            while not world.over.wait(0.5):
                sock.sendall(b" ")
            _told[world]["sent"] += 1

    repeat(world, step, 8)


def poll_health(world: World) -> None:
    """Ask for /healthz on 32 connections, as fast as it answers, and note the processor time of the daemon."""
    request = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    begin, cpu = time.monotonic(), cpu_seconds(world)
    threading.Thread(target=note_cost, args=(world, begin, cpu), daemon=True).start()
    repeat(world, lambda n: _told[world].update([say(world, request, CROWD[n % len(CROWD)])]), POLLERS)


def note_cost(world: World, begin: float, cpu: float) -> None:
    while not world.over.wait(1.0):
        with contextlib.suppress(OSError):
            spent, seconds = cpu_seconds(world) - cpu, time.monotonic() - begin
            count = max(1, _told[world].total())
            _notes[world] = (
                f"{spent / seconds:.2f} cores, {count / seconds:.0f} answers/s, {1000 * spent / count:.2f} ms each"
            )


def cpu_seconds(world: World) -> float:
    assert world.process is not None
    with open(f"/proc/{world.process.pid}/stat") as stat:
        words = stat.read().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def hold_idle(addresses: tuple[str, ...], each: int) -> Callable[[World], None]:
    """Return an act that holds connections that say nothing, and opens each again that is closed."""

    def act(world: World) -> None:
        held: dict[int, socket.socket] = {}
        while not world.over.wait(0.1):
            for place in range(len(addresses) * each):
                if place in held and not is_closed(held[place]):
                    continue
                if place in held:
                    held.pop(place).close()
                with contextlib.suppress(OSError):
                    held[place] = connect(world, addresses[place % len(addresses)])
                    held[place].setblocking(False)
                    _told[world]["connected"] += 1
        for sock in held.values():
            sock.close()

    return act


def is_closed(sock: socket.socket) -> bool:
    try:
        return sock.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def guess_passwords(addresses: tuple[str, ...]) -> Callable[[World], None]:
    """Return an act that guesses passwords from there, and tries right ones that were never seen, one a second, from here."""

    def act(world: World) -> None:
        def guess(number: int) -> None:
            request = asking("admin", f"guess{number}")
            _told[world][f"wrong {say(world, request, addresses[number % len(addresses)])}"] += 1

        def enter(number: int) -> None:
            _told[world][f"right {say(world, asking(f'user{number}', 'right'))}"] += 1

        threading.Thread(target=repeat, args=(world, guess, POLLERS), daemon=True).start()
        repeat(world, enter, pause=1.0)

    return act


def asking(name: str, password: str) -> bytes:
    word = base64.b64encode(f"{name}:{password}".encode()).decode()
    return f"GET /runbooks/ HTTP/1.1\r\nHost: localhost\r\nAuthorization: Basic {word}\r\n\r\n".encode()


def alerts(number: int) -> Iterator[tuple[str, list[Mapping[str, Any]]]]:
    """Yield the kinds of message: labels as long as they may be, labels of 60 kB, far more alerts than one may have."""
    yield "long", [alert(f"Long{number}x{n}", **{f"l{m}": LABEL for m in range(4)}) for n in range(260)]
    yield "60 kB", [alert(f"Huge{number}x{n}", l=LONG_LABEL) for n in range(16)]
    yield "many", [alert(f"M{number}x{n}") for n in range(8_000)]


def alert(name: str, **labels: str) -> Mapping[str, Any]:
    return {"status": "firing", "labels": {"alertname": name, **labels}, "startsAt": "2026-09-21T14:10:26Z"}


def flood_alerts(world: World) -> None:
    """Send the largest messages by eight senders. They are made before: that costs as much as reading them."""
    made = [
        [(kind, json.dumps({"version": "4", "alerts": several}).encode()) for kind, several in alerts(number)]
        for number in range(4)
    ]

    def step(number: int) -> None:
        for kind, body in made[number % len(made)]:
            request = post(len(body), f"Authorization: Bearer {TOKEN}") + body
            _told[world][f"{kind} {say(world, request, CROWD[number % len(CROWD)])}"] += 1

    repeat(world, step, 8, pause=0.1)


def say_answers(world: World) -> str:
    told = ", ".join(f"{word}: {count}" for word, count in sorted(_told[world].items()))
    return "; ".join(filter(None, (_notes.get(world, ""), told)))


def say_alerts(world: World) -> str:
    """Return what the senders were told, the size of /api/status, and what the daemon counts as left out."""
    size = 0
    with contextlib.suppress(OSError), connect(world) as sock:
        sock.sendall(b"GET /api/status HTTP/1.1\r\nHost: localhost\r\n\r\n")
        size = sum(len(part) for part in iter(lambda: sock.recv(65_536), b""))
    webhook = {name: int(value) for name, value in metrics(world).items() if re.match("sizewatch_webhook", name)}
    return f"{say_answers(world)}; /api/status {size / 1e6:.2f} MB; {webhook}"


def many_targets(world: World) -> list[dict[str, Any]]:
    """Return further healthy targets, so that a status is worth something."""
    return [world.target(f"/further{n}") for n in range(60)]


ATTACKS = (
    Attack(
        name="web-expect",
        text="64 connections without credentials announce bodies (Expect: 100-continue)",
        config=receive_alerts,
        act=once_up(expect_flood),
        lost=say_answers,
    ),
    Attack(
        name="web-slow-bodies",
        text="eight bodies above 64 KiB with the webhook's token, a byte at a time",
        config=receive_alerts,
        act=once_up(slow_bodies),
        lost=say_answers,
    ),
    Attack(
        name="web-healthz",
        text="32 clients ask for /healthz as fast as it answers, 64 targets",
        targets=many_targets,
        act=once_up(poll_health),
        lost=say_answers,
    ),
    Attack(
        name="web-idle",
        text="24 idle connections from the address of the probe",
        act=once_up(hold_idle(("127.0.0.1",), 24)),
        lost=say_answers,
    ),
    Attack(
        name="web-passwords-elsewhere",
        text="32 clients guess passwords from another address",
        config=ask_passwords,
        act=once_up(guess_passwords(("127.0.0.2",))),
        lost=say_answers,
    ),
    Attack(
        name="web-passwords-same",
        text="32 clients guess passwords from the address of the one who knows",
        config=ask_passwords,
        act=once_up(guess_passwords(("127.0.0.1",))),
        lost=say_answers,
    ),
    Attack(
        name="web-descriptors",
        text="64 descriptors (RLIMIT_NOFILE), 120 idle connections from eight addresses",
        limits={"RLIMIT_NOFILE": 64},
        act=once_up(hold_idle(CROWD, 15)),
        lost=say_answers,
    ),
    Attack(
        name="web-webhook-flood",
        text="messages of 1 MiB: labels of 4 kB, of 60 kB, and 8,000 alerts in one",
        config=receive_alerts,
        act=once_up(flood_alerts),
        lost=say_alerts,
    ),
)
