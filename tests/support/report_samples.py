"""A small tier for the tests of re-sizing and its report, with numbers that can be worked out by hand.

A replica is two GPUs at 2.5 USD an hour: 5 USD an hour, 120 USD a day. The benchmark has four points, 2, 4, 6 and 8 rps with
TTFT P99 0.1, 0.2, 0.5 and 4 s. The SLO of 2 s is crossed at 6 + 2 x ln(2/0.5) / ln(4/0.5) = 7.333 rps, where 800 tokens/s
are made (between 600 + 2/3 x 300). Ten replicas are planned for a peak of 50 rps.
"""

import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

import making
from judging_samples import TOKEN_EDGES, gauge, seen

from agent.history.store import HistoryStore
from exporters.report.build import report
from exporters.report.findings import ReportInputs, TierPast
from exporters.report.records import Report, TierReport
from rules.evaluator import rule_evaluation
from rules.evaluator.benchmark_check import check_benchmark
from rules.evaluator.external_alerts import Diagnosis, ExternalAlert
from rules.evaluator.observation import ClosedMinute
from rules.methods.evidence import OUTPUTS, PROMPTS
from rules.plan.load_bins import BinnedWindow, TierContext, bin_window, build_tier_context, with_capacity
from rules.plan.schema import Plan, TierPlan, parse_plan, plan_version
from rules.resize.measured_capacity import capacity_now
from rules.resize.production_summary import ProductionSummary
from rules.resize.proposal import propose_size
from rules.telemetry import arrivals
from rules.telemetry.arrivals import MinuteDemand
from rules.telemetry.signals import Gap
from rules.telemetry.windows import Window
from rules.verdicts.verdict import Finding, Status, Subject, UnknownSpan

HOUR, DAY, WEEK = 3600.0, 86_400.0, 7 * 86_400.0
START = 1_793_577_600.0
"""Monday 2 November 2026, 0:00 UTC."""

EDGES = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 4.0, math.inf)
USABLE = 6 + 2 * math.log(4) / math.log(8)

POINTS = tuple(
    {
        "concurrency": concurrency,
        "completed_rps": rps,
        "requests": 3000,
        "ttft_p50_seconds": ttft / 2,
        "ttft_p99_seconds": ttft,
        "tpot_p99_seconds": 0.03,
        "output_tokens_per_second": tokens,
    }
    for concurrency, rps, ttft, tokens in (
        (2, 2.0, 0.1, 160.0),
        (4, 4.0, 0.2, 320.0),
        (8, 6.0, 0.5, 480.0),
        (30, 8.0, 4.0, 640.0),
    )
)

TIER: dict[str, Any] = {
    "model": "m-70b",
    "engine": "vllm",
    "gpu": {"product": "NVIDIA H100 80GB HBM3", "per_replica": 2},
    "slo": {"ttft_p99_seconds": 2.0, "tpot_p99_seconds": 0.08},
    "workload": {
        "prompt_tokens": {"mean": 800, "p50": 900, "p95": 1900, "p99": 1990},
        "generation_tokens": {"mean": 80, "p50": 90, "p95": 190, "p99": 199},
        "requests_per_second": {"average": 30, "peak": 50},
        "archetype": "chat",
    },
    "curve": {"loop": "open", "points": list(POINTS)},
    "fleet": {"instances": 10, "safety_factor": 1.2, "minimum_warm": 2},
    "cost": {"gpu_hour_price": 2.5, "currency": "USD", "planned_utilization": 0.5},
}


def plan(name: str = "t", **parts: Any) -> Plan:
    """A plan of one tier; `parts` replace its parts (None: left out)."""
    whole = {key: value for key, value in {**TIER, **parts}.items() if value is not None}
    return parse_plan({"schema": 1, "tiers": {name: whole}})


def tier(**parts: Any) -> TierPlan:
    return plan(**parts).tiers["t"]


def tier_view(**parts: Any) -> TierContext:
    return build_tier_context("t", tier(**parts))


