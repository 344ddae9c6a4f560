"""Tiers of one model against each other: an equal share of requests on unequal hardware (guide 9.5).

Owns which tiers are compared, how unequal they are, how requests are shared, and who sets the P99 of all. A tier that is
slower than another and gets more than its share is the one that is told; the faster one is fine.

Where the slowest requests of several tiers are: how many of the worst per cent of all fell to each.

Owns the bounds: bucket edges leave open who was slowest inside one bucket, so a share has a lower and an upper end.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rules.confidence import Certainty
from rules.plan.curve import operating_point
from rules.plan.load_bins import BinnedWindow, TierContext
from rules.telemetry import histograms, windows
from rules.telemetry.histograms import Histogram
from rules.telemetry.reading_methods import replica_rate
from rules.telemetry.signals import Gap, Reading
from rules.telemetry.windows import Window, minute_of
from rules.verdicts.context import SEPARATE, RuleContext, TierWindows, worst_gap
from rules.verdicts.verdict import RuleResult, Status

Parts = tuple[Histogram, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowShare:
    """How much of the slowest requests a tier has, certainly between `low` and `high` (0-1); `n` are the requests of all."""

    low: float
    high: float
    n: float


def slow_shares(tiers: Mapping[str, Parts], share: float = 0.01) -> dict[str, SlowShare]:
    """For each tier its part of the slowest `share` (0-1) of all requests: those at and above the common quantile.

    Empty where nothing was observed. Counts above an edge are exact; what lies in the bucket of the
    quantile may be anybody's.
    """
    n = math.fsum(part.n for parts in tiers.values() for part in parts)
    if n <= 0:
        return {}
    wanted = max(1.0, n * share)
    edges = sorted({edge for parts in tiers.values() for part in parts for edge in part.edges if math.isfinite(edge)})
    below = max((edge for edge in edges if _surely(tiers, edge) >= wanted), default=None)
    beyond = min((edge for edge in edges if _possibly(tiers, edge) <= wanted), default=None)
    return {name: _share(tiers, name, below, beyond, wanted, n) for name in tiers}


def _share(
    tiers: Mapping[str, Parts], name: str, below: float | None, beyond: float | None, wanted: float, n: float
) -> SlowShare:
    others = {other: parts for other, parts in tiers.items() if other != name}
    own = {name: tiers[name]}
    most = min(wanted, _possibly(own, below), wanted - (0.0 if beyond is None else _surely(others, beyond)))
    least = max(0.0 if beyond is None else _surely(own, beyond), wanted - _possibly(others, below))
    return SlowShare(low=max(0.0, min(1.0, least / wanted)), high=max(0.0, min(1.0, most / wanted)), n=n)


def _surely(tiers: Mapping[str, Parts], edge: float) -> float:
    return math.fsum(histograms.share_above(parts, edge).low for parts in tiers.values())


def _possibly(tiers: Mapping[str, Parts], edge: float | None) -> float:
    """Requests that may be above an edge; all of them where there is no edge below."""
    if edge is None:
        return math.fsum(part.n for parts in tiers.values() for part in parts)
    return math.fsum(histograms.share_above(parts, edge).high for parts in tiers.values())


FINISHED = "requests_finished"
LENGTHS = ("prompt_tokens_per_request", "generation_tokens_per_request")
LATENCIES = {"tpot_seconds": "output tokens", "ttft_seconds": "first tokens"}
"""What tells how fast a tier is; the time per token first, which waiting does not touch."""

Minutes = Mapping[float, Window]


@dataclass(frozen=True, slots=True, kw_only=True)
class TierPair:
    """A tier beside a faster one, over the minutes both were seen in, newest last; `faster` is how many times, `words`
    by what measure, `planned` whether the plan says so."""

    slow: str
    fast: str
    own: tuple[Window, ...]
    other: tuple[Window, ...]
    faster: float
    words: str
    planned: bool
    proven: bool

    def shares_alike(self, place: int, follow: float) -> bool:
        """Return whether in one minute the requests are nearer to an equal share than to what the tiers can take."""
        return self._alike(_rate(self.own[place]), _rate(self.other[place]), follow)

    def have_equal_shares(self, follow: float) -> bool:
        """The same over all minutes, and in each on its own."""
        each = all(self.shares_alike(place, follow) for place in range(len(self.own)))
        return each and self._alike(*self.rates, follow)

    def _alike(self, own: float, other: float, follow: float) -> bool:
        if own <= 0 or other <= 0:
            return False
        followed = math.log(other / own) / math.log(self.faster)
        # Where only latency says so, a tier that gets far more than another may be slow because of it.
        return followed < follow and (self.planned or followed > -follow)

    @property
    def rates(self) -> tuple[float, float]:
        """Finished requests per second and replica of the slower and of the faster tier."""
        return _rate(windows.sum_windows(self.own)), _rate(windows.sum_windows(self.other))


def judge_tiers(case: RuleContext) -> RuleResult:
    """Return whether a faster tier of the same model gets hardly more requests a replica than this one."""
    model = case.view.plan.model if case.view.plan else None
    if model is None:
        return case.unknown(Gap.NOT_IN_PLAN, "the plan does not say which model this tier serves")
    if not case.slices:
        return case.unknown(Gap.SCRAPE_FAILED, "no replica of the tier has been seen")
    others = {n: t for n, t in case.fleet.items() if n != case.view.tier and t.view.plan and t.view.plan.model == model}
    if not others:
        return _fine(case, f"No other tier of {model} is watched", 1.0, 1.0)
    mine = _by_minute(case.slices)
    if not any(FINISHED in window.counters for window in mine.values()):
        return case.unknown(worst_gap(case.slices, FINISHED), "finished requests are not there")
    pairs = [pair for name, tier in sorted(others.items()) if (pair := _pair(case, mine, name, tier)) is not None]
    if not pairs:
        text = f"no {SEPARATE} minutes with traffic here and on {', '.join(sorted(others))}, or nothing tells which is faster"
        return case.unknown(Gap.TOO_FEW_REQUESTS, text)
    told = [
        pair for pair in pairs if pair.faster >= case.limit("unequal") and pair.have_equal_shares(case.limit("follow"))
    ]
    routed = [pair for pair in told if _routed_by_length(pair, case.limit("lengths"))]
    if len(told) > len(routed):
        worst = max((pair for pair in told if pair not in routed), key=lambda pair: pair.faster)
        return _told(case, worst, others, model)
    if routed:
        return _fine(
            case, f"Requests are given to {routed[0].fast} and {routed[0].slow} by their lengths", *_of(routed[0])
        )
    fastest = max(pairs, key=lambda pair: pair.faster)
    return _fine(case, _fine_sentence(fastest, case.limit("unequal"), model), *_of(fastest))


def _pair(case: RuleContext, mine: Minutes, name: str, tier: TierWindows) -> TierPair | None:
    theirs = _by_minute(tier.slices)
    both = sorted(m for m in mine.keys() & theirs.keys() if _rate(mine[m]) > 0 or _rate(theirs[m]) > 0)[-SEPARATE:]
    own, other = tuple(mine[m] for m in both), tuple(theirs[m] for m in both)
    if len(both) < SEPARATE or min(_finished(own), _finished(other)) < case.limit("minimum_requests"):
        return None
    planned, measured = _by_plan(case.view, tier.view), _by_latency(own, other)
    if planned is None and measured is None:
        return None
    faster, words = planned or measured or (1.0, "")
    return TierPair(
        slow=case.view.tier,
        fast=name,
        own=own,
        other=other,
        faster=faster,
        words=words,
        planned=planned is not None,
        proven=_knees(case.view, tier.view) or _proven(own, other, case.limit("unequal")),
    )


def _by_plan(own: TierContext, other: TierContext) -> tuple[float, str] | None:
    mine, theirs = (view.capacity.planned_rps if view.capacity else None for view in (own, other))
    if not mine or not theirs:
        return None
    return theirs / mine, f"usable are {mine:.3g} and {theirs:.3g} by the plan"


def _knees(own: TierContext, other: TierContext) -> bool:
    """Return whether both operating points are measured ends, not only what was tried."""
    points = [operating_point(view.plan) if view.plan else None for view in (own, other)]
    return all(point is not None and point.knee_reached for point in points)


def _by_latency(own: Sequence[Window], other: Sequence[Window]) -> tuple[float, str] | None:
    for family, what in LATENCIES.items():
        mine, theirs = (histograms.mean(_parts(several, family)) for several in (own, other))
        if mine and theirs:
            return mine / theirs, f"{what} take {mine:.3g} and {theirs:.3g} s on average"
    return None


def _proven(own: Sequence[Window], other: Sequence[Window], unequal: float) -> bool:
    """Return whether half of the requests surely are so much slower here, by the edges of their buckets."""
    for family in LATENCIES:
        mine, theirs = (histograms.quantile(_parts(several, family), 0.5) for several in (own, other))
        if mine is not None and theirs is not None and theirs.high is not None and mine.low >= unequal * theirs.high:
            return True
    return False


def _routed_by_length(pair: TierPair, most: float) -> bool:
    """Routing by what requests are like is what the guide asks for: then the lengths differ between the tiers."""
    for family in LENGTHS:
        mine, theirs = (histograms.mean(_parts(several, family)) for several in (pair.own, pair.other))
        if mine and theirs and not 1 / most <= mine / theirs <= most:
            return True
    return False


def _told(case: RuleContext, pair: TierPair, others: Mapping[str, TierWindows], model: str) -> RuleResult:
    own, other = pair.rates
    sentence = (
        f"A replica of {pair.slow} gets {own:.3g} requests a second, one of {pair.fast} {other:.3g}, though {pair.words}"
        f"{_p99(case, pair, others, model)}"
    )
    certainty = Certainty.CERTAIN if pair.proven else Certainty.LIKELY
    return case.verdict(Status.WARNING, certainty, *_of(pair), sentence)


def _p99(case: RuleContext, pair: TierPair, others: Mapping[str, TierWindows], model: str) -> str:
    """Which part of the slowest 1 % of all requests of the model is here; empty where the buckets do not say."""
    first = pair.own[0].start
    tiers = {name: tuple(s.window for s in t.slices if s.window.start >= first) for name, t in others.items()}
    best = max(
        (
            (shares[pair.slow].low, shares[pair.slow].high, what)
            for family, what in reversed(LATENCIES.items())
            if (shares := slow_shares({n: _parts(w, family) for n, w in {**tiers, pair.slow: pair.own}.items()}))
        ),
        key=lambda found: found[:2],
        default=(0.0, 0.0, ""),
    )
    low, high, what = best
    if low < case.limit("sets_p99"):
        return ""
    share = f"{low:.0%}" if high - low < 0.005 else f"{low:.0%} to {high:.0%}"
    return f": {share} of the slowest 1 % of {what} of {model} are on {pair.slow}, which sets the P99 of all"


def _fine(case: RuleContext, sentence: str, observed: Reading | float, expected: Reading | float) -> RuleResult:
    ends = [e if isinstance(e, Reading) else Reading(value=e, low=e, high=e, n=0) for e in (observed, expected)]
    return case.verdict(Status.OK, Certainty.CERTAIN, ends[0], ends[1], sentence)


def _fine_sentence(pair: TierPair, unequal: float, model: str) -> str:
    own, other = pair.rates
    if pair.faster < unequal:
        return f"No tier of {model} is much faster than {pair.slow}: {pair.words} ({pair.fast})"
    return f"{own:.3g} requests a second and replica on {pair.slow}, {other:.3g} on {pair.fast}: {pair.words}"


def _of(pair: TierPair) -> tuple[Reading, Reading]:
    """The slower tier's share of the requests of a replica of each, and what it can take of them."""
    own, other = pair.rates
    n = _finished(pair.own) + _finished(pair.other)
    share, due = own / (own + other) if own + other > 0 else 0.0, 1 / (1 + pair.faster)
    return Reading(value=share, low=share, high=share, n=n), Reading(value=due, low=due, high=due, n=n)


def _by_minute(slices: Sequence[BinnedWindow]) -> dict[float, Window]:
    grouped: dict[float, list[Window]] = {}
    for one in slices:
        if one.window.covered_seconds <= 0:
            continue
        grouped.setdefault(minute_of(one.window), []).append(one.window)
    return {minute: windows.sum_windows(group) for minute, group in grouped.items()}


def _rate(window: Window) -> float:
    return replica_rate(window, FINISHED) or 0.0


def _finished(several: Sequence[Window]) -> float:
    return math.fsum(window.counters.get(FINISHED, 0.0) for window in several)


def _parts(several: Sequence[Window], family: str) -> tuple[histograms.Histogram, ...]:
    return histograms.sum_histograms(part for window in several for part in window.histograms.get(family, ()))
