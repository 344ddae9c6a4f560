"""PromQL of catalogue rules over an engine's own series, for installations without an agent.

Limits come from the catalogue and the plan. Each rule asks for the same certainty as its Python method. A new rule is a
function here and a row of ROWS. Latency objectives are burn-rate alerts as in `rules.methods.burn_rate`: requests above
the first bucket edge at or above the objective are certainly slower. The long window proves the burn, and the short
window proves that it lasts. Three separate minutes exclude a burst. Unseen parts of the long window count as free of
slow requests.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from statistics import NormalDist

from exporters.prometheus_rules.alerts import KEEP, hold_seconds
from exporters.prometheus_rules.engine_queries import EngineSelector, UnsupportedSeriesError, edge_above, le, series
from exporters.prometheus_rules.rule_files import Alert, Pairs, Record, common_labels, duration
from exporters.render.text import runbook_url
from rules.confidence import CONFIDENCE
from rules.engines.table import EngineTable
from rules.methods.burn_rate import CALM_PARTS, RUNGS
from rules.plan.curve import RPS_TOLERANCE, Curve
from rules.plan.schema import TierPlan
from rules.telemetry.reading_methods import FULL_COVERAGE
from rules.verdicts.context import SEPARATE
from rules.verdicts.rule import Rule, Severity
from rules.verdicts.verdict import Status

Z = math.ceil(NormalDist().inv_cdf(CONFIDENCE) * 1e4) / 1e4
"""Normal quantile of the confidence that `certain` needs, rounded up."""

SCRAPE_SECONDS = 15
"""Scrape interval in seconds, for thresholds in scrapes."""

LOUD: Mapping[Status, Severity] = {Status.CRITICAL: Severity.PAGE, Status.WARNING: Severity.TICKET}
"""Alert severity by status of a burn-rate rung."""

_AT_EQUAL_LOAD = "compares minutes with the benchmark at their own load, and PromQL cannot place them on the curve"
_BY_BOUNDS = "compares quantiles by the bounds of their buckets, where PromQL only interpolates"
_BY_ENDS = "adds up counters that appear with their first event and have requests in common, window by window"
_OVER_TIME = "follows replica-minutes against the operating point over a long time, and asks whether a finding persists"

WHY_NOT: Mapping[str, str] = {
    "judge_tail": _AT_EQUAL_LOAD,
    "judge_mean": _AT_EQUAL_LOAD,
    "judge_excess": _AT_EQUAL_LOAD,
    "judge_representative": _AT_EQUAL_LOAD,
    "judge_cascade": "follows level, slope, evictions, queue and first tokens from scrape to scrape, each against the one before",
    "judge_drift": _BY_BOUNDS,
    "judge_shape": _BY_BOUNDS,
    "judge_availability": _BY_ENDS,
    "judge_refused": _BY_ENDS,
    "judge_guardrail": "compares the gateway's limits with what is seen, by the bounds of buckets and over a long time",
    "judge_precision": "needs the GPU's product beside the plan's number formats",
    "judge_benchmark_stale": "needs the engine's release, which no series of its page tells",
    "judge_upgrade": _AT_EQUAL_LOAD,
    "judge_cold_start": "times each start from the process's beginning to its being ready",
    "judge_economics": "solves for the acceptance of a single token, which is no ratio of counters",
    **dict.fromkeys(
        ("judge_empty_cache", "judge_empty_queue", "judge_falling", "judge_headroom", "judge_trap"), _OVER_TIME
    ),
    "judge_trend": _OVER_TIME,
    "judge_replicas": "compares the replicas of a tier with each other, before and after a change",
    "judge_imbalance": "compares the replicas of a tier with each other, minute by minute, and leaves out new ones",
    "judge_tiers": "compares the tiers of a model; here each tier stands alone",
    "judge_pools": "needs to know which replica prefills and which decodes",
    "judge_experts": "counts only minutes with enough requests in the batch, replica by replica; only SGLang tells it",
    "judge_demand": "needs usable requests a second of a replica and the planned instances, and a forecast where there is one",
    "judge_batch": "needs the size and the deadline of a job, and the tokens a second of the benchmark",
    "judge_forecast": "is about sizewatch's own forecast",
    "judge_faults": "is about GPUs, of which the engine says nothing",
    "judge_unknown_too_long": "is about sizewatch's own judgements; EngineMetricsAbsent stands in for it",
}
"""Reason without PromQL by the name of the method's function. A method without a row gets a general text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TierScope:
    """Tier with its plan, its engine and the selector of its series.

    `on_up` means that the selector has only target labels, which `up` has too.
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
    """Records and alerts of a rule, and the series that they need."""

    records: tuple[Record, ...] = ()
    alerts: tuple[Alert, ...]
    needs: tuple[str, ...]


def record_rule(name: str, of: TierScope) -> str:
    """Return the selector of a record of this tier."""
    return f'{name}{{tier="{of.tier}"}}'


def lower_bound_rule(name: str, of: TierScope) -> Record:
    """Return a record of the 99.9 % lower bound of the expected events, from a record of counted events.

    Garwood's bound of a Poisson mean (1936), by Wilson and Hilferty's cube root: below the exact one of `rules.confidence`,
    by less than 2 % from 10 events on.
    """
    what, window = name.removeprefix("tier:").split(":")
    count = record_rule(name, of)
    bound = f"{count}\n* (1 - 1 / (9 * {count}) - {Z} / (3 * sqrt({count}))) ^ 3"
    return Record(name=f"tier:{what}_at_least:{window}", expr=bound, labels=of.label)


def alert(rule: Rule, of: TierScope, expr: str, observed: str, loudness: Severity, *more: Pairs) -> Alert:
    """Return an alert with the rule's name and runbook. `observed` is a template of the observed value."""
    distinct = tuple(pair for pairs in more for pair in pairs)
    description = "\n".join(
        (f"Tier {of.tier} ({of.plan.model}): {observed}.", rule.meaning, f"Next: {rule.actions[0]}.")
    )
    return Alert(
        name=rule.name,
        expr=expr,
        hold_seconds=hold_seconds(rule, loudness),
        keep_seconds=KEEP[loudness],
        labels=(*of.label, ("rule", rule.name), *distinct, *common_labels(loudness)),
        annotations=(
            ("summary", f"{rule.title}: {of.tier}"),
            ("description", description),
            ("runbook_url", runbook_url(rule.name)),
        ),
    )


