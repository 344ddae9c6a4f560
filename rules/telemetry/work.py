"""Work: the load of production in requests of the lengths that capacity was measured at (DESIGN 3.12).

A request costs its computed prompt tokens and its generated tokens. Their shares of a replica's time are unknown. Each
kind alone therefore bounds the work, and the middle is the best estimate. This holds for any cost proportional to
tokens. Attention over contexts longer than the benchmark's adds to it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from rules.confidence import Certainty
from rules.telemetry import histograms
from rules.telemetry.outcomes import count_gone
from rules.telemetry.reading_methods import ALL, has_repeated_lookups, replica_rate
from rules.telemetry.signals import Reading
from rules.telemetry.windows import NET_CHANGE, Window
from rules.telemetry.wording import number

SAME = 0.05
"""Relative tolerance. Work, a length, a rate or a capacity within it equals the planned value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanTokens:
    """Mean tokens per request: exact if `low` equals `high`, otherwise bounds. `high` None is open."""

    low: float
    high: float | None

    @property
    def is_exact(self) -> bool:
        return self.low == self.high


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityLengths:
    """Mean tokens of the requests that a capacity was measured with: prompts (with cached tokens) and outputs. None is
    unknown. `prefix_hit_ratio` is the share of prompt tokens from the prefix cache, or None if unknown. `only` is the family of
    the tokens that alone count: a pool's, or those that limited an overloaded replica. "" for both."""

    prompt_tokens: MeanTokens | None = None
    generation_tokens: MeanTokens | None = None
    prefix_hit_ratio: float | None = None
    only: str = ""

    def __str__(self) -> str:
        kinds = ((self.prompt_tokens, "prompt"), (self.generation_tokens, "output"))
        words = [f"{'' if mean.is_exact else 'at least '}{mean.low:,.0f} {kind}" for mean, kind in kinds if mean]
        return f"{' and '.join(words)} tokens" if words else "lengths that are not known"


UNTOLD = CapacityLengths()
"""Lengths of a plan without lengths."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLoad:
    """Tokens of one kind as requests per second of the capacity's lengths: the best estimate and its bounds."""

    low: float
    best: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Load of a replica in requests per second of the capacity's lengths, in total and by each kind of token.

    A kind is None if plan or engine lacks it.
    """

    total: Reading
    by_prompts: TokenLoad | None
    by_outputs: TokenLoad | None


def work_of(window: Window, lengths: CapacityLengths) -> Work | None:
    """Return the work of a window per covered replica-second, None if finished requests are unknown.

    Tokens that plan or engine lacks count as many requests as finished, and the total has no bounds. Tokens with a
    planned range of the mean count the same, within that range.
    """
    finished = replica_rate(window, "requests_finished")
    if finished is None and not lengths.only:
        return None
    prompts, outputs = replica_rate(window, "prompt_tokens"), replica_rate(window, "generation_tokens")
    if lengths.only and (prompts if lengths.only == "prompt_tokens" else outputs) is None:
        return None
    n = window.counters.get("requests_finished", 0.0)
    return weigh(finished or 0.0, prompts, outputs, computed_share(window), lengths, n=n)


def weigh(
    requests: float,
    prompt_tokens: float | None,
    generation_tokens: float | None,
    computed: float | None,
    lengths: CapacityLengths,
    *,
    n: float,
) -> Work:
    """Return requests with their tokens as work, all in one unit: per second, or amounts of the same time.

    `computed` is the share of prompt tokens that no cache had (0-1). None is unknown. `n` counts the requests behind it.
    """
    prompts = _token_load(prompt_tokens, lengths.prompt_tokens, requests)
    outputs = _token_load(generation_tokens, lengths.generation_tokens, requests)
    if prompts is not None:
        prompts = _without_hits(prompts, computed, lengths.prefix_hit_ratio)
    if lengths.only:
        prompts, outputs = (prompts, None) if lengths.only == "prompt_tokens" else (None, outputs)
    known = [token_load for token_load in (prompts, outputs) if token_load is not None] * (2 if lengths.only else 1)
    bounded = len(known) == 2
    total = Reading(
        value=(sum(token_load.best for token_load in known) + (2 - len(known)) * requests) / 2,
        low=min(token_load.low for token_load in known) if bounded else None,
        high=max(token_load.high for token_load in known) if bounded else None,
        n=n,
    )
    return Work(total=total, by_prompts=prompts, by_outputs=outputs)


def _token_load(tokens: float | None, mean: MeanTokens | None, requests: float) -> TokenLoad | None:
    """Return tokens by the capacity's mean tokens per request."""
    if tokens is None or mean is None:
        return None
    low, high = tokens / mean.high if mean.high else 0.0, tokens / mean.low
    return TokenLoad(low=low, best=min(max(requests, low), high), high=high)


