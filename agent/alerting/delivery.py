"""Delivery of alerts to one Alertmanager, from a thread per Alertmanager.

Alerts are state. A failed post is not stored: the next round posts the state of that moment. A round is due when an
alert starts, escalates or ends, and before posted alerts expire. After a failure the retry interval doubles up to the
resend interval.

Alertmanager's API v2 answers 400 for a batch with one bad alert, but stores the good alerts (api/v2/api.go, 0.25).
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace

from agent.config.peer import Peer
from agent.durations import retry_delay
from agent.errors import ScrapeError
from agent.http_client.client import HttpClient, place_of, status_error
from exporters.alertmanager.payload import AlertPayload
from exporters.status.records import AlertmanagerHealth

PATH = "/api/v2/alerts"
BATCH = 64
"""Alerts per request. Prometheus posts up to 256. This size stays below the 1 MB limit of a proxy."""

REFUSALS = frozenset({400, 413, 422})
"""HTTP status codes that refuse the body, not the sender. Other batches may be accepted."""

FIRST_RETRY_SECONDS = 1.0

_log = logging.getLogger(__name__)


class AlertmanagerClient:
    """Client of one Alertmanager. Each round opens a new connection and uses renewed secrets."""

    def __init__(self, peer: Peer) -> None:
        self._client = HttpClient(peer)
        self.place = place_of(peer.url).rstrip("/")

    def round(self, alerts: Sequence[AlertPayload]) -> dict[str, str]:
        """Post all alerts in batches. Return the reason for each alert of a refused batch, by title.

        Post an empty list if there are no alerts, to detect an unavailable Alertmanager early. Raise ScrapeError.
        """
        refused: dict[str, str] = {}
        url, headers = self._client.peer.url.rstrip("/") + PATH, {"Content-Type": "application/json"}
        with closing(self._client):
            for begin in range(0, max(1, len(alerts)), BATCH):
                batch = alerts[begin : begin + BATCH]
                body = json.dumps([alert.body for alert in batch]).encode()
                with self._client.exchange("POST", url, headers, body) as response:
                    self._client.read(response)
                status = response.status_code
                if status in REFUSALS and batch:
                    reason = f"its batch was answered with {status}: Alertmanager's log has the reason"
                    refused.update(dict.fromkeys((alert.title for alert in batch), reason))
                elif not 200 <= status < 300:
                    raise status_error(self.place, status)
        return refused


class AlertDelivery:
    """Delivery thread of one Alertmanager. The first offer starts it. Any thread may read `health`."""

    def __init__(
        self, poster: AlertmanagerClient, resend_seconds: float, clock: Callable[[], float] = time.time
    ) -> None:
        self._poster = poster
        self._resend_seconds = resend_seconds
        self._clock = clock
        self._changed = threading.Condition()
        self._present: Callable[[], Sequence[AlertPayload]] = tuple
        self._marks: frozenset[tuple[str, bool]] = frozenset()
        """Titles of all alerts, and whether each fires."""
        self._posted: frozenset[tuple[str, bool]] | None = None
        self._closed = False
        self._failures_in_a_row = 0
        self._thread: threading.Thread | None = None
        self.health = AlertmanagerHealth(alertmanager=poster.place)

    def offer(self, present: Callable[[], Sequence[AlertPayload]]) -> None:
        """Set the state after a cycle. `present` builds the payload, now and again when it is posted."""
        marks = frozenset((alert.title, alert.firing) for alert in present())
        with self._changed:
            self._present, self._marks = present, marks
            self._changed.notify()
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._run, name="alertmanager", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """Let the thread end after its round. It is a daemon thread and loses no state."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def _run(self) -> None:
        due = time.monotonic()
        while True:
            with self._changed:
                # After a failure a change waits too, so that not every cycle asks.
                self._changed.wait_for(
                    lambda: self._closed or (self._marks != self._posted and not self._failures_in_a_row),
                    due - time.monotonic(),
                )
                if self._closed:
                    return
                present, marks = self._present, self._marks
            delay = self._resend_seconds
            try:
                self._round(tuple(present()))
                self._failures_in_a_row, self._posted = 0, marks
            except Exception as error:  # noqa: BLE001 - a defect costs one round; it is logged, counted and retried
                is_known = isinstance(error, ScrapeError)
                text = error.text if isinstance(error, ScrapeError) else f"defect in sizewatch: {type(error).__name__}"
                if self.health.trouble is None:
                    _log.error('alert delivery failed, retrying error="%s"', text, exc_info=not is_known)
                self._failures_in_a_row += 1
                self.health = replace(self.health, failures=self.health.failures + 1, trouble=text)
                delay = retry_delay(self._failures_in_a_row, FIRST_RETRY_SECONDS, delay)
            due = time.monotonic() + delay

    def _round(self, alerts: Sequence[AlertPayload]) -> None:
        reasons = self._poster.round(alerts)
        if self.health.trouble is not None:
            _log.info("alert delivery recovered alertmanager=%s", self._poster.place)
        refused = tuple(f"{title}: {reason}" for title, reason in reasons.items())
        if set(refused) - set(self.health.refused):
            _log.error('alerts refused alertmanager=%s error="%s"', self._poster.place, "; ".join(refused))
        accepted = [alert for alert in alerts if alert.title not in reasons]
        self.health = replace(
            self.health,
            posts=self.health.posts + 1,
            alerts=self.health.alerts + len(accepted),
            firing=sum(alert.firing for alert in accepted),
            refused=refused,
            trouble=None,
            last_success_at=self._clock(),
        )
