"""Remarks on an imported curve, and its differences from the target tier.

Remarks cover what only the importer knows; `rules.plan.checks` covers every plan. A difference in model or tensor
parallel degree refuses the import: another setup has another capacity.
"""

from __future__ import annotations

from collections.abc import Iterator

from agent.benchmarks.curves import ImportedCurve, ImportRemark
from agent.benchmarks.points import LATENCIES
from rules.plan.schema import TierPlan, same_model

SERVER_SIDE = ("gpu_utilization", "kv_utilization", "prefix_hit_ratio", "eviction_rate")
"""Fields a client cannot measure. speculative_acceptance is expected only for tiers with speculation."""


def remarks_of(
    imported: ImportedCurve, tier: TierPlan | None = None, *, observed: bool = False
) -> tuple[ImportRemark, ...]:
    """Return all remarks, those of the files first. With a tier, include its differences from the curve.

    `observed`: telemetry was read, so fields that are still missing were not in it.
    """
    notes = [note for load in imported.loads for note in load.notes]
    return (*notes, *imported.remarks, *(ImportRemark("", text) for text in _about_curve(imported, tier, observed)))


def _about_curve(imported: ImportedCurve, tier: TierPlan | None, observed: bool) -> Iterator[str]:
    points, measured = imported.curve.points, imported.curve.measured
    if len(points) == 1:
        yield "one load is no curve: nothing is known between loads; measure at least one well below and one at the SLO"
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


def differences(imported: ImportedCurve, tier: TierPlan) -> list[tuple[str, str, str]]:
    """Return the differences from the tier, each value once: place of the first run, measured value, planned value."""
    places: dict[tuple[str, str], str] = {}
    key = "tensor_parallel" if tier.gpu.tensor_parallel else "per_replica"
    for run in (run for load in imported.loads for run in load.runs):
        if run.model and not same_model(run.model, tier.model):
            places.setdefault((f"the model {run.model}", f"model is {tier.model}"), run.location)
        degree = run.setup.tensor_parallel
        if degree is not None and degree != tier.gpu.tensor_degree:
            planned = f"gpu.{key} is {getattr(tier.gpu, key)}"
            places.setdefault((f"a tensor parallel degree of {degree}", planned), run.location)
    return [(place, *difference) for difference, place in places.items()]