def _without_hits(prompts: TokenLoad, now: float | None, planned_hits: float | None) -> TokenLoad:
    """Subtract the tokens from the prefix cache. Cached tokens cost nothing.

    `now` is the computed share in production. An unknown share lies between zero and the other side's. The best
    estimate is equal shares.
    """
    then = None if planned_hits is None or planned_hits >= 1 else 1 - planned_hits
    if now is None or then is None:
        low, best, high = 1.0 if now is None else now, 1.0, 1.0 if then is None else 1 / then
    else:
        low = best = high = now / then
    return TokenLoad(low=prompts.low * low, best=prompts.best * best, high=prompts.high * high)


def mean_length(window: Window, counter: str, family: str) -> float | None:
    """Return the tokens a request: the histogram's mean, else tokens by finished requests, or None."""
    mean = histograms.mean(window.histograms.get(family, ()))
    finished = window.counters.get("requests_finished", 0.0)
    if mean is not None or finished <= 0 or counter not in window.counters:
        return mean
    return window.counters[counter] / finished


def computed_share(window: Window) -> float | None:
    """Return the computed share of prompt tokens (0-1): counted, or by the prefix cache."""
    computed, prompts = (replica_rate(window, name) for name in ("prompt_tokens_computed", "prompt_tokens"))
    if computed is not None and prompts:
        return min(1.0, computed / prompts)
    hits, queried = (replica_rate(window, name) for name in ("prefix_hit_tokens", "prefix_queried_tokens"))
    if hits is None or not queried or has_repeated_lookups(queried, prompts):
        return None
    return 1 - min(1.0, hits / queried)


def count_served(window: Window) -> float | None:
    """Return the requests that the tokens of a window belong to, None if finished requests are unknown.

    Engines count prompt tokens at the first token or at the end (notes of `rules.engines`), and generated tokens while
    they make them. So the divisor is the middle of the requests that began and that ended, with the clients that left
    after the first token. It is wrong by at most half the growth of the running requests.
    """
    counters = window.counters
    if "requests_finished" not in counters:
        return None
    finished, change = counters["requests_finished"], counters.get(NET_CHANGE, 0.0)
    apart = window.seconds_of("ttft_seconds") - window.seconds_of("requests_finished")
    if "ttft_seconds" not in window.histograms or abs(apart) > ALL * window.due_seconds:
        return finished
    begun = histograms.count_requests(window.histograms["ttft_seconds"])
    finished += min(count_gone(window), max(0.0, begun - finished))
    return finished + min(max(begun - finished, min(0.0, change)), max(0.0, change)) / 2


def work_per_request(window: Window, lengths: CapacityLengths) -> tuple[float, float]:
    """Return the work of a request: lower bound and best estimate, in requests of `lengths`, or 1."""
    served, work, seconds = count_served(window), work_of(window, lengths), window.seconds_of("requests_finished")
    if not served or work is None or work.total.value is None or seconds <= 0:
        return 1.0, 1.0
    each = seconds / served
    best = work.total.value * each
    return min(1.0, best) if work.total.low is None else work.total.low * each, best


def arriving_words(requests_rps: float, work_rps: float, where: str = "") -> str:
    """Return the arrivals in words, also as work if that differs."""
    text = f"{number(requests_rps, 'per_second')} arrive{where}"
    if requests_rps / (1 + SAME) <= work_rps <= requests_rps * (1 + SAME):
        return text
    return f"{text} (by their tokens the work of {number(work_rps, 'per_second')})"


def describe_weighing(
    work_rps: float, requests_rps: float | None, lengths: CapacityLengths, expected_rps: float | None = None
) -> str:
    """Return in words which work arrives with these requests (per second), or why requests count as they are."""
    if lengths == UNTOLD or requests_rps is None or work_rps == requests_rps:
        return "requests count alike: plan, benchmark or traffic does not tell how long they are"
    requests, work = number(requests_rps, "per_second"), number(work_rps, "per_second")
    expected = "" if expected_rps is None else f"; {number(expected_rps, 'per_second')} expected as requests"
    return f"{requests} arrive, by their tokens the work of {work} with {lengths}{expected}"


class CapacitySource(StrEnum):
    BENCHMARK = "benchmark"
    OPERATOR = "operator"
    PRODUCTION = "production"


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """Completed requests per second of one replica within its SLO.

    `rps` is the best estimate in [low, high] (None: open). `planned_rps` is the plan's, or None. `highest_rps` is the
    highest mean load of a load bin in production, `kept_rps` the highest that met the SLO. `knee_seen` is true if
    production missed it. `reason` explains the source. The number counts requests of `lengths`; other lengths are more
    or less work (`rules.telemetry.work`).
    """

    rps: float
    low: float
    high: float | None
    source: CapacitySource
    certainty: Certainty
    reason: str
    planned_rps: float | None = None
    highest_rps: float | None = None
    kept_rps: float | None = None
    knee_seen: bool = False
    lengths: CapacityLengths = UNTOLD

    @property
    def is_lower_bound(self) -> bool:
        """Return whether the capacity limit is unknown: no benchmark, and production met the SLO at every load.

        The number is then the load per replica of the present fleet. A replica count from it would ask for more
        replicas, which lowers the number again, without end.
        """
        return self.planned_rps is None and not self.knee_seen
