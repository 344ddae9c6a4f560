"""Drift: lengths of requests, and how many come at the peak, against the workload that the tier was sized for.

Owns which quantity is compared with which key of the plan, and the sentence. What step 1 got wrong propagates through
the whole sizing (guide 9.1), so both directions count. A new quantity is a row of LENGTHS. Thresholds stand in the catalogue.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rules.confidence import CONFIDENCE, Certainty
from rules.methods import request_lengths
from rules.methods.load import PeakComparison, find_busiest_periods
from rules.methods.request_lengths import OUTPUTS, PROMPTS, LimitSide
from rules.plan.load_bins import BinnedWindow
from rules.plan.schema import TokenQuantiles, Workload
from rules.telemetry.histograms import Histogram
from rules.telemetry.signals import Gap, Reading
from rules.telemetry.wording import number, quantity
from rules.verdicts.context import LIKELY_CONFIDENCE, RuleContext, is_persistent, worst_gap
from rules.verdicts.verdict import RuleResult, Status, Unknown, Verdict

LENGTHS = (("prompts", PROMPTS, "prompt_tokens"), ("outputs", OUTPUTS, "generation_tokens"))
"""The word for them, their family, their key in the plan's workload."""

QUANTILES = (("p95", 0.95), ("p99", 0.99), ("p50", 0.5))
"""In the order in which they are named: memory is sized for P95 (guide 1.1, 9.1 step 4)."""

TOWARDS = {
    frozenset({"prompts"}): "rag",
    frozenset({"outputs"}): "code",
    frozenset({"prompts", "outputs"}): "agentic",
}
"""Longer prompts, longer outputs, or both: the archetype that traffic moves to (guide 1.2, figure 1.2)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftedQuantile:
    """One quantile away from the plan: by at least `factor`, which is below 1 where it is shorter."""

    word: str
    name: str
    side: LimitSide
    observed: Reading
    planned: float
    factor: float
    certain: bool

    def __str__(self) -> str:
        seen = f"{self.name.upper()} {quantity(self.observed, 'tokens')}, {number(self.planned, 'tokens')} in the plan"
        if self.side is LimitSide.LONGER:
            return f"{self.word} are at least {self.factor:.1f}x as long as planned ({seen})"
        return f"{self.word} are at most {self.factor:.2g}x as long as planned ({seen})"


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftComparison:
    """What was compared: quantiles that moved, and how many could be compared at all."""

    moved: tuple[DriftedQuantile, ...]
    compared: int
    requests: float


def judge_drift(case: RuleContext) -> RuleResult:
    """Lengths and peak of the traffic against the plan's workload, in both directions; of one family, only longer ones."""
    workload = case.view.plan.workload if case.view.plan else None
    rows = [row for row in LENGTHS if case.rule.family in ("", row[1])]
    missing = _cannot(case, workload, rows)
    if workload is None or missing is not None:
        return missing or case.unknown(Gap.NOT_IN_PLAN, "the plan has no workload")
    found = _lengths(case, workload, rows)
    peak = None if case.rule.family else find_busiest_periods(case)
    if found.compared == 0 and peak is None:
        return _nothing_to_compare(case, rows, found)
    certain = [one for one in found.moved if one.certain]
    if found.moved:
        named = certain or list(found.moved)
        return _moved(case, workload, named, peak, Certainty.CERTAIN if certain else Certainty.LIKELY)
    if peak is not None and peak.is_above_plan:
        return _peak_moved(case, peak)
    return _as_planned(case, workload, rows, peak)


def _cannot(case: RuleContext, workload: Workload | None, rows: Sequence[tuple[str, str, str]]) -> Unknown | None:
    if workload is None:
        return case.unknown(Gap.NOT_IN_PLAN, "the plan has no workload")
    rates = workload.requests_per_second if not case.rule.family else None
    if not any(_planned(workload, key) for _, _, key in rows) and (rates is None or rates.peak is None):
        return case.unknown(Gap.NOT_IN_PLAN, f"the plan's workload has no {' or '.join(key for _, _, key in rows)}")
    if not case.slices:
        return case.unknown(Gap.SCRAPE_FAILED, "no replica of the tier has been seen")
    return None


def _planned(workload: Workload, key: str) -> dict[str, float]:
    planned: TokenQuantiles | None = getattr(workload, key)
    values = {name: getattr(planned, name) for name, _ in QUANTILES} if planned else {}
    return {name: value for name, value in values.items() if value is not None}


def _lengths(case: RuleContext, workload: Workload, rows: Sequence[tuple[str, str, str]]) -> DriftComparison:
    moved: list[DriftedQuantile] = []
    compared, requests = 0, 0.0
    for word, family, key in rows:
        parts, planned = request_lengths.parts_of(case.slices, family), _planned(workload, key)
        n = request_lengths.count_requests(parts)
        requests = max(requests, n)
        if n < case.limit("minimum_requests") or not planned:
            continue
        only = planned if not case.rule.family else {"p99": planned["p99"]} if "p99" in planned else {}
        compared += len(only)
        for name, q in QUANTILES:
            one = _moved_one(case, word, family, parts, name, q, only[name]) if name in only else None
            moved.extend([one] if one is not None else [])
    return DriftComparison(moved=tuple(moved), compared=compared, requests=requests)


