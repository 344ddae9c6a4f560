"""Trends: the end of the hold against its beginning: a queue that grows, a first token that comes later (guide 9.3).

Owns what growing and rising mean, replica by replica: a busy one must not hide among idle ones. Whether a queue grew is
`rules.plan.load_bins`'s; nothing here needs a plan. Thresholds stand in the catalogue.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

from rules.confidence import CONFIDENCE, Certainty
from rules.methods.offered_load import is_it_the_load
from rules.methods.tails import is_significant_share
from rules.plan import load_bins
from rules.plan.load_bins import BinnedWindow
from rules.telemetry import histograms, windows
from rules.telemetry.histograms import Histogram
from rules.telemetry.readings import families_of, read
from rules.telemetry.signals import BY_NAME, Gap, Missing, Reading
from rules.telemetry.wording import number, spread
from rules.verdicts.context import LIKELY_CONFIDENCE, SEPARATE, RuleContext, part_seen, too_early, worst_gap
from rules.verdicts.latency_pattern import LatencyPattern, with_levers
from rules.verdicts.verdict import RuleResult, Status, Unknown

Z = NormalDist().inv_cdf(CONFIDENCE)

MEASURED = frozenset({"gpu_busy_seconds", "gpu_gr_engine_active", "gpu_gfx_active"})
"""Utilisation over time; a plain poll says nothing of the time between two polls (METRICS trap 15)."""

QUANTILES = (0.5, 0.99)
"""What may rise: the median first, for fewer requests prove it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueTrend:
    """A replica's queue over the hold: waiting in its last third, requests more than finished, how many finished."""

    replica: str | None
    waiting: float
    more: float
    finished: float
    text: str

    @property
    def surely(self) -> bool:
        """Beyond what arrivals and completions of the same rate come apart by chance (variance: their sum)."""
        return self.more > Z * math.sqrt(2 * self.finished + self.more)


def judge_trend(case: RuleContext) -> RuleResult:
    """Of GPUs where the rule says when they are pegged, else of the queue."""
    return judge_saturated(case) if "pegged" in case.rule.thresholds else judge_queue(case)


def judge_queue(case: RuleContext) -> RuleResult:
    """A queue grew over the whole hold on some replica, while more requests arrived than finished."""
    if not case.slices:
        return case.unknown(Gap.SCRAPE_FAILED, "no replica of the tier has been seen")
    replicas = _by_replica(case.slices)
    last = {name: load_bins.mean_waiting(case.last_quarter(group)) for name, group in replicas.items()}
    if all(value is None for value in last.values()):
        return case.unknown(worst_gap(case.slices, "requests_waiting"), "how many requests wait is not known")
    most = max(value for value in last.values() if value is not None)
    expected = Reading(value=None, low=0.0, high=case.limit("waiting"), n=float(len(replicas)))
    grown = [one for name, group in replicas.items() if (one := _queue(case, name, group)) is not None]
    if not grown:
        holes = [name for name, group in replicas.items() if not load_bins.thirds_seen(group, case.now)]
        unseen = next((name for name in holes if (last[name] or 0.0) >= case.limit("waiting")), None)
        if unseen is not None:
            seen = part_seen(replicas[unseen], replicas[unseen])
            text = (
                f"{last[unseen]:.1f} requests wait at {unseen or case.view.tier}; {seen}: too early to say if they grow"
            )
            return case.unknown(Gap.TOO_FEW_REQUESTS, text)
        sentence = f"No queue grows: at most {most:.1f} requests were waiting at a replica at the end of this time"
        observed = Reading(value=most, low=0.0, high=most, n=float(len(replicas)))
        return case.verdict(Status.OK, Certainty.CERTAIN, observed, expected, sentence)
    worst = max(grown, key=lambda one: (one.surely, one.waiting))
    lasting = len(case.periods(replicas[worst.replica])) >= 2 * SEPARATE
    sentence = (
        f"{_who(case, worst.replica, len(grown), len(replicas))}: {worst.text} on average; {worst.finished:,.0f} finished "
        f"in this time, {worst.finished + worst.more:,.0f} arrived"
    )
    load, shape = is_it_the_load(case)
    sentence += f"; {load}" if shape is not LatencyPattern.EITHER else ""
    observed = Reading(value=worst.waiting, low=worst.waiting, high=worst.waiting, n=worst.finished)
    certainty = Certainty.CERTAIN if worst.surely and lasting else Certainty.LIKELY
    return with_levers(case.verdict(Status.WARNING, certainty, observed, expected, sentence), shape)


