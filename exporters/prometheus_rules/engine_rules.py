"""Alert rules from an engine's own series, without an agent: selectors by engine, and a PromQL function per rule.

A row asks for the same certainty as the Python method, so it is never louder; tests drive both with the same numbers.
`exporters.prometheus_rules.engine_slo` has the burn rates. A new rule is a function and a row of ROWS, a new engine a
row in PREFIXES and in EDGES. A family that needs more than a selector is refused with a reason.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from statistics import NormalDist

from exporters.alertmanager.payload import runbook_url
from exporters.prometheus_rules.alerts import hold_seconds
from exporters.prometheus_rules.rule_files import Alert, Pairs, Record, common_labels, duration, first_step
from rules.confidence import CONFIDENCE
from rules.engines.registry import ENGINES
from rules.engines.table import EngineTable, LabelAggregation, Match, SourceRow
from rules.methods.availability import judge_cascade, judge_unknown_too_long
from rules.methods.bands import judge_experts
from rules.methods.configuration import judge_cold_start, judge_precision
from rules.methods.demand import judge_demand, judge_forecast
from rules.methods.drift import judge_drift
from rules.methods.errors import judge_availability, judge_refused
from rules.methods.events import judge_excess, judge_faults
from rules.methods.guardrails import judge_guardrail
from rules.methods.headroom import judge_falling, judge_headroom
from rules.methods.means import judge_mean
from rules.methods.pools import judge_pools
from rules.methods.prefix_routing import judge_replicas
from rules.methods.representative import judge_representative
from rules.methods.shape import judge_shape
from rules.methods.speculation import judge_economics
from rules.methods.tails import judge_tail
from rules.methods.tiers import judge_tiers
from rules.methods.trend import judge_trend
from rules.methods.utilization import judge_empty_cache, judge_empty_queue, judge_trap
from rules.plan.curve import RPS_TOLERANCE, Curve
from rules.plan.schema import TierPlan
from rules.verdicts.context import SEPARATE
from rules.verdicts.rule import Method, Rule, Severity

PREFIXES: Mapping[str, str] = {"vllm_": "vllm:", "sglang_": "sglang:", "llamacpp_": "llamacpp:"}
"""Metric name prefixes by table prefix. The engine tables write ':' as '_'."""

_VLLM_PER_TOKEN = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)

EDGES: Mapping[tuple[str, str], tuple[float, ...]] = {
    ("vllm", "ttft_seconds"): (
        *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
        *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
    ),
    ("vllm", "tpot_seconds"): _VLLM_PER_TOKEN,
}
"""Finite bucket edges by engine and family (vLLM v1/metrics/loggers.py, 0.8.5 to 0.33.0). A page with other edges lacks
the series, and EngineMetricsAbsent of the same file fires.
"""


class UnsupportedSeriesError(ValueError):
    """Rule or family that PromQL cannot express for this engine. The message holds the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSelector:
    """Series of a family in a tier: metric name and label matchers."""

    name: str
    matchers: tuple[str, ...]
    repeats: tuple[str, ...]
    replica: str = "instance"

    def selector(self, *more: str, suffix: str = "") -> str:
        return f"{self.name}{suffix}{{{','.join((*self.matchers, *more))}}}"

    def increase(self, window: str, *more: str, suffix: str = "", by_replica: bool = False) -> str:
        """Return the increase over `window`, by tier or replica. Series that repeat a number count once."""
        grown = f"increase({self.selector(*more, suffix=suffix)}[{window}])"
        once = self._once(grown)
        return f"sum by ({self.replica}) ({once})" if by_replica else f"sum({once})"

    def level(self, window: str) -> str:
        """Return the mean of a gauge over `window` by replica, summed over its engines."""
        return f"sum by ({self.replica}) ({self._once(f'avg_over_time({self.selector()}[{window}])')})"

    def _once(self, expr: str) -> str:
        return f"max without ({', '.join(self.repeats)}) ({expr})" if self.repeats else expr


def engine_named(name: str, engines: tuple[EngineTable, ...] = ENGINES) -> EngineTable:
    """Return the newest generation of an engine. Raise UnsupportedSeriesError for an unknown engine."""
    found = next((engine for engine in engines if engine.name == name), None)
    if found is None:
        known = ", ".join(sorted({engine.name for engine in engines}))
        raise UnsupportedSeriesError(f"no engine is called {name}; sizewatch knows {known}")
    return found


