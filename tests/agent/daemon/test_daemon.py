"""The daemon in one process with real engines, a real history and real pages: what it survives, and what it tells."""

import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import yaml
from daemon_runs import (
    ask,
    at_port,
    configuration,
    further,
    health,
    made,
    metric,
    reload_daemon,
    running,
    stepping,
    write,
)
from engine_server import answers_500, engines
from forecast_samples import keep
from loops import scrape_loop
from paths import TESTS
from status_samples import NOW, cascading_tier
from test_keeping import locked
from waiting import CEILING_SECONDS, StandingClock, free_port, wait_for

from agent.config.load import LoadedConfig
from agent.daemon import jobs
from agent.daemon.assembly import Assembly, assemble
from agent.daemon.daemon import Daemon
from agent.errors import ConfigError
from agent.history.store import HistoryStore, Reader
from agent.scrape.scrapers import Scrapers
from exporters.metrics.exposition import render
from exporters.status.page import render_page
from exporters.status.records import AgentStatus
from rules.evaluator.alert_severity import RESOLVED_KEPT_SECONDS
from rules.evaluator.timeline import TimelineKind
from rules.telemetry.signals import Gap
from rules.verdicts.verdict import UNASKED_SECONDS, Finding, RuleState, Subject, Unknown, step_rule_state

DOWN = ("TargetDown", Subject(tier="cpu-small", replica="r0"))


def told(daemon: Daemon) -> AgentStatus:
    status = daemon.status()
    assert status is not None
    return status


def up(daemon: Daemon) -> list[bool]:
    """Of each replica in the order of the targets."""
    return [r.up for tier in told(daemon).tiers for r in tier.replicas]


def changes(reader: Reader) -> list[str]:
    """The events of a history; how long ago the engines of the recorded pages started depends on the day of the test."""
    return [event.kind for event in reader.events(0.0) if event.kind != TimelineKind.COLD_START]


def test_reload_keeps_replicas_until_removed(tmp_path: Path) -> None:
    clock, calm = StandingClock(time.time()), {"scrape_interval": "15s"}
    with engines(3) as served, stepping(write(tmp_path, configuration(served[:2], **calm)), clock) as stepped:
        daemon = stepped.daemon
        served[0].act = answers_500
        for _ in range(4):
            stepped.step(15.0)
        since = daemon.loop.state.rules[DOWN].finding
        seen = daemon.assembly.runtime.replicas["cpu-small", "r1"].sums.window().start
        reload_daemon(daemon, configuration(served, **calm))
        stepped.step(15.0)
        assert up(daemon) == [False, True, True]
        assert daemon.loop.state.rules[DOWN].finding.started_at == since.started_at
        assert daemon.assembly.runtime.replicas["cpu-small", "r1"].sums.window().start == seen
        assert daemon.counts.cycle_errors == 0
        with HistoryStore.open_reader(tmp_path / "sizewatch-data" / "history.db") as reader:
            assert wait_for(lambda: changes(reader) == ["start", "reload"])
        data = configuration(served, **calm)
        reload_daemon(daemon, {**data, "targets": data["targets"][1:]})
        stepped.step(15.0)
        assert up(daemon) == [True, True]
        assert [e.rule for e in told(daemon).tiers[0].findings if e.ended_at is not None] == ["TargetDown"]


def test_another_address_is_another_process(tmp_path: Path) -> None:
    with engines(2) as served:
        for engine in served:
            engine.pages = [page.replace(b"process_start_time", b"x") for page in engine.pages]
        served[1].asked = [0.0] * 40
        with stepping(write(tmp_path, configuration(served[:1])), StandingClock(time.time())) as stepped:
            stepped.step(15.0)
            data = configuration(served[1:])
            reload_daemon(stepped.daemon, data)
            stepped.step(15.0)
            data["targets"][0]["url"] += "?x"
            reload_daemon(stepped.daemon, data)
            stepped.step(15.0)
            window = stepped.daemon.assembly.runtime.replicas["cpu-small", "r0"].sums.window()
    assert window.counters.get("requests_finished", 0.0) < 50


