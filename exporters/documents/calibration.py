"""Calibration of a plan by production: measured over predicted, by load bin and metric, with bounds.

A planner multiplies its prediction by these factors. They are relative to the plan's own curve, measured or predicted,
at the same load of one replica. What is not comparable is named, never guessed.

Bounds are of 95 % (two-sided) and of the measurement; the curve between two points is interpolated. Those of quantiles
end at bucket edges, so wide buckets give wide bounds. Those of means hold for independent requests or samples.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import NormalDist, fmean
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, TypeAdapter, ValidationInfo
from pydantic_core import PydanticCustomError
from rich.console import RenderableType

from exporters.render.terminal import terminal_text, text_grid
from exporters.render.text import QUANTITIES, copy_fields, format_reading, format_rfc3339
from rules.plan.curve import CERTAIN_REQUESTS, interpolate
from rules.plan.load_bins import BinnedWindow, TierContext
from rules.telemetry.gpu_windows import gpu_utilization
from rules.telemetry.histograms import Histogram, mean
from rules.telemetry.readings import read
from rules.telemetry.signals import BY_NAME, Gap, Missing, Reading, SignalValue
from rules.telemetry.wording import format_duration, number

SchemaId = Literal["urn:sizewatch:calibration:1"]

SCHEMA_ID: SchemaId = "urn:sizewatch:calibration:1"

Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
"""Number of a file that somebody may have edited."""


def _check_bounds(high: float | None, info: ValidationInfo) -> float | None:
    if high is not None and high < (info.data.get("low") or 0.0):
        raise PydanticCustomError("bounds", "must not be below low")
    return high


High = Annotated[Amount | None, AfterValidator(_check_bounds)]

DEVIATIONS = 1.96
"""Standard deviations of a normal distribution on either side that hold 95 %."""

LENGTHS = {"prompt_tokens_mean": "prompt_tokens", "generation_tokens_mean": "generation_tokens"}
"""Mean tokens a request, as the plan's points name them, and their counters."""

TIME = "mean_seconds_in_system"

METRICS = (
    *("ttft_p50_seconds", "ttft_p99_seconds", "tpot_p50_seconds", "tpot_p99_seconds", TIME),
    *("gpu_utilization", "kv_utilization", "prefix_hit_ratio", *LENGTHS),
)
"""Every metric, in the order of the text."""

