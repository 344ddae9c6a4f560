"""Generator of reports: history queries day by day, the worth of pre-warming, and the files of a report.

It loads the libraries of the page and the forecast, so only a process that writes a report imports it. The libraries
for numbers load only if forecasting is enabled. Queries of a day fit into memory even for weeks of a busy tier.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from agent.config.load import LoadedConfig, build_tier_contexts, history_path, plan_versions
from agent.errors import SizewatchError
from agent.forecasting.messages import ForecastResponse
from agent.history import daily_queries
from agent.history.reader import Reader
from agent.history.store import HistoryStore
from agent.reporting import storage
from agent.version import VERSION
from exporters.render.text import copy_fields
from exporters.report.build import report, report_json
from exporters.report.html import report_html
from exporters.report.inputs import Prewarming, ReportInputs, TierPast
from exporters.report.markdown import report_markdown
from exporters.report.next_plan import next_plan_text
from exporters.report.records import Report
from rules.catalogue.registry import BY_NAME as RULES
from rules.evaluator.benchmark_check import Step13, check_benchmark
from rules.evaluator.tier_rules import evaluate_rule
from rules.plan.load_bins import BinnedWindow, TierContext, with_capacity
from rules.plan.schema import Plan
from rules.resize.measured_capacity import capacity_now, count_present_requests, evidence_of
from rules.resize.production_summary import RECENT_SECONDS, ProductionSummary, ProductionSummaryBuilder
from rules.resize.proposal import Resize, index_by_rule, propose_size
from rules.resize.tier_move import add_tier_moves
from rules.telemetry.windows import HOUR_SECONDS, Window
from rules.verdicts.verdict import RuleResult

OVER_THE_TIME = ("WorkloadDrift", "OutputLengthDrift")
"""Live rules that are also evaluated over the hours of the report."""

SIMULATED = "simulated"
"""Key of the history value that marks simulated data (`agent.demo.simulation`)."""

Told = Callable[[float, str], None]
"""Called with the share that is done, and what is done next."""

NO_FORECAST = "forecasting is switched off (forecast.enabled), or keeps no history here"
NOT_TOLD = "no forecast has compared its past with what happened yet: it takes three days of history while `sizewatch run` runs"


class ReportError(SizewatchError):
    """Failure to write a report to its folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportQuery:
    """Scope of a report: tiers with their plan versions, [since, until) in unix seconds, and the time zone of its
    readers."""

    contexts: Mapping[str, TierContext]
    versions: Mapping[str, str]
    plan: Plan | None
    since: float
    until: float
    zone: str
    version: str
    forecasting: bool = False
    prewarming: Mapping[str, Prewarming] = field(default_factory=dict)
    told: Told = lambda share, what: None


@dataclass(frozen=True, slots=True, kw_only=True)
class _TierResult:
    summary: ProductionSummary
    step13: Step13
    results: tuple[RuleResult, ...]
    before: Window | None


def query_report_inputs(store: Reader, asked: ReportQuery) -> ReportInputs:
    """Return all inputs of the report. Raise HistoryError."""
    every = dict.fromkeys((*(asked.plan.tiers if asked.plan else ()), *sorted(asked.contexts)))
    names = [name for name in every if name in asked.contexts]
    told = _count(names, asked.told, "history")
    tiers = [_tier(store, asked, asked.contexts[name]) for name in told]
    moved = add_tier_moves([propose_size(one.summary, index_by_rule(one.results)) for one in tiers])
    return ReportInputs(
        **copy_fields(asked, "since", "until", "zone", "version", "plan"),
        made_at=asked.until,
        tiers=tuple(_past(store, asked, one, result) for one, result in zip(moved, tiers, strict=True)),
        remarks=_gone(store, asked),
        simulated=store.read_value(SIMULATED) is not None,
    )


def _count(tiers: Iterable[str], told: Told, what: str) -> Iterator[str]:
    """Yield the tiers, and tell which one is next. The forecasts of all tiers are the first half of a report."""
    names, half = list(tiers), 0.5 * (what == "history")
    for place, name in enumerate(names):
        told(half + 0.5 * place / len(names), f"{what} of {name}")
        yield name


def _tier(store: Reader, asked: ReportQuery, context: TierContext) -> _TierResult:
    version = asked.versions.get(context.tier, "")
    measured = version and context.serves_whole_requests
    days = tuple(daily_queries.read_capacity_days(store, context.tier, version, asked.until)) if measured else ()
    daily = capacity_now(context, days)
    context = with_capacity(
        context, daily_queries.read_capacity(store, context, version, asked.until, daily) if measured else daily
    )
    versions = store.plan_versions(context.tier, asked.since, asked.until)
    collected = ProductionSummaryBuilder(context=context, since=asked.since, until=asked.until)
    recent: list[BinnedWindow] = []
    of_plan: list[BinnedWindow] = []
    for since, until in daily_queries.pieces(asked.since, asked.until, daily_queries.DAY_SECONDS):
        every = store.bins(context.tier, since, until)
        present = every if set(versions) <= {version} else store.bins(context.tier, since, until, version)
        hours = daily_queries.sum_by_hour(every)
        # By load bin while `ProductionSummary` uses bins, else by hour.
        of_present_plan = present
        if until <= asked.until - RECENT_SECONDS:
            of_present_plan = hours if present is every else daily_queries.sum_by_hour(present)
        collected.add(hours, of_present_plan, store.requests(context.tier, since, until))
        # Older problems are no reason to re-size now.
        if since >= asked.until - RECENT_SECONDS:
            recent += every
            of_plan += present
    checked = check_benchmark(context, of_plan, asked.until)
    results = (
        *checked.results,
        *(evaluate_rule(RULES[name], context, recent, asked.until, HOUR_SECONDS) for name in OVER_THE_TIME),
        *daily_queries.evaluate_days(store, context, version, asked.until),
    )
    if measured:
        # The next plan has production's lengths beside it, so it counts these requests.
        context = with_capacity(context, count_present_requests(context.capacity, collected.lately))
    summary = replace(collected.build(versions), context=context, capacity_bins=evidence_of(days))
    return _TierResult(summary=summary, step13=checked, results=results, before=_before(store, asked, context))


