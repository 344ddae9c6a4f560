"""History queries of a report, day by day, so that weeks of a busy tier fit into memory.

Rules evaluate the data, and `exporters.report` writes the text. The caller supplies the pre-warming results.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from agent.history import daily_queries
from agent.history.daily_queries import measured_views
from agent.history.reader import Reader
from exporters.report.inputs import Prewarming, ReportInputs, TierPast
from rules.catalogue.registry import BY_NAME as RULES
from rules.evaluator.benchmark_check import Step13, check_benchmark
from rules.evaluator.evaluate import evaluate_rule
from rules.plan.load_bins import BinnedWindow, TierContext
from rules.plan.schema import Plan
from rules.resize.production_summary import RECENT_SECONDS, ProductionSummary, ProductionSummaryBuilder
from rules.resize.proposal import Resize, index_by_rule, propose_size
from rules.resize.tier_move import add_tier_moves
from rules.telemetry.windows import HOUR_SECONDS, Window
from rules.verdicts.verdict import RuleResult

JUDGED_SECONDS = RECENT_SECONDS
"""Maximum span in seconds of the rules that compare with the benchmark. Older problems are no reason to re-size now."""

OVER_THE_TIME = ("WorkloadDrift", "GuardrailMissing", "QueueBreakerOff", "OutputLengthDrift", "RunawayGeneration")
"""Live rules that are also evaluated over the hours of the report."""

SIMULATED = "simulated"
"""Key of the history value that marks simulated data (`agent.demo.simulation`)."""

NO_FORECAST = "forecasting is switched off (forecast.enabled), or keeps no history here"
NOT_TOLD = "no forecast has compared its past with what happened yet: it takes three days of history while `sizewatch run` runs"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportQuery:
    """Scope of a report: tiers with their plan versions, [since, until) in unix seconds, and the time zone of its
    readers."""

    views: Mapping[str, TierContext]
    versions: Mapping[str, str]
    plan: Plan | None
    since: float
    until: float
    zone: str
    version: str
    forecasting: bool = False
    prewarming: Mapping[str, Prewarming] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Judged:
    seen: ProductionSummary
    step13: Step13
    answers: tuple[RuleResult, ...]
    before: Window | None


def query_report_inputs(store: Reader, asked: ReportQuery) -> ReportInputs:
    """Return all inputs of the report. Raise HistoryError."""
    asked = replace(asked, views=measured_views(store, asked.views, asked.versions, asked.until))
    names = [*(asked.plan.tiers if asked.plan else ()), *sorted(asked.views)]
    tiers = [_tier(store, asked, asked.views[name]) for name in dict.fromkeys(names) if name in asked.views]
    moved = add_tier_moves([_resized(one) for one in tiers])
    return ReportInputs(
        made_at=asked.until,
        since=asked.since,
        until=asked.until,
        zone=asked.zone,
        version=asked.version,
        tiers=tuple(_past(store, asked, one, judged) for one, judged in zip(moved, tiers, strict=True)),
        plan=asked.plan,
        remarks=_gone(store, asked),
        simulated=store.read_value(SIMULATED) is not None,
    )


def _resized(one: _Judged) -> Resize:
    return propose_size(one.seen, index_by_rule(one.answers))


def _tier(store: Reader, asked: ReportQuery, view: TierContext) -> _Judged:
    version = asked.versions.get(view.tier, "")
    versions = store.plan_versions(view.tier, asked.since, asked.until)
    collected = ProductionSummaryBuilder(view=view, since=asked.since, until=asked.until)
    recent: list[BinnedWindow] = []
    of_plan: list[BinnedWindow] = []
    for since, until in daily_queries.pieces(asked.since, asked.until, daily_queries.DAY_SECONDS):
        every = store.bins(view.tier, since, until)
        present = every if set(versions) <= {version} else store.bins(view.tier, since, until, version)
        hours = daily_queries.sum_by_hour(every)
        collected.add(
            hours, _as_needed(asked, until, every, hours, present), daily_queries.demand(store, view.tier, since, until)
        )
        if since >= asked.until - JUDGED_SECONDS:
            recent += every
            of_plan += present
    seen = collected.build(versions)
    checked = check_benchmark(view, of_plan, asked.until)
    answers = (
        *checked.answers,
        *_over(view, recent, asked.until),
        *daily_queries.evaluate_days(store, view, version, asked.until),
    )
    return _Judged(seen=seen, step13=checked, answers=answers, before=_before(store, asked, view))


def _as_needed(
    asked: ReportQuery,
    until: float,
    every: tuple[BinnedWindow, ...],
    hours: tuple[BinnedWindow, ...],
    present: tuple[BinnedWindow, ...],
) -> tuple[BinnedWindow, ...]:
    """Return a day under the present plan: by load bin while `ProductionSummary` uses bins, else by hour."""
    if until > asked.until - RECENT_SECONDS:
        return present
    return hours if present is every else daily_queries.sum_by_hour(present)


def _over(view: TierContext, slices: list[BinnedWindow], now: float) -> Iterator[RuleResult]:
    for name in OVER_THE_TIME:
        yield evaluate_rule(RULES[name], view, slices, now, HOUR_SECONDS)


def _before(store: Reader, asked: ReportQuery, view: TierContext) -> Window | None:
    """Return the sum of the preceding time of the same length, for trends."""
    begin = 2 * asked.since - asked.until
    collected = ProductionSummaryBuilder(view=view, since=begin, until=asked.since)
    for since, until in daily_queries.pieces(begin, asked.since, daily_queries.DAY_SECONDS):
        collected.add(daily_queries.sum_by_hour(store.bins(view.tier, since, until)), (), ())
    return collected.build(()).total


def _past(store: Reader, asked: ReportQuery, found: Resize, judged: _Judged) -> TierPast:
    tier, since = found.seen.view.tier, asked.since
    return TierPast(
        resize=found,
        step13=judged.step13,
        answers=judged.answers,
        before=judged.before,
        episodes=tuple(one for one in store.episodes(since, tier) if one.started_at < asked.until),
        unknowns=tuple(one for one in store.unknowns(since, tier) if one.started_at < asked.until),
        foreign=tuple(one for one in store.foreign_alerts(since, tier) if one.started_at < asked.until),
        events=tuple(one for one in store.events(since) if one.tier in (None, tier) and one.t < asked.until),
        prewarming=asked.prewarming.get(tier),
        no_prewarming=NOT_TOLD if asked.forecasting else NO_FORECAST,
    )


def _gone(store: Reader, asked: ReportQuery) -> tuple[str, ...]:
    """Return a remark for each tier that has findings but is no longer monitored."""
    found = {one.subject.tier for one in store.episodes(asked.since) if one.started_at < asked.until}
    found |= {one.subject.tier for one in store.unknowns(asked.since) if one.started_at < asked.until}
    gone = sorted(found - set(asked.views))
    return tuple(f"{tier} was watched in this time and is in neither plan nor targets now." for tier in gone)
