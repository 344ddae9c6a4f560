"""A real Alertmanager on loopback that can be killed and started again, and somebody whom its webhook calls."""

from __future__ import annotations

import json
import subprocess
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import tools
import yaml
from loopback import LoopbackServer, Quiet, served
from waiting import CEILING_SECONDS, free_port, wait_for


class Pager(LoopbackServer):
    """Whom Alertmanager calls: `messages` are the bodies, oldest first."""

    def __init__(self) -> None:
        super().__init__(_PagerHandler)
        self.messages: list[dict[str, Any]] = []

    @property
    def url(self) -> str:
        return f"{super().url}/"

    def told(self, name: str, status: str) -> list[dict[str, Any]]:
        """The alerts of this name that came with this status."""
        alerts = [alert for message in list(self.messages) for alert in message["alerts"]]
        return [a for a in alerts if a["labels"]["alertname"] == name and a["status"] == status]


class _PagerHandler(Quiet, BaseHTTPRequestHandler):
    server: Pager

    def do_POST(self) -> None:
        self.server.messages.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(200)
        self.end_headers()


@contextmanager
def pager() -> Iterator[Pager]:
    called = Pager()
    with served(called):
        yield called


class Alertmanager:
    """One Alertmanager; what it has told whom outlives an orderly end, the alerts themselves outlive nothing."""

    def __init__(self, folder: Path, webhooks: Sequence[Mapping[str, Any]]) -> None:
        self._program = tools.tool("prometheus-alertmanager")
        self._folder = folder
        self._port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        quick = {"group_wait": "50ms", "group_interval": "100ms", "repeat_interval": "1h", "group_by": ["..."]}
        config = {
            "route": {"receiver": "all", **quick},
            "receivers": [{"name": "all", "webhook_configs": [dict(one) for one in webhooks]}],
        }
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "alertmanager.yml").write_text(yaml.safe_dump(config))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        words = (
            f"--config.file={self._folder / 'alertmanager.yml'}",
            f"--storage.path={self._folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{self._port}",
            "--cluster.listen-address=",
            "--log.level=error",
        )
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen([self._program, *words], stdout=log, stderr=log)
        assert wait_for(self._ready), (self._folder / "log").read_text()

    def _ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/-/ready", timeout=CEILING_SECONDS):
                return True
        except OSError:
            return False

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(CEILING_SECONDS)

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait(CEILING_SECONDS)

    def alerts(self, name: str | None = None) -> list[dict[str, Any]]:
        """The alerts that it holds now, of one name or all."""
        with urllib.request.urlopen(f"{self.url}/api/v2/alerts", timeout=CEILING_SECONDS) as result:
            found: list[dict[str, Any]] = json.load(result)
        return [alert for alert in found if name in (None, alert["labels"]["alertname"])]

    def post(self, *alerts: Mapping[str, Any]) -> None:
        request = urllib.request.Request(
            f"{self.url}/api/v2/alerts", json.dumps(alerts).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=CEILING_SECONDS):
            pass


@contextmanager
def alertmanager(folder: Path, *webhooks: Mapping[str, Any]) -> Iterator[Alertmanager]:
    """One that runs until the end of the block; each webhook is an entry of `webhook_configs`."""
    one = Alertmanager(folder, webhooks)
    one.start()
    try:
        yield one
    finally:
        one.stop()
