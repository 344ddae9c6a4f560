"""A real VictoriaMetrics, and the address before it at which role fleet asks: everything a store can do wrong.

Owns the process, the way through to it, and the table STORE_ACTS of what is answered instead. A new way to misbehave is a
function of its handler and a row. What is written into the store is `chaos_collector`'s.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode

import chaos_address as address
from chaos_address import Act, Address, Handler

JSON = "application/json"
FORM = "application/x-www-form-urlencoded"
WAY_SECONDS = 5.0
SLOW_SECONDS = 0.25
HOUR_SECONDS = 3600.0
START_SECONDS = 20.0

Answered = tuple[int, bytes]
"""Status and body."""


class Victoria:
    """One VictoriaMetrics, whose address and data stay the same however often it is killed and started again."""

    def __init__(self, folder: Path, program: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as closing:
            port = int(closing.getsockname()[1])
        self.url = f"http://127.0.0.1:{port}"
        self._command = (
            program,
            f"-httpListenAddr=127.0.0.1:{port}",
            f"-storageDataPath={folder / 'store'}",
            "-retentionPeriod=100y",
            "-memory.allowedBytes=128MB",
            # By default the newest 30 s are hidden.
            "-search.latencyOffset=0s",
            "-loggerLevel=ERROR",
        )
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        """Until it answers."""
        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        until = time.monotonic() + START_SECONDS
        while time.monotonic() < until:
            with suppress(OSError), urllib.request.urlopen(f"{self.url}/health", timeout=1):
                return
            time.sleep(0.02)
        raise RuntimeError(f"victoria-metrics did not answer at {self.url}")

    def send(self, number: int) -> None:
        assert self._process is not None
        os.kill(self._process.pid, number)

    def kill(self) -> None:
        """With -9."""
        self.send(signal.SIGKILL)
        assert self._process is not None
        self._process.wait()

    def write(self, text: bytes, seconds: float = WAY_SECONDS) -> None:
        """Lines of the text format with times; can be asked for when this returns. Raises OSError."""
        for path, body in (("/api/v1/import/prometheus", text), ("/internal/force_flush", b"")):
            asked = urllib.request.Request(f"{self.url}{path}", data=body, method="POST")
            with urllib.request.urlopen(asked, timeout=seconds):
                pass

    def asked(self, path: str, form: bytes) -> Answered:
        """What it answers. Raises OSError where nothing comes."""
        question = urllib.request.Request(f"{self.url}{path}", data=form, headers={"Content-Type": FORM})
        try:
            with urllib.request.urlopen(question, timeout=WAY_SECONDS) as result:
                return result.status, result.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()

    def increase(self, selector: str, start: float, end: float) -> tuple[float, float]:
        """By how much the counters of a selector rose between their first and last sample of (start, end]: without what they had
        at each restart, and with it, for an engine that begins anew in a recording has counted already."""
        form = {"query": f"{selector}[{round((end - start) * 1000)}ms]", "time": f"{end:.3f}", "nocache": "1"}
        _, body = self.asked("/api/v1/query", urlencode(form).encode())
        rows = [[float(value) for _, value in one["values"]] for one in json.loads(body)["data"]["result"]]
        pairs = [pair for row in rows for pair in pairwise(row)]
        rose = sum(b - a for a, b in pairs if b >= a)
        return rose, rose + sum(b for a, b in pairs if b < a)


class StoreDoor(Address):
    """What role fleet asks: the store, while it behaves."""

    def __init__(self, store: Victoria) -> None:
        self.store = store
        super().__init__(_through)


def found(folder: Path) -> Victoria | None:
    """The store, where it is installed."""
    program = shutil.which("victoria-metrics")
    return Victoria(folder, program) if program is not None else None


def _asked(handler: Handler, form: bytes | None = None) -> Answered:
    door = handler.server.address
    assert isinstance(door, StoreDoor)
    return door.store.asked(handler.path, handler.body if form is None else form)


def _through(handler: Handler) -> None:
    try:
        status, body = _asked(handler)
    except OSError:
        # A store that is away or hangs is so for who asks here.
        handler.close_connection = True
        return
    handler.give(body, status=status, kind=JSON)


def _cut(handler: Handler) -> None:
    """Announced and ended as if it were whole."""
    _, body = _asked(handler)
    handler.give(body[: len(body) // 2], kind=JSON)


def _with(**more: object) -> Act:
    """The true answer, and words beside it."""

    def act(handler: Handler) -> None:
        _, body = _asked(handler)
        handler.give(json.dumps({**json.loads(body), **more}).encode(), kind=JSON)

    return act


def _without_half(handler: Handler) -> None:
    """What a store gives of which a part is away: fewer series, and a word of it."""
    _, body = _asked(handler)
    result: dict[str, Any] = json.loads(body)
    result["data"]["result"] = result["data"]["result"][::2]
    handler.give(json.dumps({**result, "isPartial": True}).encode(), kind=JSON)


def _nothing(handler: Handler) -> None:
    _, body = _asked(handler)
    result = json.loads(body)
    result["data"]["result"] = []
    handler.give(json.dumps(result).encode(), kind=JSON)


def _hour_ago(handler: Handler) -> None:
    """As a cache does that was forgotten: true once, of an hour ago."""
    form = dict(parse_qsl(handler.body.decode()))
    form |= {name: f"{float(form[name]) - HOUR_SECONDS:.3f}" for name in ("time", "start", "end") if name in form}
    status, body = _asked(handler, urlencode(form).encode())
    handler.give(body, status=status, kind=JSON)


def _slow(handler: Handler) -> None:
    """Whole and right, and just not too late."""
    handler.server.address.released.wait(SLOW_SECONDS)
    _through(handler)


def _flaps(handler: Handler) -> None:
    if handler.server.address.asked % 2:
        handler.give(b"overloaded\n", status=503)
    else:
        _through(handler)


def _body_to(act: Callable[[Handler, bytes, str], None]) -> Act:
    return lambda handler: act(handler, _asked(handler)[1], JSON)


def _error(kind: str, text: str, status: int) -> Act:
    return address.says(status, json.dumps({"status": "error", "errorType": kind, "error": text}).encode(), JSON)


STORE_ACTS: Mapping[str, Act] = {
    "hangs": address.hangs,
    "hangs_mid_answer": _body_to(address.hangs_mid),
    "trickles": _body_to(address.trickles),
    "hangs_up_mid_answer": _body_to(address.hangs_up),
    "half_an_answer": _cut,
    "500": address.says(500),
    "503": address.says(503),
    "401": address.says(401),
    "status_error": _error("execution", "the query cannot be executed", 422),
    "too_many_samples": _error("execution", "query processing would load too many samples into memory", 422),
    "garbage": address.garbage,
    "html": address.html,
    "empty_body": address.empty,
    "redirect": address.redirects,
    "endless": address.huge,
    "warns": _with(warnings=["a store of the fleet did not answer"]),
    "partial": _without_half,
    "nothing_found": _nothing,
    "an_hour_ago": _hour_ago,
    "slow": _slow,
    "flaps": _flaps,
}