def _before(store: Reader, asked: ReportQuery, context: TierContext) -> Window | None:
    """Return the sum of the preceding time of the same length, for trends."""
    begin = 2 * asked.since - asked.until
    collected = ProductionSummaryBuilder(context=context, since=begin, until=asked.since)
    for since, until in daily_queries.pieces(begin, asked.since, daily_queries.DAY_SECONDS):
        collected.add(daily_queries.sum_by_hour(store.bins(context.tier, since, until)), (), ())
    return collected.build(()).total


def _past(store: Reader, asked: ReportQuery, resize: Resize, result: _TierResult) -> TierPast:
    tier, since = resize.seen.context.tier, asked.since
    return TierPast(
        resize=resize,
        **copy_fields(result, "step13", "results", "before"),
        findings=tuple(one for one in store.findings(since, tier) if one.started_at < asked.until),
        unknowns=tuple(one for one in store.unknowns(since, tier) if one.started_at < asked.until),
        foreign=tuple(one for one in store.foreign_alerts(since, tier) if one.started_at < asked.until),
        events=tuple(one for one in store.events(since) if one.tier in (None, tier) and one.t < asked.until),
        prewarming=asked.prewarming.get(tier),
        no_prewarming=NOT_TOLD if asked.forecasting else NO_FORECAST,
    )


def _gone(store: Reader, asked: ReportQuery) -> tuple[str, ...]:
    """Return a remark for each tier that has findings but is no longer monitored."""
    found = {one.subject.tier for one in store.findings(asked.since) if one.started_at < asked.until}
    found |= {one.subject.tier for one in store.unknowns(asked.since) if one.started_at < asked.until}
    gone = sorted(found - set(asked.contexts))
    return tuple(f"{tier} was watched in this time and is in neither plan nor targets now." for tier in gone)


def prewarming(loaded: LoadedConfig, now: float, told: Told = lambda share, what: None) -> dict[str, Prewarming]:
    """Return the pre-warming results by tier at `now` (unix seconds). Tiers without a result are left out."""
    if not loaded.config.forecast.enabled:
        return {}
    from agent.forecasting.prewarm_result import PlanOverrides, prewarm_from_history

    found: dict[str, Prewarming] = {}
    for tier in _count(build_tier_contexts(loaded), told, "forecast"):
        try:
            result = prewarming_from_response(prewarm_from_history(loaded, tier, PlanOverrides(), now))
        except SizewatchError:
            # The report's own queries meet the same history error and report it.
            continue
        if result is not None:
            found[tier] = result
    return found


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


def files_of(past: ReportInputs) -> tuple[dict[str, str], Report]:
    """Return the text of every file, and the report. Without a plan there is no plan.next.yaml."""
    found, proposed = report(past)
    texts = {"report.html": report_html(found), "report.md": report_markdown(found), "report.json": report_json(found)}
    if proposed is not None:
        texts["plan.next.yaml"] = next_plan_text(past, proposed)
    return texts, found


def load_report_inputs(
    loaded: LoadedConfig, seconds: float, now: float, told: Told = lambda share, what: None
) -> ReportInputs:
    """Return the inputs of a report over the last `seconds` before `now`. Raise ConfigError or HistoryError."""
    path = history_path(loaded, "report on")
    contexts = build_tier_contexts(loaded)
    with HistoryStore.open_reader(path) as store:
        since, until = daily_queries.choose_period(store, contexts, seconds, now)
        asked = ReportQuery(
            contexts=contexts,
            versions=plan_versions(loaded),
            plan=loaded.plan,
            since=since,
            until=until,
            zone=loaded.config.forecast.zone,
            version=VERSION,
            forecasting=loaded.config.forecast.enabled,
            prewarming=prewarming(loaded, now, told),
            told=told,
        )
        return query_report_inputs(store, asked)


def generate_report(loaded: LoadedConfig, due: float, folder: Path, name: str) -> str:
    """Write the report of the time before `due` (unix seconds) into `folder`/`name`, and remove old reports.

    Return the headline. Raise SizewatchError.
    """
    keys = loaded.config.report
    texts, written = files_of(load_report_inputs(loaded, keys.since_seconds, due))
    files = {file: text.encode("utf-8", "replace") for file, text in texts.items()}
    try:
        storage.publish(folder, name, files)
        storage.prune(folder, keys.keep)
    except OSError as error:
        where = f"{folder} cannot be written: {error.strerror or error}"
        raise ReportError(f"{where}; make room, or name another report.directory") from error
    return written.headline
