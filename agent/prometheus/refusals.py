"""What an answer other than data means: by status, by what Prometheus calls the error, by the store's own words.

Owns the tables, from the sources of Prometheus 2.42 (web/api/v1/api.go), VictoriaMetrics 1.79, Thanos 0.30 and Mimir 2.9.
It does no I/O. Add a status as a row of `_STATUSES`, a wording as a row of `_WORDS`.
"""

from __future__ import annotations

from agent.errors import ScrapeError, ScrapeFailure
from agent.prometheus.answers import ApiResponse
from agent.prometheus.trouble import StoreError, StoreErrorKind

_ADDRESS = "is this the address of a Prometheus server?"
_STATUSES = {
    401: (StoreErrorKind.CREDENTIALS, "wants credentials, or takes others: {login}"),
    403: (StoreErrorKind.CREDENTIALS, "does not let these credentials query it"),
    404: (StoreErrorKind.WRONG_ANSWER, f"answered 404: {_ADDRESS}"),
    405: (StoreErrorKind.WRONG_ANSWER, f"does not take a query: {_ADDRESS}"),
    407: (StoreErrorKind.CREDENTIALS, "answered 407: a proxy before it wants credentials"),
}
"""Before their bodies are looked at."""

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
"""Words of an error, in lower case, what they mean, and what to do beyond what they say. The first that is found counts."""

_SCRAPES = {
    ScrapeFailure.TIMEOUT: StoreErrorKind.SLOW,
    ScrapeFailure.CONNECT: StoreErrorKind.AWAY,
    ScrapeFailure.CUT_OFF: StoreErrorKind.AWAY,
    ScrapeFailure.AUTH: StoreErrorKind.CREDENTIALS,
    ScrapeFailure.TLS: StoreErrorKind.CREDENTIALS,
}
LOGIN = "set bearer_token_file or basic_auth, or renew what is in them"


def error_from_status(place: str, status: int, login: str = LOGIN) -> StoreError | None:
    """The trouble that a status alone says; `login` is how its user gives credentials."""
    if status not in _STATUSES:
        return None
    kind, text = _STATUSES[status]
    return StoreError(kind, place, text.format(login=login))


def error_without_body(place: str, status: int) -> StoreError:
    """A status that came with nothing that can be read."""
    kind = _KIND_BY_STATUS.get(status, StoreErrorKind.AWAY if status >= 500 else StoreErrorKind.REFUSED)
    return StoreError(kind, place, f"answered {status}")


def error_from_body(given: ApiResponse, status: int) -> StoreError:
    """An error that the store tells."""
    said = given.error or ""
    kind = _KIND_BY_TYPE.get(given.error_type) or error_without_body(given.place, status).kind
    hint = ""
    for words, meant, what_to_do in _WORDS:
        if words in said.lower():
            kind, hint = meant, what_to_do
            break
    return StoreError(kind, given.place, f"refused the query ({status}): {said or 'it does not say why'}{hint}")


def transport_error(place: str, error: ScrapeError) -> StoreError:
    """An answer that did not come, or not whole."""
    if error.kind is ScrapeFailure.TOO_LARGE:
        return StoreError(StoreErrorKind.TOO_MUCH, place, error.text.removeprefix(place).partition(";")[0].strip("/: "))
    text = error.text.removeprefix(place).lstrip("/: ")
    return StoreError(_SCRAPES.get(error.kind, StoreErrorKind.WRONG_ANSWER), place, text)