def last_minutes(rule: Rule) -> int:
    """Return the whole minutes in the last quarter of the hold, at least one, as in `rules.verdicts.context`."""
    return max(1, int(rule.window_seconds / 4 // 60))


def kv_eviction(rule: Rule, of: TierScope) -> RenderedRule:
    """Return alerts on preemptions per finished request.

    The ratio is certainly above the limit, also in the last quarter and in three separate minutes.
    """
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
    """Return alerts on a replica above the benchmark's highest point.

    It is above in three separate minutes and in most of the last quarter.
    """
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
    """Return alerts on failed scrapes of a replica in a row, by `up`."""
    return _down(rule, of, f"{_up(of)} == 0", "{{ $labels.instance }} does not answer")


def tier_down(rule: Rule, of: TierScope) -> RenderedRule:
    """Return alerts on failed scrapes of all targets of the tier at once."""
    return _down(rule, of, f"max({_up(of)}) == 0", "no replica answers")


def _up(of: TierScope) -> str:
    if not of.on_up:
        raise UnsupportedSeriesError("`up` carries labels of the target only: give a --selector of such labels")
    return f"up{{{of.selector}}}"


def _down(rule: Rule, of: TierScope, expr: str, observed: str) -> RenderedRule:
    hold = (rule.thresholds["misses"].value - 1) * SCRAPE_SECONDS
    one = replace(alert(rule, of, expr, observed, rule.loudness), hold_seconds=hold)
    return RenderedRule(alerts=(one,), needs=(_up(of),))


def telemetry_stale(rule: Rule, of: TierScope) -> RenderedRule:
    """Return alerts on an engine without steps whose page shows requests or a filled cache at every scrape."""
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
"""PromQL by the name of the rule."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """Latency objective of the plan, the series of its family and the nearest bucket edge (seconds)."""

    rule: Rule
    of: TierScope
    series: EngineSelector
    promised: float
    edge: float

    def record(self, what: str, how: str, expr: str) -> Record:
        return Record(name=self.name(what, how), expr=expr, labels=self.of.label)

    def name(self, what: str, how: str) -> str:
        return f"tier:sizewatch_engine_{self.rule.family.removesuffix('_seconds')}_{what}:{how}"

    def select_record(self, what: str, how: str) -> str:
        return record_rule(self.name(what, how), self.of)


def slo_burn(rule: Rule, of: TierScope) -> RenderedRule:
    """Return the ladder of an objective. Raise UnsupportedSeriesError without an objective or a fitting edge."""
    promised = getattr(of.plan.slo, rule.needs.removeprefix("slo."))
    if promised is None:
        raise UnsupportedSeriesError(f"the plan has no {rule.needs}")
    if rule.family == "itl_seconds" and of.engine.itl_is_per_token:
        raise UnsupportedSeriesError(f"{of.engine.title} times tokens, and the plan promises output events")
    objective = Objective(
        rule=rule,
        of=of,
        series=of.series(rule.family),
        promised=promised,
        edge=edge_above(of.engine, rule.family, promised),
    )
    longs, shorts = (
        [duration(rule.thresholds[f"{rung}_{which}_seconds"].value) for rung, _ in RUNGS] for which in ("long", "short")
    )
    records = [record for window in dict.fromkeys(("1m", *shorts, *longs)) for record in _counts(objective, window)]
    share = f"{objective.select_record('slow', 'increase1m')}\n/ {objective.select_record('requests', 'increase1m')}"
    records.append(objective.record("slow", "ratio1m", share))
    records += [lower_bound_rule(objective.name("slow", f"increase{window}"), of) for window in longs]
    series = objective.series
    return RenderedRule(
        records=tuple(records),
        alerts=tuple(_burn_alert(objective, rung, status) for rung, status in RUNGS),
        needs=(
            series.selector(suffix="_count"),
            series.selector(le(objective.edge), suffix="_bucket"),
            *(() if rule.per_request else (of.series("requests_finished").selector(),)),
        ),
    )


def _counts(objective: Objective, window: str) -> tuple[Record, Record]:
    """Return the requests of a window and its certainly slow requests.

    Output events of one request are not independent: their slow share counts for the finished requests.
    """
    seen = objective.series.increase(window, suffix="_count")
    fast = objective.series.increase(window, le(objective.edge), suffix="_bucket")
    requests = objective.select_record("requests", f"increase{window}")
    slow = f"{requests}\n- on () {fast}"
    if not objective.rule.per_request:
        slow = f"{requests}\n* on () (1 - {fast} / ({seen} > 0))"
        seen = objective.of.series("requests_finished").increase(window)
    return (
        objective.record("requests", f"increase{window}", seen),
        objective.record("slow", f"increase{window}", slow),
    )


def _burn_alert(objective: Objective, rung: str, status: Status) -> Alert:
    rule, of = objective.rule, objective.of
    value = {name: rule.thresholds[f"{rung}_{name}"].value for name in ("burn", "long_seconds", "short_seconds")}
    long, loudness, rate = duration(value["long_seconds"]), LOUD[status], value["burn"]
    return Alert(
        name=rule.name,
        expr=_burn_expr(objective, rate, value["long_seconds"], value["short_seconds"]),
        hold_seconds=hold_seconds(rule, loudness),
        keep_seconds=KEEP[loudness],
        labels=(*of.label, ("rule", rule.name), ("window", long), *common_labels(loudness)),
        annotations=(
            ("summary", f"{rule.title}, {rate:g} x: {of.tier}"),
            ("description", f"{_burn_text(objective, long)}\n{rule.meaning}\nNext: {rule.actions[0]}."),
            ("runbook_url", runbook_url(rule.name)),
        ),
    )


def _burn_expr(objective: Objective, rate: float, long_seconds: float, short_seconds: float) -> str:
    thresholds, long, short = objective.rule.thresholds, duration(long_seconds), duration(short_seconds)
    fastest = thresholds[f"{RUNGS[0][0]}_short_seconds"].value
    calm = duration(max(fastest, short_seconds / CALM_PARTS))
    limit, needed = f"{rate * thresholds['allowed_share'].value:g}", f"{thresholds['minimum_requests'].value:g}"
    slow, seen = (objective.select_record(what, f"increase{long}") for what in ("slow", "requests"))
    lately_slow, lately = (objective.select_record(what, f"increase{short}") for what in ("slow", "requests"))
    minutes = objective.select_record("slow", "ratio1m")
    known = f"clamp_max(count_over_time({minutes}[{long}]) / {long_seconds / 60:g}, 1)"
    return "\n".join(
        (
            f"{slow} / {seen} > {limit}",
            f"and {objective.select_record('slow_at_least', f'increase{long}')} * {known} > {limit} * {seen}",
            f"and {lately_slow} > {limit} * {lately}",
            f"and {seen} >= {needed} and {lately} >= {needed}",
            f"and count_over_time(({minutes} > {limit})[{long}:1m]) >= {SEPARATE}",
            f"and count_over_time(({minutes} > {limit})[{calm}:1m]) >= 1",
            *([f"and on () ({known} >= {FULL_COVERAGE})"] if short_seconds > fastest else []),
        )
    )


def _burn_text(objective: Objective, long: str) -> str:
    of, word = objective.of, objective.rule.family.partition("_")[0].upper()
    counted = f"requests have a {word}" if objective.rule.per_request else "output events come"
    return (
        f"Tier {of.tier} ({of.plan.model}), last {long}: {{{{ $value | humanizePercentage }}}} of {counted} "
        f"above {objective.edge:g} s, the bucket edge next to the {objective.promised:g} s promised; expected at most "
        f"{objective.rule.thresholds['allowed_share'].value:.0%}."
    )
