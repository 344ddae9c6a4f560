"""Benchmark curve from the measured loads of one or several result files.

Selects, pools, sorts and rounds the loads. It does no I/O. Reasons to leave out a load are in `_select`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from agent.benchmarks.points import LATENCIES, BenchmarkMeasurement
from agent.benchmarks.run_model import CONTRADICTION, Statistics
from agent.errors import BenchmarkError
from rules.plan.curve import LIMITED
from rules.plan.mistakes import FEW_FOR_A_P99
from rules.plan.schema import LITTLES_LAW, BenchmarkCurve, Point, Provenance
from rules.plan.validation import cross_problems
from rules.telemetry.windows import group_by

SIGNIFICANT = 4
"""Significant digits: no sweep repeats itself within 0.05 %."""

DIGITS_OF_A_MAXIMUM = 2
"""Significant digits of a P99 of fewer than FEW_FOR_A_P99 requests, which is the slowest request."""

DIGITS_OF_FEW = 3
"""Significant digits of a median of that few requests. Its error is at least a tenth, 1/sqrt(n)."""

SETUP = ("engine_version", "tensor_parallel", "pipeline_parallel", "data_parallel", "max_num_seqs", "kv_tokens")
"""Fields of a setup that the curve keeps."""


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
    contradict themselves. A duplicate measurement counts once. Repeated runs of a load are pooled (`pool_points`).
    """
    if not measured:
        raise BenchmarkError("the files", "hold no measured load")
    kept, remarks = _select(measured)
    loop, model = _only(kept, "loop"), _only(kept, "model")
    controls = ("concurrency", "requested_rps") if loop == "closed" else ("requested_rps", "concurrency")
    groups = group_by(kept, lambda run: _controlled(run.point, (*controls, "completed_rps")))
    loads = [_pool(tuple(runs)) for runs in groups.values()]
    by = next((n for n in controls if all(getattr(load.point, n) is not None for load in loads)), "completed_rps")
    loads.sort(key=lambda load: (getattr(load.point, by), load.point.completed_rps))
    lengths = {kind: _mean_lengths(kept, kind) for kind in ("prompt_tokens", "generation_tokens")}
    provenance, conflicts = _provenance(kept, lengths)
    has_gpus = any(load.point.gpu_utilization is not None for load in loads)
    curve = BenchmarkCurve.model_validate(
        {
            "loop": loop,
            "gpu_utilization_kind": gpu_utilization_kind if has_gpus else None,
            "source": list(dict.fromkeys(named(run.source) for load in loads for run in load.runs)),
            "measured": provenance,
            "points": [load.point for load in loads],
        }
    )
    return ImportedCurve(
        curve=curve,
        loads=tuple(loads),
        **lengths,
        models=(model,) if model else (),
        tools=tuple(dict.fromkeys(run.tool for run in kept)),
        remarks=(*remarks, *(ImportRemark(source="", text=text) for text in conflicts)),
    )


def _select(measured: Sequence[BenchmarkMeasurement]) -> tuple[list[BenchmarkMeasurement], list[ImportRemark]]:
    """Return the loads of a curve, and a remark for each other one. Raise BenchmarkError if all contradict themselves."""
    kept: list[BenchmarkMeasurement] = []
    remarks: list[ImportRemark] = []
    wrong: list[BenchmarkError] = []
    placed = any(run.point.requested_rps is not None or run.point.concurrency is not None for run in measured)
    for run in measured:
        same = next((other for other in kept if (other.point, other.loop) == (run.point, run.loop)), None)
        problem = next(iter(cross_problems(run.point.model_dump())), "")
        text = ""
        if same is not None:
            text = f"holds the same measurement as {same.location}; it is taken once"
        elif problem:
            wrong.append(BenchmarkError(run.location, f"contradicts itself: {problem}"))
            text = f"left out: it {wrong[-1].text}, {CONTRADICTION}"
        elif placed and run.point.requested_rps is None and run.point.concurrency is None:
            text = "tells neither rate nor concurrency, so it has no place among the other loads; left out"
        if text:
            remarks.append(ImportRemark(source=run.location, text=text))
        else:
            kept.append(run)
    if not kept:
        raise wrong[0]
    return kept, remarks


