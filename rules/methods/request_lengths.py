"""Lengths of requests against a limit: whether a quantile of them is surely beyond it, by buckets and beyond chance.

Owns the statistics that drift and guardrails share. A quantile is beyond a limit where the share of requests beyond it is
larger (smaller) than the quantile leaves. Buckets count only where they lie wholly on one side; chance is excluded by the
binomial distribution; bursts are excluded by whoever asks (`rules.verdicts.context.is_persistent`). It knows no rule and no plan.

Runaway generations: requests that only their token limit ended, and that are longer than the plan's longest (guide 9.4).

Owns the share and its bounds. Which of the long requests were cut is not exposed, only how many were long and how many
were cut: of both together the bounds are Frechet's. A request that is cut short of the planned P99 is no runaway: clients
that ask for 64 tokens get 64.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from rules.confidence import CONFIDENCE, Certainty, binomial_tail
from rules.plan.load_bins import BinnedWindow
from rules.telemetry import histograms
from rules.telemetry.histograms import Histogram
from rules.telemetry.signals import Gap, Reading
from rules.telemetry.wording import number
from rules.verdicts.context import LIKELY_CONFIDENCE, RuleContext, is_persistent, worst_gap
from rules.verdicts.verdict import RuleResult, Status, Unknown

PROMPTS, OUTPUTS = "prompt_tokens_per_request", "generation_tokens_per_request"


class LimitSide(StrEnum):
    """On which side of the limit the quantile would be."""

    LONGER = "longer"
    SHORTER = "shorter"


def parts_of(slices: Iterable[BinnedWindow], family: str) -> tuple[Histogram, ...]:
    """The lengths of all requests in these slices, one part a bucket grid."""
    return histograms.sum_histograms(part for one in slices for part in one.window.histograms.get(family, ()))


def count_requests(parts: tuple[Histogram, ...]) -> float:
    """Requests whose length was seen."""
    return math.fsum(part.n for part in parts)


def quantile(parts: tuple[Histogram, ...], q: float) -> Reading | None:
    """The quantile (0-1) in tokens, between the edges of its bucket; None without requests."""
    found = histograms.quantile(parts, q)
    return None if found is None else Reading(value=found.value, low=found.low, high=found.high, n=found.n)


def exceeds_limit(parts: tuple[Histogram, ...], q: float, limit: float, side: LimitSide) -> bool:
    """Return whether the observed quantile lies beyond `limit` tokens whatever happened inside the buckets, chance
    aside."""
    n = count_requests(parts)
    return n > 0 and _gap(_surely(parts, limit, side) / n, q, side)


def is_significant_quantile(
    parts: tuple[Histogram, ...], q: float, limit: float, side: LimitSide, confidence: float
) -> bool:
    """Return whether the traffic's quantile does, with one-sided `confidence` (0-1) that it is no chance of few
    requests.

    Longer: so many requests above the limit would be too rare if only 1 - q of the traffic were (Clopper and Pearson
    1934). Shorter: so few would be; 300 requests of which none is above the limit say so of a P99 with 95 %.
    """
    trials = math.floor(count_requests(parts) + 1e-9)
    if trials < 1 or not exceeds_limit(parts, q, limit, side):
        return False
    count = _surely(parts, limit, side)
    if side is LimitSide.LONGER:
        return binomial_tail(math.floor(count + 1e-9), trials, 1 - q) < 1 - confidence
    at_most = math.ceil(count - 1e-9)
    return 1 - binomial_tail(at_most + 1, trials, 1 - q) < 1 - confidence


def _surely(parts: tuple[Histogram, ...], limit: float, side: LimitSide) -> float:
    """Requests above the limit: at least so many for longer, at most so many for shorter."""
    share = histograms.share_above(parts, limit)
    return share.low if side is LimitSide.LONGER else share.high


def _gap(share: float, q: float, side: LimitSide) -> bool:
    return share > 1 - q + 1e-12 if side is LimitSide.LONGER else share < 1 - q - 1e-12


CUT = "requests_ended_by_length"

MOST = 0.5
"""Above this share the sentence says that it is not single prompts; the judgement does not change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunawayCount:
    """Of `n` requests `cut` ended at their token limit; `long` are surely longer than any normal answer, and at most
    `at_most_long` may be."""

    n: float
    cut: float
    long: float
    at_most_long: float

    @property
    def minimum_count(self) -> float:
        """Both at least (Frechet): whoever is long and not cut was counted among those not cut."""
        return max(0.0, self.cut + self.long - self.n)

    @property
    def probable(self) -> float:
        """Both, if those that were cut are the longest, as they are where the limit is the gateway's."""
        return min(self.cut, self.long)


