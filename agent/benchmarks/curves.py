"""Benchmark curve from the measured loads of one or several result files, with its remarks.

Selects, sorts and rounds the loads and pools repeated runs. It does no I/O. A new reason to refuse loads is a check in
`curve_of`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from agent.benchmarks.points import LATENCIES, BenchmarkMeasurement
from agent.benchmarks.run_model import CONTRADICTION, Loop, Statistics
from agent.errors import BenchmarkError
from rules.plan.curve import LIMITED
from rules.plan.mistakes import FEW_FOR_A_P99
from rules.plan.schema import LITTLES_LAW, BenchmarkCurve, Point, Provenance
from rules.plan.validation import cross_problems

SIGNIFICANT = 4
"""Significant digits: no sweep repeats itself within 0.05 %."""

DIGITS_OF_A_MAXIMUM = 2
"""Significant digits of a P99 of fewer than FEW_FOR_A_P99 requests, which is the slowest request."""

DIGITS_OF_FEW = 3
"""Significant digits of a median of that few requests. Its error is at least a tenth, 1/sqrt(n)."""

CAUTIOUS = LIMITED
"""Fields for which the largest of repeated runs counts. Other fields use the mean weighted by requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportRemark:
    """Remark on one file, or on all files together (`source` is then empty)."""

    source: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredLoad:
    """Load of the curve: its point, its measurements and its remarks."""

    point: Point
    runs: tuple[BenchmarkMeasurement, ...]
    notes: tuple[ImportRemark, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedCurve:
    """Imported curve. `loads` are its points in order. Lengths are means over all requests, in tokens per request."""

    curve: BenchmarkCurve
    loads: tuple[MeasuredLoad, ...]
    prompt_tokens: Statistics
    generation_tokens: Statistics
    models: tuple[str, ...]
    tools: tuple[str, ...]
    remarks: tuple[ImportRemark, ...]


def curve_of(
    measured: Sequence[BenchmarkMeasurement],
    *,
    gpu_utilization_kind: str | None = None,
    named: Callable[[str], str] = lambda source: source,
) -> ImportedCurve:
    """Return the curve through these loads, sorted by load. `named` maps a source file to its name in the plan.

    Raise BenchmarkError with the file names for mixed loops (open and closed), several models or loads that all
    contradict themselves.
    A duplicate measurement counts once. Repeated runs of a load are pooled (`pool_points`).
    """
    if not measured:
        raise BenchmarkError("the files", "hold no measured load")
    kept, remarks = _once(measured)
    kept, unplaced = _with_a_load(kept)
    kept, refuted = _without_contradictions(kept)
    loop = _one_loop(kept)
    models = _one_model(kept)
    loads = _by_load(_loads(kept, loop), loop)
    any_gpu = any(load.point.gpu_utilization is not None for load in loads)
    curve = BenchmarkCurve.model_validate(
        {
            "loop": loop,
            "gpu_utilization_kind": gpu_utilization_kind if any_gpu else None,
            "source": list(dict.fromkeys(named(run.source) for load in loads for run in load.runs)),
            "measured": provenance_of(kept),
            "points": [load.point for load in loads],
        }
    )
    return ImportedCurve(
        curve=curve,
        loads=tuple(loads),
        prompt_tokens=_mean_lengths([(run.prompt_tokens, run.point.requests) for run in kept]),
        generation_tokens=_mean_lengths([(run.generation_tokens, run.point.requests) for run in kept]),
        models=models,
        tools=tuple(dict.fromkeys(run.tool for run in kept)),
        remarks=(
            *remarks,
            *unplaced,
            *refuted,
            *(ImportRemark(source="", text=text) for text in setup_conflicts(kept)),
        ),
    )


SETUP = ("engine_version", "tensor_parallel", "pipeline_parallel", "data_parallel", "max_num_seqs", "kv_tokens")
"""Fields of a setup that the curve keeps."""


def provenance_of(measured: Sequence[BenchmarkMeasurement]) -> Provenance | None:
    """Return what was benchmarked, as far as the runs agree on it, or None if they tell nothing.

    Runs of several releases are no curve of one engine, so a field with two values is left out (`setup_conflicts`).
    """
    found: dict[str, Any] = {}
    for name in SETUP:
        values = _told(measured, name)
        found |= {name: values[0]} if len(values) == 1 else {}
    for kind in ("prompt_tokens", "generation_tokens"):
        lengths = _mean_lengths([(getattr(run, kind), run.point.requests) for run in measured]).model_dump()
        known = {key: round_significant(tokens) for key, tokens in lengths.items() if tokens}
        found |= {kind: known} if known else {}
    if any(run.loop != "closed" and run.point.concurrency is not None for run in measured):
        found["concurrency"] = LITTLES_LAW
    ended = [run.ended_at for run in measured if run.ended_at is not None]
    if ended:
        found["measured_on"] = f"{datetime.fromtimestamp(max(ended), UTC):%Y-%m-%d}"
    return Provenance.model_validate(found) if found else None


def setup_conflicts(measured: Sequence[BenchmarkMeasurement]) -> Iterator[str]:
    """Yield fields of the setup in which the runs differ."""
    for name in SETUP:
        values = _told(measured, name)
        if len(values) > 1:
            listed = ", ".join(str(value) for value in values)
            yield f"{name} differs between the runs ({listed}): a curve is of one configuration; left out of measured"


def _told(measured: Sequence[BenchmarkMeasurement], name: str) -> list[Any]:
    return list(dict.fromkeys(value for run in measured if (value := getattr(run.setup, name))))


def pool_points(points: Sequence[Point]) -> Point:
    """Return one point for several runs of the same load.

    Requests add up. Throughput is requests over time. Medians and means are weighted by requests. The P99 of all
    requests lies between the smallest and the largest P99 of the runs. The largest is used, so that the tail is never
    underestimated. A run limited by the generator is dropped if another run was limited by the server.
    """
    sure = [point for point in points if not point.censored] or list(points)
    if len(sure) == 1:
        return sure[0]
    counted = all(point.requests is not None for point in sure)
    weights = [float(point.requests or 0) if counted else 1.0 for point in sure]
    seconds = [weight / point.completed_rps for weight, point in zip(weights, sure, strict=True)]
    merged: dict[str, Any] = {"requests": sum(point.requests or 0 for point in sure) if counted else None}
    for name in Point.model_fields:
        values = [getattr(point, name) for point in sure]
        if name in ("requests", "censored") or any(value is None for value in values):
            continue
        by = seconds if name in ("completed_rps", "output_tokens_per_second") else weights
        mean = math.fsum(v * w for v, w in zip(values, by, strict=True)) / math.fsum(by)
        merged[name] = max(values) if name in CAUTIOUS else min(max(mean, min(values)), max(values))
    return Point.model_validate({**merged, "censored": all(point.censored for point in sure)})


def round_significant(value: float, digits: int = SIGNIFICANT) -> float:
    return float(f"{value:.{digits}g}")


def _digits(name: str, requests: int | None) -> int:
    """Return the significant digits of a field of a point with that many requests. Rates keep all digits."""
    if requests is None or requests >= FEW_FOR_A_P99 or name not in LATENCIES:
        return SIGNIFICANT
    return DIGITS_OF_A_MAXIMUM if name in CAUTIOUS else DIGITS_OF_FEW


def _once(measured: Sequence[BenchmarkMeasurement]) -> tuple[list[BenchmarkMeasurement], list[ImportRemark]]:
    kept: list[BenchmarkMeasurement] = []
    remarks = []
    for one in measured:
        same = next((other for other in kept if (other.point, other.loop) == (one.point, one.loop)), None)
        if same is None:
            kept.append(one)
        else:
            what = (
                "is given twice" if same.location == one.location else f"holds the same measurement as {same.location}"
            )
            text = f"{what}; it is taken once"
            remarks.append(ImportRemark(source=one.location, text=text))
    return kept, remarks


def _with_a_load(measured: Sequence[BenchmarkMeasurement]) -> tuple[list[BenchmarkMeasurement], list[ImportRemark]]:
    """Drop loads without rate and concurrency, such as a burst, and return a remark for each."""
    placed = [one for one in measured if one.point.requested_rps is not None or one.point.concurrency is not None]
    if not placed:
        return list(measured), []
    text = "tells neither rate nor concurrency, so it has no place among the other loads; left out"
    return placed, [ImportRemark(source=one.location, text=text) for one in measured if one not in placed]


def _without_contradictions(
    measured: Sequence[BenchmarkMeasurement],
) -> tuple[list[BenchmarkMeasurement], list[ImportRemark]]:
    """Drop loads whose values exclude each other, and return a remark for each. Raise BenchmarkError if none is left."""
    problems = [(one, next(iter(cross_problems(one.point.model_dump())), "")) for one in measured]
    texts = {one.location: f"contradicts itself: {problem}" for one, problem in problems if problem}
    kept = [one for one, problem in problems if not problem]
    if not kept:
        raise BenchmarkError(*next(iter(texts.items())))
    return kept, [ImportRemark(source=at, text=f"left out: it {text}, {CONTRADICTION}") for at, text in texts.items()]


def _one_loop(measured: Sequence[BenchmarkMeasurement]) -> Loop | None:
    first = {loop: next((one for one in measured if one.loop == loop), None) for loop in ("open", "closed")}
    opened, closed = first["open"], first["closed"]
    if opened and closed:
        text = f"is an open loop (arrivals at a rate), {closed.location} a closed one (a fixed number of clients)"
        raise BenchmarkError(opened.location, f"{text}: two kinds of load are no curve; import one kind")
    return opened.loop if opened else closed.loop if closed else None


def _one_model(measured: Sequence[BenchmarkMeasurement]) -> tuple[str, ...]:
    first: dict[str, BenchmarkMeasurement] = {}
    for one in measured:
        if one.model:
            first.setdefault(one.model, one)
    if len(first) > 1:
        (model, one), *others = first.items()
        told = ", ".join(f"{other.location} {name}" for name, other in others)
        raise BenchmarkError(one.location, f"measured {model}, {told}: a curve is of one model")
    return tuple(first)


def _controls(loop: str | None) -> tuple[str, ...]:
    """Return the fields a generator can hold fixed, as in `rules.plan.envelope.sort_by_load`. completed_rps is always
    set."""
    names = ("concurrency", "requested_rps") if loop == "closed" else ("requested_rps", "concurrency")
    return (*names, "completed_rps")


def _controlled(point: Point, loop: str | None) -> tuple[str, float]:
    """Return the fixed field of a load and its rounded value. Runs with the same pair repeat a load."""
    name = next(name for name in _controls(loop) if getattr(point, name) is not None)
    return name, round_significant(getattr(point, name))


def _by_load(loads: Sequence[MeasuredLoad], loop: str | None) -> list[MeasuredLoad]:
    name = next(name for name in _controls(loop) if all(getattr(load.point, name) is not None for load in loads))
    return sorted(loads, key=lambda load: (getattr(load.point, name), load.point.completed_rps))


def _loads(measured: Sequence[BenchmarkMeasurement], loop: str | None) -> list[MeasuredLoad]:
    groups: dict[tuple[str, float], list[BenchmarkMeasurement]] = {}
    for one in measured:
        groups.setdefault(_controlled(one.point, loop), []).append(one)
    return [_load(tuple(runs)) for runs in groups.values()]


def _load(runs: tuple[BenchmarkMeasurement, ...]) -> MeasuredLoad:
    notes = [ImportRemark(source=run.location, text=text) for run in runs for text in run.remarks]
    if len(runs) > 1:
        others = ", ".join(run.location for run in runs[1:])
        text = f"has the same load as {others}: one point, requests added up, of the P99s the largest"
        notes.append(ImportRemark(source=runs[0].location, text=text))
    return MeasuredLoad(point=_rounded_point(pool_points([run.point for run in runs])), runs=runs, notes=tuple(notes))


def _rounded_point(point: Point) -> Point:
    values = point.model_dump().items()
    return Point.model_validate(
        {
            name: round_significant(value, _digits(name, point.requests)) if isinstance(value, float) else value
            for name, value in values
        }
    )


def _mean_lengths(lengths: Sequence[tuple[Statistics, int | None]]) -> Statistics:
    mean, p50, p95, p99 = (
        _weighted((getattr(one, name), requests) for one, requests in lengths) for name in ("mean", "p50", "p95", "p99")
    )
    return Statistics(mean=mean, p50=p50, p95=p95, p99=p99)


def _weighted(values: Iterable[tuple[float | None, int | None]]) -> float | None:
    known = [(value, float(weight or 1)) for value, weight in values if value is not None]
    return math.fsum(v * w for v, w in known) / math.fsum(w for _, w in known) if known else None
