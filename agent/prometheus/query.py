"""Query requests to a store: one kept connection, and the mapping of error responses to `StoreError`.

A request is always a POST of a form, so that a long query fits. Messages contain nothing that the store
sent. The tables follow the sources of Prometheus 2.42 (web/api/v1/api.go), VictoriaMetrics
1.79, Thanos 0.30 and Mimir 2.9. Add a status to `_STATUSES`, a wording to `_WORDS`.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlencode

from agent.config.store import StoreConfig
from agent.errors import ScrapeError, ScrapeFailure
from agent.http_client.client import HttpClient
from agent.http_client.errors import status_error
from agent.prometheus.answers import ApiResponse, StoreError, StoreErrorKind, parse_answer

_ADDRESS = "is this the address of a Prometheus server?"
_STATUSES = {
    401: (
        StoreErrorKind.CREDENTIALS,
        "wants credentials: set bearer_token_file or basic_auth, or renew what is in them",
    ),
    403: (StoreErrorKind.CREDENTIALS, "does not let these credentials query it"),
    404: (StoreErrorKind.WRONG_ANSWER, f"answered 404: {_ADDRESS}"),
    405: (StoreErrorKind.WRONG_ANSWER, f"does not take a query: {_ADDRESS}"),
    407: (StoreErrorKind.CREDENTIALS, "answered 407: a proxy before it wants credentials"),
}
"""Statuses that are errors whatever the body contains."""

_KIND_BY_STATUS = {
    408: StoreErrorKind.SLOW,
    413: StoreErrorKind.TOO_MUCH,
    429: StoreErrorKind.SLOW,
    499: StoreErrorKind.SLOW,
    504: StoreErrorKind.SLOW,
}
_KIND_BY_TYPE = {
    "timeout": StoreErrorKind.SLOW,
    "canceled": StoreErrorKind.SLOW,
    "unavailable": StoreErrorKind.AWAY,
    "internal": StoreErrorKind.AWAY,
    "too_many_requests": StoreErrorKind.SLOW,
    "bad_data": StoreErrorKind.REFUSED,
    "execution": StoreErrorKind.REFUSED,
}
_WORDS = (
    ("no org id", StoreErrorKind.CREDENTIALS, "; set its org_id"),
    ("too many samples", StoreErrorKind.TOO_MUCH, ""),
    ("maximum resolution", StoreErrorKind.TOO_MUCH, ""),
    ("-search.max", StoreErrorKind.TOO_MUCH, ""),
    ("err-mimir-max-", StoreErrorKind.TOO_MUCH, ""),
    ("exceeded series limit", StoreErrorKind.TOO_MUCH, ""),
    ("exceeded chunks limit", StoreErrorKind.TOO_MUCH, ""),
    ("exceeded samples limit", StoreErrorKind.TOO_MUCH, ""),
    ("query timed out", StoreErrorKind.SLOW, ""),
    ("deadline exceeded", StoreErrorKind.SLOW, ""),
    ("vmstorage nodes", StoreErrorKind.PARTIAL, ""),
    ("receive series from", StoreErrorKind.PARTIAL, ""),
    ("no store matched", StoreErrorKind.PARTIAL, ""),
)
"""Lower-case words of an error, its kind, and a hint to append. The first match counts."""

_SCRAPES = {
    ScrapeFailure.TIMEOUT: StoreErrorKind.SLOW,
    ScrapeFailure.CONNECT: StoreErrorKind.AWAY,
    ScrapeFailure.CUT_OFF: StoreErrorKind.AWAY,
    ScrapeFailure.AUTH: StoreErrorKind.CREDENTIALS,
    ScrapeFailure.TLS: StoreErrorKind.CREDENTIALS,
}

# Ask for no compression: it costs CPU of a shared store, and the network to a nearby store is cheap.
_HEADERS = {
    "Accept": "application/json",
    "Accept-Encoding": "identity",
    "Content-Type": "application/x-www-form-urlencoded",
    "User-Agent": "sizewatch",
}
EXACT = {"nocache": "1", "latency_offset": "1ms"}
"""Parameters for exact results from VictoriaMetrics.

