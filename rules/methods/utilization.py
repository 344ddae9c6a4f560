"""Capacity that idles: the utilization trap, queues that are always empty, a KV cache that never fills (guide 9.2, 9.3).

Owns these three judgements over hours of days, and what the idle part costs in their sentences. Costs are reckoned by
`rules.plan.money`, hours are added by `rules.methods.periods`.
"""

from __future__ import annotations

from collections.abc import Sequence

from rules.confidence import Certainty
from rules.methods import periods
from rules.plan import money
from rules.plan.money import IdleCapacity
from rules.telemetry import windows
from rules.telemetry.signals import Gap, Missing, Reading
from rules.telemetry.windows import Window
from rules.telemetry.wording import number
from rules.verdicts.context import RuleContext
from rules.verdicts.hold import watched_seconds
from rules.verdicts.verdict import RuleResult, Status

DAY_SECONDS = 86_400.0

POLLED = "gpu_utilization_sampled"
"""A plain poll says nothing of the time between two polls: `likely` at most (METRICS trap 15)."""


def judge_trap(case: RuleContext) -> RuleResult:
    """Fleet utilisation below 40 % over at least a week, KV utilisation of its fullest hours below 75 % (DESIGN 3.12).

    Certain only if the upper bound of utilisation is below it, too; that it is no trap is certain if the lower is not.
    """
    apart = periods.explain_pool_gap(case)
    if apart is not None:
        return apart
    hours = periods.sums(case)
    used = periods.reading(case, hours)
    if isinstance(used, Missing) or used.value is None:
        return case.unknown(used.gap if isinstance(used, Missing) else Gap.SCRAPE_FAILED, _text(used))
    limit = case.limit("below")
    weighed = f"{number(used.value, 'ratio')}{periods.weighing(case, hours)}"
    said = f"fleet utilisation {weighed} over {watched_seconds(case.slices) / DAY_SECONDS:.1f} days"
    if used.value >= limit:
        sure = used.low is not None and used.low >= limit
        return _fine(case, used, f"{said}: {_percent(case, 'below')} or more is no trap", sure)
    full = periods.hours_of_fullest(hours, "kv_utilization", case.limit("fullest_hours"))
    if full is None:
        gap = windows.sum_windows(hours).explain_missing("kv_utilization")
        return case.unknown(gap, f"{said}, but nothing says whether the KV cache needs the replicas")
    kv = f"the hourly mean of the KV cache is {number(full[0], 'ratio')} in its fullest hours"
    if full[0] >= case.limit("kv_below"):
        return _fine(case, used, f"{said}, but {kv}: memory sets the size of this fleet, not load")
    idle = _idle(case, hours, used.value)
    if idle.wasted <= 0:
        return _fine(case, used, f"{said}, all of it kept warm on purpose: {_insurance(case, idle)}")
    last = periods.value(case, periods.select_last_quarter(case))
    certain = periods.is_covered(hours) and last is not None and last < limit
    certain = certain and used.high is not None and used.high < limit
    sentence = f"{said} and {kv}: {_spare(case, idle)}{f'; {_insurance(case, idle)} more' if idle.insured > 0 else ''}"
    return _found(case, used, sentence, certain)


def judge_empty_queue(case: RuleContext) -> RuleResult:
    """A queue that is always empty while the GPUs are mostly idle, over a day with traffic (guide 9.3)."""
    hours, total = periods.sums(case), windows.sum_windows(one.window for one in case.slices)
    if not total.counters.get("requests_finished"):
        return case.unknown(Gap.NO_TRAFFIC, "no request in all these hours")
    used = periods.reading(case, hours)
    waiting = periods.hours_of_fullest(hours, "requests_waiting", case.limit("fullest_hours"))
    if waiting is None:
        return case.unknown(total.explain_missing("requests_waiting"), "nothing says how many requests wait")
    if isinstance(used, Missing) or used.value is None:
        return case.unknown(used.gap if isinstance(used, Missing) else Gap.SCRAPE_FAILED, "no GPU utilisation is read")
    busiest = _busiest(case, hours)
    seen = Reading(value=busiest, low=busiest, high=busiest, n=used.n)
    gpus = f"the GPUs are {number(busiest, 'ratio')} busy in the busiest hours"
    if waiting[0] > case.limit("waiting"):
        return _fine(case, seen, f"{waiting[0]:.2g} requests wait at each replica in the busiest hours, {gpus}")
    if busiest >= case.limit("gpu_below"):
        return _fine(case, seen, f"no queue, and {gpus}")
    idle = _idle(case, hours, busiest)
    if idle.wasted <= 0:
        return _fine(case, seen, f"no queue, and what idles is kept warm on purpose: {_insurance(case, idle)}")
    certain = not (POLLED in total.gauges and POLLED in total.sampled) and periods.is_covered(hours)
    return _found(case, seen, f"no request ever waits, and {gpus}: {_spare(case, idle)} even then", certain)


