"""Work: production's load in requests of the lengths that capacity was measured at (DESIGN 3.12).

Owns which lengths these are and what a window's requests are worth in them. A request costs its computed prompt tokens
and its generated tokens. How the two share a replica's time is not known, so each kind alone is a bound of the work, and
the middle of both the best estimate. That holds for any cost that grows in proportion to tokens; attention over contexts
longer than the benchmark's comes on top. It compares nothing with a limit: `rules.telemetry.derived` divides by capacity.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from rules.confidence import Certainty
from rules.telemetry.reading_methods import replica_rate
from rules.telemetry.signals import Reading
from rules.telemetry.windows import Window
from rules.telemetry.wording import number

SAME = 0.05
"""Work, a length, a rate or a capacity within this share of the planned one is the planned one."""

APART = 1.1
"""Bounds nearer to each other than this are one number, said twice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanTokens:
    """A mean length in tokens a request: exact where `low` and `high` are one, else bounds; `high` None is open."""

    low: float
    high: float | None

    @property
    def is_exact(self) -> bool:
        return self.low == self.high


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityLengths:
    """Mean tokens of the requests that a capacity was measured with: prompts (cached tokens included) and outputs.

    A mean is None where nothing tells it. `prefix_hit_ratio` is the share of the prompt tokens that the prefix cache
    served, None where it is not told.
    """

    prompt_tokens: MeanTokens | None = None
    generation_tokens: MeanTokens | None = None
    prefix_hit_ratio: float | None = None


UNTOLD = CapacityLengths()
"""Lengths of a plan that tells none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLoad:
    """Tokens of one kind as requests per second of the capacity's lengths: the best estimate and its bounds."""

    low: float
    best: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Load of one replica in requests per second of the capacity's lengths, and by one kind of token alone (None where
    plan or engine does not tell it). `hits_untold` names the side whose prefix cache hits nothing tells, "" for neither
    or both.
    """

    total: Reading
    by_prompts: TokenLoad | None
    by_outputs: TokenLoad | None
    hits_untold: str = ""


def work_of(window: Window, lengths: CapacityLengths) -> Work | None:
    """Return the work of a window per covered replica-second; None where finished requests are not known.

    Tokens that plan or engine does not tell count as many requests as finished, and then nothing bounds the total. So do
    those of which the plan bounds the mean, as far as the bounds allow it.
    """
    finished = replica_rate(window, "requests_finished")
    if finished is None:
        return None
    prompts = _token_load(window, "prompt_tokens", lengths.prompt_tokens, finished)
    outputs = _token_load(window, "generation_tokens", lengths.generation_tokens, finished)
    untold = ""
    if prompts is not None:
        prompts, untold = _without_hits(prompts, computed_share(window), lengths.prefix_hit_ratio)
    known = [one for one in (prompts, outputs) if one is not None]
    bounded = len(known) == 2
    total = Reading(
        value=(sum(one.best for one in known) + (2 - len(known)) * finished) / 2,
        low=min(one.low for one in known) if bounded else None,
        high=max(one.high for one in known) if bounded else None,
        n=window.counters["requests_finished"],
    )
    return Work(total=total, by_prompts=prompts, by_outputs=outputs, hits_untold=untold)


def _token_load(window: Window, family: str, mean: MeanTokens | None, finished: float) -> TokenLoad | None:
    """Tokens per second by the capacity's mean tokens a request."""
    tokens = replica_rate(window, family)
    if tokens is None or mean is None:
        return None
    low, high = tokens / mean.high if mean.high else 0.0, tokens / mean.low
    return TokenLoad(low=low, best=min(max(finished, low), high), high=high)


def _without_hits(prompts: TokenLoad, now: float | None, planned_hits: float | None) -> tuple[TokenLoad, str]:
    """Without what the prefix cache served: it costs nothing, in production (`now` is the share that was computed) or in
    the benchmark.

    Where one of the two does not tell its hits, it had between none and as large a share as the other; the best estimate
    is that the shares are equal. The second value names it.
    """
    then = None if planned_hits is None or planned_hits >= 1 else 1 - planned_hits
    if now is None or then is None:
        low, best, high = 1.0 if now is None else now, 1.0, 1.0 if then is None else 1 / then
    else:
        low = best = high = now / then
    load = TokenLoad(low=prompts.low * low, best=prompts.best * best, high=prompts.high * high)
    sides = (("production", now, then), ("the benchmark", then, now))
    untold = next((side for side, own, other in sides if own is None and other not in (None, 1.0)), "")
    return load, untold


def computed_share(window: Window) -> float | None:
    """Return the share of prompt tokens that had to be computed, 0-1: counted, else by the prefix cache's own counters."""
    computed, prompts = (replica_rate(window, name) for name in ("prompt_tokens_computed", "prompt_tokens"))
    if computed is not None and prompts:
        return min(1.0, computed / prompts)
    hits, queried = (replica_rate(window, name) for name in ("prefix_hit_tokens", "prefix_queried_tokens"))
    return 1 - min(1.0, hits / queried) if hits is not None and queried else None


def weighing_words(work: Work, lengths: CapacityLengths, usable_rps: float) -> str:
    """Return in parentheses how far apart the bounds of use are, and why; "" where they are one number."""
    kinds = (("prompt", work.by_prompts, lengths.prompt_tokens), ("output", work.by_outputs, lengths.generation_tokens))
    untold = [word for word, load, _ in kinds if load is None]
    if untold:
        return f" (not weighed by {' and '.join(untold)} tokens, which plan or engine does not tell)"
    low, high = work.total.low or 0.0, work.total.high or 0.0
    if high <= APART * low:
        return ""
    span = f"{number(low / usable_rps, 'ratio')} to {number(high / usable_rps, 'ratio')}"
    unknown = [word for word, _, mean in kinds if mean is None or not mean.is_exact]
    if unknown:
        return f" ({span}: the plan has no mean of its {' and '.join(unknown)} tokens)"
    parts = [f"{number(load.best / usable_rps, 'ratio')} by {word} tokens" for word, load, _ in kinds if load]
    hits = [f"{work.hits_untold} does not tell its prefix cache hits"] if work.hits_untold else []
    return f" ({span}: {', '.join([*parts, *hits])})"


class CapacitySource(StrEnum):
    """Where a capacity is known from."""

    BENCHMARK = "benchmark"
    OPERATOR = "operator"
    PRODUCTION = "production"


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """Completed requests per second of one replica within its SLO.

    `rps` is the best estimate and lies in [low, high] (None: open). `planned_rps` is the plan's, None where it has none.
    `highest_rps` is the highest mean load of a load bin in production, `kept_rps` the highest that kept the SLO.
    `knee_seen` says whether production broke it. `reason` says in words where the number comes from. It counts requests of
    these `lengths`: others are more or less work (`rules.telemetry.work`).
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
        """Return whether nobody knows where a replica's capacity ends: no benchmark, and production kept the SLO at
        every load.

        Such a number is the load that the present fleet gives a replica. To count replicas with it would ask for more of them,
        which lowers it, and so on without end.
        """
        return self.planned_rps is None and not self.knee_seen
