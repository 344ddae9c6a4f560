"""Posting to an Alertmanager that takes, refuses, hangs or is away: real HTTP on loopback, no turn ever waits."""

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import making
import pytest
from alert_path_servers import hooked_alertmanager
from daemon_runs import configuration, further, reload_daemon, running, write
from engine_server import answers_500, engines
from loopback import LoopbackServer, Quiet, served
from peers import peer_fields
from waiting import CEILING_SECONDS, free_port, wait_for

from agent.alerting.delivery import BATCH, AlertDelivery, AlertmanagerClient
from agent.alerting.service import AlertingService
from agent.config.load import parse_config
from agent.config.peer import Peer
from agent.errors import ScrapeError
from agent.history.store import HistoryStore
from exporters.alertmanager.payload import AlertPayload, timestamp
from exporters.status.records import ExportScope
from rules.evaluator.observation import Observation
from rules.evaluator.state import EvaluatorState
from rules.evaluator.step import Evaluator
from rules.verdicts.verdict import RuleState, Status, Verdict, step_rule_state

OK = (200, b"")
REFUSED = "its batch was answered with 400: Alertmanager's log has the reason"
Answer = Callable[[list[dict[str, Any]]], tuple[int, bytes]]


class Manager(LoopbackServer):
    """Answers as `result` says; `bodies` are what was posted, `headers` those of the last request."""

    def __init__(self, port: int = 0) -> None:
        super().__init__(_Handler, port)
        self.result: Answer = lambda alerts: OK
        self.bodies: list[list[dict[str, Any]]] = []
        self.headers: dict[str, str] = {}
        self.hold = threading.Event()
        self.hold.set()

    def poster(self, **options: Any) -> AlertmanagerClient:
        url = f"{self.url}/api/v2/alerts"
        return AlertmanagerClient(Peer(**peer_fields(url=url, **{"timeout_seconds": CEILING_SECONDS, **options})))


class _Handler(Quiet, BaseHTTPRequestHandler):
    server: Manager

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.headers = dict(self.headers.items())
        self.server.bodies.append(body)
        self.server.hold.wait()
        status, said = self.server.result(body)
        self.send_response(status)
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)


@contextmanager
def manager(port: int = 0) -> Iterator[Manager]:
    there = Manager(port)
    with served(there):
        try:
            yield there
        finally:
            there.hold.set()


def one(name: str, firing: bool = True, **labels: str) -> AlertPayload:
    now = time.time()
    times = {"startsAt": timestamp(now - 60), "endsAt": timestamp(now + (60 if firing else -1))}
    return AlertPayload(
        title=name, firing=firing, body={"labels": {"alertname": name, **labels}, "annotations": {}, **times}
    )


def names(body: list[dict[str, Any]]) -> list[str]:
    return [alert["labels"]["alertname"] for alert in body]


@pytest.mark.parametrize("status", [401, 404, 302, 500, 503])
def test_other_answers_end_the_round(status: int) -> None:
    said = "redirects; that is not followed" if status == 302 else f"answered {status}"
    with manager() as there:
        there.result = lambda alerts: (status, b"no")
        with pytest.raises(ScrapeError, match=said):
            there.poster().round([one("A"), one("B")])
        assert len(there.bodies) == 1


def test_silent_or_absent_alertmanager_ends_round() -> None:
    with manager() as there:
        there.hold.clear()
        with pytest.raises(ScrapeError, match=r"timeout: .*0\.3 s"):
            there.poster(timeout_seconds=0.3).round([one("A")])
        there.hold.set()
    with pytest.raises(ScrapeError, match="refused; is it up"):
        AlertmanagerClient(Peer(url=f"http://127.0.0.1:{free_port()}")).round([one("A")])


@pytest.mark.server
def test_alertmanager_holds_good_alerts_of_batch(tmp_path: Path) -> None:
    bad = one("Bad", **{"bad-name": "x"})
    with hooked_alertmanager(tmp_path) as real:
        poster = AlertmanagerClient(Peer(url=f"{real.url}"))
        refused = poster.round([one("A"), bad, one("B"), one("Over", firing=False)])
        assert refused == dict.fromkeys(("A", "Bad", "B", "Over"), REFUSED)
        assert {alert["labels"]["alertname"] for alert in real.alerts()} == {"A", "B"}


@contextmanager
def delivering(poster: AlertmanagerClient, resend: float = 60.0) -> Iterator[AlertDelivery]:
    delivery = AlertDelivery(poster, resend)
    try:
        yield delivery
    finally:
        delivery.close()


def offer(delivery: AlertDelivery, *alerts: AlertPayload) -> None:
    delivery.offer(lambda: alerts)


def test_changes_are_posted_at_once() -> None:
    with manager() as there, delivering(there.poster()) as delivery:
        offer(delivery)
        assert wait_for(lambda: delivery.health.posts == 1)
        offer(delivery, one("A"))
        assert wait_for(lambda: there.bodies and names(there.bodies[-1]) == ["A"])
        for _ in range(50):
            offer(delivery, one("A"))
        offer(delivery, one("A", firing=False))
        assert wait_for(lambda: delivery.health.posts == 3)
        assert delivery.health.firing == 0
        assert [names(body) for body in there.bodies] == [[], ["A"], ["A"]]
        assert there.poster().round([one(f"A{n}") for n in range(BATCH + 1)]) == {}
        assert [len(body) for body in there.bodies[3:]] == [BATCH, 1]
        assert there.headers["Content-Type"] == "application/json"


