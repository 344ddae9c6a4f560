"""What an answer other than data means: by status, by what Prometheus calls the error, by the store's own words.

Owns the tables, from the sources of Prometheus 2.42 (web/api/v1/api.go), VictoriaMetrics 1.79, Thanos 0.30 and Mimir 2.9.
It does no I/O. Add a status as a row of `_STATUSES`, a wording as a row of `_WORDS`.
"""

from __future__ import annotations

from agent.errors import ScrapeError, ScrapeFailure
from agent.store.answers import Answer
from agent.store.trouble import StoreTrouble, TroubleKind

_ADDRESS = "is this the address of a Prometheus server?"
_STATUSES = {
    401: (TroubleKind.CREDENTIALS, "wants credentials, or takes others: {login}"),
    403: (TroubleKind.CREDENTIALS, "does not let these credentials query it"),
    404: (TroubleKind.WRONG_ANSWER, f"answered 404: {_ADDRESS}"),
    405: (TroubleKind.WRONG_ANSWER, f"does not take a query: {_ADDRESS}"),
    407: (TroubleKind.CREDENTIALS, "answered 407: a proxy before it wants credentials"),
}
"""Before their bodies are looked at."""

_KIND_BY_STATUS = {
    408: TroubleKind.SLOW,
    413: TroubleKind.TOO_MUCH,
    429: TroubleKind.SLOW,
    499: TroubleKind.SLOW,
    504: TroubleKind.SLOW,
}
_KIND_BY_TYPE = {
    "timeout": TroubleKind.SLOW,
    "canceled": TroubleKind.SLOW,
    "unavailable": TroubleKind.AWAY,
    "internal": TroubleKind.AWAY,
    "too_many_requests": TroubleKind.SLOW,
    "bad_data": TroubleKind.REFUSED,
    "execution": TroubleKind.REFUSED,
}
_WORDS = (
    ("no org id", TroubleKind.CREDENTIALS, "; set its org_id"),
    ("too many samples", TroubleKind.TOO_MUCH, ""),
    ("maximum resolution", TroubleKind.TOO_MUCH, ""),
    ("-search.max", TroubleKind.TOO_MUCH, ""),
    ("err-mimir-max-", TroubleKind.TOO_MUCH, ""),
    ("exceeded series limit", TroubleKind.TOO_MUCH, ""),
    ("exceeded chunks limit", TroubleKind.TOO_MUCH, ""),
    ("exceeded samples limit", TroubleKind.TOO_MUCH, ""),
    ("query timed out", TroubleKind.SLOW, ""),
    ("deadline exceeded", TroubleKind.SLOW, ""),
    ("vmstorage nodes", TroubleKind.PARTIAL, ""),
    ("receive series from", TroubleKind.PARTIAL, ""),
    ("no store matched", TroubleKind.PARTIAL, ""),
)
"""Words of an error, in lower case, what they mean, and what to do beyond what they say. The first that is found counts."""

_SCRAPES = {
    ScrapeFailure.TIMEOUT: TroubleKind.SLOW,
    ScrapeFailure.CONNECT: TroubleKind.AWAY,
    ScrapeFailure.CUT_OFF: TroubleKind.AWAY,
    ScrapeFailure.AUTH: TroubleKind.CREDENTIALS,
    ScrapeFailure.TLS: TroubleKind.CREDENTIALS,
}
LOGIN = "set bearer_token_file or basic_auth, or renew what is in them"


def at_sight(place: str, status: int, login: str = LOGIN) -> StoreTrouble | None:
    """The trouble that a status alone says; `login` is how its user gives credentials."""
    if status not in _STATUSES:
        return None
    kind, text = _STATUSES[status]
    return StoreTrouble(kind, place, text.format(login=login))


def without_words(place: str, status: int) -> StoreTrouble:
    """A status that came with nothing that can be read."""
    kind = _KIND_BY_STATUS.get(status, TroubleKind.AWAY if status >= 500 else TroubleKind.REFUSED)
    return StoreTrouble(kind, place, f"answered {status}")


def in_words(given: Answer, status: int) -> StoreTrouble:
    """An error that the store tells."""
    said = given.error or ""
    kind = _KIND_BY_TYPE.get(given.error_type) or without_words(given.place, status).kind
    hint = ""
    for words, meant, what_to_do in _WORDS:
        if words in said.lower():
            kind, hint = meant, what_to_do
            break
    return StoreTrouble(kind, given.place, f"refused the query ({status}): {said or 'it does not say why'}{hint}")


def not_received(place: str, error: ScrapeError) -> StoreTrouble:
    """An answer that did not come, or not whole."""
    if error.kind is ScrapeFailure.TOO_LARGE:
        return StoreTrouble(TroubleKind.TOO_MUCH, place, error.text.removeprefix(place).partition(";")[0].strip("/: "))
    text = error.text.removeprefix(place).lstrip("/: ")
    return StoreTrouble(_SCRAPES.get(error.kind, TroubleKind.WRONG_ANSWER), place, text)
