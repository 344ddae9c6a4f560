"""The webhook: what an Alertmanager sends is taken, what is hostile is refused cheaply and changes nothing."""

import http.client
import json
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import web_clients
import yaml
from daemon_runs import ask as ask_daemon
from daemon_runs import configuration, further, health, metric, reload_daemon, running, write
from engine_server import engines
from waiting import CEILING_SECONDS, wait_for
from web_clients import ask, raw

from agent.alerting import service, webhook
from agent.alerting.service import ExternalAlertStore
from agent.alerting.webhook import WEBHOOK_BYTES, WebhookReceiver, read
from agent.daemon.daemon import Daemon
from agent.history.store import HistoryStore
from agent.http_server.credentials import Authenticator
from agent.http_server.pages import WEBHOOK
from agent.http_server.server import WebServer
from exporters.alertmanager.payload import timestamp
from rules.evaluator.external_alerts import AlertTargets, ExternalAlert

NOW = 1_790_000_000.0
TOKEN = "a-token-of-the-webhook"
JSON = "application/json"
NO_TARGETS = partial(AlertTargets, tiers=frozenset(), replicas={})

ALERT: dict[str, Any] = {
    "status": "firing",
    "labels": {"alertname": "QueueBacklog", "instance": "127.0.0.1:19100", "severity": "page", "tier": "gold"},
    "annotations": {"runbook_url": "https://example.invalid/rb/queue", "summary": "m1 has 9 waiting"},
    "startsAt": "2026-09-21T14:10:26.258Z",
    "endsAt": "0001-01-01T00:00:00Z",
    "generatorURL": "http://vm:19090/graph?g0.expr=x",
    "fingerprint": "bf3d56da31f37e90",
}


def body(*alerts: Any, **changes: Any) -> bytes:
    """As Alertmanager 0.25 sends it."""
    group = {"groupLabels": {"alertname": "QueueBacklog"}, "groupKey": '{}:{alertname="QueueBacklog"}'}
    common = {"commonLabels": {}, "commonAnnotations": {}, "externalURL": "http://vm:19093", "version": "4"}
    usual = {"receiver": "hook", "status": "firing", "alerts": list(alerts or [ALERT]), "truncatedAlerts": 0}
    return json.dumps(usual | group | common | changes).encode()


def test_a_message_of_alertmanager_is_read() -> None:
    (found,), _ = read(body(), NOW)
    assert (found.name, found.summary) == ("QueueBacklog", "m1 has 9 waiting")
    assert dict(found.labels) == ALERT["labels"]
    assert found.started_at == pytest.approx(1_789_999_826.258)
    assert found.ended_at is None
    resolved = ALERT | {"status": "resolved", "endsAt": "2026-09-21T14:11:26.258Z"}
    (over,), _ = read(body(resolved), NOW)
    assert over.ended_at == pytest.approx(found.started_at + 60)
    assert over.identity == found.identity


RESOLVED = {"status": "resolved", "endsAt": "2020-01-01T00:00:00Z"}
UTF8_NAMES = {"labels": {"k8s.pod\\name \u00e9": "r0", "alertname": "x"}}
UNSEEN_NAMES = {"labels": {"a\u202eb": "c\u200bd", "a\u200bb": "", "alertname": "x"}, "annotations": {"\x00": ""}}
LONG_SUMMARY = {"annotations": {"summary": "a\n\x1b[31mb" + "x" * 5000}}


@pytest.mark.parametrize(
    ("changes", "field", "value"),
    [
        *(({"startsAt": f"{year}-01-01T00:00:00Z"}, "started_at", NOW) for year in ("0001", "2999", "1900")),
        # An end is not before its start, and a summary is one line of limited length.
        (RESOLVED, "ended_at", pytest.approx(1_789_999_826.258)),
        (UTF8_NAMES, "labels", (("alertname", "x"), ("k8s.pod\\name \u00e9", "r0"))),
        (UNSEEN_NAMES, "labels", ((r"a\u200bb", ""), (r"a\u202eb", "c\ufffdd"), ("alertname", "x"))),
        (LONG_SUMMARY, "summary", "a \ufffd[31mb".ljust(webhook.LONGEST_SUMMARY - 1, "x") + "\u2026"),
    ],
)
def test_odd_alert_is_made_possible(changes: dict[str, Any], field: str, value: object) -> None:
    ours = ALERT | {"labels": {"alertname": "KvCacheCascade", "source": "sizewatch"}}
    (found,), left_out = read(body(ours, ALERT | changes, ours, truncatedAlerts=7), NOW)
    assert (getattr(found, field), left_out) == (value, 7)


