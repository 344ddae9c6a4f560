"""Bands and events: readings and counts against fixed limits of the guide (guide 7.7, 9.3).

A limit is a threshold of the rule with the name `below`, `above`, `critical_below` or `critical_above`. Preemptions come in
bursts: a finding ends once the last quarter has none (DESIGN 3.8). A hardware fault lasts the whole window (METRICS trap 16).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from rules.confidence import Certainty, poisson_lower_bound
from rules.methods.evidence import (
    best_value,
    exact_reading,
    join_names,
    measure_parts,
    narrow_pool,
    range_reading,
    read_signal,
    select_where,
)
from rules.plan.load_bins import BinnedWindow
from rules.sizing import acceptance_from_mean_accepted, speculation_speed_up
from rules.telemetry import windows
from rules.telemetry.gpu_windows import SLOWER
from rules.telemetry.reading_methods import mean_level, ratio
from rules.telemetry.readings import families_of, read
from rules.telemetry.signals import BY_NAME, Gap, Missing, Reading, SignalKind
from rules.telemetry.wording import number, quantity
from rules.verdicts.context import (
    SEPARATE,
    RuleContext,
    is_persistent,
    select_comparable,
    too_early,
    worst_gap,
)
from rules.verdicts.held_windows import HeldWindows, hold
from rules.verdicts.verdict import RuleResult, Status, Unknown, Verdict, rank_verdict

LIKELY_PERIODS = 2
"""Separate minutes (hours) outside that make a finding likely. SEPARATE make it certain."""

POLLED = frozenset({"gpu_utilization_sampled", "gpu_power_watts"})
"""Gauges of a plain poll: `likely` at most (METRICS trap 15)."""


@dataclass(frozen=True, slots=True)
class BandThresholds:
    """Lowest and highest value that is healthy, and that is not critical; infinite: no limit."""

    context: RuleContext
    healthy: tuple[float, float]
    bearable: tuple[float, float]

    @classmethod
    def from_context(cls, context: RuleContext) -> BandThresholds:
        ends = {"below": -math.inf, "above": math.inf, "critical_below": -math.inf, "critical_above": math.inf}
        ends |= {name: context.limit(name) for name in ends.keys() & context.rule.thresholds.keys()}
        return cls(context, (ends["below"], ends["above"]), (ends["critical_below"], ends["critical_above"]))

    def status(self, value: float) -> Status:
        """Return the status of a value: outside the outer limits, outside the inner ones, or within."""
        if value < self.bearable[0] or value > self.bearable[1]:
            return Status.CRITICAL
        return Status.WARNING if value < self.healthy[0] or value > self.healthy[1] else Status.OK

    def is_outside(self, value: float) -> bool:
        return self.status(value) is not Status.OK

    def is_proven(self, reading: Reading, status: Status) -> bool:
        """Return whether the bounds of a reading are outside the limits of `status`."""
        lowest, highest = self.bearable if status is Status.CRITICAL else self.healthy
        too_low = reading.high is not None and reading.high < lowest
        return too_low or (reading.low is not None and reading.low >= highest)

    def report(self, reading: Reading, status: Status, *, certain: bool = True, remark: str = "") -> Verdict:
        """Return the verdict of a reading, with what is healthy."""
        rule, (lowest, highest) = self.context.rule, self.healthy
        shown = quantity(reading, rule.unit) if reading.value is None else number(reading.value, rule.unit)
        low, high = max(lowest, 0.0), highest if math.isfinite(highest) else None
        healthy = f"{number(low, rule.unit)} or more is healthy"
        if high is not None:
            start = f"{number(lowest, rule.unit)} to" if math.isfinite(lowest) else "up to"
            healthy = f"{start} {number(high, rule.unit)} is healthy"
        sentence = "; ".join(filter(None, (f"{rule.about} is {shown}", healthy, remark)))
        wanted = range_reading(low, high, reading.n)
        return self.context.verdict(status, Certainty.of(certain), reading, wanted, sentence)


def judge_band(context: RuleContext) -> RuleResult:
    """Compare the signal of the rule with its limits, over the minutes that its condition selects."""
    if not any(binned.window.covered_seconds > 0 for binned in context.binned):
        return context.unknown(worst_gap(context.binned, windows.EVERYTHING), "nothing was seen in this time")
    if context.rule.signal == "prefix_hit_ratio":
        context = narrow_pool(context, "prefill")
    counted = hold(context.binned)
    if context.rule.serving_only:
        counted = select_where(counted, lambda binned: binned.rps or binned.in_system)
    if not counted:
        return context.unknown(Gap.NO_TRAFFIC, "no minute with traffic")
    reading = read_signal(context, counted)
    if isinstance(reading, Missing):
        return context.unknown(reading.gap, reading.text or f"{context.rule.about} is not known")
    if "minimum_requests" in context.rule.thresholds and reading.n < context.limit("minimum_requests"):
        return context.too_few_requests(reading.n, context.limit("minimum_requests"))
    limits = BandThresholds.from_context(context)
    if reading.value is None:
        return _judge_bounds(reading, limits)
    status, signal = limits.status(reading.value), BY_NAME[context.rule.signal]
    if status is Status.OK:
        if signal.name == "gpu_throttled_ratio" and reading.high is None and reading.low is not None:
            return _judge_bounds(replace(reading, value=None), limits)
        return limits.report(reading, Status.OK)
    last, each = measure_parts(context, lambda group: best_value(read_signal(context, group)), counted)
    if last is None:
        return context.unknown(Gap.NO_TRAFFIC, f"{context.rule.about} is not known in the last quarter of the time")
    outside = sum(value is not None and limits.is_outside(value) for value in each)
    if not limits.is_outside(last) or outside < LIKELY_PERIODS:
        early = too_early(context, counted, last, each, limits.is_outside)
        if early is not None:
            return early
        remark = "back within that at the end of the time"
        if limits.is_outside(last):
            remark = f"outside in at most one of its {context.periods_word}"
        return limits.report(reading, Status.OK, remark=remark)
    if not is_persistent(last, each, lambda value: limits.status(value) is status):
        status = Status.WARNING
    is_sure = outside >= SEPARATE
    if signal.name == "gpu_utilization":
        is_sure &= not any(binned.window.sampled & POLLED & set(binned.window.gauges) for binned in counted)
    if signal.how is SignalKind.QUANTILE or signal.name == "kv_residency_by_reuse":
        is_sure &= limits.is_proven(reading, status)
    remark = ""
    if signal.name == "gpu_throttled_ratio":
        heat, board = (hold(counted).sum_families(SLOWER).counters.get(name, 0.0) for name in SLOWER)
        remark = f"{'heat' if heat >= board else 'the board'} holds the clocks down"
    return limits.report(reading, status, certain=is_sure, remark=remark)


def _judge_bounds(reading: Reading, limits: BandThresholds) -> RuleResult:
    """Evaluate a reading without a best value: outside or within if both bounds are, else unknown."""
    for status in (Status.CRITICAL, Status.WARNING):
        if limits.is_proven(reading, status):
            return limits.report(reading, status, certain=False)
    ends = [end for end in (reading.low, reading.high) if end is not None]
    if len(ends) == 2 and all(limits.status(end) is Status.OK for end in ends):
        return limits.report(reading, Status.OK)
    rule = limits.context.rule
    return limits.context.unknown(Gap.NOT_EXPOSED, f"{rule.about} is only known to be {quantity(reading, rule.unit)}")


def judge_experts(context: RuleContext) -> RuleResult:
    """Return the worst balance of experts of all replicas, without small batches."""
    families = frozenset(BY_NAME[context.rule.signal].families)
    counting = [binned for binned in context.binned if binned.window.counters.keys() >= families]
    if not counting:
        return context.unmeasured(min(families))
    least = context.limit("minimum_running")
    running = ((binned, binned.window.gauge("requests_running")) for binned in counting)
    replicas = hold(binned for binned, gauge in running if gauge is not None and gauge.mean >= least).by_replica
    if not replicas:
        text = f"no minute with {least:.0f} requests in the batch: fewer fall unevenly by chance"
        return context.unknown(Gap.TOO_FEW_REQUESTS, text)
    return _find_worst(context, replicas)


def judge_worst_replica(context: RuleContext) -> RuleResult:
    """Return the worst result of all replicas: a tier's mean would hide a hot node."""
    families = frozenset(BY_NAME[context.rule.signal].families)
    measuring = (s for s in context.binned if not families.isdisjoint((*s.window.counters, *s.window.gauges)))
    return _find_worst(context, hold(measuring).by_replica)