MOST_ROWS = 24
"""Most rows of single load bins: with the rest of a tier they fit on one screen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Factor:
    """`value` is measured / predicted, between `low` and `high`. None: not bounded on that side, or not known."""

    value: Amount | None
    low: Amount | None
    high: High


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """A metric at one load: what the plan's curve predicts there, what production measured, and their factor.

    Units are in QUANTITIES. `n` are the requests, or the samples of a gauge, behind the measurement. `measured` of a quantile
    is the best estimate inside its bucket.
    """

    metric: str
    predicted: Amount
    measured: Amount | None
    low: Amount | None
    high: High
    n: Amount
    factor: Factor


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationBin:
    """One load bin of the curve: mean load of a replica there, its requests, and why a metric is not compared."""

    bin: int
    requests_per_second: Amount
    requests_in_system: Amount | None
    requests: Amount
    measures: tuple[Measure, ...]
    missing: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityFactor:
    """Completed requests per second of one replica within the SLO: by the plan, and as production showed it."""

    planned: Amount
    measured: Amount
    low: Amount | None
    high: High
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """One tier under one release and precision. `factors` are means over the load bins, weighted by their requests.

    `predicted_by`: a benchmark measured the plan's curve, or a planner computed it.
    """

    tier: str
    model: str
    engine: str
    engine_release: str
    precision: str
    gpu_product: str
    gpus_per_replica: int
    tensor_parallel: int
    pipeline_parallel: int
    begin: str
    end: str
    observed_replica_seconds: Amount
    requests: Amount
    bins: tuple[CalibrationBin, ...]
    factors: Mapping[str, Factor]
    capacity: CapacityFactor | None
    predicted_by: Literal["benchmark", "planner"] = "benchmark"


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationFile:
    """Everything of one file. `not_calibrated` has the tiers that could not be compared, and why."""

    schema: SchemaId = SCHEMA_ID
    made_at: str
    sizewatch: str
    simulated: bool
    calibrations: tuple[Calibration, ...]
    not_calibrated: Mapping[str, str] = field(default_factory=dict)


ADAPTER: TypeAdapter[CalibrationFile] = TypeAdapter(CalibrationFile)


def calibration_schema() -> dict[str, Any]:
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": SCHEMA_ID,
        "title": "sizewatch calibration",
        **ADAPTER.json_schema(mode="serialization"),
    }


def calibrate(context: TierContext, release: str, precision: str, binned: Sequence[BinnedWindow]) -> Calibration | str:
    """Return what production under one release measured against the plan, or why nothing can be compared.

    `binned` is one sum for each load bin of the plan's curve. Only bins with CERTAIN_REQUESTS are compared: below, a P99
    is the third worst request or less (DESIGN 3.3).
    """
    plan, curve = context.plan, context.curve
    if plan is None or curve is None:
        return "its plan has no curve"
    if not context.serves_whole_requests:
        return "prefill and decode are served apart, and the curve is of whole requests"
    placed = [part for part in binned if part.bin is not None and part.bin < len(curve.points) and part.rps]
    if not placed:
        return "no request was served at a load of the curve"
    bins = tuple(_calibrate_bin(context, part) for part in sorted(placed, key=lambda part: part.bin or 0))
    if not any(row.measures for row in bins):
        most = max(row.requests for row in bins)
        return f"no load bin has {CERTAIN_REQUESTS} requests; the fullest has {most:.0f}"
    engine, _, version = release.partition(" ")
    return Calibration(
        tier=context.name,
        model=plan.model,
        engine=engine or plan.engine,
        engine_release=version,
        precision=precision,
        gpu_product=plan.gpu.product,
        gpus_per_replica=plan.gpu.per_replica,
        tensor_parallel=plan.gpu.tensor_degree,
        pipeline_parallel=plan.gpu.pipeline_parallel or 1,
        begin=format_rfc3339(min(part.window.start for part in placed)),
        end=format_rfc3339(max(part.window.end for part in placed)),
        observed_replica_seconds=math.fsum(part.window.covered_seconds for part in placed),
        requests=math.fsum(row.requests for row in bins),
        bins=bins,
        factors=_average_factors((m.metric, m.factor, row.requests) for row in bins for m in row.measures),
        capacity=_compare_capacity(context),
        predicted_by="planner" if curve.written.remark else "benchmark",
    )


def collect_calibrations(
    parts: Iterable[tuple[str, Calibration | str]], t: float, version: str, simulated: bool = False
) -> CalibrationFile:
    """Return the file of `calibrate`'s results by tier, made at `t` (unix seconds). A tier without any has its last reason."""
    rows = list(parts)
    calibrations = tuple(part for _, part in rows if isinstance(part, Calibration))
    known = {part.tier for part in calibrations}
    return CalibrationFile(
        made_at=format_rfc3339(t),
        sizewatch=version,
        simulated=simulated,
        calibrations=calibrations,
        not_calibrated={tier: part for tier, part in rows if isinstance(part, str) and tier not in known},
    )


def _calibrate_bin(context: TierContext, binned: BinnedWindow) -> CalibrationBin:
    requests = binned.window.counters.get("requests_finished", 0.0)
    measures, missing = [], {}
    for metric in METRICS:
        if requests < CERTAIN_REQUESTS:
            missing[metric] = f"{requests:.0f} requests; {CERTAIN_REQUESTS} are needed"
            continue
        predicted = _predict(context, binned, metric)
        measured = _measure(context, binned, metric)
        if isinstance(measured, Missing):
            missing[metric] = measured.text or measured.gap.value
        elif isinstance(predicted, str):
            missing[metric] = predicted
        else:
            factor = _divide(measured, Factor(value=predicted, low=predicted, high=predicted))
            ends = copy_fields(measured, "low", "high", "n")
            measures.append(Measure(metric=metric, predicted=predicted, measured=measured.value, factor=factor, **ends))
    return CalibrationBin(
        bin=binned.bin or 0,
        requests_per_second=binned.rps or 0.0,
        requests_in_system=binned.in_system,
        requests=requests,
        measures=tuple(measures),
        missing=missing,
    )


def _divide(upper: Factor | Reading, lower: Factor) -> Factor:
    """Return the quotient with its bounds. A side on which either is open is open."""
    return Factor(
        value=_quotient(upper.value, lower.value),
        low=_quotient(upper.low, lower.high),
        high=_quotient(upper.high, lower.low),
    )


def _quotient(upper: float | None, lower: float | None) -> float | None:
    if upper is None or not lower:
        return None
    return upper / lower


def _predict(context: TierContext, binned: BinnedWindow, metric: str) -> float | str:
    curve, rps = context.curve, binned.rps
    if curve is None or rps is None or binned.bin is None:
        return "the load is not known"
    expected = curve.expectation(binned.bin, metric, rps, binned.in_system)
    if metric == TIME:
        # Concurrency that was estimated by medians is no mean.
        if not (curve.concurrency_given or curve.is_littles_law):
            return "the curve has no concurrency"
        expected = curve.expect_time(binned.bin, rps)
    if expected is not None and expected.value > 0:
        return expected.value
    planned: float | None = None
    if metric in LENGTHS and context.plan is not None:
        planned = context.plan.value_at(f"workload.{LENGTHS[metric]}.mean")
    return planned or "the curve does not have it at this load"