WRONG: tuple[tuple[bytes, str], ...] = (
    (b"", "Invalid JSON"),
    (b"\xff\xfe", "Invalid JSON"),
    (b"[]", "Input should be an object"),
    (b"null", "Input should be an object"),
    (b"[" * 10_000 + b"]" * 10_000, "Invalid JSON"),
    (b'{"a":' * 10_000 + b"1" + b"}" * 10_000, "Invalid JSON"),
    (body(version="3"), "version: Input should be '4'"),
    (body(version=4), "version: Input should be '4'"),
    (body(alerts={}), "alerts: Input should be a valid array"),
    (body(truncatedAlerts="many"), "truncatedAlerts: Input should be a valid integer"),
    (body("x"), "alerts.0: Input should be"),
    (body(ALERT, ALERT | {"status": "maybe"}), "alerts.1.status: Input should be 'firing' or 'resolved'"),
    (body(ALERT | {"labels": []}), "alerts.0.labels: Input should be an object"),
    (body(ALERT | {"labels": {"alertname": 5}}), "alerts.0.labels: Input should be a valid string"),
    (body(ALERT | {"labels": {"alertname": "x", "b": "y" * 1001}}), "at most 1000 characters"),
    (body(ALERT | {"labels": {f"l{n}": "x" for n in range(65)}}), "at most 64 items"),
    (body(ALERT | {"annotations": {"summary": {"deep": 1}}}), "alerts.0.annotations: Input should be a valid string"),
    (body(ALERT | {"startsAt": 1_790_000_000}), "alerts.0.startsAt: Input should be a valid datetime"),
    (body(ALERT | {"startsAt": "yesterday"}), "alerts.0.startsAt: Input should be a valid datetime"),
    (body(ALERT | {"startsAt": "2026-09-21T14:10:26"}), "alerts.0.startsAt: Input should have timezone info"),
    (body(ALERT | {"status": "resolved", "endsAt": None}), "alerts.0.endsAt: Input should be a valid datetime"),
)


@pytest.mark.parametrize(("wrong", "why"), WRONG, ids=[why for _, why in WRONG])
def test_unsound_body_is_not_used(wrong: bytes, why: str) -> None:
    with pytest.raises(ValueError) as found:
        read(wrong, NOW)
    assert why in str(found.value)


def test_hostile_body_costs_little_memory() -> None:
    hostile = (
        b"[" * (WEBHOOK_BYTES // 2),
        b'{"version":"4","alerts":[' + b"[]," * (WEBHOOK_BYTES // 4) + b"[]]}",
        b'{"version":"4","alerts":"' + b"x" * (WEBHOOK_BYTES - 100) + b'"}',
        b"9" * WEBHOOK_BYTES,
    )
    for each in hostile:
        tracemalloc.start()
        with pytest.raises(ValueError):
            read(each, NOW)
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert most < 6 * WEBHOOK_BYTES


def test_waiting_alerts_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent.alerting.webhook.MOST_WAITING", 3)
    receiver = WebhookReceiver(Authenticator((TOKEN,)))
    receiver.take(body(*[ALERT] * 5))
    assert len(receiver.waiting()) == 3
    assert receiver.waiting() == ()
    assert receiver.health().left_out == 2


@contextmanager
def serving(**keys: str) -> Iterator[tuple[WebServer, WebhookReceiver]]:
    receiver = WebhookReceiver(Authenticator((TOKEN,)))
    with web_clients.serving(**keys) as server:
        server.pages.receiver = receiver.receive
        yield server, receiver


def post(port: int, data: bytes, token: str | None = TOKEN, path: str = WEBHOOK, **headers: str) -> tuple[int, str]:
    """Status and text of one message; the answer may come before all of it was sent."""
    login = {"Authorization": f"Bearer {token}"} if token is not None else {}
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=CEILING_SECONDS)) as connection:
        connection.request("POST", path, data, {"Content-Type": JSON, **login, **headers})
        result = connection.getresponse()
        return result.status, result.read().decode()


