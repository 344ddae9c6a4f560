"""A daemon with a real forecasting process: what it shows, judges and exports of it, and how both end."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import yaml
from daemon_runs import ask, configuration, health, metric, running, write
from engine_server import engines
from forecast_samples import keep
from paths import TESTS
from waiting import wait_for

from agent.daemon import jobs
from agent.daemon.daemon import Daemon

TIER = "cpu-small"
ON = {"forecast": {"zone": "Europe/Berlin"}}


@contextmanager
def forecasting(folder: Path, minutes: int = 600, **keys: Any) -> Iterator[Daemon]:
    """A daemon whose history reaches until now; its forecasts are made when a test says so."""
    (folder / "sizewatch-data").mkdir(mode=0o700, exist_ok=True)
    if minutes:
        keep(folder / "sizewatch-data" / "history.db", minutes, time.time() // 60 * 60, TIER)
    plan = yaml.safe_load((TESTS / "plans" / "cpu-small.yaml").read_text())
    plan["tiers"][TIER] |= {
        "cold_start_seconds": 140,
        "fleet": {"instances": 4, "safety_factor": 1.2, "minimum_warm": 1},
    }
    (folder / "plan.yaml").write_text(yaml.safe_dump(plan))
    with (
        patch.dict(jobs.SECONDS, {jobs.FORECAST: 1e8}),
        engines(1) as served,
        running(write(folder, configuration(served, plan="plan.yaml", **{**ON, **keys}))) as daemon,
    ):
        yield daemon


def pid(daemon: Daemon) -> int:
    forecasts = daemon.assembly.forecasts
    assert forecasts.pid is not None
    return forecasts.pid


def told(daemon: Daemon) -> dict[str, Any]:
    """What the status page's twin says of the tier's forecast."""
    (tier,) = json.loads(ask(daemon, "api/status"))["tiers"]
    found: dict[str, Any] = tier["forecast"]
    return found


def test_a_forecast_is_shown_exported_and_judged(tmp_path: Path) -> None:
    with forecasting(tmp_path) as daemon:
        assert told(daemon)["gap"] == "no forecast is made yet"
        assert b"sizewatch_recommended_replicas" not in ask(daemon, "metrics")
        daemon.assembly.forecast(time.time())
        assert daemon.counts.cycle_errors == 0
        found = told(daemon)
        assert found["recommended"] >= 1
        assert found["ready"] == 1
        assert "The plan's 140 s are the lead" in found["prewarm"]["recommendation"]["lead_source"]
        assert found["forecast"]["method"] == "same as now"
        assert metric(daemon, "sizewatch_recommended_replicas") == found["recommended"]
        assert metric(daemon, "sizewatch_minimum_warm_replicas") == 1
        assert metric(daemon, "sizewatch_forecast_lead_seconds") == 140
        assert health(daemon)["forecasting"]["runs"] == 1
        assert 30e6 < health(daemon)["forecasting"]["memory_bytes"] < 300e6
        page = ask(daemon).decode()
        assert "<h3>Forecast</h3>" in page
        assert "Needs 2 days of history, has 10 hours" in page
        projection = daemon.loop.state.projections[TIER]
        assert projection.horizon_seconds == 140.0
        assert len(projection.points) < 8


def test_reload_continues_or_ends_forecasting(tmp_path: Path) -> None:
    with forecasting(tmp_path) as daemon:
        daemon.assembly.forecast(time.time())
        asked = pid(daemon)
        data = yaml.safe_load((tmp_path / "sizewatch.yaml").read_text())
        write(tmp_path, {**data, "forecast": {"bin": "15m"}})
        daemon.ask_reload()
        assert wait_for(lambda: daemon.counts.config_reloads == 1)
        assert TIER in daemon.loop.state.projections
        daemon.assembly.forecast(time.time())
        assert pid(daemon) == asked
        assert told(daemon)["forecast"]["bin_seconds"] == 900.0
        write(tmp_path, {**data, "forecast": {"enabled": False}})
        daemon.ask_reload()
        assert wait_for(lambda: daemon.counts.config_reloads == 2)
        assert not Path(f"/proc/{asked}").exists()
        assert told(daemon)["gap"] == "forecasting is off (forecast.enabled: false)"
        assert daemon.loop.state.projections == {}
        daemon.assembly.forecast(time.time())
        assert daemon.counts.cycle_errors == 0


def test_the_schedule_makes_forecasts_by_itself(tmp_path: Path) -> None:
    """Once a minute; these minutes are as fast as the cycles, a tenth of a second more would be due to the machine."""
    with engines(1) as served:
        path = write(tmp_path, configuration(served, **ON))
        with running(path, speed=100.0) as daemon:
            assert wait_for(lambda: health(daemon)["forecasting"]["runs"] >= 2)
            assert daemon.counts.cycle_errors == 0
