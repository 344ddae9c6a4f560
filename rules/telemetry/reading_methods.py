"""Reading methods: one function per `SignalKind` except the derived signals.

Each takes a window and family names, and returns bounds and a count, or a gap. Each uses the sums of a window only, so
any grouping of the same windows gives the same reading. `rules.telemetry.signals` assigns methods to signals. To add a
method: a function here and a member of `SignalKind`. Some engines print no histogram of time per token or to the first
token. For these, other families give the mean and bound the quantiles.
"""

from __future__ import annotations

import math

from rules.telemetry import histograms
from rules.telemetry.signals import Gap, Missing, Reading, SignalValue
from rules.telemetry.windows import EVERYTHING, Window

FULL_COVERAGE = 0.9
"""Lowest covered share of replica-seconds. Below it a tier total is a lower bound, never a value (DESIGN, words)."""

ALL = 1e-6
"""Tolerance of coverage shares. Scrape times are doubles of unix seconds with microsecond precision."""


def quantile(window: Window, family: str, q: float) -> SignalValue:
    """Return the quantile (0-1) of a histogram family. The edges around its rank are the bounds."""
    if family not in window.histograms:
        return Missing(gap=window.explain_missing(family))
    reading = histograms.quantile(window.histograms[family], q)
    return gap_for_empty_family(window, family) if reading is None else reading


def gap_for_empty_family(window: Window, family: str, text: str = "") -> Missing:
    """Return the gap of a family without counts: no traffic, or that of the unobserved time."""
    if window.seconds_of(family) < FULL_COVERAGE * window.due_seconds:
        unseen = window.gaps.get(family) or window.gaps.get(EVERYTHING)
        if unseen is not None:
            return Missing(gap=unseen)
    return Missing(gap=Gap.NO_TRAFFIC, text=text)


def total_rate(window: Window, family: str) -> SignalValue:
    """Return the increase per second of the whole tier: increase / span.

    With less coverage, the observed part stands for the whole. Only a lower bound is given below FULL_COVERAGE. The
    same holds if late counters (`rules.replicas.state`) reach further back than the windows of other replicas.
    """
    seen = window.seconds_of(family)
    if family not in window.counters or seen <= 0 or window.span <= 0:
        return Missing(gap=window.explain_missing(family))
    increase = window.counters[family]
    at_least = increase / window.span
    share = seen / window.due_seconds
    if not FULL_COVERAGE <= share <= 1 + ALL:
        return Reading(value=None, low=at_least, high=None, n=increase)
    value = at_least / min(1.0, share)
    return Reading(value=value, low=at_least, high=value if share >= 1 - ALL else None, n=increase)


def replica_rate(window: Window, family: str) -> float | None:
    """Return the increase per covered replica-second, None if the family was not observed."""
    seconds = window.seconds_of(family)
    if family not in window.counters or seconds <= 0:
        return None
    return window.counters[family] / seconds


def ratio(window: Window, above: str, below: str) -> SignalValue:
    """Return the ratio of two counter increases; `n` is the divisor. It is exact if both were observed over the same
    time. Otherwise it is the ratio of their rates, without bounds."""
    for family in (above, below):
        if family not in window.counters:
            return Missing(gap=window.explain_missing(family))
    base = window.counters[below]
    if base <= 0:
        return gap_for_empty_family(window, below)
    value = window.counters[above] / base
    of_above, of_below = window.seconds_of(above), window.seconds_of(below)
    if abs(of_above - of_below) <= ALL * window.due_seconds:
        return Reading(value=value, low=value, high=value, n=base)
    if of_above <= 0 or of_below <= 0:
        return Missing(gap=window.explain_missing(above if of_above <= 0 else below))
    return Reading(value=value * of_below / of_above, low=None, high=None, n=base)


def share(window: Window, part: str, whole: str) -> SignalValue:
    """Return the ratio of a counter to the counter that includes it. A ratio above 1 is a contradiction."""
    reading = ratio(window, part, whole)
    if isinstance(reading, Reading) and reading.value is not None and reading.value > 1 + ALL:
        counted = f"{window.counters[part]:,.0f} {part} of {window.counters[whole]:,.0f} {whole}"
        return Missing(gap=Gap.CONTRADICTORY, text=f"{counted} ({reading.value:.0%}) cannot be")
    return reading


PROMPTS = "prompt_tokens"

ROUNDED_PROMPTS = 0.05
"""Share of the prompt tokens by which lookups may exceed them: blocks are rounded up."""

RUNNING_PROMPTS = 0.5
"""The same where the requests in the system are not known: they are looked up, and their prompts not yet counted."""


def has_repeated_lookups(queried: float, prompts: float | None, running: float | None = None) -> bool:
    """Return whether lookups (tokens) exceed the prompt tokens of their span. `running` are not counted yet.

    vLLM counted every attempt to schedule a request, and engines count preempted ones again. Such hits are no share.
    """
    if prompts is None:
        return False
    slack = RUNNING_PROMPTS * prompts if running is None else ROUNDED_PROMPTS * prompts + running
    return queried > prompts + slack


