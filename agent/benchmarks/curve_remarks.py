"""Remarks on an imported curve, and its differences from the target tier.

Remarks cover what only the importer knows; `rules.plan.checks` covers every plan. A difference in model, engine, GPU or tensor
parallel degree refuses the import: another setup has another capacity.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from agent.benchmarks.curves import ImportedCurve, ImportRemark
from agent.benchmarks.points import LATENCIES, BenchmarkMeasurement
from rules.plan.checks import LENGTH_GAP
from rules.plan.schema import TierPlan, TokenQuantiles, same_model

SERVER_SIDE = ("gpu_utilization", "kv_utilization", "prefix_hit_ratio", "eviction_rate")
"""Fields a client cannot measure. speculative_acceptance is expected only for tiers with speculation."""

KINDS = ("prompt_tokens", "generation_tokens")


def remarks_of(
    imported: ImportedCurve, tier: TierPlan | None = None, *, observed: bool = False
) -> tuple[ImportRemark, ...]:
    """Return all remarks, those of the files first. With a tier, include its differences from the curve.

    `observed`: telemetry was read, so fields that are still missing were not in it.
    """
    notes = [note for load in imported.loads for note in load.notes]
    texts = [*_about_curve(imported, tier, observed), *(_other_lengths(imported, tier) if tier is not None else ())]
    return (*notes, *imported.remarks, *(ImportRemark("", text) for text in texts))


def _about_curve(imported: ImportedCurve, tier: TierPlan | None, observed: bool) -> Iterator[str]:
    points, measured = imported.curve.points, imported.curve.measured
    if len(points) == 1:
        yield "one load is no curve: nothing is known between loads; measure at least one well below and one at the SLO"
    if all(point.censored for point in points):
        yield "every point is censored: the load generator was measured, and nothing can be judged against it"
    server_side = (*SERVER_SIDE, "speculative_acceptance") if tier is not None and tier.speculation else SERVER_SIDE
    unknown = [name for name in (*LATENCIES, *server_side) if all(getattr(p, name) is None for p in points)]
    missing = [name for name in unknown if name in LATENCIES]
    if imported.curve.loop is None:
        missing.append("loop (write curve.loop if you know it)")
    if measured is None or measured.engine_version is None:
        missing.append("engine_version (give it with --measured engine_version=RELEASE, so that an upgrade is seen)")
    if unseen := ", ".join(name for name in unknown if name in server_side):
        hint = " (a client cannot see them: add them with -c FILE)"
        missing.append(unseen if observed else unseen + hint)
    if missing:
        yield f"not told and left out: {', '.join(missing)}"
    for kind in KINDS:
        lengths = [mean for point in points if (mean := getattr(point, f"{kind}_mean"))]
        if lengths and max(lengths) > min(lengths) * (1 + LENGTH_GAP):
            text = f"{kind} a request differ between loads, from {min(lengths):.4g} to {max(lengths):.4g}"
            yield f"{text}: points of one curve should be of the same traffic"


def _other_lengths(imported: ImportedCurve, tier: TierPlan) -> Iterator[str]:
    """Yield medians that are not the tier's. `rules.plan.checks` compares means for every plan."""
    for kind in KINDS:
        sent: TokenQuantiles | None = getattr(imported.curve.measured, kind, None)
        planned: TokenQuantiles | None = getattr(tier.workload, kind, None)
        if sent is None:
            continue
        tokens = sent.p50 or sent.mean
        if (
            tokens is None
            or planned is None
            or planned.p50 is None
            or (planned.mean is not None and sent.mean is not None)
        ):
            continue
        if not 1 / (1 + LENGTH_GAP) <= tokens / planned.p50 <= 1 + LENGTH_GAP:
            text = f"{tokens:.4g} {kind} a request, workload.{kind}.p50 is {planned.p50:.4g}"
            yield f"its traffic may not be production's: {text}"


def differences(imported: ImportedCurve, tier: TierPlan) -> list[tuple[str, str, str]]:
    """Return the differences from the tier, each value once: place of the first run, measured value, planned value."""
    places: dict[tuple[str, str], str] = {}
    for run in (run for load in imported.loads for run in load.runs):
        for difference in _compare_setup(run, tier):
            places.setdefault(difference, run.location)
    return [(place, *difference) for difference, place in places.items()]


def _compare_setup(run: BenchmarkMeasurement, tier: TierPlan) -> Iterator[tuple[str, str]]:
    """Yield the measured and the planned value of each difference."""
    if run.model and not same_model(run.model, tier.model):
        yield f"the model {run.model}", f"model is {tier.model}"
    if run.setup.engine and run.setup.engine != tier.engine:
        yield f"the engine {run.setup.engine}", f"engine is {tier.engine}"
    # Words with a number (H100, MI300X, L40S) only: users add or omit memory size and form factor.
    measured, planned = _chips(run.setup.gpu), _chips(tier.gpu.product)
    if measured and planned and not (measured & planned):
        yield f"the GPU {run.setup.gpu}", f"gpu.product is {tier.gpu.product}"
    degree = run.setup.tensor_parallel
    if degree is not None and degree != tier.gpu.tensor_degree:
        key = "tensor_parallel" if tier.gpu.tensor_parallel else "per_replica"
        yield f"a tensor parallel degree of {degree}", f"gpu.{key} is {getattr(tier.gpu, key)}"


def _chips(product: str) -> set[str]:
    """Return the chip names in a product name; "cpu" is one."""
    bare = re.sub(r"hbm\d\w*|sxm\d*|\d+\s?gb|\b\d+\s?x\s?", " ", product.casefold())
    return set(re.findall(r"cpu|[a-z]+\d+[a-z]*|\d{4}", bare))
