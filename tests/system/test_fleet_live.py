"""Role fleet over a real Prometheus that scrapes real node agents: a cascade on one replica, an agent killed, the store stopped."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from daemon_runs import PLAN, ask, process, results
from paths import TESTS
from waiting import CEILING_SECONDS, free_port, wait_for, wait_until_answered

from agent.demo.engines import Player, track
from agent.sources.recording import load

RECORDINGS = TESTS / "recordings"
TIER = "cpu-small"


class Prometheus:
    """A server that scrapes these addresses every second; its data stay when it is stopped and started again."""

    def __init__(self, folder: Path, targets: list[str]) -> None:
        server = shutil.which("prometheus")
        if server is None:
            pytest.skip("prometheus is not here: role fleet was NOT run against a real store")
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        jobs = [{"job_name": "sizewatch", "static_configs": [{"targets": targets}]}]
        path = folder / "prometheus.yml"
        path.write_text(json.dumps({"global": {"scrape_interval": "1s"}, "scrape_configs": jobs}))
        where = (f"--config.file={path}", f"--storage.tsdb.path={folder / 'data'}")
        self._command = (server, *where, f"--web.listen-address=127.0.0.1:{self.port}", "--log.level=error")
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_until_answered(f"{self.url}/-/ready")

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(CEILING_SECONDS)
            self._process = None


@contextmanager
def agent(folder: Path, **keys: Any) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`sizewatch run` with these keys, and its address."""
    folder.mkdir()
    port = free_port()
    path = folder / "sizewatch.yaml"
    data = {"plan": str(PLAN), "web": {"listen": f"127.0.0.1:{port}"}, **keys}
    path.write_text(yaml.safe_dump(data), encoding="utf-8")
    url = f"http://127.0.0.1:{port}/"
    with process("run", "-c", str(path)) as started:
        assert wait_for(lambda: results(url) or started.poll() is not None)
        yield started, url


def node(folder: Path, replica: str, url: str) -> Any:
    target = {"url": url, "tier": TIER, "replica": replica}
    return agent(folder, role="node", scrape_interval="1s", targets=[target], gpus={"source": "none"})


class Pace:
    """Seconds that pass as in life, and ten times slower once asked: a cascade of a minute then outlasts a busy machine."""

    def __init__(self) -> None:
        self._slow_at: float | None = None

    def __call__(self) -> float:
        now, slow_at = time.time(), self._slow_at
        return now if slow_at is None else slow_at + (now - slow_at) / 10.0

    def slow_down(self) -> None:
        self._slow_at = time.time()


class Seen:
    """What the fleet's own pages say."""

    def __init__(self, url: str) -> None:
        self.url = url

    def metrics(self) -> dict[str, float]:
        lines = (line for line in ask(self.url, "metrics").decode().splitlines() if not line.startswith("#"))
        return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}

    def result(self, rule: str, replica: str | None = None) -> dict[str, Any]:
        found = json.loads(ask(self.url, "api/status"))
        (tier,) = found["tiers"]
        told = [*tier["verdicts"], *tier["unknowns"]]
        return next((one for one in told if one["rule"] == rule and one.get("replica") == replica), {})

    def status(self, rule: str, replica: str | None = None) -> str:
        """What stands; of what is ok the page lists nothing."""
        found = self.result(rule, replica)
        return "unknown" if "reason" in found else str(found.get("status", "ok"))

    @property
    def in_sight(self) -> bool:
        return self.metrics().get(f'sizewatch_tier_in_sight{{tier="{TIER}"}}') == 1.0


def test_a_fleet_finds_a_cascade_and_outlives_its_store_and_an_agent(tmp_path: Path) -> None:
    tracks = (
        track(load(RECORDINGS / "steady")[0], "calm", 0.0),
        track(load(RECORDINGS / "cascade_fast")[0], "full", 38.0),
    )
    with ExitStack() as stack:
        pace = Pace()
        player = Player(tracks, pace)
        stack.callback(player.stop)
        _, one = stack.enter_context(node(tmp_path / "one", "r-calm", player.url("calm")))
        second, other = stack.enter_context(node(tmp_path / "two", "r-full", player.url("full")))
        store = Prometheus(tmp_path, [url.removeprefix("http://").rstrip("/") for url in (one, other)])
        store.start()
        stack.callback(store.stop)
        fleet = {"cycle": "5s", "delay": "2s", "back_fill": "0s"}
        keys = {
            "role": "fleet",
            "store": {"url": store.url, "timeout": "30s"},
            "fleet": fleet,
            "forecast": {"enabled": False},
        }
        _, url = stack.enter_context(agent(tmp_path / "fleet", **keys))
        seen = Seen(url)

        def is_critical() -> bool:
            return seen.status("KvCacheCascade", "r-full") == "critical"

        assert wait_for(lambda: Seen(other).status("KvCacheCascade", "r-full") == "critical", every=0.1)
        pace.slow_down()
        assert wait_for(is_critical, every=0.1)
        assert wait_for(lambda: seen.status("KvCacheCascade", "r-calm") == "ok", every=0.1)
        down = f'sizewatch_verdict{{replica="",rule="TierDown",tier="{TIER}"}}'
        assert wait_for(lambda: seen.metrics().get(down) == 0.0, every=0.1)
        assert not [name for name in seen.metrics() if 'replica="r-' in name], "the agents tell of their replicas"

        assert wait_for(is_critical, every=0.1)
        store.stop()
        assert wait_for(lambda: not seen.in_sight, every=0.1)
        assert seen.result("KvCacheCascade", "r-full")["silent"]["reason"] == "stale"
        assert seen.result("TierDown")["reason"] == "stale"
        assert down not in seen.metrics()
        store.start()
        assert wait_for(lambda: seen.in_sight, every=0.1)
        assert wait_for(is_critical, every=0.1)
        assert wait_for(lambda: seen.status("TierDown") == "ok", every=0.1)

        second.kill()
        assert wait_for(lambda: seen.status("TargetDown", "r-full") == "warning", every=0.1)
        assert "no scrape of it" in seen.result("TargetDown", "r-full")["sentence"]
        # A late scrape of it may be unknown for a moment; it is never down.
        assert wait_for(lambda: seen.status("TargetDown", "r-calm") == "ok", every=0.1)
        assert wait_for(lambda: seen.status("TierDown") == "ok", every=0.1)