def _queue(case: RuleContext, name: str | None, slices: Sequence[BinnedWindow]) -> QueueTrend | None:
    text = load_bins.describe_growth(slices, case.now)
    if not text:
        return None
    waiting = load_bins.mean_waiting(_third(case, slices, last=True))
    whole = windows.sum_families((one.window for one in slices), ("requests_finished", windows.NET_CHANGE))
    finished, more = whole.counters.get("requests_finished", 0.0), whole.counters.get(windows.NET_CHANGE, 0.0)
    if waiting is None or waiting < case.limit("waiting") or more < case.limit("share") * finished:
        return None
    return QueueTrend(replica=name, waiting=waiting, more=more, finished=finished, text=text)


@dataclass(frozen=True, slots=True, kw_only=True)
class SaturatedReplica:
    """A replica whose GPUs are pegged: how busy, and how its TTFT rose (None where it did not)."""

    replica: str | None
    busy: Reading
    polled: bool
    rise: str
    surely: bool


def judge_saturated(case: RuleContext) -> RuleResult:
    """GPUs pegged over the hold and at its end: saturated where TTFT rises meanwhile, healthy where it is stable."""
    if not case.slices:
        return case.unknown(Gap.SCRAPE_FAILED, "no replica of the tier has been seen")
    replicas = _by_replica(case.slices)
    readings = {name: _busy(group) for name, group in replicas.items()}
    known = {name: found for name, found in readings.items() if isinstance(found, Reading)}
    if not known:
        missing = next(found for found in readings.values() if isinstance(found, Missing))
        return case.unknown(missing.gap, missing.text or "GPU utilisation is not known")
    early = next((one for name, found in known.items() if (one := _too_early(case, found, replicas[name]))), None)
    pegged = [name for name, found in known.items() if _pegged(case, found, replicas[name])]
    busiest = max(known.values(), key=lambda found: found.value or 0.0)
    expected = Reading(value=None, low=0.0, high=case.limit("pegged"), n=busiest.n)
    if not pegged:
        if early is not None:
            return early
        sentence = (
            f"GPUs are busy {number(busiest.value or 0.0, 'ratio')} of the time on the busiest replica: not pegged"
        )
        return case.verdict(Status.OK, Certainty.CERTAIN, busiest, expected, sentence)
    found = [_rising(case, name, known[name], replicas[name]) for name in pegged]
    rising = [one for one in found if isinstance(one, SaturatedReplica) and one.rise]
    unknown = next((one for one in found if isinstance(one, Unknown)), None)
    if not rising:
        if unknown is not None:
            return unknown
        sentence = f"GPUs pegged at {number(busiest.value or 0.0, 'ratio')} with stable TTFT: prefill-bound and healthy"
        return case.verdict(Status.OK, Certainty.CERTAIN, busiest, expected, sentence)
    worst = max(rising, key=lambda one: one.surely)
    sentence = (
        f"{_who(case, worst.replica, len(rising), len(replicas))}: GPUs pegged at "
        f"{number(worst.busy.value or 0.0, 'ratio')}, and {worst.rise}: saturated"
    )
    certainty = Certainty.CERTAIN if worst.surely and not worst.polled else Certainty.LIKELY
    return case.verdict(Status.WARNING, certainty, worst.busy, expected, sentence)


def _busy(slices: Sequence[BinnedWindow]) -> Reading | Missing:
    signal = BY_NAME["gpu_utilization"]
    return read(signal, windows.sum_families((one.window for one in slices), families_of(signal)))


