"""Bands and events: readings and counts against fixed limits of the guide (guide 7.7, 9.3).

A limit is a threshold of the rule with the name `below`, `above`, `critical_below` or `critical_above`. No engine exposes
the overflow of experts (guide 5.4). Preemptions come in bursts: a finding ends once the last quarter of the window has none
(DESIGN 3.8). A hardware fault is a finding for the whole window, because nothing repairs itself (METRICS trap 16).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from rules.confidence import Certainty, poisson_lower_bound
from rules.methods.evidence import certain_if, exact_reading, join_names, range_reading
from rules.plan.load_bins import BinnedWindow
from rules.sizing import acceptance_from_mean_accepted, speculation_speed_up
from rules.telemetry import windows
from rules.telemetry.reading_methods import mean_level, ratio
from rules.telemetry.readings import families_of, read
from rules.telemetry.signals import BY_NAME, Gap, Missing, Reading, SignalKind, SignalValue
from rules.telemetry.wording import number, quantity
from rules.verdicts.context import (
    SEPARATE,
    RuleContext,
    is_persistent,
    read_plan_value,
    select_comparable,
    too_early,
    worst_gap,
)
from rules.verdicts.held_windows import HeldWindows, hold
from rules.verdicts.verdict import SEVERITY, RuleResult, Status, Unknown, Verdict

LIKELY_PERIODS = 2
"""Separate minutes (hours) outside that make a finding likely. SEPARATE make it certain."""

MOVED = 0.25
"""Relative difference of the last quarter from the whole above which the sentence has both numbers."""

POLLED = frozenset({"gpu_utilization_sampled", "gpu_power_watts"})
"""Gauges of a plain poll, which does not cover the time between two polls: `likely` at most (METRICS trap 15)."""


OF_QUANTILES = frozenset({"kv_residency_by_reuse"})
"""Signals computed from quantiles: only their bounds make a finding certain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BandThresholds:
    """Limits of a rule for a tier. None: no limit on that side."""

    below: float | None
    above: float | None
    critical_below: float | None
    critical_above: float | None

    @classmethod
    def from_context(cls, case: RuleContext) -> BandThresholds:
        names = ("below", "above", "critical_below", "critical_above")
        return cls(**{name: case.limit(name) if name in case.rule.thresholds else None for name in names})

    def status(self, value: float) -> Status:
        """Return the status of a value: outside the outer limits, outside the inner ones, or within."""
        if _is_outside(value, self.critical_below, self.critical_above):
            return Status.CRITICAL
        return Status.WARNING if _is_outside(value, self.below, self.above) else Status.OK

    def is_proven(self, found: Reading, status: Status) -> bool:
        """Return whether the bounds of a reading are outside the limits of `status`."""
        critical = status is Status.CRITICAL
        below = self.critical_below if critical else self.below
        above = self.critical_above if critical else self.above
        too_low = below is not None and found.high is not None and found.high < below
        too_high = above is not None and found.low is not None and found.low >= above
        return too_low or too_high


def _is_outside(value: float, below: float | None, above: float | None) -> bool:
    return (below is not None and value < below) or (above is not None and value > above)


def judge_band(case: RuleContext) -> RuleResult:
    """Compare the signal of the rule with its limits, over the minutes that its condition selects.

    Likely in two separate minutes, certain in three. A quantile is certain by the edge of its bucket, a plain poll never.
    """
    if case.rule.needs and not read_plan_value(case.context, case.rule.needs):
        return case.unknown(Gap.NOT_IN_PLAN, f"the plan has no {case.rule.needs}")
    if not any(one.window.covered_seconds > 0 for one in case.binned):
        return case.unknown(worst_gap(case.binned, windows.EVERYTHING), "nothing was seen in this time")
    held = hold(case.binned)
    counted = held.select(_select_loaded) if case.rule.serving_only else held
    if not counted:
        return case.unknown(Gap.NO_TRAFFIC, "no minute with traffic")
    found = _read_signal(case, counted)
    if isinstance(found, Missing):
        return case.unknown(found.gap, found.text or f"{case.rule.signal} is not known")
    if "minimum_requests" in case.rule.thresholds and found.n < case.limit("minimum_requests"):
        return case.too_few_requests(found.n, case.limit("minimum_requests"))
    limits = BandThresholds.from_context(case)
    if found.value is None:
        return _judge_bounds(case, found, limits)
    status = limits.status(found.value)
    if status is Status.OK:
        return _build_verdict(case, found, Status.OK, Certainty.CERTAIN, limits)
    last = _read_value(case, case.last_quarter(counted))
    if last is None:
        return case.unknown(Gap.NO_TRAFFIC, f"{case.rule.signal} is not known in the last quarter of the time")
    by_period = [_read_value(case, group) for group in case.periods(counted)]
    each = [value for value in by_period if value is not None]
    outside = sum(limits.status(value) is not Status.OK for value in each)
    if limits.status(last) is Status.OK:
        remark = "back within that at the end of the time"
        return _build_verdict(case, found, Status.OK, Certainty.CERTAIN, limits, remark)
    if outside < LIKELY_PERIODS:
        early = too_early(case, counted, last, by_period, lambda value: limits.status(value) is not Status.OK)
        if early is not None:
            return early
        remark = f"outside in at most one of its {case.periods_word}"
        return _build_verdict(case, found, Status.OK, Certainty.CERTAIN, limits, remark)
    if status is Status.CRITICAL and not is_persistent(
        last, each, lambda value: limits.status(value) is Status.CRITICAL
    ):
        status = Status.WARNING
    certainty = certain_if(outside >= SEPARATE and _is_proven(case, counted, found, status, limits))
    moved = abs(last - found.value) > MOVED * abs(found.value)
    remark = f"{number(last, case.rule.unit)} at the end of the time" if moved else ""
    return _build_verdict(case, found, status, certainty, limits, remark)