def _only(measured: Sequence[BenchmarkMeasurement], name: str) -> Any:
    """Return the one value of a field, or None if no run tells it. Raise BenchmarkError with a file for each value."""
    first: dict[str, BenchmarkMeasurement] = {}
    for run in measured:
        if value := getattr(run, name):
            first.setdefault(value, run)
    if len(first) > 1:
        (value, run), *others = first.items()
        told = ", ".join(f"{other.location} {each}" for each, other in others)
        raise BenchmarkError(run.location, f"is of {name} {value}, {told}: a curve is of one {name}")
    return next(iter(first), None)


def _provenance(
    measured: Sequence[BenchmarkMeasurement], lengths: dict[str, Statistics]
) -> tuple[Provenance | None, list[str]]:
    """Return what was benchmarked, as far as the runs agree on it, and the fields in which they differ."""
    found: dict[str, Any] = {}
    conflicts = []
    for name in SETUP:
        values = list(dict.fromkeys(value for run in measured if (value := getattr(run.setup, name))))
        if len(values) == 1:
            found[name] = values[0]
        elif values:
            listed = ", ".join(map(str, values))
            text = f"{name} differs between the runs ({listed}): a curve is of one configuration"
            conflicts.append(f"{text}; left out of measured")
    for kind, means in lengths.items():
        known = {name: round_significant(tokens) for name, tokens in means.model_dump(exclude_none=True).items()}
        found |= {kind: known} if known else {}
    if any(run.loop != "closed" and run.point.concurrency is not None for run in measured):
        found["concurrency"] = LITTLES_LAW
    ended = [run.ended_at for run in measured if run.ended_at is not None]
    if ended:
        found["measured_on"] = f"{datetime.fromtimestamp(max(ended), UTC):%Y-%m-%d}"
    return Provenance.model_validate(found) if found else None, conflicts


def _controlled(point: Point, controls: Sequence[str]) -> tuple[str, float]:
    """Return the field that the generator held and its rounded value. Runs with the same pair repeat a load."""
    name = next(name for name in controls if getattr(point, name) is not None)
    return name, round_significant(getattr(point, name))


def _pool(runs: tuple[BenchmarkMeasurement, ...]) -> MeasuredLoad:
    notes = [ImportRemark(source=run.location, text=text) for run in runs for text in run.remarks]
    if len(runs) > 1:
        others = ", ".join(run.location for run in runs[1:])
        text = f"has the same load as {others}: one point, requests added up, of the P99s the largest"
        notes.append(ImportRemark(source=runs[0].location, text=text))
    point = pool_points([run.point for run in runs])
    rounded = {
        name: round_significant(value, _digits(name, point.requests))
        for name, value in point.model_dump().items()
        if isinstance(value, float)
    }
    return MeasuredLoad(point=point.model_copy(update=rounded), runs=runs, notes=tuple(notes))


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
        merged[name] = max(values) if name in LIMITED else min(max(mean, min(values)), max(values))
    return Point.model_validate({**merged, "censored": all(point.censored for point in sure)})


def round_significant(value: float, digits: int = SIGNIFICANT) -> float:
    return float(f"{value:.{digits}g}")


def _digits(name: str, requests: int | None) -> int:
    """Return the significant digits of a field of a point with that many requests. Rates keep all digits."""
    if requests is None or requests >= FEW_FOR_A_P99 or name not in LATENCIES:
        return SIGNIFICANT
    return DIGITS_OF_A_MAXIMUM if name in LIMITED else DIGITS_OF_FEW


def _mean_lengths(measured: Sequence[BenchmarkMeasurement], kind: str) -> Statistics:
    means = {}
    for name in ("mean", "p50", "p95", "p99"):
        lengths = [(getattr(getattr(run, kind), name), float(run.point.requests or 1)) for run in measured]
        known = [(length, weight) for length, weight in lengths if length is not None]
        if known:
            means[name] = math.fsum(v * w for v, w in known) / math.fsum(w for _, w in known)
    return Statistics(**means)