def test_bad_configuration_is_reported_until_mended(tmp_path: Path) -> None:
    with engines() as served, running(write(tmp_path, configuration(served))) as daemon:
        data = configuration(served)
        write(tmp_path, {**data, "scrape_intervall": "5s", "role": "planet"})
        daemon.ask_reload()
        trouble = wait_for(lambda: daemon.counts.config_trouble)
        assert all(key in trouble for key in ("scrape_intervall", "role"))
        further(daemon)
        assert wait_for(lambda: up(daemon) == [True])
        assert metric(daemon, "sizewatch_config_last_reload_successful") == 0
        assert b"Configuration reload failed" in ask(daemon)
        (tmp_path / "sizewatch.yaml").unlink()
        daemon.ask_reload()
        assert wait_for(lambda: "no such file" in str(daemon.counts.config_trouble))
        reload_daemon(daemon, data)
        assert metric(daemon, "sizewatch_config_last_reload_successful") == 1
        assert daemon.counts.cycle_errors == 0


def test_unchanged_web_options_are_no_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with engines() as served:
        path = write(tmp_path, configuration(served))
        used = path.read_text()
        with running(path) as daemon:
            for text in (f"{used}\nweb: {{hosts: [a]}}\n", f"{used}\nweb: {{hosts: [a]}}\n", used):
                path.write_text(text)
                reload_daemon(daemon)
    assert caplog.text.count("web options changed") == 1


def test_unusable_report_directory_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with engines() as served:
        path = write(tmp_path, configuration(served, report={"directory": "file"}))
        with pytest.raises(ConfigError, match=r"report\.directory: .*file cannot be written \(File exists\)"):
            made(path).start()


