"""Cold starts: how long replicas took from process start to ready, against the lead that the plan gives them (guide 9.2, 9.5).

Owns the comparison of each start of the last hour, and of the P95 of all that are known of the tier (`rules.starts`). What
the page tells is a lower bound of the plan's number: pulling the image and finding a node come before the process starts.
Restarts are rare, so one late start is told; it was measured.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from rules.judging import Case
from rules.signals import Gap, Reading
from rules.starts import ENOUGH, LEAD_QUANTILE, Start, nearest_rank
from rules.verdicts import Answer, Certainty, Status
from rules.wording import number


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """A start of the hold, or the mean of several of one replica within one minute: seconds from process start to ready."""

    replica: str | None
    seconds: float
    count: float


def judge_cold_start(case: Case) -> Answer:
    """The slowest start of the hold above the planned lead."""
    planned = case.view.plan.cold_start_seconds if case.view.plan else None
    if planned is None:
        return case.unknown(Gap.NOT_IN_PLAN, f"the plan has no cold_start_seconds{_measured(case)}")
    if not case.slices:
        return case.unknown(Gap.SCRAPE_FAILED, "no replica of the tier has been seen")
    starts = _starts(case)
    late = [one for one in starts if one.seconds > planned * case.limit("factor")]
    known = tuple(one for one in case.starts if one.measured)
    if known and not late and (not starts or _lead_of(known) > planned * case.limit("factor")):
        return _of_all_known(case, known, planned)
    if starts:
        return _verdict(case, starts, planned)
    told = _as_told(case)
    if told:
        return _by_engine(case, told, planned)
    restarts = math.fsum(s.window.counters.get("restarts", 0.0) for s in case.slices)
    if restarts:
        text = f"{_times(restarts)}, and the page does not tell when the engine was ready"
        return case.unknown(Gap.NOT_EXPOSED, text)
    return case.unknown(Gap.NO_TRAFFIC, "no start was seen")


def _lead_of(known: tuple[Start, ...]) -> float:
    return nearest_rank([one.lead_seconds for one in known], LEAD_QUANTILE)


def _of_all_known(case: Case, known: tuple[Start, ...], planned: float) -> Answer:
    """The P95 of all starts that are known of the tier: what is wrong with a lead does not end with the hour of one start."""
    allowed, slow = planned * case.limit("factor"), _lead_of(known)
    proven = nearest_rank([one.seconds.low or 0.0 for one in known], LEAD_QUANTILE)
    observed = Reading(value=slow, low=proven, high=None, n=float(len(known)))
    expected = Reading(value=planned, low=0.0, high=planned, n=1.0)
    sentence = f"{_known_word(len(known), number(slow, 'seconds'))}; {number(planned, 'seconds')} are planned"
    if slow <= allowed:
        return case.verdict(Status.OK, Certainty.CERTAIN, observed, expected, sentence)
    certainty = Certainty.CERTAIN if proven > allowed else Certainty.LIKELY
    return case.verdict(Status.WARNING, certainty, observed, expected, sentence)


def _known_word(count: int, took: str) -> str:
    if count == 1:
        return f"The one start that is known took {took}"
    if count < ENOUGH:
        return f"The slowest of {count} known starts took {took}"
    return f"Of {count} known starts 95% took at most {took}"


def _starts(case: Case) -> tuple[Counted, ...]:
    found = [(s.replica, s.window.counters) for s in case.slices if s.window.counters.get("cold_starts", 0.0) > 0]
    return tuple(
        Counted(
            replica=replica,
            seconds=counters.get("cold_start_seconds", 0.0) / counters["cold_starts"],
            count=counters["cold_starts"],
        )
        for replica, counters in found
    )


def _as_told(case: Case) -> dict[str | None, float]:
    """What engines say of their own start, by replica, as it stands at the end."""
    gauges = [(s.replica, s.window.gauges.get("engine_startup_seconds")) for s in case.slices]
    return {replica: gauge.maximum for replica, gauge in gauges if gauge is not None and gauge.maximum > 0}


def _verdict(case: Case, starts: tuple[Counted, ...], planned: float) -> Answer:
    allowed = planned * case.limit("factor")
    count = math.fsum(one.count for one in starts)
    mean = math.fsum(one.seconds * one.count for one in starts) / count
    slowest = max(starts, key=lambda one: one.seconds)
    late = math.fsum(one.count for one in starts if one.seconds > allowed)
    observed = Reading(value=slowest.seconds, low=slowest.seconds, high=None, n=count)
    expected = Reading(value=planned, low=0.0, high=planned, n=1.0)
    took = f"{number(slowest.seconds, 'seconds')} from process start to ready"
    if not late:
        most = f"at most {took}" if count > 1 else took
        sentence = f"{_starts_word(count)} took {most}; {number(planned, 'seconds')} are planned"
        return case.verdict(Status.OK, Certainty.CERTAIN, observed, expected, sentence)
    sentence = (
        f"{late:.0f} of {_starts_word(count)} took longer than the planned {number(planned, 'seconds')}: "
        f"{slowest.replica or case.view.tier} {took}"
    )
    sentence += f" (mean {number(mean, 'seconds')})" if count > 1 else ""
    return case.verdict(Status.WARNING, Certainty.CERTAIN, observed, expected, sentence)


def _by_engine(case: Case, told: dict[str | None, float], planned: float) -> Answer:
    """The engine's own clock starts after container and interpreter: above the plan is proof, below it is none."""
    replica, seconds = max(told.items(), key=lambda item: item[1])
    late = seconds > planned * case.limit("factor")
    observed = Reading(value=None, low=seconds, high=None, n=float(len(told)))
    expected = Reading(value=planned, low=0.0, high=planned, n=1.0)
    sentence = (
        f"{replica or case.view.tier} says that its own start took {number(seconds, 'seconds')}; what came before it is "
        f"not counted, and {number(planned, 'seconds')} are planned for all of it"
    )
    status, certainty = (Status.WARNING, Certainty.CERTAIN) if late else (Status.OK, Certainty.LIKELY)
    return case.verdict(status, certainty, observed, expected, sentence)


def _measured(case: Case) -> str:
    known = tuple(one for one in case.starts if one.measured)
    seconds = [_lead_of(known)] if known else [one.seconds for one in _starts(case)]
    return f"; {number(max(seconds), 'seconds')} were measured" if seconds else ""


def _starts_word(count: float) -> str:
    return f"{count:.0f} start" if count == 1 else f"{count:.0f} starts"


def _times(restarts: float) -> str:
    return "one restart was seen" if restarts == 1 else f"{restarts:.0f} restarts were seen"
