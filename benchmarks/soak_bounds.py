"""What a soak must show: samples go in, a line for each bound comes out.

Owns the record, the bounds and the words. The slope of resident memory is of the second half, by least squares: what a
process learns at first (layouts, caches, three days of error budget) is no leak. Python's blocks are compared with those of
one or more whole `Cycle`s before: within a cycle, pods that are new hold less than those that have been there for an hour.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import isnan, nan
from statistics import median

from soak_memory import Held

MB = 1e6
GROWTH_BYTES_A_1000_TURNS, OF_A_YOUNG = 0.5 * MB, 2.0 * MB
"""Of resident memory, four hours of the clock: for days caches fill and the allocator spreads, most on the first. Python's
objects, which a leak is made of, have a bound of their own."""

YOUNG_TURNS = 10_000
LEAST_SAMPLES = 4


class TooFewSamplesError(ValueError):
    """The run was too short to judge growth."""


BLOCKS_A_TURN = 2.0
"""Of hundreds of thousands. A list that grows by a record a turn is 3 and more."""

REPLICA_BYTES, TIER_DAY_BYTES = 6_500_000.0, 400_000.0
EPISODE_BYTES, UNKNOWN_BYTES = 3_000.0, 450.0
"""docs/history.md, "How big"."""

LOG_BYTES = 20 * MB
"""The history's write-ahead log after a checkpoint, and the room of its first pages."""

REPLICAS, TIERS = 5, 3
LOG_BYTES_A_TURN = 400.0
"""News alone: a pod that comes, goes, or is judged otherwise is a line; a turn is none."""

