"""Records of cause checks, and the slow minutes of a window: the replica-minutes that were slower than its mean.

A cause must be present when requests are slow. A mean over the whole window does not show that.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain

from rules.methods.burn_rate import judge_burn
from rules.methods.divergence import judge_tail
from rules.plan.curve import Curve
from rules.plan.load_bins import BinnedWindow, TierContext
from rules.telemetry import histograms, outcomes
from rules.telemetry.gpu_windows import COVERED, THROTTLED_COVERED
from rules.telemetry.histograms import Share
from rules.telemetry.windows import Window
from rules.verdicts.error_budget import OBJECTIVES, empty_budget
from rules.verdicts.held_windows import HeldWindows, hold
from rules.verdicts.rule import Rule

USERS = frozenset({judge_burn})
"""Methods for latencies above the objective, at any load."""

FIRST_TOKEN = "ttft_seconds"
FROM_ARRIVAL = (FIRST_TOKEN, "e2e_seconds")
"""Latencies that begin with the arrival, so queue and prefill are parts of them."""

MOST_LATE = 0.8
"""Share of the late requests whose minutes must show a cause to prove it. Ours: one minute in five may lag behind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CauseResult:
    """Fact for or against a cause. `proven`: counters or bucket edges prove it. `than`: what a length is compared with."""

    supported: bool
    text: str = ""
    proven: bool = True
    than: str = "planned"


NOT_ASKED = CauseResult(supported=False)
"""Result of a check that does not concern what was seen, such as the routing of one replica. Nothing is said of it."""

Examine = Callable[["CauseContext"], CauseResult | None]
"""Check of a cause. None: it is not known for lack of data."""


@dataclass(frozen=True, kw_only=True)
class CauseContext:
    """Input of cause checks: the rule that fired, its tier, and the binned windows with their sum."""

    rule: Rule
    context: TierContext
    binned: tuple[BinnedWindow, ...]
    total: Window

    @cached_property
    def slow_minutes(self) -> SlowMinutes | None:
        """Return the minutes slow by the objective, or by the benchmark at this load; None without one."""
        rule, limits = self.rule, dict(zip(OBJECTIVES, empty_budget(self.context).objectives, strict=True))
        curve, limit, factor = None, limits.get(rule.family), 1.0
        if rule.method is judge_tail:
            curve, limit, factor = self.context.curve, None, rule.limit("factor", self.context.limits)
        elif rule.method not in USERS or limit is None:
            return None
        of_batches = hold(self.binned).by_batch(_list_late, rule.family, rule.signal, curve, limit, factor)
        counted = list(chain.from_iterable(of_batches))
        n = math.fsum(late.n for _, late in counted) or 1.0
        usual = math.fsum(late.best for _, late in counted) / n
        slow = [(binned, late.best) for binned, late in counted if late.best > usual * late.n]
        if not slow:
            return None
        slow.sort(key=lambda pair: pair[0].window.middle)
        begin = slow[(len(slow) - 1) // 2][0].window.middle
        quick = (binned.window for binned, late in counted if late.best <= usual * late.n)
        return SlowMinutes(slow=tuple(slow), before=tuple(window for window in quick if window.middle < begin))


READ = frozenset(
    {
        *("in_system_change", "preemptions", "prefix_hit_tokens", "prefix_queried_tokens", "adapters_running"),
        *("spec_drafts", "spec_draft_tokens", "spec_accepted_tokens", "prompt_tokens", "generation_tokens"),
        *("requests_waiting_deferred", "prompt_tokens_per_request", "generation_tokens_per_request"),
        *(*FROM_ARRIVAL, "queue_seconds", "prefill_seconds", THROTTLED_COVERED, *COVERED[THROTTLED_COVERED]),
        *("kv_transfer_failures", "restarts", "gpu_fault_events", "gpu_ecc_uncorrectable_errors"),
        *outcomes.READ,
    }
)
"""Families of the sum that checks read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowMinutes:
    """Slow binned windows with their late requests, and the quick windows before the middle one."""

    slow: tuple[tuple[BinnedWindow, float], ...]
    before: tuple[Window, ...]

    def share(self, shows: Callable[[Window], object]) -> float:
        """Return the share of the late requests whose minutes show a cause (0-1)."""
        return sum(late for minute, late in self.slow if shows(minute.window)) / sum(late for _, late in self.slow)


def prove_when_slow(examine: Examine) -> Examine:
    """Return a check that proves a cause only if the minutes of most late requests show it on their own."""

    def examine_slow(context: CauseContext) -> CauseResult | None:
        result = examine(context)
        minutes = context.slow_minutes if result and result.supported and result.proven else None
        if result is None or minutes is None:
            return result
        shown = 0.0
        for minute, late in minutes.slow:
            alone = examine(replace(context, binned=(minute,), total=minute.window))
            shown += late if alone and alone.supported else 0.0
        return replace(result, proven=shown >= MOST_LATE * math.fsum(late for _, late in minutes.slow))

    return examine_slow


def _list_late(
    batch: HeldWindows, family: str, metric: str, curve: Curve | None, limit: float | None, factor: float
) -> list[tuple[BinnedWindow, Share]]:
    """Return the windows with the requests slower than `limit` (seconds), or with a curve than `factor` x its latency."""
    late = []
    for binned in batch:
        parts, allowed = binned.window.histograms.get(family), limit
        if parts and curve and binned.bin is not None:
            expected = curve.expectation(binned.bin, metric, binned.rps or 0.0, binned.in_system)
            allowed = expected.value * factor if expected else None
        if parts and allowed is not None:
            late.append((binned, histograms.share_above(parts, allowed)))
    return late
