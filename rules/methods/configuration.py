"""Precision: number formats of the plan that the planned GPU has no hardware path for (guide 9.5).

Owns the comparison; the tables are `rules.methods.gpu_formats`. It needs no telemetry: an FP8 artefact on an A100 runs, only not
on FP8 hardware, and nothing on the engine's page says so. A speed-up that was planned and is absent shows as
TpotDivergence; whether precision is its reason cannot be known from metrics.
"""

from __future__ import annotations

from dataclasses import dataclass

from rules.confidence import Certainty
from rules.methods.gpu_formats import Product, needed, product
from rules.telemetry.signals import Gap, Reading
from rules.verdicts.context import RuleContext
from rules.verdicts.verdict import RuleResult, Status

UNPACKED = frozenset({"fp4"})
"""Formats whose weights are often unpacked on purpose, to save memory (MXFP4 models on Hopper): no more than likely."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mismatch:
    """One part in a format that the GPU does not compute. `certain` where nothing but speed can have been meant."""

    text: str
    certain: bool


def judge_precision(case: RuleContext) -> RuleResult:
    """Weights and KV cache of the plan against what the planned GPU computes."""
    plan = case.view.plan
    if plan is None or plan.precision is None or not (plan.precision.weights or plan.precision.kv):
        return case.unknown(Gap.NOT_IN_PLAN, "the plan has no precision")
    written = {"weights": plan.precision.weights, "KV cache": plan.precision.kv}
    parts = {part: format for part, format in written.items() if format}
    strange = [format for format in parts.values() if needed(format) is None]
    gpu = product(plan.gpu.product)
    if gpu is None:
        text = f"{plan.gpu.product} is not in the table of GPUs: what it computes in hardware is not known"
        return case.unknown(Gap.NOT_IN_PLAN, text)
    found = [one for part, format in parts.items() if (one := _mismatch(case, gpu, part, format)) is not None]
    if strange and not found:
        return case.unknown(Gap.NOT_IN_PLAN, f"{' and '.join(strange)} is no format whose needs are known")
    capability = Reading(value=gpu.capability, low=gpu.capability, high=gpu.capability, n=1.0)
    wanted = max((_since(case, format) for format in parts.values()), default=0.0)
    expected = Reading(value=None, low=wanted, high=None, n=1.0)
    if found:
        certainty = Certainty.CERTAIN if any(one.certain for one in found) else Certainty.LIKELY
        sentence = f"{plan.gpu.product}{_has(gpu)}: {'; '.join(one.text for one in found)}"
        return case.verdict(Status.WARNING, certainty, capability, expected, sentence)
    told = ", ".join(f"{part} in {format}" for part, format in parts.items())
    sentence = f"{plan.gpu.product} computes what is planned: {told}"
    return case.verdict(Status.OK, Certainty.CERTAIN, capability, expected, sentence)


def _mismatch(case: RuleContext, gpu: Product, part: str, format: str) -> Mismatch | None:
    needs = needed(format)
    if not needs or gpu.computes(needs, case.limit(needs)):
        return None
    since = f" (NVIDIA has it from {case.limit(needs):g} on)" if gpu.capability is not None else ""
    text = f"no hardware path for {part} in {format}{since}"
    if part == "KV cache":
        return Mismatch(text=f"{text}: memory is saved, time is not", certain=False)
    return Mismatch(text=f"{text}: they run converted, without the planned speed-up", certain=needs not in UNPACKED)


def _since(case: RuleContext, format: str) -> float:
    needs = needed(format)
    return case.limit(needs) if needs else 0.0


def _has(gpu: Product) -> str:
    return "" if gpu.capability is None else f" has compute capability {gpu.capability:.1f}"
