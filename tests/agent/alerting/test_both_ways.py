"""Alerts both ways in a daemon, without an Alertmanager: what goes on over a reload, and what a defect costs."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import making
import pytest
from daemon_runs import configuration, further, running, write
from engine_server import answers_500, engines
from test_delivery import Manager, manager, names
from waiting import wait_for

from agent.alerting.service import AlertingService
from agent.config.load import parse_config
from agent.daemon.daemon import Daemon
from agent.history.store import HistoryStore
from exporters.status.records import ExportScope
from rules.evaluator.observation import Observation
from rules.evaluator.state import EvaluatorState
from rules.evaluator.step import Evaluator
from rules.verdicts.verdict import RuleState, Status, Verdict, step_rule_state

pytestmark = pytest.mark.usefixtures("without_waits")


def alerting(there: Manager, **keys: Any) -> dict[str, Any]:
    return {"path": "posts", "alertmanagers": [{"url": f"http://127.0.0.1:{there.server_address[1]}"}], **keys}


def posted(there: Manager) -> set[str]:
    return {name for body in list(there.bodies) for name in names(body)}


def reload(daemon: Daemon) -> None:
    before = daemon.counts.config_reloads
    daemon.ask_reload()
    assert wait_for(lambda: daemon.counts.config_reloads > before), daemon.counts


def test_reload_keeps_or_moves_delivery(tmp_path: Path) -> None:
    with manager() as first, manager() as second, engines() as served:
        path = write(tmp_path, configuration(served, alerting=alerting(first)))
        with running(path) as daemon:
            served[0].act = answers_500
            assert wait_for(lambda: "SizewatchTierDown" in posted(first))
            (thread,) = (one._thread for one in daemon.assembly.alerting.deliveries)  # type: ignore[union-attr]
            write(tmp_path, configuration(served, alerting=alerting(first), logging={"level": "warning"}))
            reload(daemon)
            further(daemon)
            assert [one._thread for one in daemon.assembly.alerting.deliveries] == [thread]  # type: ignore[union-attr]
            write(tmp_path, configuration(served, alerting=alerting(second)))
            reload(daemon)
            assert wait_for(lambda: "SizewatchTierDown" in posted(second))
            assert wait_for(lambda: not thread.is_alive())  # type: ignore[union-attr]
            write(tmp_path, configuration(served))
            reload(daemon)
            assert daemon.assembly.alerting is None
            further(daemon)
            assert daemon.counts.cycle_errors == 0


def test_defect_in_alerting_costs_no_minute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError

    with manager() as there, engines() as served:
        path = write(tmp_path, configuration(served, alerting=alerting(there)))
        with running(path) as daemon, monkeypatch.context() as patched:
            patched.setattr("agent.alerting.service.group_incidents", broken)
            further(daemon, 2)
            assert daemon.loop.defects >= 2
    assert "sink failed sink=AlertingService" in caplog.text
    with HistoryStore.open_reader(tmp_path / "sizewatch-data" / "history.db") as reader:
        assert reader.minutes("cpu-small", 0.0, 1e11)


def test_only_the_path_posts_posts() -> None:
    keys = parse_config({"alerting": {"path": "rules"}}).alerting
    assert AlertingService(keys).deliveries == ()
    assert AlertingService(keys).receiver is None


def firing(rule: str, t: float, sentence: str = "It is seen", replica: str | None = None) -> Verdict:
    return making.verdict(rule, replica, t, sentence=sentence, status=Status.CRITICAL)


def service(before: AlertingService | None = None) -> AlertingService:
    keys = parse_config({"alerting": {"path": "posts", "alertmanagers": [{"url": "http://127.0.0.1:9"}]}}).alerting
    ended = AlertingService(keys, before=before)
    # Their deliveries have ended: alerts are updated, and nothing is sent.
    ended.close()
    return ended


@pytest.mark.parametrize(
    ("scope", "told"),
    [(ExportScope.ALL, ["KvCacheCascade", "TtftSloBurn"]), (ExportScope.REPLICAS, ["KvCacheCascade"])],
)
def test_alerts_have_newest_sentence_in_scope(scope: ExportScope, told: list[str]) -> None:
    rules = []
    for rule, replica in (("KvCacheCascade", "r"), ("TtftSloBurn", None)):
        first, _ = step_rule_state(None, firing(rule, 0.0, "It began", replica))
        milder = replace(firing(rule, 60.0, "It goes on", replica), status=Status.WARNING)
        rules.append(step_rule_state(first, milder)[0])
    sink = service()
    post(sink, 60.0, *rules, scope=scope)
    alert = sink.foreign.incident_alerts[0]
    assert [one.rule for one in alert.incident.findings] == told
    assert alert.incident.sentence.startswith("It goes on since")


def test_alert_keeps_name_over_reload() -> None:
    rules = ("TpotDivergence", "ItlDivergence")
    first, later = (step_rule_state(None, firing(rule, 60.0 * n))[0] for n, rule in enumerate(rules))
    before = service()
    post(before, 90.0, first, later)
    after = service(before)
    post(after, 100.0, later)
    assert [alert.rule for alert in after.foreign.incident_alerts] == ["TpotDivergence"]


def post(alerting: AlertingService, now: float, *rules: RuleState, scope: ExportScope = ExportScope.ALL) -> None:
    """Run a cycle of a loop whose state has these rules."""
    state = EvaluatorState()
    state.rules = {(rule.result.rule, rule.result.subject): rule for rule in rules}
    source: Any = SimpleNamespace(targets=(), export_scope=lambda tier: scope)
    loop: Any = SimpleNamespace(source=source, state=state, evaluator=Evaluator({}))
    alerting.connect(loop, list)
    alerting.accept(Evaluator({}).step(EvaluatorState(), Observation(now=now)))
    alerting.end_cycle(now)
