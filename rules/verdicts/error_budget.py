"""Error budgets: requests seen and requests that broke each objective, by minute, for three days.

Minutes become rows of five minutes after six hours: a tier takes about 220 kB. To add an objective on a latency: a row
of OBJECTIVES. `rules.methods.burn_rate` has the rates.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import field, replace

from rules.light_dataclass import light_dataclass
from rules.plan.load_bins import BinnedWindow, TierContext
from rules.telemetry import histograms, outcomes, windows
from rules.telemetry.signals import Missing, Reading
from rules.telemetry.windows import HOUR_SECONDS, MINUTE_SECONDS, Window
from rules.verdicts.verdict import MissedObjective

OBJECTIVES = ("ttft_seconds", "tpot_seconds", "itl_seconds", "e2e_seconds")
"""The histogram families that have an objective, in the order of a row's columns."""

COUNTED = (*OBJECTIVES, outcomes.FAILED)
"""All that is counted against a promise: slow requests of each of these families, then failed requests."""

OF_EVENTS = frozenset({"itl_seconds"})
"""Families of output events. Those of one request, or of one slow step, are not independent: requests are counted."""

KEPT_SECONDS = 3 * 86_400.0
"""The longest window of the burn-rate ladder (SRE workbook, ch. 5)."""

FINE_SECONDS = 6 * 3600.0
"""How long minutes are kept apart: the short windows of up to half an hour, and the long one of six hours, see them."""

COARSE_SECONDS = 300.0

IMPACT_SECONDS = 900.0
"""Seconds of requests that show what users feel now: the hold of most rules."""

_HEAD, _REQUESTS, _FIRST, _EACH = 3, 3, 4, 4
ROW = _FIRST + _EACH * len(COUNTED)
"""Columns: start and length of the row, seconds of it that were seen, finished requests; of all COUNTED n, and surely,
likely, at most slow (or failed)."""


