"""Generator of reports: history queries day by day, the worth of pre-warming, and the files of a report.

It loads the libraries of the page and the forecast, so only a process that writes a report imports it. Queries
are of a day: they fit into memory even for weeks of a busy tier.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from agent.config.load import LoadedConfig, build_tier_contexts, history_path, plan_versions
from agent.errors import SizewatchError
from agent.forecasting.messages import ForecastResponse
from agent.history import daily_queries
from agent.history.schema import DAY
from agent.history.store import HistoryStore, Reader
from agent.version import VERSION
from exporters.documents.calibration import ADAPTER, Calibration, CalibrationFile, calibrate, collect_calibrations
from exporters.render.text import copy_fields
from exporters.report.build import next_plan_text, report
from exporters.report.findings import Prewarming, ReportInputs, TierPast
from exporters.report.formats import report_html, report_markdown
from exporters.report.records import Report, report_json
from rules.catalogue.registry import BY_NAME as RULES
from rules.evaluator.benchmark_check import check_benchmark
from rules.evaluator.external_alerts import ExternalAlert
from rules.evaluator.rule_evaluation import evaluate_rule
from rules.plan import load_bins
from rules.plan.load_bins import BinnedWindow, TierContext, with_capacity
from rules.resize.measured_capacity import capacity_now, count_present_requests, evidence_of
from rules.resize.production_summary import RECENT_SECONDS, ProductionSummary
from rules.resize.proposal import propose_size
from rules.telemetry.windows import HOUR_SECONDS
from rules.verdicts.verdict import Finding, UnknownSpan

OVER_THE_TIME = ("WorkloadDrift", "OutputLengthDrift")
"""Live rules that are also evaluated over the hours of the report."""

Progress = Callable[[float, str], None]
"""Function that is told the share of the tiers that are done, and the name of the next."""

NO_FORECAST = "forecasting is switched off (forecast.enabled), or keeps no history here"
NOT_YET = "no forecast has compared its past with what happened yet: it takes three days of history while `sizewatch run` runs"


def query_report_inputs(
    store: Reader, loaded: LoadedConfig, since: float, until: float, progress: Progress = lambda share, tier: None
) -> ReportInputs:
    """Return all inputs of the report over [since, until), in unix seconds. Raise HistoryError."""
    contexts, versions = build_tier_contexts(loaded), plan_versions(loaded)
    names = [name for name in dict.fromkeys((*versions, *contexts)) if name in contexts]
    tiers = []
    for place, name in enumerate(names):
        progress(place / len(names), name)
        tiers.append(_tier(store, loaded, contexts[name], versions.get(name, ""), since, until))
    spans: tuple[Finding | UnknownSpan, ...] = (*store.spans(Finding, since), *store.spans(UnknownSpan, since))
    gone = {span.subject.tier for span in spans if span.started_at < until and span.subject.tier not in contexts}
    return ReportInputs(
        made_at=until,
        since=since,
        until=until,
        zone=loaded.config.forecast.zone,
        version=VERSION,
        plan=loaded.plan,
        tiers=tuple(tiers),
        remarks=tuple(
            f"{tier} was watched in this time and is in neither plan nor targets now." for tier in sorted(gone)
        ),
        simulated=bool(store.simulated_notice()),
    )


def _tier(
    store: Reader, loaded: LoadedConfig, context: TierContext, version: str, since: float, until: float
) -> TierPast:
    tier = context.name
    measured = version and context.serves_whole_requests
    days = tuple(daily_queries.read_capacity_days(store, tier, version, until)) if measured else ()
    daily = capacity_now(context, days)
    context = with_capacity(context, daily_queries.read_capacity(store, context, until, daily) if measured else daily)
    is_forecast = loaded.config.forecast.enabled
    prewarming = _prewarming(store, loaded, context, until) if is_forecast else None
    versions = store.plan_versions(tier, since, until)
    seen = ProductionSummary(context=context, since=since, until=until, versions=versions)
    recent: list[BinnedWindow] = []
    of_plan: list[BinnedWindow] = []
    for begin, end in daily_queries.pieces(since, until, DAY):
        rows = store.bins(tier, begin, end)
        present = rows if set(versions) <= {version} else store.bins(tier, begin, end, version)
        hours = load_bins.sum_by_hour(rows)
        # By load bin while `ProductionSummary` uses bins, else by hour.
        of_present_plan = present
        if end <= until - RECENT_SECONDS:
            of_present_plan = hours if present is rows else load_bins.sum_by_hour(present)
        seen = seen.add(hours, of_present_plan, store.demand(tier, begin, end))
        # Older problems are no reason to re-size now.
        if begin >= until - RECENT_SECONDS:
            recent += rows
            of_plan += present
    checked = check_benchmark(context, of_plan, until)
    results = (
        *checked.results,
        *(evaluate_rule(RULES[name], context, recent, until, HOUR_SECONDS) for name in OVER_THE_TIME),
        *daily_queries.evaluate_days(store, context, version, until),
    )
    if measured:
        # The next plan has production's lengths beside it, so it counts these requests.
        context = with_capacity(context, count_present_requests(context.capacity, seen.lately))
    # The curve and the capacity tell of the same requests.
    summary = replace(seen, context=context, bins=evidence_of(days) or seen.bins)
    return TierPast(
        resize=propose_size(summary, results),
        step13=checked,
        results=results,
        before=daily_queries.read_production(store, context, 2 * since - until, since).total,
        findings=tuple(span for span in store.spans(Finding, since, tier) if span.started_at < until),
        unknowns=tuple(span for span in store.spans(UnknownSpan, since, tier) if span.started_at < until),
        foreign=tuple(alert for alert in store.spans(ExternalAlert, since, tier) if alert.started_at < until),
        prewarming=prewarming,
        no_prewarming=NOT_YET if is_forecast else NO_FORECAST,
        events=tuple(event for event in store.events(since) if event.tier in (None, tier) and event.t < until),
    )


def _prewarming(store: Reader, loaded: LoadedConfig, context: TierContext, now: float) -> Prewarming | None:
    from agent.forecasting.prewarm_result import PlanOverrides, forecast_from_history

    try:
        return prewarming_from_response(forecast_from_history(store, loaded, context, PlanOverrides(), now))
    except SizewatchError:
        # The report's own queries meet the same history error and report it.
        return None


def prewarming_from_response(result: ForecastResponse) -> Prewarming | None:
    """Return the pre-warming result, or None without a forecast and a comparison."""
    worth, decided = result.prewarm.worth, result.prewarm.recommendation
    decision = decided.sentence if decided is not None else ""
    if result.forecast is None:
        return None if worth is None else Prewarming(worth=worth, decision=decision)
    projection = result.forecast.projection
    return Prewarming(
        worth=worth,
        decision=decision,
        **copy_fields(projection, "method", "naive", "error_ratio", "forecasts"),
        covered_ratio=projection.covered / projection.forecasts if projection.forecasts else None,
    )


def make_files(
    loaded: LoadedConfig, seconds: float, due: float, made_at: float, progress: Progress = lambda share, tier: None
) -> tuple[dict[str, str], Report]:
    """Return the files of a report over the `seconds` before `due` (unix seconds), and it. Raise ConfigError, HistoryError."""
    with HistoryStore.open_reader(history_path(loaded)) as store:
        since, until = daily_queries.choose_period(store, build_tier_contexts(loaded), seconds, due)
        past = replace(query_report_inputs(store, loaded, since, until, progress), made_at=made_at)
        calibrated = read_calibration(store, loaded, since, until)
    texts, made = files_of(past)
    return texts | {"calibration.json": ADAPTER.dump_json(calibrated, indent=2).decode() + "\n"}, made


def files_of(past: ReportInputs) -> tuple[dict[str, str], Report]:
    """Return the text of the report's own files, and the report. Without a plan there is no plan.next.yaml."""
    made, proposed = report(past)
    texts = {"report.html": report_html(made), "report.md": report_markdown(made), "report.json": report_json(made)}
    if proposed is not None:
        texts["plan.next.yaml"] = next_plan_text(made, proposed)
    return texts, made


def read_calibration(
    store: Reader, loaded: LoadedConfig, since: float, until: float, tier: str | None = None
) -> CalibrationFile:
    """Return the calibration of one tier or all over [since, until), unix seconds. Raise HistoryError.

    Only hours under the present version of the plan count: another version has another curve.
    """
    made: list[tuple[str, Calibration | str]] = []
    versions = plan_versions(loaded)
    contexts = {name: view for name, view in build_tier_contexts(loaded).items() if tier in (None, name)}
    for name, context in daily_queries.measured_views(store, contexts, versions, until).items():
        if name not in versions:
            made.append((name, "it has no plan"))
            continue
        sums: dict[tuple[str, str], tuple[BinnedWindow, ...]] = {}
        # Day by day: weeks of hours do not fit into memory.
        for begin, end in daily_queries.pieces(since, until, DAY):
            for key, hours in store.bins_by_release(name, begin, end, versions[name]).items():
                sums[key] = load_bins.sum_by_bin((*sums.get(key, ()), *hours))
        made += [(name, calibrate(context, *key, bins)) for key, bins in sorted(sums.items())]
        if not sums:
            made.append((name, "its history has no hour under the present plan"))
    return collect_calibrations(made, until, VERSION, bool(store.simulated_notice()))