def _measure(context: TierContext, binned: BinnedWindow, metric: str) -> SignalValue:
    """Return what production measured at this load, with bounds of 95 %."""
    window = binned.window
    n = window.counters.get("requests_finished", 0.0)
    if metric == TIME:
        times = _mean_with_bounds(window.histograms.get("e2e_seconds", ()))
        return times or Missing(gap=window.explain_missing("e2e_seconds"), text="the sum of request times is not known")
    if metric in LENGTHS:
        tokens = window.counters.get(LENGTHS[metric])
        if tokens is None:
            return Missing(gap=window.explain_missing(LENGTHS[metric]))
        return Reading(value=tokens / n, low=tokens / n, high=tokens / n, n=n)
    signal = BY_NAME[metric]
    if metric == "gpu_utilization" and context.curve is not None:
        kind = context.curve.written.gpu_utilization_kind
        if kind is None:
            return Missing(gap=Gap.NOT_IN_PLAN, text="the curve does not say which kind of utilisation it has")
        reading = gpu_utilization(window, kind)
    else:
        reading = read(signal, window, context.basis)
    if isinstance(reading, Missing):
        return reading
    if signal.q is None:
        return _narrow_level(reading)
    # A rank is off by at most this share of the requests (normal approximation of the binomial).
    deviation = DEVIATIONS * math.sqrt(signal.q * (1 - signal.q) / reading.n)
    low = read(replace(signal, q=max(signal.q - deviation, 0.0)), window, context.basis)
    high = read(replace(signal, q=min(signal.q + deviation, 1.0)), window, context.basis)
    parts = window.histograms.get(signal.families[0], ())
    return Reading(
        value=_estimate_quantile(parts[0], signal.q) if len(parts) == 1 else reading.value,
        low=low.low if isinstance(low, Reading) else None,
        high=high.high if isinstance(high, Reading) else None,
        n=reading.n,
    )


def _narrow_level(reading: Reading) -> Reading:
    """Return the mean of a gauge with bounds of its sampling, in place of its extremes.

    The variance between two extremes is at most (highest - mean) (mean - lowest) (Bhatia and Davis 2000).
    """
    value, low, high = reading.value, reading.low, reading.high
    if value is None or low is None or high is None or reading.n <= 0:
        return reading
    deviation = DEVIATIONS * math.sqrt(max((high - value) * (value - low), 0.0) / reading.n)
    return replace(reading, low=max(low, value - deviation), high=min(high, value + deviation))


def _estimate_quantile(part: Histogram, q: float) -> float | None:
    """Return the quantile as if the bucket that holds it were a piece of a log-normal distribution; None in the last one.

    Latencies are near log-normal, and both edges tell the shares below them. An even bucket, or one that falls all the
    way, puts the median of a narrow distribution far off.
    """
    place, below = 0, 0.0
    while below + part.counts[place] < q * part.n:
        below += part.counts[place]
        place += 1
    upper = part.edges[place]
    if upper == math.inf:
        return None
    lower = part.edges[place - 1] if place else upper / 2
    # Half a request stands for none: the normal distribution has no end.
    least = 0.5 / part.n
    shares = [below / part.n, q, (below + part.counts[place]) / part.n]
    first, middle, last = [NormalDist().inv_cdf(min(max(share, least), 1 - least)) for share in shares]
    return interpolate(lower, upper, (middle - first) / (last - first) if last > first else 0.5, log=True)


def _mean_with_bounds(parts: tuple[Histogram, ...]) -> Reading | None:
    """Return the mean of the sum, with bounds by the largest variance that the buckets allow; None without a sum.

    Observations above the last edge leave the variance open.
    """
    value = mean(parts)
    if value is None:
        return None
    n = math.fsum(part.n for part in parts)
    squares = math.fsum(
        count * edge**2 for part in parts for edge, count in zip(part.edges, part.counts, strict=True) if count
    )
    if not math.isfinite(squares):
        return Reading(value=value, low=None, high=None, n=n)
    deviation = DEVIATIONS * math.sqrt(max(squares / n - value**2, 0.0) / n)
    return Reading(value=value, low=max(value - deviation, 0.0), high=value + deviation, n=n)


def _average_factors(rows: Iterable[tuple[str, Factor, float]]) -> dict[str, Factor]:
    """Return the geometric mean of each metric's factors by weight, and of their bounds: open where one lacks it."""
    weighted: dict[str, list[tuple[Factor, float]]] = {}
    for metric, factor, weight in rows:
        weighted.setdefault(metric, []).append((factor, weight))
    averages = {}
    for metric, pairs in weighted.items():
        factors, weights = zip(*pairs, strict=True)
        ends = {}
        for name in ("value", "low", "high"):
            ends[name] = _geometric_mean([getattr(factor, name) for factor in factors], weights)
        averages[metric] = Factor(**ends)
    return averages


