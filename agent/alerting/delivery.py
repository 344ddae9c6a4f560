"""Keeps one Alertmanager told of the present state of all alerts, from a thread of its own.

Owns when a round of posts is due: at once when an alert begins, grows louder or ends, again before what was posted
lapses, and after a failure at growing intervals up to that of sending again. Alerts are state: what could not be posted
is not kept, the next round posts what is true then. A turn hands over the state and never waits.

Posts alerts to one Alertmanager, and finds out which of them it refused.

Owns one round of posting: the batches, the one deadline, what an answer means. It keeps no state of alerts and no time
between rounds: `agent.alerting.delivery` does. What is posted comes from `exporters.alertmanager.payload`.

Alertmanager's API v2 answers 400 for a batch with one bad alert and has stored the good ones (api/v2/api.go, 0.25); a
proxy before it may have refused all. Posting is idempotent, so a refused batch is halved and posted again until the
refusal is one alert's.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace

import requests
import urllib3

from agent.errors import SizewatchError
from agent.http_client.error_text import place_of, redact, translate_http_error
from agent.http_client.transport import TargetAdapter, TargetOptions, authorization, tls_of
from exporters.alertmanager.payload import AlertPayload
from exporters.render.text import quote_external_text
from exporters.status.records import AlertmanagerHealth

PATH = "/api/v2/alerts"
BATCH = 64
"""Alerts a request; Prometheus posts up to 256, and a proxy's limit of 1 MB is safe with these."""

MOST_ANSWER_BYTES = 4096
MOST_QUOTED = 300
ROUND_SECONDS = 30.0
"""For all requests of one round together."""

REFUSALS = frozenset({400, 413, 422})
"""Answers that mean this body and not this sender: fewer alerts, or others, may be taken."""

_MOVED = "it redirects, which is not followed: give the final address as url"
HINTS = {
    **dict.fromkeys((301, 302, 303, 307, 308), _MOVED),
    401: "set bearer_token_file or basic_auth of this Alertmanager, or renew what is in them",
    403: "these credentials may not post alerts",
    404: "is the url that of an Alertmanager 0.16 or newer, with the path it is served under?",
    405: "is the url that of an Alertmanager?",
    429: "it takes no more at the moment",
}


class DeliveryError(SizewatchError):
    """A round that could not be ended; what was posted of it is posted again with the next."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


class _Refused(Exception):
    """This body was refused, in the other side's words."""


@dataclass(slots=True)
class PostResult:
    """What came of one round: how many alerts were taken, and the words for each that was refused, by title."""

    taken: int = 0
    refused: dict[str, str] = field(default_factory=dict)


class AlertmanagerClient:
    """Posts to one Alertmanager, over a connection of its own each round, so that renewed secrets are in use at once."""

    def __init__(self, options: TargetOptions) -> None:
        self._options = options
        self.place = place_of(options.url).removesuffix(PATH)

    def round(self, alerts: Sequence[AlertPayload], suspects: frozenset[str] = frozenset()) -> PostResult:
        """Posts all of them; `suspects`, refused before, each by itself. Where there are none an empty list is posted, so that
        an Alertmanager that is away is known before the first alert. Raises NotDelivered."""
        done = PostResult()
        deadline = time.monotonic() + ROUND_SECONDS
        try:
            adapter = TargetAdapter(tls_of(self._options), self._options.server_name)
            headers = authorization(self._options)
        except SizewatchError as error:
            raise DeliveryError(str(error)) from error
        good = [one for one in alerts if one.title not in suspects]
        batches = [good[place : place + BATCH] for place in range(0, len(good), BATCH)]
        batches += [[one] for one in alerts if one.title in suspects]
        with closing(adapter):
            for batch in batches or [[]]:
                self._batch(adapter, headers, batch, deadline, done)
        return done

    def _batch(
        self,
        adapter: TargetAdapter,
        headers: dict[str, str],
        batch: Sequence[AlertPayload],
        deadline: float,
        done: PostResult,
    ) -> None:
        try:
            self._post(adapter, headers, batch, deadline)
        except _Refused as refused:
            if not batch:
                raise DeliveryError(f"{self.place} answered an empty list of alerts with {refused}") from refused
            if len(batch) == 1:
                done.refused[batch[0].title] = str(refused)
                return
            middle = len(batch) // 2
            for half in (batch[:middle], batch[middle:]):
                self._batch(adapter, headers, half, deadline, done)
            return
        done.taken += len(batch)

    def _post(
        self, adapter: TargetAdapter, headers: dict[str, str], batch: Sequence[AlertPayload], deadline: float
    ) -> None:
        left_seconds = deadline - time.monotonic()
        if left_seconds <= 0:
            raise DeliveryError(f"{self.place}: a round of posts did not end within {ROUND_SECONDS:.0f} s")
        body = json.dumps([one.body for one in batch]).encode()
        wanted = {"Content-Type": "application/json", "User-Agent": "sizewatch", **headers}
        request = requests.Request("POST", self._options.url, headers=wanted, data=body).prepare()
        seconds = min(self._options.timeout_seconds, left_seconds)
        try:
            answer = adapter.send_within(request, seconds)
            with closing(answer):
                said = answer.raw.read(MOST_ANSWER_BYTES, decode_content=True)
        except requests.Timeout as error:
            raise DeliveryError(f"{self.place} did not answer within {seconds:g} s") from error
        except (requests.RequestException, urllib3.exceptions.HTTPError) as error:
            raise DeliveryError(translate_http_error(error, self.place, seconds).text) from error
        self._judge(answer.status_code, said, headers)

    def _judge(self, status: int, said: bytes, headers: dict[str, str]) -> None:
        if 200 <= status < 300:
            return
        if status in REFUSALS:
            raise _Refused(_words(status, said, headers, self._options.url))
        hint = HINTS.get(status, "look into its log")
        raise DeliveryError(f"{self.place} answered {status}: {hint}")


def _words(status: int, said: bytes, headers: dict[str, str], url: str) -> str:
    """What an Alertmanager says: a JSON text for an invalid alert, an object with a message for a body it cannot read."""
    text = said.decode("utf-8", "replace")
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        data = text
    if isinstance(data, dict):
        data = data.get("message", text)
    # The end of what was read may be half a secret, which nobody finds.
    words = quote_external_text(redact(str(data), headers.values(), url)[: MOST_ANSWER_BYTES // 2], MOST_QUOTED)
    return f"{status}: {words or 'without a word'}"


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
