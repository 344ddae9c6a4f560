"""Times of requests that exclude each other, of a benchmark file, a plan's point or an engine's page (DESIGN 3.20).

E2E = TTFT + TPOT x (tokens - 1) of each request, and of means where lengths and times are independent. A mean number
of requests at once is rate x E2E (Little's law).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from rules.telemetry.histograms import EMPTY, Cumulative, increase
from rules.telemetry.wording import format_count

ROUNDED = 1.02
"""Factor by which a TTFT may exceed the E2E of the same requests: both are rounded or interpolated."""

OF_MEANS = 3.0
"""Factor between TPOT x tokens and E2E - TTFT above which no skew of the lengths explains the difference."""

DECODE_SHARE = 0.25
"""Least share of the E2E by which the two must differ: E2E - TTFT is a small difference of large numbers otherwise."""

FASTEST_TOKEN_SECONDS = 1e-4
"""No engine decodes faster (10,000 tokens/s of one request)."""

FASTEST_FIRST_SECONDS = 1e-3
"""No engine has a first token so soon that takes a tenth of a decode step for it."""

STREAMED_TOKENS = 8
"""Least mean tokens of a request that tell whether the answer was streamed."""

MORE_AT_ONCE = 1.25
"""Factor by which rate x E2E may exceed the clients of a closed loop (DESIGN 3.11)."""

FEWER_AT_ONCE = 0.5
"""Share of its clients that a closed loop of LOOPS mean latencies keeps busy at least, its last requests included."""

LOOPS = 10

FEWEST_REQUESTS = 100
"""Requests below which means may be those of the first, slow ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contradiction:
    """Sentence with both numbers, and which of `ttft`, `tpot` and `e2e` are wrong, all if not known."""

    text: str
    wrong: tuple[str, ...]
    not_streamed: bool = False


def find_contradictions(
    *, ttft: float | None, e2e: float | None, tpot: float | None = None, tokens: float | None = None, of: str = "mean"
) -> Iterator[Contradiction]:
    """Yield the contradiction between times of the same requests, in seconds, and their mean tokens, if there is one.

    TTFT and E2E are of the same statistic `of`. None is untold, and an E2E of zero.
    """
    if ttft is None or not e2e:
        return
    if ttft > ROUNDED * e2e:
        yield Contradiction(text=f"TTFT {of} {ttft:.4g} s is above E2E {of} {e2e:.4g} s", wrong=("ttft", "e2e"))
        return
    if tokens is None or tokens < STREAMED_TOKENS:
        return
    step, decode = (e2e - ttft) / (tokens - 1), (tpot or 0.0) * (tokens - 1)
    low, high = sorted((decode, e2e - ttft))
    seconds = f"E2E - TTFT is {e2e - ttft:.4g} s"
    if step < FASTEST_TOKEN_SECONDS and (tpot or 0.0) < FASTEST_TOKEN_SECONDS:
        text = f"TTFT {of} {ttft:.4g} s is E2E {of} {e2e:.4g} s for {tokens:.4g} tokens: answers were not streamed"
        yield Contradiction(text=text, wrong=("ttft", "tpot"), not_streamed=True)
    elif tpot is not None and high > OF_MEANS * low and high - low > DECODE_SHARE * e2e:
        text = f"TPOT {tpot:.4g} s x {tokens - 1:.4g} tokens is {decode:.4g} s, {seconds}"
        rows = (("ttft", ttft, FASTEST_FIRST_SECONDS), ("tpot", tpot, FASTEST_TOKEN_SECONDS))
        small = [name for name, value, least in rows if value < least]
        yield Contradiction(text=text, wrong=tuple(small) or ("ttft", "tpot", "e2e"))
    elif ttft < min(FASTEST_FIRST_SECONDS, step / 10):
        text = f"TTFT {of} {ttft:.4g} s is below a tenth of a decode step ({seconds} for {tokens - 1:.4g} tokens)"
        yield Contradiction(text=text, wrong=("ttft",))


def at_once_contradiction(clients: float, rps: float, e2e: float, requests: float | None) -> str | None:
    """Return how the clients of a closed loop contradict rate x E2E, or None.

    Without `requests`, or within few mean latencies, a closed loop may be idle most of its time, waiting for its
    slowest requests. `requests` / `at_once` is the time of the run in mean latencies.
    """
    at_once = rps * e2e
    if at_once > MORE_AT_ONCE * clients or (
        requests is not None and requests >= max(FEWEST_REQUESTS, LOOPS * at_once) and at_once < FEWER_AT_ONCE * clients
    ):
        load = format_count(round(clients), "client")
        return f"{rps:.4g} rps x {e2e:.4g} s are {at_once:.4g} requests at once, the load is {load}"
    return None


SAME_REQUESTS = 0.9
"""Share of first tokens and finished requests that must agree: others run, or ended without a token."""

