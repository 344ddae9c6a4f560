"""Posts alerts to one Alertmanager, and finds out which of them it refused.

Owns one round of posting: the batches, the one deadline, what an answer means. It keeps no state of alerts and no time
between rounds: `agent.alerting.delivery` does. What is posted comes from `exporters.alertmanager.payload`.

Alertmanager's API v2 answers 400 for a batch with one bad alert and has stored the good ones (api/v2/api.go, 0.25); a
proxy before it may have refused all. Posting is idempotent, so a refused batch is halved and posted again until the
refusal is one alert's.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field

import requests
import urllib3

from agent.errors import SizewatchError
from agent.http_client.error_text import place_of, translate_http_error
from agent.http_client.hidden import redact
from agent.http_client.target_options import TargetOptions, authorization, tls_of
from agent.http_client.transport import TargetAdapter
from exporters.alertmanager.payload import AlertPayload
from exporters.render.text import quote_external_text

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
