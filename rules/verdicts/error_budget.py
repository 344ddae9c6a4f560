"""Error budgets: requests seen and requests that broke each objective, by minute, for three days.

Minutes become rows of five minutes after six hours: a tier takes about 220 kB. To add an objective on a latency: a row
of OBJECTIVES. `rules.methods.burn_rate` has the rates.
"""

from __future__ import annotations

import math
import operator
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

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
"""Families of output events. Those of one request, or of one slow step, are not independent: they count as the
requests that had any."""

KEPT_SECONDS = 3 * 86_400.0
"""The longest window of the burn-rate ladder (SRE workbook, ch. 5)."""

FINE_SECONDS, COARSE_SECONDS = 6 * 3600.0, 300.0
"""How long minutes are kept apart, which windows of up to six hours see, and the length of older rows."""

IMPACT_SECONDS = 900.0
"""Seconds of requests that show what users feel now: the hold of most rules."""

_START, _LENGTH, _SEEN_SECONDS, _REQUESTS, _FIRST = range(5)
_EACH, _BEST = 4, 2
ROW = _FIRST + _EACH * len(COUNTED)
"""Columns: start and length of the row, seconds of it that were seen, finished requests; of all COUNTED n, and surely,
likely, at most slow (or failed)."""

LEVELS = {OBJECTIVES[0]: outcomes.OVERDUE, outcomes.FAILED: outcomes.HELD}
"""Gauges of requests that broke a promise and are in no count yet."""

LEVEL_SECONDS = 3600.0
"""How long the levels of minutes are kept: the long window of the fastest rung."""

LATEST_SECONDS, RARE_SECONDS = 180.0, 100.0
"""Age of minutes that tell how many requests are overdue now. One of RARE_SECONDS or more tells until the next closes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Counts of a tier's requests by objective (seconds, None: no objective), in rows ordered by start without overlap.

    Counts are of all replicas together. A changed objective starts a new budget. `levels` are the requests of LEVELS of
    the last hour by family and minute; those of the last `latest_seconds` are now.
    """

    objectives: tuple[float | None, ...] = (None,) * len(OBJECTIVES)
    rows: array[float] = field(default_factory=lambda: array("d"))
    levels: Mapping[tuple[str, float], float] = field(default_factory=dict)
    latest_seconds: float = LATEST_SECONDS

    def columns(self, since: float, until: float, *places: int) -> list[array[float]]:
        """Return columns of the rows whose middle lies in (since, until]."""

        def middle(at: int) -> float:
            return self.rows[at + _START] + self.rows[at + _LENGTH] / 2

        begins = range(0, len(self.rows), ROW)
        low, high = (ROW * bisect_right(begins, t, key=middle) for t in (since, until))
        return [self.rows[low + place : high : ROW] for place in places]


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowRequestCount(histograms.Share):
    """Requests that broke the objective, of all. Output events are scaled to requests. `seconds` of the time were seen."""

    seconds: float

    @property
    def reading(self) -> Reading:
        """Return the share of slow requests with its bounds. Raise ZeroDivisionError without requests."""
        return Reading(value=self.best / self.n, low=self.low / self.n, high=self.high / self.n, n=self.n)


def empty_budget(context: TierContext) -> Budget:
    """Return the budget of a tier without requests."""
    basis = context.basis
    return Budget(
        objectives=(basis.ttft_slo_seconds, basis.tpot_slo_seconds, basis.itl_slo_seconds, basis.e2e_slo_seconds)
    )


