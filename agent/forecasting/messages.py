"""What the daemon and its forecasting process say to each other: one question and one answer a line, as JSON.

Owns the two records and their spelling. It loads no numbers' library, for both sides read it. An answer is believed only
where it has exactly this shape: whatever else comes is garbage (ValueError). What a forecaster must know more is a field of
`Question`; what it has to tell more, one of `Answer`.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any

from pydantic import ConfigDict, TypeAdapter

from exporters.documents.forecast import ForecastResult
from exporters.documents.prewarm import Prewarm
from rules.plan.capacity import stated_capacity
from rules.plan.replica_count import NO_MARGIN, Margin
from rules.telemetry.work import Capacity

NO_LEAD_SECONDS = 900.0
"""How far ahead is judged where nobody knows how long a start takes: then no replicas are recommended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventMessage:
    """A known event, as `forecast.events` has it; `start` is local time without an offset."""

    name: str
    start: datetime
    duration_seconds: float
    factor: float
    recurrence: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastRequest:
    """What is asked about one tier at `now` (unix seconds), and all that the answer depends on beside the traffic.

    `settled_until` is up to where minutes are whole, `settling_seconds` how long that takes. `lead_seconds` is the P95 of its
    cold start, None where nothing tells it, `lead_source` where it is from. `capacity` is what one replica carries now, `margin`
    the room that a count leaves; where there is no capacity, `no_replicas` says why. `minimum_warm` is the plan's, `held` the
    replicas that were recommended last. `replica_hour` and `late_request` are prices in `currency`. `certainty` (0-1) is that
    of the demand to be ready for. Where it or `hold_seconds` is None the lead says it.
    """

    tier: str
    now: float
    settled_until: float
    history: str
    bin_seconds: float
    zone: str
    certainty: float | None = None
    settling_seconds: float = 0.0
    country: str | None = None
    events: tuple[EventMessage, ...] = ()
    lead_seconds: float | None = None
    lead_source: str = ""
    capacity: Capacity | None = None
    margin: Margin = NO_MARGIN
    no_replicas: str = ""
    minimum_warm: int = 0
    hold_seconds: float | None = None
    held: int = 0
    replica_hour: float | None = None
    late_request: float | None = None
    currency: str = ""

    @property
    def horizon_seconds(self) -> float:
        """Return how far ahead the forecast is judged."""
        return self.lead_seconds or NO_LEAD_SECONDS

    @property
    def settings(self) -> ForecastRequest:
        """The same without what changes from hour to hour, the lead in whole minutes: forecasters of unequal settings have
        nothing in common. Of the capacity only whether there is one: traffic is forecast alike at any."""
        lead = None if self.lead_seconds is None else math.ceil(self.lead_seconds / 60.0) * 60.0
        capacity = None if self.capacity is None else stated_capacity(1.0, "any")
        return replace(
            self,
            now=0.0,
            settled_until=0.0,
            lead_seconds=lead,
            lead_source="",
            capacity=capacity,
            no_replicas="",
            held=0,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastResponse:
    """What was found about one tier at `made_at` (unix seconds).

    `forecast` is None where there is none, and then `gap` says why. `now_rps` is what arrived in the last whole minute.
    `minimum_warm` are replicas, None where no replicas can be counted. `memory_bytes` is what the process holds.
    """

    tier: str
    made_at: float
    bin_seconds: float
    forecast: ForecastResult | None
    prewarm: Prewarm
    now_rps: float | None = None
    minimum_warm: int | None = None
    gap: str = ""
    memory_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastFailure:
    """That a question could not be answered by a defect or for lack of memory: `trouble` says so in words."""

    tier: str
    trouble: str


_QUESTION = TypeAdapter(ForecastRequest)
_ANSWER = TypeAdapter(ForecastResponse | ForecastFailure, config=ConfigDict(extra="forbid", allow_inf_nan=False))


def question_line(question: ForecastRequest) -> bytes:
    """The question as it is written to the process."""
    return _line(asdict(question) | {"events": [asdict(e) | {"start": e.start.isoformat()} for e in question.events]})


def parse_request(line: bytes | str) -> ForecastRequest:
    """The question in a line. Raises ValueError where it holds none."""
    return _QUESTION.validate_python(_document(line))


def answer_line(answer: ForecastResponse | ForecastFailure) -> bytes:
    """The answer as it is written back. Raises ValueError where it holds a number that is none."""
    return _line(asdict(answer))


def parse_response(line: bytes | str) -> ForecastResponse | ForecastFailure:
    """The answer in a line. Raises ValueError for anything else."""
    return _ANSWER.validate_python(_document(line))


def _line(document: dict[str, Any]) -> bytes:
    return json.dumps(document, allow_nan=False).encode() + b"\n"


def _document(line: bytes | str) -> Any:
    try:
        return json.loads(line)
    except RecursionError:
        raise ValueError("is nested too deep") from None
