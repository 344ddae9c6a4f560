"""Keeps one Alertmanager told of the present state of all alerts, from a thread of its own.

Owns when a round of posts is due: at once when an alert begins, grows louder or ends, again before what was posted
lapses, and after a failure at growing intervals up to that of sending again. Alerts are state: what could not be posted
is not kept, the next round posts what is true then. A turn hands over the state and never waits.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from agent.alerting.posting import AlertmanagerClient, DeliveryError
from exporters.alertmanager.payload import AlertPayload
from exporters.status.records import AlertmanagerHealth

Present = Callable[[], Sequence[AlertPayload]]
"""The present state, made when a round begins: what it says of now must be true then."""

FIRST_RETRY_SECONDS = 1.0
CLOSE_SECONDS = 2.0
"""How long an orderly end waits for a round under way; it is a daemon thread, and nothing is lost with it."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Offer:
    present: Present
    marks: frozenset[tuple[str, bool]]


class AlertDelivery:
    """One Alertmanager's thread, begun with the first offer. `health` may be read from any thread."""

    def __init__(
        self, poster: AlertmanagerClient, resend_seconds: float, clock: Callable[[], float] = time.time
    ) -> None:
        self._poster = poster
        self._resend_seconds = resend_seconds
        self._clock = clock
        self._changed = threading.Condition()
        self._offer: _Offer | None = None
        self._posted: frozenset[tuple[str, bool]] | None = None
        self._closed = False
        self._suspects: frozenset[str] = frozenset()
        self._failures_in_a_row = 0
        self._thread: threading.Thread | None = None
        self.health = AlertmanagerHealth(alertmanager=poster.place)

    def offer(self, present: Present, alerts: Sequence[AlertPayload]) -> None:
        """The state after a turn: `present` makes it anew when it is posted, `alerts` is it as it is now."""
        marks = frozenset((one.title, one.firing) for one in alerts)
        with self._changed:
            self._offer = _Offer(present=present, marks=marks)
            self._changed.notify()
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._run, name="alertmanager", daemon=True)
                self._thread.start()

    def end(self) -> None:
        """Asks the thread to end. What fires is not resolved: it lapses by itself where no agent comes back."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def join(self) -> None:
        """Waits for the end, a while."""
        if self._thread is not None:
            self._thread.join(CLOSE_SECONDS)

    def _run(self) -> None:
        due = time.monotonic()
        while (offer := self._awaited(due)) is not None:
            try:
                self._round(offer)
            except Exception as error:  # noqa: BLE001 - a defect costs one round; it is told, counted, and tried again
                _log.exception("defect while posting alerts to %s", self._poster.place)
                self._failed(f"defect in sizewatch: {type(error).__name__}, see its log")
            due = time.monotonic() + self._pause()

    def _awaited(self, due: float) -> _Offer | None:
        """The offer to post, once one is due; None at the end."""
        with self._changed:
            while not self._closed:
                left = due - time.monotonic()
                # After a failure a change waits as well: an Alertmanager that is down is not asked at every turn.
                changed = self._offer is not None and self._offer.marks != self._posted
                if self._offer is not None and (left <= 0 or (changed and not self._failures_in_a_row)):
                    return self._offer
                self._changed.wait(max(left, 0.0) if self._offer is not None else None)
        return None

    def _pause(self) -> float:
        if not self._failures_in_a_row:
            return self._resend_seconds
        retry = FIRST_RETRY_SECONDS * 2.0 ** min(self._failures_in_a_row - 1, 16)
        return min(retry, self._resend_seconds)

    def _round(self, offer: _Offer) -> None:
        alerts = tuple(offer.present())
        try:
            done = self._poster.round(alerts, self._suspects)
        except DeliveryError as error:
            self._failed(error.text)
            return
        if self.health.trouble is not None:
            _log.info("%s takes alerts again", self._poster.place)
        for title, words in done.refused.items():
            if title not in self._suspects:
                _log.error("%s refuses %s: %s", self._poster.place, title, words)
        self._failures_in_a_row = 0
        self._suspects = frozenset(done.refused)
        self._posted = offer.marks
        self.health = replace(
            self.health,
            posts=self.health.posts + 1,
            alerts=self.health.alerts + done.taken,
            firing=sum(one.firing for one in alerts) - sum(one.firing for one in alerts if one.title in done.refused),
            refused=tuple(f"{title}: {words}" for title, words in done.refused.items()),
            trouble=None,
            last_success_at=self._clock(),
        )

    def _failed(self, text: str) -> None:
        if self.health.trouble is None:
            _log.error("alerts cannot be posted, the present state is when it can: %s", text)
        self._failures_in_a_row += 1
        self.health = replace(self.health, failures=self.health.failures + 1, trouble=text)