def test_firing_alert_is_posted_anew() -> None:
    said = iter(range(1000))
    with manager() as there, delivering(there.poster(), resend=0.05) as delivery:
        delivery.offer(lambda: [one("A", n=str(next(said)))])
        assert wait_for(lambda: len(there.bodies) >= 4)
    assert [body[0]["labels"]["n"] for body in there.bodies[:4]] == ["1", "2", "3", "4"]


def test_absent_alertmanager_is_retried_and_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("agent.alerting.delivery.FIRST_RETRY_SECONDS", 0.05)
    caplog.set_level(logging.INFO)
    port = free_port()
    poster = AlertmanagerClient(Peer(url=f"http://127.0.0.1:{port}"))
    with delivering(poster) as delivery:
        # It is known to be away before the first alert.
        offer(delivery)
        assert wait_for(lambda: delivery.health.failures >= 4)
        for n in range(20):
            # Changes do not make it asked more often.
            offer(delivery, one(f"B{n}"))
        assert delivery.health.failures <= 6
        assert "refused" in str(delivery.health.trouble)
        offer(delivery, one("C"))
        with manager(port) as there:
            assert wait_for(lambda: delivery.health.posts == 1)
            assert [names(body) for body in there.bodies] == [["C"]]
        assert delivery.health.trouble is None
        assert delivery.health.last_success_at is not None
    told = [record.message for record in caplog.records]
    assert sum("alert delivery failed" in text for text in told) == 1
    assert sum("alert delivery recovered" in text for text in told) == 1


def test_refused_alert_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    with manager() as there, delivering(there.poster(), resend=0.05) as delivery:
        # As Alertmanager does: 400 for the whole batch, in its words.
        there.result = lambda alerts: (400, b'"invalid label set: invalid name \\"bad-name\\""')
        offer(delivery, one("A"), one("Bad"))
        assert wait_for(lambda: delivery.health.posts >= 3)
        assert delivery.health.refused == (f"A: {REFUSED}", f"Bad: {REFUSED}")
        assert delivery.health.firing == 0
    assert sum("Bad: " in record.message for record in caplog.records) == 1


def test_defect_costs_one_round(caplog: pytest.LogCaptureFixture) -> None:
    called: list[int] = []

    def present() -> list[AlertPayload]:
        called.append(1)
        if len(called) == 2:
            raise ZeroDivisionError
        return [one("A")]

    with manager() as there, delivering(there.poster(), resend=0.05) as delivery:
        delivery.offer(present)
        assert wait_for(lambda: delivery.health.posts >= 1)
        assert delivery.health.failures == 1
    assert "defect in sizewatch: ZeroDivisionError" in caplog.text
    assert "Traceback" in caplog.text


def test_hanging_alertmanager_delays_no_cycle() -> None:
    with manager() as there:
        with delivering(there.poster()) as delivery:
            there.hold.clear()
            offer(delivery, one("A"))
            assert wait_for(lambda: there.bodies)
            for n in range(200):
                offer(delivery, one(f"B{n}"))
            assert len(there.bodies) == 1, "it still hangs"
            there.hold.set()
            assert wait_for(lambda: len(there.bodies) == 2)
            assert names(there.bodies[1]) == ["B199"]
        # An end resolves nothing.
        assert all(alert["endsAt"] > timestamp(time.time()) for body in there.bodies for alert in body)
        offer(delivery, one("C"))
        time.sleep(0.1)
        assert len(there.bodies) == 2


# ---- both ways in a daemon: what goes on over a reload, and what a defect costs ----


pytestmark = pytest.mark.usefixtures("without_waits")


def alerting(there: Manager, **keys: Any) -> dict[str, Any]:
    return {"path": "posts", "alertmanagers": [{"url": f"http://127.0.0.1:{there.server_address[1]}"}], **keys}


def posted(there: Manager) -> set[str]:
    return {name for body in list(there.bodies) for name in names(body)}


def test_reload_keeps_or_moves_delivery(tmp_path: Path) -> None:
    with manager() as first, manager() as second, engines() as served:
        path = write(tmp_path, configuration(served, alerting=alerting(first)))
        with running(path) as daemon:
            served[0].act = answers_500
            assert wait_for(lambda: "SizewatchTierDown" in posted(first))
            (thread,) = (one._thread for one in daemon.assembly.alerting.deliveries)  # type: ignore[union-attr]
            reload_daemon(daemon, configuration(served, alerting=alerting(first), logging={"level": "warning"}))
            further(daemon)
            assert [one._thread for one in daemon.assembly.alerting.deliveries] == [thread]  # type: ignore[union-attr]
            reload_daemon(daemon, configuration(served, alerting=alerting(second)))
            assert wait_for(lambda: "SizewatchTierDown" in posted(second))
            assert wait_for(lambda: not thread.is_alive())  # type: ignore[union-attr]
            reload_daemon(daemon, configuration(served))
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
