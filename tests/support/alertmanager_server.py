"""A real Alertmanager on loopback that can be killed and started again, and the pager that its webhook calls."""

import json
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import tools
import yaml
from loopback import LoopbackServer, Program, Quiet, running, served
from waiting import CEILING_SECONDS, free_port


class Pager(LoopbackServer):
    """Receiver of notifications: `messages` are the bodies, oldest first."""

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


class Alertmanager(Program):
    """An Alertmanager. Its log of notifications outlives an orderly end, its alerts outlive nothing."""

    def __init__(self, folder: Path, configuration: Path, port: int) -> None:
        words = (
            tools.tool("prometheus-alertmanager"),
            f"--config.file={configuration}",
            f"--storage.path={folder / 'alertmanager'}",
            f"--web.listen-address=127.0.0.1:{port}",
            "--cluster.listen-address=",
            "--log.level=error",
        )
        super().__init__(words, f"http://127.0.0.1:{port}", "/-/ready")

    def alerts(self, name: str | None = None) -> list[dict[str, Any]]:
        """The alerts that it holds now, of one name or all."""
        with urllib.request.urlopen(f"{self.url}/api/v2/alerts", timeout=CEILING_SECONDS) as result:
            found: list[dict[str, Any]] = json.load(result)
        return [alert for alert in found if name in (None, alert["labels"]["alertname"])]

    def post(self, *alerts: Mapping[str, Any]) -> None:
        """Post alerts as Prometheus or the agent does."""
        request = urllib.request.Request(
            f"{self.url}/api/v2/alerts", json.dumps(alerts).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=CEILING_SECONDS) as result:
            assert result.status == 200


def alertmanager(folder: Path, configuration: Path, port: int = 0) -> AbstractContextManager[Alertmanager]:
    """Run an Alertmanager with this configuration until the end of the block."""
    return running(Alertmanager(folder, configuration, port or free_port()))


def hooked_alertmanager(folder: Path, *webhooks: Mapping[str, Any]) -> AbstractContextManager[Alertmanager]:
    """Run an Alertmanager that notifies these entries of `webhook_configs` of each alert at once."""
    quick = {"group_wait": "50ms", "group_interval": "100ms", "repeat_interval": "1h", "group_by": ["..."]}
    receivers = [{"name": "all", "webhook_configs": [dict(hook) for hook in webhooks]}]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "alertmanager.yml").write_text(
        yaml.safe_dump({"route": {"receiver": "all", **quick}, "receivers": receivers})
    )
    return alertmanager(folder, folder / "alertmanager.yml")
