"""A real Alertmanager on loopback, with a configuration of the test's."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tools
from loopback import program
from waiting import CEILING_SECONDS, free_port


@contextmanager
def alertmanager(folder: Path, configuration: Path, port: int = 0) -> Iterator[str]:
    """Its address; it stops at the end of the block."""
    port = port or free_port()
    command = (
        tools.tool("prometheus-alertmanager"),
        f"--config.file={configuration}",
        f"--storage.path={folder / 'alertmanager'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--cluster.listen-address=",
        "--log.level=error",
    )
    with program(command, f"http://127.0.0.1:{port}/-/ready"):
        yield f"http://127.0.0.1:{port}"


def post(url: str, alerts: list[dict[str, Any]]) -> None:
    """Alerts, as Prometheus or the agent posts them."""
    request = urllib.request.Request(
        f"{url}/api/v2/alerts", json.dumps(alerts).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=CEILING_SECONDS) as result:
        assert result.status == 200


def alerts(url: str) -> list[dict[str, Any]]:
    """What it holds now."""
    with urllib.request.urlopen(f"{url}/api/v2/alerts", timeout=CEILING_SECONDS) as result:
        found: list[dict[str, Any]] = json.load(result)
    return found
