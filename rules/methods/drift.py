"""Drift: lengths of requests and peak load against the workload of the plan.

An error in step 1 propagates through the whole sizing (guide 9.1), so both directions count.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from rules.confidence import CONFIDENCE
from rules.methods.evidence import (
    OUTPUTS,
    PROMPTS,
    LimitSide,
    capitalize,
    certain_if,
    exact_reading,
    exceeds_limit,
    is_significant_quantile,
    judge_where_requests_end,
    sum_counters_beside,
)
from rules.methods.load import PeakComparison, find_busiest_periods
from rules.plan.capacity import benchmarked_mean
from rules.plan.load_bins import BinnedWindow
from rules.telemetry.histograms import Histogram, count_requests, quantile
from rules.telemetry.signals import Gap, Reading
from rules.telemetry.wording import number, quantity
from rules.telemetry.work import mean_length
from rules.verdicts.context import LIKELY_CONFIDENCE, RuleContext, is_persistent, read_plan_value, too_early, worst_gap
from rules.verdicts.held_windows import hold
from rules.verdicts.verdict import RuleResult, Status, Unknown, Verdict

Length = tuple[str, str, str]

LENGTHS: tuple[Length, ...] = (("prompts", PROMPTS, "prompt_tokens"), ("outputs", OUTPUTS, "generation_tokens"))
"""Compared lengths: word, family, key in the workload of the plan."""

CUT = "requests_ended_by_length"

QUANTILES = {"P95": 0.95, "P99": 0.99, "P50": 0.5}
"""Compared quantiles in the order of the sentence: memory is sized for P95 (guide 1.1, 9.1 step 4)."""

MEAN = "mean"

ALL_BEYOND = 10
"""Minutes that must all be beyond the factor for a mean to be certainly so: by chance 1 of 2 is, so all are in 0.5^10 =
0.1 % of cases (sign test)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftedLength:
    """Quantile away from the plan by at least `factor`, which is below 1 for shorter requests.

    Without planned lengths it is the mean, and the benchmark's own (`whose` tells).
    """

    word: str
    name: str
    side: LimitSide
    observed: Reading
    planned: float
    factor: float
    certain: bool
    whose: str = "planned"

    def __str__(self) -> str:
        return f"{self.name} {quantity(self.observed, 'tokens')}, {number(self.planned, 'count')} {self.whose}"

    @property
    def times(self) -> str:
        if self.name == MEAN:
            return f"{self.factor:.2g}x"
        return f"at least {self.factor:.1f}x" if self.side is LimitSide.LONGER else f"at most {self.factor:.2g}x"


@judge_where_requests_end
def judge_drift(context: RuleContext) -> RuleResult:
    """Compare lengths and peak with the plan in both directions. A rule of one family finds longer P99 only.

    From the histograms of lengths, else mean lengths against the benchmark's; arrivals of the busiest periods. Certain
    beyond chance by the buckets wholly beyond the factor.
    """
    plan, family, needed = context.tier.plan, context.rule.family, context.limit("minimum_requests")
    workload = plan.workload if plan else None
    rows = [row for row in LENGTHS if family in ("", row[1])]
    planned = {row: _read_planned(context, row) for row in rows}
    means = {row: benchmarked_mean(plan, context.tier.curve, row[2]) for row in rows if not family and not planned[row]}
    has_peak = not family and workload and workload.requests_per_second and workload.requests_per_second.peak
    if not any(planned.values()) and not any(means.values()):
        if workload is None:
            return context.unknown(Gap.NOT_IN_PLAN, "the plan has no workload, and its benchmark no lengths")
        if not has_peak:
            keys = " or ".join(key for *_, key in rows)
            return context.unknown(Gap.NOT_IN_PLAN, f"the plan's workload has no {keys}")
    peak = None if family else find_busiest_periods(context)
    results: list[DriftedLength | Unknown | None] = []
    requests = 0.0
    for row in rows:
        if mean := means.get(row):
            finished, result = _compare_mean(context, row, mean)
            results += [result] if finished >= needed else []
        else:
            parts = hold(context.binned).sum_parts(row[1])
            finished = count_requests(parts)
            quantiles = planned[row].items() if finished >= needed else ()
            results += [_compare_quantile(context, row, parts, name, value) for name, value in quantiles]
        requests = max(requests, finished)
    moved = [result for result in results if isinstance(result, DriftedLength)]
    early = next((result for result in results if isinstance(result, Unknown)), None)
    if moved:
        return _report_drift(context, moved, peak)
    if early is not None:
        return early
    if not results and peak is None:
        return _explain_no_comparison(context, rows, requests)
    if peak is not None and peak.is_above_plan:
        expected = Reading(value=peak.planned, low=0.0, high=peak.planned, n=peak.observed.n)
        sentence = f"{'The peak load is' if peak.is_above else 'Peak to average is'} above the plan; {peak.text}"
        verdict = context.verdict(Status.WARNING, certain_if(peak.certain), peak.observed, expected, sentence)
        return replace(verdict, unit="per_second")
    return _report_no_drift(context, planned, peak)