def _find_worst(context: RuleContext, replicas: Mapping[str | None, HeldWindows]) -> RuleResult:
    results = {name: judge_band(replace(context, binned=group)) for name, group in replicas.items()}
    verdicts = {name: result for name, result in results.items() if isinstance(result, Verdict)}
    if not verdicts:
        return next(iter(results.values()), judge_band(context))
    sign = 1.0 if "above" in context.rule.thresholds else -1.0

    def rank(name: str | None) -> tuple[int, bool, int, float]:
        value = best_value(verdicts[name].observed)
        return *rank_verdict(verdicts[name]), sign * (1.0 if value is None else value)

    worst = max(verdicts, key=rank)
    sentence = verdicts[worst].sentence
    return replace(verdicts[worst], sentence=f"{sentence}; on replica {worst}" if worst else sentence)


def judge_acceptance(context: RuleContext) -> RuleResult:
    """Compare the acceptance with its limits. The details have the speed-up if planned."""
    result = judge_band(context)
    if isinstance(result, Unknown):
        return result
    return replace(result, details=(*result.details, *_describe_economics(context)))


def _describe_economics(context: RuleContext) -> tuple[str, ...]:
    """Return the speed-up over plain decoding, and the lowest acceptance at which k drafted tokens pay.

    That is the a with a + a^2 + ... + a^k = k x draft step / verify step.
    """
    planned = context.tier.plan.speculation if context.tier.plan else None
    if planned is None or planned.draft_step_seconds is None or planned.verify_step_seconds is None:
        return ()
    signal = BY_NAME["tokens_per_round"]
    total = hold(context.binned).sum_families(families_of(signal) | {"spec_draft_tokens", "spec_steps"})
    tokens, drafted = read(signal, total), ratio(total, "spec_draft_tokens", "spec_drafts")
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
ENDED = "none in the last quarter of the time"


