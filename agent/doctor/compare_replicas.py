"""Replicas of a tier beside each other in a first look: which is unlike the others, and whether the load is spread."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from exporters.documents.diagnosis import LABELS, REPLICA_SIGNALS
from rules.catalogue.registry import BY_NAME as RULES
from rules.confidence import binomial_tail
from rules.methods.evidence import is_significant_share
from rules.telemetry import readings
from rules.telemetry.derived import PlanFacts
from rules.telemetry.signals import BY_NAME as SIGNALS
from rules.telemetry.signals import Reading, SignalValue
from rules.telemetry.snapshots import Snapshot
from rules.telemetry.windows import Window
from rules.telemetry.wording import format_count, number, quantity
from rules.verdicts.context import LIKELY_CONFIDENCE

IMBALANCE = RULES["ReplicaImbalance"]
"""Rule of the daemon for the same over minutes: its limits are used."""

BUSIER, WARM_SECONDS = IMBALANCE.limit("busier", {}), IMBALANCE.limit("warm_up_seconds", {})

FEWEST = IMBALANCE.limit("minimum_requests", {})
"""Requests of a replica that a comparison needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Distance at which a replica is unlike all others: so many times as much, and so many points more (or less)."""

    times: float = 1.0
    points: float = 0.0
    least: float = 0.0


DIFFERENCES: Mapping[str, Difference] = {
    "ttft_p50_seconds": Difference(times=2.0),
    # Guide 9.1, step 13: 30 % apart is not the machine that was measured.
    "tpot_p50_seconds": Difference(times=IMBALANCE.limit("slower", {})),
    "kv_utilization": Difference(points=0.3),
    "requests_waiting": Difference(times=3.0, least=5.0),
    "prefix_hit_ratio": Difference(points=-0.2),
}
"""Signals that are compared; distances without a source are ours."""


def read_replicas(spans: Mapping[str, Window], basis: PlanFacts) -> dict[str, dict[str, SignalValue]]:
    """Return the compared signals of each replica in the span of the look."""
    return {
        replica: {name: readings.read(SIGNALS[name], window, basis) for name in REPLICA_SIGNALS}
        for replica, window in spans.items()
    }


def find_odd_replicas(values: Mapping[str, Mapping[str, SignalValue]], last: Mapping[str, Snapshot]) -> Iterator[str]:
    """Yield each replica that is far from all others, with its signals that are."""
    texts: dict[str, list[str]] = {}
    for name, difference in DIFFERENCES.items():
        known = {
            replica: bounds for replica, signals in values.items() if (bounds := _read_bounds(name, signals[name]))
        }
        if len(known) < 2:
            continue
        is_low = difference.points < 0
        odd = max(known, key=lambda replica: known[replica][0])
        if is_low:
            odd = min(known, key=lambda replica: known[replica][1])
        low, high = known.pop(odd)
        lowest, highest = min(low for low, _ in known.values()), max(high for _, high in known.values())
        is_far = low >= difference.least and low > highest * difference.times + difference.points
        if is_low:
            # A cold cache has few hits rightly.
            is_far = high < lowest + difference.points and not _is_cold(last[odd])
        if is_far:
            unit = SIGNALS[name].unit
            rest = quantity(Reading(value=None, low=lowest, high=highest, n=len(known)), unit)
            text = f"{LABELS[name]} {quantity(values[odd][name], unit)} ({'the other' if len(known) == 1 else 'the others'} {rest})"
            texts.setdefault(odd, []).append(text)
    for odd, parts in texts.items():
        yield f"{odd}: {', '.join(parts)}"


def _read_bounds(name: str, value: SignalValue) -> tuple[float, float] | None:
    """Return the bounds of a latency of enough requests, or the mean of a level or ratio twice; None if not known."""
    if not isinstance(value, Reading):
        return None
    if name.endswith("_seconds"):
        is_known = value.n >= FEWEST and value.low is not None and value.high is not None
        return (value.low or 0.0, value.high or 0.0) if is_known else None
    return None if value.value is None else (value.value, value.value)


def _is_cold(page: Snapshot) -> bool:
    return page.started_at is not None and page.t - page.started_at < WARM_SECONDS


def describe_load(spans: Mapping[str, Window]) -> str:
    """Return whether the finished requests are spread over the replicas beyond chance, "" for one or none counted."""
    counts = {name: window.counters.get("requests_finished") for name, window in spans.items()}
    known = {name: count for name, count in counts.items() if count is not None}
    total = math.fsum(known.values())
    if len(known) < 2:
        return ""
    if total < FEWEST * len(known):
        return f"{format_count(round(total), 'request')} of {len(known)} replicas are too few to see how it is spread"
    busiest, idlest = max(known, key=known.__getitem__), min(known, key=known.__getitem__)
    shares = {name: number(count / total, "ratio") for name, count in known.items()}
    # Shares of a replica with so many times the requests of each other one, and of one with so many times fewer.
    most, fewest = BUSIER / (BUSIER + len(known) - 1), 1 / (1 + BUSIER * (len(known) - 1))
    requests = round(total)
    is_busy = is_significant_share(known[busiest], total, total, most, LIKELY_CONFIDENCE)
    is_idle = 1 - binomial_tail(math.floor(known[idlest]) + 1, requests, fewest) < 1 - LIKELY_CONFIDENCE
    finished = format_count(requests, "finished request")
    if is_busy or is_idle:
        return f"uneven: {busiest} has {shares[busiest]} of {finished}, {idlest} has {shares[idlest]}"
    return f"evenly spread: {shares[idlest]} to {shares[busiest]} of {finished} each"
