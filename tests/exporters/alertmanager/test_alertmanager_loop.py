"""The whole way with a real Alertmanager: a recorded engine, the daemon, Alertmanager, whom it calls, and back."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from alert_path_servers import Alertmanager, Pager, hooked_alertmanager, pager
from daemon_runs import StandingClock, ask, configuration, further, metric, running, write
from engine_server import Engine, answers_500, engines
from test_alert_path import STEP, watched
from waiting import free_port, wait_for

from agent.cli import main
from agent.daemon.daemon import Daemon
from exporters.alertmanager.payload import timestamp
from exporters.render.text import alert_name
from rules.evaluator.incident_alerts import KEEP_SECONDS

pytestmark = pytest.mark.server

TOKEN = "a-token-of-the-webhook"
CASCADE = "KvCacheCascade"


def hooks(called: Pager, port: int | None = None) -> list[dict[str, Any]]:
    """Whom Alertmanager calls: the pager, and the webhook of a daemon."""
    several: list[dict[str, Any]] = [{"url": called.url}]
    if port is not None:
        login = {"authorization": {"credentials": TOKEN}}
        several.append({"url": f"http://127.0.0.1:{port}/webhook/alertmanager", "http_config": login})
    return several


def _pages(daemon: Daemon) -> bool:
    """Whether its cascade pages."""
    status = daemon.status()
    return any(one.rule == CASCADE for alerts in status.incident_alerts.values() for one in alerts)


def fingerprints(several: list[dict[str, Any]]) -> set[str]:
    return {alert["fingerprint"] for alert in several}


def test_cascade_pages_once_and_resolves(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # What is replayed is over before now by Alertmanager's clock.
    port, clock = free_port(), StandingClock(time.time() - 600.0)
    (tmp_path / "token").write_text(TOKEN)
    with pager() as called, hooked_alertmanager(tmp_path / "am", *hooks(called, port)) as manager:
        keys = {
            "path": "posts",
            "resend": "5m",
            "alertmanagers": [{"url": manager.url}],
            "receiver": {"bearer_token_file": "token"},
            "external_labels": {"cluster": "test"},
        }
        with watched(tmp_path, port, clock, alerting=keys) as watching:
            daemon = watching.daemon
            assert watching.steps_until(lambda: _pages(daemon), STEP, 30), "no page"
            assert wait_for(lambda: called.told(alert_name(CASCADE), "firing")), daemon.counts
            (alert,) = manager.alerts(alert_name(CASCADE))
            assert alert["labels"] == {
                "alertname": alert_name(CASCADE),
                "tier": "cpu-small",
                "replica": "r0",
                "severity": "critical",
                "source": "sizewatch",
                "cluster": "test",
            }
            said = alert["annotations"]
            assert said["description"].startswith(said["summary"].removeprefix("cpu-small: "))
            assert "First suspect: " in said["description"]
            assert said["runbook_url"].endswith("#kvcachecascade")
            assert said["queue"].endswith(" waiting")
            assert said["actions"]

            # Their alert begins now by the clock that the daemon reads, some minutes ago by Alertmanager's.
            theirs = {"labels": {"alertname": "ApiLatencyHigh", "instance": "r0"}, "annotations": {"summary": "slow"}}
            manager.post({**theirs, "startsAt": timestamp(clock())})
            diagnosed = wait_for(
                lambda: watching.step(0.0) or called.told("SizewatchForeignAlertDiagnosis", "firing"), every=0.1
            )
            assert diagnosed, daemon.status()
            summary = diagnosed[0]["annotations"]["summary"]
            assert "ApiLatencyHigh in cpu-small/r0: this latency alert: KV cache cascade of r0, stage" in summary
            assert summary.endswith("earlier")
            assert diagnosed[0]["labels"]["severity"] == "info"
            assert metric(daemon, "sizewatch_foreign_alerts") == 1

            assert watching.steps_until(lambda: not _pages(daemon), STEP, 20), "it does not end"
            for _ in range(round(KEEP_SECONDS / STEP) + 1):
                watching.step(STEP)
            assert wait_for(lambda: called.told(alert_name(CASCADE), "resolved")), manager.alerts()
            (resolved,) = called.told(alert_name(CASCADE), "resolved")
            assert resolved["annotations"]["stage"] == "4 of 4, user-visible"
            fired = fingerprints(called.told(alert_name(CASCADE), "firing"))
            assert fired == {resolved["fingerprint"]} == {alert["fingerprint"]}
            ours = [a for message in called.messages for a in message["alerts"] if "foreign" not in str(a["labels"])]
            assert {a["labels"]["alertname"] for a in ours} <= {alert_name(CASCADE), "ApiLatencyHigh"}
            page = ask(daemon).decode()
            assert "ApiLatencyHigh" in page
            assert "Timeline of the last day" in page
            # Alertmanager sends each message to both: our own alerts came back, and none counts as another's.
            messages = len(called.messages)
            assert wait_for(lambda: json.loads(ask(daemon, "api/status"))["agent"]["webhook"]["taken"] >= messages > 1)
            status = json.loads(ask(daemon, "api/status"))
            assert [one["name"] for one in status["foreign_alerts"]] == ["ApiLatencyHigh"]
    capsys.readouterr()
    assert main.main(["timeline", "-c", str(tmp_path / "sizewatch.yaml"), "--tier", "cpu-small"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any("sizewatch started" in one for one in lines)
    assert any("foreign alert: ApiLatencyHigh: this latency alert: KV cache" in one for one in lines)
    assert any("  page: " in one and "miss the 2 s TTFT objective" in one for one in lines)
    assert "sizewatch stopped" in lines[-1]


@contextmanager
def posting(
    folder: Path, manager: Alertmanager, served: list[Engine], resend: str = "5s", **keys: Any
) -> Iterator[Daemon]:
    alerting = {"path": "posts", "resend": resend, "alertmanagers": [{"url": manager.url}]}
    with running(write(folder, configuration(served, alerting=alerting) | keys)) as daemon:
        yield daemon


def firing(manager: Alertmanager) -> list[dict[str, Any]]:
    return [a for a in manager.alerts("SizewatchTierDown") if a["status"]["state"] == "active"]


def list_marks(manager: Alertmanager) -> dict[str, tuple[str, str]]:
    """Return fingerprint and begin of the firing alerts by tier."""
    return {a["labels"]["tier"]: (a["fingerprint"], a["startsAt"]) for a in firing(manager)}


def trouble(daemon: Daemon) -> str | None:
    status = daemon.status()
    return status.health.alertmanagers[0].trouble


@pytest.mark.usefixtures("without_waits")
def test_outage_ends_with_present_state(tmp_path: Path) -> None:
    with pager() as called, hooked_alertmanager(tmp_path / "am", *hooks(called)) as manager, engines(3) as served:
        tiers = [{"url": one.url, "tier": f"t{n}", "replica": "r"} for n, one in enumerate(served)]
        with posting(tmp_path, manager, served, targets=tiers) as daemon:
            # t0 fires before and after, t1 only before the outage, t2 begins and ends within it.
            served[0].act = served[1].act = answers_500
            assert wait_for(lambda: len(called.told("SizewatchTierDown", "firing")) == 2)
            before = list_marks(manager)
            assert set(before) == {"t0", "t1"}
            manager.kill()
            served[1].act, served[2].act = None, answers_500
            assert wait_for(lambda: trouble(daemon) is not None)
            assert "refused; is it up?" in str(trouble(daemon))
            served[2].act = None
            further(daemon, 5)
            turns = daemon.counts.cycles
            assert metric(daemon, "sizewatch_alertmanager_up") == 0
            assert b"Alertmanager unreachable" in ask(daemon)
            assert wait_for(lambda: daemon.counts.cycles > turns + 5)
            seen = len(called.messages)
            manager.start()
            assert wait_for(lambda: firing(manager))
            assert list_marks(manager) == {"t0": before["t0"]}
            assert wait_for(lambda: metric(daemon, "sizewatch_alertmanager_up") == 1)
            time.sleep(0.5)
            later = [a for message in called.messages[seen:] for a in message["alerts"]]
            assert {(a["labels"]["tier"], a["status"]) for a in later} <= {("t0", "firing"), ("t1", "resolved")}
            served[0].act = None
            resolved = partial(called.told, "SizewatchTierDown", "resolved")
            assert wait_for(lambda: any(a["labels"]["tier"] == "t0" for a in resolved()))
            assert daemon.counts.cycle_errors == 0
        assert fingerprints(called.told("SizewatchTierDown", "firing")) == {mark for mark, _ in before.values()}


@pytest.mark.usefixtures("without_waits")
def test_agent_restart_makes_no_second_alert(tmp_path: Path) -> None:
    with pager() as called, hooked_alertmanager(tmp_path / "am", *hooks(called)) as manager, engines() as served:
        with posting(tmp_path, manager, served, resend="1m"):
            served[0].act = answers_500
            assert wait_for(lambda: called.told("SizewatchTierDown", "firing"))
            (before,) = firing(manager)
        with posting(tmp_path, manager, served, resend="1m") as daemon:
            status = daemon.status()
            (since,) = (alert.since for alerts in status.incident_alerts.values() for alert in alerts)
            assert since == pytest.approx(_seconds(before["startsAt"]), abs=0.001)
            assert wait_for(lambda: firing(manager)[0]["updatedAt"] > before["updatedAt"])
            (after,) = firing(manager)
            assert (after["fingerprint"], after["startsAt"]) == (before["fingerprint"], before["startsAt"])
            served[0].act = None
            assert wait_for(lambda: called.told("SizewatchTierDown", "resolved"))
        assert len(called.told("SizewatchTierDown", "firing")) == 1


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


@pytest.mark.usefixtures("without_waits")
def test_alert_lapses_only_when_not_resent(tmp_path: Path) -> None:
    with pager() as called, hooked_alertmanager(tmp_path / "am", *hooks(called)) as manager, engines() as served:
        with posting(tmp_path, manager, served, resend="2s"):
            served[0].act = answers_500
            assert wait_for(lambda: called.told("SizewatchTierDown", "firing"))
            (first,) = firing(manager)
            (later,) = wait_for(
                lambda: [a for a in firing(manager) if _seconds(a["updatedAt"]) > _seconds(first["endsAt"])]
            )
            assert later["startsAt"] == first["startsAt"], "it is the same one, that never ended"
            assert called.told("SizewatchTierDown", "resolved") == []
        assert wait_for(lambda: called.told("SizewatchTierDown", "resolved"))


def test_path_rules_posts_nothing(tmp_path: Path) -> None:
    with engines() as served, running(write(tmp_path, configuration(served))) as daemon:
        served[0].act = answers_500
        assert wait_for(lambda: (status := daemon.status()) and any(status.incidents.values()))
        assert daemon.assembly.alerting is None
