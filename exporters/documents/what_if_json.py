"""A what-if for a program: one object, times in unix seconds, units in the names, gaps by their name.

Owns the structure (docs/what-if.md describes it key by key). A key that changes its meaning raises SCHEMA.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from exporters.documents.prewarm_count import build_count_text
from exporters.documents.whatif_words import headline
from rules.plan.replica_count import ReplicaCount
from rules.resize.whatif_money import Bill
from rules.telemetry.signals import Missing, SignalValue
from rules.what_if.answer import AtLoad, LimitHeadroom, WhatIf

SCHEMA = 1


def whatif_json(found: WhatIf, simulated: str = "") -> dict[str, Any]:
    """The whole answer; `simulated` is what a history that was made up says of itself."""
    question, peak, usable, work = found.question, found.peak, found.usable, found.workload
    return {
        "schema": SCHEMA,
        "simulated": simulated,
        "tier": found.tier,
        "sentence": headline(found),
        "asked": {"instances": question.instances, "rps": question.rps, "prompt_scale": question.prompt_scale},
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
            "low": usable.low,
            "high": usable.high,
            "source": usable.source.value,
            "reason": usable.reason,
        },
        "utilization": found.utilization,
        "needed": _needed(found.needed),
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
    """A reading as everywhere: value, low, high, n; or the gap's name with its text."""
    if isinstance(value, Missing):
        return {"gap": value.gap.value, "text": value.text}
    return {"value": value.value, "low": value.low, "high": value.high, "n": value.n}


def _met(one: LimitHeadroom) -> dict[str, Any]:
    return {
        "name": one.limit.name,
        "objective": one.limit.objective,
        "breaks": one.limit.breaks,
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
        "replicas": one.replicas,
        "gpu_hours_per_hour": one.gpu_hours_per_hour,
        "money_per_hour": one.per_hour,
        "money_per_month": one.per_month,
        "money_per_million_output_tokens": one.per_million_tokens,
        "output_tokens_per_hour": one.tokens_per_hour,
        "currency": one.currency or None,
    }
