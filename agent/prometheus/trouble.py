"""Why a store gave no answer that may be used: the kinds, and the one exception.

Owns the words of `TroubleKind`, which are counted and exported. A new kind is a row here, and what leads to it a row of
`agent.prometheus.refusals`.
"""

from __future__ import annotations

from enum import StrEnum

from agent.errors import SizewatchError


class StoreErrorKind(StrEnum):
    """One word, counted and exported."""

    AWAY = "away"
    """Nothing answers, or what answers says that the store does not work at the moment."""
    SLOW = "slow"
    """No whole answer in time, or the store gave up on the query or is too busy for it."""
    CREDENTIALS = "credentials"
    """It does not let us in, it is not trusted, or a file for it cannot be used."""
    REFUSED = "refused"
    """It does not take this query."""
    TOO_MUCH = "too_much"
    """The query reads or gives more than may be read at once, by the store's limits or by ours."""
    PARTIAL = "partial"
    """A part of the store did not answer: what came is too little, and no data."""
    WRONG_ANSWER = "wrong_answer"
    """What came is not what Prometheus' API gives, or is not whole."""


class StoreError(SizewatchError):
    """No answer that may be used; nothing of it was used. `text` holds no secret."""

    def __init__(self, kind: StoreErrorKind, place: str, text: str) -> None:
        super().__init__(f"{place}: {text}")
        self.kind = kind
        self.place = place
        self.text = text