With its cache it moves times to multiples of the step, and instants of the newest 30 s back. It replaces the newest 30
s of a range (older releases ignore latency_offset)."""

COMPLETE = {"partial_response": "false", "deny_partial_response": "1"}
"""Parameters that make Thanos and a VictoriaMetrics cluster fail in place of a partial response. Others ignore both."""


def error_without_body(place: str, status: int) -> StoreError:
    """Return the error for a status without a readable body."""
    kind = _KIND_BY_STATUS.get(status, StoreErrorKind.AWAY if status >= 500 else StoreErrorKind.REFUSED)
    return StoreError(kind, place, f"answered {status}")


def error_from_body(given: ApiResponse, status: int) -> StoreError:
    """Return the error that a response body reports, in words of our own."""
    text = (given.error or "").lower()
    kind, hint = _KIND_BY_TYPE.get(given.error_type) or error_without_body(given.place, status).kind, ""
    for words, kind_of_words, hint_of_words in _WORDS:
        if words in text:
            kind, hint = kind_of_words, f": {words}{hint_of_words}"
            break
    return StoreError(kind, given.place, f"refused the query ({status}){hint or '; its log has the reason'}")


def transport_error(place: str, error: ScrapeError) -> StoreError:
    """Return the error for a response that did not arrive, or not completely."""
    text = error.text.removeprefix(place).lstrip("/: ")
    if error.kind is ScrapeFailure.TOO_LARGE:
        return StoreError(StoreErrorKind.TOO_MUCH, place, text.partition(";")[0].rstrip("/: "))
    return StoreError(_SCRAPES.get(error.kind, StoreErrorKind.WRONG_ANSWER), place, text)


class QueryRunner:
    """Sender of queries over one connection, for one thread at a time."""

    def __init__(self, store: StoreConfig) -> None:
        self._store = store
        self._client = HttpClient(store, "answer", tuple(store.header_files.items()))
        self.place = self._client.place.rstrip("/")
        self._parameters = {
            **EXACT,
            **({} if store.partial_answers == "take" else COMPLETE),
            # Prometheus reads seconds or 1s, but not 0.5s. The store should stop when the client has stopped waiting.
            "timeout": f"{store.timeout_seconds:.3f}",
        }
        self.bytes = 0
        """Bytes of all response bodies."""

    def ask(self, path: str, form: Mapping[str, str]) -> ApiResponse:
        """Send a query and return its response with data. Raise StoreError."""
        try:
            body, status = self._answered(path, urlencode({**form, **self._parameters}))
        except ScrapeError as error:
            raise transport_error(self.place, error) from error
        self.bytes += len(body)
        given = parse_answer(self.place, body)
        if given.error is not None:
            raise error_from_body(given, status)
        if status != 200:
            raise error_without_body(self.place, status)
        if given.partial and self._store.partial_answers == "refuse":
            raise StoreError(StoreErrorKind.PARTIAL, self.place, given.partial)
        return given

    def reload_credentials(self) -> bool:
        """Read the credentials files if they changed. Return whether they did. Raise StoreError."""
        try:
            return self._client.load_if_changed()
        except ScrapeError as error:
            raise transport_error(self.place, error) from error

    def interrupt(self) -> None:
        """Let the present query fail at once, and all later ones. Any thread may call it."""
        self._client.abort()

    def close(self) -> None:
        """Close the kept connection. A later query opens a new one."""
        self._client.close()

    def _answered(self, path: str, form: str) -> tuple[bytes, int]:
        client = self._client
        client.load_if_changed()
        headers = dict(_HEADERS)
        if self._store.org_id is not None:
            headers["X-Scope-OrgID"] = self._store.org_id
        with client.send(client.prepare("POST", f"{self.place}{path}", headers, form.encode())) as response:
            status = response.status_code
            if 300 <= status < 400:
                raise status_error(self.place, status)
            if status in _STATUSES:
                kind, text = _STATUSES[status]
                raise StoreError(kind, self.place, text)
            if status != 200 and "json" not in response.headers.get("Content-Type", "").lower():
                raise error_without_body(self.place, status)
            return client.read(response), status
