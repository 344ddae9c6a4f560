"""Latencies and throughput before and after an engine's release changed, at equal load (DESIGN 3.3, 3.4).

The older release stands in for the benchmark: its P99 in each load bin is the limit, by the latencies that its requests
certainly did not exceed. Windows in which a release changed belong to neither side.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rules.confidence import CONFIDENCE, binomial_tail
from rules.light_dataclass import light_dataclass
from rules.methods.evidence import (
    OUTPUTS,
    PROMPTS,
    ROUNDING,
    certain_if,
    count_requests,
    exact_reading,
    is_significant_share,
    quantile,
    sum_parts,
)
from rules.plan.curve import Curve
from rules.plan.load_bins import BinnedWindow, LoadBin
from rules.replicas.track import Upgrade, find_upgrade
from rules.telemetry import histograms
from rules.telemetry.histograms import Histogram
from rules.telemetry.reading_methods import share
from rules.telemetry.signals import Gap, Missing
from rules.telemetry.windows import sum_windows
from rules.telemetry.wording import describe_period, number
from rules.verdicts.context import LIKELY_CONFIDENCE, BenchmarkComparison, RuleContext, is_persistent, select_comparable
from rules.verdicts.held_windows import hold
from rules.verdicts.verdict import RuleResult, Status, Unknown

Latency = tuple[str, str, bool]
Side = tuple[BinnedWindow, ...]
"""Windows of one release."""

LATENCIES: tuple[Latency, ...] = (
    ("TPOT", "tpot_seconds", True),
    ("ITL", "itl_seconds", False),
    ("TTFT", "ttft_seconds", True),
    ("E2E", "e2e_seconds", True),
)
"""Compared latencies, upstream first: words, family, and whether each request is observed once."""

TWICE, UNCHANGED = 2.0, 0.025
"""Ratio from which a multiple is said, and change of a P99 below which none is: bucket edges tell no less."""


@light_dataclass(frozen=True, slots=True, kw_only=True)
class Before:
    """P99 of the older release in one load bin, the limit of `factor` above it, and the edge that it certainly stayed below."""

    p99: float
    requests: float
    slow: float
    ceiling: float | None


@dataclass(slots=True, kw_only=True)
class After:
    """Requests of the newer release in bins that both releases visited.

    `slow` of `n` exceed `factor` x the older P99 by the best estimate. `surely` of `sure_n` exceed its ceiling for certain.
    `was` and `now` are both P99s, each weighted by the observations of the newer release. `before` are the older one's
    requests in these bins.
    """

    n: float = 0.0
    requests: float = 0.0
    before: float = 0.0
    slow: float = 0.0
    surely: float = 0.0
    sure_n: float = 0.0
    sure_requests: float = 0.0
    was: float = 0.0
    now: float = 0.0

    @property
    def share(self) -> float:
        return self.slow / self.n if self.n > 0 else 0.0

    @property
    def sure_share(self) -> float:
        return self.surely / self.sure_n if self.sure_n > 0 else 0.0

    @property
    def ratio(self) -> float:
        return self.now / self.was if self.was > 0 else 1.0


@light_dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One latency of both releases."""

    words: str
    after: After
    slower: bool
    proven: bool

    def __str__(self) -> str:
        ratio = self.after.ratio
        if ratio >= TWICE:
            return f"{self.words} P99 {ratio:.1f}x as long"
        if abs(ratio - 1) < UNCHANGED:
            return f"{self.words} P99 unchanged"
        return f"{self.words} P99 {abs(ratio - 1):.0%} {'slower' if ratio > 1 else 'faster'}"

    @property
    def details(self) -> tuple[str, ...]:
        after = self.after
        p99s = f"{number(after.was, 'seconds')} to {number(after.now, 'seconds')}"
        sure = f"{number(after.sure_share, 'ratio')} or more have a {self.words} that 99% stayed below before"
        return (
            f"{self}: {p99s}, {after.before:,.0f} and {after.requests:,.0f} requests",
            sure if after.surely else "",
        )


