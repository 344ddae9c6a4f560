"""Posting to an Alertmanager that takes, refuses, hangs or is away: real HTTP on loopback, no turn ever waits."""

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from alert_path_servers import hooked_alertmanager
from loopback import LoopbackServer, Quiet, served
from peers import peer_fields
from waiting import CEILING_SECONDS, free_port, wait_for

from agent.alerting.delivery import BATCH, AlertDelivery, AlertmanagerClient
from agent.config.peer import Peer
from agent.errors import ScrapeError
from exporters.alertmanager.payload import AlertPayload, timestamp

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
