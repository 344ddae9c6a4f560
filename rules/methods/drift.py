"""Drift: lengths of requests and peak load against the workload of the plan.

An error in step 1 propagates through the whole sizing (guide 9.1), so both directions count.
"""

from __future__ import annotations

import math
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
    quantile,
    sum_parts,
)
from rules.methods.load import PeakComparison, find_busiest_periods
from rules.plan.capacity import benchmarked_mean
from rules.plan.load_bins import BinnedWindow
from rules.plan.schema import TokenQuantiles, Workload
from rules.telemetry.histograms import Histogram, count_requests
from rules.telemetry.signals import Gap, Reading
from rules.telemetry.wording import number, quantity
from rules.telemetry.work import mean_length
from rules.verdicts.context import LIKELY_CONFIDENCE, RuleContext, is_persistent, too_early, worst_gap
from rules.verdicts.held_windows import hold, scraped_by_the_minute
from rules.verdicts.verdict import RuleResult, Status, Unknown, Verdict

LENGTHS = (("prompts", PROMPTS, "prompt_tokens"), ("outputs", OUTPUTS, "generation_tokens"))
"""Compared lengths: word, family, key in the workload of the plan."""

CUT = "requests_ended_by_length"

QUANTILES = (("p95", 0.95), ("p99", 0.99), ("p50", 0.5))
"""Compared quantiles in the order of the sentence: memory is sized for P95 (guide 1.1, 9.1 step 4)."""

MEAN = "mean"

ALL_BEYOND = 10
"""Minutes that must all be beyond the factor for a mean to be certainly so: by chance 1 of 2 is, so all are in 0.5^10 =
0.1 % of cases (sign test)."""