def _select_loaded(batch: HeldWindows) -> HeldWindows:
    """Return the windows with requests."""
    loaded = HeldWindows(one for one in batch if one.rps or one.in_system)
    return batch if len(loaded) == len(batch) else loaded


def _read_signal(case: RuleContext, binned: Sequence[BinnedWindow]) -> SignalValue:
    signal = BY_NAME[case.rule.signal]
    return read(signal, hold(binned).sum_families(families_of(signal)), case.context.basis)


def _read_value(case: RuleContext, binned: Sequence[BinnedWindow]) -> float | None:
    found = _read_signal(case, binned) if binned else None
    return found.value if isinstance(found, Reading) else None


def _is_proven(
    case: RuleContext, counted: Sequence[BinnedWindow], found: Reading, status: Status, limits: BandThresholds
) -> bool:
    """Return whether a persistent reading is certain: a quantile by the edge of its bucket, a plain poll never."""
    if case.rule.signal == "gpu_utilization" and any(
        one.window.sampled & POLLED & set(one.window.gauges) for one in counted
    ):
        return False
    of_quantiles = BY_NAME[case.rule.signal].how is SignalKind.QUANTILE or case.rule.signal in OF_QUANTILES
    return not of_quantiles or limits.is_proven(found, status)


def _judge_bounds(case: RuleContext, found: Reading, limits: BandThresholds) -> RuleResult:
    """Evaluate a reading without a best value: outside or within if both bounds are, else unknown."""
    for status in (Status.CRITICAL, Status.WARNING):
        if limits.is_proven(found, status):
            return _build_verdict(case, found, status, Certainty.LIKELY, limits)
    ends = [end for end in (found.low, found.high) if end is not None]
    if len(ends) == 2 and all(limits.status(end) is Status.OK for end in ends):
        return _build_verdict(case, found, Status.OK, Certainty.CERTAIN, limits)
    text = f"{case.rule.about} is only known to be {quantity(found, case.rule.unit)}"
    return case.unknown(Gap.NOT_EXPOSED, text)


def _build_verdict(
    case: RuleContext, found: Reading, status: Status, certainty: Certainty, limits: BandThresholds, remark: str = ""
) -> RuleResult:
    shown = quantity(found, case.rule.unit) if found.value is None else number(found.value, case.rule.unit)
    parts = (f"{case.rule.about} is {shown}", _describe_limits(limits, case.rule.unit), remark)
    sentence = "; ".join(filter(None, parts))
    expected = range_reading(limits.below or 0.0, limits.above, found.n)
    return case.verdict(status, certainty, found, expected, sentence)


def _describe_limits(limits: BandThresholds, unit: str) -> str:
    if limits.below is not None and limits.above is not None:
        return f"{number(limits.below, unit)} to {number(limits.above, unit)} is healthy"
    if limits.above is not None:
        return f"up to {number(limits.above, unit)} is healthy"
    return f"{number(limits.below or 0.0, unit)} or more is healthy"


def judge_experts(case: RuleContext) -> RuleResult:
    """Return the worst balance of experts of all replicas: the busiest GPU of each slows it down.

    From the engine's balance of each pass. Minutes with small batches are left out: their tokens fall unevenly by chance.
    """
    families = frozenset(BY_NAME[case.rule.signal].families)
    counting = [one for one in case.binned if one.window.counters.keys() >= families]
    if not counting:
        return case.unmeasured(min(families))
    least = case.limit("minimum_running")
    running = ((one, one.window.gauge("requests_running")) for one in counting)
    replicas = hold(one for one, gauge in running if gauge is not None and gauge.mean >= least).by_replica
    if not replicas:
        text = f"no minute with {least:.0f} requests in the batch: fewer fall unevenly by chance"
        return case.unknown(Gap.TOO_FEW_REQUESTS, text)
    results = {name: judge_band(replace(case, binned=group)) for name, group in replicas.items()}
    verdicts = {name: result for name, result in results.items() if isinstance(result, Verdict)}
    if not verdicts:
        return next(iter(results.values()))
    name, worst = max(verdicts.items(), key=lambda item: _rank(item[1]))
    return replace(worst, sentence=f"{worst.sentence}; on replica {name}") if name else worst


