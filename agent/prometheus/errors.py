"""Errors of a Prometheus-compatible store, by status and by the words of the store.

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


_KIND_BY_STATUS = {
    **dict.fromkeys((401, 403, 407), StoreErrorKind.CREDENTIALS),
    **dict.fromkeys((404, 405), StoreErrorKind.WRONG_ANSWER),
    **dict.fromkeys((408, 429, 499, 504), StoreErrorKind.SLOW),
    413: StoreErrorKind.TOO_MUCH,
}
_HINTS = {
    StoreErrorKind.CREDENTIALS: ", wants credentials: set bearer_token_file, basic_auth or org_id, or renew what is in them",
    StoreErrorKind.WRONG_ANSWER: ": is this the address of a Prometheus server?",
}
FINAL_STATUSES = frozenset(status for status, kind in _KIND_BY_STATUS.items() if kind in _HINTS)
"""Statuses that are an error whatever the body contains."""

_WORDS = {
    **dict.fromkeys(("too many samples", "maximum resolution", "-search.max"), StoreErrorKind.TOO_MUCH),
    **dict.fromkeys(("err-mimir-max-", "exceeded series limit", "exceeded chunks limit"), StoreErrorKind.TOO_MUCH),
    **dict.fromkeys(("query timed out", "query was canceled", "deadline exceeded"), StoreErrorKind.SLOW),
    **dict.fromkeys(("vmstorage nodes", "receive series from", "no store matched"), StoreErrorKind.PARTIAL),
}
"""Lower-case words of an error and its kind. The first match counts."""

_SCRAPES = {
    ScrapeFailure.TIMEOUT: StoreErrorKind.SLOW,
    ScrapeFailure.CONNECT: StoreErrorKind.AWAY,
    ScrapeFailure.CUT_OFF: StoreErrorKind.AWAY,
    ScrapeFailure.AUTH: StoreErrorKind.CREDENTIALS,
    ScrapeFailure.TLS: StoreErrorKind.CREDENTIALS,
    ScrapeFailure.TOO_LARGE: StoreErrorKind.TOO_MUCH,
}


def status_error(place: str, status: int) -> StoreError:
    """Return the error for a status without a readable body."""
    kind = _KIND_BY_STATUS.get(status, StoreErrorKind.AWAY if status >= 500 else StoreErrorKind.REFUSED)
    return StoreError(kind, place, f"answered {status}{_HINTS.get(kind, '')}")


def response_error(place: str, status: int, error: str) -> StoreError:
    """Return the error that a response body reports, in words of our own."""
    words = next((words for words in _WORDS if words in error.lower()), None)
    if words is not None:
        return StoreError(_WORDS[words], place, f"refused the query ({status}): {words}")
    return StoreError(status_error(place, status).kind, place, f"refused the query ({status}); its log has the reason")


def transport_error(place: str, error: ScrapeError) -> StoreError:
    """Return the error for a response that did not arrive, or not completely."""
    kind = _SCRAPES.get(error.kind, StoreErrorKind.WRONG_ANSWER)
    return StoreError(kind, place, error.text.removeprefix(place).lstrip("/: "))
