"""The words of a what-if that text and JSON share: names of quantities, limits, sources and verdicts.

Owns these tables. A quantity or limit that is added to the rules gets its row here.
"""

from __future__ import annotations

from collections.abc import Mapping

from rules.resize.production_curve import SloStatus
from rules.telemetry.signals import Reading
from rules.telemetry.wording import number
from rules.what_if.answer import WhatIf
from rules.what_if.limits import BENCHMARK_END, GIVEN, PRODUCTION_END
from rules.what_if.prediction import PredictionSource

QUANTITIES: Mapping[str, tuple[str, str]] = {
    "ttft_p50_seconds": ("TTFT P50", "seconds"),
    "ttft_p99_seconds": ("TTFT P99", "seconds"),
    "tpot_p50_seconds": ("TPOT P50", "seconds"),
    "tpot_p99_seconds": ("TPOT P99", "seconds"),
    "itl_p99_seconds": ("ITL P99", "seconds"),
    "kv_utilization": ("KV cache used", "ratio"),
    "requests_in_system": ("in the system", "requests"),
}
"""By signal: its name for people and its unit."""

LIMITS: Mapping[str, str] = {
    "ttft_p99_seconds": "TTFT P99 above {}",
    "tpot_p99_seconds": "TPOT P99 above {}",
    "itl_p99_seconds": "ITL P99 above {}",
    "kv_utilization": "KV cache above {}",
    BENCHMARK_END: "end of the benchmark",
    PRODUCTION_END: "end of what production served",
    GIVEN: "the plan's operating point",
}

SOURCES: Mapping[PredictionSource, str] = {
    PredictionSource.PRODUCTION: "production",
    PredictionSource.BENCHMARK: "benchmark",
    PredictionSource.SLOWED: "benchmark, slowed",
    PredictionSource.PLAN: "plan",
    PredictionSource.NOBODY: "not known",
}

HOLDS: Mapping[SloStatus, str] = {
    SloStatus.KEPT: "would hold",
    SloStatus.LIKELY_KEPT: "would likely hold",
    SloStatus.LIKELY_BROKEN: "would likely break",
    SloStatus.BROKEN: "would break",
    SloStatus.TOO_FEW: "may or may not hold",
    SloStatus.NOT_KNOWN: "may or may not hold",
}


def limit_words(name: str, objective: float | None) -> str:
    """A limit for people: "TTFT P99 above 2 s"."""
    unit = QUANTITIES[name][1] if name in QUANTITIES else ""
    return LIMITS[name].format("" if objective is None else number(objective, unit))


def headline(found: WhatIf) -> str:
    """The answer in one sentence: whether the SLO would hold, and what breaks first."""
    each = number(found.asked.rps, "per_second")
    text = f"{found.tier} with {replicas(found.question.instances)} at {number(found.rps, 'per_second')} ({each} a replica)"
    if found.question.prompt_scale != 1:
        text += f" and prompts {found.question.prompt_scale:g}x as long"
    text += f": the SLO {HOLDS[found.asked.kept]}"
    breaks = found.first_limit
    if breaks is None or breaks.tier_rps is None or breaks.headroom is None:
        return f"{text}; at which load something breaks is not known."
    what = limit_words(breaks.limit.name, breaks.limit.objective)
    if isinstance(breaks.limit.rps, Reading) and breaks.limit.rps.value is None:
        # Bounds only: the load is the lowest at which it may be.
        return f"{text}; first may break {what}, at {number(breaks.tier_rps, 'per_second')} at the earliest."
    if breaks.headroom < 0:
        return f"{text}; first breaks {what}, at {number(breaks.tier_rps, 'per_second')} already."
    return f"{text}; first breaks {what}, at {number(breaks.tier_rps, 'per_second')} ({breaks.headroom:+.0%})."


def replicas(count: float) -> str:
    """A number of replicas, in words."""
    text = f"{count:.0f}" if abs(count - round(count)) < 0.05 else f"{count:.1f}"
    return f"{text} replica" if text == "1" else f"{text} replicas"