def judge_runaway(case: RuleContext) -> RuleResult:
    """The share of runaways above what a P99 leaves: likely if the long ones are the cut ones, certain by the bounds."""
    normal = _normal(case)
    if normal is None:
        return case.unknown(
            Gap.NOT_IN_PLAN, f"the plan has no P99 of generation_tokens to tell a long answer by{_cut(case)}"
        )
    if not case.slices:
        return case.unknown(Gap.SCRAPE_FAILED, "no replica of the tier has been seen")
    missing = _missing(case)
    if missing is not None:
        return missing
    found = _of(case.slices, normal)
    if found is None or found.n < case.limit("minimum_requests"):
        return case.too_few_requests(found.n if found else 0.0, case.limit("minimum_requests"))
    allowed = case.limit("allowed_share")
    status, certainty = Status.OK, Certainty.CERTAIN
    last, each = _of(case.last_quarter(case.slices), normal), [_of(g, normal) for g in case.periods(case.slices)]
    likely = _rarer(found.probable, found.n, allowed, LIKELY_CONFIDENCE)
    if likely and is_persistent(last, each, lambda part: part.probable > allowed * part.n):
        sure = _rarer(found.minimum_count, found.n, allowed, CONFIDENCE)
        sure = sure and is_persistent(last, each, lambda part: part.minimum_count > allowed * part.n)
        status, certainty = Status.WARNING, Certainty.CERTAIN if sure else Certainty.LIKELY
    return _verdict(case, found, normal, status, certainty)


def _normal(case: RuleContext) -> float | None:
    """Tokens above which an answer is longer than any the plan knows: its P99 with the allowance for drift."""
    workload = case.view.plan.workload if case.view.plan else None
    planned = workload.generation_tokens.p99 if workload and workload.generation_tokens else None
    return None if planned is None else planned * case.limit("factor")


def _missing(case: RuleContext) -> Unknown | None:
    for family, words in ((CUT, "why requests ended"), (OUTPUTS, "how long answers were")):
        if not any(family in one.window.counters or family in one.window.histograms for one in case.slices):
            return case.unknown(worst_gap(case.slices, family), f"the engine does not tell {words}")
    return None


def _of(slices: Sequence[BinnedWindow], normal: float) -> RunawayCount | None:
    """None where nothing finished whose end and length were both seen."""
    known = [s.window for s in slices if CUT in s.window.counters and OUTPUTS in s.window.histograms]
    share = histograms.share_above(
        histograms.sum_histograms(part for w in known for part in w.histograms[OUTPUTS]), normal
    )
    if share.n <= 0:
        return None
    return RunawayCount(
        n=share.n, cut=min(math.fsum(w.counters[CUT] for w in known), share.n), long=share.low, at_most_long=share.high
    )


def _rarer(count: float, n: float, allowed: float, confidence: float) -> bool:
    """Return whether so many would be too rare a chance if only the allowed share were runaways."""
    k = math.floor(count + 1e-9)
    return k >= 1 and binomial_tail(k, math.floor(n + 1e-9), allowed) < 1 - confidence


def _cut(case: RuleContext) -> str:
    windows = [s.window.counters for s in case.slices if CUT in s.window.counters]
    finished = math.fsum(counters.get("requests_finished", 0.0) for counters in windows)
    cut = math.fsum(counters[CUT] for counters in windows)
    return f"; {cut / finished:.0%} of the answers end at their token limit" if finished > 0 else ""


def _verdict(case: RuleContext, found: RunawayCount, normal: float, status: Status, certainty: Certainty) -> RuleResult:
    least, probable = found.minimum_count / found.n, found.probable / found.n
    between = f"{probable:.1%}" if probable - least < 0.0005 else f"{least:.1%} to {probable:.1%}"
    sentence = (
        f"{between} of {found.n:,.0f} answers ran beyond {number(normal, 'tokens')} until their token limit "
        f"({found.cut / found.n:.0%} ended at theirs, {found.long / found.n:.1%} are so long); "
        f"{case.limit('allowed_share') * 100:g}% is allowed"
    )
    if status is Status.WARNING and probable > MOST:
        sentence += ". So many are no single prompts: a lost stop token, or longer answers that are meant"
    observed = Reading(value=probable, low=least, high=min(found.cut, found.at_most_long) / found.n, n=found.n)
    expected = Reading(value=None, low=0.0, high=case.limit("allowed_share"), n=found.n)
    return case.verdict(status, certainty, observed, expected, sentence)
