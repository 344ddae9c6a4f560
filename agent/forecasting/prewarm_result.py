"""Pre-warming results for commands, from the history or a CSV, and their manifests."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

from agent.config.load import LoadedConfig, build_tier_contexts, history_path, plan_versions, select_tier
from agent.errors import CannotJudgeError, SizewatchError
from agent.forecasting.history_input import HistoryForecasts
from agent.forecasting.input_series import input_from_csv
from agent.forecasting.messages import ForecastRequest, ForecastResponse, build_request
from agent.forecasting.responses import SILENT_MINUTES
from agent.forecasting.tier_forecast import TierForecast
from agent.history.daily_queries import measured_views, pieces
from agent.history.schema import DAY
from agent.history.store import HistoryStore, Reader
from exporters.autoscaling.manifests import Scaling, manifest_text
from exporters.documents.forecast import OLD_SECONDS, Prewarm, prewarm_text
from exporters.render.text import copy_fields, format_rfc3339
from forecast.capacity.drain import E2E, measure_drain
from forecast.series.binned import MINUTE_SECONDS
from rules.catalogue.registry import margin_of
from rules.evaluator.alert_severity import list_open_burns
from rules.evaluator.timeline import parse_start_event
from rules.plan.capacity import stated_capacity
from rules.plan.load_bins import TierContext
from rules.replicas.starts import KEPT_SECONDS
from rules.resize.production_summary import RECENT_SECONDS
from rules.telemetry.windows import Window, sum_families
from rules.telemetry.wording import format_duration
from rules.telemetry.work import CapacityLengths
from rules.verdicts.verdict import Finding


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOverrides:
    """Arguments in place of plan and measurement: requests per second of a replica, seconds of a start."""

    usable_rps: float | None = None
    start_seconds: float | None = None


def prewarm_from_history(
    loaded: LoadedConfig, tier: str, overrides: PlanOverrides, now: float | None = None
) -> ForecastResponse:
    """Return the result from the history of the daemon, with what scaling down takes. Raise ConfigError or HistoryError."""
    now = time.time() if now is None else now
    with HistoryStore.open_reader(history_path(loaded)) as store:
        context = build_tier_contexts(loaded)[select_tier(loaded, tier)]
        contexts = measured_views(store, {tier: context}, plan_versions(loaded), now)
        result = forecast_from_history(store, loaded, contexts[tier], overrides, now)
        durations = _durations(store, tier, now)
    return replace(result, prewarm=replace(result.prewarm, drain=measure_drain(durations)))


def forecast_from_history(
    store: Reader, loaded: LoadedConfig, context: TierContext, overrides: PlanOverrides, now: float
) -> ForecastResponse:
    """Return the forecast and the decision with the capacity of a context. Raise ConfigError or HistoryError."""
    tier, path = context.name, history_path(loaded)
    events = [event for event in store.events(now - KEPT_SECONDS) if event.tier == tier]
    starts = tuple(start for event in events if (start := parse_start_event(event)) is not None)
    result = HistoryForecasts().respond(
        _overridden(build_request(context, starts, loaded.config, path, now), overrides)
    )
    decided = result.prewarm.recommendation
    if decided is None:
        return result
    is_burning = bool(list_open_burns(store.spans(Finding, now, tier)))
    decided = decided.with_present(_count_ready(store, tier, now), is_burning=is_burning)
    return replace(result, prewarm=replace(result.prewarm, recommendation=decided))


def _count_ready(store: Reader, tier: str, now: float) -> int | None:
    """Return the replicas scraped in the newest minute, None if it is too old or the tier is read as sums."""
    recent = store.minutes(tier, now - SILENT_MINUTES * MINUTE_SECONDS, now)
    newest = max((part.window.start // MINUTE_SECONDS for part in recent), default=0.0)
    last = [part for part in recent if part.window.start // MINUTE_SECONDS == newest]
    seen = {part.replica for part in last if part.window.coverage > 0}
    if seen and None not in seen:
        return len(seen)
    return None


def _durations(store: Reader, tier: str, now: float) -> Window:
    total = Window(start=now, end=now, expected_seconds=0.0, covered_seconds=0.0)
    for begin, end in pieces(now - RECENT_SECONDS, now, DAY):
        day = (part.window for part in store.bins(tier, begin, end))
        total = sum_families((total, *day), {E2E})
    return total


def prewarm_from_csv(
    path: Path, loaded: LoadedConfig | None, tier: str, overrides: PlanOverrides, bin_seconds: float | None
) -> ForecastResponse:
    """Return the result from a trace, as of its end, by a configuration if one is given. Raise SizewatchError."""
    given = input_from_csv(path, loaded, bin_seconds, tier)
    series = given.series
    if loaded is not None:
        context = build_tier_contexts(loaded)[select_tier(loaded, tier)]
        request = build_request(context, (), loaded.config, path, series.end)
        request = _overridden(request, overrides)
    else:
        bare = ForecastRequest(
            tier=tier,
            now=series.end,
            settled_until=series.end,
            history=str(path),
            bin_seconds=MINUTE_SECONDS,
            zone=series.zone,
            margin=margin_of(),
            no_replicas="without a configuration say with --usable-rps what one replica carries",
        )
        request = _overridden(bare, overrides, given.lengths)
    request = replace(request, bin_seconds=series.bin_seconds, settled_until=series.end, settling_seconds=0.0)
    if series.bin_seconds % MINUTE_SECONDS:
        raise SizewatchError(f"{path}: bins of {series.bin_seconds:g} s are no whole minutes: give --bin 1m or longer")
    try:
        result = TierForecast(request, series, given.requests).respond(request)
    except ValueError as error:
        raise SizewatchError(f"{path}: {error}") from error
    return replace(result, prewarm=replace(result.prewarm, as_of=series.end))


def _overridden(
    request: ForecastRequest, overrides: PlanOverrides, lengths: CapacityLengths | None = None
) -> ForecastRequest:
    """Return the request with the arguments in place. `--usable-rps` counts requests of these lengths (None: its own)."""
    if overrides.usable_rps is not None:
        stated = stated_capacity(overrides.usable_rps, "--usable-rps", request.lengths if lengths is None else lengths)
        request = replace(request, capacity=stated, no_replicas="")
    if overrides.start_seconds is not None:
        request = replace(request, lead_seconds=overrides.start_seconds, lead_source="--start")
    return request


def manifest(result: ForecastResponse, options: SimpleNamespace, now: float) -> str:
    """Return the manifest of the command's options. Raise SizewatchError, CannotJudgeError without a basis of today."""
    report, decided = result.prewarm, result.prewarm.recommendation
    if decided is None:
        raise CannotJudgeError(f"no manifest: {prewarm_text(report)}")
    highest = max([decided.replicas, *(step.replicas for step in report.schedule)])
    try:
        scaling = Scaling(
            tier=result.tier,
            maximum=options.maximum or 2 * highest,
            recommended=decided.replicas,
            note=_note(report),
            **copy_fields(options, "namespace", "workload", "prometheus", "token"),
            **copy_fields(decided, "minimum_warm", "lead_seconds"),
            **copy_fields(report, "zone", "schedule", "drain"),
        )
        text = manifest_text(scaling, options.format)
    except ValueError as error:
        raise SizewatchError(f"{result.tier}: {error}") from error
    age = 0.0 if report.as_of is None else now - report.as_of
    if age > OLD_SECONDS:
        why = f"the trace ended {format_duration(age)} ago: a manifest acts on the demand of today"
        raise CannotJudgeError(f"no manifest: {result.tier}: {why}")
    return text


def _note(report: Prewarm) -> str:
    if report.schedule_certainty is None or report.seen_until is None:
        return ""
    sure = f"enough with {report.schedule_certainty:.0%} certainty, of demand up to {format_rfc3339(report.seen_until)}"
    return f"schedule of the day that follows, repeated every day: {sure}"