def add_minute(budget: Budget, minute: Window) -> Budget:
    """Add a closed minute of one replica. A minute without counts changes nothing."""
    known = (f for f in (*OBJECTIVES, outcomes.FINISHED) if f in minute.histograms or f in minute.counters)
    seen = max(map(minute.seconds_of, known), default=0.0)
    row = _row(budget, minute, windows.minute_of(minute), MINUTE_SECONDS, seen)
    if row is None:
        return budget
    levels = {key: n for key, n in budget.levels.items() if key[1] > minute.end - LEVEL_SECONDS}
    for family, name in LEVELS.items():
        gauge, key = minute.gauges.get(name), (family, windows.minute_of(minute))
        if gauge is not None:
            levels[key] = levels.get(key, 0.0) + gauge.integral / max(minute.span, MINUTE_SECONDS)
    rows = _join_old_minutes(_add_row(budget.rows, row), minute.end)
    latest = LATEST_SECONDS if minute.span < RARE_SECONDS else 2.5 * minute.span + MINUTE_SECONDS
    return replace(budget, rows=rows, levels=levels, latest_seconds=latest)


def restore_budget(context: TierContext, hours: Iterable[BinnedWindow], minutes: Iterable[BinnedWindow]) -> Budget:
    """Return the budget from the history: hours of the tier, then minutes of each replica, each oldest first.

    Only the windows of days reach back to the hours. The shorter windows need minutes.
    """
    budget = empty_budget(context)
    grouped = windows.group_by(hours, lambda hour: hour.window.start // HOUR_SECONDS * HOUR_SECONDS)
    for start, group in sorted(grouped.items()):
        whole = windows.sum_windows([hour.window for hour in group])
        row = _row(budget, whole, start, HOUR_SECONDS, min(HOUR_SECONDS, whole.span))
        if row is not None:
            budget = replace(budget, rows=_add_row(budget.rows, row))
    for minute in minutes:
        budget = add_minute(budget, minute.window)
    return budget


def count_slow_requests(budget: Budget, family: str, since: float, until: float) -> SlowRequestCount:
    """Return the counts of one objective in (since, until] (unix seconds). Raise ValueError for an unknown family."""
    column = _column(family)
    seen, requests, *counts = budget.columns(since, until, _SEEN_SECONDS, _REQUESTS, *range(column, column + _EACH))
    n, low, best, high = map(math.fsum, counts)
    share, overdue = 1.0, count_overdue(budget, family, until)
    if family in OF_EVENTS and n > 0:
        with_events = (finished for finished, events in zip(requests, counts[0], strict=True) if events > 0)
        share = min(1.0, math.fsum(with_events) / n)
    low, best, high = (count * share + overdue for count in (low, best, high))
    seconds = min(until - since, math.fsum(seen))
    return SlowRequestCount(n=n * share + overdue, low=low, best=best, high=high, seconds=seconds)


def count_overdue(budget: Budget, family: str, now: float) -> float:
    """Return the requests of the latest minutes that have missed the objective and are not counted as slow yet."""
    levels = (n for (of, t), n in budget.levels.items() if of == family and now - budget.latest_seconds < t <= now)
    return max(levels, default=0.0)


def count_standing_minutes(budget: Budget, since: float, until: float) -> int:
    """Return the number of the last rows in (since, until] in which requests were overdue and none got a first token."""
    columns = budget.columns(since, until, _START, _column(OBJECTIVES[0]))
    count = 0
    for start, first_tokens in zip(*map(reversed, columns), strict=True):
        if first_tokens > 0 or budget.levels.get((OBJECTIVES[0], start), 0.0) < 1:
            break
        count += 1
    return count


def list_slow_rows(
    budget: Budget, family: str, allowed: float, since: float, until: float
) -> list[tuple[float, float]]:
    """Return begin and end of each row in (since, until] with more than the allowed share (unix seconds)."""
    places = _START, _LENGTH, _column(family), _column(family) + _BEST
    rows = []
    for start, length, n, best in zip(*budget.columns(since, until, *places), strict=True):
        overdue = budget.levels.get((family, start), 0.0)
        if best + overdue > allowed * (n + overdue):
            rows.append((start, start + length))
    return rows


def _column(family: str) -> int:
    """Return the first column of a family's counts. Raise ValueError for an unknown family."""
    return _FIRST + _EACH * COUNTED.index(family)


def measure_missed_objective(budget: Budget, now: float) -> MissedObjective | None:
    """Return the objective that the largest share of recent requests missed, None without counted requests.

    Recent requests are those of the last IMPACT_SECONDS before `now` (unix seconds).
    """
    limits = dict(zip(OBJECTIVES, budget.objectives, strict=True))
    missed = []
    for family in COUNTED:
        count = count_slow_requests(budget, family, now - IMPACT_SECONDS, now)
        if count.n > 0:
            name = family.partition("_")[0].upper() if family in limits else ""
            missed.append(MissedObjective(objective=name, limit_seconds=limits.get(family), share=count.reading))
    return max(missed, key=lambda objective: objective.share.value or 0.0, default=None)


def count_observed_seconds(budget: Budget) -> float:
    """Return the seconds of the last days in which the tier was observed."""
    return math.fsum(budget.rows[_SEEN_SECONDS::ROW])


def _row(budget: Budget, window: Window, start: float, span: float, seen: float) -> array[float] | None:
    row = array("d", (start, span, seen, window.counters.get("requests_finished", 0.0)))
    for family, objective in zip(OBJECTIVES, budget.objectives, strict=True):
        counts, left = (0.0,) * _EACH, 0.0
        if objective is not None:
            share = histograms.share_above(window.histograms.get(family, ()), objective)
            counts = share.n, share.low, share.best, share.high
            left = window.counters.get(outcomes.OVERDUE_LEFT, 0.0) if family == OBJECTIVES[0] else 0.0
        row.extend(count + left for count in counts)
    ended = outcomes.outcomes(window)
    counts, lost = (0.0,) * _EACH, 0.0
    if not isinstance(ended, Missing):
        lost = window.counters.get(outcomes.HELD_LOST, 0.0)
        counts = ended.accepted_requests, 0.0 if ended.doubt else ended.failed, ended.failed, ended.most_failed
    row.extend(count + lost for count in counts)
    known = not isinstance(ended, Missing) or any(family in window.histograms for family in OBJECTIVES)
    return row if known and seen > 0 else None


def _add_row(stored: array[float], row: array[float]) -> array[float]:
    """Add a row in order of start. One that begins within another is added to it: a late minute of a booked hour.

    Replicas are seen in a minute at the same time, and minutes of a longer row one after the other.
    """
    made, at = stored[:], len(stored)
    while at and made[at - ROW] > row[_START]:
        at -= ROW
    if at and row[_START] < made[at - ROW] + made[at - ROW + _LENGTH]:
        before = made[at - ROW : at]
        seconds = before[_SEEN_SECONDS], row[_SEEN_SECONDS]
        seen = max(seconds) if before[_LENGTH] <= MINUTE_SECONDS else sum(seconds)
        counts = map(operator.add, before[_REQUESTS:], row[_REQUESTS:])
        made[at - ROW : at] = array("d", (before[_START], before[_LENGTH], min(before[_LENGTH], seen), *counts))
        return made
    made[at:at] = row
    return made


def _join_old_minutes(rows: array[float], now: float) -> array[float]:
    """Join minutes older than FINE_SECONDS to rows of five minutes. Drop rows that ended KEPT_SECONDS ago."""
    ages = KEPT_SECONDS + HOUR_SECONDS, FINE_SECONDS + COARSE_SECONDS
    gone, old = (ROW * bisect_left(range(0, len(rows), ROW), now - age, key=rows.__getitem__) for age in ages)
    first = old
    while first > gone and rows[first - ROW + _LENGTH] <= MINUTE_SECONDS:
        first -= ROW
    made = rows[gone:first]
    for at in range(first, old, ROW):
        row = rows[at : at + ROW]
        row[_START], row[_LENGTH] = row[_START] // COARSE_SECONDS * COARSE_SECONDS, COARSE_SECONDS
        made = _add_row(made, row)
    return made + rows[old:]