@light_dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Counts of a tier's requests by objective (seconds, None: no objective), in rows ordered by start.

    Counts are of all replicas together. A changed objective starts a new budget.
    """

    objectives: tuple[float | None, ...] = (None,) * len(OBJECTIVES)
    fine: array[float] = field(default_factory=lambda: array("d"))
    coarse: array[float] = field(default_factory=lambda: array("d"))

    def rows(self, since: float, until: float) -> Iterator[array[float]]:
        """Yield the rows whose middle lies in (since, until], the coarse ones first."""
        for stored in (self.coarse, self.fine):
            for at in range(0, len(stored), ROW):
                if since < stored[at] + stored[at + 1] / 2 <= until:
                    yield stored[at : at + ROW]


@light_dataclass(frozen=True, slots=True, kw_only=True)
class SlowRequestCount:
    """Of `n` requests `low` surely broke the objective, `high` at most, `best` by the best estimate.

    Output events are scaled to the requests that they belong to. `seconds` of the time were seen; in `shares` stand the
    best estimates of each row that had requests, oldest first.
    """

    n: float
    low: float
    best: float
    high: float
    seconds: float
    shares: tuple[float, ...]


_SEEN = (*OBJECTIVES, outcomes.FINISHED)


def empty_budget(context: TierContext) -> Budget:
    """Return the budget of a tier without requests."""
    facts = context.basis
    return Budget(
        objectives=(facts.ttft_slo_seconds, facts.tpot_slo_seconds, facts.itl_slo_seconds, facts.e2e_slo_seconds)
    )


def add_minute(budget: Budget, minute: Window) -> Budget:
    """Add a closed minute of one replica. A minute without counts changes nothing."""
    seen = max((minute.seconds_of(f) for f in _SEEN if f in minute.histograms or f in minute.counters), default=0.0)
    row = _row(budget.objectives, minute, windows.minute_of(minute), MINUTE_SECONDS, seen)
    if row is None:
        return budget
    return _coarsened(replace(budget, fine=_added(budget.fine, row)), minute.end)


def restore_budget(context: TierContext, hours: Iterable[BinnedWindow], minutes: Iterable[BinnedWindow]) -> Budget:
    """Return the budget from the history: hours of the tier, then minutes of each replica, each oldest first.

    Only the windows of days reach back to the hours. The shorter windows need minutes.
    """
    budget = empty_budget(context)
    grouped = windows.group_by((one.window for one in hours), lambda one: one.start // HOUR_SECONDS * HOUR_SECONDS)
    for start, group in sorted(grouped.items()):
        whole = windows.sum_windows(group)
        row = _row(budget.objectives, whole, start, HOUR_SECONDS, min(HOUR_SECONDS, whole.span))
        if row is not None:
            budget = replace(budget, coarse=_added(budget.coarse, row))
    for one in minutes:
        budget = add_minute(budget, one.window)
    return budget


def count_slow_requests(budget: Budget, family: str, since: float, until: float) -> SlowRequestCount:
    """Return the counts of one objective in (since, until] (unix seconds). Raise ValueError for an unknown family."""
    column = _FIRST + _EACH * COUNTED.index(family)
    rows = list(budget.rows(since, until))
    n, low, best, high = _counts_of(rows, family)
    return SlowRequestCount(
        n=n,
        low=low,
        best=best,
        high=high,
        seconds=min(until - since, math.fsum(row[2] for row in rows)),
        shares=tuple(row[column + 2] / row[column] for row in rows if row[column] > 0),
    )


def _counts_of(rows: Iterable[array[float]], family: str) -> tuple[float, float, float, float]:
    """Return n, low, best and high of a family in these rows. Output events count as their finished requests."""
    several, column = list(rows), _FIRST + _EACH * COUNTED.index(family)
    n, low, best, high = (math.fsum(row[column + place] for row in several) for place in range(_EACH))
    if family not in OF_EVENTS or n <= 0:
        return n, low, best, high
    share = min(1.0, math.fsum(row[_REQUESTS] for row in several) / n)
    return n * share, low * share, best * share, high * share


@light_dataclass(frozen=True, slots=True, kw_only=True)
class BurnSpan:
    """Time in which more than an allowed share of requests missed an objective, from `begin` to `end` (unix seconds).

    `n` requests came after it, of which at most `slow` missed the objective.
    """

    begin: float
    end: float
    n: float
    slow: float


def find_burn_span(budget: Budget, family: str, allowed: float, since: float, until: float) -> BurnSpan | None:
    """Return the span of the rows in (since, until] with more than the allowed share, None if there is none."""
    column = _FIRST + _EACH * COUNTED.index(family)
    rows = [row for row in budget.rows(since, until) if row[column] > 0]
    burning = [at for at, row in enumerate(rows) if row[column + 2] > allowed * row[column]]
    if not burning:
        return None
    first, last = rows[burning[0]], rows[burning[-1]]
    n, _, _, slow = _counts_of(rows[burning[-1] + 1 :], family)
    return BurnSpan(begin=first[0], end=last[0] + last[1], n=n, slow=slow)


def measure_missed_objective(budget: Budget, now: float) -> MissedObjective | None:
    """Return the objective that the largest share of recent requests missed. Return None without counted requests.

    Recent requests are those of the last IMPACT_SECONDS before `now` (unix seconds).
    """
    limits = dict(zip(OBJECTIVES, budget.objectives, strict=True))
    found = []
    for family in COUNTED:
        count = count_slow_requests(budget, family, now - IMPACT_SECONDS, now)
        if count.n > 0:
            share = Reading(value=count.best / count.n, low=count.low / count.n, high=count.high / count.n, n=count.n)
            word = family.partition("_")[0].upper() if family in limits else ""
            found.append(
                (count.best / count.n, MissedObjective(objective=word, limit_seconds=limits.get(family), share=share))
            )
    return max(found, key=lambda one: one[0])[1] if found else None


def count_observed_seconds(budget: Budget) -> float:
    """Return the seconds of the last days in which the tier was observed."""
    return math.fsum(budget.coarse[2::ROW]) + math.fsum(budget.fine[2::ROW])


def _row(
    objectives: tuple[float | None, ...], window: Window, start: float, span: float, seen: float
) -> array[float] | None:
    row = array("d", (start, span, seen, window.counters.get("requests_finished", 0.0)))
    for family, objective in zip(OBJECTIVES, objectives, strict=True):
        parts = window.histograms.get(family, ()) if objective is not None else ()
        share = histograms.share_above(parts, objective) if objective is not None else None
        row.extend((share.n, share.low, share.best, share.high) if share is not None else (0.0,) * _EACH)
    ended = outcomes.outcomes(window)
    if isinstance(ended, Missing):
        row.extend((0.0,) * _EACH)
    else:
        surely = 0.0 if ended.doubt else ended.failed
        row.extend((ended.accepted_requests, surely, ended.failed, ended.most_failed))
    known = not isinstance(ended, Missing) or any(family in window.histograms for family in OBJECTIVES)
    return row if known and seen > 0 else None


def _added(stored: array[float], row: array[float]) -> array[float]:
    """Add a row in order of start. Rows of one start are added up."""
    made, at = stored[:], len(stored)
    while at and made[at - ROW] > row[0]:
        at -= ROW
    if at and made[at - ROW] == row[0]:
        before = made[at - ROW : at]
        made[at - ROW : at] = _together(before, row)
        return made
    made[at:at] = row
    return made


def _together(before: array[float], row: array[float]) -> array[float]:
    counts = (a + b for a, b in zip(before[_HEAD:], row[_HEAD:], strict=True))
    return array("d", (before[0], before[1], max(before[2], row[2]), *counts))


def _coarsened(budget: Budget, now: float) -> Budget:
    """Move minutes older than FINE_SECONDS into rows of five minutes. Drop rows older than KEPT_SECONDS."""
    old = 0
    while old < len(budget.fine) and budget.fine[old] + COARSE_SECONDS < now - FINE_SECONDS:
        old += ROW
    gone = 0
    while gone < len(budget.coarse) and budget.coarse[gone] + budget.coarse[gone + 1] < now - KEPT_SECONDS:
        gone += ROW
    if not old and not gone:
        return budget
    coarse = budget.coarse[gone:]
    for at in range(0, old, ROW):
        coarse = _into_five(coarse, budget.fine[at : at + ROW])
    return replace(budget, fine=budget.fine[old:], coarse=coarse)


def _into_five(coarse: array[float], minute: array[float]) -> array[float]:
    row = minute[:]
    row[0], row[1] = minute[0] // COARSE_SECONDS * COARSE_SECONDS, COARSE_SECONDS
    seen = next((coarse[at + 2] for at in range(len(coarse) - ROW, -1, -ROW) if coarse[at] == row[0]), 0.0)
    row[2] = min(COARSE_SECONDS, seen + minute[2])
    return _added(coarse, row)
