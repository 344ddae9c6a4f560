"""Slow minutes: the replica-minutes of a hold that were slower than all of it, and what came before them.

Owns this split. A cause must be there when it is slow: an average over all of the hold tells neither when nor what came first.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from rules.causes import first_token
from rules.causes.context import USERS, CauseContext, CauseResult
from rules.methods.tails import judge_tail
from rules.plan.load_bins import BinnedWindow
from rules.telemetry import histograms
from rules.telemetry.histograms import Share
from rules.telemetry.windows import Window

MOST = 0.8
"""The part of the late requests whose minutes must show what proves a cause. Ours: one minute in five may lag behind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowMinutes:
    """The slow slices with how many requests of each were late, and the windows before them that were not slow."""

    slow: tuple[tuple[BinnedWindow, float], ...]
    before: tuple[Window, ...]


def find_slow_minutes(scene: CauseContext) -> SlowMinutes | None:
    """Return the slow minutes of a scene; None where its rule tells no limit, or no minute was slower than the others.

    Late is later than what users were promised, or than the benchmark allows at this load. Before is earlier than the middle
    one of the slow minutes: some minute is always slow by chance.
    """
    limit = _promised(scene) if scene.rule.method in USERS else None
    if scene.rule.method is not judge_tail and limit is None:
        return None
    counted = [(one, late) for one in scene.slices if (late := _late(scene, one, limit)) is not None]
    n = math.fsum(late.n for _, late in counted)
    if n <= 0:
        return None
    usual = math.fsum(late.best for _, late in counted) / n
    slow = sorted(
        ((one, late.best) for one, late in counted if late.best > usual * late.n), key=lambda each: _at(each[0])
    )
    if not slow:
        return None
    begin = _at(slow[(len(slow) - 1) // 2][0])
    before = (one.window for one, late in counted if late.best <= usual * late.n and _at(one) < begin)
    return SlowMinutes(slow=tuple(slow), before=tuple(before))


def prove_when_slow(examine: Callable[[CauseContext], CauseResult]) -> Callable[[CauseContext], CauseResult]:
    """Return the same examination, which proves a cause only if the minutes of most late requests show it on their own."""

    def examine_slow(scene: CauseContext) -> CauseResult:
        found = examine(scene)
        minutes = find_slow_minutes(scene) if found.proven else None
        if minutes is None:
            return found
        total = math.fsum(late for _, late in minutes.slow)
        shown = math.fsum(
            late
            for one, late in minutes.slow
            if examine(CauseContext.from_windows(scene.rule, scene.view, (one,))).supported
        )
        return replace(found, proven=shown >= MOST * total)

    return examine_slow


def _promised(scene: CauseContext) -> float | None:
    """What the rule calls late (seconds)."""
    if scene.rule.family == first_token.FAMILY:
        return first_token.explain_late_first_token(scene)
    return scene.view.basis.tpot_slo_seconds if scene.rule.family == "tpot_seconds" else None


def _late(scene: CauseContext, one: BinnedWindow, limit: float | None) -> Share | None:
    """Requests slower than `limit` (seconds), or without it than the benchmark allows at this load."""
    curve, parts = scene.view.curve, one.window.histograms.get(scene.rule.family)
    if limit is not None:
        return histograms.share_above(parts, limit) if parts else None
    if curve is None or one.bin is None or not parts:
        return None
    expected = curve.expectation(one.bin, scene.rule.metric, one.rps or 0.0, one.in_system)
    if expected is None:
        return None
    return histograms.share_above(parts, expected.interpolated * scene.rule.limit("factor", scene.view.limits))


def _at(one: BinnedWindow) -> float:
    return (one.window.start + one.window.end) / 2
