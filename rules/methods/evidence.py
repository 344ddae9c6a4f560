"""Readings, histograms, significance tests and pools that several methods share.

Buckets count only if they lie wholly on one side of a limit. The binomial distribution excludes chance.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from enum import StrEnum
from functools import wraps

from rules.confidence import Certainty, binomial_tail
from rules.plan.capacity import POOL_TOKENS
from rules.plan.load_bins import BinnedWindow, narrow_to_pool, pool_of
from rules.telemetry import histograms, windows
from rules.telemetry.histograms import Histogram, count_requests
from rules.telemetry.reading_methods import has_repeated_lookups
from rules.telemetry.signals import Gap, Reading
from rules.verdicts.context import SEPARATE, RuleContext
from rules.verdicts.verdict import FIRING, IdleReplicas, RuleResult, Status, Unknown

PROMPTS, OUTPUTS = "prompt_tokens_per_request", "generation_tokens_per_request"

ROUNDING = 1e-9
"""Tolerance of counts that are sums of doubles."""

NAMED = 5
"""Maximum number of names in a detail."""


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


def certain_if(proven: bool) -> Certainty:
    """Return certain if the evidence is a proof, else likely."""
    return Certainty.CERTAIN if proven else Certainty.LIKELY


def capitalize(text: str) -> str:
    """Return a sentence with a capital first letter. The other letters stay."""
    return text[:1].upper() + text[1:]


def join_names(names: Sequence[str]) -> str:
    """Return names for a detail, the first ones if there are many."""
    more = len(names) - NAMED
    return f"{', '.join(names[:NAMED])} and {more} more" if more > 0 else ", ".join(names)


def explain_not_lasting(context: RuleContext, *, is_over: bool) -> str:
    """Return why an excess is no finding: it is over, or too few separate minutes (hours) show it."""
    if is_over:
        return "no longer in the last quarter of the time"
    return f"in fewer than {SEPARATE} {context.periods_word}"


REPEATED_LOOKUPS = "the engine counts more prefix cache lookups than prompt tokens: it counts them again and again"


def sees_repeated_lookups(binned: Iterable[BinnedWindow]) -> bool:
    """Return whether lookups were counted again, by the binned windows that count prompt tokens too."""
    prompts, queried = sum_counters_beside(binned, "prompt_tokens", "prefix_queried_tokens")
    return has_repeated_lookups(queried, prompts)


def sum_counters_beside(binned: Iterable[BinnedWindow], family: str, *texts: str) -> list[float]:
    """Return the increases of a counter and of others, over the binned windows that have the first."""
    known = [sample.window.counters for sample in binned if family in sample.window.counters]
    return [math.fsum(counters.get(name, 0.0) for counters in known) for name in (family, *texts)]


def is_significant_share(k: float, n: float, requests: float, allowed: float, confidence: float) -> bool:
    """Return whether the lower bound (Clopper and Pearson) of the share k / n exceeds `allowed`.

    `requests` is the number of independent requests.
    """
    trials = math.floor(requests + ROUNDING)
    count = math.floor(min(k / n, 1.0) * trials + ROUNDING) if n > 0 else 0
    return count >= 1 and binomial_tail(count, trials, allowed) < 1 - confidence


def exceeds_limit(parts: tuple[Histogram, ...], q: float, limit: float, side: LimitSide) -> bool:
    """Return whether the observed quantile lies beyond `limit` wherever the observations lie in their buckets."""
    n = count_requests(parts)
    if n <= 0:
        return False
    share = _count_beyond(parts, limit, side) / n
    return share > 1 - q + 1e-12 if side is LimitSide.LONGER else share < 1 - q - 1e-12


def is_significant_quantile(
    parts: tuple[Histogram, ...], q: float, limit: float, side: LimitSide, confidence: float
) -> bool:
    """Return whether the quantile of the traffic lies beyond `limit`, with one-sided `confidence` (0-1).

    Longer: the count above the limit is too rare if only 1 - q of the traffic were above it (Clopper and Pearson 1934).
    Shorter: the count is too small; 300 requests without any above the limit prove it for a P99 with 95 %.
    """
    trials = math.floor(count_requests(parts) + ROUNDING)
    if trials < 1 or not exceeds_limit(parts, q, limit, side):
        return False
    count = _count_beyond(parts, limit, side)
    if side is LimitSide.LONGER:
        return binomial_tail(math.floor(count + ROUNDING), trials, 1 - q) < 1 - confidence
    at_most = math.ceil(count - ROUNDING)
    return 1 - binomial_tail(at_most + 1, trials, 1 - q) < 1 - confidence


def _count_beyond(parts: tuple[Histogram, ...], limit: float, side: LimitSide) -> float:
    """Return the minimum (longer) or maximum (shorter) count of requests above the limit."""
    share = histograms.share_above(parts, limit)
    return share.low if side is LimitSide.LONGER else share.high


def select_pool(context: RuleContext, binned: Iterable[BinnedWindow], pool: str) -> list[BinnedWindow]:
    """Return the windows of one pool's replicas."""
    return [sample for sample in binned if pool_of(context.tier, sample.replica) == pool]


