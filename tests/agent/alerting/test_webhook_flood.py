"""The webhook of a daemon that runs as a process of its own, under more than it takes: a flood, and bodies of 10 MB."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from daemon_runs import ask, configuration, process, results, write
from engine_server import engines
from test_webhook import ALERT, TOKEN, body
from waiting import CEILING_SECONDS, free_port, wait_for

from agent.alerting.webhook import BURST, PER_SECOND
from agent.history.store import HistoryStore
from agent.http_server.interfaces import WEBHOOK

SENDERS = 8
EACH = 150
SCRAPES = 4
"""A sender sends so often at least, and until so many scrapes were answered; each time on a new connection, as the server
keeps none open."""

HUGE = 10 * 2**20
PIECE = b"x" * 2**16


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A daemon with the webhook, as its senders and its reader know it."""

    port: int
    pid: int
    folder: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    def most_memory_bytes(self) -> int:
        """The most that the process has held until now."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) * 1024

    def foreign_alerts(self) -> set[str]:
        """The names of foreign alerts that it shows."""
        return {one["name"] for one in json.loads(ask(self.url, "api/status"))["foreign_alerts"]}

    def refusals(self, reason: str) -> int:
        start = f'sizewatch_webhook_refusals_total{{reason="{reason}"}} '
        lines = (line for line in ask(self.url, "metrics").decode().splitlines() if line.startswith(start))
        return sum(int(float(line.removeprefix(start))) for line in lines)


@contextmanager
def receiving(folder: Path) -> Iterator[Running]:
    """A daemon with one engine and the receiver, in a process of its own."""
    (folder / "token").write_text(TOKEN)
    port = free_port()
    with engines() as served:
        alerting = {"receiver": {"bearer_token_file": "token"}}
        path = write(folder, configuration(served, alerting=alerting, web={"listen": f"127.0.0.1:{port}"}))
        with process("run", "-c", str(path)) as started:
            running = Running(port=port, pid=started.pid, folder=folder)
            assert wait_for(lambda: results(running.url)), "the daemon does not answer"
            yield running
            started.terminate()
            _, log = started.communicate(timeout=CEILING_SECONDS)
            assert started.returncode == 0, log
            assert "Traceback" not in log


def head(token: str, **headers: str) -> bytes:
    lines = {"Host": "x", "Authorization": f"Bearer {token}", "Content-Type": "application/json", **headers}
    told = (f"POST {WEBHOOK} HTTP/1.1", *(f"{name}: {value}" for name, value in lines.items()), "", "")
    return "\r\n".join(told).encode()


@dataclass(slots=True, kw_only=True)
class Sender:
    """Sends as fast as it can, with the token and without it by turns, each time another alert."""

    port: int
    number: int
    enough: threading.Event
    results: Counter[str] = field(default_factory=Counter)
    taken: set[str] = field(default_factory=set)

    def run(self) -> None:
        while (count := self.results.total()) < EACH or not self.enough.is_set():
            name = f"Flood{self.number}x{count}"
            data = body(ALERT | {"labels": {"alertname": name, "tier": "cpu-small"}})
            token = TOKEN if count % 2 else "a-token-that-is-wrong"
            result = self._answer(head(token, **{"Content-Length": str(len(data))}) + data)
            self.results[result] += 1
            if result == "200":
                self.taken.add(name)

    def _answer(self, sent: bytes) -> str:
        """The status, or what went wrong with the connection."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=CEILING_SECONDS) as sock:
                sock.sendall(sent)
                return sock.recv(65_536)[9:12].decode() or "nothing"
        except OSError as error:
            return type(error).__name__


def flood(running: Running) -> tuple[list[Sender], int]:
    """What all senders were told, and how many scrapes the daemon answered meanwhile."""
    enough = threading.Event()
    senders = [Sender(port=running.port, number=number, enough=enough) for number in range(SENDERS)]
    threads = [threading.Thread(target=sender.run) for sender in senders]
    for thread in threads:
        thread.start()
    scrapes = 0
    try:
        while any(thread.is_alive() for thread in threads):
            assert b"sizewatch_verdict" in ask(running.url, "metrics")
            scrapes += 1
            if scrapes == SCRAPES:
                enough.set()
            time.sleep(0.1)
    finally:
        enough.set()
    for thread in threads:
        thread.join()
    return senders, scrapes


def test_a_flood_is_refused_while_scrapes_are_answered_and_only_what_was_taken_is_on_the_timeline(
    tmp_path: Path,
) -> None:
    with receiving(tmp_path) as running:
        begin, memory = time.monotonic(), running.most_memory_bytes()
        senders, scrapes = flood(running)
        told = sum((sender.results for sender in senders), Counter[str]())
        taken = set().union(*(sender.taken for sender in senders))
        assert told.total() > 1_000
        # Every one is answered: the few that are allowed, no token, and too many, where the machine can send so many.
        assert {"200", "401"} <= set(told) <= {"200", "401", "429"}
        assert told["200"] == len(taken) <= BURST + PER_SECOND * (time.monotonic() - begin) + 1
        assert (running.refusals("rate"), running.refusals("credentials")) == (told["429"], told["401"])
        assert scrapes >= SCRAPES, "each while the flood went on"
        assert wait_for(lambda: running.foreign_alerts() == taken)
        assert running.most_memory_bytes() - memory < 10 * 2**20
    with HistoryStore.open_reader(tmp_path / "sizewatch-data" / "history.db") as reader:
        assert {one.name for one in reader.foreign_alerts(0.0)} == taken


def push(port: int, begin: bytes, piece: bytes = PIECE) -> tuple[bytes, int]:
    """Pushes 10 MB after the head, as long as that is let: the first line of the answer and how much went out."""
    pushed, result = 0, b""
    with socket.create_connection(("127.0.0.1", port), timeout=CEILING_SECONDS) as sock:
        # So that what went out is about what came in, not what waits in here.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, len(PIECE))
        try:
            sock.sendall(begin)
            while pushed < HUGE:
                pushed += sock.send(piece)
        except (BrokenPipeError, ConnectionResetError):
            result = sock.recv(65_536)
    return result.partition(b"\r\n")[0], pushed


LONG = {"Content-Length": str(HUGE)}
CHUNKS = b"%x\r\n%s\r\n" % (len(PIECE), PIECE)

BODIES: tuple[tuple[str, bytes, bytes, bytes], ...] = (
    ("with its length", head(TOKEN, **LONG), PIECE, b"413"),
    ("with its length, without the token", head("a-token-that-is-wrong", **LONG), PIECE, b"413"),
    ("in chunks", head(TOKEN, **{"Transfer-Encoding": "chunked"}), CHUNKS, b"411"),
    ("in one chunk", head(TOKEN, **{"Transfer-Encoding": "chunked"}) + b"a00000\r\n", PIECE, b"411"),
    ("longer than it says", head(TOKEN, **{"Content-Length": "1000"}), PIECE, b"400"),
)


def test_ten_megabytes_are_refused_without_being_read_to_their_end(tmp_path: Path) -> None:
    with receiving(tmp_path) as running:
        memory = running.most_memory_bytes()
        for name, begin, piece, expected in BODIES:
            result, pushed = push(running.port, begin, piece)
            assert result[9:12] == expected, name
            assert pushed < HUGE / 4, name
        assert running.most_memory_bytes() - memory < 4 * 2**20
        assert running.foreign_alerts() == set()
        assert running.refusals("rate") == 0
