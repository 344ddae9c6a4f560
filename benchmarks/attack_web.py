"""Web server under clients that mean it harm: half-open connections, slow clients, a flood of wrong passwords."""

from __future__ import annotations

import base64
import contextlib
import itertools
import socket
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

import bcrypt
import yaml
from attacks import Attack, World, health

from agent.http_server.pages import WEBHOOK

TOKEN = "a-token-of-the-webhook"
HALF_OPEN = 200
SLOW = 64
GUESSERS = 32
PASSWORD_COST = 10
"""Cost of bcrypt, as docs/web-pages.md recommends it."""

HALF_REQUESTS = (b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: x\r\nX-A: ")

_answers: defaultdict[World, Counter[str]] = defaultdict(Counter)
_seconds: defaultdict[World, list[float]] = defaultdict(list)


def once_up(act: Callable[[World], None]) -> Callable[[World], None]:
    """Return the act, begun when the daemon answers: before, a client could get the port that the daemon needs."""

    def begin(world: World) -> None:
        while health(world)[0] != 200:
            if world.over.wait(0.5):
                return
        act(world)

    return begin


def need_passwords(world: World, config: dict[str, Any]) -> None:
    """Configure the webhook, users of one password, and a token with which the harness reads /metrics."""
    (world.folder / "token").write_text(TOKEN)
    hashed = bcrypt.hashpw(b"right", bcrypt.gensalt(PASSWORD_COST)).decode()
    users = {f"user{number}": hashed for number in range(1_000)}
    (world.folder / "web.yml").write_text(yaml.safe_dump({"basic_auth_users": users}))
    config["web"] |= {
        "config_file": str(world.folder / "web.yml"),
        "bearer_token_file": str(world.folder / "token"),
    }
    config["alerting"] = {"receiver": {"bearer_token_file": str(world.folder / "token")}}
    world.headers["Authorization"] = f"Bearer {TOKEN}"


def run_in_threads(world: World, number: int, step: Callable[[int], None]) -> None:
    """Call `step` in so many threads, over and over, until the end."""

    def repeat(place: int) -> None:
        while not world.over.is_set():
            with contextlib.suppress(OSError):
                step(place)

    threads = [threading.Thread(target=repeat, args=(place,), daemon=True) for place in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def connect(world: World) -> socket.socket:
    return socket.create_connection(("127.0.0.1", world.port), timeout=10)


def hold_half_open(world: World) -> None:
    """Hold connections without a whole request, and open each again that is closed."""

    def hold(place: int) -> None:
        with connect(world) as sock:
            sock.sendall(HALF_REQUESTS[place % len(HALF_REQUESTS)])
            _answers[world]["opened"] += 1
            while sock.recv(65_536) and not world.over.is_set():
                pass

    run_in_threads(world, HALF_OPEN, hold)


def be_slow(world: World) -> None:
    """Send bodies with the right token, a byte at a time, on half of the connections; read pages so on the others."""
    head = (
        f"POST {WEBHOOK} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\nContent-Type: application/json"
    )

    def drip(place: int) -> None:
        with connect(world) as sock:
            if place % 2:
                sock.sendall(f"{head}\r\nContent-Length: 500000\r\n\r\n".encode() + b" " * 70_000)
            else:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
                page = "/" if place % 4 else "/api/status"
                sock.sendall(
                    f"GET {page} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n\r\n".encode()
                )
            _answers[world]["opened"] += 1
            while not world.over.wait(0.5):
                sock.sendall(b" ") if place % 2 else sock.recv(1)

    run_in_threads(world, SLOW, drip)


def guess_passwords(world: World) -> None:
    """Guess passwords as fast as they are refused, and enter a right one that was never seen, once a second."""
    number = itertools.count()

    def guess(place: int) -> None:
        _answers[world][f"wrong {get_status(world, 'user1', f'guess{next(number)}')}"] += 1

    def enter() -> None:
        for user in itertools.count(2):
            if world.over.wait(1.0):
                return
            begin = time.monotonic()
            _answers[world][f"right {get_status(world, f'user{user}', 'right')}"] += 1
            _seconds[world].append(time.monotonic() - begin)

    threading.Thread(target=enter, daemon=True).start()
    run_in_threads(world, GUESSERS, guess)


def get_status(world: World, name: str, password: str) -> str:
    login = base64.b64encode(f"{name}:{password}".encode()).decode()
    request = f"GET /runbooks/ HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nAuthorization: Basic {login}\r\n\r\n"
    try:
        with connect(world) as sock:
            sock.sendall(request.encode())
            answer = b"".join(iter(lambda: sock.recv(65_536), b""))
            return answer[9:12].decode() or "hung up"
    except OSError as error:
        return type(error).__name__


def describe_answers(world: World) -> str:
    text = ", ".join(f"{word}: {count}" for word, count in sorted(_answers[world].items()))
    slowest = f"; right password slowest {max(_seconds[world]):.2f} s" if _seconds[world] else ""
    return text + slowest


ATTACKS = (
    Attack(
        name="web-half-open",
        text=f"{HALF_OPEN} connections without a whole request, each opened again",
        act=once_up(hold_half_open),
        lost=describe_answers,
    ),
    Attack(
        name="web-slow",
        text=f"{SLOW} clients that send a body, or read a page, a byte at a time",
        config=need_passwords,
        act=once_up(be_slow),
        lost=describe_answers,
    ),
    Attack(
        name="web-passwords",
        text=f"{GUESSERS} clients guess passwords (bcrypt, cost {PASSWORD_COST}), one in a while knows a right one",
        config=need_passwords,
        act=once_up(guess_passwords),
        lost=describe_answers,
    ),
)
