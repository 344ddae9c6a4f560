"""Remarks on an imported curve, and its differences from the target tier.

Remarks cover what only the importer knows; `rules.plan.checks` covers every plan. A difference in model, engine, GPU or tensor
parallel degree refuses the import unless the user accepts it: another setup has another capacity.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from agent.benchmarks.curves import ImportedCurve, ImportRemark
from agent.benchmarks.points import LATENCIES, BenchmarkMeasurement
from agent.benchmarks.run_model import Statistics
from rules.plan.checks import LENGTH_GAP
from rules.plan.memory import tensor_parallel
from rules.plan.schema import TierPlan, TokenQuantiles, same_model

SERVER_SIDE = ("gpu_utilization", "kv_utilization", "prefix_hit_ratio", "eviction_rate")
"""Fields a client cannot measure. speculative_acceptance is expected only for tiers with speculation."""

HOW_TO_ADD = "a client cannot see them: add them with -c FILE or --telemetry URL"

CHECKS = ("model", "engine", "gpu", "parallelism")
"""Names of the compared properties, for `--accept`."""

KINDS = ("prompt", "generation")

Difference = tuple[str, str, str]
"""Location of the run, the measured value, and the path in the tier with its value."""


def remarks_of(
    imported: ImportedCurve, tier: TierPlan | None = None, *, observed: bool = False
) -> tuple[ImportRemark, ...]:
    """Return all remarks, those of the files first. With a tier, include its differences from the curve.

    `observed`: telemetry was read, so fields that are still missing were not in it.
    """
    notes = [note for load in imported.loads for note in load.notes]
    texts = [*_about_curve(imported, tier, observed), *_uneven(imported)]
    if tier is not None and (lengths := "; ".join(_other_lengths(imported, tier))):
        texts.append(f"its traffic may not be production's: {lengths}")
    return (*notes, *imported.remarks, *(ImportRemark(source="", text=text) for text in texts))


def _about_curve(imported: ImportedCurve, tier: TierPlan | None, observed: bool) -> Iterator[str]:
    points, measured = imported.curve.points, imported.curve.measured
    if len(points) == 1:
        yield "one load is no curve: nothing is known between loads; measure at least one well below and one at the SLO"
    if all(point.censored for point in points):
        text = "every point is censored: the load generator, and not the server, was measured"
        yield f"{text}; nothing can be judged against it"
    server_side = (*SERVER_SIDE, "speculative_acceptance") if tier is not None and tier.speculation else SERVER_SIDE
    told = {name for name in (*LATENCIES, *server_side) if any(getattr(p, name) is not None for p in points)}
    unseen = [name for name in server_side if name not in told]
    missing = [name for name in LATENCIES if name not in told]
    if imported.curve.loop is None:
        missing.append("loop (write curve.loop if you know it)")
    if measured is None or measured.engine_version is None:
        missing.append("engine_version (give it with --measured engine_version=RELEASE, so that an upgrade is seen)")
    if unseen:
        missing.append(", ".join(unseen) + ("" if observed else f" ({HOW_TO_ADD})"))
    if missing:
        yield f"not told and left out: {', '.join(missing)}"


def _uneven(imported: ImportedCurve) -> Iterator[str]:
    for kind in KINDS:
        sent = [(_typical(getattr(run, f"{kind}_tokens")), run) for load in imported.loads for run in load.runs]
        known = sorted(((tokens, run.location) for tokens, run in sent if tokens is not None), key=lambda pair: pair[0])
        if known and known[-1][0] > known[0][0] * (1 + LENGTH_GAP):
            (low, least), (high, most) = known[0], known[-1]
            text = f"{kind} tokens a request differ between loads, from {low:.4g} ({least}) to {high:.4g} ({most})"
            yield f"{text}: points of one curve should be of the same traffic"


def _other_lengths(imported: ImportedCurve, tier: TierPlan) -> Iterator[str]:
    for kind in KINDS:
        sent: Statistics = getattr(imported, f"{kind}_tokens")
        planned: TokenQuantiles | None = getattr(tier.workload, f"{kind}_tokens", None)
        tokens = _typical(sent)
        if tokens is None:
            yield f"no file tells {kind} tokens"
        elif planned is not None and planned.mean is not None and sent.mean is not None:
            continue  # `rules.plan.checks` compares means for every plan.
        elif planned is None or planned.p50 is None:
            yield f"{tokens:.4g} {kind} tokens a request, the tier has no workload.{kind}_tokens.p50"
        elif not 1 / (1 + LENGTH_GAP) <= tokens / planned.p50 <= 1 + LENGTH_GAP:
            yield f"{tokens:.4g} {kind} tokens a request, workload.{kind}_tokens.p50 is {planned.p50:.4g}"


def _typical(lengths: Statistics) -> float | None:
    return lengths.p50 if lengths.p50 is not None else lengths.mean


def differences(imported: ImportedCurve, tier: TierPlan) -> dict[str, list[Difference]]:
    """Return the differences from the tier by name of CHECKS. Each value appears once, with its first run."""
    found: dict[str, dict[str, Difference]] = {name: {} for name in CHECKS}
    for load in imported.loads:
        for run in load.runs:
            for name, measured, planned in _compare_setup(run, tier):
                found[name].setdefault(measured, (run.location, measured, planned))
    return {name: list(several.values()) for name, several in found.items() if several}


def _compare_setup(run: BenchmarkMeasurement, tier: TierPlan) -> Iterator[tuple[str, str, str]]:
    """Yield each difference: its check, the measured and the planned value."""
    if run.model and not same_model(run.model, tier.model):
        yield "model", f"the model {run.model}", f"model is {tier.model}"
    if run.setup.engine and run.setup.engine != tier.engine:
        yield "engine", f"the engine {run.setup.engine}", f"engine is {tier.engine}"
    # Words with a number (H100, MI300X, L40S) only: users add or omit memory size and form factor.
    measured, planned = _chips(run.setup.gpu), _chips(tier.gpu.product)
    if measured and planned and not (measured & planned):
        yield "gpu", f"the GPU {run.setup.gpu}", f"gpu.product is {tier.gpu.product}"
    degree = run.setup.tensor_parallel
    if degree is not None and degree != tensor_parallel(tier):
        key = "tensor_parallel" if tier.gpu.tensor_parallel else "per_replica"
        yield "parallelism", f"a tensor parallel degree of {degree}", f"gpu.{key} is {getattr(tier.gpu, key)}"


def _chips(product: str) -> set[str]:
    """Return the chip names in a product name; "cpu" is one."""
    bare = re.sub(r"hbm\d\w*|sxm\d*|\d+\s?gb|\b\d+\s?x\s?", " ", product.casefold())
    return set(re.findall(r"cpu|[a-z]+\d+[a-z]*|\d{4}", bare))