def judge_empty_cache(case: RuleContext) -> RuleResult:
    """A KV cache that stays below the guide's band at the highest instants of its fullest hours, for a week (guide 9.3).

    The maxima of the hours are judged and not their means: a cache is sized for its fullest moment, and the mean of a
    bursty tier is low in any. Blocks that only hold cached prefixes count as free: with notable hits it is no more
    than likely.
    """
    hours, total = periods.sums(case), windows.sum_windows(one.window for one in case.slices)
    full = periods.hours_of_fullest(hours, "kv_utilization", case.limit("fullest_hours"))
    if full is None:
        return case.unknown(
            total.explain_missing("kv_utilization"), "the engine does not show how full its KV cache is"
        )
    if not total.counters.get("requests_finished"):
        return case.unknown(Gap.NO_TRAFFIC, "no request in all these hours")
    mean, most = full
    seen = Reading(value=most, low=most, high=most, n=float(len(hours)))
    said = f"over {len(hours) / 24:.1f} days the KV cache reaches {number(most, 'ratio')} at the highest instant of its fullest "
    said += f"hours (hourly mean {number(mean, 'ratio')})"
    if most >= case.limit("below"):
        return _fine(case, seen, f"{said}: {_percent(case, 'below')} or more is healthy")
    hits = periods.value(case, hours, "prefix_hit_ratio")
    cached = hits is not None and hits > case.limit("cached_share")
    remark = (
        f"; but {number(hits, 'ratio')} of prompt tokens are found in it, and blocks that hold them count as free"
        if hits is not None and cached
        else ""
    )
    sentence = f"{said}, where {_percent(case, 'below')} or more is healthy{remark}"
    return _found(case, seen, sentence, periods.is_covered(hours) and not cached)


def _busiest(case: RuleContext, hours: Sequence[Window]) -> float:
    """GPU utilisation of the busiest hours, by the quantile over hours that the row names."""
    each = [periods.value(case, (hour,)) for hour in hours]
    return periods.nearest_rank([one for one in each if one is not None], case.limit("fullest_hours"))


def _idle(case: RuleContext, hours: Sequence[Window], utilization: float) -> IdleCapacity:
    fleet = case.view.plan.fleet if case.view.plan else None
    warm = fleet.minimum_warm if fleet and fleet.minimum_warm else 0
    return money.compute_idle_capacity(periods.mean_ready_replicas(hours), utilization, case.limit("target"), warm)


def _spare(case: RuleContext, idle: IdleCapacity) -> str:
    """The replicas beyond the target that nobody keeps on purpose, and what they cost."""
    text = f"{idle.wasted:.1f} of {idle.ready:.1f} replicas are not needed at {_percent(case, 'target')}"
    return (
        text if case.view.plan is None else f"{text}, {money.cost_per_day(idle.wasted, money.price_of(case.view.plan))}"
    )


def _insurance(case: RuleContext, idle: IdleCapacity) -> str:
    text = f"the minimum warm count is insurance, {idle.insured:.1f} replicas"
    return (
        text
        if case.view.plan is None
        else f"{text}, {money.cost_per_day(idle.insured, money.price_of(case.view.plan))}"
    )


def _percent(case: RuleContext, name: str) -> str:
    return f"{case.limit(name) * 100:g}%"


def _text(used: Missing | Reading) -> str:
    return used.text if isinstance(used, Missing) and used.text else "fleet utilisation is not known"


def _fine(case: RuleContext, seen: Reading, sentence: str, certain: bool = True) -> RuleResult:
    certainty = Certainty.CERTAIN if certain else Certainty.LIKELY
    return case.verdict(Status.OK, certainty, seen, _expected(case), _begun(sentence))


def _found(case: RuleContext, seen: Reading, sentence: str, certain: bool) -> RuleResult:
    certainty = Certainty.CERTAIN if certain else Certainty.LIKELY
    return case.verdict(Status.WARNING, certainty, seen, _expected(case), _begun(sentence))


def _begun(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]


def _expected(case: RuleContext) -> Reading:
    """At least the lower limit of the rule."""
    name = "gpu_below" if "gpu_below" in case.rule.thresholds else "below"
    return Reading(value=None, low=case.limit(name), high=None, n=0.0)
