"""Histories, configurations and written reports for tests of the schedule, and where they are delivered: real servers."""

import json
import socketserver
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from email import message_from_bytes, policy
from email.message import EmailMessage
from functools import cache
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml
from loopback import LoopbackServer, Quiet, give, served
from report_samples import START, TIER, WEEK, book, hours, plan, reported

from agent.config.load import LoadedConfig, load
from agent.history.store import HistoryStore
from agent.reporting import storage
from agent.reporting.service import JobResult, JobRunner
from agent.reporting.storage import STATE_FILE, Delivery, ReportState
from exporters.report.records import report_json


class Webhook:
    """Takes POSTs. `results` are the statuses of the next ones, then 200; `before` is called with each, before it is answered."""

    def __init__(self) -> None:
        self.taken: list[dict[str, Any]] = []
        self.asked = 0
        self.results: list[int] = []
        self.before: Callable[[], None] = lambda: None
        self.port = 0

    @property
    def place(self) -> str:
        return f"127.0.0.1:{self.port}"


@contextmanager
def webhook() -> Iterator[Webhook]:
    one = Webhook()

    class Handler(Quiet, BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
            one.asked += 1
            one.before()
            status = one.results.pop(0) if one.results else 200
            if status == 200:
                kind = self.headers.get("Content-Type", "")
                said = json.loads(body) if kind.startswith("application/json") else {"form": body, "type": kind}
                one.taken.append({**said, "path": self.path, "authorization": self.headers.get("Authorization")})
            give(self, b"", status)

    server = LoopbackServer(Handler)
    one.port = server.port
    with served(server):
        yield one


class Mailbox:
    """Takes mails."""

    def __init__(self) -> None:
        self.mails: list[EmailMessage] = []
        self.port = 0


@contextmanager
def mail_server() -> Iterator[Mailbox]:
    box = Mailbox()

    class Handler(socketserver.StreamRequestHandler):
        """As much of RFC 5321 as a sender needs."""

        def handle(self) -> None:
            self._say("220 test")
            while line := self.rfile.readline():
                word = line.split(b" ", 1)[0].strip().upper()
                if word == b"EHLO":
                    self._say("250-test\r\n250-AUTH PLAIN LOGIN\r\n250 8BITMIME")
                elif word == b"AUTH":
                    self._say("235 ok")
                elif word == b"DATA":
                    self._say("354 go on")
                    self._data()
                elif word == b"QUIT":
                    self._say("221 bye")
                    return
                else:
                    self._say("250 ok")

        def _data(self) -> None:
            lines = []
            while (line := self.rfile.readline()) not in (b".\r\n", b""):
                lines.append(line.removeprefix(b".") if line.startswith(b"..") else line)
            found = message_from_bytes(b"".join(lines), policy=policy.default)
            assert isinstance(found, EmailMessage)
            box.mails.append(found)
            self._say("250 taken")

        def _say(self, text: str) -> None:
            self.wfile.write(f"{text}\r\n".encode())

    socketserver.ThreadingTCPServer.allow_reuse_address = True
    server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    box.port = server.server_address[1]
    with served(server):
        yield box


DUE = START + WEEK + 7 * 3600.0
"""Monday 9 November 2026, 07:00 UTC."""
NAME = "2026-11-09"
CANARY = "CANARY-in-the-address"
MINUTE, HOUR, DAY = 60.0, 3600.0, 86_400.0


class InThisProcess(JobRunner):
    """Makes reports here, where the process of their own is not what is tested: that one loads its libraries each time."""

    def _run(
        self, seconds: float, keep: Collection[str], function: Callable[..., JobResult], *arguments: Any
    ) -> JobResult:
        return function(*arguments)


def configured(place: Path, deliver: Mapping[str, str] | None = None, **keys: Any) -> LoadedConfig:
    """A configuration there, of one tier; `deliver` are addresses by the name of the destination, each put into a file."""
    (place / "plan.yaml").write_text(yaml.safe_dump({"schema": 1, "tiers": {"t": TIER}}))
    several = []
    for name, url in (deliver or {}).items():
        (place / f"{name}.url").write_text(f"{url}\n")
        (place / f"{name}.url").chmod(0o600)
        several.append({"name": name, "url_file": f"{name}.url"})
    data = {
        "plan": "plan.yaml",
        "data_dir": "data",
        "gpus": {"source": "none"},
        "forecast": {"enabled": False},
        "report": {"deliver": several, **keys.pop("report", {})},
        **keys,
    }
    path = place / "sizewatch.yaml"
    path.write_text(yaml.safe_dump(data))
    (place / "data").mkdir(exist_ok=True)
    return load(path)


@cache
def history() -> bytes:
    """A history of two weeks of one tier, until 16 November: booked once, for it is the same in every test."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "history.db"
        with HistoryStore(path) as store:
            book(store, plan(), hours(336))
        assert [one.name for one in Path(folder).iterdir() if one.stat().st_size] == [path.name], (
            "all of it is in one file"
        )
        return path.read_bytes()


def with_history(place: Path) -> None:
    """Puts it there, where there is none yet."""
    (place / "data").mkdir(exist_ok=True)
    (place / "data" / "history.db").write_bytes(history())


@cache
def _report() -> bytes:
    found, _ = reported(plan(), hours())
    return report_json(found).encode()


def written(place: Path) -> Path:
    """A report that stands in its place, as if it had been made."""
    root = place / "data" / "reports"
    files = {"report.json": _report(), "report.html": b"<html>report"}
    storage.publish(root, NAME, files, keep=26)
    return root / NAME


def remembered(place: Path, *waiting: str, **parts: Any) -> None:
    """The state after a report was made at DUE, with these destinations still to be told."""
    deliveries = {name: Delivery() for name in waiting}
    whole = {"begun_at": DUE - WEEK, "newest": NAME, "made_for": DUE, "made_at": DUE, "deliveries": deliveries, **parts}
    storage.write_state(place / "data" / STATE_FILE, ReportState(**whole))


def waiting(place: Path, deliver: Mapping[str, str] | None = None, **keys: Any) -> LoadedConfig:
    """A configuration with a report that stands there and that no destination has yet."""
    loaded = configured(place, deliver, **keys)
    written(place)
    remembered(place, *(destination.name for destination in loaded.config.report.deliver))
    return loaded


def state_of(place: Path) -> ReportState:
    return storage.read_state(place / "data" / STATE_FILE)
