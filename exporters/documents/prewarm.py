"""Pre-warming recommendation as text and JSON: replica count, reason, schedule of the day and past worth.

The module serves `sizewatch prewarm` and holds its records. Numbers come from `forecast/`; only differences and shares
are computed here. Manifests are in `exporters.autoscaling.manifests`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from exporters.documents.prewarm_value import (
    Counted,
    DemandParts,
    Highest,
    PrewarmValue,
    bounds_words,
    compare_with_peak,
    count_words,
    level,
    parts_of,
    parts_sentence,
    worth_json,
    worth_lines,
)
from exporters.render.text import copy_fields, format_duration, format_local, text_table, wrap
from forecast.capacity.drain import ROUTING_SECONDS, SHUTDOWN_MARGIN_SECONDS, DrainTime
from forecast.capacity.prewarm import DecisionBasis, ScheduleStep, merge_steps
from rules.telemetry.wording import format_count, number

OLD_SECONDS = 3600.0
"""Maximum age in seconds of the demand behind a schedule. An older schedule may follow a day that went otherwise."""


BECAUSE: Mapping[DecisionBasis, str] = {
    DecisionBasis.FORECAST: "the demand expected then",
    DecisionBasis.NOW: "what arrives now",
    DecisionBasis.MINIMUM: "the minimum warm count",
    DecisionBasis.INCIDENT: "an open incident of the SLO: no replica goes while it lasts",
    DecisionBasis.HOLD: "the hold before scaling down",
}
"""Basis of a count, in the words of its sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NextStep:
    """Next count of the schedule, from `start` (unix seconds) on, enough with `certainty` (0-1).

    `is_soon`: it is higher than the recommended count, and starts at most a lead and a bin from now.
    """

    start: float
    replicas: int
    certainty: float
    is_soon: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """Replicas that must be warm `lead_seconds` after `made_at` (unix seconds), and their basis.

    Every surface prints its `sentence`.

    `quantile_rps` is the demand (arriving work per second, in requests of the lengths that capacity counts) not
    exceeded with `certainty` (0-1), None without a forecast. `expected_rps` is the demand without margin. Both include
    the `event_factor` of known events. `now_rps` arrives now. `now_requests` and `expected_requests` are the requests
    themselves, `weighing` says in words what makes them work.

    `usable_rps` is the capacity of a replica by `usable_source`, between `usable_low` and `usable_high` (None: open).
    `count` explains the replica count. `for_forecast`, `needed_now`, `minimum_warm` and `held` are the replicas by each
    reason. `ready` replicas are up, None if unknown. `next_step` is the next change of the schedule.

    `coverage` is the share of past targets at or below their 95 % quantile. `error_ratio` is the error relative to the
    method `naive`. None means not counted.
    """

    tier: str
    made_at: float
    zone: str
    replicas: int
    decided_by: DecisionBasis
    lead_seconds: float
    lead_source: str
    certainty: float
    quantile_rps: float | None
    now_rps: float
    usable_rps: float
    usable_source: str
    needed_now: int
    minimum_warm: int
    method: str
    count: Counted
    usable_low: float | None = None
    usable_high: float | None = None
    expected_rps: float | None = None
    event_factor: float = 1.0
    for_forecast: int | None = None
    held: int = 0
    ready: int | None = None
    next_step: NextStep | None = None
    now_requests: float | None = None
    expected_requests: float | None = None
    weighing: str = ""
    coverage: float | None = None
    error_ratio: float | None = None
    naive: str = ""

    @property
    def target_time(self) -> float:
        """Return the time at which the replicas must be warm, in unix seconds."""
        return self.made_at + self.lead_seconds

    @property
    def parts(self) -> DemandParts | None:
        """Return the parts of the demand, None without a forecast."""
        return parts_of(self.quantile_rps, self.certainty, self.expected_rps, self.event_factor)

    def with_present(self, ready: int | None, *, is_burning: bool) -> Recommendation:
        """Return the decision for the replicas that are up (None: unknown). While the SLO is broken none of them may go."""
        if not is_burning or ready is None or ready <= self.replicas:
            return replace(self, ready=ready)
        full = self.count.demand_rps / self.usable_rps
        count = replace(
            self.count, utilization=full / ready, utilization_one_lost=full / (ready - 1) if ready > 1 else None
        )
        return replace(self, ready=ready, replicas=ready, decided_by=DecisionBasis.INCIDENT, count=count)

    @property
    def action(self) -> str:
        """Return what to do with the ready replicas in words."""
        if self.ready is None:
            return "how many are ready is not known"
        soon = self.next_step.replicas if self.next_step is not None and self.next_step.is_soon else 0
        if self.ready < self.replicas:
            return f"start {self.replicas - self.ready} now"
        if self.ready > max(self.replicas, soon):
            return f"{self.ready - max(self.replicas, soon)} may go"
        return "keep them" if self.ready > self.replicas else "enough for that"

    @property
    def sentence(self) -> str:
        """Return the decision: replica count, time, reason, what to do, and the next change of the schedule."""
        is_now = self.quantile_rps is None or self.decided_by is DecisionBasis.NOW
        demand = f"{level(self.certainty)} of demand {number(self.quantile_rps or 0.0, 'per_second')}"
        if is_now:
            demand = f"demand now {number(self.now_rps, 'per_second')}"
        if self.quantile_rps is None:
            demand = f"no forecast: {demand}"
        why = f"lead {self.lead_seconds:.0f} s, {demand} at {number(self.usable_rps, 'per_second')} usable a replica"
        wanted = f"{format_count(self.replicas, 'replica')} wanted at {_clock(self.target_time, self.zone)}"
        are = "" if self.ready is None else f"{self.ready} {'is' if self.ready == 1 else 'are'} ready: "
        parts = [f"{wanted} because of {BECAUSE[self.decided_by]} ({why})", are + self.action]
        if self.next_step is not None:
            begun = self.next_step.start <= self.made_at
            when = "now" if begun else f"from {_clock(self.next_step.start, self.zone)}"
            sure = f"{self.next_step.certainty:.0%} certainty"
            parts.append(f"{self.next_step.replicas} {when} by the schedule, of {sure}")
        return "; ".join(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prewarm:
    """Pre-warming report of a tier. Times are unix seconds.

    `schedule` runs from its first step to `until` and suffices in each bin with `schedule_certainty` (0-1). Demand is
    known up to `seen_until`. `highest` is its highest minute of the last week. `as_of` is the end of a trace used as
    now. `reason` explains a missing part. `drain` is the time that requests need to end, or why it is not known, and
    `loss` the cost of a lost replica; both are of the last week.
    """

    tier: str
    zone: str
    recommendation: Recommendation | None
    schedule: tuple[ScheduleStep, ...] = ()
    schedule_certainty: float | None = None
    until: float | None = None
    seen_until: float | None = None
    highest: Highest | None = None
    as_of: float | None = None
    worth: PrewarmValue | None = None
    reason: str = ""
    drain: DrainTime | str = "a trace has no durations of requests"


def without_old_schedule(report: Prewarm, now: float) -> Prewarm:
    """Return the report without its schedule if its demand is over OLD_SECONDS old at `now`."""
    seen = report.seen_until
    if not report.schedule or (seen is not None and now - seen <= OLD_SECONDS):
        return report
    age = "not known" if seen is None else f"{format_duration(now - seen)} old"
    why = f"the newest demand of the tier is {age}: no schedule is made of it"
    decided = None if report.recommendation is None else replace(report.recommendation, next_step=None)
    return replace(report, recommendation=decided, schedule=(), schedule_certainty=None, until=None, reason=why)


def with_next_step(report: Prewarm, bin_seconds: float) -> Prewarm:
    """Return the report with the next change of its schedule in its recommendation.

    The highest of the steps that ask for more soon comes first, else the first step after the target that asks for
    another count.
    """
    recommendation, steps = report.recommendation, report.schedule
    if recommendation is None or report.schedule_certainty is None:
        return report
    ends = [*(step.start for step in steps[1:]), math.inf]
    ahead = [step for step, end in zip(steps, ends, strict=True) if end > recommendation.made_at]
    soon = [
        step
        for step in ahead
        if step.replicas > recommendation.replicas and step.start <= recommendation.target_time + bin_seconds
    ]
    later = [
        step for step in ahead if step.replicas != recommendation.replicas and step.start > recommendation.target_time
    ]
    schedule_step = max(soon, key=lambda step: step.replicas) if soon else next(iter(later), None)
    if schedule_step is None:
        return report
    named = NextStep(
        start=schedule_step.start,
        replicas=schedule_step.replicas,
        certainty=report.schedule_certainty,
        is_soon=bool(soon),
    )
    return replace(report, recommendation=replace(recommendation, next_step=named))


def prewarm_text(report: Prewarm, *, explain: bool = False) -> str:
    """Return the recommendation with its reason and schedule. Add the past worth with `explain`."""
    parts = [_trace_end(report), _recommended(report), _schedule(report)]
    if explain:
        parts.append(
            worth_lines(report.worth) if report.worth else [f"What it was worth cannot be told: {_reason(report)}"]
        )
    return "\n\n".join("\n".join(part) for part in parts if part)


def _trace_end(report: Prewarm) -> list[str]:
    if report.as_of is None or report.recommendation is None:
        return []
    end = format_local(report.as_of, report.zone, "%Y-%m-%d %H:%M")
    return [f"As of the end of the trace, {end} ({report.zone}): this is not live."]


def _recommended(report: Prewarm) -> list[str]:
    recommendation = report.recommendation
    if recommendation is None:
        return wrap(f"{report.tier}: no recommendation. {_reason(report)}", "", "  ")
    bounds = bounds_words(recommendation.usable_rps, recommendation.usable_low, recommendation.usable_high)
    rows = [
        ("demand", _demand(report, recommendation)),
        ("work", recommendation.weighing),
        ("lead", f"{recommendation.lead_seconds:.0f} s: {recommendation.lead_source}"),
        (
            "usable",
            f"{number(recommendation.usable_rps, 'per_second')} a replica{bounds}: {recommendation.usable_source}",
        ),
        (
            "count",
            f"{count_words(recommendation.replicas, recommendation.count)}; no safety factor: the demand is a quantile",
        ),
        (
            "never below",
            (
                f"{recommendation.needed_now} for {number(recommendation.now_rps, 'per_second')} now, "
                f"{recommendation.minimum_warm} minimum warm, {recommendation.held} held"
            ),
        ),
        ("forecast", f"{recommendation.method}; {_record(recommendation)}"),
        ("scale down", _drain(report.drain)),
        ("worth", "" if report.worth is None else f"{report.worth.short_sentence} (--explain shows the numbers)"),
    ]
    lines = wrap(f"{report.tier}: {recommendation.sentence}", "", "  ")
    for name, text in filter(lambda row: row[1], rows):
        lines += wrap(text, f"  {name:11}  ", " " * 15)
    return lines


def _drain(drain: DrainTime | str) -> str:
    if isinstance(drain, str):
        return ""
    parts = f"{ROUTING_SECONDS} s preStop, {drain.seconds} s drain, {SHUTDOWN_MARGIN_SECONDS} s margin"
    return (
        f"99% of requests end within {drain.seconds} s; terminationGracePeriodSeconds {drain.grace_seconds} ({parts})"
    )


def _demand(report: Prewarm, recommendation: Recommendation) -> str:
    parts = recommendation.parts
    if parts is None:
        return ""
    beside = compare_with_peak(parts, report.highest, report.zone, report.worth.covered_ratio if report.worth else None)
    text = (
        parts_sentence(parts)
        if recommendation.for_forecast is None
        else f"{parts_sentence(parts)}: {format_count(recommendation.for_forecast, 'replica')}"
    )
    return f"{text}; {beside}" if beside else text


def _record(recommendation: Recommendation) -> str:
    covered = (
        "coverage not known yet"
        if recommendation.coverage is None
        else f"{recommendation.coverage:.1%} at or below the 95% quantile"
    )
    if recommendation.error_ratio is None:
        return f"{covered}, not compared yet"
    return f"{covered}, error {recommendation.error_ratio:.2f} of {recommendation.naive}"


def _schedule(report: Prewarm) -> list[str]:
    if not report.schedule:
        return []
    steps = merge_steps(report.schedule)
    ends = [*(step.start for step in steps[1:]), report.until]
    rows = [
        (
            _clock(step.start, report.zone),
            "" if end is None else _end(step.start, end, report.zone),
            str(step.replicas),
            number(step.demand_rps, "per_second"),
            "-" if step.expected_rps is None else number(step.expected_rps, "per_second"),
        )
        for step, end in zip(steps, ends, strict=True)
    ]
    table = text_table(("warm from", "to", "replicas", "for up to", "expected"), rows, words=2)
    sure = "" if report.schedule_certainty is None else f", enough with {report.schedule_certainty:.0%} certainty"
    lines = [f"Schedule ({report.zone}){sure}", *(f"  {line}" for line in table)]
    return lines + _most(report, max(steps, key=lambda step: step.demand_rps))


def _most(report: Prewarm, step: ScheduleStep) -> list[str]:
    """Return the parts of the schedule's highest demand."""
    parts = parts_of(step.demand_rps, report.schedule_certainty, step.expected_rps, step.event_factor)
    if parts is None or step.peak is None:
        return []
    text = f"most at {_clock(step.peak, report.zone)}: {parts_sentence(parts)}"
    beside = compare_with_peak(parts, report.highest, report.zone, None)
    return wrap(f"{text}; {beside}" if beside else text, "  ", "    ")


def _reason(report: Prewarm) -> str:
    return report.reason or "The forecast has not run yet."


def _clock(t: float, zone: str) -> str:
    return format_local(t, zone, "%H:%M")


def _end(start: float, end: float, zone: str) -> str:
    """Return the end of a step. A step of a whole day would seem to end at its begin."""
    begins, ends = _clock(start, zone), _clock(end, zone)
    return f"{ends} next day" if begins == ends else ends


def prewarm_json(report: Prewarm) -> dict[str, Any]:
    """Return the report as JSON. Times are unix seconds, unknown values are null."""
    recommendation = report.recommendation
    return {
        "schema": 1,
        **copy_fields(report, "tier", "zone"),
        "recommendation": None
        if recommendation is None
        else {**asdict(recommendation), "at": recommendation.target_time, "sentence": recommendation.sentence},
        "schedule": [asdict(step) for step in merge_steps(report.schedule)],
        "schedule_until": report.until,
        "schedule_certainty": report.schedule_certainty,
        "seen_until": report.seen_until,
        "highest": None if report.highest is None else asdict(report.highest),
        "as_of": report.as_of,
        "worth": None if report.worth is None else worth_json(report.worth),
        "reason": report.reason,
        "drain": None
        if isinstance(report.drain, str)
        else {"e2e_p99": asdict(report.drain.e2e_p99), **copy_fields(report.drain, "seconds", "grace_seconds")},
        "drain_gap": report.drain if isinstance(report.drain, str) else "",
    }