LENGTHS = "generation_tokens_per_request"
EVIDENCE = ("ttft_seconds", "e2e_seconds", "tpot_seconds", "itl_seconds", LENGTHS)
WRONG_FAMILIES = {"ttft": ("ttft_seconds",), "e2e": ("e2e_seconds",), "tpot": ("tpot_seconds", "itl_seconds")}


def find_page_contradiction(
    histograms: Mapping[str, Cumulative], counters: Mapping[str, float]
) -> tuple[Contradiction, tuple[str, ...]] | None:
    """Return how numbers of a page exclude each other, and the families not used. Broken sums prove nothing."""
    made, generated = histograms.get(LENGTHS, EMPTY), counters.get("generation_tokens", math.inf)
    if (made.total or 0.0) > ROUNDED * generated and made.counts[-1] >= FEWEST_REQUESTS and increase(EMPTY, made).total:
        text = f"{made.total:,.0f} tokens of finished requests are more than the {generated:,.0f} generated"
        contradiction, wrong_times = find_page_contradiction(histograms, {}) or (Contradiction(text=text, wrong=()), ())
        return contradiction, (*wrong_times, "generation_tokens", LENGTHS)
    first, whole = map(histograms.get, ("ttft_seconds", "e2e_seconds"))
    if first is None or whole is None or first.total is None or not whole.total:
        return None
    n, finished = first.counts[-1], whole.counts[-1]
    if min(n, finished) < FEWEST_REQUESTS or not SAME_REQUESTS <= n / finished <= 1 / SAME_REQUESTS:
        return None
    ttft, e2e, lengths = first.total / n, whole.total / finished, _mean(histograms, LENGTHS)
    tokens = max(2.0, lengths or counters.get("generation_tokens", 0.0) / n)
    if ttft > e2e:
        common = SAME_REQUESTS * min(n, finished)
        ttft = min(ttft, _least_total(first, common) / common)
    contradictions: dict[str, Contradiction] = {}
    is_confirmed = False
    for family in WRONG_FAMILIES["tpot"]:
        low, high = _tpot_bounds(histograms, family, n, tokens, is_sure=lengths is not None)
        tpot = min(max((e2e - ttft) / (tokens - 1), low), high)
        for contradiction in find_contradictions(ttft=ttft, e2e=e2e, tpot=tpot, tokens=tokens):
            text = contradiction.text.replace("TPOT", family.partition("_")[0].upper())
            contradictions[family] = replace(contradiction, text=text)
        is_confirmed = is_confirmed or (high < math.inf and family not in contradictions)
    families = [family for family in EVIDENCE if family in histograms]
    queued = histograms.get("queue_seconds", EMPTY)
    least = _least_total(queued, SAME_REQUESTS * min(queued.counts[-1], finished))
    if not contradictions and least > ROUNDED * whole.total and increase(EMPTY, queued).total:
        text = f"{queued.total:,.0f} s in the queue are more than the {whole.total:,.0f} s of the same requests"
        return Contradiction(text=text, wrong=()), ("queue_seconds",)
    if not contradictions or any(increase(EMPTY, histograms[family]).total is None for family in families):
        return None
    contradiction = max(contradictions.values(), key=lambda contradiction: len(contradiction.wrong))
    wrong = {family for name in contradiction.wrong for family in WRONG_FAMILIES[name]}
    if is_confirmed and not contradiction.not_streamed:
        wrong = set(contradictions)  # The other of TPOT and ITL agrees with the E2E.
    return contradiction, tuple(family for family in families if family in wrong)


def _tpot_bounds(
    histograms: Mapping[str, Cumulative], family: str, n: float, tokens: float, is_sure: bool
) -> tuple[float, float]:
    """Return bounds of the mean TPOT of `n` requests by TPOT or ITL, in seconds.

    Without lengths, tokens are those of running requests too: no time is too large for them. A gap may be of several
    tokens or of requests that run: half of them are enough to be too large.
    """
    mean = _mean(histograms, family)
    if mean is None:
        return 0.0, math.inf
    low = high = mean
    if family == "itl_seconds":
        gaps = histograms[family]
        half = min(gaps.counts[-1], n * (tokens - 1)) / 2
        low = _least_total(gaps, half) / n / (tokens - 1)
        high = max(mean, (gaps.total or 0.0) / n / (tokens - 1))
    return low if is_sure else 0.0, high


def _least_total(times: Cumulative, n: float) -> float:
    """Return the least sum of the `n` shortest times: the longest may be of requests that have not finished."""
    value, below, edge = 0.0, 0.0, 0.0
    for upper, count in zip(times.edges, times.counts, strict=True):
        value += edge * max(0.0, min(count, n) - below)
        below, edge = max(below, min(count, n)), upper
    return value


def _mean(histograms: Mapping[str, Cumulative], family: str) -> float | None:
    times = histograms.get(family, EMPTY)
    if times.total is None or not times.counts[-1]:
        return None
    return times.total / times.counts[-1]
