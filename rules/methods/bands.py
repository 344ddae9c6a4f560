"""Bands: a reading outside fixed limits of the guide, over the minutes that count (guide 7.7, 9.3).

Owns the comparison, when it persists, and the sentence. What is read, which limits, and which minutes stand in the
catalogue. A limit is a threshold of the rule called `below`, `above`, `critical_below` or `critical_above`; another name
is another way of judging.

Experts of a mixture: whether the GPUs that hold them get tokens evenly (guide 5.4).

Owns which minutes count, and that each replica is judged by itself: its own busiest GPU holds it back. The comparison is
that of a band (`rules.methods.bands`). Overflow, tokens that an expert had no room for, no engine exposes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from rules.confidence import Certainty
from rules.engines.registry import ENGINES
from rules.plan.load_bins import BinnedWindow
from rules.telemetry import windows
from rules.telemetry.readings import families_of, read
from rules.telemetry.signals import BY_NAME, Gap, Missing, Reading, SignalKind, SignalValue
from rules.telemetry.wording import number, quantity
from rules.verdicts.context import SEPARATE, RuleContext, is_persistent, read_plan_value, too_early, worst_gap
from rules.verdicts.rule import Condition
from rules.verdicts.verdict import RuleResult, Status, Unknown, Verdict

LIKELY_PERIODS = 2
"""Separate minutes (hours) outside from which on a finding is likely; SEPARATE make it certain."""

MOVED = 0.25
"""Where the end of the hold differs by more from the whole, both numbers are told: the mean is of neither time."""

POLLED = frozenset({"gpu_utilization_sampled", "gpu_power_watts"})
"""Gauges of a plain poll say nothing of the time between two polls: `likely` at most (METRICS trap 15)."""

_COUNTS: dict[Condition, Callable[[BinnedWindow], bool]] = {
    Condition.ANY: lambda one: True,
    Condition.SERVING: lambda one: bool(one.rps or one.in_system),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class BandThresholds:
    """The limits of one rule for one tier; None where it has none on that side."""

    below: float | None
    above: float | None
    critical_below: float | None
    critical_above: float | None

    @classmethod
    def from_context(cls, case: RuleContext) -> BandThresholds:
        names = ("below", "above", "critical_below", "critical_above")
        return cls(**{name: case.limit(name) if name in case.rule.thresholds else None for name in names})

    def status(self, value: float) -> Status:
        """Outside the outer limit, outside the inner one, or within."""
        if _outside(value, self.critical_below, self.critical_above):
            return Status.CRITICAL
        return Status.WARNING if _outside(value, self.below, self.above) else Status.OK

    def surely(self, found: Reading, status: Status) -> bool:
        """Return whether the bounds alone put a reading there; of a bucket the lower edge is outside and the upper one
        inside."""
        critical = status is Status.CRITICAL
        below = self.critical_below if critical else self.below
        above = self.critical_above if critical else self.above
        too_low = below is not None and found.high is not None and found.high < below
        too_high = above is not None and found.low is not None and found.low >= above
        return too_low or too_high


def _outside(value: float, below: float | None, above: float | None) -> bool:
    return (below is not None and value < below) or (above is not None and value > above)


def judge_band(case: RuleContext) -> RuleResult:
    """The rule's signal over the minutes that count, against its limits."""
    gap = _cannot(case)
    if gap is not None:
        return gap
    counted = _counted(case, case.slices)
    found = _read(case, counted)
    if isinstance(found, Missing):
        return case.unknown(found.gap, found.text or f"{case.rule.signal} is not known")
    if "minimum_requests" in case.rule.thresholds and found.n < case.limit("minimum_requests"):
        return case.too_few_requests(found.n, case.limit("minimum_requests"))
    limits = BandThresholds.from_context(case)
    if found.value is None:
        return _by_bounds(case, found, limits)
    status = limits.status(found.value)
    if status is Status.OK:
        return _verdict(case, found, Status.OK, Certainty.CERTAIN, limits)
    last = _value(case, case.last_quarter(counted))
    if last is None:
        return case.unknown(Gap.NO_TRAFFIC, f"{case.rule.signal} is not known in the last quarter of the time")
    by_period = [_value(case, group) for group in case.periods(counted)]
    each = [value for value in by_period if value is not None]
    outside = sum(limits.status(value) is not Status.OK for value in each)
    if limits.status(last) is Status.OK:
        return _verdict(case, found, Status.OK, Certainty.CERTAIN, limits, "; back within that at the end of the time")
    if outside < LIKELY_PERIODS:
        early = too_early(case, counted, last, by_period, lambda value: limits.status(value) is not Status.OK)
        if early is not None:
            return early
        return _verdict(
            case, found, Status.OK, Certainty.CERTAIN, limits, f"; outside in at most one of its {case.periods_word}"
        )
    if status is Status.CRITICAL and not is_persistent(
        last, each, lambda value: limits.status(value) is Status.CRITICAL
    ):
        status = Status.WARNING
    certainty = _certainty(case, counted, found, status, limits) if outside >= SEPARATE else Certainty.LIKELY
    moved = abs(last - found.value) > MOVED * abs(found.value)
    remark = f"; {number(last, case.rule.unit)} at the end of the time" if moved else ""
    return _verdict(case, found, status, certainty, limits, remark)


def _cannot(case: RuleContext) -> Unknown | None:
    """Why the rule does not apply: no plan for it, nothing seen, or no minute that counts."""
    if case.rule.needs and not read_plan_value(case.view, case.rule.needs):
        return case.unknown(Gap.NOT_IN_PLAN, f"the plan has no {case.rule.needs}")
    if not case.slices:
        return case.unknown(Gap.SCRAPE_FAILED, "no replica of the tier has been seen")
    if not any(one.window.covered_seconds > 0 for one in case.slices):
        return case.unknown(worst_gap(case.slices, windows.EVERYTHING), "nothing was seen in this time")
    if not _counted(case, case.slices):
        return case.unknown(Gap.NO_TRAFFIC, "no minute with traffic")
    return None


