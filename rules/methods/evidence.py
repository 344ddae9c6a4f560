"""Readings, histograms, significance tests and pools that several methods share.

Buckets count only if they lie wholly on one side of a limit. The binomial distribution excludes chance.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from enum import StrEnum
from functools import wraps

from rules.confidence import binomial_tail
from rules.plan.capacity import POOL_TOKENS
from rules.plan.load_bins import BinnedWindow, narrow_to_pool, pool_of
from rules.telemetry import histograms, windows
from rules.telemetry.histograms import Histogram, count_requests
from rules.telemetry.reading_methods import has_repeated_lookups
from rules.telemetry.readings import families_of, read
from rules.telemetry.signals import BY_NAME, Gap, Missing, Reading, SignalValue
from rules.verdicts.context import SEPARATE, Part, RuleContext
from rules.verdicts.held_windows import HeldWindows, hold
from rules.verdicts.rule import Method
from rules.verdicts.verdict import RuleResult, Unknown, rank_verdict

PROMPTS, OUTPUTS = "prompt_tokens_per_request", "generation_tokens_per_request"

REPEATED_LOOKUPS = "the engine counts more prefix cache lookups than prompt tokens: it counts them again and again"

ROUNDING = 1e-9
"""Tolerance of counts that are sums of doubles."""


class LimitSide(StrEnum):
    """Side of a limit on which a quantile lies."""

    LONGER = "longer"
    SHORTER = "shorter"


def exact_reading(value: float | None, n: float) -> Reading:
    """Return a reading without uncertainty."""
    return Reading(value=value, low=value, high=value, n=n)


def range_reading(low: float | None, high: float | None, n: float) -> Reading:
    """Return a range without a best value, for example the limits of a rule."""
    return Reading(value=None, low=low, high=high, n=n)


def capitalize(text: str) -> str:
    """Return a sentence with a capital first letter. The other letters stay."""
    return text[:1].upper() + text[1:]


def join_names(names: Sequence[str], most: int = 5) -> str:
    """Return names for a detail, the first `most` if there are more."""
    more = len(names) - most
    return f"{', '.join(names[:most])} and {more} more" if more > 0 else ", ".join(names)


def measure_parts(
    context: RuleContext, measure: Callable[[HeldWindows], Part], binned: Iterable[BinnedWindow] | None = None
) -> tuple[Part, list[Part]]:
    """Return `measure` of the last quarter of the windows, then of each minute (hour)."""
    chosen = context.binned if binned is None else binned
    return measure(context.last_quarter(chosen)), list(map(measure, context.periods(chosen)))


def select_where(binned: Iterable[BinnedWindow], is_so: Callable[[BinnedWindow], object]) -> HeldWindows:
    """Return the windows that are so. A batch of which all are keeps what was asked of it."""

    def choose(batch: HeldWindows) -> HeldWindows:
        chosen = HeldWindows(filter(is_so, batch))
        return batch if len(chosen) == len(batch) else chosen

    return hold(binned).select(choose)


def read_signal(context: RuleContext, binned: Iterable[BinnedWindow], signal: str = "") -> SignalValue:
    """Return a signal (default: the rule's own) over windows. Return no traffic without windows."""
    wanted, held = BY_NAME[signal or context.rule.signal], hold(binned)
    if not held:
        return Missing(gap=Gap.NO_TRAFFIC)
    return read(wanted, held.sum_families(families_of(wanted)), context.tier.basis)


def best_value(reading: SignalValue) -> float | None:
    """Return the best estimate of a reading, None without one."""
    return reading.value if isinstance(reading, Reading) else None


def explain_not_lasting(context: RuleContext, *, is_over: bool) -> str:
    """Return why an excess is no finding: it is over, or too few separate minutes (hours) show it."""
    if is_over:
        return "no longer in the last quarter of the time"
    return f"in fewer than {SEPARATE} {context.periods_word}"


def sees_repeated_lookups(binned: Iterable[BinnedWindow]) -> bool:
    """Return whether lookups were counted again, by the binned windows that count prompt tokens too."""
    prompts, queried = sum_counters_beside(binned, "prompt_tokens", "prefix_queried_tokens")
    return has_repeated_lookups(queried, prompts)


def sum_counters_beside(binned: Iterable[BinnedWindow], family: str, *texts: str) -> list[float]:
    """Return the increases of a counter and of others, over the binned windows that have the first."""
    known = [sample.window.counters for sample in binned if family in sample.window.counters]
    return [math.fsum(counters.get(name, 0.0) for counters in known) for name in (family, *texts)]


def is_significant_share(k: float, n: float, requests: float, allowed: float, confidence: float) -> bool:
    """Return whether the lower bound (Clopper, Pearson) of k / n exceeds `allowed`, of independent `requests`."""
    trials = math.floor(requests + ROUNDING)
    count = math.floor(min(k / n, 1.0) * trials + ROUNDING) if n > 0 else 0
    return count >= 1 and binomial_tail(count, trials, allowed) < 1 - confidence


def exceeds_limit(parts: tuple[Histogram, ...], q: float, limit: float, side: LimitSide) -> bool:
    """Return whether the observed quantile surely lies beyond `limit`, whatever the buckets hide."""
    share, allowed = histograms.share_above(parts, limit), (1 - q) * count_requests(parts)
    if side is LimitSide.LONGER:
        return share.low > allowed + ROUNDING
    return share.high < allowed - ROUNDING


def is_significant_quantile(
    parts: tuple[Histogram, ...], q: float, limit: float, side: LimitSide, confidence: float
) -> bool:
    """Return whether the quantile of the traffic lies beyond `limit`, with one-sided `confidence` (0-1).

    Longer: the count above the limit is too rare if only 1 - q of the traffic were above it (Clopper and Pearson 1934).
    Shorter: the count is too small; 300 requests without any above the limit prove it for a P99 with 95 %.
    """
    trials, share = math.floor(count_requests(parts) + ROUNDING), histograms.share_above(parts, limit)
    if trials < 1 or not exceeds_limit(parts, q, limit, side):
        return False
    if side is LimitSide.LONGER:
        return binomial_tail(math.floor(share.low + ROUNDING), trials, 1 - q) < 1 - confidence
    return 1 - binomial_tail(math.ceil(share.high - ROUNDING) + 1, trials, 1 - q) < 1 - confidence


def select_pool(context: RuleContext, binned: Iterable[BinnedWindow], pool: str) -> list[BinnedWindow]:
    """Return the windows of one pool's replicas."""
    return [sample for sample in binned if pool_of(context.tier, sample.replica) == pool]


def narrow_pool(context: RuleContext, pool: str) -> RuleContext:
    """Return the context with the windows of one pool. A tier without pools keeps all."""
    if context.tier.serves_whole_requests:
        return context
    pools = (select_pool(context, context.binned, known) for known in (pool, "mixed", ""))
    return replace(context, binned=tuple(next(filter(None, pools), context.binned)))


def judge_each_pool(method: Method) -> Method:
    """Return a method that judges prefill and decode pools one by one, and other tiers as before.

    The pool that decides is the worst finding, else one that cannot be judged, else the fullest. Both have surplus replicas.
    """

    @wraps(method)
    def judged(context: RuleContext) -> RuleResult:
        if context.tier.serves_whole_requests:
            return method(context)
        if context.tier.plan is None or context.tier.plan.disaggregation is None:
            return context.unknown(Gap.NOT_IN_PLAN, "the plan has no `disaggregation`: tokens a second of each pool")
        rows = [(_judge_pool(context, pool, method), pool) for pool in POOL_TOKENS]
        (worst, pool), (result, its_pool) = sorted(rows, key=lambda pair: _rank(pair[0]), reverse=True)
        if isinstance(worst, Unknown):
            return replace(worst, text=f"{pool} pool: {worst.text}")
        text = worst.sentence if worst.sentence[1:2].isupper() else worst.sentence[:1].lower() + worst.sentence[1:]
        its_text = result.text if isinstance(result, Unknown) else result.sentence
        details = (*worst.details, f"{its_pool} pool: {its_text}")
        idle = [part.idle for part, _ in rows if not isinstance(part, Unknown) and part.idle is not None]
        both = idle[0] if idle else None
        for more in idle[1:]:
            sums = {name: getattr(idle[0], name) + getattr(more, name) for name in ("replicas", "ready", "needed")}
            cost = None if idle[0].cost_per_day is None else idle[0].cost_per_day + (more.cost_per_day or 0.0)
            both = replace(idle[0], **sums, cost_per_day=cost)
        return replace(worst, sentence=f"{pool.capitalize()} pool: {text}", details=details, idle=both)

    return judged


def _judge_pool(context: RuleContext, pool: str, method: Method) -> RuleResult:
    binned = tuple(select_pool(context, context.binned, pool))
    if not binned:
        return context.unknown(Gap.NOT_EXPOSED, "no window is known to be of it; engines do not say their pool")
    seen = windows.sum_families((sample.window for sample in binned), ("requests_finished", POOL_TOKENS[pool]))
    tier = narrow_to_pool(context.tier, pool, seen)
    if tier.capacity is None:
        return context.unknown(Gap.NOT_IN_PLAN, f"no mean {POOL_TOKENS[pool].replace('_', ' ')} of a request is known")
    return method(replace(context, tier=tier, binned=binned))


def _rank(result: RuleResult) -> tuple[int, bool, float]:
    """Return how much a result decides: finding by gravity, then unknown, then ok by its use."""
    if isinstance(result, Unknown):
        return 1, False, 0.0
    value, most = best_value(result.observed) or 0.0, getattr(result.expected, "high", None)
    use = value / most if most else value
    severity, is_certain, _ = rank_verdict(result)
    return (severity + 1, is_certain, use) if severity else (0, False, use)
