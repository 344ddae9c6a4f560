"""Capacity that idles: the utilization trap, queues that are always empty, a KV cache that never fills (guide 9.2, 9.3).

Owns these three judgements over hours of days, and what the idle part costs in their sentences. Costs are reckoned by
`rules.plan.money`, hours are added by `rules.methods.utilization`.

Days of production hour by hour (a short hold: minute by minute): what the rules about the fleet's use share.

Owns the sum of each period, the fullest of them, and how many replicas were ready. It judges nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from rules.confidence import Certainty
from rules.plan import money
from rules.plan.money import IdleCapacity
from rules.telemetry import windows
from rules.telemetry.reading_methods import FULL_COVERAGE
from rules.telemetry.readings import families_of, read
from rules.telemetry.signals import BY_NAME, Gap, Missing, Reading, SignalValue
from rules.telemetry.windows import Window
from rules.telemetry.wording import number
from rules.telemetry.work import weighing_words, work_of
from rules.verdicts.context import RuleContext, watched_seconds
from rules.verdicts.verdict import RuleResult, Status, Unknown


def sums(case: RuleContext, *signals: str) -> tuple[Window, ...]:
    """One window for each period of the case, oldest first; with `signals` only as far as these are concerned."""
    groups = [[one.window for one in group] for group in case.periods(case.slices)]
    if not signals:
        return tuple(windows.sum_windows(group) for group in groups)
    families = frozenset(family for name in signals for family in families_of(BY_NAME[name]))
    return tuple(windows.sum_families(group, families) for group in groups)


def select_last_quarter(case: RuleContext) -> tuple[Window, ...]:
    """The windows of the last quarter of the hold."""
    return tuple(one.window for one in case.last_quarter(case.slices))


def reading(case: RuleContext, several: Sequence[Window], signal: str = "") -> SignalValue:
    """A signal (else the rule's own) over the sum of windows; no traffic where there is none of them."""
    if not several:
        return Missing(gap=Gap.NO_TRAFFIC)
    wanted = BY_NAME[signal or case.rule.signal]
    return read(wanted, windows.sum_families(several, families_of(wanted)), case.view.basis)


def value(case: RuleContext, several: Sequence[Window], signal: str = "") -> float | None:
    """The same as a number, None where it is not known."""
    found = reading(case, several, signal)
    return found.value if isinstance(found, Reading) else None


def weighing(case: RuleContext, several: Sequence[Window]) -> str:
    """Return how far apart the bounds of fleet utilisation over these windows are, and why, in words; "" where they
    are not."""
    basis, signal = case.view.basis, BY_NAME["fleet_utilization"]
    capacity = basis.capacity
    if not several or capacity is None:
        return ""
    work = work_of(windows.sum_families(several, families_of(signal)), capacity.lengths)
    return weighing_words(work, capacity.lengths, capacity.rps) if work else ""


def nearest_rank(values: Sequence[float], q: float) -> float:
    """The quantile q (0-1) of what periods had, by nearest rank ceil(q n) (DESIGN, words). Raises ValueError on none."""
    if not values:
        raise ValueError("no periods")
    return sorted(values)[max(0, math.ceil(round(q * len(values), 9)) - 1)]


def hours_of_fullest(several: Sequence[Window], family: str, q: float) -> tuple[float, float] | None:
    """Quantile q of the hourly means, and of the hourly maxima, of a gauge; None where no hour has it."""
    gauges = [gauge for w in several if (gauge := w.gauge(family)) is not None]
    if not gauges:
        return None
    return nearest_rank([g.integral / g.seconds for g in gauges], q), nearest_rank([g.maximum for g in gauges], q)


def observed_seconds(period: Window, longest: float) -> float:
    """Of a period at most so long: the seconds in which the tier was seen, as far as its replicas were covered."""
    return min(period.span, longest) * period.coverage


def mean_ready_replicas(several: Sequence[Window]) -> float:
    """Mean number of replicas that were seen: covered replica-seconds by the seconds of the periods."""
    seconds = math.fsum(w.span for w in several)
    return math.fsum(w.covered_seconds for w in several) / seconds if seconds > 0 else 0.0


def is_covered(several: Sequence[Window]) -> bool:
    """Return whether enough of the replicas was seen in these periods to speak for all of them; they need not be
    neighbours."""
    due = math.fsum(w.due_seconds for w in several)
    return due > 0 and math.fsum(w.covered_seconds for w in several) >= FULL_COVERAGE * due


def explain_pool_gap(case: RuleContext) -> Unknown | None:
    """Why fleet utilisation means nothing for a tier whose pools are served apart: usable rps is a whole replica's."""
    if case.view.serves_whole_requests:
        return None
    return case.unknown(
        Gap.NOT_IN_PLAN, "the plan's usable rps is that of a mixed replica; this tier serves prefill and decode apart"
    )


DAY_SECONDS = 86_400.0

POLLED = "gpu_utilization_sampled"
"""A plain poll says nothing of the time between two polls: `likely` at most (METRICS trap 15)."""


def no_hours(case: RuleContext) -> Unknown | None:
    """Return the unknown result of a rule over days that has seen no replica, or None."""
    return None if case.slices else case.unknown(Gap.SCRAPE_FAILED, "no replica of the tier has been seen")


def judge_trap(case: RuleContext) -> RuleResult:
    """Fleet utilisation below 40 % over at least a week, KV utilisation of its fullest hours below 75 % (DESIGN 3.12).

    Certain only if the upper bound of utilisation is below it, too; that it is no trap is certain if the lower is not.
    """
    if (unseen := no_hours(case)) is not None:
        return unseen
    apart = explain_pool_gap(case)
    if apart is not None:
        return apart
    hours = sums(case)
    used = reading(case, hours)
    if isinstance(used, Missing) or used.value is None:
        return case.unknown(used.gap if isinstance(used, Missing) else Gap.SCRAPE_FAILED, _text(used))
    limit = case.limit("below")
    weighed = f"{number(used.value, 'ratio')}{weighing(case, hours)}"
    said = f"fleet utilisation {weighed} over {watched_seconds(case.slices) / DAY_SECONDS:.1f} days"
    if used.value >= limit:
        sure = used.low is not None and used.low >= limit
        return _fine(case, used, f"{said}: {_percent(case, 'below')} or more is no trap", sure)
    full = hours_of_fullest(hours, "kv_utilization", case.limit("fullest_hours"))
    if full is None:
        gap = windows.sum_windows(hours).explain_missing("kv_utilization")
        return case.unknown(gap, f"{said}, but nothing says whether the KV cache needs the replicas")
    kv = f"the hourly mean of the KV cache is {number(full[0], 'ratio')} in its fullest hours"
    if full[0] >= case.limit("kv_below"):
        return _fine(case, used, f"{said}, but {kv}: memory sets the size of this fleet, not load")
    idle = _idle(case, hours, used.value)
    if idle.wasted <= 0:
        return _fine(case, used, f"{said}, all of it kept warm on purpose: {_insurance(case, idle)}")
    last = value(case, select_last_quarter(case))
    certain = is_covered(hours) and last is not None and last < limit
    certain = certain and used.high is not None and used.high < limit
    sentence = f"{said} and {kv}: {_spare(case, idle)}{f'; {_insurance(case, idle)} more' if idle.insured > 0 else ''}"
    return _found(case, used, sentence, certain)


def judge_empty_queue(case: RuleContext) -> RuleResult:
    """A queue that is always empty while the GPUs are mostly idle, over a day with traffic (guide 9.3)."""
    if (unseen := no_hours(case)) is not None:
        return unseen
    hours, total = sums(case), windows.sum_windows(one.window for one in case.slices)
    if not total.counters.get("requests_finished"):
        return case.unknown(Gap.NO_TRAFFIC, "no request in all these hours")
    used = reading(case, hours)
    waiting = hours_of_fullest(hours, "requests_waiting", case.limit("fullest_hours"))
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
    certain = not (POLLED in total.gauges and POLLED in total.sampled) and is_covered(hours)
    return _found(case, seen, f"no request ever waits, and {gpus}: {_spare(case, idle)} even then", certain)


def judge_empty_cache(case: RuleContext) -> RuleResult:
    """A KV cache that stays below the guide's band at the highest instants of its fullest hours, for a week (guide 9.3).

    The maxima of the hours are judged and not their means: a cache is sized for its fullest moment, and the mean of a
    bursty tier is low in any. Blocks that only hold cached prefixes count as free: with notable hits it is no more
    than likely.
    """
    if (unseen := no_hours(case)) is not None:
        return unseen
    hours, total = sums(case), windows.sum_windows(one.window for one in case.slices)
    full = hours_of_fullest(hours, "kv_utilization", case.limit("fullest_hours"))
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
    hits = value(case, hours, "prefix_hit_ratio")
    cached = hits is not None and hits > case.limit("cached_share")
    remark = (
        f"; but {number(hits, 'ratio')} of prompt tokens are found in it, and blocks that hold them count as free"
        if hits is not None and cached
        else ""
    )
    sentence = f"{said}, where {_percent(case, 'below')} or more is healthy{remark}"
    return _found(case, seen, sentence, is_covered(hours) and not cached)


def _busiest(case: RuleContext, hours: Sequence[Window]) -> float:
    """GPU utilisation of the busiest hours, by the quantile over hours that the row names."""
    each = [value(case, (hour,)) for hour in hours]
    return nearest_rank([one for one in each if one is not None], case.limit("fullest_hours"))


def _idle(case: RuleContext, hours: Sequence[Window], utilization: float) -> IdleCapacity:
    fleet = case.view.plan.fleet if case.view.plan else None
    warm = fleet.minimum_warm if fleet and fleet.minimum_warm else 0
    return money.compute_idle_capacity(mean_ready_replicas(hours), utilization, case.limit("target"), warm)


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
