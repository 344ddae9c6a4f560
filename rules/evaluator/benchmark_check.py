"""Step 13 (guide 9.1): comparison of a week of production with the benchmark.

It evaluates the live rules over sums by load bin. A bin that production never reached is neither confirmed nor refuted.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from rules.catalogue.registry import BATCH_WORK, RULES, load_rows
from rules.causes import explain
from rules.evaluator.rule_evaluation import evaluate_rule
from rules.methods.divergence import judge_tail
from rules.plan.curve import Curve
from rules.plan.guardrails import Guardrail
from rules.plan.load_bins import BinnedWindow, TierContext
from rules.telemetry.reading_methods import FULL_COVERAGE
from rules.telemetry.windows import HOUR_SECONDS, MINUTE_SECONDS
from rules.telemetry.work import Capacity
from rules.verdicts.context import SEPARATE
from rules.verdicts.held_windows import hold
from rules.verdicts.verdict import FIRING, RuleResult, Status, Verdict

FIRST_WEEK_SECONDS = 7 * 86400.0
"""Age of a plan version in seconds at which the result is stored: "within the first week of production traffic"."""

LEARNING_SECONDS = SEPARATE * HOUR_SECONDS
"""Observed time in seconds from which a tier without a finding confirms its plan. DESIGN 3.3 asks three separate periods
of a finding, and the periods of step 13 are hours: fewer hours could not have shown one."""


def is_learning(observed_seconds: float) -> bool:
    """Return whether a tier was observed too briefly to confirm its plan."""
    return observed_seconds < FULL_COVERAGE * LEARNING_SECONDS


def learning_words(observed_seconds: float) -> str:
    """Return how much of the needed time was observed: "learning, 4 of 180 min"."""
    return f"learning, {observed_seconds // MINUTE_SECONDS:.0f} of {LEARNING_SECONDS / MINUTE_SECONDS:.0f} min"


ASKED = frozenset(row.name for row in load_rows("benchmark")) | {"KvEviction"}
"""Rules of the guide's step 13: latency, utilisation, hits, evictions and load against the benchmark."""

CONFIRMING = frozenset({BATCH_WORK.name, *(rule.name for rule in RULES if rule.method is judge_tail)})
"""Rows of which one must give a verdict. Without a compared latency, nothing of the benchmark is confirmed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step13:
    """Result of step 13 for one tier.

    `highest_rps` is the highest load of a replica, `usable_rps` its planned and `capacity` its present capacity. `unvisited`
    describes the load bins without a request, None without a curve. `seen_seconds` is the time with data. `guardrails` do
    not change the result. `new_since` is the end of the newest minute (unix seconds) where all were recorded under
    another plan (no results then), else None.
    """

    tier: str
    results: tuple[RuleResult, ...]
    requests: float
    highest_rps: float | None
    usable_rps: float | None
    capacity: Capacity | None = None
    unvisited: tuple[str, ...] | None = None
    seen_seconds: float = 0.0
    guardrails: tuple[Guardrail, ...] = ()
    new_since: float | None = None

    @property
    def highest_share(self) -> float | None:
        if self.highest_rps is None or not self.usable_rps:
            return None
        return self.highest_rps / self.usable_rps

    @property
    def status(self) -> Status:
        """Return the worst status. It is unknown if no rule fires and no latency could be compared, or while learning."""
        verdicts = [a for a in self.results if isinstance(a, Verdict)]
        firing = {v.status for v in verdicts if v.status in FIRING}
        if firing:
            return Status.CRITICAL if Status.CRITICAL in firing else Status.WARNING
        compared = any(v.rule in CONFIRMING for v in verdicts)
        return Status.OK if compared and not is_learning(self.seen_seconds) else Status.UNKNOWN

    @property
    def is_learning(self) -> bool:
        """Return whether nothing fires and too little time was seen to confirm the benchmark."""
        return self.status is Status.UNKNOWN and self.seen_seconds > 0 and is_learning(self.seen_seconds)


def check_benchmark(
    context: TierContext, binned: Sequence[BinnedWindow], now: float, period_seconds: float = HOUR_SECONDS
) -> Step13:
    """Check one tier at `now` over its windows, oldest first: sums by load bin, each within one `period_seconds`.

    A finding must show in three separate periods. For less than half a day, give minutes (60 s), not hours.
    """
    results: list[RuleResult] = []
    for rule in RULES:
        if rule.name in ASKED and not rule.per_scrape:
            result = evaluate_rule(rule, context, binned, now, period_seconds)
            if isinstance(result, Verdict):
                result = explain.add_causes(result, context, binned)
            results.append(result)
    if context.plan is not None and context.plan.is_batch:
        results.append(evaluate_rule(BATCH_WORK, context, binned, now, period_seconds))
    return Step13(
        tier=context.name,
        results=tuple(results),
        requests=_requests(binned),
        highest_rps=max((s.rps for s in binned if s.rps is not None), default=None),
        usable_rps=context.capacity.planned_rps if context.capacity else None,
        capacity=context.capacity,
        unvisited=_list_unvisited(context.curve, binned) if context.curve is not None else None,
        seen_seconds=hold(binned).watched_seconds,
    )


def _requests(binned: Sequence[BinnedWindow]) -> float:
    return math.fsum(s.window.counters.get("requests_finished", 0.0) for s in binned)


def _list_unvisited(curve: Curve, binned: Sequence[BinnedWindow]) -> tuple[str, ...]:
    """Return descriptions of the load bins that no request reached (completed requests per second and replica)."""
    rates = [0.0, *(point.completed_rps for point in curve.points)]
    visited = {sample.bin for sample in binned if _requests([sample]) > 0}
    bins = enumerate(itertools.pairwise(rates))
    return tuple(f"{lower:.3g} to {upper:.3g} rps" for bin, (lower, upper) in bins if bin not in visited)
