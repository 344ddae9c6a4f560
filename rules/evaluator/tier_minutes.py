"""Minutes of a tier that live rules look back on: as much of each as they read, in limited memory."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

from rules.catalogue.registry import RULES
from rules.plan import load_bins
from rules.plan.load_bins import BinnedWindow, TierContext
from rules.replicas.starts import ReplicaStart
from rules.replicas.state import ReplicaState
from rules.telemetry import windows
from rules.telemetry.windows import Window
from rules.verdicts import error_budget
from rules.verdicts.error_budget import Budget
from rules.verdicts.held_windows import HeldWindows, select_ending

LIVE_SECONDS = 3600.0
"""Maximum window in seconds of a rule over the minutes in memory. Longer rules use the hours of the history."""

LIVE = tuple(rule for rule in RULES if not rule.per_scrape and rule.window_seconds <= LIVE_SECONDS)

LONGEST = max(rule.window_seconds for rule in LIVE)

RECENT_SECONDS = 960.0
"""Age in seconds from which a minute keeps only LENGTHS of its histograms and LEVELS of its gauges.

Rules that look back further read no others, and these are most of a minute's memory (a node agent has 64 MiB, DESIGN 5).
"""

LENGTHS = frozenset({"prompt_tokens_per_request", "generation_tokens_per_request"})
LEVELS = frozenset({"requests_running", "requests_waiting", "engine_startup_seconds"})

AHEAD_SECONDS = 600.0
"""Maximum seconds that a minute may lie ahead. Replicas close minutes in different cycles; more is a wrong clock."""

EXPLAINED_SECONDS = 180.0
"""Span in seconds of the minutes that explain a cascade: lengths are known only when requests finish."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TierMinutes:
    """Closed minutes of a tier, oldest first, as far back as its rules look. `starts` and `releases` are of its replicas
    (by name, the newest last).

    In an aggregated tier `binned` are sums over the replicas of one load. `each` holds what comparing rules need of
    every replica, in a batch a cycle. Otherwise `binned` are of single replicas, and `each` is None.
    """

    binned: HeldWindows = field(default_factory=HeldWindows)
    each: tuple[HeldWindows, ...] | None = None
    budget: Budget = field(default_factory=Budget)
    starts: tuple[ReplicaStart, ...] = ()
    releases: Mapping[str, str] = field(default_factory=dict)


def bin_minute(
    minutes: TierMinutes, minute: Window, replica: str, context: TierContext, earlier: BinnedWindow | None = None
) -> BinnedWindow:
    """Return a closed minute of a replica with its load bin; off the curve where a backlog dominates its latencies.

    `earlier` is the replica's minute before it, by default the last one in `minutes`.
    """
    if earlier is None:
        earlier = next(reversed(minutes.binned.by_replica.get(replica, HeldWindows())), None)
    return load_bins.mark_backlog(load_bins.bin_window(minute, context.curve, replica), earlier)


def add_minutes(
    minutes: TierMinutes,
    binned: Sequence[BinnedWindow],
    context: TierContext,
    watched: float | None = None,
    each: Sequence[BinnedWindow] | None = None,
) -> TierMinutes:
    """Add the minutes of one evaluation. In an aggregated tier they are sums by load; `each` has those of every replica.

    Drop minutes older than any rule looks back, and those in the future: the clock was set back. `watched` is the
    evaluation's time (unix seconds), by default the last minute's end.
    """
    if not binned and not each:
        return minutes
    end = max(candidate.window.end for candidate in (*binned, *(each or ())))
    # A minute far from the evaluation's own time has a wrong clock, and makes no other minute old.
    now = end if watched is None or abs(end - watched) <= AHEAD_SECONDS else watched
    budget = _budget(minutes, context)
    for sample in binned:
        budget = error_budget.add_minute(budget, sample.window)
    earlier = _age_batches(minutes.binned.batches, LEVELS, now)
    earlier_each = _age_batches(minutes.each or (), frozenset(), now)
    return replace(
        minutes,
        binned=HeldWindows.of_batches((*earlier, HeldWindows(binned))),
        each=None if each is None else (*earlier_each, HeldWindows(each)),
        budget=budget,
    )


def _age_batches(batches: Iterable[HeldWindows], levels: frozenset[str], now: float) -> Iterator[HeldWindows]:
    """Yield the windows that rules look back on at `now`, the older ones without what no rule reads."""
    since, until = now - LONGEST - windows.MINUTE_SECONDS, now + AHEAD_SECONDS
    for batch in filter(None, (select_ending(batch, since, until) for batch in batches)):
        is_final = batch.ends[0] > now - RECENT_SECONDS or batch.once(_is_aged, levels)
        yield batch if is_final else HeldWindows(_age(binned, levels, now) for binned in batch)


def _is_aged(batch: HeldWindows, levels: frozenset[str]) -> bool:
    """Return whether all windows have only what rules read of older ones."""
    return all(_age(binned, levels, math.inf) is binned for binned in batch)


def _age(binned: BinnedWindow, levels: frozenset[str], now: float) -> BinnedWindow:
    """Drop the parts of an older window that no rule reads, but for the gauges `levels`."""
    window = binned.window
    is_slim = window.histograms.keys() <= LENGTHS and window.gauges.keys() <= levels
    if window.end > now - RECENT_SECONDS or is_slim:
        return binned
    parts = {family: part for family, part in window.histograms.items() if family in LENGTHS}
    gauges = {family: gauge for family, gauge in window.gauges.items() if family in levels}
    return replace(binned, window=replace(window, histograms=parts, gauges=gauges))


def _budget(minutes: TierMinutes, context: TierContext) -> Budget:
    """Return the budget, or an empty one if it was counted against other objectives."""
    anew = error_budget.empty_budget(context)
    return minutes.budget if minutes.budget.objectives == anew.objectives else anew


def rebin_minutes(minutes: TierMinutes, context: TierContext) -> TierMinutes:
    """Bin the minutes by another curve, after the plan changed."""
    kept = replace(minutes, budget=_budget(minutes, context), binned=HeldWindows())
    if minutes.each is not None:
        # Sums by the loads of another curve cannot be taken apart.
        return replace(kept, each=())
    newest: dict[str | None, BinnedWindow] = {}
    binned = []
    for sample in minutes.binned:
        again = load_bins.bin_window(sample.window, context.curve, sample.replica)
        newest[sample.replica] = load_bins.mark_backlog(again, newest.get(sample.replica))
        binned.append(newest[sample.replica])
    return replace(kept, binned=HeldWindows(binned))


def recent_windows(
    minutes: TierMinutes, replica: ReplicaState, context: TierContext, now: float
) -> tuple[BinnedWindow, ...]:
    """Return the last minutes of a replica in a cascade, which explain it, including the open one."""
    if replica.cascade.stage == 0:
        return ()
    of_each = minutes.binned.batches if minutes.each is None else minutes.each
    recent = chain.from_iterable(select_ending(batch, now - EXPLAINED_SECONDS) for batch in of_each)
    closed = [s for s in recent if s.replica == replica.name]
    if replica.open:
        closed.append(load_bins.bin_window(windows.sum_windows(replica.open), context.curve, replica.name))
    return tuple(closed)
