"""Per-token acceptance of speculative decoding, from an engine's counters.

Owns that estimate alone. Accepted / drafted tokens is not it (DESIGN 3.7): after the first refused token the rest of a
round is thrown away, so random prompts that accept 9 % of the tokens tried show 2 % of those drafted.
"""

from __future__ import annotations

import math

from rules.sizing import expected_tokens_per_round
from rules.telemetry.reading_methods import mean_level, ratio
from rules.telemetry.signals import Gap, Missing, Reading, SignalValue
from rules.telemetry.windows import Window

AT_POSITION = "spec_accepted_at_position/"


def acceptance(window: Window) -> SignalValue:
    """Accepted tokens of those that were tried: a token is tried when all before it in its round were accepted.

    Refusals are not counted by the engine, but bounded: each ends a round, so there are at most as many as rounds that
    did not accept their last position, and each throws away between one token and a whole round. The best estimate is
    the a with a + a^2 + ... + a^k = accepted per round, which holds where acceptance is alike at every position
    (DESIGN 3.7; Leviathan et al. 2023, arXiv 2211.17192, equation 1). `n` counts rounds.
    """
    if "spec_drafts" not in window.counters and "spec_accept_length" in window.gauges:
        return _from_gauges(window)
    accepted = ratio(window, "spec_accepted_tokens", "spec_drafts")
    drafted = ratio(window, "spec_draft_tokens", "spec_drafts")
    if isinstance(accepted, Missing) or isinstance(drafted, Missing):
        return accepted if isinstance(accepted, Missing) else drafted
    if not drafted.value or accepted.value is None:
        return Missing(gap=Gap.NO_TRAFFIC, text="no token was drafted")
    if accepted.low is None or drafted.low is None:
        return Reading(value=_solved(accepted.value, drafted.value), low=None, high=None, n=accepted.n)
    return _from_counts(
        rounds=window.counters["spec_drafts"],
        drafted=window.counters["spec_draft_tokens"],
        accepted=min(window.counters["spec_accepted_tokens"], window.counters["spec_draft_tokens"]),
        at_position=_at_position(window),
    )


def _from_gauges(window: Window) -> SignalValue:
    """Of an engine that prints only averages: tokens a round, bonus token included, and draft positions a round.

    The averages are the engine's own over its last log interval, so nothing bounds the result (SGLang
    srt/observability/metrics_collector.py: spec_accept_length, spec_num_steps).
    """
    length, steps = mean_level(window, "spec_accept_length"), mean_level(window, "spec_steps")
    if isinstance(length, Missing) or not length.value:
        return length if isinstance(length, Missing) else Missing(gap=Gap.NO_TRAFFIC, text="no token was drafted")
    if isinstance(steps, Missing) or not steps.value:
        text = "the engine prints tokens a round, not of how many drafted: acceptance per token does not follow"
        return Missing(gap=Gap.NOT_EXPOSED, text=text)
    accepted = min(max(0.0, length.value - 1), steps.value)
    return Reading(value=_solved(accepted, steps.value), low=None, high=None, n=length.n)


def _at_position(window: Window) -> tuple[float, ...]:
    """Accepted tokens by position; empty where the engine does not tell."""
    names = [name for name in window.counters if name.startswith(AT_POSITION) and name[len(AT_POSITION) :].isdigit()]
    return tuple(window.counters[name] for name in sorted(names, key=lambda name: int(name[len(AT_POSITION) :])))


def _from_counts(rounds: float, drafted: float, accepted: float, at_position: tuple[float, ...]) -> Reading:
    refused = drafted - accepted
    longest = max(len(at_position), math.ceil(drafted / rounds))
    most = min(refused, rounds - (at_position[-1] if at_position else 0.0))
    fewest = refused / longest if at_position else 0.0
    low = accepted / (accepted + max(most, fewest)) if accepted else 0.0
    high = accepted / (accepted + fewest) if accepted else 0.0
    value = _solved(accepted / rounds, drafted / rounds)
    return Reading(value=min(high, max(low, value)), low=low, high=high, n=rounds)


def _solved(mean_accepted: float, mean_length: float) -> float:
    """The a at which rounds of `mean_length` tokens accept `mean_accepted`, by bisection.

    A length between two whole numbers is a mixture of them: n-gram drafts are often shorter than the longest.
    """
    whole = math.floor(mean_length)
    longer = mean_length - whole
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if expected_tokens_per_round(middle, whole) - 1 + longer * middle ** (whole + 1) < mean_accepted:
            low = middle
        else:
            high = middle
    return high
