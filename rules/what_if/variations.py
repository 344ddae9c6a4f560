"""What a what-if varies: prompts, and by the end of the module outputs, prefix hits and configurations.

The effect of longer or shorter prompts is measured in production, else bounded by a law.

Measured: in hours of equal load, the exponent of a quantity in the mean prompt, valid for prompt lengths that
production had. Law: prompts s times as long take 1 to s x s times the work (linear layers grow with tokens, attention
with their square). A queue with k times the work is the same queue with a slower clock: T(k work, load x) = k T(work,
load k x). The truth lies between T(x) and s^2 T(s^2 x). Both ignore preemption, so the upper bound is open where the KV
cache is full.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from rules.plan.capacity import capacity_lengths
from rules.plan.curve import CERTAIN_REQUESTS, Curve, OperatingPoint
from rules.plan.load_bins import BinnedWindow
from rules.plan.memory import tensor_parallel
from rules.plan.schema import TierPlan, same_model
from rules.resize.tier_move import MATCHED
from rules.telemetry import histograms
from rules.telemetry.signals import Missing, Reading, SignalValue
from rules.telemetry.windows import group_by
from rules.telemetry.work import Capacity, CapacityLengths

WORK_EXPONENT = 2.0
"""A request's work grows at most with this power of its prompt: that of attention."""

FAMILIES = {"ttft": "ttft_seconds", "tpot": "tpot_seconds", "itl": "itl_seconds", "e2e": "e2e_seconds"}
"""By how a quantity's name begins: the family whose mean is followed. P50 and P99 are taken to move as the mean does."""

PROMPTS = "prompt_tokens_per_request"

KV = "kv_utilization"

GROWS = {KV: 1.0, "requests_in_system": 0.0}

FEWEST_HOURS = 24
SPREAD = 1.15
"""The longest tenth of prompts must be so many times the shortest: from less no exponent can be told."""

DEVIATIONS = 3.09 * 2
"""99.9 % one-sided, twice as wide as for independent hours: neighbouring ones are alike."""

At = Callable[[float], SignalValue]
"""A quantity at a load of one replica."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptVariation:
    """One hour in one load bin: mean prompt (tokens), load of a replica, and means by quantity."""

    bin: int | None
    prompts: float
    rps: float
    means: tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptEffect:
    """Power [low, high] of the prompts' length in a quantity, best estimate `value`, from `hours` hours.

    Their mean prompts were between `shortest` and `longest` tokens.
    """

    value: float
    low: float
    high: float
    hours: int
    shortest: float
    longest: float

    def covers(self, prompts: float) -> bool:
        """Return whether production had prompts of this length."""
        return self.shortest <= prompts <= self.longest


def find_prompt_variation(one: BinnedWindow) -> PromptVariation | None:
    """Return the means of an hour, None with fewer than 300 requests or without lengths."""
    window, prompts = one.window, histograms.mean(one.window.histograms.get(PROMPTS, ()))
    if not prompts or not one.rps or window.counters.get("requests_finished", 0.0) < CERTAIN_REQUESTS:
        return None
    means = {stem: histograms.mean(window.histograms.get(family, ())) for stem, family in FAMILIES.items()}
    gauge = window.gauges.get(KV)
    means[KV] = gauge.mean if gauge is not None and gauge.seconds > 0 else None
    known = tuple((name, value) for name, value in means.items() if value)
    return PromptVariation(bin=one.bin, prompts=prompts, rps=one.rps, means=known)


def estimate_effect(hours: Iterable[PromptVariation], name: str) -> PromptEffect | None:
    """Return the effect of prompts at equal load, None if they varied too little.

    Least squares of logarithms, after the load's part is removed from both within each load bin (Frisch and Waugh
    1933). It assumes that nothing else changed with the prompts.
    """
    stem = name if name == KV else name.partition("_")[0]
    known = [(one, value) for one in hours for key, value in one.means if key == stem]
    of_bins = group_by(known, lambda pair: pair[0].bin).values()
    left = [pair for group in of_bins if len(group) > 3 for pair in _residuals(group)]
    lengths = sorted(one.prompts for one, _ in known)
    if len(left) < FEWEST_HOURS or lengths[-1 - len(lengths) // 10] < SPREAD * lengths[len(lengths) // 10]:
        return None
    squares = math.fsum(x * x for x, _ in left)
    if squares <= 0:
        return None
    slope = math.fsum(x * y for x, y in left) / squares
    rest = math.fsum((y - slope * x) ** 2 for x, y in left)
    slack = DEVIATIONS * math.sqrt(rest / (len(left) - 2) / squares)
    return PromptEffect(
        value=slope,
        low=slope - slack,
        high=slope + slack,
        hours=len(left),
        shortest=lengths[0],
        longest=lengths[-1],
    )


def _residuals(group: Sequence[tuple[PromptVariation, float]]) -> list[tuple[float, float]]:
    """Return the logarithms of prompts and quantity less a straight line in the load."""
    loads = [one.rps for one, _ in group]
    lines = [[math.log(one.prompts) for one, _ in group], [math.log(value) for _, value in group]]
    return list(zip(*(_less_line(loads, line) for line in lines), strict=True))


def _less_line(xs: Sequence[float], ys: Sequence[float]) -> list[float]:
    x, y = math.fsum(xs) / len(xs), math.fsum(ys) / len(ys)
    squares = math.fsum((one - x) ** 2 for one in xs)
    slope = math.fsum((a - x) * (b - y) for a, b in zip(xs, ys, strict=True)) / squares if squares > 0 else 0.0
    return [b - y - slope * (a - x) for a, b in zip(xs, ys, strict=True)]


def shift_prediction(value: SignalValue, scale: float, by: PromptEffect) -> SignalValue:
    """Return a prediction with the measured effect of the prompts."""
    if isinstance(value, Missing):
        return value
    factors = sorted(scale**power for power in (by.low, by.high))
    return Reading(
        value=None if value.value is None else value.value * scale**by.value,
        low=None if value.low is None else value.low * factors[0],
        high=None if value.high is None else value.high * factors[1],
        n=value.n,
    )


def grows_with_prompts(name: str) -> float:
    """Return the power of the prompts' length in a quantity under the law."""
    return GROWS.get(name, WORK_EXPONENT)


