"""JSON of a what-if, and the words that its text shares: names of quantities, limits, sources and verdicts.

Times are unix seconds, units are in the key names, gaps appear by name. docs/what-if.md describes every key. A changed
meaning of a key raises SCHEMA. A new quantity or limit of the rules needs a row here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from exporters.documents.prewarm_value import build_count_text
from exporters.render.text import copy_fields
from rules.plan.replica_count import ReplicaCount
from rules.resize.fleet_cost import Bill
from rules.resize.production_curve import SloStatus
from rules.telemetry.signals import Missing, SignalValue
from rules.telemetry.wording import number
from rules.what_if.answer import AtLoad, LimitHeadroom, WhatIf
from rules.what_if.limits import BENCHMARK_END, GIVEN, PRODUCTION_END
from rules.what_if.prediction import PredictionSource

QUANTITIES: Mapping[str, tuple[str, str]] = {
    "ttft_p50_seconds": ("TTFT P50", "seconds"),
    "ttft_p99_seconds": ("TTFT P99", "seconds"),
    "tpot_p50_seconds": ("TPOT P50", "seconds"),
    "tpot_p99_seconds": ("TPOT P99", "seconds"),
    "itl_p99_seconds": ("ITL P99", "seconds"),
    "e2e_p99_seconds": ("E2E P99", "seconds"),
    "kv_utilization": ("KV cache used", "ratio"),
    "requests_in_system": ("in the system", "requests"),
}
"""Display name and unit by signal."""

LIMITS: Mapping[str, str] = {
    "ttft_p99_seconds": "TTFT P99 above {}",
    "tpot_p99_seconds": "TPOT P99 above {}",
    "itl_p99_seconds": "ITL P99 above {}",
    "e2e_p99_seconds": "E2E P99 above {}",
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
    """Return a limit in words: "TTFT P99 above 2 s"."""
    unit = QUANTITIES[name][1] if name in QUANTITIES else ""
    return LIMITS[name].format("" if objective is None else number(objective, unit))


def headline(found: WhatIf) -> str:
    """Return the result in a sentence: whether the SLO would hold, and the first limit."""
    each = number(found.asked.rps, "per_second")
    text = f"{found.tier} with {replicas(found.question.instances)} at {number(found.rps, 'per_second')} ({each} a replica)"
    text += f": the SLO {HOLDS[found.asked.kept]}"
    breaks = found.first_limit
    if breaks is None or breaks.tier_rps is None or breaks.headroom is None:
        return f"{text}; at which load something breaks is not known."
    what = limit_words(breaks.limit.name, breaks.limit.objective)
    if breaks.headroom < 0:
        return f"{text}; first breaks {what}, at {number(breaks.tier_rps, 'per_second')} already."
    return f"{text}; first breaks {what}, at {number(breaks.tier_rps, 'per_second')} ({breaks.headroom:+.0%})."


def replicas(count: float) -> str:
    """Return a number of replicas in words."""
    text = f"{count:.0f}" if abs(count - round(count)) < 0.05 else f"{count:.1f}"
    return f"{text} replica" if text == "1" else f"{text} replicas"


SCHEMA = 1


def whatif_json(found: WhatIf, simulated: str = "") -> dict[str, Any]:
    """Return the whole result. `simulated` is the notice of a simulated history."""
    question, peak, usable, work = found.question, found.peak, found.usable, found.workload
    return {
        "schema": SCHEMA,
        "simulated": simulated,
        "tier": found.tier,
        "sentence": headline(found),
        "asked": copy_fields(question, "instances", "rps"),
        "load": {
            "rps": found.rps,
            "peak_rps": peak.rps if peak else None,
            "peak_at": peak.at if peak else None,
            "peak_source": peak.source if peak else None,
            "days_seen": found.days_seen,
        },
        "lengths": {"prompt_tokens_mean": work.prompt_mean, "generation_tokens_mean": work.generation_mean},
        "slo": found.asked.kept.value,
        "prediction": _at_load(found.asked),
        "now": _at_load(found.now),
        "one_lost": None
        if found.one_lost is None
        else {**(_at_load(found.one_lost) or {}), "survived_up_to_rps": found.one_lost_rps},
        "usable_rps": None
        if usable is None
        else {
            "value": usable.rps,
            **copy_fields(usable, "low", "high"),
            "source": usable.source.value,
            "reason": usable.reason,
        },
        "utilization": found.utilization,
        "needed": _needed(found.needed),
        "safety_factor": found.fleet.safety_factor if found.fleet else None,
        "needed_with_safety_factor": found.fleet.replicas if found.fleet else None,
        "cost": _bill(found.bill),
        "cost_now": _bill(found.bill_now),
        "limits": [_met(one) for one in found.met],
        "times_the_benchmark": dict(found.slower),
        "assumed": list(found.assumed),
    }


def _needed(one: ReplicaCount | None) -> dict[str, Any] | None:
    if one is None:
        return None
    return {"replicas": one.replicas, **asdict(build_count_text(one))}


def _at_load(one: AtLoad | None) -> dict[str, Any] | None:
    if one is None:
        return None
    return {
        "replicas": one.replicas,
        "rps_per_replica": one.rps,
        "slo": one.kept.value,
        "quantities": {
            row.name: {"production": value_json(row.production), "benchmark": value_json(row.benchmark)}
            for row in one.predicted
        },
        "objectives": [
            {
                "name": row.name,
                "seconds": row.objective,
                "kept": row.kept.value,
                "by": row.source.value,
                "reason": row.reason,
            }
            for row in one.held
        ],
    }


def value_json(value: SignalValue) -> dict[str, Any]:
    """Return a reading with value, low, high and n, or the gap's name with its text."""
    if isinstance(value, Missing):
        return {"gap": value.gap.value, "text": value.text}
    return copy_fields(value, "value", "low", "high", "n")


def _met(one: LimitHeadroom) -> dict[str, Any]:
    return {
        **copy_fields(one.limit, "name", "objective", "breaks"),
        "rps_per_replica": value_json(one.limit.rps),
        "rps": one.tier_rps,
        "headroom": one.headroom,
        "fewest_replicas": one.fewest,
        "by": one.limit.source.value,
        "reason": one.limit.reason,
    }


def _bill(one: Bill | None) -> dict[str, Any] | None:
    if one is None:
        return None
    return {
        **copy_fields(one, "replicas", "gpu_hours_per_hour"),
        "money_per_hour": one.per_hour,
        "money_per_month": one.per_month,
        "money_per_million_output_tokens": one.per_million_tokens,
        "output_tokens_per_hour": one.tokens_per_hour,
        "currency": one.currency or None,
    }
