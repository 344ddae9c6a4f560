"""A Prometheus that scrapes and alerts with the committed files sped up, a real Alertmanager behind it, and the pager."""

import json
import re
import urllib.parse
import urllib.request
from collections.abc import Container, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import tools
import yaml
from loopback import LoopbackServer, Program, Quiet, running, served
from prometheus_server import prometheus_program
from waiting import CEILING_SECONDS, free_port, wait_for

UNITS: Mapping[str, int] = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
"""Milliseconds of the units that our files use."""

RULE_TIMES = ("for", "keep_firing_for", "interval")
ROUTE_TIMES = ("group_wait", "group_interval")
"""Without `repeat_interval`: on a slow machine what is shortened comes twice."""


def sped_up(text: str, keys: tuple[str, ...], speed: int) -> str:
    """The text of a file with the durations of these keys divided by `speed`."""
    found = re.compile(rf"^( *(?:{'|'.join(keys)}): )(.*)$", re.MULTILINE)
    return found.sub(lambda line: line[1] + _milliseconds(_of(line[2]) // speed), text)


def _of(duration: str) -> int:
    """The milliseconds of one of our own durations: a number and a unit."""
    return int(duration[:-1]) * UNITS[duration[-1]]


def _milliseconds(count: int) -> str:
    """As Prometheus and Alertmanager both read it; "0s" where there are none."""
    parts = ((count // 1000, "s"), (count % 1000, "ms"))
    return "".join(f"{number}{unit}" for number, unit in parts if number) or "0s"


def receivers_at(sample: str, url: str) -> str:
    """The sample configuration with one address for all its receivers; which of them called is in each message."""
    changed, count = re.subn(r"https://[\w.-]+\.example/\w+", url, sample)
    assert count == sample.count("- url: ")
    return changed


@contextmanager
def scraping(folder: Path, target: str, alertmanager: str, *rule_files: Path, interval: str = "1s") -> Iterator[str]:
    """The address of a Prometheus that scrapes `target` and evaluates the files in this interval, until the end of the block."""
    configuration = {
        "global": {"scrape_interval": interval, "scrape_timeout": "1s", "evaluation_interval": interval},
        "rule_files": [str(path.absolute()) for path in rule_files],
        "alerting": {"alertmanagers": [_static(alertmanager.removeprefix("http://"))]},
        "scrape_configs": [{"job_name": "sizewatch", **_static(target)}],
    }
    with running(prometheus_program(folder, configuration, "--web.enable-lifecycle")) as server:
        assert wait_for(lambda: _works(server.url)), server.log.read_text()
        yield server.url


def _static(*targets: str) -> dict[str, Any]:
    return {"static_configs": [{"targets": list(targets)}]}


def _works(url: str) -> bool:
    """Whether it has scraped and knows its Alertmanager, which it finds out seconds after it says that it is ready."""
    try:
        return bool(_get(f"{url}/api/v1/alertmanagers")["activeAlertmanagers"] and query(url, "up"))
    except OSError:
        return False


def firing(url: str) -> list[dict[str, Any]]:
    """What Prometheus alerts about now."""
    found: list[dict[str, Any]] = _get(f"{url}/api/v1/alerts")["alerts"]
    return [alert for alert in found if alert["state"] == "firing"]


def query(url: str, promql: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = _get(f"{url}/api/v1/query?{urllib.parse.urlencode({'query': promql})}")["result"]
    return found


def reload(url: str) -> None:
    """Reads its files again; alerts keep their state."""
    with urllib.request.urlopen(f"{url}/-/reload", data=b"", timeout=CEILING_SECONDS):
        pass


def judged_until(url: str, groups: Container[str]) -> float:
    """Unix seconds until which these groups of rules have judged what was scraped: an evaluation's own time is that of its
    interval's begin."""
    found = [group for group in _get(f"{url}/api/v1/rules")["groups"] if group["name"] in groups]
    return min(datetime.fromisoformat(group["lastEvaluation"]).timestamp() - group["interval"] for group in found)


def rule_troubles(url: str) -> list[str]:
    """The last errors of rules that could not be evaluated."""
    rules = (rule for group in _get(f"{url}/api/v1/rules")["groups"] for rule in group["rules"])
    return [f"{rule['name']}: {rule['lastError']}" for rule in rules if rule.get("lastError")]


def _get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=CEILING_SECONDS) as result:
        return json.load(result)["data"]


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
