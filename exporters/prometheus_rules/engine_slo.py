"""Burn-rate alerts on the plan's latency objectives from an engine's own histograms, without an agent.

The rules are as careful as `rules.methods.burn_rate`. They count requests above the first bucket edge at or above the
objective: such requests are certainly slower. The long window proves the burn, and the short window proves that it
lasts. Three separate minutes exclude a burst. Unseen parts of the long window count as free of slow requests. All
numbers come from the catalogue and the plan.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from exporters.alertmanager.payload import runbook_url
from exporters.prometheus_rules.alerts import KEEP, hold_seconds
from exporters.prometheus_rules.engine_rules import (
    EngineSelector,
    RenderedRule,
    TierScope,
    UnsupportedSeriesError,
    edge_above,
    le,
    lower_bound_rule,
    record_rule,
)
from exporters.prometheus_rules.rule_files import Alert, Record, common_labels, duration, first_step
from rules.methods.burn_rate import RUNGS
from rules.verdicts.context import SEPARATE
from rules.verdicts.rule import Rule, Severity
from rules.verdicts.verdict import Status

LOUD: Mapping[Status, Severity] = {Status.CRITICAL: Severity.PAGE, Status.WARNING: Severity.TICKET}


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
        alerts=tuple(_alert(objective, rung, status) for rung, status in RUNGS),
        needs=(series.selector(suffix="_count"), series.selector(le(objective.edge), suffix="_bucket")),
    )


def _counts(objective: Objective, window: str) -> tuple[Record, Record]:
    """Return the requests of a window and its certainly slow requests."""
    seen = objective.series.increase(window, suffix="_count")
    fast = objective.series.increase(window, le(objective.edge), suffix="_bucket")
    return (
        objective.record("requests", f"increase{window}", seen),
        objective.record(
            "slow", f"increase{window}", f"{objective.select_record('requests', f'increase{window}')}\n- on () {fast}"
        ),
    )


def _alert(objective: Objective, rung: str, status: Status) -> Alert:
    rule, of = objective.rule, objective.of
    value = {name: rule.thresholds[f"{rung}_{name}"].value for name in ("burn", "long_seconds", "short_seconds")}
    long, short = duration(value["long_seconds"]), duration(value["short_seconds"])
    loudness, rate = LOUD[status], value["burn"]
    return Alert(
        name=rule.name,
        expr=_expr(objective, rate, value["long_seconds"], short),
        hold_seconds=hold_seconds(rule, loudness),
        keep_seconds=KEEP[loudness],
        labels=(*of.label, ("rule", rule.name), ("window", long), *common_labels(loudness)),
        annotations=(
            ("summary", f"{rule.title}, {rate:g} x: {of.tier}"),
            ("description", f"{_seen(objective, long)}\n{rule.meaning}\nNext: {first_step(rule)}."),
            ("runbook_url", runbook_url(rule.name)),
        ),
    )


def _expr(objective: Objective, rate: float, long_seconds: float, short: str) -> str:
    thresholds, long = objective.rule.thresholds, duration(long_seconds)
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
        )
    )


def _seen(objective: Objective, long: str) -> str:
    of, word = objective.of, objective.rule.family.partition("_")[0].upper()
    return (
        f"Tier {of.tier} ({of.plan.model}), last {long}: {{{{ $value | humanizePercentage }}}} of requests have a {word} "
        f"above {objective.edge:g} s, the bucket edge next to the {objective.promised:g} s promised; expected at most "
        f"{objective.rule.thresholds['allowed_share'].value:.0%}."
    )