class EventCount(NamedTuple):
    """Preemptions, finished requests, and the replica-seconds in which preemptions were observed."""

    events: float
    finished: float
    seconds: float

    def exceeds(self, limit: float) -> bool:
        """Return whether the best estimate exceeds `limit`, as events without requests do."""
        return self.events > limit * self.finished

    def significantly_exceeds(self, limit: float) -> bool:
        """Return whether the 99.9 % lower bound of independent events (Poisson) exceeds `limit`."""
        return poisson_lower_bound(self.events) > limit * max(1.0, self.finished)

    @property
    def words(self) -> str:
        return f"{self.events:,.0f} preemptions for {self.finished:,.0f} finished requests"


def count_events(binned: Iterable[BinnedWindow]) -> EventCount:
    """Return the preemptions of the binned windows that count them."""
    seen = [s.window for s in binned if EVENTS in s.window.counters and REQUESTS in s.window.counters]
    events, finished = (sum(w.counters[family] for w in seen) for family in (EVENTS, REQUESTS))
    return EventCount(events, finished, sum(w.seconds_of(EVENTS) for w in seen))


def judge_event_ratio(context: RuleContext) -> RuleResult:
    """Compare preemptions per finished request with the guide's two limits. Certain beyond chance."""
    reading = ratio(hold(context.binned).sum_families((EVENTS, REQUESTS)), EVENTS, REQUESTS)
    total = count_events(context.binned)
    if isinstance(reading, Missing) and total.events <= 0:
        return context.unknown(reading.gap, f"no {context.rule.signal}")
    warning, critical = context.limit("warning"), context.limit("critical")
    if total.finished < context.limit("minimum_requests") and not total.significantly_exceeds(warning):
        return context.too_few_requests(total.finished, context.limit("minimum_requests"))
    graded = _grade_events(context, context.binned, warning)
    if isinstance(graded, Unknown):
        return graded
    status, certainty = graded
    limit = f"below {warning:.0%} is healthy"
    if status is Status.OK and total.exceeds(warning):
        limit = ENDED
    elif status is Status.WARNING and total.exceeds(critical):
        status, limit = Status.CRITICAL, f"above {critical:.0%} is degraded"
    claim = f"{total.events:,.0f} preemptions while no request finished"
    if total.finished > 0:
        claim = f"Preemptions are {total.events / total.finished:.1%} of finished requests"
    expected = range_reading(0.0, warning, total.finished)
    return context.verdict(status, certainty, reading, expected, f"{claim}; {limit}", details=(total.words,))