def series(engine: EngineTable, family: str, selector: str) -> EngineSelector:
    """Return a family's series in the newest scanned release. Raise UnsupportedSeriesError if no selector suffices."""
    row = next((row for row in engine.rows if row.family == family and not row.until), None)
    if row is None:
        raise UnsupportedSeriesError(f"{engine.title} does not expose {family}")
    if (
        row.plus
        or row.by
        or row.factor_fact
        or row.zero_with
        or row.factor != 1
        or row.across is LabelAggregation.NEWEST_NAMES
    ):
        raise UnsupportedSeriesError(
            f"{engine.title} gives {family} only to who reads more than one series of the page"
        )
    return EngineSelector(
        name=_written(row.sample.removesuffix("_bucket")),
        matchers=(*(part for part in (selector,) if part), *_matchers(row)),
        repeats=engine.repeats,
    )


def edge_above(engine: EngineTable, family: str, limit: float) -> float:
    """Return the first bucket edge at or above `limit`, in the unit of `limit`.

    Raise UnsupportedSeriesError if the edges are unknown or all lie below.
    """
    edges = EDGES.get((engine.name, family))
    if edges is None:
        raise UnsupportedSeriesError(f"the bucket edges of {engine.title}'s {family} are not in the table")
    found = next((edge for edge in edges if edge >= limit), None)
    if found is None:
        raise UnsupportedSeriesError(
            f"{limit:g} lies beyond the last bucket edge of {engine.title}'s {family}, {edges[-1]:g}"
        )
    return found


def le(edge: float) -> str:
    """Return a matcher of the bucket up to `edge` in any spelling (1, 1.0)."""
    text = f"{edge:g}"
    return f'le="{text}"' if "." in text else f'le=~"{text}([.]0)?"'


def _written(source: str) -> str:
    for mapped, printed in PREFIXES.items():
        if source.startswith(mapped):
            return printed + source.removeprefix(mapped)
    return source


def _matchers(row: SourceRow) -> tuple[str, ...]:
    return (*(f'{label}="{value}"' for label, value in row.where), *(_matcher(match) for match in row.matches))


def _matcher(match: Match) -> str:
    values = [re.escape(value).replace("\\", "\\\\") + (".*" if match.starts else "") for value in match.values]
    if match.optional != match.without:
        # PromQL treats a missing label as empty.
        values.append("")
    return f'{match.label}{"!~" if match.without else "=~"}"{"|".join(values)}"'


Z = math.ceil(NormalDist().inv_cdf(CONFIDENCE) * 1e4) / 1e4
"""The normal quantile of the confidence that `certain` needs, rounded to the careful side."""

SCRAPE_SECONDS = 15
"""The scrape interval that numbers of scrapes are counted in."""

_AT_EQUAL_LOAD = "compares minutes with the benchmark at their own load, and PromQL cannot place them on the curve"
_BY_BOUNDS = "compares quantiles by the bounds of their buckets, where PromQL only interpolates"
_BY_ENDS = "adds up counters that appear with their first event and have requests in common, window by window"
_OVER_TIME = "follows replica-minutes against the operating point over a long time, and asks whether a finding persists"