DRIFT_SECONDS = 0.02
"""Of the last turns against the first on the grid: one that is late by a busy machine is no drift."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The daemon at one moment. `generations` is of how many generations of pods its metrics tell; `now` is its own clock;
    `held` is its memory by who holds it. Of the last sample alone: `findings` and `unknowns` in the history."""

    seconds: float
    turns: int
    now: float
    rss_bytes: int
    files: int
    threads: int
    series: int
    generations: int
    history_bytes: int
    log_bytes: int
    left_out: int
    defects: int
    reloads: int
    posts: int
    held: Held = field(default_factory=Held)
    findings: int = 0
    unknowns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Cycle:
    """After so many `turns` the load is the same again; after `full` turns all that looks back has filled."""

    turns: int
    full: int

    def is_over(self, turns: int, seconds: float, minutes: float) -> bool:
        """Whether so many minutes are over and five cycles can be compared; a slow machine has four times as long.

        Blocks differ by some thousand from cycle to cycle: over two cycles that would be 2 a turn.
        """
        enough = turns >= self.full + 5 * self.turns
        return seconds > minutes * 60.0 * (1 if enough else 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    what: str
    found: str
    bound: str
    holds: bool


def slope(samples: Sequence[Sample], full: int, of: Callable[[Sample], float]) -> float:
    """By how much it grows a turn, over the second half and after `full` turns; NaN for under four samples of it."""
    half = [one for one in samples if 2 * one.turns >= samples[-1].turns and one.turns >= full]
    if len({one.turns for one in half}) < LEAST_SAMPLES:
        return nan
    mean_turns = sum(one.turns for one in half) / len(half)
    mean = sum(of(one) for one in half) / len(half)
    spread = sum((one.turns - mean_turns) ** 2 for one in half)
    return sum((one.turns - mean_turns) * (of(one) - mean) for one in half) / spread if spread else 0.0


def growth(samples: Sequence[Sample], cycle: Cycle) -> float:
    """By how many blocks a turn it grows: the median over all pairs of looks that whole cycles lie between; NaN without any."""
    looks = {one.held.turns: one.held.blocks for one in samples if one.held.turns >= cycle.full}
    pairs = ((one, other) for one in looks for other in looks if one < other and (other - one) % cycle.turns == 0)
    return median([(looks[b] - looks[a]) / (b - a) for a, b in pairs] or [nan])


def judged(samples: Sequence[Sample], generations: int, cycle: Cycle) -> list[Finding]:
    """Each bound, and whether it holds; `generations` of pods may be told of at once. Raise TooFewSamplesError."""
    if len(samples) < LEAST_SAMPLES:
        raise TooFewSamplesError(f"{len(samples)} samples are too few to judge growth: let it run for longer")
    first, last = samples[0], samples[-1]
    half = [one for one in samples if 2 * one.turns >= last.turns]
    third, fourth = half[: len(half) // 2], half[len(half) // 2 :]
    grown = 1000.0 * slope(samples, cycle.full, lambda one: one.rss_bytes)
    blocks = growth(samples, cycle)
    spread = OF_A_YOUNG if last.turns < YOUNG_TURNS else GROWTH_BYTES_A_1000_TURNS
    turns, days = max(1, last.turns - first.turns), (last.now - first.now) / 86_400.0
    stated = LOG_BYTES + REPLICAS * REPLICA_BYTES + days * TIERS * TIER_DAY_BYTES
    stated += last.findings * EPISODE_BYTES + last.unknowns * UNKNOWN_BYTES
    most = max(one.generations for one in samples)
    log = (last.log_bytes - first.log_bytes) / turns
    return [
        _bound(
            "memory grows",
            f"not known before turn {cycle.full}" if isnan(grown) else f"{grown / MB:+.3f} MB a 1000 turns",
            spread / MB,
            grown / MB,
        ),
        _bound(
            "Python's blocks grow",
            f"not known before turn {cycle.full + cycle.turns}" if isnan(blocks) else f"{blocks:+.2f} a turn",
            BLOCKS_A_TURN,
            blocks,
        ),
        _no_more("open files", third, fourth, lambda one: one.files, 2),
        _no_more("threads", third, fourth, lambda one: one.threads, 1),
        _no_more("series in /metrics", third, fourth, lambda one: one.series, 0.05 * max(one.series for one in third)),
        _bound("generations of pods in /metrics", str(most), generations, most),
        _bound(
            f"history after {days:.1f} days, {last.findings} episodes and {last.unknowns} spans unknown",
            f"{last.history_bytes / MB:.1f} MB",
            stated / MB,
            last.history_bytes / MB,
        ),
        _bound("log", f"{log:.0f} bytes a turn", LOG_BYTES_A_TURN, log),
        _bound("unexpected errors", str(last.defects), 0, last.defects),
    ]


def drift(starts: Sequence[float], interval: float) -> Finding:
    """Whether turns that began at `starts` (seconds) stay on their grid: by the medians of the first and the last fifth."""
    phases = [t - starts[0] - interval * round((t - starts[0]) / interval) for t in starts]
    fifth = len(phases) // 5
    moved = median(phases[-fifth:]) - median(phases[:fifth])
    what = f"turns drift off their grid of {interval:g} s"
    return _bound(what, f"{1000 * moved:+.1f} ms in {len(starts)} turns", DRIFT_SECONDS, abs(moved))


def _bound(what: str, found: str, most: float, value: float) -> Finding:
    return Finding(what=what, found=found, bound=f"{most:g}", holds=value <= most)


def _no_more(
    what: str, third: Sequence[Sample], fourth: Sequence[Sample], of: Callable[[Sample], float], slack: float
) -> Finding:
    before, after = max(map(of, third)), max(map(of, fourth))
    return Finding(
        what=f"most {what}",
        found=f"{before:g} in the third quarter, {after:g} in the fourth",
        bound=f"{slack:g} more",
        holds=after <= before + slack,
    )


def printed(samples: Sequence[Sample], findings: Sequence[Finding]) -> str:
    """The course of it, and a line for each bound."""
    shown = [samples[place * (len(samples) - 1) // 8] for place in range(9)]
    lines = [
        " seconds   turns  reloads  RSS MB  files  threads  series  history MB  log kB  blocks  malloc MB  kept MB"
    ]
    lines += [
        f"{one.seconds:8.0f} {one.turns:7d} {one.reloads:8d} {one.rss_bytes / MB:7.1f} {one.files:6d} {one.threads:8d}"
        f" {one.series:7d} {one.history_bytes / MB:11.1f} {one.log_bytes / 1e3:7.0f} {one.held.blocks:7d}"
        f" {one.held.used_bytes / MB:10.1f} {one.held.free_bytes / MB:8.1f}"
        for one in shown
    ]
    lines += [
        f"{'holds' if one.holds else 'BROKEN':<7} {one.what}: {one.found} (bound: {one.bound})" for one in findings
    ]
    lines.append(f"{samples[-1].turns} turns, {samples[-1].reloads} reloads, {samples[-1].posts} posts of alerts")
    return "\n".join(lines)