def test_defect_in_reload_costs_the_reload(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def once(loaded: LoadedConfig, before: Assembly | None) -> Assembly:
        if before is not None:
            raise ZeroDivisionError("a defect")
        return assemble(loaded)

    with engines() as served, running(write(tmp_path, configuration(served)), assemble=once) as daemon:
        daemon.ask_reload()
        assert wait_for(lambda: daemon.counts.config_trouble) == "defect in sizewatch: ZeroDivisionError, see its log"
        further(daemon)
        assert wait_for(lambda: up(daemon) == [True])
        assert daemon.counts.cycle_errors == 1
    assert any(record.exc_info for record in caplog.records)


def test_cycles_continue_while_reload_prepares(tmp_path: Path) -> None:
    released, begun = threading.Event(), threading.Event()

    def slow(loaded: LoadedConfig, before: Assembly | None) -> Assembly:
        if before is not None:
            begun.set()
            released.wait(CEILING_SECONDS)
        return assemble(loaded, before)

    with engines() as served, running(write(tmp_path, configuration(served)), assemble=slow) as daemon:
        daemon.ask_reload()
        assert begun.wait(CEILING_SECONDS)
        further(daemon, 3)
        daemon.ask_reload()
        released.set()
        # The second request came while the first was prepared.
        assert wait_for(lambda: daemon.counts.config_reloads == 2)
    assert daemon.counts.cycle_errors == 0


def test_history_moves_with_reload(tmp_path: Path) -> None:
    with engines() as served, running(write(tmp_path, configuration(served))) as daemon:
        reload_daemon(daemon, configuration(served, data_dir=str(tmp_path / "other")))
        further(daemon)
        assert (tmp_path / "other" / "history.db").is_file()
        write(tmp_path, configuration(served, data_dir=str(tmp_path / "sizewatch.yaml" / "no")))
        daemon.ask_reload()
        assert "cannot be written (" in wait_for(lambda: daemon.counts.config_trouble)
    assert daemon.counts.cycle_errors == 0


def test_unwritable_history_is_booked_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HistoryStore.__init__, "__defaults__", (0.05,))
    history, clock = tmp_path / "sizewatch-data" / "history.db", StandingClock(1_800_000_000.0)
    with engines() as served, stepping(write(tmp_path, configuration(served)), clock) as stepped:
        daemon = stepped.daemon
        with locked(history):
            assert stepped.steps_until(lambda: health(daemon)["unbooked_minutes"] >= 2, 5.0, 40)
            assert "database is locked" in health(daemon)["history_trouble"]
            assert metric(daemon, "sizewatch_history_up") == 0
            assert b"The history failed" in ask(daemon)
            stepped.step(5.0)
            assert wait_for(lambda: up(daemon) == [True])
        assert stepped.steps_until(lambda: health(daemon)["history_trouble"] is None, 5.0, 40)
        assert health(daemon)["unbooked_minutes"] == 0
        assert metric(daemon, "sizewatch_history_up") == 1
    with HistoryStore.open_reader(history) as reader:
        booked = reader.minutes("cpu-small", 1_800_000_000.0 - 60, clock.now)
    assert len({one.window.start // 60 for one in booked}) >= 2
    assert daemon.counts.cycle_errors == 0


def test_defect_in_cycle_costs_the_cycle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with engines() as served, running(write(tmp_path, configuration(served))) as daemon:
        step = daemon.loop.evaluator.step
        calls: list[int] = []

        def broken(*arguments: Any) -> Any:
            calls.append(1)
            if len(calls) <= 2:
                raise ZeroDivisionError("a defect")
            return step(*arguments)

        monkeypatch.setattr(daemon.loop.evaluator, "step", broken)
        assert wait_for(lambda: len(calls) >= 4)
        assert daemon.counts.cycle_errors == 2
        assert metric(daemon, "sizewatch_cycle_errors_total") == 2
        assert wait_for(lambda: up(daemon) == [True])
    assert "job failed job=cycle" in caplog.text
    assert any(record.exc_info for record in caplog.records)


def test_pages_are_served_during_reloads(tmp_path: Path) -> None:
    stop = threading.Event()
    with engines(2) as served, running(write(tmp_path, configuration(served)), speed=50.0) as daemon:

        def ask_on() -> None:
            while not stop.is_set():
                assert len(told(daemon).tiers[0].replicas) == 2

        with ThreadPoolExecutor(3) as pool:
            readers = [pool.submit(ask_on) for _ in range(3)]
            begin = daemon.counts.cycles
            for _ in range(5):
                daemon.ask_reload()
                further(daemon, 5)
            stop.set()
            for reader in readers:
                reader.result()
        assert daemon.counts.cycles - begin >= 25
        assert daemon.counts.config_reloads == 5
    assert daemon.counts.cycle_errors == 0


@pytest.mark.parametrize("delay", [0.0, 0.001, 0.01, 0.05, 0.15])
def test_reload_racing_stop_ends_in_order(tmp_path: Path, delay: float) -> None:
    with engines() as served, running(write(tmp_path, configuration(served)), cycles=1) as daemon:
        daemon.ask_reload()
        time.sleep(delay)
        daemon.stop()
        daemon.ask_reload()
    assert daemon.counts.cycle_errors == 0
    assert daemon.counts.config_trouble is None


def test_second_daemon_on_port_is_refused(tmp_path: Path) -> None:
    with engines() as served, running(write(tmp_path, configuration(served))) as daemon:
        listen = f"127.0.0.1:{daemon.web.port}"
        other = tmp_path / "other"
        other.mkdir()
        path = write(other, configuration(served, web={"listen": listen}))
        second = Daemon(made(path).loaded)
        with pytest.raises(ConfigError, match=rf"web.listen: cannot listen on {listen}: address already in use"):
            second.run()
        assert not (other / "sizewatch-data").exists()
        further(daemon)


def test_second_daemon_on_history_is_refused(tmp_path: Path) -> None:
    with engines() as served, running(write(tmp_path, configuration(served))) as daemon:
        port = free_port()
        second = made(tmp_path / "sizewatch.yaml", **at_port(port))
        with pytest.raises(ConfigError, match="is in use by another sizewatch"):
            second.run()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), timeout=CEILING_SECONDS)
        further(daemon)
        assert daemon.counts.cycle_errors == 0