def scale_prediction(at: At, rps: float, scale: float, power: float) -> SignalValue:
    """Return bounds of a quantity at a load with prompts `scale` times as long, by the law.

    It is missing if the curve does not reach the load.
    """
    work, factor = scale**WORK_EXPONENT, scale**power
    same, other = at(rps), at(rps * work)
    if isinstance(same, Missing):
        return same
    if scale >= 1:
        high = other.high if isinstance(other, Reading) else None
        return Reading(value=None, low=same.low, high=None if high is None else high * factor, n=same.n)
    low = other.low if isinstance(other, Reading) and other.low is not None else 0.0
    return Reading(value=None, low=low * factor, high=same.high, n=same.n)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Asked mean output (tokens), prefix hits (0-1), and parts of the configuration by their names in `configuration_of`."""

    output_tokens: float | None = None
    prefix_hits: float | None = None
    configuration: Mapping[str, str | float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedCapacity:
    """Capacity of a replica in requests of the changed lengths, with the bounds of the change, and its reasons."""

    capacity: Capacity
    plan: TierPlan
    reasons: tuple[str, ...] = ()


ACCEPTED = 0.05
"""Acceptances of drafts within this are the same. Ours: 0.70 instead of 0.75 is a tenth fewer tokens of 4 drafts a round."""


def configuration_of(plan: TierPlan) -> dict[str, str | float | None]:
    """Return the parts of a tier that another curve may differ in. No speculation has no acceptance."""
    drafts = plan.speculation
    return {
        "engine": plan.engine,
        "weights": plan.precision.weights if plan.precision else None,
        "GPU": plan.gpu.product,
        "TP": tensor_parallel(plan),
        "acceptance": (drafts.acceptance or 0.0) if drafts else None,
    }


def change_work(found: ChangedCapacity, present: CapacityLengths, change: Change) -> ChangedCapacity:
    """Divide a capacity by the work of a changed request: prompt and output tokens bound it, their middle is the best.

    How both share a replica's time is unknown, as in `rules.telemetry.work`. Cached tokens cost nothing. Raise
    ValueError where production does not tell the `present` lengths.
    """
    factors, reasons = [1.0, 1.0], [*found.reasons]
    if (asked := change.output_tokens) is not None:
        if present.generation_tokens is None:
            raise ValueError("production shows no output tokens, so what other outputs cost is not known")
        factors[0] = asked / present.generation_tokens.low
        reasons.append(f"outputs of {asked:,.4g} tokens, {factors[0]:.3g} times those of now")
    if (asked := change.prefix_hits) is not None:
        if present.prefix_hit_ratio is None or present.prefix_hit_ratio >= 1:
            raise ValueError("the engine shows no prefix hits, so what other hits save is not known")
        factors[1] = (1 - asked) / (1 - present.prefix_hit_ratio)
        reasons.append(
            f"prefix hits of {asked:.0%} instead of {present.prefix_hit_ratio:.0%}: {factors[1]:.3g} times as many to compute"
        )
    least, most = sorted(factors)
    if least < most:
        reasons.append(
            f"a request is {least:.3g} to {most:.3g} times the work, as its outputs and prompts share the time"
        )
    one = found.capacity
    high = one.high / least if one.high is not None and least > 0 else None
    capacity = replace(one, rps=one.rps * 2 / (least + most), low=one.low / most, high=high)
    return replace(found, capacity=capacity, reasons=tuple(reasons))


def change_configuration(
    tier: str, own: TierPlan, now: Capacity, tiers: Mapping[str, TierPlan], asked: Mapping[str, str | float]
) -> ChangedCapacity:
    """Multiply a capacity by the ratio of two curves of the plan, both at this tier's SLO and of like lengths.

    Bounds are the other curve itself and production by the ratio. A curve without a knee leaves a side open. Raise
    ValueError with the benchmark that would tell where the plan has no such curve.
    """
    if not asked:
        return ChangedCapacity(capacity=replace(now, low=now.rps, high=now.rps), plan=own)
    words, mine = ", ".join(f"{name} {value}" for name, value in asked.items()), _measured_point(own, own)
    for name, other in tiers.items():
        theirs = _measured_point(other, own)
        if name == tier or not _is_configured(own, other, asked) or not (mine and theirs and _are_alike(own, other)):
            continue
        ratio = theirs.usable_rps / mine.usable_rps
        low, high = sorted((now.rps * ratio, theirs.usable_rps))
        bounded = replace(now, low=low if mine.knee_reached else 0.0, high=high if theirs.knee_reached else None)
        text = f"{name} was measured at {theirs.usable_rps:.3g} rps, {tier} at {mine.usable_rps:.3g}: {ratio:.3g} times"
        return ChangedCapacity(capacity=replace(bounded, rps=now.rps * ratio), plan=other, reasons=(text,))
    if all(_has(value, configuration_of(own)[name]) for name, value in asked.items()):
        raise ValueError(f"{tier} has {words} by its plan already: leave it out")
    raise ValueError(
        f"not answerable: no other tier of the plan was measured with {words}, all else and the lengths alike. "
        f"Benchmark one replica: `sizewatch plan workload --tier {tier} --tool vllm-bench --out DIR`, DIR/run.sh, then "
        "`sizewatch plan import` into a tier of its own"
    )


def _measured_point(plan: TierPlan, own: TierPlan) -> OperatingPoint | None:
    curve = Curve.from_plan(plan)
    return curve.usable(own.slo) if curve else None


def _is_configured(own: TierPlan, other: TierPlan, asked: Mapping[str, str | float]) -> bool:
    mine = configuration_of(own)
    same = all(_has(asked[n], has) if n in asked else has == mine[n] for n, has in configuration_of(other).items())
    return same and same_model(own.model, other.model)


def _has(asked: str | float, has: str | float | None) -> bool:
    if isinstance(asked, str) or isinstance(has, str | None):
        return has is not None and str(asked).casefold() in str(has).casefold()
    return abs(asked - has) <= ACCEPTED


def _are_alike(*several: TierPlan) -> bool:
    one, other = (capacity_lengths(plan, Curve.from_plan(plan), _measured_point(plan, several[0])) for plan in several)
    pairs = ((one.prompt_tokens, other.prompt_tokens), (one.generation_tokens, other.generation_tokens))
    return all(a and b and a.is_exact and b.is_exact and 1 / MATCHED <= a.low / b.low <= MATCHED for a, b in pairs)