def _pegged(case: RuleContext, whole: Reading, slices: Sequence[BinnedWindow]) -> bool:
    """Over the hold, in its last quarter, and in three separate minutes."""
    limit = case.limit("pegged")
    parts = [_busy(group) for group in (case.last_quarter(slices), *case.periods(slices)) if group]
    over = [isinstance(part, Reading) and (part.value or 0.0) >= limit for part in parts]
    return (whole.value or 0.0) >= limit and over[0] and sum(over[1:]) >= SEPARATE


def _too_early(case: RuleContext, whole: Reading, slices: Sequence[BinnedWindow]) -> Unknown | None:
    """A replica whose GPUs are pegged in the few minutes that were seen of it."""
    limit = case.limit("pegged")
    if (whole.value or 0.0) < limit:
        return None
    each = [_busy(group) for group in case.periods(slices)]
    known = [part if isinstance(part, Reading) else None for part in each]
    last = _busy(case.last_quarter(slices))
    end = last if isinstance(last, Reading) else None
    return too_early(case, slices, end, known, lambda part: (part.value or 0.0) >= limit)


def _rising(
    case: RuleContext, name: str | None, busy: Reading, slices: Sequence[BinnedWindow]
) -> SaturatedReplica | Unknown:
    first, last = (_parts(case, _third(case, slices, last=end)) for end in (False, True))
    needed = case.limit("minimum_requests")
    for parts, where in ((first, " in the first third of the time"), (last, " in the last third of the time")):
        n = math.fsum(part.n for part in parts)
        if n < needed:
            return case.too_few_requests(n, needed, f"{where} of a replica with pegged GPUs")
    polled = not any(MEASURED & {*one.window.counters, *one.window.gauges} for one in slices)
    rises = [_rise(case, first, last, q) for q in QUANTILES]
    rise, surely = max(rises, key=lambda found: (bool(found[0]), found[1]))
    return SaturatedReplica(replica=name, busy=busy, polled=polled, rise=rise, surely=surely)


def _rise(case: RuleContext, first: tuple[Histogram, ...], last: tuple[Histogram, ...], q: float) -> tuple[str, bool]:
    """How a quantile of TTFT rose from the first third to the last, "" where it did not, and whether that is certain.

    Likely: the best estimate rose by the factor, and more requests than the quantile leaves are above it. Certain: the same
    of the upper edge of the earlier bucket, which the later requests surely exceed, beyond chance.
    """
    before, after = histograms.quantile(first, q), histograms.quantile(last, q)
    factor = case.limit("rise")
    if before is None or after is None or before.high is None or before.value is None:
        return "", False
    over = histograms.share_above(last, factor * before.value)
    if not is_significant_share(over.best, over.n, over.n, 1 - q, LIKELY_CONFIDENCE):
        return "", False
    sure = histograms.share_above(last, factor * before.high)
    surely = is_significant_share(sure.low, sure.n, sure.n, 1 - q, CONFIDENCE)
    was, now = (spread(one.low, one.high, "seconds") for one in (before, after))
    return f"TTFT P{q * 100:g} rose: it was {was}, it is {now}", surely


def _parts(case: RuleContext, slices: Sequence[BinnedWindow]) -> tuple[Histogram, ...]:
    return histograms.sum_histograms(part for one in slices for part in one.window.histograms.get(case.rule.family, ()))


def _third(case: RuleContext, slices: Sequence[BinnedWindow], *, last: bool) -> tuple[BinnedWindow, ...]:
    """The slices whose middle is in the first, or the last, third of the hold."""
    start = min((one.window.start for one in slices), default=case.now)
    third = (case.now - start) / 3
    middles = ((one, (one.window.start + one.window.end) / 2) for one in slices)
    return tuple(one for one, at in middles if (at >= case.now - third if last else at <= start + third))


def _by_replica(slices: Sequence[BinnedWindow]) -> dict[str | None, tuple[BinnedWindow, ...]]:
    replicas: dict[str | None, list[BinnedWindow]] = {}
    for one in slices:
        replicas.setdefault(one.replica, []).append(one)
    return {name: tuple(several) for name, several in replicas.items()}


def _who(case: RuleContext, replica: str | None, count: int, of: int) -> str:
    name = replica or case.view.tier
    return f"{name} ({count} of {of} replicas)" if of > 1 else name