def _geometric_mean(values: Sequence[float | None], weights: Sequence[float]) -> float | None:
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return None
    if all(known):
        return math.exp(fmean(map(math.log, known), weights))
    return 0.0


def _compare_capacity(context: TierContext) -> CapacityFactor | None:
    capacity = context.capacity
    if capacity is None or capacity.planned_rps is None:
        return None
    return CapacityFactor(
        planned=capacity.planned_rps,
        measured=capacity.rps,
        low=capacity.low or None,
        high=capacity.high,
        source=capacity.source.value,
    )


def calibration_text(made: CalibrationFile) -> str:
    parts: list[RenderableType] = []
    for row in made.calibrations:
        what = " ".join(filter(None, (row.engine, row.engine_release, row.precision)))
        span = format_duration(row.observed_replica_seconds)
        parts += [
            f"{row.tier}: {row.model} on {row.gpus_per_replica} x {row.gpu_product}, {what}",
            f"  {row.requests:,.0f} requests in {span} of replicas, {row.begin} to {row.end}",
        ]
        if row.capacity is not None:
            capacity = row.capacity
            measured = Reading(value=capacity.measured, low=capacity.low, high=capacity.high, n=row.requests)
            text = format_reading(measured, "per_second")
            parts.append(f"  capacity of a replica: planned {capacity.planned:.3g} rps, now {text} ({capacity.source})")
        parts += _factor_parts(row)
        missing = set()
        for load in row.bins:
            missing |= {(metric, why) for metric, why in load.missing.items() if metric not in row.factors}
        for metric, why in sorted(missing):
            parts.append(f"  not compared: {QUANTITIES[metric][0]}: {why}")
        parts.append("")
    parts += [f"{tier}: not calibrated: {why}" for tier, why in made.not_calibrated.items()]
    return terminal_text(*parts).rstrip()


def _factor_parts(made: Calibration) -> Iterator[RenderableType]:
    rows, name = [], "all loads"
    for metric, factor in made.factors.items():
        rows.append((name, QUANTITIES[metric][0], "", "", _factor_text(factor), ""))
        name = ""
    compared = [load for load in made.bins if load.measures]
    fullest = sorted(compared, key=lambda load: load.requests, reverse=True)[: max(1, MOST_ROWS // len(rows))]
    for load in filter(fullest.__contains__, compared):
        name, requests = f"{load.bin}: {load.requests_per_second:.3g} rps", f"{load.requests:,.0f}"
        for measure in load.measures:
            words, unit = QUANTITIES[measure.metric]
            measured = Reading(value=measure.measured, low=measure.low, high=measure.high, n=measure.n)
            cells = (number(measure.predicted, unit), format_reading(measured, unit), _factor_text(measure.factor))
            rows.append((name, words, *cells, requests))
            name = requests = ""
    head = ("bin: load", "metric", "predicted", "measured (95 %)", "measured / predicted", "requests")
    yield text_grid(rows, head, words=2)
    rest = [f"{load.requests_per_second:.3g} rps" for load in compared if load not in fullest]
    if rest:
        yield f"  in the file only: {', '.join(rest)}"


def _factor_text(factor: Factor) -> str:
    """Return a factor in words: "1.18 (1.1 to 1.3)", "at least 1.2"."""
    return format_reading(Reading(**copy_fields(factor, "value", "low", "high"), n=0.0), "")


def compare_calibrations(before: CalibrationFile, after: CalibrationFile) -> list[str]:
    """Return what changed from one file to another, a line for each metric of each tier that both have.

    Factors of one load bin are of the same prediction, so their ratio compares production with production at equal load.
    """
    lines = []
    for new in after.calibrations:
        for old in before.calibrations:
            if (old.tier, old.gpu_product) != (new.tier, new.gpu_product):
                continue
            name = f"{new.tier}: {_name(new)} against {_name(old)}"
            ratios = _ratios(old, new)
            lines += [f"{name}: {metric} x {_factor_text(ratio)} at equal load" for metric, ratio in ratios.items()]
            if not ratios:
                lines.append(f"{name}: no metric was measured at the same load in both")
    return lines


def _name(row: Calibration) -> str:
    return " ".join(filter(None, (row.engine_release or "unknown release", row.precision)))


def _ratios(old: Calibration, new: Calibration) -> dict[str, Factor]:
    known = {(load.bin, measure.metric): measure for load in old.bins for measure in load.measures}
    rows = []
    for load in new.bins:
        for measure in load.measures:
            earlier = known.get((load.bin, measure.metric))
            if earlier is not None:
                ratio = _divide(measure.factor, earlier.factor)
                rows.append((measure.metric, ratio, min(measure.n, earlier.n)))
    return _average_factors(rows)
