"""The rule file for an installation without an agent: what an engine's own metrics can tell of a plan, tier by tier.

Owns the file: which tiers go in, the selector of each, and the head that says what is missing and why. The rules are
`exporters.prometheus_rules.engine_rules` and `exporters.prometheus_rules.engine_slo`. It is written for one plan and not committed.

Readings against fixed limits, from an engine's own series, without an agent.

Owns how a band of the catalogue reads in PromQL where its signal is a gauge's mean or a ratio of two counters, so that it
is as careful as `rules.methods.bands`: outside over the hold, in its last quarter, and in three separate minutes. A signal
more is a row of SIGNALS here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from exporters.prometheus_rules.engine_rules import (
    ROWS,
    WHY_NOT,
    RenderedRule,
    TierScope,
    UnsupportedSeriesError,
    alert,
    engine_named,
    last_minutes,
)
from exporters.prometheus_rules.engine_slo import slo_burn
from exporters.prometheus_rules.rule_files import Alert, Group, Record, alerting_url, common_labels, duration, rule_file
from rules.catalogue.registry import BY_NAME, RULES
from rules.methods.bands import judge_band
from rules.methods.burn_rate import judge_burn
from rules.plan.schema import Plan
from rules.verdicts.context import SEPARATE
from rules.verdicts.rule import Method, Rule, Severity


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


BY_METHOD: Mapping[Method, Callable[[Rule, TierScope], RenderedRule]] = {judge_burn: slo_burn, judge_band: band}
"""Ways of judging that read the same for every rule; single rules are `exporters.prometheus_rules.engine_rules.ROWS`."""

MATCHERS = re.compile(
    r'\s*[a-zA-Z_]\w*\s*(=~|!~|!=|=)\s*"(?:[^"\\]|\\.)*"\s*(,\s*[a-zA-Z_]\w*\s*(=~|!~|!=|=)\s*"(?:[^"\\]|\\.)*"\s*)*'
)
"""Label matchers as they stand between the braces of a selector."""

HEAD = """\
Generated by `sizewatch render --engine-only` from {source}.