def judge_excess(context: RuleContext) -> RuleResult:
    """Find more preemptions per finished request than the benchmark at equal load."""
    comparison = select_comparable(context, (EVENTS, REQUESTS))
    if isinstance(comparison, Unknown):
        return comparison
    planned = supported = 0.0
    used: list[BinnedWindow] = []
    for bin, load_bin in hold(comparison.binned).by_load_bin(comparison.curve).items():
        wanted = comparison.curve.expectation(bin, context.rule.signal, load_bin.rps, load_bin.in_system)
        if wanted is not None:
            finished = count_events(load_bin.binned).finished
            planned += finished * wanted.high
            supported += finished if wanted.requests >= context.limit("supported_requests") else 0.0
            used.extend(load_bin.binned)
    if not used:
        return context.unknown(Gap.NOT_IN_PLAN, f"the benchmark has no {context.rule.signal} at this load")
    total = count_events(used)
    if total.finished < context.limit("minimum_requests"):
        return context.too_few_requests(total.finished, context.limit("minimum_requests"))
    usual, points = planned / total.finished, context.limit("points")
    graded = _grade_events(context, used, usual + points)
    if isinstance(graded, Unknown):
        return graded
    status, certainty = graded
    if status is not Status.OK and supported < total.finished / 2:
        certainty = Certainty.LIKELY
    value = total.events / total.finished
    sentence = f"Preemptions are {value:.1%} of finished requests; the benchmark has {usual:.1%} at this load"
    sentence += f"; {ENDED}" if status is Status.OK and value > usual + points else ""
    details = (total.words, f"{points * 100:.0f} points more than the benchmark are allowed")
    observed, expected = (exact_reading(each, total.finished) for each in (value, usual))
    return context.verdict(status, certainty, observed, expected, sentence, details=details)


def _grade_events(
    context: RuleContext, binned: Sequence[BinnedWindow], limit: float
) -> tuple[Status, Certainty] | Unknown:
    """Return status and certainty. Certain needs the bound and persistence, because events cluster."""
    whole = count_events(binned)
    if not whole.exceeds(limit):
        return Status.OK, Certainty.CERTAIN
    last, each = measure_parts(context, count_events, binned)
    if last.seconds <= 0:
        reason = worst_gap(context.last_quarter(context.binned), EVENTS)
        return context.unknown(reason, "preemptions were not seen in the last quarter of the time")
    if last.events <= 0:
        return Status.OK, Certainty.CERTAIN
    lasts = is_persistent(last, each, lambda part: part.exceeds(limit))
    return Status.WARNING, Certainty.of(lasts and whole.significantly_exceeds(limit))


def judge_faults(context: RuleContext) -> RuleResult:
    """Find any event in the window. The result is certain, because events are counted one by one."""
    family = context.rule.family
    total = hold(context.binned).sum_families((family, f"{family}_by_code"))
    if family not in total.counters:
        return context.unknown(total.explain_missing(family), f"{context.rule.about}: not measured here")
    count = total.counters[family]
    status = Status.WARNING if count >= context.limit("events") else Status.OK
    seen = (binned for binned in context.binned if binned.window.counters.get(family))
    where = sorted({binned.replica for binned in seen if binned.replica})
    seconds = hold(context.binned).watched_seconds
    sentence = f"{context.rule.about}: {count:.0f}"
    # An engine whose start is not known has a life of unknown length, which stands as a second.
    if seconds >= windows.MINUTE_SECONDS:
        sentence += f" in {math.ceil(seconds / windows.MINUTE_SECONDS):d} min"
    sentence += f" on {join_names(where)}" if where and status is not Status.OK else ""
    observed, expected = exact_reading(count, count), exact_reading(0.0, count)
    counts = {name.rpartition("/")[2]: n for name, n in sorted(total.counters.items()) if n and name != family}
    details = (join_names([f"{code} x {n:.0f}" for code, n in counts.items()]),)
    verdict = context.verdict(status, Certainty.CERTAIN, observed, expected, sentence, details=details)
    codes_of = {action: set(FAULT_CODE.findall(action)) for action in verdict.actions}
    apt = tuple(action for action, codes in codes_of.items() if not (codes and counts) or codes & counts.keys())
    return replace(verdict, actions=apt)


FAULT_CODE = re.compile(r"\bxid-\d+")
"""Code of a fault in an action. Such an action is for its codes only."""