TOWARDS = {
    frozenset({"prompts"}): "rag",
    frozenset({"outputs"}): "code",
    frozenset({"prompts", "outputs"}): "agentic",
}
"""Archetype that traffic moves to, by the lengths that grow (guide 1.2, figure 1.2)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftedQuantile:
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

    @property
    def seen(self) -> str:
        name = self.name if self.name == MEAN else self.name.upper()
        return f"{name} {quantity(self.observed, 'tokens')}, {number(self.planned, 'count')} {self.whose}"

    @property
    def times(self) -> str:
        if self.name == MEAN:
            return f"{self.factor:.2g}x"
        if self.side is LimitSide.LONGER:
            return f"at least {self.factor:.1f}x"
        return f"at most {self.factor:.2g}x"


@judge_where_requests_end
def judge_drift(case: RuleContext) -> RuleResult:
    """Compare lengths and peak with the plan in both directions. A rule of one family finds longer P99 only."""
    family, needed = case.rule.family, case.limit("minimum_requests")
    workload = case.context.plan.workload if case.context.plan else None
    rows = [row for row in LENGTHS if family in ("", row[1])]
    rates = workload.requests_per_second if workload is not None and not family else None
    planned = {row[1]: _read_planned(workload, row[2]) for row in rows}
    benchmarked = {
        row[1]: benchmarked_mean(case.context.plan, case.context.curve, row[2])
        for row in rows
        if not family and not planned[row[1]]
    }
    known = any(planned.values()) or any(benchmarked.values())
    if workload is None and not known:
        return case.unknown(Gap.NOT_IN_PLAN, "the plan has no workload, and its benchmark no lengths")
    if not known and (rates is None or rates.peak is None):
        return case.unknown(Gap.NOT_IN_PLAN, f"the plan's workload has no {' or '.join(row[2] for row in rows)}")
    if not case.binned:
        return case.unknown(Gap.SCRAPE_FAILED, "no replica of the tier has been seen")
    peak = None if family else find_busiest_periods(case)
    moved: list[DriftedQuantile] = []
    early: Unknown | None = None
    compared, requests = 0, 0.0
    for word, of, key in rows:
        if mean := benchmarked.get(of):
            finished, drifted = _compare_mean(case, word, (key, of), mean)
            requests, compared = max(requests, finished), compared + (finished >= needed)
            moved.extend([drifted] if isinstance(drifted, DriftedQuantile) else [])
            early = drifted if isinstance(drifted, Unknown) else early
            continue
        parts = sum_parts(case.binned, of)
        requests = max(requests, count_requests(parts))
        if count_requests(parts) < needed:
            continue
        for name, q in _select_quantiles(case, planned[of]):
            compared += 1
            found = _compare_quantile(case, (word, of), parts, (name, q), planned[of][name])
            moved.extend([found] if found is not None else [])
    if early is not None and not moved:
        return early
    if compared == 0 and peak is None:
        return _explain_no_comparison(case, rows, requests)
    if moved:
        return _report_drift(case, workload.archetype if workload else None, moved, peak)
    if peak is not None and peak.is_above_plan:
        observed = Reading(value=peak.rps, low=peak.rps, high=None, n=peak.requests)
        expected = Reading(value=peak.planned, low=0.0, high=peak.planned, n=peak.requests)
        claim = "The peak load is" if peak.rps > peak.planned * peak.factor else "Peak to average is"
        sentence = f"{claim} above the plan; {peak}"
        verdict = case.verdict(Status.WARNING, certain_if(peak.certain), observed, expected, sentence)
        return replace(verdict, unit="per_second")
    return _report_no_drift(case, planned, rows, peak)


def judge_benchmarked_lengths(case: RuleContext) -> Verdict | Unknown | None:
    """Return the finding of mean lengths that last beyond `factor` of the benchmark's own, unknown while it is too early.

    None where they are alike, or its files tell no lengths.
    """
    results = []
    for word, family, key in LENGTHS:
        mean = benchmarked_mean(case.context.plan, case.context.curve, key)
        results.append(_compare_mean(case, word, (key, family), mean)[1] if mean and case.binned else None)
    drifted = [result for result in results if isinstance(result, DriftedQuantile)]
    if drifted:
        return replace(_report_drift(case, None, drifted, None), unit="tokens")
    return next((result for result in results if isinstance(result, Unknown)), None)


def _compare_mean(
    case: RuleContext, word: str, names: tuple[str, str], benchmarked: float
) -> tuple[float, DriftedQuantile | Unknown | None]:
    """Return the finished requests, and their mean length if it lasts beyond `factor` of the benchmark's on a side.

    `names` are counter and histogram. Certain if all of ALL_BEYOND minutes or more are beyond it. Unknown at its begin.
    """
    families, factor = ("requests_finished", *names), case.limit("factor")

    def mean(group: Iterable[BinnedWindow]) -> float | None:
        held = hold(group)
        return mean_length(held.sum_families(families), *names) if held else None

    whole = hold(case.binned).sum_families(families)
    finished, length = whole.counters.get("requests_finished", 0.0), mean(case.binned)
    if length is None or finished < case.limit("minimum_requests"):
        return finished, None
    side = LimitSide.LONGER if length > benchmarked else LimitSide.SHORTER

    def is_beyond(value: float) -> bool:
        return value > benchmarked * factor if side is LimitSide.LONGER else value < benchmarked / factor

    last = mean(case.last_quarter(case.binned))
    begins = scraped_by_the_minute(case.binned) and last is not None and is_beyond(last)
    if not is_beyond(length) and not begins:
        return finished, None
    each = [mean(group) for group in case.periods(case.binned)]
    known = [value for value in each if value is not None]
    if not is_beyond(length) or not is_persistent(last, each, is_beyond):
        return finished, too_early(case, case.binned, last, each, is_beyond)
    return finished, DriftedQuantile(
        word=word,
        name=MEAN,
        side=side,
        observed=exact_reading(length, finished),
        planned=benchmarked,
        factor=length / benchmarked,
        certain=len(known) >= ALL_BEYOND and all(map(is_beyond, known)),
        whose="benchmarked",
    )


def _read_planned(workload: Workload | None, key: str) -> dict[str, float]:
    planned: TokenQuantiles | None = getattr(workload, key, None)
    values = {name: getattr(planned, name) for name, _ in QUANTILES} if planned else {}
    return {name: value for name, value in values.items() if value is not None}


def _select_quantiles(case: RuleContext, planned: Mapping[str, float]) -> list[tuple[str, float]]:
    """Return the quantiles that the rule compares: of one family only P99."""
    return [(name, q) for name, q in QUANTILES if name in planned and (not case.rule.family or name == "p99")]


def _compare_quantile(
    case: RuleContext,
    length: tuple[str, str],
    parts: tuple[Histogram, ...],
    named: tuple[str, float],
    planned: float,
) -> DriftedQuantile | None:
    """Return a quantile that is proven to be beyond `factor` on a side, over the window and persistently."""
    (word, family), (name, q), factor = length, named, case.limit("factor")
    observed = quantile(parts, q)
    sides = ((LimitSide.LONGER, planned * factor), (LimitSide.SHORTER, planned / factor))
    for side, limit in sides[:1] if case.rule.family else sides:
        if observed is None or not is_significant_quantile(parts, q, limit, side, LIKELY_CONFIDENCE):
            continue
        if not is_lasting_drift(case, family, q, limit, side):
            continue
        edge = observed.low if side is LimitSide.LONGER else observed.high
        return DriftedQuantile(
            word=word,
            name=name,
            side=side,
            observed=observed,
            planned=planned,
            factor=(edge if edge is not None else limit) / planned,
            certain=is_significant_quantile(parts, q, limit, side, CONFIDENCE),
        )
    return None


def is_lasting_drift(case: RuleContext, family: str, q: float, limit: float, side: LimitSide) -> bool:
    """Return whether a quantile (0-1) is beyond `limit` in the last quarter and in three separate minutes."""
    last, *each = (sum_parts(group, family) for group in (case.last_quarter(case.binned), *case.periods(case.binned)))
    return is_persistent(last, each, lambda parts: exceeds_limit(parts, q, limit, side))


def _explain_no_comparison(case: RuleContext, rows: Sequence[tuple[str, str, str]], requests: float) -> Unknown:
    if 0 < requests < case.limit("minimum_requests"):
        return case.too_few_requests(requests, case.limit("minimum_requests"))
    if requests > 0:
        text = "the plan's workload has no lengths for the observed requests"
        return case.unknown(Gap.NOT_IN_PLAN, text)
    gap = worst_gap(case.binned, rows[0][1])
    if any(family in one.window.histograms for one in case.binned for _, family, _ in rows):
        gap = Gap.NO_TRAFFIC
    return case.unknown(gap, f"no lengths of {' or '.join(word for word, _, _ in rows)} were seen")


def _report_drift(
    case: RuleContext, archetype: str | None, moved: Sequence[DriftedQuantile], peak: PeakComparison | None
) -> Verdict:
    certain = [drifted for drifted in moved if drifted.certain]
    first: dict[str, DriftedQuantile] = {}
    for drifted in certain or moved:
        first.setdefault(drifted.word, drifted)
    worst = max(certain or moved, key=lambda one: max(one.factor, 1 / one.factor if one.factor > 0 else 1.0))
    first[worst.word] = worst
    ordered = sorted(first.values(), key=lambda one: one is not worst)
    claims = [f"{one.word} {'are ' if one is worst else ''}{one.times}" for one in ordered]
    sentence = capitalize(f"{', '.join(claims)} as long as {worst.whose}: {worst.seen}")
    details = [f"{one.word} {one.seen}" for one in ordered]
    if peak is not None and peak.is_above_plan:
        details.append(str(peak))
    if case.rule.family:
        details += _describe_cut(case)
    longer = frozenset(word for word, drifted in first.items() if drifted.side is LimitSide.LONGER)
    towards = TOWARDS.get(longer, "") if not case.rule.family else ""
    if archetype is not None and towards not in ("", archetype):
        details.append(f"the traffic moves from {archetype} towards {towards}")
    expected = exact_reading(worst.planned, worst.observed.n)
    return case.verdict(Status.WARNING, certain_if(bool(certain)), worst.observed, expected, sentence, details=details)


def _describe_cut(case: RuleContext) -> list[str]:
    """Return the share of answers that only their token limit ended, in words. Engines do not expose which ones."""
    known = [s.window.counters for s in case.binned if CUT in s.window.counters]
    finished = math.fsum(counters.get("requests_finished", 0.0) for counters in known)
    cut = math.fsum(counters[CUT] for counters in known)
    return [f"{cut / finished:.0%} of all answers ended at their token limit"] if finished else []


def _report_no_drift(
    case: RuleContext,
    planned: Mapping[str, Mapping[str, float]],
    rows: Sequence[tuple[str, str, str]],
    peak: PeakComparison | None,
) -> Verdict:
    """Return ok: likely if a bucket is too wide to prove that a length is as planned."""
    factor, texts, is_close = case.limit("factor"), [], True
    observed: Reading | None = None
    wanted = 0.0
    for word, family, _ in rows:
        name, q = next(iter(_select_quantiles(case, planned[family])), ("", 0.0))
        found = quantile(sum_parts(case.binned, family), q) if name else None
        if found is None:
            continue
        value = planned[family][name]
        texts.append(f"{word} {name.upper()} {quantity(found, 'tokens')}, {number(value, 'count')} planned")
        low_enough = found.high is not None and found.high <= value * factor
        is_close = is_close and low_enough and (bool(case.rule.family) or (found.low or 0.0) >= value / factor)
        if observed is None:
            observed, wanted = found, value
    if peak is not None:
        texts.append(str(peak))
        if observed is None:
            observed, wanted = Reading(value=peak.rps, low=peak.rps, high=None, n=peak.requests), peak.planned
    expected = Reading(value=wanted, low=wanted / factor, high=wanted * factor, n=observed.n if observed else 0.0)
    # Too few requests for any planned quantile: the rule ran, and found nothing beyond the factor.
    sentence = capitalize(texts[0]) if texts else "No length is proven to have drifted"
    return case.verdict(Status.OK, certain_if(is_close), observed or expected, expected, sentence, details=texts[1:])