def judge_upgrade(case: RuleContext) -> RuleResult:
    """Find latencies that a newer release makes worse at the same load.

    Certain: a significant share exceeds what 99 % of the older release's requests certainly stayed below, in the last
    quarter and three separate periods, and lengths and prefix hits are the same.
    """
    if not case.releases:
        return case.unknown(Gap.NOT_EXPOSED, "no page tells the engine's release")
    upgrade, newest = find_upgrade(case.releases), case.releases[-1]
    since = min((one.window.start for one in case.binned), default=case.now)
    if upgrade is None or (upgrade.ended_at is not None and upgrade.ended_at <= since):
        observed = exact_reading(0.0, float(newest.replicas))
        sentence = f"No replica changed its release in this time ({newest.engine} {newest.release})"
        return case.verdict(Status.OK, certain_if(True), observed, observed, sentence)
    found = select_comparable(case, promised=1.0)
    if isinstance(found, Unknown):
        return found
    before, after = _split(upgrade, found.binned)
    needed = case.limit("minimum_requests")
    old, new = upgrade.last.before, upgrade.last.release
    for side, release in ((before, old), (after, new)):
        requests = math.fsum(one.window.counters.get("requests_finished", 0.0) for one in side)
        if requests < needed:
            return case.too_few_requests(requests, needed, f" of {release}")
    compared = [one for row in LATENCIES if (one := _compare(found, before, after, row)) is not None]
    if not compared:
        text = f"{old} and {new} served no load in common"
        return case.unknown(Gap.LOAD_NOT_REACHED, text)
    worst = max(compared, key=lambda one: (one.slower, one.slower and one.proven, one.after.ratio if one.slower else 0))
    others = _explain_otherwise(before, after)
    status = Status.WARNING if worst.slower else Status.OK
    certainty = certain_if(not others and (worst.proven or not worst.slower))
    change = f"{upgrade.last.engine} {old} to {new}"
    lasting = describe_period(upgrade.began_at, None, case.now)
    sentence = (
        f"{change}: {worst} at equal load {lasting}" if worst.slower else f"{change}: nothing slower at equal load"
    )
    details = (
        str(upgrade.last),
        others,
        *(text for one in compared for text in one.details),
        _compare_rates(found.curve, before, after),
    )
    return case.verdict(
        status,
        certainty,
        exact_reading(worst.after.now, worst.after.requests),
        exact_reading(worst.after.was, worst.after.before),
        sentence,
        details=details,
    )


def _split(upgrade: Upgrade, binned: Iterable[BinnedWindow]) -> tuple[Side, Side]:
    """Return the windows of the older and of the newer release."""
    before, after = list[BinnedWindow](), list[BinnedWindow]()
    sides = {upgrade.last.before: before, upgrade.last.release: after}
    for one in binned:
        sides.get(upgrade.find_release(one.replica, one.window.start, one.window.end), []).append(one)
    return tuple(before), tuple(after)


def _compare(found: BenchmarkComparison, before: Side, after: Side, latency: Latency) -> Comparison | None:
    """Return the comparison of one latency. Return None without enough requests of both releases in common bins."""
    case, limits = found.case, _find_limits(found, before, latency)
    whole = _count_slow(found.curve, after, latency, limits)
    if min(whole.requests, whole.before) < case.limit("minimum_requests"):
        return None
    allowed = case.limit("allowed_share")
    parts = [_count_slow(found.curve, group, latency, limits) for group in case.periods(after)]
    last = _count_slow(found.curve, case.last_quarter(after), latency, limits)
    slower = is_significant_share(whole.slow, whole.n, whole.requests, allowed, LIKELY_CONFIDENCE) and is_persistent(
        last, parts, lambda part: part.share > allowed
    )
    proven = (
        whole.sure_n >= whole.n / 2
        and is_significant_share(whole.surely, whole.sure_n, whole.sure_requests, allowed, CONFIDENCE)
        and is_persistent(last, parts, lambda part: part.sure_share > allowed)
    )
    return Comparison(words=latency[0], after=whole, slower=slower, proven=proven)


def _find_limits(found: BenchmarkComparison, before: Side, latency: Latency) -> Mapping[int, Before]:
    """Return the older release's P99 in each bin."""
    limits: dict[int, Before] = {}
    case = found.case
    for bin, one in hold(before).by_load_bin(found.curve).items():
        parts, requests = _read_bin(one, latency)
        p99 = quantile(parts, 0.99)
        if p99 is None or not p99.value:
            continue
        supported = requests >= case.limit("supported_requests")
        ceiling = _find_ceiling(parts, requests, case.limit("allowed_share")) if supported else None
        slow = p99.value * case.limit("factor")
        limits[bin] = Before(p99=p99.value, requests=requests, slow=slow, ceiling=ceiling)
    return limits