def judge_benchmarked_lengths(context: RuleContext) -> Verdict | Unknown | None:
    """Return the finding of mean lengths that last beyond `factor` of the benchmark's own, unknown while it is too early.

    None where they are alike, or its files tell no lengths.
    """
    means = [
        (row, benchmarked_mean(context.tier.plan, context.tier.curve, row[2])) for row in LENGTHS if context.binned
    ]
    results = [_compare_mean(context, row, mean)[1] for row, mean in means if mean]
    drifted = [result for result in results if isinstance(result, DriftedLength)]
    if drifted:
        return replace(_report_drift(context, drifted, None), unit="tokens")
    return next((result for result in results if isinstance(result, Unknown)), None)


def _compare_mean(
    context: RuleContext, row: Length, benchmarked: float
) -> tuple[float, DriftedLength | Unknown | None]:
    """Return the finished requests, and their mean length if it lasts beyond `factor` of the benchmark's on a side.

    Certain if all of ALL_BEYOND minutes or more are beyond it. Unknown at its begin.
    """
    word, family, key = row
    factor = context.limit("factor")

    def mean(group: Iterable[BinnedWindow]) -> float | None:
        held = hold(group)
        return mean_length(held.sum_families(("requests_finished", key, family)), key, family) if held else None

    total = hold(context.binned).sum_families(("requests_finished", key, family))
    finished = total.counters.get("requests_finished", 0.0)
    length = mean(context.binned)
    if length is None or finished < context.limit("minimum_requests"):
        return finished, None
    side = LimitSide.LONGER if length > benchmarked else LimitSide.SHORTER

    def is_beyond(value: float) -> bool:
        return value > benchmarked * factor if side is LimitSide.LONGER else value < benchmarked / factor

    last = mean(context.last_quarter(context.binned))
    begins = hold(context.binned).is_scraped_by_the_minute and last is not None and is_beyond(last)
    if not is_beyond(length) and not begins:
        return finished, None
    each = [mean(group) for group in context.periods(context.binned)]
    if not is_beyond(length) or not is_persistent(last, each, is_beyond):
        return finished, too_early(context, context.binned, last, each, is_beyond)
    known = [is_beyond(value) for value in each if value is not None]
    return finished, DriftedLength(
        word=word,
        name=MEAN,
        side=side,
        observed=exact_reading(length, finished),
        planned=benchmarked,
        factor=length / benchmarked,
        certain=len(known) >= ALL_BEYOND and all(known),
        whose="benchmarked",
    )


def _read_planned(context: RuleContext, row: Length) -> dict[str, float]:
    """Return the planned quantiles that the rule compares by their names: of one family only P99."""
    lengths = read_plan_value(context.tier, f"workload.{row[2]}")
    names = [name for name in QUANTILES if not context.rule.family or name == "P99"]
    values = {name: getattr(lengths, name.lower(), None) for name in names}
    return {name: value for name, value in values.items() if value is not None}