def hour(
    number: float,
    rps: float,
    replicas: float = 10,
    ttft: Mapping[float, float] | None = None,
    prompts: float = 800.0,
    outputs: float = 80.0,
    kv: float = 0.3,
    **more: Any,
) -> Window:
    """The hour `number` hours after START: `rps` of the whole tier on so many replicas. `ttft` are shares of the requests by
    their time; all prompts and outputs are of one length, in tokens."""
    due = replicas * HOUR
    n = rps * HOUR
    times = {value: share * n for value, share in (ttft or {0.08: 1.0}).items()}
    counters = {
        "requests_finished": n,
        "in_system_change": 0.0,
        "preemptions": 0.0,
        "prompt_tokens": n * prompts,
        "generation_tokens": n * outputs,
    }
    histograms = {
        "ttft_seconds": seen(times, EDGES),
        "tpot_seconds": seen({0.02: n}, (0.01, 0.025, 0.05, 0.1, math.inf)),
        PROMPTS: seen({prompts: n}, TOKEN_EDGES),
        OUTPUTS: seen({outputs: n}, TOKEN_EDGES),
    }
    gauges = {
        "requests_running": gauge(2.0, seconds=due),
        "requests_waiting": gauge(0.0, seconds=due),
        "kv_utilization": gauge(kv, 0.0, min(1.0, kv + 0.1), seconds=due),
    }
    start = START + HOUR * number
    span = {"start": start, "end": start + HOUR, "expected_seconds": due, "covered_seconds": due}
    whole = {"counters": counters, "histograms": histograms, "gauges": gauges}
    return Window(**{**span, **whole, **more})


Rates = Callable[[int], float]


def day_and_night(number: int) -> float:
    """30 rps by day (8 to 20), 10 at night: 20 on average."""
    return 30.0 if 8 <= number % 24 < 20 else 10.0


def hours(count: int = 168, rps: Rates = day_and_night, first: int = 0, **more: Any) -> list[Window]:
    return [hour(number, rps(number), **more) for number in range(first, first + count)]


def binned(context: TierContext, several: Iterable[Window]) -> list[BinnedWindow]:
    """Each hour in the load bin of its own load."""
    return [bin_window(one, context.curve, None) for one in several]


_HOURS: dict[str, tuple[MinuteDemand, ...]] = {}
"""The minutes of an hour by what is in it: a week has two kinds of them, and to cut each anew would be most of a test's time."""


def minutes_of(one: Window) -> tuple[MinuteDemand, ...]:
    """What arrived in each minute of a window; re-sizing reads requests alone, which no hour before has a part in."""
    if one.end - one.start != HOUR or (one.start - START) % HOUR:
        return arrivals.list_demand(arrivals.split_by_minute(one))
    first = replace(one, start=START, end=START + HOUR, histograms={})
    key = repr(first)
    if key not in _HOURS:
        _HOURS[key] = arrivals.list_demand(arrivals.split_by_minute(first))
    return _moved(key, one.start - START)


@lru_cache(maxsize=1024)
def _moved(key: str, seconds: float) -> tuple[MinuteDemand, ...]:
    """The minutes of such an hour, so many seconds later."""
    return tuple(replace(minute, start=minute.start + seconds) for minute in _HOURS[key])


def seen_of(
    context: TierContext, several: Iterable[Window], since: float = START, until: float = START + WEEK
) -> ProductionSummary:
    """As the history tells it: the hours by load bin, and the minutes they fall into."""
    windows = list(several)
    placed = binned(context, windows)
    versions = (plan_version(context.plan),) if windows and context.plan else ()
    seen = ProductionSummary(context=context, since=since, until=until, versions=versions)
    return measured(seen.add(placed, placed, [minute for one in windows for minute in minutes_of(one)]))


POOLED: dict[str, Any] = {
    "pools": ["prefill", "decode"],
    "disaggregation": {
        "prefill_tokens_per_second": 16_000,
        "decode_tokens_per_second": 1000,
        "prefill_instances": 2,
        "decode_instances": 4,
    },
    "fleet": {"instances": 6},
}
"""Parts of a tier of two pools. 30 rps of the hours here use 1.5 prefill and 2.4 decode replicas."""


def pool_hours(count: int, rps: Rates = day_and_night) -> dict[str, list[Window]]:
    """The hours of both pools. Each request is counted in both, with one token of output in the first."""
    return {"prefill": hours(count, rps, replicas=2, outputs=1.0), "decode": hours(count, rps, replicas=4)}