WHY_NOT: Mapping[Method, str] = {
    judge_tail: _AT_EQUAL_LOAD,
    judge_mean: _AT_EQUAL_LOAD,
    judge_excess: _AT_EQUAL_LOAD,
    judge_representative: _AT_EQUAL_LOAD,
    judge_cascade: "follows level, slope, evictions, queue and first tokens from scrape to scrape, each against the one before",
    judge_drift: _BY_BOUNDS,
    judge_shape: _BY_BOUNDS,
    judge_availability: _BY_ENDS,
    judge_refused: _BY_ENDS,
    judge_guardrail: "compares the gateway's limits with what is seen, by the bounds of buckets and over a long time",
    judge_precision: "needs the GPU's product beside the plan's number formats",
    judge_cold_start: "times each start from the process's beginning to its being ready",
    judge_economics: "solves for the acceptance of a single token, which is no ratio of counters",
    **dict.fromkeys((judge_empty_cache, judge_empty_queue, judge_falling, judge_headroom, judge_trap), _OVER_TIME),
    judge_trend: _OVER_TIME,
    judge_replicas: "compares the replicas of a tier with each other, before and after a change",
    judge_tiers: "compares the tiers of a model; here each tier stands alone",
    judge_pools: "needs to know which replica prefills and which decodes",
    judge_experts: "counts only minutes with enough requests in the batch, replica by replica; only SGLang tells it",
    judge_demand: "needs usable requests a second of a replica and the planned instances, and a forecast where there is one",
    judge_forecast: "is about sizewatch's own forecast",
    judge_faults: "is about GPUs, of which the engine says nothing",
    judge_unknown_too_long: "is about sizewatch's own judgements; EngineMetricsAbsent stands in for it",
}
"""By way of judging."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TierScope:
    """What a row is written for: a tier, its plan, its engine, and the selector of its series.

    `on_up` says whether the selector's labels are a target's own, so that `up` has them too.
    """

    tier: str
    plan: TierPlan
    engine: EngineTable
    selector: str
    on_up: bool

    def series(self, family: str) -> EngineSelector:
        return series(self.engine, family, self.selector)

    @property
    def label(self) -> Pairs:
        return (("tier", self.tier),)


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderedRule:
    """The records and alerts of one rule, and the series without which they would be silent."""

    records: tuple[Record, ...] = ()
    alerts: tuple[Alert, ...]
    needs: tuple[str, ...]


def record_rule(name: str, of: TierScope) -> str:
    """A record of this tier."""
    return f'{name}{{tier="{of.tier}"}}'


def lower_bound_rule(name: str, of: TierScope) -> Record:
    """Beside a record that counts events: the 99.9 % lower bound of how many were to be expected.

    Garwood's bound of a Poisson mean (1936), by Wilson and Hilferty's cube root: below the exact one of `rules.confidence`,
    by less than 2 % from 10 events on.
    """
    what, window = name.removeprefix("tier:").split(":")
    count = record_rule(name, of)
    bound = f"{count}\n* (1 - 1 / (9 * {count}) - {Z} / (3 * sqrt({count}))) ^ 3"
    return Record(name=f"tier:{what}_at_least:{window}", expr=bound, labels=of.label)


def alert(rule: Rule, of: TierScope, expr: str, observed: str, loudness: Severity, *more: Pairs) -> Alert:
    """An alert under the rule's name, with its runbook; `observed` is a template that says what was seen."""
    told_apart = tuple(pair for pairs in more for pair in pairs)
    description = "\n".join(
        (f"Tier {of.tier} ({of.plan.model}): {observed}.", rule.meaning, f"Next: {first_step(rule)}.")
    )
    return Alert(
        name=rule.name,
        expr=expr,
        hold_seconds=hold_seconds(rule, loudness),
        keep_seconds=300.0,
        labels=(*of.label, ("rule", rule.name), *told_apart, *common_labels(loudness)),
        annotations=(
            ("summary", f"{rule.title}: {of.tier}"),
            ("description", description),
            ("runbook_url", runbook_url(rule.name)),
        ),
    )