def _compare_quantile(
    context: RuleContext, row: Length, parts: tuple[Histogram, ...], name: str, planned: float
) -> DriftedLength | None:
    """Return a quantile that is proven to be beyond `factor` on a side, over the window and persistently."""
    word, family, _ = row
    q, factor = QUANTILES[name], context.limit("factor")
    observed = quantile(parts, q)
    sides = ((LimitSide.LONGER, planned * factor), (LimitSide.SHORTER, planned / factor))
    for side, limit in sides[:1] if context.rule.family else sides:
        if observed is None or not is_significant_quantile(parts, q, limit, side, LIKELY_CONFIDENCE):
            continue
        groups = (context.last_quarter(context.binned), *context.periods(context.binned))
        last, *each = (exceeds_limit(hold(group).sum_parts(family), q, limit, side) for group in groups)
        if not is_persistent(last, each, bool):
            continue
        edge = observed.low if side is LimitSide.LONGER else observed.high
        return DriftedLength(
            word=word,
            name=name,
            side=side,
            observed=observed,
            planned=planned,
            factor=(edge if edge is not None else limit) / planned,
            certain=is_significant_quantile(parts, q, limit, side, CONFIDENCE),
        )
    return None


def _explain_no_comparison(context: RuleContext, rows: Sequence[Length], requests: float) -> Unknown:
    if 0 < requests < context.limit("minimum_requests"):
        return context.too_few_requests(requests, context.limit("minimum_requests"))
    if requests > 0:
        return context.unknown(Gap.NOT_IN_PLAN, "the plan's workload has no lengths for the observed requests")
    is_seen = any(family in binned.window.histograms for binned in context.binned for _, family, _ in rows)
    gap = Gap.NO_TRAFFIC if is_seen else worst_gap(context.binned, rows[0][1])
    return context.unknown(gap, f"no lengths of {' or '.join(word for word, _, _ in rows)} were seen")


def _report_drift(context: RuleContext, moved: Sequence[DriftedLength], peak: PeakComparison | None) -> Verdict:
    certain = [drift for drift in moved if drift.certain]
    worst = max(certain or moved, key=lambda drift: max(drift.factor, 1 / drift.factor if drift.factor > 0 else 1.0))
    first = {drift.word: drift for drift in reversed(certain or moved)}
    sentence = capitalize(f"{worst.word} are {worst.times} as long as {worst.whose}: {worst}")
    details = [f"{word} {drift.times}: {drift}" for word, drift in first.items() if word != worst.word]
    if peak is not None and peak.is_above_plan:
        details.append(peak.text)
    # Engines do not expose which answers their token limit ended.
    cut, finished = sum_counters_beside(context.binned, CUT, "requests_finished")
    if finished and context.rule.family:
        details.append(f"{cut / finished:.0%} of all answers ended at their token limit")
    expected = exact_reading(worst.planned, worst.observed.n)
    certainty = certain_if(bool(certain))
    return context.verdict(Status.WARNING, certainty, worst.observed, expected, sentence, details=details)


def _report_no_drift(
    context: RuleContext, planned: Mapping[Length, Mapping[str, float]], peak: PeakComparison | None
) -> Verdict:
    """Return ok: likely if a bucket is too wide to prove that a length is as planned."""
    factor, texts, is_close = context.limit("factor"), [], True
    readings: list[tuple[Reading, float]] = []
    for (word, family, _), quantiles in planned.items():
        for name, value in list(quantiles.items())[:1]:
            reading = quantile(hold(context.binned).sum_parts(family), QUANTILES[name])
            if reading is None:
                continue
            readings.append((reading, value))
            texts.append(f"{word} {name} {quantity(reading, 'tokens')}, {number(value, 'count')} planned")
            is_close &= reading.high is not None and reading.high <= value * factor
            is_close &= bool(context.rule.family) or (reading.low or 0.0) >= value / factor
    if peak is not None:
        texts.append(peak.text)
        readings.append((peak.observed, peak.planned))
    # Too few requests for any planned quantile: the rule ran, and found nothing beyond the factor.
    texts = texts or ["no length is proven to have drifted"]
    observed, wanted = readings[0] if readings else (exact_reading(None, 0.0), 0.0)
    expected = Reading(value=wanted, low=wanted / factor, high=wanted * factor, n=observed.n)
    return context.verdict(Status.OK, certain_if(is_close), observed, expected, capitalize(texts[0]), details=texts[1:])