Judge = Callable[[RuleContext], RuleResult]


def judge_each_pool(method: Judge) -> Judge:
    """Return a method that judges prefill and decode pools one by one, and other tiers as before.

    The pool that decides is the worst finding, else a pool that cannot be judged, else the fullest one. Surplus replicas
    are those of both.
    """

    @wraps(method)
    def judged(context: RuleContext) -> RuleResult:
        if context.tier.serves_whole_requests:
            return method(context)
        if context.tier.plan is None or context.tier.plan.disaggregation is None:
            return context.unknown(Gap.NOT_IN_PLAN, "the plan has no `disaggregation`: tokens a second of each pool")
        rows = [(_judge_pool(context, pool, method), pool) for pool in POOL_TOKENS]
        rows.sort(key=lambda pair: _rank(pair[0]), reverse=True)
        (worst, pool), (result, its_pool) = rows
        if isinstance(worst, Unknown):
            return replace(worst, text=f"{pool} pool: {worst.text}")
        text = worst.sentence if worst.sentence[1:2].isupper() else worst.sentence[:1].lower() + worst.sentence[1:]
        other = result.text if isinstance(result, Unknown) else result.sentence
        details = (*worst.details, f"{its_pool} pool: {other}")
        idle = [part.idle for part, _ in rows if not isinstance(part, Unknown) and part.idle is not None]
        both = add_idle_replicas(idle) if idle else None
        return replace(worst, sentence=f"{pool.capitalize()} pool: {text}", details=details, idle=both)

    return judged


def add_idle_replicas(idle: Sequence[IdleReplicas]) -> IdleReplicas:
    """Return the surplus replicas of several pools of one tier as those of the tier."""
    sums = {name: sum(getattr(part, name) for part in idle) for name in ("replicas", "ready", "needed")}
    cost = None if idle[0].cost_per_day is None else sum(part.cost_per_day or 0.0 for part in idle)
    return replace(idle[0], **sums, cost_per_day=cost)


def judge_where_requests_end(method: Judge) -> Judge:
    """Return a method that reads decode replicas alone where pools are apart: both count a request, and its prompt."""

    @wraps(method)
    def judged(context: RuleContext) -> RuleResult:
        known = () if context.tier.serves_whole_requests else tuple(select_pool(context, context.binned, "decode"))
        return method(replace(context, binned=known) if known else context)

    return judged


def _judge_pool(context: RuleContext, pool: str, method: Judge) -> RuleResult:
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
    value, most = getattr(result.observed, "value", None) or 0.0, getattr(result.expected, "high", None)
    gravity = 0 if result.status not in FIRING else 3 if result.status is Status.CRITICAL else 2
    return gravity, gravity > 0 and result.certainty is Certainty.CERTAIN, value / most if most else value