def last_minutes(rule: Rule) -> int:
    """The whole minutes in the last quarter of the hold, at least one, as `rules.verdicts.context` takes them."""
    return max(1, int(rule.window_seconds / 4 // 60))


def kv_eviction(rule: Rule, of: TierScope) -> RenderedRule:
    """Preemptions per finished request, surely above the limit, in the last quarter and in three separate minutes."""
    events, finished = of.series("preemptions"), of.series("requests_finished")
    hold, limit = duration(rule.window_seconds), rule.thresholds["warning"].value
    counted = tuple(
        Record(name=f"tier:sizewatch_engine_{what}:increase{hold}", expr=one.increase(hold), labels=of.label)
        for what, one in (("preemptions", events), ("requests", finished))
    )
    bound = lower_bound_rule(counted[0].name, of)
    preempted, requests = (record_rule(record.name, of) for record in counted)

    def ratio(window: str) -> str:
        return f"{events.increase(window)}\n  / clamp_min({finished.increase(window)}, 1)\n  > {limit:g}"

    last, minutes = duration(60 * last_minutes(rule)), duration(rule.window_seconds - 60)
    expr = "\n".join(
        (
            f"{preempted} / clamp_min({requests}, 1) > {limit:g}",
            f"and {record_rule(bound.name, of)} > {limit:g} * clamp_min({requests}, 1)",
            f"and on () (\n  {ratio(last)}\n)",
            f"and on () count_over_time((\n  {ratio('1m')}\n)[{minutes}:1m]) >= {SEPARATE}",
        )
    )
    observed = f"{{{{ $value | humanizePercentage }}}} preemptions a finished request; expected below {limit:.0%}"
    return RenderedRule(
        records=(*counted, bound),
        alerts=(alert(rule, of, expr, observed, Severity.TICKET),),
        needs=(events.selector(), finished.selector()),
    )


def load_beyond(rule: Rule, of: TierScope) -> RenderedRule:
    """A replica above the benchmark's highest point in three separate minutes and in most of the last quarter."""
    curve = Curve.from_plan(of.plan)
    if curve is None:
        raise UnsupportedSeriesError("the plan has no benchmark curve for it")
    finished = of.series("requests_finished")
    beyond = f"  {finished.increase('1m', by_replica=True)} / 60 > {curve.top_rps * (1 + RPS_TOLERANCE):.6g}"
    needs = [finished.selector()]
    if curve.top_concurrency is not None and curve.concurrency_given:
        running, waiting = of.series("requests_running"), of.series("requests_waiting")
        levels = (one.level("1m") for one in (running, waiting))
        beyond += f"\n  or\n  {' + '.join(levels)} > {curve.top_concurrency:g}"
        needs += [running.selector(), waiting.selector()]
    last = last_minutes(rule)
    most = max(1, math.ceil(rule.thresholds["share"].value * last))
    minutes = round(rule.thresholds["minutes"].value)
    expr = "\n".join(
        (
            f"count_over_time((\n{beyond}\n)[{duration(rule.window_seconds - 60)}:1m]) >= {minutes}",
            f"and count_over_time((\n{beyond}\n)[{duration(60 * (last - 1))}:1m]) >= {most}",
        )
    )
    observed = f"more than the benchmark's {curve.top_rps:g} requests/s in {{{{ $value }}}} of the last minutes"
    return RenderedRule(alerts=(alert(rule, of, expr, observed, Severity.TICKET),), needs=tuple(needs))


def target_down(rule: Rule, of: TierScope) -> RenderedRule:
    """So many scrapes in a row without a page, by Prometheus' own record of them."""
    return _down(rule, of, f"{_up(of)} == 0", "{{ $labels.instance }} does not answer")


def tier_down(rule: Rule, of: TierScope) -> RenderedRule:
    """The same of every target of the tier at once."""
    return _down(rule, of, f"max({_up(of)}) == 0", "no replica answers")


def _up(of: TierScope) -> str:
    if not of.on_up:
        raise UnsupportedSeriesError("`up` carries labels of the target only: give a --selector of such labels")
    return f"up{{{of.selector}}}"


def _down(rule: Rule, of: TierScope, expr: str, observed: str) -> RenderedRule:
    hold = (rule.thresholds["misses"].value - 1) * SCRAPE_SECONDS
    one = replace(alert(rule, of, expr, observed, rule.loudness), hold_seconds=hold, keep_seconds=60.0)
    return RenderedRule(alerts=(one,), needs=(_up(of),))


def telemetry_stale(rule: Rule, of: TierScope) -> RenderedRule:
    """The engine has not stepped although its page claims requests or a filled cache, at every scrape of that time."""
    steps = of.series("engine_steps")
    window = duration(rule.thresholds["seconds"].value)
    claims = tuple(of.series(family) for family in ("requests_running", "kv_utilization"))
    claimed = " or ".join(f"max by (instance) (min_over_time({one.selector()}[{window}])) > 0" for one in claims)
    expr = f"{steps.increase(window, by_replica=True)} == 0\nand ({claimed})"
    observed = f"{{{{ $labels.instance }}}} has not stepped for {window}"
    return RenderedRule(
        alerts=(alert(rule, of, expr, observed, Severity.TICKET),),
        needs=(steps.selector(), *(one.selector() for one in claims)),
    )


ROWS: Mapping[str, Callable[[Rule, TierScope], RenderedRule]] = {
    "KvEviction": kv_eviction,
    "LoadBeyondBenchmark": load_beyond,
    "TargetDown": target_down,
    "TelemetryStale": telemetry_stale,
    "TierDown": tier_down,
}
"""By the rule's name."""