For an installation without an agent: it reads the engine's own metrics. Beside an agent use sizewatch-alerts.yaml
instead, never both. Scrape the engines every 30 s or more often. Each tier is found by
{tiers}"""

MISSING_HEAD = "What PromQL cannot tell, so that nobody judges it here:"
ABSENT = "EngineMetricsAbsent"
MISSING_SERIES = (
    "A rule whose series are missing is silent, not satisfied.\nNext: does the selector find the engines, are they "
    "scraped, and does their release print these names? `sizewatch inspect URL` says what a page has."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRulesOptions:
    """What the file is for: the plan and where it came from, and, where given, one engine and a selector.

    `selector` holds label matchers, in which {tier} and {model} stand for the tier's name and its model.
    """

    plan: Plan
    source: str
    engine: str = ""
    selector: str = ""


def engine_only_text(asked: EngineRulesOptions) -> str:
    """The file. Raises Unable where no tier can be written, or tiers could not be told apart."""
    tiers = dict(_tiers(asked))
    _told_apart(tiers)
    groups: list[Group] = []
    missing = []
    for name, of in tiers.items():
        found, reasons = _of_tier(of)
        groups += _groups(name, found)
        missing.append((name, reasons))
    selected = "\n".join(
        f"  {name} ({of.engine.title}): {of.selector or 'no label: every engine'}" for name, of in tiers.items()
    )
    head = HEAD.format(source=asked.source, tiers=selected)
    return rule_file("\n".join((head, "", MISSING_HEAD, *_missing_lines(missing))), groups)


def _tiers(asked: EngineRulesOptions) -> Iterator[tuple[str, TierScope]]:
    if asked.engine:
        engine_named(asked.engine)
    for name, plan in asked.plan.tiers.items():
        if asked.engine and plan.engine != asked.engine:
            continue
        engine = engine_named(plan.engine)
        if not asked.selector and not engine.model_label:
            raise UnsupportedSeriesError(
                f"{engine.title} puts no model on its metrics: give a --selector that finds tier {name}"
            )
        pattern = asked.selector or f'{engine.model_label}="{{model}}"'
        selector = pattern.replace("{tier}", _quoted(name)).replace("{model}", _quoted(plan.model))
        if not MATCHERS.fullmatch(selector):
            raise UnsupportedSeriesError(
                f'--selector: {selector} is no list of label matchers, such as tier="{{tier}}"'
            )
        on_up = bool(asked.selector) and not (engine.model_label and engine.model_label in selector)
        yield name, TierScope(tier=name, plan=plan, engine=engine, selector=selector, on_up=on_up)


def _told_apart(tiers: Mapping[str, TierScope]) -> None:
    if not tiers:
        raise UnsupportedSeriesError("no tier of the plan runs that engine")
    first: dict[str, str] = {}
    for name, of in tiers.items():
        other = first.setdefault(of.selector, name)
        if other != name:
            raise UnsupportedSeriesError(
                f"tiers {other} and {name} are both found by {of.selector}: give a --selector with {{tier}} in it"
            )


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _rendered(rule: Rule, of: TierScope) -> RenderedRule:
    write = ROWS.get(rule.name) or BY_METHOD.get(rule.method)
    if write is None:
        raise UnsupportedSeriesError(
            WHY_NOT.get(rule.method, f"no PromQL is written for this method ({rule.method.__name__})")
        )
    return write(rule, of)


def _of_tier(of: TierScope) -> tuple[dict[str, RenderedRule], dict[str, str]]:
    found, reasons = {}, {}
    for rule in RULES:
        try:
            found[rule.name] = _rendered(rule, of)
        except UnsupportedSeriesError as why:
            reasons[rule.name] = str(why)
    return found, reasons


def _groups(tier: str, found: Mapping[str, RenderedRule]) -> Iterator[Group]:
    """What must be quick, and the objectives apart: their windows are long, and asking for them every 15 s would be dear."""
    quick = [one for name, one in found.items() if BY_NAME[name].method is not judge_burn]
    burning = [one for name, one in found.items() if BY_NAME[name].method is judge_burn]
    needs = tuple(dict.fromkeys(need for one in found.values() for need in one.needs))
    if needs:
        rows = (*_rows(quick), _absent(tier, needs))
        yield Group(name=f"sizewatch-engine-{tier}", interval_seconds=15.0, rows=rows)
    if burning:
        yield Group(name=f"sizewatch-engine-{tier}-objectives", interval_seconds=60.0, rows=_rows(burning))


def _rows(several: Sequence[RenderedRule]) -> tuple[Record | Alert, ...]:
    records = (record for one in several for record in one.records)
    return (*records, *(alert for one in several for alert in one.alerts))


def _absent(tier: str, needs: tuple[str, ...]) -> Alert:
    return Alert(
        name=ABSENT,
        expr="\nor\n".join(f"absent({need})" for need in needs),
        hold_seconds=600.0,
        keep_seconds=300.0,
        labels=(("tier", tier), *common_labels(Severity.TICKET)),
        annotations=(
            ("summary", f"{tier}: series that the rules read are not there"),
            (
                "description",
                MISSING_SERIES,
            ),
            ("runbook_url", alerting_url("without-an-agent")),
        ),
    )


def _missing_lines(missing: list[tuple[str, dict[str, str]]]) -> Iterator[str]:
    """One line a rule where all tiers lack it for one reason, else one for each tier that lacks it."""
    for rule in (rule.name for rule in RULES):
        reasons = {tier: why[rule] for tier, why in missing if rule in why}
        if len(reasons) == len(missing) and len(set(reasons.values())) == 1:
            yield f"  {rule}: {next(iter(reasons.values()))}"
        else:
            yield from (f"  {rule} of {tier}: {why}" for tier, why in reasons.items())
