"""Errors of a Prometheus-compatible store, by status, by error type and by the words of the store.

Messages contain nothing that the store sent. The tables follow the sources of Prometheus 2.42 (web/api/v1/api.go),
VictoriaMetrics 1.79, Thanos 0.30 and Mimir 2.9. Add a status to `_KIND_BY_STATUS`, a wording to `_WORDS`.
"""

from __future__ import annotations

from enum import StrEnum

from agent.errors import ScrapeError, ScrapeFailure, SizewatchError


class StoreErrorKind(StrEnum):
    """Kind of a store error, as counted and exported."""

    AWAY = "away"
    """Store unreachable, or reported as out of service."""
    SLOW = "slow"
    """No complete response in time, a query timeout of the store, or a store that is too busy."""
    CREDENTIALS = "credentials"
    """Credentials rejected, certificate not trusted, or a credentials file unusable."""
    REFUSED = "refused"
    """Query rejected."""
    TOO_MUCH = "too_much"
    """Query above a limit of the store or of this agent."""
    PARTIAL = "partial"
    """Response without a part of the store. It is not used as data."""
    WRONG_ANSWER = "wrong_answer"
    """Response incomplete or not in the format of the Prometheus API."""


class StoreError(SizewatchError):
    """Failed query; no part of its response is used. `text` contains no secret."""

    def __init__(self, kind: StoreErrorKind, place: str, text: str) -> None:
        super().__init__(f"{place}: {text}")
        self.kind = kind
        self.place = place
        self.text = text


_LOGIN = "wants credentials: set bearer_token_file or basic_auth, or renew what is in them"
_KIND_BY_STATUS = {
    401: StoreErrorKind.CREDENTIALS,
    403: StoreErrorKind.CREDENTIALS,
    404: StoreErrorKind.WRONG_ANSWER,
    405: StoreErrorKind.WRONG_ANSWER,
    407: StoreErrorKind.CREDENTIALS,
    408: StoreErrorKind.SLOW,
    413: StoreErrorKind.TOO_MUCH,
    429: StoreErrorKind.SLOW,
    499: StoreErrorKind.SLOW,
    504: StoreErrorKind.SLOW,
}
_HINTS = {
    StoreErrorKind.CREDENTIALS: f", {_LOGIN}",
    StoreErrorKind.WRONG_ANSWER: ": is this the address of a Prometheus server?",
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


def status_error(place: str, status: int) -> StoreError:
    """Return the error for a status without a readable body."""
    kind = _KIND_BY_STATUS.get(status, StoreErrorKind.AWAY if status >= 500 else StoreErrorKind.REFUSED)
    return StoreError(kind, place, f"answered {status}{_HINTS.get(kind, '')}")


def is_final_status(status: int) -> bool:
    """Return whether the status is an error whatever the body contains."""
    return _KIND_BY_STATUS.get(status) in _HINTS


def response_error(place: str, status: int, error_type: str, error: str) -> StoreError:
    """Return the error that a response body reports, in words of our own."""
    text = error.lower()
    kind, hint = _KIND_BY_TYPE.get(error_type) or status_error(place, status).kind, "; its log has the reason"
    for words, kind_of_words, hint_of_words in _WORDS:
        if words in text:
            kind, hint = kind_of_words, f": {words}{hint_of_words}"
            break
    return StoreError(kind, place, f"refused the query ({status}){hint}")


def transport_error(place: str, error: ScrapeError) -> StoreError:
    """Return the error for a response that did not arrive, or not completely."""
    text = error.text.removeprefix(place).lstrip("/: ")
    if error.kind is ScrapeFailure.TOO_LARGE:
        return StoreError(StoreErrorKind.TOO_MUCH, place, text.partition(";")[0].rstrip("/: "))
    return StoreError(_SCRAPES.get(error.kind, StoreErrorKind.WRONG_ANSWER), place, text)