def lookup_share(window: Window, part: str, whole: str) -> SignalValue:
    """Return the share of hits in lookups of a cache. Repeated lookups are a contradiction."""
    reading, prompts = share(window, part, whole), window.counters.get(PROMPTS)
    is_covered = window.seconds_of(PROMPTS) >= FULL_COVERAGE * window.due_seconds
    if isinstance(reading, Missing) or prompts is None or not is_covered:
        return reading
    finished = window.counters.get("requests_finished", 0.0)
    levels = list(map(window.gauge, ("requests_running", "requests_waiting")))
    known = [gauge.integral / window.span for gauge in levels if gauge is not None]
    running = math.fsum(known) * prompts / finished if finished > 0 and len(known) == len(levels) else None
    if not has_repeated_lookups(window.counters[whole], prompts, running):
        return reading
    text = f"{window.counters[whole]:,.0f} tokens were looked up for {prompts:,.0f} prompt tokens"
    return Missing(gap=Gap.CONTRADICTORY, text=f"{text}: lookups are counted again and again, their hits are no share")


def mean_level(window: Window, family: str) -> SignalValue:
    """Return the time mean of a gauge over its covered time. The observed extremes are the bounds."""
    gauge = window.gauge(family)
    if gauge is None:
        return Missing(gap=window.explain_missing(family))
    return Reading(value=gauge.mean, low=gauge.minimum, high=gauge.maximum, n=gauge.samples)


def total_level(window: Window, family: str) -> SignalValue:
    """Return a gauge summed over the replicas: its mean and its extremes times the expected replicas. Below
    FULL_COVERAGE return only the observed part. It is a lower bound, because no gauge here is negative."""
    mean, gauge = mean_level(window, family), window.gauge(family)
    if isinstance(mean, Missing) or gauge is None or window.span <= 0:
        return mean
    share, at_least = gauge.seconds / window.due_seconds, gauge.integral / window.span
    if share < FULL_COVERAGE:
        return Reading(value=None, low=at_least, high=None, n=gauge.samples)
    replicas = window.due_seconds / window.span
    whole = share >= 1 - ALL
    return Reading(
        value=gauge.mean * replicas,
        low=gauge.minimum * replicas if whole else at_least,
        high=gauge.maximum * replicas if whole else None,
        n=gauge.samples,
    )


BRACKETS = {
    "ttft_seconds": ("queue_seconds", "e2e_seconds"),
    "tpot_seconds": ("", "whole_per_token_seconds"),
}
"""Pairs of families that bracket a family request by request, and therefore its quantiles: never larger, never smaller.
An empty name means that only 0 is known."""


def bracketed(window: Window, family: str, q: float) -> SignalValue:
    """Return a quantile (0-1) of a family. If the engine does not expose it, return bounds from the two bracketing
    families.

    A request queues before its first token and ends after it; its decode is a part of its inference. The bracket holds
    if the engine observes both families of the same requests. TGI does so at a request's end (backends/v3/src;
    router/src/infer in older releases).
    """
    reading = quantile(window, family, q)
    if isinstance(reading, Reading) or reading.gap is not Gap.NOT_EXPOSED or family not in BRACKETS:
        return reading
    smaller, larger = BRACKETS[family]
    below, above = quantile(window, smaller, q) if smaller else None, quantile(window, larger, q)
    if isinstance(below, Missing) or isinstance(above, Missing):
        return reading
    return Reading(value=None, low=below.low if below else 0.0, high=above.high, n=above.n)


def tpot_mean(window: Window) -> SignalValue:
    """Return the mean decode time per token after the first, from the families that the engine exposes.

    With a decode timer (vLLM before 0.11): decode time / (generated tokens - requests). For llama.cpp (tools/server):
    generating time / tokens generated in it. Otherwise: (mean e2e - mean TTFT) / (mean tokens - 1), without bounds. The
    two means are observed at different moments of a request (SGLang before 0.5.20).
    """
    if "generation_seconds" in window.counters:
        return ratio(window, "generation_seconds", "generation_tokens")
    lengths = window.histograms.get("generation_tokens_per_request")
    if lengths is None:
        return Missing(gap=window.explain_missing("generation_tokens_per_request"))
    decode = _decode_mean(window)
    if isinstance(decode, Missing):
        return decode
    requests, tokens = math.fsum(part.n for part in lengths), histograms.mean(lengths)
    if requests <= 0:
        return gap_for_empty_family(window, "generation_tokens_per_request")
    if tokens is None:
        return CONTRADICTED
    if tokens <= 1:
        return Missing(gap=Gap.NO_TRAFFIC, text="no request generated a second token")
    seconds, exact = decode
    value = seconds / (tokens - 1)
    bound = value if exact else None
    return Reading(value=value, low=bound, high=bound, n=requests)


CONTRADICTED = Missing(gap=Gap.NOT_EXPOSED, text="a sum that the engine printed is contradicted by its buckets")


def _decode_mean(window: Window) -> tuple[float, bool] | Missing:
    """Return the mean seconds from first to last token, and whether the engine measured it."""
    if "decode_seconds" in window.histograms:
        decode = window.histograms["decode_seconds"]
        if not math.fsum(part.n for part in decode):
            return gap_for_empty_family(window, "decode_seconds")
        seconds = histograms.mean(decode)
        return CONTRADICTED if seconds is None else (seconds, True)
    why = window.explain_missing("decode_seconds")
    whole, first = map(window.histograms.get, ("e2e_seconds", "ttft_seconds"))
    if why is not Gap.NOT_EXPOSED or whole is None or first is None:
        return Missing(gap=why)
    if not (math.fsum(part.n for part in whole) and math.fsum(part.n for part in first)):
        return gap_for_empty_family(window, "e2e_seconds")
    of_whole, of_first = histograms.mean(whole), histograms.mean(first)
    if of_whole is None or of_first is None:
        return CONTRADICTED
    return max(0.0, of_whole - of_first), False
