"""Times per token and to the first one of engines that do not print them as they are asked for.

Owns the mean time per output token by what is there, and the quantiles that others bracket or bound. What an engine prints as a
histogram of its own is read by `rules.telemetry.reading_methods.quantile`.
"""

from __future__ import annotations

import math

from rules.telemetry import histograms
from rules.telemetry.reading_methods import gap_for_empty_family, quantile, ratio
from rules.telemetry.signals import Gap, Missing, Reading, SignalValue
from rules.telemetry.tpot_bounds import highest_quantile
from rules.telemetry.windows import Window

BRACKETS = {
    "ttft_seconds": ("queue_seconds", "e2e_seconds"),
    "tpot_seconds": ("", "whole_per_token_seconds"),
}
"""Family -> one that is never larger (none: nothing but 0 is known) and one that is never smaller, request by request: so
are their quantiles."""


PER_TOKEN = "tpot_seconds"

FROM_WHOLE = ("e2e_seconds", "generation_tokens_per_request")
"""Families of whole time and of length that bound the time per output token where nothing brackets it."""


def bracketed(window: Window, family: str, q: float) -> SignalValue:
    """A quantile (0-1) of a family; where the engine does not expose it, between those of the two that bracket it.

    A request waits in the queue before its first token and ends after it; its decode is a part of its inference. Holds
    where the engine observes both of the same requests: TGI does, at a request's end (backends/v3/src; router/src/infer
    in older releases). A time per output token that nothing brackets is bounded by whole time and length.
    """
    found = quantile(window, family, q)
    if isinstance(found, Reading) or found.gap is not Gap.NOT_EXPOSED or family not in BRACKETS:
        return found
    smaller, larger = BRACKETS[family]
    below, above = quantile(window, smaller, q) if smaller else None, quantile(window, larger, q)
    if isinstance(below, Missing) or isinstance(above, Missing):
        return _by_whole_and_length(window, q, found) if family == PER_TOKEN else found
    return Reading(value=None, low=below.low if below else 0.0, high=above.high, n=above.n)


def _by_whole_and_length(window: Window, q: float, without: Missing) -> SignalValue:
    """The TPOT quantile (0-1) between 0 and `rules.telemetry.tpot_bounds`; `without` where a family for that is missing.

    Both families are observed as a request ends: SGLang (tokenizer_manager.py, collect_metrics), vLLM (loggers.py,
    finished requests), Dynamo's frontend (times those that made no token as well). The time to the first token is
    observed earlier, and so of other requests: equal counts in a window do not make them the same ones. The gaps between
    tokens are those of requests that go on as well. So neither gives a lower bound.
    """
    if any(family not in window.histograms for family in FROM_WHOLE):
        return without
    wholes, lengths = (window.histograms[family] for family in FROM_WHOLE)
    if not any(part.n for part in (*wholes, *lengths)):
        return gap_for_empty_family(window, FROM_WHOLE[0])
    found = highest_quantile(wholes, lengths, q)
    if found is None:
        return Missing(gap=Gap.NO_TRAFFIC, text=NO_SECOND_TOKEN)
    return Reading(value=None, low=0.0, high=found.high, n=found.n)


NO_SECOND_TOKEN = "no request generated a second token"


def tpot_mean(window: Window) -> SignalValue:
    """Mean decode time per token after the first, by what the engine tells.

    Decode time / (generated tokens - requests) where decode is timed (vLLM before 0.11); the time spent generating /
    the tokens generated in it (llama.cpp, tools/server); else (mean e2e - mean TTFT) / (mean tokens - 1), which nothing
    bounds: the two are observed at different moments of a request (SGLang before 0.5.20).
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
        return Missing(gap=Gap.NO_TRAFFIC, text=NO_SECOND_TOKEN)
    seconds, exact = decode
    value = seconds / (tokens - 1)
    bound = value if exact else None
    return Reading(value=value, low=bound, high=bound, n=requests)


CONTRADICTED = Missing(gap=Gap.NOT_EXPOSED, text="a sum that the engine printed is contradicted by its buckets")


def _decode_mean(window: Window) -> tuple[float, bool] | Missing:
    """Mean seconds from first to last token, and whether the engine timed it itself."""
    if "decode_seconds" in window.histograms:
        decode = window.histograms["decode_seconds"]
        if not math.fsum(part.n for part in decode):
            return gap_for_empty_family(window, "decode_seconds")
        seconds = histograms.mean(decode)
        return CONTRADICTED if seconds is None else (seconds, True)
    why = window.explain_missing("decode_seconds")
    whole, first = (window.histograms.get(name) for name in ("e2e_seconds", "ttft_seconds"))
    if why is not Gap.NOT_EXPOSED or whole is None or first is None:
        return Missing(gap=why)
    if not (math.fsum(part.n for part in whole) and math.fsum(part.n for part in first)):
        return gap_for_empty_family(window, "e2e_seconds")
    of_whole, of_first = histograms.mean(whole), histograms.mean(first)
    if of_whole is None or of_first is None:
        return CONTRADICTED
    return max(0.0, of_whole - of_first), False
