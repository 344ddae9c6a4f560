"""Demand of a tier per minute: the requests and tokens that arrived, not those that were finished.

It stores nothing and does not forecast. A quantity is a pair of fields in `MinuteSums` (sum, observed replica-seconds)
and a field in `MinuteDemand`. It has a line in `minute_from_window` and `list_demand`.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace

from rules.telemetry.outcomes import FAILED, HTTP_FAILED, NO_ROOM, count_gone, failed_bounds
from rules.telemetry.windows import MINUTE_SECONDS, NET_CHANGE, Window
from rules.telemetry.work import UNTOLD, CapacityLengths, computed_share, count_served, weigh

UNSERVED = (FAILED, HTTP_FAILED, NO_ROOM)
"""Families that count requests which arrived and were not served."""

ENOUGH_COVERAGE = 0.5
"""Lowest covered share of a minute's replica-seconds, and of the minute itself. Below it demand is unknown: most of it
would be a guess."""

REQUEST_MINUTES = 15
"""Longest window of mean tokens per request, in minutes: requests of one minute would give a random mean."""

ENOUGH_REQUESTS = 100.0
"""Served requests that end the window of the mean tokens sooner, so that it follows a change of the lengths.

The standard error of a mean of n is the scatter by sqrt(n). Where lengths scatter as widely as their mean, as an
exponential distribution does, a hundred give it to a tenth."""

FEWEST_REQUESTS = 1.0

LEAST_SHARE, MOST_SHARE = 0.5, 2.0
"""Bounds of the estimated tokens asked for, as multiples of the observed tokens. An engine that queues everything and
finishes nothing has as many arrivals; estimates above the bound are not credible."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MinuteSums:
    """Sums over the observed part of the minute that begins at `start` (unix seconds). They add up over replicas and
    bookings.

    `first` and `last` are the ends of the expected time in it. `completed` counts served requests in the seconds with
    known arrivals (`rules.telemetry.work.count_served`). `waiting` is a time integral
    (requests x seconds). `computed_tokens` are the prompt tokens that no prefix cache had, where that is known.
    """

    start: float
    first: float
    last: float
    expected_seconds: float
    covered_seconds: float
    requests: float = 0.0
    requests_seconds: float = 0.0
    completed: float = 0.0
    prompt_tokens: float = 0.0
    prompt_seconds: float = 0.0
    generation_tokens: float = 0.0
    generation_seconds: float = 0.0
    waiting: float = 0.0
    waiting_seconds: float = 0.0
    computed_tokens: float = 0.0
    computed_seconds: float = 0.0


