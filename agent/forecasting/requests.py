"""Forecast requests from the configuration, the plan and the observed starts. No library for numbers is loaded."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from agent.config.config import Config
from agent.forecasting.messages import ForecastRequest
from forecast.capacity.cold_start import cold_start
from rules.catalogue.registry import margin_of
from rules.plan.load_bins import TierContext
from rules.replicas.starts import ReplicaStart
from rules.telemetry.windows import MINUTE_SECONDS


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
    """Return the request for the tier of `context` at `now` (unix seconds). `history` is the file with its demand.

    `filled` is the number of its minutes that a back-fill added before the daemon's start.
    """
    plan, keys = context.plan, config.forecast
    start = cold_start(starts, plan.cold_start_seconds if plan else None)
    late = keys.late_request_cost.get(context.name)
    price = plan.cost.gpu_hour_price * plan.gpu.per_replica if plan and plan.cost else None
    return ForecastRequest(
        tier=context.name,
        now=now,
        settled_until=settled_time(now, config.settling_seconds),
        history=str(history.absolute()),
        settling_seconds=config.settling_seconds,
        bin_seconds=keys.bin_seconds,
        zone=keys.zone,
        certainty=keys.quantile,
        country=keys.country,
        events=keys.events,
        lead_seconds=start.p95_seconds if start else None,
        lead_source=start.sentence if start else "",
        capacity=None if _no_replicas(context) else context.capacity,
        margin=margin_of(context.limits),
        no_replicas=_no_replicas(context),
        minimum_warm=(plan.fleet.minimum_warm or 0) if plan and plan.fleet else 0,
        hold_seconds=keys.scale_down_hold_seconds,
        replica_hour=price,
        late_request=late,
        currency=plan.cost.currency if plan and plan.cost else "",
        filled=filled,
    )


def _no_replicas(context: TierContext) -> str:
    """Return why replicas cannot be counted, or ""."""
    if not context.serves_whole_requests:
        return "prefill and decode are counted apart: no one number of replicas is recommended"
    if context.capacity is None or context.capacity.is_lower_bound:
        return "the plan has no curve to derive usable rps from"
    return ""
