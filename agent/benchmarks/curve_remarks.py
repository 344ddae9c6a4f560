"""Remarks on an imported curve, and its differences from the target tier.

Remarks cover what only the importer knows; `rules.plan.checks` covers every plan. A difference in model, engine, GPU or tensor
parallel degree refuses the import unless the user accepts it: another setup has another capacity.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from agent.benchmarks.curves import ImportedCurve, ImportRemark
from agent.benchmarks.points import LATENCIES, BenchmarkMeasurement
from agent.benchmarks.run_model import Statistics
from rules.plan.checks import LENGTH_GAP
from rules.plan.memory import tensor_parallel
from rules.plan.schema import BenchmarkCurve, Point, TierPlan, TokenQuantiles, same_model

SERVER_SIDE = ("gpu_utilization", "kv_utilization", "prefix_hit_ratio", "eviction_rate")
"""Fields a client cannot measure. speculative_acceptance is expected only for tiers with speculation."""

HOW_TO_ADD = "add them with -c (a configuration: its store, or its history of the last 2 days) or --telemetry URL"


def remarks_of(
    imported: ImportedCurve, tier: TierPlan | None = None, *, observed: bool = False
) -> tuple[ImportRemark, ...]:
    """Return all remarks, those of the files first. With a tier, include its differences from the curve.

    `observed`: telemetry was read, so fields that are still missing were not in it.
    """
    notes = [note for load in imported.loads for note in load.notes]
    texts = [*_about_curve(imported), *_not_seen(imported, observed), *(_about_tier(imported, tier) if tier else ())]
    return (*notes, *imported.remarks, *(ImportRemark(source="", text=text) for text in texts))


def missing_fields(before: Mapping[str, object], curve: BenchmarkCurve) -> tuple[str, ...]:
    """Return fields of points and of `measured` that the replaced curve (as parsed) had and the new curve lacks."""
    written, was = before.get("points"), before.get("measured")
    old = [point for point in written if isinstance(point, Mapping)] if isinstance(written, list) else []
    lost = [
        name
        for name in Point.model_fields
        if any(point.get(name) is not None for point in old) and all(getattr(one, name) is None for one in curve.points)
    ]
    known = set(was) if isinstance(was, Mapping) else set()
    return (*lost, *sorted(f"measured.{name}" for name in known if getattr(curve.measured, str(name), None) is None))


def _about_curve(imported: ImportedCurve) -> Iterator[str]:
    points = [load.point for load in imported.loads]
    if len(points) == 1:
        yield "one load is no curve: nothing is known between loads; measure at least one well below and one at the SLO"
    if imported.curve.loop is None:
        yield "whether the loop was open or closed is not told; write curve.loop if you know it"
    if all(point.censored for point in points):
        text = "every point is censored: the load generator, and not the server, was measured"
        yield f"{text}; nothing can be judged against it"
    missing = [name for name in LATENCIES if all(getattr(point, name) is None for point in points)]
    if missing:
        yield f"no file tells {', '.join(missing)}; left out"
    if imported.curve.measured is None or imported.curve.measured.engine_version is None:
        yield "no file tells the engine's release; give it with --measured engine_version=..., so that an upgrade is seen"
    yield from _uneven(imported)


def _not_seen(imported: ImportedCurve, observed: bool) -> Iterator[str]:
    names = SERVER_SIDE
    none = [name for name in names if all(getattr(load.point, name) is None for load in imported.loads)]
    some = [name for name in names if name not in none and any(getattr(p.point, name) is None for p in imported.loads)]
    if none and observed:
        yield f"neither the files nor the telemetry tell {', '.join(none)}; left out"
    elif none:
        yield f"a benchmark client cannot see {', '.join(none)}; left out: {HOW_TO_ADD}"
    if some:
        yield f"{', '.join(some)}: known at some of the points only"


def _uneven(imported: ImportedCurve) -> Iterator[str]:
    for kind in ("prompt", "generation"):
        sent = [(_typical(getattr(run, f"{kind}_tokens")), run) for load in imported.loads for run in load.runs]
        known = sorted(((tokens, run.location) for tokens, run in sent if tokens is not None), key=lambda pair: pair[0])
        if known and known[-1][0] > known[0][0] * (1 + LENGTH_GAP):
            (low, least), (high, most) = known[0], known[-1]
            text = f"{kind} tokens a request differ between loads, from {low:.4g} ({least}) to {high:.4g} ({most})"
            yield f"{text}: points of one curve should be of the same traffic"


def _about_tier(imported: ImportedCurve, tier: TierPlan) -> Iterator[str]:
    for kind in ("prompt", "generation"):
        sent: Statistics = getattr(imported, f"{kind}_tokens")
        tokens = _typical(sent)
        if tokens is None:
            yield f"how many {kind} tokens a request had is not told: whether they were production's cannot be known"
            continue
        word = "median" if sent.p50 is not None else "mean"
        planned: TokenQuantiles | None = getattr(tier.workload, f"{kind}_tokens", None)
        if planned is not None and planned.mean is not None and sent.mean is not None:
            continue  # `rules.plan.checks` compares means for every plan.
        if planned is None or planned.p50 is None:
            text = f"the tier has no workload.{kind}_tokens.p50; the benchmark had {tokens:.4g} a request ({word})"
            yield f"{text}: write production's, so that the two can be compared"
        elif not 1 / (1 + LENGTH_GAP) <= tokens / planned.p50 <= 1 + LENGTH_GAP:
            text = f"the benchmark had {tokens:.4g} {kind} tokens a request ({word})"
            yield f"{text}, workload.{kind}_tokens.p50 is {planned.p50:.4g}: its traffic was not the planned one"
    if tier.speculation and all(load.point.speculative_acceptance is None for load in imported.loads):
        yield f"the tier speculates and no file tells speculative_acceptance; left out: {HOW_TO_ADD}"


def _typical(lengths: Statistics) -> float | None:
    return lengths.p50 if lengths.p50 is not None else lengths.mean


CHECKS = ("model", "engine", "gpu", "parallelism")
"""Names of the compared properties, for `--accept`."""

Difference = tuple[str, str, str]
"""Location of the run, the measured value, and the path in the tier with its value."""


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
    measured, planned = _words(run.setup.gpu), _words(tier.gpu.product)
    if measured and planned and not (measured & planned):
        yield "gpu", f"the GPU {run.setup.gpu}", f"gpu.product is {tier.gpu.product}"
    degree = run.setup.tensor_parallel
    if degree is not None and degree != tensor_parallel(tier):
        key = "tensor_parallel" if tier.gpu.tensor_parallel else "per_replica"
        yield "parallelism", f"a tensor parallel degree of {degree}", f"gpu.{key} is {getattr(tier.gpu, key)}"


def _words(product: str) -> set[str]:
    """Return the chip names in a product name; "cpu" is one."""
    return set(
        re.findall(
            r"cpu|[a-z]+\d+[a-z]*|\d{4}", re.sub(r"hbm\d\w*|sxm\d*|\d+\s?gb|\b\d+\s?x\s?", " ", product.casefold())
        )
    )


"""Checks by the name that `--accept` takes."""
