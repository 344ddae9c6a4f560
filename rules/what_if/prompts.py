"""Effect of longer or shorter prompts: measured in production, else bounded by a law.

Measured: in hours of equal load, the exponent of a quantity in the mean prompt, valid for prompt lengths that
production had. Law: prompts s times as long take 1 to s x s times the work (linear layers grow with tokens, attention
with their square). A queue with k times the work is the same queue with a slower clock: T(k work, load x) = k T(work,
load k x). The truth lies between T(x) and s^2 T(s^2 x). Both ignore preemption, so the upper bound is open where the KV
cache is full.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from rules.plan.curve import CERTAIN_REQUESTS
from rules.plan.load_bins import BinnedWindow
from rules.telemetry import histograms
from rules.telemetry.signals import Missing, Reading, SignalValue
from rules.telemetry.windows import Window

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
    means[KV] = _level(window)
    known = tuple((name, value) for name, value in means.items() if value)
    return PromptVariation(bin=one.bin, prompts=prompts, rps=one.rps, means=known)


def _level(window: Window) -> float | None:
    gauge = window.gauges.get(KV)
    return gauge.integral / gauge.seconds if gauge is not None and gauge.seconds > 0 else None


def estimate_effect(hours: Iterable[PromptVariation], name: str) -> PromptEffect | None:
    """Return the effect of prompts at equal load, None if they varied too little.

    Least squares of logarithms, after the load's part is removed from both within each load bin (Frisch and Waugh
    1933). It assumes that nothing else changed with the prompts.
    """
    stem = name if name == KV else name.partition("_")[0]
    known = [(one, value) for one in hours for key, value in one.means if key == stem]
    left = [pair for group in _by_bin(known) for pair in _residuals(group)]
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


def _by_bin(known: Sequence[tuple[PromptVariation, float]]) -> list[list[tuple[PromptVariation, float]]]:
    grouped: dict[int | None, list[tuple[PromptVariation, float]]] = {}
    for one, value in known:
        grouped.setdefault(one.bin, []).append((one, value))
    return [group for group in grouped.values() if len(group) > 3]


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