def _read_bin(one: LoadBin, latency: Latency) -> tuple[tuple[Histogram, ...], float]:
    """Return a latency and the independent requests behind it: many gaps of one request are one."""
    _, family, per_request = latency
    parts = one.parts(family)
    n = count_requests(parts)
    return parts, n if per_request else min(n, one.counter("requests_finished"))


def _find_ceiling(parts: tuple[Histogram, ...], requests: float, allowed: float) -> float | None:
    """Return the lowest edge that more than the allowed share certainly did not exceed (Clopper and Pearson 1934)."""
    trials = math.floor(requests + ROUNDING)
    for edge in sorted({edge for part in parts for edge in part.edges if 0 < edge < math.inf}):
        above = histograms.share_above(parts, edge)
        most = math.ceil(above.high / above.n * trials - ROUNDING)
        if most < trials and binomial_tail(most + 1, trials, allowed) > CONFIDENCE:
            return edge
    return None


def _count_slow(curve: Curve, after: Side, latency: Latency, limits: Mapping[int, Before]) -> After:
    """Return the requests of the newer release against the limits of their bins."""
    found = After()
    for bin, one in hold(after).by_load_bin(curve).items():
        parts, requests = _read_bin(one, latency)
        limit, now = limits.get(bin), quantile(parts, 0.99)
        if limit is None or now is None:
            continue
        slow = histograms.share_above(parts, limit.slow)
        found.n += slow.n
        found.requests += requests
        found.before += limit.requests
        found.slow += slow.best
        found.was += slow.n * limit.p99
        found.now += slow.n * (now.value or now.low or limit.p99)
        if limit.ceiling is not None:
            found.surely += histograms.share_above(parts, limit.ceiling).low
            found.sure_n += slow.n
            found.sure_requests += requests
    if found.n > 0:
        found.was, found.now = found.was / found.n, found.now / found.n
    return found


COMPARED = frozenset(
    {
        *(family for _, family, _ in LATENCIES),
        *(PROMPTS, OUTPUTS, "requests_finished", "generation_tokens", "prefix_hit_tokens", "prefix_queried_tokens"),
        *("requests_running", "requests_waiting", "in_system_change"),
    }
)
"""Families that a comparison reads."""

SAME_LENGTHS = 1.2
"""Factor between mean lengths that a comparison allows: the safety factor of well-known traffic (guide 9.1, step 11)."""

SAME_HITS = 0.05
"""Difference of prefix hits (0-1) that a comparison allows: the noticeable share of `rules.causes.checks`."""


def _explain_otherwise(*sides: Side) -> str:
    """Return other work that may explain a difference, "" without any: longer requests, or a cold prefix cache."""
    for words, family in (("prompts", PROMPTS), ("outputs", OUTPUTS)):
        was, now = (histograms.mean(sum_parts(side, family)) for side in sides)
        if was and now and not 1 / SAME_LENGTHS <= now / was <= SAME_LENGTHS:
            return f"the {words} changed too: {was:,.0f} tokens before, {now:,.0f} after"
    hits = [
        share(sum_windows(one.window for one in side), "prefix_hit_tokens", "prefix_queried_tokens") for side in sides
    ]
    was, now = (None if isinstance(one, Missing) else one.value for one in hits)
    if was is not None and now is not None and abs(now - was) > SAME_HITS:
        return f"prefix hits changed too: {was:.0%} before, {now:.0%} after"
    return ""


def _compare_rates(curve: Curve, *sides: Side) -> str:
    """Return output tokens a second of one request in the system, of both releases at equal load, "" if not known."""
    of_bins, rates, weight = [hold(side).by_load_bin(curve) for side in sides], [0.0, 0.0], 0.0
    for bin in of_bins[0].keys() & of_bins[1].keys():
        pair = [_rate(one[bin]) for one in of_bins]
        if None not in pair:
            weight += of_bins[1][bin].seconds
            rates = [total + (rate or 0.0) * of_bins[1][bin].seconds for total, rate in zip(rates, pair, strict=True)]
    if not weight or not rates[0]:
        return ""
    was, now = (rate / weight for rate in rates)
    return f"throughput {was:.3g} to {now:.3g} output tokens/s of a request in the system ({now / was - 1:+.0%})"


def _rate(one: LoadBin) -> float | None:
    tokens, seconds = one.counter("generation_tokens"), one.seconds * (one.in_system or 0.0)
    return tokens / seconds if tokens > 0 and seconds > 0 else None
