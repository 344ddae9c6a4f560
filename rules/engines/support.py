"""Which signals an engine's releases can give: known, bounded, or not exposed and why.

Owns the answer and no list of its own: a window that holds every family of a release's rows is read by the same way as
a real one, so what is claimed here is what readings do. A new engine or signal needs no change here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from rules.confidence import Certainty
from rules.engines.table import EngineTable
from rules.telemetry.derived import PlanFacts
from rules.telemetry.families import BY_NAME, FamilyKind
from rules.telemetry.gauges import IN_SYSTEM, GaugeSum
from rules.telemetry.gpu_readout import GPU_NAMES
from rules.telemetry.histograms import Histogram
from rules.telemetry.readings import read
from rules.telemetry.signals import SIGNALS, Missing, Signal, SignalValue
from rules.telemetry.windows import NET_CHANGE, Window
from rules.telemetry.work import Capacity, CapacityLengths, CapacitySource, MeanTokens

SECONDS = 60.0
REQUESTS = 120.0

FULL_PLAN = PlanFacts(
    gpus_per_replica=1.0,
    gpu_hour_price=1.0,
    ttft_slo_seconds=1.0,
    tpot_slo_seconds=1.0,
    capacity=Capacity(
        rps=1.0,
        low=1.0,
        high=1.0,
        source=CapacitySource.BENCHMARK,
        certainty=Certainty.CERTAIN,
        reason="one",
        lengths=CapacityLengths(
            prompt_tokens=MeanTokens(low=1.0, high=1.0),
            generation_tokens=MeanTokens(low=1.0, high=1.0),
            prefix_hit_ratio=0.0,
        ),
    ),
)
"""A plan that has everything: what is missing then is the engine's."""


class Support(StrEnum):
    """What a signal is worth on an engine. `bounded`: bounds without a best estimate."""

    KNOWN = "known"
    BOUNDED = "bounded"
    NOT_EXPOSED = "not exposed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Exposure:
    """One signal on one engine. `spans` are (support, first, last scanned release) in their order; without scanned
    releases there is one, with empty names. `why` says what is missing where any of them is not exposed."""

    signal: str
    spans: tuple[tuple[Support, str, str], ...]
    why: str

    @property
    def newest_support(self) -> Support:
        """Support by the newest release."""
        return self.spans[-1][0]


def engine_signals() -> tuple[Signal, ...]:
    """The signals that an engine's page can give: all but those of the GPU."""
    return tuple(s for s in SIGNALS if not all(family in GPU_NAMES for family in s.families))


def exposures(engine: EngineTable) -> tuple[Exposure, ...]:
    """What each signal of the engine is worth, release by release."""
    releases = engine.scanned or ("",)
    windows = {release: _everything(engine, release) for release in releases}
    return tuple(_exposure(engine, signal, windows) for signal in engine_signals())


def _exposure(engine: EngineTable, signal: Signal, windows: Mapping[str, Window]) -> Exposure:
    found = [(release, read(signal, window, FULL_PLAN)) for release, window in windows.items()]
    spans: list[tuple[Support, str, str]] = []
    for release, value in found:
        support = _support(value)
        if spans and spans[-1][0] is support:
            spans[-1] = (support, spans[-1][1], release)
        else:
            spans.append((support, release, release))
    missing = [value for _, value in found if isinstance(value, Missing)]
    came = spans[-1][0] is not Support.NOT_EXPOSED and missing
    why = f"not before {spans[-1][1]}" if came else _why(engine, signal, missing)
    return Exposure(signal=signal.name, spans=tuple(spans), why=why)


def _support(value: SignalValue) -> Support:
    if isinstance(value, Missing):
        return Support.NOT_EXPOSED
    return Support.BOUNDED if value.value is None else Support.KNOWN


def _why(engine: EngineTable, signal: Signal, missing: list[Missing]) -> str:
    if not missing:
        return ""
    told = dict(engine.not_exposed)
    needed = [f for family in signal.families for f in (IN_SYSTEM if family == NET_CHANGE else (family,))]
    # A family that no release prints is why, before one that is only absent until its first event.
    printed = {row.family for row in engine.rows}
    needed.sort(key=lambda family: family in printed)
    return next((told[family] for family in needed if family in told), missing[-1].text)


def _everything(engine: EngineTable, release: str) -> Window:
    """A minute in which everything that the release prints was seen."""
    families = {row.family for row in engine.rows if not release or _printed(release, row.since, row.until)}
    counters = {name: _AMOUNTS.get(name, REQUESTS) for name in _of(families, FamilyKind.COUNTER)}
    if all(name in families for name in IN_SYSTEM):
        counters[NET_CHANGE] = 0.0
    if engine.born:
        counters |= {"cold_starts": 1.0, "cold_start_seconds": 30.0}
    part = (Histogram(edges=(1.0, 10.0, math.inf), counts=(0.0, REQUESTS, 0.0), total=5 * REQUESTS),)
    return Window(
        start=0.0,
        end=SECONDS,
        expected_seconds=SECONDS,
        covered_seconds=SECONDS,
        counters={"restarts": 1.0, **counters},
        histograms=dict.fromkeys(_of(families, FamilyKind.HISTOGRAM), part),
        gauges={name: _level(1.0 if name in _RATIOS else 2.0) for name in _of(families, FamilyKind.GAUGE)},
    )


_RATIOS = ("prefix_hit_gauge",)
"""Gauges that cannot be above 1."""


def _level(value: float) -> GaugeSum:
    return GaugeSum(integral=value * SECONDS, seconds=SECONDS, minimum=value, maximum=value, samples=4)


_AMOUNTS = {"spec_draft_tokens": 4 * REQUESTS, "spec_accepted_tokens": 2 * REQUESTS}


def _of(families: Iterable[str], kind: FamilyKind) -> list[str]:
    return sorted(name for name in families if name in BY_NAME and BY_NAME[name].kind is kind)


def _printed(release: str, since: str, until: str) -> bool:
    return number(since) <= number(release) and not (until and number(release) > number(until))


def number(release: str) -> tuple[int, ...]:
    """A release for comparing: "0.6.6.post1" is (0, 6, 6, 1)."""
    return tuple(int(digits) for digits in re.findall(r"\d+", release))