def book_pools(store: HistoryStore, one: Plan, count: int) -> None:
    """Puts hours of both pools into a history, the last of which has just ended."""
    shift = time.time() // HOUR * HOUR - START - count * HOUR
    store.book(
        ClosedMinute(
            tier="t",
            plan_version=plan_version(one.tiers["t"]),
            slice=bin_window(replace(window, start=window.start + shift, end=window.end + shift), None, f"{pool}-0"),
            pool=pool,
        )
        for pool, several in pool_hours(count).items()
        for window in several
    )


def measured(seen: ProductionSummary) -> ProductionSummary:
    """With the capacity that these load bins show, as if every day before had shown the same."""
    return replace(seen, context=with_capacity(seen.context, capacity_now(seen.context, [seen.bins])))


def book(store: HistoryStore, one: Plan, several: Iterable[Window], name: str = "t") -> None:
    """Puts hours into a history under the plan's version, as if one replica had them."""
    found = one.tiers[name]
    curve = build_tier_context(name, found).curve
    store.book(
        ClosedMinute(tier=name, plan_version=plan_version(found), slice=bin_window(window, curve, "all"))
        for window in several
    )


def tier_past(
    one: Plan, several: Iterable[Window], since: float = START, until: float = START + WEEK, **parts: Any
) -> TierPast:
    """What the history would tell of these hours; `parts` replace the fields of the record."""
    found = build_tier_context("t", one.tiers["t"])
    windows = list(several)
    checked = check_benchmark(found, binned(found, windows), until)
    seen = seen_of(found, windows, since, until)
    results = (*checked.results, *rule_evaluation.evaluate_long_rules(found, binned(found, windows), until))
    return TierPast(**{"resize": propose_size(seen, results), "step13": checked, "results": results, **parts})


def past(one: Plan, *tiers: TierPast, zone: str = "UTC", **parts: Any) -> ReportInputs:
    """The report's input over the time of its first tier."""
    seen = tiers[0].resize.seen
    whole = {
        "made_at": seen.until,
        "since": seen.since,
        "until": seen.until,
        "zone": zone,
        "version": "0.1",
        "plan": one,
    }
    return ReportInputs(**{**whole, "tiers": tiers, **parts})


def reported(one: Plan, several: Iterable[Window], zone: str = "UTC", **parts: Any) -> tuple[Report, Plan | None]:
    """The report on one tier with these hours."""
    return report(past(one, tier_past(one, several, **parts), zone=zone))


def reported_tier(several: Iterable[Window] | None = None, one: Plan | None = None, **parts: Any) -> TierReport:
    """The tier in the report on these hours (else a whole week), with these fields of its past."""
    return reported(one or plan(), hours() if several is None else several, **parts)[0].tiers[0]


def row_of(tier: TierReport, key: str) -> Any:
    return next(row for row in tier.monitoring if row.key == key)


def unknown(
    rule: str, start: float, end: float | None, gap: Gap = Gap.SCRAPE_FAILED, replica: str | None = None
) -> UnknownSpan:
    """A time, hours after START, in which a rule was not judged."""
    began, ended = START + start * HOUR, None if end is None else START + end * HOUR
    subject = Subject(tier="t", replica=replica)
    return UnknownSpan(rule=rule, subject=subject, reason=gap, text="", started_at=began, ended_at=ended)


def foreign_alert(name: str, cause: Finding | None, started_at: float, ended_at: float | None) -> ExternalAlert:
    """An alert of another system, explained by a finding or by none."""
    diagnosis = None
    if cause is not None:
        tied = {"rule": cause.rule, "subject": cause.subject, "began_at": cause.started_at}
        diagnosis = Diagnosis(**tied, certain=True, sentence="why")
    when = {"started_at": started_at, "ended_at": ended_at, "heard_at": started_at}
    labels = (("n", f"{started_at}"),)
    return ExternalAlert(name=name, labels=labels, summary="", **when, tier="t", diagnosis=diagnosis)


def finding(rule: str, start: float, end: float | None, status: Status = Status.WARNING, **parts: Any) -> Finding:
    """An episode of the tier, hours after START."""
    seen = making.reading(1.0, 1.0, 1.0)
    texts = {"unit": "", "sentence": parts.pop("sentence", f"{rule} fired")}
    replica, began = parts.pop("replica", None), START + start * HOUR
    worst = making.verdict(rule, replica, began, status=status, observed=seen, expected=seen, **texts)
    ended = None if end is None else START + end * HOUR
    return making.finding(worst, ended_at=ended, **{"transitions": (), **parts})
