"""Requests to the forecasting process and its responses. Both sides load the module, so it loads no library for numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from agent.config.config import Config
from agent.config.forecast import EventConfig
from exporters.documents.forecast import ForecastResult, Prewarm
from exporters.render.text import copy_fields
from forecast.capacity.cold_start import cold_start
from rules.catalogue.registry import margin_of
from rules.plan.capacity import stated_capacity
from rules.plan.load_bins import TierContext
from rules.plan.replica_count import NO_MARGIN, Margin
from rules.replicas.starts import ReplicaStart
from rules.telemetry.windows import MINUTE_SECONDS
from rules.telemetry.work import UNTOLD, Capacity, CapacityLengths

NO_LEAD_SECONDS = 900.0
"""Horizon in seconds while the cold start is unknown: then there is no recommendation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastRequest:
    """Request for the forecast of a tier at `now` (unix seconds), with all inputs but the traffic.

    Minutes up to `settled_until` are complete, which takes `settling_seconds`. `lead_seconds` is the P95 of the cold
    start, None if unknown. Without a `capacity` of a replica, `no_replicas` is the reason. `held` are the last
    recommended replicas. `replica_hour` and `late_request` are prices in `currency`. `certainty` (0-1) is that of the
    demand quantile. If it or `hold_seconds` is None, it follows from the lead. `filled` are minutes that a back-fill
    added to the past: a forecaster without them restarts.
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
    events: tuple[EventConfig, ...] = ()
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
    filled: int = 0

    @property
    def lengths(self) -> CapacityLengths:
        """Return the lengths that capacity counts: the unit of work."""
        if self.capacity is None:
            return UNTOLD
        return self.capacity.lengths

    @property
    def horizon_seconds(self) -> float:
        """Return the lead at which the forecast is scored."""
        return self.lead_seconds or NO_LEAD_SECONDS

    @property
    def settings(self) -> ForecastRequest:
        """Return what a forecaster is made for: lead in whole minutes, any or no capacity, and its lengths (unit of work)."""
        lead = None if self.lead_seconds is None else math.ceil(self.lead_seconds / 60.0) * 60.0
        capacity = None if self.capacity is None else stated_capacity(1.0, "any", self.capacity.lengths)
        rest = replace(self, now=0.0, settled_until=0.0, lead_source="", no_replicas="", held=0)
        return replace(rest, lead_seconds=lead, capacity=capacity)


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastResponse:
    """Forecast of a tier at `made_at` (unix seconds).

    Without a `forecast`, `gap` is the reason. `now_rps` is the demand of the last complete minute. Both are work, in
    requests of the lengths that capacity counts. `requests` and `now_requests` are the arriving requests themselves
    (`requests` None: no lengths are known, so work is requests). `minimum_warm` is a replica count, None if replicas
    cannot be counted. `memory_bytes` is that of the worker.
    """

    tier: str
    made_at: float
    bin_seconds: float
    forecast: ForecastResult | None
    prewarm: Prewarm
    now_rps: float | None = None
    requests: ForecastResult | None = None
    now_requests: float | None = None
    minimum_warm: int | None = None
    gap: str = ""
    memory_bytes: int = 0


def settled_time(now: float, settling_seconds: float) -> float:
    """Return the end of the last minute that all replicas have recorded at `now` (unix seconds).

    A window books the minute in which it begins, so the last part of a minute arrives two scrapes after its end.
    """
    return (now - settling_seconds) // MINUTE_SECONDS * MINUTE_SECONDS


def build_request(
    context: TierContext,
    starts: Iterable[ReplicaStart],
    config: Config,
    history: Path,
    now: float,
    filled: int = 0,
) -> ForecastRequest:
    """Return the request for the tier of `context` at `now` (unix seconds). `history` is the file with its demand."""
    plan, keys = context.plan, config.forecast
    request = ForecastRequest(
        tier=context.name,
        now=now,
        settled_until=settled_time(now, config.settling_seconds),
        history=str(history.absolute()),
        settling_seconds=config.settling_seconds,
        certainty=keys.quantile,
        margin=margin_of(context.limits),
        no_replicas=_no_replicas(context),
        hold_seconds=keys.scale_down_hold_seconds,
        late_request=keys.late_request_cost.get(context.name),
        filled=filled,
        **copy_fields(keys, "bin_seconds", "zone", "country", "events"),
    )
    if not request.no_replicas:
        request = replace(request, capacity=context.capacity)
    planned_seconds = None
    if plan:
        planned_seconds = plan.cold_start_seconds
    if start := cold_start(starts, planned_seconds):
        request = replace(request, lead_seconds=start.p95_seconds, lead_source=start.sentence)
    if plan and plan.fleet:
        request = replace(request, minimum_warm=plan.fleet.minimum_warm or 0)
    if plan and plan.cost:
        price = plan.cost.gpu_hour_price * plan.gpu.per_replica
        request = replace(request, replica_hour=price, currency=plan.cost.currency)
    return request


def _no_replicas(context: TierContext) -> str:
    if not context.serves_whole_requests:
        return "prefill and decode are counted apart: no one number of replicas is recommended"
    if context.capacity is None or context.capacity.is_lower_bound:
        return "the plan has no curve to derive usable rps from"
    return ""
