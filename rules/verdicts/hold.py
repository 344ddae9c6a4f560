"""How much of a time was watched: what a sentence about it may say, and whether it is enough for an answer.

Owns the seconds in which a tier was seen, and their words. A rule that needs more answers `unknown`: too early is not ok.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from rules.telemetry.gauges import BURST_SECONDS, GAUGE_HOLD_SECONDS, STEP_GAUGES
from rules.telemetry.reading_methods import FULL_COVERAGE
from rules.telemetry.windows import HOUR_SECONDS, MINUTE_SECONDS, Window

if TYPE_CHECKING:
    from rules.plan.load_bins import BinnedWindow
    from rules.verdicts.rule import Rule


def seldom_scraped(slices: Sequence[BinnedWindow]) -> bool:
    """Return whether most of what was seen of minutes was seen in steps in which no gauge holds, and bursts come and
    go."""
    return _mostly(slices, _is_coarse)


def scraped_by_the_minute(slices: Sequence[BinnedWindow]) -> bool:
    """Return whether most minutes rest on a scrape or two, or fewer: what began in one is seen whole only in the
    next."""
    return _mostly(slices, lambda window: _is_coarse(window) or _has_one_sample(window))


def _is_coarse(window: Window) -> bool:
    return window.span > GAUGE_HOLD_SECONDS


def _has_one_sample(window: Window) -> bool:
    """By the engine's gauges: those of GPUs have an interval of their own."""
    return any(one.seconds > BURST_SECONDS * one.samples for f, one in window.gauges.items() if f in STEP_GAUGES)


def _mostly(slices: Sequence[BinnedWindow], so: Callable[[Window], bool]) -> bool:
    seen = [one.window for one in slices if one.window.covered_seconds > 0]
    part = math.fsum(window.covered_seconds for window in seen if so(window))
    return part > math.fsum(window.covered_seconds for window in seen) / 2


def watched_seconds(slices: Iterable[BinnedWindow]) -> float:
    """Seconds in which any of the replicas was seen, at most: of stretches without a hole what was covered of them.

    A slice that is a sum over replicas counts as its span x its coverage; several at one time do not count twice.
    """
    stretches: list[tuple[float, float, float]] = []
    for window in sorted((one.window for one in slices if one.window.covered_seconds > 0), key=lambda w: w.start):
        begin, end, seen = window.start, window.end, window.span * window.coverage
        if stretches and begin <= stretches[-1][1]:
            before = stretches.pop()
            begin, end, seen = before[0], max(before[1], end), before[2] + seen
        stretches.append((begin, end, seen))
    return math.fsum(min(seen, end - begin) for begin, end, seen in stretches)


def too_short(rule: Rule, slices: Sequence[BinnedWindow]) -> str:
    """In words, how much shorter the slices reach back than the rule needs; "" where they reach far enough."""
    span = max((s.window.end for s in slices), default=0.0) - min((s.window.start for s in slices), default=0.0)
    return _needed(rule, span) if span < rule.minimum_seconds else ""


def too_many_holes(rule: Rule, slices: Sequence[BinnedWindow]) -> str:
    """In words, how much less was watched than the rule needs; "" where most of that was."""
    seen = watched_seconds(slices)
    return _needed(rule, seen) if seen < FULL_COVERAGE * rule.minimum_seconds else ""


def _needed(rule: Rule, seconds: float) -> str:
    return f"{seconds:.0f} s seen, {rule.minimum_seconds:.0f} s are needed"


def part_seen(part: Iterable[BinnedWindow], whole: Iterable[BinnedWindow]) -> str:
    """Return how long something was so, of what was watched: "2 of 2 minutes seen", "3 of 150 hours seen"."""
    some, every = watched_seconds(part), watched_seconds(whole)
    size, word = (HOUR_SECONDS, "hour") if some >= HOUR_SECONDS else (MINUTE_SECONDS, "minute")
    first, last = max(1, round(some / size)), max(1, round(every / size))
    return f"{first} of {last:,} {word}{'' if last == 1 else 's'} seen"