ADDED = tuple(f.name for f in fields(MinuteSums) if f.name not in ("start", "first", "last"))
"""Additive fields of `MinuteSums`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MinuteDemand:
    """Arrivals at a tier in the minute that begins at `start` (unix seconds): requests, tokens asked for, mean waiting
    requests. None means missing. `covered_seconds` of `expected_seconds` replica-seconds were observed. `computed` is
    the share (0-1) of prompt tokens that no prefix cache had."""

    start: float
    requests: float | None
    prompt_tokens: float | None = None
    generation_tokens: float | None = None
    waiting: float | None = None
    covered_seconds: float
    expected_seconds: float
    computed: float | None = None

    def work(self, lengths: CapacityLengths) -> float | None:
        """Return the arrivals as work: in requests of these lengths. Unknown tokens count as their requests."""
        if self.requests is None or lengths == UNTOLD:
            return self.requests
        tokens = self.prompt_tokens, self.generation_tokens
        return weigh(self.requests, *tokens, self.computed, lengths, n=self.requests).total.value


def count_arrivals(counters: Mapping[str, float], gone: float = 0.0) -> float | None:
    """Return the requests that arrived, from counter increases over the same time, None if no request is
    counted. `gone` are those that no count of ends has (`rules.telemetry.outcomes.count_gone`).

    Use the engine's own counter of arrivals if it has one. Otherwise add finished requests, the growth of requests in
    the system, and failed or refused ones. The result misses unobserved aborts. In a single window it may be negative,
    because gauges can lag.
    """
    if "requests_arrived" in counters:
        return counters["requests_arrived"]
    if "requests_finished" not in counters:
        return None
    return counters["requests_finished"] + counters.get(NET_CHANGE, 0.0) + unserved(counters) + gone


def unserved(counters: Mapping[str, float]) -> float:
    """Return the requests that failed or were refused for want of room and are in no other count.

    Engines that count arrivals include them there. Others count them neither as finished nor as in the system (notes of
    `rules.engines`).
    """
    return 0.0 if "requests_arrived" in counters else failed_bounds(counters)[0] + counters.get(NO_ROOM, 0.0)


def minute_from_window(window: Window) -> MinuteSums:
    """Return the sums of a window as if it were one minute.

    A window of several replicas expects more time than it spans, and all of it since its start.
    """
    value, served = count_arrivals(window.counters, count_gone(window)), count_served(window)
    seconds = _seconds(window, "requests_arrived" if "requests_arrived" in window.counters else "requests_finished")
    prompts, generated = map(window.counters.get, ("prompt_tokens", "generation_tokens"))
    waiting, computed = window.gauges.get("requests_waiting"), computed_share(window)
    return MinuteSums(
        start=window.start,
        first=max(window.start, window.end - window.expected_seconds),
        last=window.end,
        expected_seconds=window.expected_seconds,
        covered_seconds=window.covered_seconds,
        requests=value or 0.0,
        requests_seconds=0.0 if value is None else seconds,
        completed=(value or 0.0) if served is None else served,
        prompt_tokens=prompts or 0.0,
        prompt_seconds=0.0 if prompts is None else _seconds(window, "prompt_tokens"),
        generation_tokens=generated or 0.0,
        generation_seconds=0.0 if generated is None else _seconds(window, "generation_tokens"),
        waiting=waiting.integral if waiting else 0.0,
        waiting_seconds=waiting.seconds if waiting else 0.0,
        computed_tokens=(computed or 0.0) * (prompts or 0.0),
        computed_seconds=0.0 if computed is None or prompts is None else _seconds(window, "prompt_tokens"),
    )


def _seconds(window: Window, family: str) -> float:
    return max(0.0, window.seconds_of(family))


SPREAD_SECONDS = 86_400.0
"""Longest time in seconds over which a window is spread: longer windows come from clocks that jump."""


def split_by_minute(window: Window) -> tuple[MinuteSums, ...]:
    """Spread a window evenly over its minutes.

    Observed amounts go over the whole window, expected time over its end. The two differ if counters were booked late
    (`rules.replicas.state`): late counters belong to the preceding silence. Of a window of more than SPREAD_SECONDS
    only the end has minutes: a clock may be set years ahead.
    """
    whole = minute_from_window(window)
    oldest = window.end - SPREAD_SECONDS
    seen_from, first = max(window.start, oldest), max(whole.first, oldest)
    start, minutes = min(seen_from, first) // MINUTE_SECONDS * MINUTE_SECONDS, []
    while start < window.end:
        seen = _overlap(start, seen_from, window.end) / (window.end - seen_from) if window.span > 0 else 0.0
        due = _overlap(start, first, window.end)
        share = dict.fromkeys(ADDED, seen) | {"expected_seconds": due / (window.end - whole.first) if due else 0.0}
        minutes.append(
            MinuteSums(
                start=start,
                first=max(start, first) if due else math.inf,
                last=min(start + MINUTE_SECONDS, window.end) if due else -math.inf,
                **{name: getattr(whole, name) * share[name] for name in ADDED},
            )
        )
        start += MINUTE_SECONDS
    return tuple(minutes)


def _overlap(start: float, low: float, high: float) -> float:
    return max(0.0, min(start + MINUTE_SECONDS, high) - max(start, low))


def add(sums: Iterable[MinuteSums]) -> MinuteSums:
    """Return the sum of parts of one minute. Raise ValueError for no parts or parts of different minutes."""
    parts = tuple(sums)
    if len({part.start for part in parts}) != 1:
        raise ValueError("only parts of one and the same minute add up")
    return MinuteSums(
        start=parts[0].start,
        first=min(part.first for part in parts),
        last=max(part.last for part in parts),
        **{name: math.fsum(getattr(part, name) for part in parts) for name in ADDED},
    )


def list_demand(minutes: Iterable[MinuteSums]) -> tuple[MinuteDemand, ...]:
    """Return the estimated demand of each minute. The input is in time order.

    An amount is scaled up by its observed share of the expected replica-seconds and by the watched share of the minute.
    Both shares must be at least ENOUGH_COVERAGE; otherwise the amount is missing. Tokens asked for are the observed
    tokens plus a correction: the mean per served request times arrived less served requests. The mean is that of the
    last ENOUGH_REQUESTS, at most of REQUEST_MINUTES. The result is at least LEAST_SHARE of the observed tokens, and at
    most MOST_SHARE of them or what arrived.
    """
    recent: deque[MinuteSums] = deque(maxlen=REQUEST_MINUTES)
    demand = []
    for minute in minutes:
        recent.append(minute)
        completed = prompts = generated = 0.0
        for before in reversed(recent):
            if completed >= ENOUGH_REQUESTS or before.start <= minute.start - REQUEST_MINUTES * MINUTE_SECONDS:
                break
            completed += before.completed
            prompts += before.prompt_tokens
            generated += before.generation_tokens
        prompts = _asked(minute.prompt_tokens, prompts, completed, minute)
        generated = _asked(minute.generation_tokens, generated, completed, minute)
        known = replace(
            demand_from_requests(minute),
            prompt_tokens=_whole(minute, prompts, minute.prompt_seconds),
            generation_tokens=_whole(minute, generated, minute.generation_seconds),
            waiting=_waiting(minute),
            computed=_computed(minute),
        )
        demand.append(known)
    return tuple(demand)


def _computed(sums: MinuteSums) -> float | None:
    """Return the computed share of the prompt tokens, None if most of it was not told."""
    if sums.prompt_tokens <= 0 or sums.computed_seconds < ENOUGH_COVERAGE * sums.prompt_seconds:
        return None
    return min(1.0, sums.computed_tokens / sums.prompt_tokens * sums.prompt_seconds / sums.computed_seconds)


def demand_from_requests(sums: MinuteSums) -> MinuteDemand:
    """Return the requests of a minute as `list_demand` does. Tokens and waiting requests are missing."""
    return MinuteDemand(
        start=sums.start,
        requests=_whole(sums, max(0.0, sums.requests), sums.requests_seconds),
        covered_seconds=sums.covered_seconds,
        expected_seconds=sums.expected_seconds,
    )


def _asked(tokens: float, of_recent: float, finished: float, sums: MinuteSums) -> float:
    if finished < FEWEST_REQUESTS or sums.requests_seconds <= 0:
        return tokens
    each = of_recent / finished
    more = (sums.requests - sums.completed) * each
    return min(max(tokens + more, LEAST_SHARE * tokens), max(MOST_SHARE * tokens, sums.requests * each))


def _whole(sums: MinuteSums, amount: float, seconds: float) -> float | None:
    """Return the amount for the whole minute and all replicas, None if too little of it was observed."""
    watched = min(1.0, (sums.last - sums.first) / MINUTE_SECONDS)
    if sums.expected_seconds <= 0 or min(watched, seconds / sums.expected_seconds) < ENOUGH_COVERAGE:
        return None
    return amount / min(1.0, seconds / sums.expected_seconds) / watched


def _waiting(sums: MinuteSums) -> float | None:
    """Return the mean number of waiting requests in the tier: the mean per replica times the replicas."""
    watched = sums.last - sums.first
    if sums.expected_seconds <= 0 or sums.waiting_seconds < ENOUGH_COVERAGE * sums.expected_seconds:
        return None
    return sums.waiting / sums.waiting_seconds * sums.expected_seconds / watched