def test_open_finding_ends_in_next_run(tmp_path: Path) -> None:
    path = tmp_path / "sizewatch.yaml"
    with engines() as served:
        clock = StandingClock(1_800_000_000.0)
        with stepping(write(tmp_path, configuration(served)), clock) as stepped:
            served[0].act = answers_500
            rules = stepped.daemon.loop.state.rules
            found = stepped.steps_until(lambda: DOWN in rules and rules[DOWN].finding, 5.0, 40)
            assert found is not None
            began = found.started_at
        with HistoryStore.open_reader(tmp_path / "sizewatch-data" / "history.db") as reader:
            assert {(e.started_at, e.ended_at) for e in reader.spans(Finding, 0.0)} == {(began, None)}
        served[0].act = None
        clock.now += 5.0
        with stepping(path, clock) as stepped:
            (found,) = [e for e in told(stepped.daemon).tiers[0].findings if e.rule == "TargetDown"]
            assert found.started_at == began
            assert found.ended_at is not None
    with HistoryStore.open_reader(tmp_path / "sizewatch-data" / "history.db") as reader:
        assert {(e.rule, e.started_at, e.ended_at is None) for e in reader.spans(Finding, 0.0)} == {
            ("TargetDown", began, False),
            ("TierDown", began, False),
        }
        assert changes(reader) == ["start", "stop"] * 2


# ---- forecasts ----

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


def forecast_of(daemon: Daemon) -> dict[str, Any]:
    """What the status page's twin says of the tier's forecast."""
    (tier,) = json.loads(ask(daemon, "api/status"))["tiers"]
    found: dict[str, Any] = tier["forecast"]
    return found


def test_a_forecast_is_shown_exported_and_judged(tmp_path: Path) -> None:
    with forecasting(tmp_path) as daemon:
        assert forecast_of(daemon)["gap"] == "no forecast is made yet"
        assert b"sizewatch_recommended_replicas" not in ask(daemon, "metrics")
        daemon.assembly.forecast(time.time())
        assert daemon.counts.cycle_errors == 0
        found = forecast_of(daemon)
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
        asked = daemon.assembly.forecasts.pid
        assert asked is not None
        data = yaml.safe_load((tmp_path / "sizewatch.yaml").read_text())
        reload_daemon(daemon, {**data, "forecast": {"bin": "15m"}})
        assert TIER in daemon.loop.state.projections
        daemon.assembly.forecast(time.time())
        assert daemon.assembly.forecasts.pid == asked
        assert forecast_of(daemon)["forecast"]["bin_seconds"] == 900.0
        reload_daemon(daemon, {**data, "forecast": {"enabled": False}})
        assert not Path(f"/proc/{asked}").exists()
        assert forecast_of(daemon)["gap"] == "forecasting is off (forecast.enabled: false)"
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


# ---- what pages and metrics print about the same findings ----


def test_unasked_finding_is_open_nowhere() -> None:
    """Such as speculation that was switched off. An alert of it must not come back, and a page not show it."""
    tier = cascading_tier()
    (finding,) = (one for one in tier.findings if one.rule == "KvCacheCascade" and one.ended_at is None)
    parts = scrape_loop((), {tier.name: tier.context}, Scrapers(()), lambda: NOW)
    key, state = (finding.rule, finding.subject), RuleState(result=finding.worst, finding=finding)
    for waited in (0.0, UNASKED_SECONDS, UNASKED_SECONDS + 1.0, UNASKED_SECONDS + RESOLVED_KEPT_SECONDS + 60.0):
        off = Unknown(rule=finding.rule, subject=finding.subject, t=NOW + waited, reason=Gap.NOT_EXPOSED, text="")
        state, ended = step_rule_state(state, off)
        parts.loop.state.rules[key] = state
        parts.runtime.past.extend(one for one in ended if isinstance(one, Finding))
        status, shown = parts.status(NOW + waited), waited <= UNASKED_SECONDS
        (incident,) = status.incidents[tier.name]
        assert incident.ended_at == (None if shown else NOW + UNASKED_SECONDS + 1.0)
        assert bool(status.incident_alerts[tier.name]) is shown
        assert ("sizewatch_incident{" in render(status, "text/plain")[0].decode()) is shown
        assert ('class="incident' in render_page(status).decode()) is shown
        assert [one.ended_at for one in status.timeline] == [incident.ended_at] * 2
