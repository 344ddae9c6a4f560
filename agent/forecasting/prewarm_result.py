"""Pre-warming of a tier as it stands, for a command: from what the daemon keeps, or from a CSV; and as a manifest.

Owns how a question is put together where no daemon asks it: the starts that the history holds, or what the arguments say in
their place. What is computed is `agent.forecasting.tier_forecast`'s, as in the daemon's process.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path

from agent.config.load import LoadedConfig, build_tier_contexts, plan_versions
from agent.errors import ConfigError, SizewatchError
from agent.forecasting.history_input import HistoryForecasts
from agent.forecasting.input_series import history_path, input_from_csv
from agent.forecasting.messages import ForecastRequest, ForecastResponse
from agent.forecasting.requests import build_request
from agent.forecasting.tier_forecast import TierForecast
from agent.history.daily_queries import measured_views
from agent.history.store import HistoryStore
from exporters.autoscaling.formats import manifest_text
from exporters.autoscaling.records import ObjectReference, Scaling, Secret
from exporters.autoscaling.schedule import slots_of
from exporters.documents.prewarm import OLD_SECONDS, Prewarm
from exporters.render.text import format_duration, format_rfc3339
from forecast.capacity.simulation_history import MINUTE_SECONDS
from rules.catalogue.registry import margin_of
from rules.evaluator.timeline import parse_start_event
from rules.plan.capacity import stated_capacity
from rules.plan.load_bins import TierContext
from rules.replicas.starts import KEPT_SECONDS, ReplicaStart


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOverrides:
    """What the arguments say in place of plan and measurement: requests per second a replica, seconds a start takes."""

    usable_rps: float | None
    start_seconds: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestOptions:
    """What a manifest is for, beside the tier: the arguments of the same names."""

    namespace: str
    workload: ObjectReference
    maximum: int | None
    prometheus: str
    autoscaler: ObjectReference | None
    token: Secret | None
    exact_steps: bool


def prewarm_from_history(
    loaded: LoadedConfig, tier: str, said: PlanOverrides, now: float | None = None
) -> ForecastResponse:
    """From the history of the daemon. Raises BadConfig, HistoryProblem. That a history was made up says whoever prints of it."""
    path = history_path(loaded)
    now = time.time() if now is None else now
    views = _views(loaded, tier)
    with HistoryStore.open_reader(path) as store:
        events = store.events(now - KEPT_SECONDS)
        views = measured_views(store, views, plan_versions(loaded), now)
    starts = tuple(start for event in events if event.tier == tier and (start := parse_start_event(event)) is not None)
    return HistoryForecasts().answer(_question(loaded, views[tier], starts, said, path, now))


def prewarm_from_csv(
    path: Path, loaded: LoadedConfig | None, tier: str, said: PlanOverrides, bin_seconds: float | None
) -> ForecastResponse:
    """From a trace, as if its end were now; plan and settings from a configuration where one is given. Raises BadTrace, and
    SizewatchError where the trace cannot be used."""
    given = input_from_csv(path, loaded, bin_seconds)
    series = given.series
    if loaded is not None:
        asked = _question(loaded, _views(loaded, tier)[tier], (), said, path, series.end)
    else:
        asked = _with(_bare(tier, path, series.end, series.zone), said)
    asked = replace(asked, bin_seconds=series.bin_seconds, settled_until=series.end, settling_seconds=0.0)
    if series.bin_seconds % MINUTE_SECONDS:
        raise SizewatchError(f"{path}: bins of {series.bin_seconds:g} s are no whole minutes: give --bin 1m or longer")
    try:
        answer = TierForecast(asked, series).answer(asked)
    except ValueError as error:
        raise SizewatchError(f"{path}: {error}") from error
    return replace(answer, prewarm=replace(answer.prewarm, as_of=series.end))


def _views(loaded: LoadedConfig, tier: str) -> dict[str, TierContext]:
    """The view of one tier. Raises BadConfig where there is none."""
    views = build_tier_contexts(loaded)
    if tier not in views:
        raise ConfigError((f"there is no tier {tier}; there are {', '.join(sorted(views)) or 'none'}",))
    return {tier: views[tier]}


def _question(
    loaded: LoadedConfig,
    view: TierContext,
    starts: tuple[ReplicaStart, ...],
    said: PlanOverrides,
    path: Path,
    now: float,
) -> ForecastRequest:
    config = loaded.config
    asked = build_request(
        view,
        starts,
        config.forecast,
        history=path,
        now=now,
        scrape_interval_seconds=config.settling_seconds / 2,
    )
    return _with(asked, said)


def _bare(tier: str, path: Path, now: float, zone: str) -> ForecastRequest:
    return ForecastRequest(
        tier=tier,
        now=now,
        settled_until=now,
        history=str(path),
        bin_seconds=MINUTE_SECONDS,
        zone=zone,
        margin=margin_of(),
        no_replicas="without a configuration say with --usable-rps what one replica carries",
    )


def _with(asked: ForecastRequest, said: PlanOverrides) -> ForecastRequest:
    """With what the arguments say in place of what was found."""
    if said.usable_rps is not None:
        asked = replace(asked, capacity=stated_capacity(said.usable_rps, "--usable-rps"), no_replicas="")
    if said.start_seconds is not None:
        asked = replace(asked, lead_seconds=said.start_seconds, lead_source="--start")
    return asked


def too_old(found: Prewarm, now: float) -> str:
    """Why no manifest of this may be applied at `now` (unix seconds), however it was asked for; empty where one may. A
    manifest acts, so that it is not made of a trace that ended long ago."""
    age = 0.0 if found.as_of is None else now - found.as_of
    return (
        f"the trace ended {format_duration(age)} ago: a manifest acts on the demand of today"
        if age > OLD_SECONDS
        else ""
    )


def manifest(answer: ForecastResponse, kind: str, where: ManifestOptions) -> str:
    """The manifest of one kind for what was found. Raises SizewatchError where it cannot be written."""
    found = answer.prewarm
    one = found.recommendation
    if one is None:
        raise SizewatchError(f"{answer.tier}: no manifest without a recommendation: {found.reason}")
    highest = max([one.replicas, *(step.replicas for step in found.schedule)])
    try:
        scaling = Scaling(
            tier=answer.tier,
            namespace=where.namespace,
            workload=where.workload,
            minimum_warm=one.minimum_warm,
            maximum=where.maximum or 2 * highest,
            zone=found.zone,
            prometheus=where.prometheus,
            lead_seconds=one.lead_seconds,
            hold_seconds=HOLD_SECONDS,
            recommended=one.replicas,
            schedule=slots_of(((step.start, step.replicas) for step in found.schedule), found.zone),
            autoscaler=where.autoscaler,
            token=where.token,
            exact_steps=where.exact_steps,
            note=_note(found),
        )
        return manifest_text(scaling, kind)
    except ValueError as error:
        raise SizewatchError(f"{answer.tier}: {error}") from error


def _note(found: Prewarm) -> str:
    """How sure the schedule in a manifest is, and of what demand it was made."""
    if found.schedule_certainty is None or found.seen_until is None:
        return ""
    sure = f"enough with {found.schedule_certainty:.0%} certainty, of demand up to {format_rfc3339(found.seen_until)}"
    return f"schedule of the day that follows, repeated every day: {sure}"


HOLD_SECONDS = 60.0
"""The published number holds before it falls; the autoscaler adds only what rides over one missing scrape."""
