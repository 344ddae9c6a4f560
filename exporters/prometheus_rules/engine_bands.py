"""Readings against fixed limits, from an engine's own series, without an agent.

Owns how a band of the catalogue reads in PromQL where its signal is a gauge's mean or a ratio of two counters, so that it
is as careful as `rules.methods.bands`: outside over the hold, in its last quarter, and in three separate minutes. A signal
more is a row of SIGNALS here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from exporters.prometheus_rules.engine_queries import UnsupportedSeriesError
from exporters.prometheus_rules.engine_rules import RenderedRule, TierScope, alert, last_minutes
from exporters.prometheus_rules.rule_files import duration
from rules.verdicts.context import SEPARATE
from rules.verdicts.rule import Rule


@dataclass(frozen=True, slots=True, kw_only=True)
class BandQuery:
    """How a signal reads over a window, how much stands behind it ("" where that is not asked), and its series."""

    over: Callable[[str], str]
    weight: Callable[[str], str] | None
    needs: tuple[str, ...]


def _mean(family: str) -> Callable[[TierScope], BandQuery]:
    def of_tier(of: TierScope) -> BandQuery:
        one = of.series(family)
        return BandQuery(
            over=lambda window: (
                f"avg(max without ({', '.join(one.repeats)}) (avg_over_time({one.selector()}[{window}])))"
            ),
            weight=None,
            needs=(one.selector(),),
        )

    return of_tier


def _ratio(above: str, below: str) -> Callable[[TierScope], BandQuery]:
    def of_tier(of: TierScope) -> BandQuery:
        some, whole = of.series(above), of.series(below)
        return BandQuery(
            over=lambda window: f"{some.increase(window)} / ({whole.increase(window)} > 0)",
            weight=whole.increase,
            needs=(some.selector(), whole.selector()),
        )

    return of_tier


SIGNALS: Mapping[str, Callable[[TierScope], BandQuery]] = {
    "kv_utilization": _mean("kv_utilization"),
    "prefix_hit_ratio": _ratio("prefix_hit_tokens", "prefix_queried_tokens"),
}
"""By the signal's name; the others are derived, quantiles, or not the engine's."""

SIDES: tuple[tuple[str, str], ...] = (("below", "<"), ("above", ">"))


def band(rule: Rule, of: TierScope) -> RenderedRule:
    """The rule's outer limit stays unsaid: a ticket is a ticket. Raises Unable for other signals, and without its plan."""
    make = SIGNALS.get(rule.signal)
    if make is None:
        raise UnsupportedSeriesError(f"{rule.signal} is no plain gauge and no ratio of two counters of the engine")
    part: object = of.plan
    for name in rule.needs.split(".") if rule.needs else ():
        part = getattr(part, name, None)
    if part is None:
        raise UnsupportedSeriesError(f"the plan has no {rule.needs}")
    signal = make(of)
    sides = [(sign, rule.thresholds[name].value) for name, sign in SIDES if name in rule.thresholds]
    expr = "\nor\n".join(_outside(rule, signal, sign, limit) for sign, limit in sides)
    healthy = " and ".join(f"{'at least' if sign == '<' else 'at most'} {limit:.0%}" for sign, limit in sides)
    observed = f"{rule.about} {{{{ $value | humanizePercentage }}}}; expected {healthy}"
    return RenderedRule(alerts=(alert(rule, of, expr, observed, rule.loudness),), needs=signal.needs)


def _outside(rule: Rule, signal: BandQuery, sign: str, limit: float) -> str:
    hold, last = duration(rule.window_seconds), duration(60 * last_minutes(rule))
    minutes = duration(rule.window_seconds - 60)
    lines = [
        f"({signal.over(hold)}) {sign} {limit:g}",
        f"and on () (({signal.over(last)}) {sign} {limit:g})",
        f"and on () count_over_time((({signal.over('1m')}) {sign} {limit:g})[{minutes}:1m]) >= {SEPARATE}",
    ]
    if signal.weight is not None and "minimum_requests" in rule.thresholds:
        lines.append(f"and on () ({signal.weight(hold)} >= {rule.thresholds['minimum_requests'].value:g})")
    return "\n".join(lines)