def _rank(verdict: Verdict) -> tuple[int, bool, float]:
    """Return the sort key of a verdict, the worst last."""
    value = getattr(verdict.observed, "value", None)
    return SEVERITY[verdict.status], verdict.certainty is Certainty.CERTAIN, -(1.0 if value is None else value)


SPECULATION = families_of(BY_NAME["tokens_per_round"]) | {"spec_draft_tokens", "spec_steps"}


def judge_acceptance(case: RuleContext) -> RuleResult:
    """Compare the acceptance with its limits. The details have the speed-up, where the plan has the step times."""
    result = judge_band(case)
    if isinstance(result, Unknown):
        return result
    return replace(result, details=(*result.details, *_describe_economics(case)))


def _describe_economics(case: RuleContext) -> tuple[str, ...]:
    """Return the speed-up over plain decoding, and the acceptance from which on drafts of this length pay.

    That is the lowest a at which k drafted tokens pay: a + a^2 + ... + a^k = k x draft step / verify step.
    """
    planned = case.context.plan.speculation if case.context.plan else None
    if planned is None or planned.draft_step_seconds is None or planned.verify_step_seconds is None:
        return ()
    total = hold(case.binned).sum_families(SPECULATION)
    tokens, drafted = read(BY_NAME["tokens_per_round"], total), ratio(total, "spec_draft_tokens", "spec_drafts")
    if isinstance(tokens, Missing) or tokens.value is None:
        return ()
    if isinstance(drafted, Missing):
        drafted = mean_level(total, "spec_steps")
    length = drafted.value if isinstance(drafted, Reading) and drafted.value else float(planned.draft_tokens)
    speed_up = speculation_speed_up(tokens.value, length, planned.draft_step_seconds, planned.verify_step_seconds)
    cost, drafts = planned.draft_step_seconds / planned.verify_step_seconds, max(1, round(length))
    pays = "it cannot pay at any acceptance: a draft takes as long as a step"
    if cost < 1:
        least = acceptance_from_mean_accepted(drafts * cost, drafts)
        pays = f"it pays from an acceptance of {number(least, 'ratio')} on"
    return (f"speculation runs at {speed_up:.2f}x plain decoding; {pays}",)


EVENTS, REQUESTS = "preemptions", "requests_finished"

