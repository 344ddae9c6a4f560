"""Bodies of 10 MB to the webhook of a daemon that runs as a process of its own."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from daemon_runs import ask, configuration, process, results, write
from engine_server import engines
from test_webhook import TOKEN
from waiting import CEILING_SECONDS, free_port, wait_for

from agent.http_server.pages import WEBHOOK

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
    ("with its length, without the token", head("a-token-that-is-wrong", **LONG), PIECE, b"401"),
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
        assert json.loads(ask(running.url, "api/status"))["foreign_alerts"] == []
