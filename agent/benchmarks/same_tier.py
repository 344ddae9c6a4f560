"""Comparison of the benchmarked setup with a tier of the plan: model, engine, GPU, tensor parallel degree.

A difference refuses the import unless the user accepts it. Capacity of another model or GPU gives a wrong fleet size. A
further property is a row of CHECKS.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from agent.benchmarks.curves import ImportedCurve
from agent.benchmarks.points import BenchmarkMeasurement
from rules.plan.schema import TierPlan, same_model

Difference = tuple[str, str, str]
"""Location of the run, the measured value, and the path in the tier with its value."""


def differences(imported: ImportedCurve, tier: TierPlan) -> dict[str, list[Difference]]:
    """Return the differences from the tier by name of CHECKS. Each value appears once, with its first run."""
    found: dict[str, list[Difference]] = {}
    for name, check in CHECKS.items():
        told: dict[str, Difference] = {}
        for load in imported.loads:
            for run in load.runs:
                for measured, planned in check(run, tier):
                    told.setdefault(measured, (run.location, measured, planned))
        if told:
            found[name] = list(told.values())
    return found


Found = Iterator[tuple[str, str]]


def _model(run: BenchmarkMeasurement, tier: TierPlan) -> Found:
    if run.model and not same_model(run.model, tier.model):
        yield f"the model {run.model}", f"model is {tier.model}"


def _engine(run: BenchmarkMeasurement, tier: TierPlan) -> Found:
    if run.setup.engine and run.setup.engine != tier.engine:
        yield f"the engine {run.setup.engine}", f"engine is {tier.engine}"


def _gpu(run: BenchmarkMeasurement, tier: TierPlan) -> Found:
    """Compare the words with a number (H100, MI300X, L40S): users add or omit memory size and form factor."""
    measured, planned = _words(run.setup.gpu), _words(tier.gpu.product)
    if measured and planned and not (measured & planned):
        yield f"the GPU {run.setup.gpu}", f"gpu.product is {tier.gpu.product}"


def _words(product: str) -> set[str]:
    """Return the chip names in a product name; "cpu" is one."""
    return set(
        re.findall(
            r"cpu|[a-z]+\d+[a-z]*|\d{4}", re.sub(r"hbm\d\w*|sxm\d*|\d+\s?gb|\b\d+\s?x\s?", " ", product.casefold())
        )
    )


def _parallelism(run: BenchmarkMeasurement, tier: TierPlan) -> Found:
    degree = run.setup.tensor_parallel
    if degree is not None and degree != tier.gpu.per_replica:
        yield f"a tensor parallel degree of {degree}", f"gpu.per_replica is {tier.gpu.per_replica}"


CHECKS: dict[str, Callable[[BenchmarkMeasurement, TierPlan], Found]] = {
    "model": _model,
    "engine": _engine,
    "gpu": _gpu,
    "parallelism": _parallelism,
}
"""Checks by the name that `--accept` takes."""
