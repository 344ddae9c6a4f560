"""Benchmark curve from the loads of result files, and the remarks that only the importer can make."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import chain
from operator import attrgetter
from statistics import fmean
from typing import Any, NamedTuple

from pydantic import ValidationError

from agent.benchmarks.run_model import CONTRADICTION, BenchmarkRun
from agent.errors import BenchmarkError
from rules.plan.curve import LIMITED
from rules.plan.mistakes import FEW_FOR_A_P99
from rules.plan.schema import LITTLES_LAW, BenchmarkCurve, Point, Provenance, TierPlan, TokenQuantiles, same_model
from rules.plan.validation import problems_of
from rules.telemetry.windows import group_by

LATENCIES = ("ttft_p50_seconds", "ttft_p99_seconds", "tpot_p50_seconds", *LIMITED[1:])

DIGITS_OF_FEW = dict.fromkeys(LATENCIES, 3) | dict.fromkeys(LIMITED, 2)
"""Significant digits of latencies of fewer than FEW_FOR_A_P99 requests: a P99 is the slowest of them."""

SETUP = ("engine_version", "tensor_parallel", "pipeline_parallel", "data_parallel", "max_num_seqs", "kv_tokens")
"""Fields of a setup that the curve keeps."""

SERVER_SIDE = ("gpu_utilization", "kv_utilization", "prefix_hit_ratio", "eviction_rate")
"""Fields a client cannot measure. speculative_acceptance is expected only for tiers with speculation."""


class ImportRemark(NamedTuple):
    """Remark on one file, or on all files together (`source` is then empty)."""

    source: str
    text: str


class ImportedCurve(NamedTuple):
    """Imported curve, its runs in the order of the points, and the remarks on each point and on the whole."""

    curve: BenchmarkCurve
    runs: tuple[BenchmarkRun, ...]
    notes: tuple[list[ImportRemark], ...]
    remarks: tuple[ImportRemark, ...]


def curve_of(measured: Sequence[BenchmarkRun], *, gpu_utilization_kind: str | None = None) -> ImportedCurve:
    """Return the curve through these loads, sorted by load.

    Raise BenchmarkError with the file names for mixed loops (open and closed), several models and several setups.
    """
    kept, remarks = _select(measured)
    loop, origin = _only(kept, "loop"), _only(kept, "origin")
    for place in ("model", *(f"setup.{name}" for name in SETUP[1:])):
        _only(kept, place)
    controls = ("concurrency", "requested_rps") if loop == "closed" else ("requested_rps", "concurrency")

    def controlled(run: BenchmarkRun) -> tuple[str, float]:
        """Return the field that the generator held and its rounded value. Runs with the same pair repeat a load."""
        name = next(name for name in (*controls, "completed_rps") if getattr(run.point, name) is not None)
        return name, round_significant(getattr(run.point, name))

    loads = []
    for runs in group_by(kept, controlled).values():
        loads.append((_round_point(pool_points([run.point for run in runs])), runs))
    by = next((n for n in controls if all(getattr(point, n) is not None for point, _ in loads)), "completed_rps")
    loads.sort(key=lambda load: (getattr(load[0], by), load[0].completed_rps))
    ordered = tuple(chain.from_iterable(runs for _, runs in loads))
    provenance, conflicts = _provenance(kept)
    has_gpus = any(point.gpu_utilization is not None for point, _ in loads)
    curve = BenchmarkCurve(
        origin=origin if origin == "predicted" else None,
        loop=loop,
        gpu_utilization_kind=gpu_utilization_kind if has_gpus else None,  # type: ignore[arg-type]
        source=tuple(dict.fromkeys(run.source for run in ordered)),
        measured=provenance,
        points=tuple(point for point, _ in loads),
    )
    notes = tuple(_notes_of(runs) for _, runs in loads)
    return ImportedCurve(curve=curve, runs=ordered, notes=notes, remarks=(*remarks, *conflicts))


def _select(measured: Sequence[BenchmarkRun]) -> tuple[list[BenchmarkRun], list[ImportRemark]]:
    kept: dict[str, BenchmarkRun] = {}
    remarks = []
    has_places = any(run.point.requested_rps or run.point.concurrency for run in measured)
    for run in measured:
        if has_places and not (run.point.requested_rps or run.point.concurrency):
            text = "tells neither rate nor concurrency, so it has no place among the other loads; left out"
        elif (same := kept.setdefault(f"{run.loop} {run.point}", run)) is not run:
            text = f"holds the same measurement as {same.location}; it is taken once"
        else:
            continue
        remarks.append(ImportRemark(run.location, text))
    return list(kept.values()), remarks


def _only(measured: Sequence[BenchmarkRun], place: str) -> Any:
    """Return the one value of a field, or None if no run tells it. Raise BenchmarkError with a file for each value."""
    name, read = place.rpartition(".")[2], attrgetter(place)
    first = {value: run for run in reversed(measured) if (value := read(run))}
    if len(first) > 1:
        (value, run), *rest = reversed(first.items())
        listed = ", ".join(f"{benchmark_run.location} {each}" for each, benchmark_run in rest)
        raise BenchmarkError(run.location, f"is of {name} {value}, {listed}: a curve is of one {name}")
    return next(iter(first), None)


def _provenance(measured: Sequence[BenchmarkRun]) -> tuple[Provenance | None, list[ImportRemark]]:
    known: dict[str, Any] = {}
    conflicts = []
    for name in SETUP:
        values = list(dict.fromkeys(value for run in measured if (value := getattr(run.setup, name))))
        if len(values) == 1:
            known[name] = values[0]
        elif values:
            listed = ", ".join(map(str, values))
            text = f"{name} differs between the runs ({listed}): a curve is of one configuration; left out of measured"
            conflicts.append(ImportRemark("", text))
    for kind in ("prompt_tokens", "generation_tokens"):
        lengths = {}
        for name in TokenQuantiles.model_fields:
            pairs = [(getattr(getattr(run, kind), name), float(run.point.requests or 1)) for run in measured]
            known_pairs = [pair for pair in pairs if pair[0] is not None]
            if known_pairs:
                lengths[name] = round_significant(fmean(*zip(*known_pairs, strict=True)))
        try:
            if lengths:
                known[kind] = TokenQuantiles.model_validate(lengths)
        except ValidationError as error:
            text = f"{kind}: {problems_of(error, TokenQuantiles)[0]}, {CONTRADICTION}; left out of measured"
            conflicts.append(ImportRemark("", text))
    if any(run.loop != "closed" and run.point.concurrency is not None for run in measured):
        known["concurrency"] = LITTLES_LAW
    if ended := [run.ended_at for run in measured if run.ended_at is not None]:
        known["measured_on"] = f"{datetime.fromtimestamp(max(ended), UTC):%Y-%m-%d}"
    return Provenance.model_validate(known) if known else None, conflicts


def _notes_of(runs: Sequence[BenchmarkRun]) -> list[ImportRemark]:
    notes = [ImportRemark(run.location, text) for run in runs for text in run.remarks]
    if len(runs) > 1:
        rest = ", ".join(run.location for run in runs[1:])
        text = f"has the same load as {rest}: one point, requests added up, of the P99s the largest"
        notes.append(ImportRemark(runs[0].location, text))
    return notes


def _round_point(point: Point) -> Point:
    rounded, digits = {}, {}
    if point.requests is not None and point.requests < FEW_FOR_A_P99:
        digits = DIGITS_OF_FEW
    for name, value in point:
        if isinstance(value, float):
            rounded[name] = round_significant(value, digits.get(name, 4))
    return point.model_copy(update=rounded)


def pool_points(points: Sequence[Point]) -> Point:
    """Return one point for several runs of the same load.

    Requests add up. Throughput is requests over time. Medians and means are weighted by requests. The largest P99 is
    used, so that the tail is never underestimated. A censored run is dropped if another one is not.
    """
    sure = [point for point in points if not point.censored] or list(points)
    counted = all(point.requests is not None for point in sure)
    weights = [float(point.requests or 0) if counted else 1.0 for point in sure]
    seconds = [weight / point.completed_rps for weight, point in zip(weights, sure, strict=True)]
    merged: dict[str, Any] = {"requests": sum(point.requests or 0 for point in sure) if counted else None}
    for name in Point.model_fields:
        values = [getattr(point, name) for point in sure]
        if name in ("requests", "censored") or any(value is None for value in values):
            continue
        by = seconds if name in ("completed_rps", "output_tokens_per_second") else weights
        merged[name] = max(values)
        if name not in LIMITED:
            # Rounding may leave the range by a digit.
            merged[name] = min(max(fmean(values, by), min(values)), max(values))
    return Point.model_validate({**merged, "censored": all(point.censored for point in sure)})


def round_significant(value: float, digits: int = 4) -> float:
    """Return a value in so many digits: no sweep repeats itself within 0.05 %."""
    return float(f"{value:.{digits}g}")


def remarks_of(imported: ImportedCurve, tier: TierPlan | None = None, *, observed: bool = False) -> list[ImportRemark]:
    """Return all remarks, those of the files first. With a tier, what it needs of a curve counts.

    `observed`: telemetry was read, so fields that are still missing were not in it.
    """
    remarks = [*chain.from_iterable(imported.notes), *imported.remarks]
    points, measured = imported.curve.points, imported.curve.measured
    if len(points) == 1:
        text = "one load is no curve: nothing is known between loads"
        remarks.append(ImportRemark("", f"{text}; measure at least one well below and one at the SLO"))
    server_side = (*SERVER_SIDE, "speculative_acceptance") if tier is not None and tier.speculation else SERVER_SIDE
    missing = [name for name in LATENCIES if all(getattr(point, name) is None for point in points)]
    if imported.curve.loop is None:
        missing.append("loop (write curve.loop if you know it)")
    if measured is None or measured.engine_version is None:
        missing.append("engine_version (give it with --measured engine_version=RELEASE, so that an upgrade is seen)")
    unseen = [name for name in server_side if all(getattr(point, name) is None for point in points)]
    if unseen:
        hint = "" if observed or imported.curve.remark else " (a client cannot see them: add them with -c FILE)"
        missing.append(", ".join(unseen) + hint)
    if missing:
        remarks.append(ImportRemark("", f"not told and left out: {', '.join(missing)}"))
    return remarks


def differences(imported: ImportedCurve, tier: TierPlan) -> list[tuple[str, str, str]]:
    """Return the differences from the tier, which refuse an import: place of the first run, measured and planned value."""
    gpu, places = tier.gpu, dict[tuple[str, str], str]()
    for run in imported.runs:
        degree, planned_degree = run.setup.tensor_parallel, f"gpu has a degree of {gpu.tensor_degree}"
        is_of_product = run.gpu.partition("_")[0] in gpu.product.casefold()
        rows = (
            (not run.model or same_model(run.model, tier.model), f"the model {run.model}", f"model is {tier.model}"),
            (run.engine in ("", tier.engine), f"the engine {run.engine}", f"engine is {tier.engine}"),
            (is_of_product, f"the GPU {run.gpu}", f"gpu.product is {gpu.product}"),
            (run.gpus in (0, gpu.per_replica), f"{run.gpus} x GPU", f"gpu.per_replica is {gpu.per_replica}"),
            (degree in (None, gpu.tensor_degree), f"a tensor parallel degree of {degree}", planned_degree),
        )
        for is_same, measured, planned in rows:
            if not is_same:
                places.setdefault((measured, planned), run.location)
    return [(place, *difference) for difference, place in places.items()]