def _counted(case: RuleContext, slices: Sequence[BinnedWindow]) -> tuple[BinnedWindow, ...]:
    return tuple(one for one in slices if _COUNTS[case.rule.condition](one))


def _read(case: RuleContext, slices: Sequence[BinnedWindow]) -> SignalValue:
    signal = BY_NAME[case.rule.signal]
    return read(signal, windows.sum_families((one.window for one in slices), families_of(signal)), case.view.basis)


def _value(case: RuleContext, slices: Sequence[BinnedWindow]) -> float | None:
    found = _read(case, slices) if slices else None
    return found.value if isinstance(found, Reading) else None


def _certainty(
    case: RuleContext, counted: Sequence[BinnedWindow], found: Reading, status: Status, limits: BandThresholds
) -> Certainty:
    """A mean that persists is certain; a quantile only if its bucket's edge is outside too, a plain poll never."""
    if any(one.window.sampled & POLLED & set(one.window.gauges) for one in counted) and _polled(case):
        return Certainty.LIKELY
    if BY_NAME[case.rule.signal].how is SignalKind.QUANTILE:
        return Certainty.CERTAIN if limits.surely(found, status) else Certainty.LIKELY
    return Certainty.CERTAIN


def _polled(case: RuleContext) -> bool:
    return case.rule.signal == "gpu_utilization"


def _by_bounds(case: RuleContext, found: Reading, limits: BandThresholds) -> RuleResult:
    """Return where only bounds are known: outside if both are, within if both are, else not to be told."""
    for status in (Status.CRITICAL, Status.WARNING):
        if limits.surely(found, status):
            return _verdict(case, found, status, Certainty.LIKELY, limits)
    ends = [end for end in (found.low, found.high) if end is not None]
    if len(ends) == 2 and all(limits.status(end) is Status.OK for end in ends):
        return _verdict(case, found, Status.OK, Certainty.CERTAIN, limits)
    text = f"{case.rule.about}: only known to be {quantity(found, case.rule.unit)}"
    return case.unknown(Gap.NOT_EXPOSED, text)


def _verdict(
    case: RuleContext, found: Reading, status: Status, certainty: Certainty, limits: BandThresholds, remark: str = ""
) -> RuleResult:
    shown = quantity(found, case.rule.unit) if found.value is None else number(found.value, case.rule.unit)
    sentence = f"{case.rule.about} {shown}: {_healthy(limits, case.rule.unit)}{remark}"
    expected = Reading(value=None, low=limits.below or 0.0, high=limits.above, n=found.n)
    return case.verdict(status, certainty, found, expected, sentence)


def _healthy(limits: BandThresholds, unit: str) -> str:
    if limits.below is not None and limits.above is not None:
        return f"{number(limits.below, unit)} to {number(limits.above, unit)} is healthy"
    if limits.above is not None:
        return f"up to {number(limits.above, unit)} is healthy"
    return f"{number(limits.below or 0.0, unit)} or more is healthy"


_BADNESS = {Status.OK: 0, Status.WARNING: 1, Status.CRITICAL: 2}


def judge_experts(case: RuleContext) -> RuleResult:
    """The balance of each replica over its minutes with enough requests in the batch; the worst replica is told.

    Tokens of a small batch fall unevenly by chance alone, so those minutes say nothing.
    """
    if not case.slices:
        return case.unknown(Gap.SCRAPE_FAILED, "no replica of the tier has been seen")
    families = BY_NAME[case.rule.signal].families
    told = [one for one in case.slices if all(family in one.window.counters for family in families)]
    if not told:
        return case.unknown(worst_gap(case.slices, families[0]), _not_told(case))
    replicas: dict[str | None, list[BinnedWindow]] = {}
    for one in told:
        if _running(one) >= case.limit("minimum_running"):
            replicas.setdefault(one.replica, []).append(one)
    if not replicas:
        text = (
            f"no minute with {case.limit('minimum_running'):.0f} requests in the batch: fewer fall unevenly by chance"
        )
        return case.unknown(Gap.TOO_FEW_REQUESTS, text)
    answers = [_named(judge_band(replace(case, slices=tuple(group))), name) for name, group in replicas.items()]
    verdicts = [answer for answer in answers if isinstance(answer, Verdict)]
    return max(verdicts, key=_badness) if verdicts else answers[0]


def _running(one: BinnedWindow) -> float:
    gauge = one.window.gauge("requests_running")
    return gauge.integral / gauge.seconds if gauge is not None else 0.0


def _badness(verdict: Verdict) -> tuple[int, bool, float]:
    value = getattr(verdict.observed, "value", None)
    return _BADNESS.get(verdict.status, 0), verdict.certainty is Certainty.CERTAIN, -(1.0 if value is None else value)


def _named(answer: RuleResult, replica: str | None) -> RuleResult:
    if not isinstance(answer, Verdict) or not replica:
        return answer
    return replace(answer, sentence=f"{replica}: {answer.sentence}")


def _not_told(case: RuleContext) -> str:
    """What the engine's own table says of it, where the plan names the engine."""
    name = case.view.plan.engine if case.view.plan else ""
    family = BY_NAME[case.rule.signal].families[0]
    texts: Sequence[str] = [dict(engine.not_exposed).get(family, "") for engine in ENGINES if engine.name == name]
    return next((text for text in texts if text), "the engine tells nothing of experts, or the model has none")