def _moved_one(
    case: RuleContext, word: str, family: str, parts: tuple[Histogram, ...], name: str, q: float, planned: float
) -> DriftedQuantile | None:
    """Return whether one quantile is surely beyond `factor` on either side, in the whole hold and persistently."""
    factor = case.limit("factor")
    observed = request_lengths.quantile(parts, q)
    sides = ((LimitSide.LONGER, planned * factor), (LimitSide.SHORTER, planned / factor))
    for side, limit in sides[:1] if case.rule.family else sides:
        if observed is None or not request_lengths.is_significant_quantile(parts, q, limit, side, LIKELY_CONFIDENCE):
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
            certain=request_lengths.is_significant_quantile(parts, q, limit, side, CONFIDENCE),
        )
    return None


def is_lasting_drift(case: RuleContext, family: str, q: float, limit: float, side: LimitSide) -> bool:
    """Return whether a quantile (0-1) of a family is beyond `limit` in the last quarter and in three separate
    minutes."""

    def parts(slices: Sequence[BinnedWindow]) -> tuple[Histogram, ...] | None:
        found = request_lengths.parts_of(slices, family)
        return found if request_lengths.count_requests(found) > 0 else None

    each = [parts(group) for group in case.periods(case.slices)]
    return is_persistent(
        parts(case.last_quarter(case.slices)), each, lambda one: request_lengths.exceeds_limit(one, q, limit, side)
    )


def _nothing_to_compare(case: RuleContext, rows: Sequence[tuple[str, str, str]], found: DriftComparison) -> Unknown:
    if found.requests > 0 and found.requests < case.limit("minimum_requests"):
        return case.too_few_requests(found.requests, case.limit("minimum_requests"))
    if found.requests > 0:
        return case.unknown(
            Gap.NOT_IN_PLAN, "the plan's workload does not say how long the requests are that were seen"
        )
    words = " or ".join(word for word, _, _ in rows)
    gap = worst_gap(case.slices, rows[0][1])
    if any(row[1] in one.window.histograms for one in case.slices for row in rows):
        gap = Gap.NO_TRAFFIC
    return case.unknown(gap, f"no lengths of {words} were seen")


def _moved(
    case: RuleContext,
    workload: Workload,
    moved: Sequence[DriftedQuantile],
    peak: PeakComparison | None,
    certainty: Certainty,
) -> Verdict:
    first: dict[str, DriftedQuantile] = {}
    for one in moved:
        first.setdefault(one.word, one)
    worst = max(moved, key=lambda one: max(one.factor, 1 / one.factor if one.factor > 0 else 1.0))
    told = " and ".join(str(one) for one in first.values())
    towards = _archetype(workload, tuple(first.values())) if not case.rule.family else ""
    also = f"; {peak}" if peak is not None and peak.is_above_plan else ""
    sentence = f"{told[0].upper()}{told[1:]}{also}{towards}"
    expected = Reading(value=worst.planned, low=worst.planned, high=worst.planned, n=worst.observed.n)
    return case.verdict(Status.WARNING, certainty, worst.observed, expected, sentence)


def _archetype(workload: Workload, moved: Sequence[DriftedQuantile]) -> str:
    longer = frozenset(one.word for one in moved if one.side is LimitSide.LONGER)
    towards = TOWARDS.get(longer, "")
    if workload.archetype is None or towards in ("", workload.archetype):
        return ""
    return f": the traffic moves from {workload.archetype} towards {towards}"


def _peak_moved(case: RuleContext, peak: PeakComparison) -> Verdict:
    found = case.verdict(
        Status.WARNING,
        Certainty.CERTAIN if peak.certain else Certainty.LIKELY,
        Reading(value=peak.rps, low=peak.rps, high=None, n=peak.requests),
        Reading(value=peak.planned, low=0.0, high=peak.planned, n=peak.requests),
        str(peak)[0].upper() + str(peak)[1:],
    )
    return replace(found, unit="per_second")


def _as_planned(
    case: RuleContext, workload: Workload, rows: Sequence[tuple[str, str, str]], peak: PeakComparison | None
) -> Verdict:
    """What is not seen to be away from the plan; `likely` where a bucket is too wide to say that it is as planned."""
    factor, told, close = case.limit("factor"), [], True
    observed: Reading | None = None
    wanted = 0.0
    for word, family, key in rows:
        planned = _planned(workload, key)
        name, q = next(((n, q) for n, q in QUANTILES if n in planned and _counts(case, n)), ("", 0.0))
        found = request_lengths.quantile(request_lengths.parts_of(case.slices, family), q) if name else None
        if found is None:
            continue
        value = planned[name]
        told.append(f"{word} {name.upper()} {quantity(found, 'tokens')}, {number(value, 'tokens')} in the plan")
        low_enough = found.high is not None and found.high <= value * factor
        close = close and low_enough and (bool(case.rule.family) or (found.low or 0.0) >= value / factor)
        if observed is None:
            observed, wanted = found, value
    if observed is None and peak is not None:
        observed, wanted = Reading(value=peak.rps, low=peak.rps, high=None, n=peak.requests), peak.planned
    told += [str(peak)] if peak is not None else []
    sentence = "; ".join(told)
    expected = Reading(value=wanted, low=wanted / factor, high=wanted * factor, n=observed.n if observed else 0.0)
    seen = observed or expected
    return case.verdict(
        Status.OK, Certainty.CERTAIN if close else Certainty.LIKELY, seen, expected, sentence[:1].upper() + sentence[1:]
    )


def _counts(case: RuleContext, name: str) -> bool:
    return not case.rule.family or name == "p99"