BY_CODE = {"gpu_fault_events": "gpu_fault_events_by_code"}
"""Families whose events are also counted by code."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventCount:
    """Events, finished requests, and the replica-seconds in which events were observed."""

    events: float
    finished: float
    seconds: float

    def exceeds(self, limit: float) -> bool:
        """Return whether the best estimate exceeds `limit`. Events without finished requests exceed any limit."""
        return self.events > limit * self.finished

    def significantly_exceeds(self, limit: float) -> bool:
        """Return whether the 99.9 % lower bound of independent events (Poisson) exceeds `limit`."""
        return poisson_lower_bound(self.events) > limit * max(1.0, self.finished)

    def __str__(self) -> str:
        return f"{self.events:,.0f} preemptions for {self.finished:,.0f} finished requests"


def count_events(binned: Iterable[BinnedWindow]) -> EventCount:
    """Return the preemptions of the binned windows that count them."""
    seen = [s.window for s in binned if EVENTS in s.window.counters and REQUESTS in s.window.counters]
    return EventCount(
        events=sum(w.counters[EVENTS] for w in seen),
        finished=sum(w.counters[REQUESTS] for w in seen),
        seconds=sum(w.seconds_of(EVENTS) for w in seen),
    )


def judge_event_ratio(case: RuleContext) -> RuleResult:
    """Compare preemptions per finished request with the guide's two limits, at any load.

    Certain beyond chance (Poisson) and in separate minutes, because preemptions cluster.
    """
    found = ratio(hold(case.binned).sum_families((EVENTS, REQUESTS)), EVENTS, REQUESTS)
    total = count_events(case.binned)
    if isinstance(found, Missing) and total.events <= 0:
        return case.unknown(found.gap, f"no {case.rule.signal}")
    warning, critical = case.limit("warning"), case.limit("critical")
    if total.finished < case.limit("minimum_requests") and not total.significantly_exceeds(warning):
        return case.too_few_requests(total.finished, case.limit("minimum_requests"))
    status, certainty = _compute_status(case, case.binned, warning)
    if isinstance(status, Unknown):
        return status
    if status is Status.WARNING and total.exceeds(critical):
        status = Status.CRITICAL
    claim = f"{total.events:,.0f} preemptions while no request finished"
    if total.finished > 0:
        claim = f"Preemptions are {total.events / total.finished:.1%} of finished requests"
    limit = f"above {critical:.0%} is degraded" if status is Status.CRITICAL else f"below {warning:.0%} is healthy"
    sentence = f"{claim}; {_describe_end(status, total.exceeds(warning)) or limit}"
    expected = range_reading(0.0, warning, total.finished)
    return case.verdict(status, certainty, found, expected, sentence, details=(str(total),))


def judge_excess(case: RuleContext) -> RuleResult:
    """Find more preemptions per finished request than the benchmark at equal load, beyond the allowed points.

    Certain as `judge_event_ratio`, if enough requests stand behind the points of most of the load.
    """
    found = select_comparable(case, (EVENTS, REQUESTS))
    if isinstance(found, Unknown):
        return found
    planned = supported = 0.0
    used: list[BinnedWindow] = []
    for bin, one in hold(found.binned).by_load_bin(found.curve).items():
        wanted = found.curve.expectation(bin, case.rule.signal, one.rps, one.in_system)
        if wanted is None:
            continue
        finished = count_events(one.binned).finished
        planned += finished * max(wanted.lower, wanted.upper)
        supported += finished if wanted.requests >= case.limit("supported_requests") else 0.0
        used.extend(one.binned)
    if not used:
        return case.unknown(Gap.NOT_IN_PLAN, f"the benchmark has no {case.rule.signal} at this load")
    total = count_events(used)
    if total.finished < case.limit("minimum_requests"):
        return case.too_few_requests(total.finished, case.limit("minimum_requests"))
    usual, points = planned / total.finished, case.limit("points")
    status, certainty = _compute_status(case, used, usual + points)
    if isinstance(status, Unknown):
        return status
    if status is not Status.OK and supported < total.finished / 2:
        certainty = Certainty.LIKELY
    value = total.events / total.finished
    end = _describe_end(status, value > usual + points)
    sentence = f"Preemptions are {value:.1%} of finished requests; the benchmark has {usual:.1%} at this load"
    sentence = f"{sentence}; {end}" if end else sentence
    details = (str(total), f"{points * 100:.0f} points more than the benchmark are allowed")
    observed, expected = (exact_reading(each, total.finished) for each in (value, usual))
    return case.verdict(status, certainty, observed, expected, sentence, details=details)


def _compute_status(
    case: RuleContext, binned: Sequence[BinnedWindow], limit: float
) -> tuple[Status | Unknown, Certainty]:
    """Return status and certainty. Certain needs the bound and persistence, because events cluster."""
    if not count_events(binned).exceeds(limit):
        return Status.OK, Certainty.CERTAIN
    last = count_events(case.last_quarter(binned))
    if last.seconds <= 0:
        reason = worst_gap(case.last_quarter(case.binned), EVENTS)
        return case.unknown(reason, "preemptions were not seen in the last quarter of the time"), Certainty.LIKELY
    if last.events <= 0:
        return Status.OK, Certainty.CERTAIN
    each = (count_events(group) for group in case.periods(binned))
    is_proven = count_events(binned).significantly_exceeds(limit)
    return Status.WARNING, certain_if(is_proven and is_persistent(last, each, lambda part: part.exceeds(limit)))


def _describe_end(status: Status, exceeds: bool) -> str:
    return "none in the last quarter of the time" if status is Status.OK and exceeds else ""


def judge_faults(case: RuleContext) -> RuleResult:
    """Find any event in the window. The result is certain, because events are counted one by one."""
    family = case.rule.family
    total = hold(case.binned).sum_families((family, BY_CODE.get(family, family)))
    if family not in total.counters:
        return case.unknown(total.explain_missing(family), f"{case.rule.about}: not measured here")
    count = total.counters[family]
    status = Status.WARNING if count >= case.limit("events") else Status.OK
    where = sorted({one.replica for one in case.binned if one.window.counters.get(family) and one.replica})
    minutes = math.ceil(hold(case.binned).watched_seconds / windows.MINUTE_SECONDS)
    sentence = f"{case.rule.about}: {count:.0f} in {minutes:d} min"
    sentence += f" on {join_names(where)}" if where and status is not Status.OK else ""
    observed, expected = exact_reading(count, count), exact_reading(0.0, count)
    stem, counts = f"{BY_CODE.get(family)}/", sorted(total.counters.items())
    codes = [f"{name.removeprefix(stem)} x {n:.0f}" for name, n in counts if name.startswith(stem) and n]
    return case.verdict(status, Certainty.CERTAIN, observed, expected, sentence, details=(join_names(codes),))
