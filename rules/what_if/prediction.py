"""Predictions at one load of a replica, from production's curve and from the benchmark's, never mixed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from rules.catalogue.registry import BY_NAME as RULES
from rules.plan.benchmark_reading import read_benchmark
from rules.plan.load_bins import TierContext
from rules.resize.production_curve import BAD, FINE, SloStatus
from rules.telemetry.signals import Gap, Missing, SignalValue
from rules.what_if.production import ProductionLoads, read_window

NOT_MEASURED = frozenset({Gap.NOT_EXPOSED, Gap.NOT_IN_PLAN})


class PredictionSource(StrEnum):
    PRODUCTION = "production"
    BENCHMARK = "benchmark"
    SLOWED = "benchmark_slowed"
    PLAN = "plan"
    NOBODY = "nobody"


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictionInputs:
    """Tier, its production loads, and production's ratios to the benchmark at equal load (`slower`)."""

    context: TierContext
    served: ProductionLoads
    slower: Mapping[str, float] = field(default_factory=dict)

    @property
    def ceiling(self) -> float:
        """Return the share of the KV cache that leads to evictions (KvCacheNearCeiling)."""
        return RULES["KvCacheNearCeiling"].limit("above", self.context.limits)

    @property
    def factor(self) -> float:
        """Return the ratio to the benchmark that counts as slower (TtftDivergence)."""
        return RULES["TtftDivergence"].limit("factor", self.context.limits)

    def slowness(self, name: str) -> float:
        """Return production's ratio to the benchmark, 1 within the allowed factor."""
        found = self.slower.get(name.partition("_")[0], 1.0)
        return found if found > self.factor else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Quantity at one load by production and by the benchmark."""

    name: str
    production: SignalValue
    benchmark: SignalValue


@dataclass(frozen=True, slots=True, kw_only=True)
class SloPrediction:
    """Result of an objective (seconds, P99) at a load, with its source and reason."""

    name: str
    objective: float
    kept: SloStatus
    source: PredictionSource
    reason: str


def predict(ground: PredictionInputs, name: str, rps: float) -> Prediction:
    """Return a quantity (signal name) at completed rps of one replica."""
    by_production, by_benchmark = ground.served.read_at(name, rps), read_benchmark(ground.context, name, rps)
    return Prediction(name=name, production=by_production, benchmark=by_benchmark)


def is_within_limit(found: SignalValue, limit: float) -> SloStatus:
    """Return whether a reading keeps a limit: certain by its bounds, else likely by its best estimate."""
    if isinstance(found, Missing):
        return SloStatus.NOT_KNOWN
    if found.low is not None and found.low >= limit:
        return SloStatus.BROKEN
    if found.high is not None and found.high <= limit:
        return SloStatus.KEPT
    if found.value is None:
        return SloStatus.NOT_KNOWN
    return SloStatus.LIKELY_KEPT if found.value <= limit else SloStatus.LIKELY_BROKEN


def check_objective(ground: PredictionInputs, name: str, objective: float, rps: float) -> SloPrediction:
    """Return whether a P99 of TTFT, TPOT or ITL keeps its objective at a load.

    Production decides where it reaches the load. Otherwise the benchmark gives a likely result, scaled if production is
    slower.
    """
    found = predict(ground, name, rps)

    def told(kept: SloStatus, source: PredictionSource, reason: str) -> SloPrediction:
        return SloPrediction(name=name, objective=objective, kept=kept, source=source, reason=reason)

    kept = is_within_limit(found.production, objective)
    if kept in FINE | BAD:
        return told(kept, PredictionSource.PRODUCTION, "production served such loads")
    if _broke_below(ground, name, objective, rps):
        return told(SloStatus.BROKEN, PredictionSource.PRODUCTION, "production broke it at a lower load")
    slower = ground.slowness(name)
    kept = is_within_limit(_slowed(found.benchmark, slower), objective)
    if kept in FINE | BAD:
        likely = SloStatus.LIKELY_KEPT if kept in FINE else SloStatus.LIKELY_BROKEN
        if slower > 1:
            text = f"the benchmark, {slower:.2g}x as slow: as production is at equal load"
            return told(likely, PredictionSource.SLOWED, text)
        return told(likely, PredictionSource.BENCHMARK, "production does not tell; the benchmark measured such loads")
    if isinstance(found.benchmark, Missing) and found.benchmark.gap is Gap.OUTSIDE_BENCHMARK and ground.context.curve:
        last = ground.context.curve.top_rps
        top = read_benchmark(ground.context, name, last)
        if is_within_limit(_slowed(top, slower), objective) in BAD:
            text = "the benchmark's last point breaks it at a lower load"
            return told(SloStatus.LIKELY_BROKEN, PredictionSource.BENCHMARK, text)
    return told(SloStatus.NOT_KNOWN, PredictionSource.NOBODY, _why(found))


def _slowed(found: SignalValue, slower: float) -> SignalValue:
    return found if isinstance(found, Missing) or slower == 1 else found.map(lambda part: part * slower)


def _broke_below(ground: PredictionInputs, name: str, objective: float, rps: float) -> bool:
    """Return whether production broke the objective just below the load."""
    below = ground.served.nearest_at_or_below(rps)
    return (
        below is not None
        and is_within_limit(read_window(below.window, name, ground.context.basis), objective) is SloStatus.BROKEN
    )


def _why(found: Prediction) -> str:
    """Return why neither source has a result."""
    texts = []
    for who, value in (("production", found.production), ("benchmark", found.benchmark)):
        if isinstance(value, Missing):
            texts.append(value.text or f"{who}: {value.gap.value.replace('_', ' ')}")
        else:
            texts.append(f"{who}: its bounds lie on both sides of the objective")
    return "; ".join(texts)
