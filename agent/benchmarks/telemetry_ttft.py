"""Whether the client's TTFT agrees with the engine's own histogram of the same run.

Owns that comparison and its words. The engine counts from the arrival of a request to the first token that it makes; the
client counts to the first chunk that it reads. Which window is of the run is decided in `agent.benchmarks.telemetry_merge`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from agent.benchmarks.points import BenchmarkMeasurement
from rules.telemetry import histograms
from rules.telemetry.histograms import Histogram
from rules.telemetry.wording import number, spread

TTFT = "ttft_seconds"

QUANTILES = {"ttft_p50_seconds": ("P50", 0.5), "ttft_p99_seconds": ("P99", 0.99)}
"""Fields of a point by which the two are compared, with their names and shares (0-1)."""

CLIENT_RATIO, CLIENT_SECONDS = 1.1, 0.02
"""A client may count so much more than the engine: 10 % and 20 ms. The clients of the recordings lie within it for 95 % of
their windows (tests/recordings; the acceptance check of replay against their requests.csv uses the same numbers)."""

ENGINE_RATIO = 0.98
"""Below this share of the engine's lower bound a client's TTFT is too early, by the same check."""

PAGE = "docs/what-the-engine-cannot-see.md"

LATER = f"likely --stream-interval, a reasoning parser, or time in the client, the front end or the network ({PAGE})"

EARLIER = f"likely a first chunk without a token, or telemetry of other requests ({PAGE})"


class Bounds(NamedTuple):
    """Seconds between which a quantile lies; `high` is infinite where the histogram does not bound it."""

    low: float
    high: float


def disagreements(
    measured: BenchmarkMeasurement, parts: tuple[Histogram, ...], edge_requests: float
) -> tuple[str, ...]:
    """Return a sentence for each direction in which the client's TTFT lies outside the engine's bounds.

    `parts` is the engine's TTFT histogram (seconds) of the run. `edge_requests` may be of others, or be left out, because
    the scrapes do not meet the ends of the run. Empty where either side counted no TTFT or not how many requests.
    """
    compared = tuple(_compared(measured, parts, edge_requests))
    later = [text for text, client, bounds in compared if client > bounds.high * CLIENT_RATIO + CLIENT_SECONDS]
    earlier = [text for text, client, bounds in compared if client < bounds.low * ENGINE_RATIO]
    return tuple(f"{', '.join(texts)}: {why}" for texts, why in ((later, LATER), (earlier, EARLIER)) if texts)


def _compared(
    measured: BenchmarkMeasurement, parts: tuple[Histogram, ...], edge_requests: float
) -> Iterator[tuple[str, float, Bounds]]:
    """Of each quantile that the client has: both in words, the client's (seconds), the engine's bounds."""
    requests = measured.point.requests
    for field, (name, q) in QUANTILES.items():
        client = getattr(measured.point, field)
        if client is None or not requests:
            continue
        bounds = _bounds(parts, q, requests, edge_requests + _start_burst(measured))
        if bounds is not None:
            high = None if math.isinf(bounds.high) else bounds.high
            engine = spread(bounds.low, high, "seconds")
            yield f"TTFT {name} is {number(client, 'seconds')} at the client and {engine} in the engine", client, bounds


def _start_burst(measured: BenchmarkMeasurement) -> float:
    """Requests with which a closed loop starts: some tools leave them out of the TTFT."""
    return (measured.point.concurrency or 0.0) if measured.loop == "closed" else 0.0


def _bounds(parts: tuple[Histogram, ...], q: float, requests: int, others: float) -> Bounds | None:
    """Where the quantile of the client's requests lies by the engine's histogram.

    Tools interpolate between the two requests around q (n - 1) (Hyndman and Fan 1996, type 7, numpy's default) or take the
    one of rank ceil(q n): all of these count. A request that only one side counted moves every rank by one at most.
    """
    seen = math.fsum(part.n for part in parts)
    if seen <= 0:
        return None
    others += abs(seen - requests)
    first = math.floor(q * (requests - 1)) + 1 - others
    last = max(math.ceil(q * (requests - 1)) + 1, math.ceil(round(q * requests, 6))) + others
    low = histograms.quantile(parts, max(1.0, first) / seen) if first <= seen else None
    high = histograms.quantile(parts, last / seen) if last <= seen else None
    return Bounds(low.low if low else 0.0, math.inf if high is None or high.high is None else high.high)
