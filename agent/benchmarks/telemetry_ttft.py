"""Comparison of the client's TTFT with the engine's histogram of the same run.

The engine measures from arrival to the first generated token, the client to the first chunk it reads.
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
"""Compared point fields, with their names and quantiles (0-1)."""

CLIENT_RATIO, CLIENT_SECONDS = 1.1, 0.02
"""Tolerance of the client above the engine: 10 % and 20 ms. The recordings' clients are within it for 95 % of their
windows (tests/recordings). The acceptance check of replay against their requests.csv uses the same numbers."""

ENGINE_RATIO = 0.98
"""Ratio to the engine's lower bound below which a client's TTFT is too early, by the same check."""

PAGE = "docs/what-the-engine-cannot-see.md"

LATER = f"likely --stream-interval, a reasoning parser, or time in the client, the front end or the network ({PAGE})"

EARLIER = f"likely a first chunk without a token, or telemetry of other requests ({PAGE})"


class Bounds(NamedTuple):
    """Bounds of a quantile in seconds. `high` is infinite if the histogram does not bound it."""

    low: float
    high: float


def disagreements(
    measured: BenchmarkMeasurement, parts: tuple[Histogram, ...], edge_requests: float
) -> tuple[str, ...]:
    """Return a sentence for each direction in which the client's TTFT lies outside the engine's bounds.

    `parts` is the engine's TTFT histogram (seconds) of the run. Up to `edge_requests` may be extra or missing, because
    scrapes do not meet the ends of the run. Return nothing if either side lacks TTFT or a request count.
    """
    compared = tuple(_compared(measured, parts, edge_requests))
    later = [text for text, client, bounds in compared if client > bounds.high * CLIENT_RATIO + CLIENT_SECONDS]
    earlier = [text for text, client, bounds in compared if client < bounds.low * ENGINE_RATIO]
    return tuple(f"{', '.join(texts)}: {why}" for texts, why in ((later, LATER), (earlier, EARLIER)) if texts)


def _compared(
    measured: BenchmarkMeasurement, parts: tuple[Histogram, ...], edge_requests: float
) -> Iterator[tuple[str, float, Bounds]]:
    """Yield for each quantile of the client: the sentence, the client's value (seconds), the engine's bounds."""
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
    """Return the requests in the start burst of a closed loop: some tools exclude them from the TTFT."""
    return (measured.point.concurrency or 0.0) if measured.loop == "closed" else 0.0


def _bounds(parts: tuple[Histogram, ...], q: float, requests: int, others: float) -> Bounds | None:
    """Return the bounds of the client's quantile in the engine's histogram.

    Tools interpolate between the two requests around q (n - 1) (Hyndman and Fan 1996, type 7, numpy's default). Others
    take rank ceil(q n). The bounds include all. A request counted by one side only moves each rank by at most one.
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