def test_everything_else_is_refused_and_changes_nothing() -> None:
    with serving() as (server, receiver):
        port, sound = server.port, body()
        assert post(port, sound, token=None)[0] == 401
        assert post(port, sound, token="wrong-token-of-16-chars")[0] == 401
        assert post(port, b"x" * 50_000, token=None)[0] == 401
        assert post(port, b"{}")[0] == 400
        refusal = raw(server, b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n" % WEBHOOK.encode())
        assert b'www-authenticate: Bearer realm="sizewatch"' in refusal
        assert TOKEN.encode() not in refusal
        head = b"POST %s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\n"
        begin = head % (WEBHOOK.encode(), TOKEN.encode())
        assert raw(server, begin + b"Content-Length: %d\r\n\r\n" % (10 * 2**20)).startswith(b"HTTP/1.1 413")
        assert raw(server, begin + b"\r\n").startswith(b"HTTP/1.1 411")
        assert raw(server, begin + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n").startswith(
            b"HTTP/1.1 411"
        )
        assert raw(server, begin.replace(b"POST", b"GET", 1) + b"\r\n").startswith(b"HTTP/1.1 405")
        assert receiver.waiting() == ()
        server.pages.receiver = None
        assert post(port, sound)[0] == 404
        assert receiver.health().taken == 0
        assert receiver.health().refused == {"credentials": 4, "payload": 1, "length": 3}


def test_webhook_and_page_tokens_are_separate(tmp_path: Path) -> None:
    (tmp_path / "readers").write_text("a-token-of-the-readers")
    with serving(bearer_token_file=str(tmp_path / "readers")) as (server, _):
        assert post(server.port, body())[0] == 200
        assert post(server.port, body(), token="a-token-of-the-readers")[0] == 401
        assert ask(server, "/metrics", Authorization=f"Bearer {TOKEN}")[0] == 401


@contextmanager
def receiving(folder: Path) -> Iterator[Daemon]:
    (folder / "token").write_text(TOKEN)
    alerting = {"receiver": {"bearer_token_file": "token"}}
    with engines() as served, running(write(folder, configuration(served, alerting=alerting))) as daemon:
        yield daemon


def foreign(daemon: Daemon) -> Any:
    return json.loads(ask_daemon(daemon, "api/status"))["foreign_alerts"]


BEGAN = time.time() - 60
THEIRS = ALERT | {"labels": {"alertname": "ApiLatencyHigh", "tier": "cpu-small"}, "startsAt": timestamp(BEGAN)}


def test_alerts_reach_tier_and_survive_restart(tmp_path: Path) -> None:
    with receiving(tmp_path) as daemon:
        assert post(daemon.web.port, body(THEIRS, ALERT))[0] == 200
        assert wait_for(lambda: len(foreign(daemon)) == 2)
        assert [(one["name"], one["tier"]) for one in foreign(daemon)] == [
            ("QueueBacklog", None),
            ("ApiLatencyHigh", "cpu-small"),
        ]
        assert metric(daemon, "sizewatch_foreign_alerts") == 1
        assert metric(daemon, "sizewatch_webhook_requests_total") == 1
        further(daemon)
    with receiving(tmp_path) as daemon:
        assert [one["name"] for one in foreign(daemon)] == ["QueueBacklog", "ApiLatencyHigh"]
        assert post(daemon.web.port, body(THEIRS | {"status": "resolved", "endsAt": timestamp(BEGAN + 30)}))[0] == 200
        assert wait_for(lambda: any(one["ended_at"] is not None for one in foreign(daemon)))
        alerting = {"path": "posts", "alertmanagers": [{"url": "http://127.0.0.1:9"}]}
        reload_daemon(daemon, {**yaml.safe_load(daemon.loaded.path.read_text()), "alerting": alerting})
        further(daemon)
        assert daemon.counts.cycle_errors == 0
    with HistoryStore.open_reader(tmp_path / "sizewatch-data" / "history.db") as reader:
        kept = reader.spans(ExternalAlert, 0.0)
    assert [(one.name, one.ended_at is not None) for one in kept] == [("QueueBacklog", True), ("ApiLatencyHigh", True)]


@pytest.mark.parametrize(
    ("changes", "ends"),
    [
        ({"startsAt": timestamp(NOW - 500)}, [None]),
        ({"startsAt": timestamp(NOW - 500), "endsAt": timestamp(NOW - 5), "status": "resolved"}, [NOW - 5]),
        ({"startsAt": timestamp(NOW - 500), "endsAt": timestamp(NOW - 90), "status": "resolved"}, [NOW - 90, None]),
        ({"startsAt": timestamp(NOW - 5)}, [None, None]),
    ],
)
def test_start_moved_earlier_is_the_same_alert(changes: dict[str, str], ends: list[float | None]) -> None:
    known = ExternalAlertStore()
    for change in ({"startsAt": timestamp(NOW - 60)}, changes):
        alerts, _ = read(body(ALERT | change), NOW)
        known.update(alerts, (), NOW, NO_TARGETS)
    assert [alert.ended_at for alert in known.alerts] == ends


def test_full_memory_forgets_ended_alerts_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "MOST", 2)
    known = ExternalAlertStore()
    for name, end in (("a", None), ("b", NOW - 2), ("c", NOW - 1), ("d", None), ("e", None)):
        alerts, _ = read(body(ALERT | {"labels": {"alertname": name}}), NOW)
        known.update([replace(alerts[0], ended_at=end)], (), NOW, NO_TARGETS)
    assert ([alert.name for alert in known.alerts], known.left_out) == (["a", "d"], 1)


def test_hostile_sender_changes_nothing(tmp_path: Path) -> None:
    with receiving(tmp_path) as daemon:
        port = daemon.web.port
        for wrong, _ in WRONG:
            assert post(port, wrong)[0] == 400
        assert {post(port, body(THEIRS), token=None)[0] for _ in range(200)} == {401}
        further(daemon)
        told = health(daemon)
        assert told["webhook"] == {
            "taken": 0,
            "refused": {"payload": len(WRONG), "credentials": 200},
            "left_out": 0,
        }
        assert (told["cycle_errors"], told["web_errors"]) == (0, 0)
        assert foreign(daemon) == []
    with HistoryStore.open_reader(tmp_path / "sizewatch-data" / "history.db") as reader:
        assert reader.spans(ExternalAlert, 0.0) == ()
