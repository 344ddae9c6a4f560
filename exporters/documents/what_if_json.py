"""JSON of a what-if, and the words that its text shares: names of quantities, limits and verdicts.

Times are unix seconds, units are in the key names, gaps appear by name. docs/what-if.md describes every key. A changed
meaning of a key raises SCHEMA. A new quantity or limit of the rules needs a row here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from exporters.documents.prewarm_value import build_count_text
from exporters.render.text import copy_fields, format_local
from rules.catalogue.registry import BY_NAME as RULES
from rules.plan.replica_count import ReplicaCount
from rules.resize.fleet_cost import FleetCost
from rules.resize.limits import KV
from rules.resize.production_curve import SloStatus
from rules.resize.workload import measure_workload
from rules.telemetry.signals import Missing, SignalValue
from rules.telemetry.windows import DAY_SECONDS
from rules.telemetry.wording import number
from rules.what_if.answer import GIVEN, SLO, AtLoad, CapacityLimit, WhatIf
from rules.what_if.pools import PoolsWhatIf

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
    SLO: "the SLO",
    GIVEN: "the plan's operating point",
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


def headline(found: WhatIf, zone: str) -> str:
    """Return the result in a sentence: an open finding at this size, whether the SLO would hold, and the first limit."""
    each, size = number(found.asked.rps, "per_second"), replicas(found.asked.replicas)
    text = f"{found.seen.context.tier} with {size} at {number(found.rps, 'per_second')} ({each} a replica)"
    text += f": the SLO {HOLDS[found.asked.kept]}"
    is_burning = found.burns.cover(found.asked.replicas, found.rps)
    if is_burning:
        first = found.burns.findings[0]
        since = format_local(first.started_at, zone, "%a %d %b %H:%M")
        text = f"{RULES[first.rule].title} is open at this size since {since} ({zone}): {text}"
    breaks = found.first_limit
    load = limit_loads(found, breaks) if breaks else None
    if breaks is None or load is None:
        return f"{text}; at which load something breaks is not known."
    what, at = limit_words(breaks.name, breaks.objective), number(load.rps, "per_second")
    # A full KV cache breaks no objective by itself.
    met = f"{what} is reached first" if breaks.name == KV else f"first breaks {what}"
    if load.headroom < 0:
        return f"{text}; {met}, at {at} already."
    # What is broken at this load does not break at a higher one.
    return f"{text}." if is_burning else f"{text}; {met}, at {at} ({load.headroom:+.0%})."


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitLoad:
    """The tier's load that meets a limit, its headroom (0.25: a quarter more than the asked load), the fewest replicas."""

    rps: float
    headroom: float
    fewest: int | None


def limit_loads(found: WhatIf, limit: CapacityLimit) -> LimitLoad | None:
    """Return where the asked replicas meet a limit, None without a known load."""
    if limit.best is None:
        return None
    rps = limit.best * found.asked.replicas
    fewest = math.ceil(round(found.rps / limit.best, 9)) if limit.best > 0 else None
    return LimitLoad(rps=rps, headroom=rps / found.rps - 1, fewest=fewest)


def replicas(count: float) -> str:
    """Return a number of replicas in words."""
    text = f"{count:.0f}" if abs(count - round(count)) < 0.05 else f"{count:.1f}"
    return f"{text} replica" if text == "1" else f"{text} replicas"


SCHEMA = 3

ASSUMED = (
    "the load is spread evenly over the replicas",
    "prompts, outputs and prefix hits are as at the peak, and the engine stays",
    "with another peak the traffic of the other hours grows as the peak does",
)


def whatif_json(found: WhatIf, zone: str, simulated: str = "") -> dict[str, Any]:
    """Return the whole result. The sentence has times in `zone`. `simulated` is the notice of a simulated history."""
    peak, usable, lengths = found.peak, found.seen.context.capacity, measure_workload(found.seen)
    return {
        "schema": SCHEMA,
        "simulated": simulated,
        "tier": found.seen.context.tier,
        "sentence": headline(found, zone),
        "asked": {"instances": found.asked.replicas, "rps": found.asked_rps},
        "load": {
            "rps": found.rps,
            "work_rps": found.work_rps,
            "peak_rps": peak.rps if peak else None,
            "peak_at": peak.at if peak else None,
            "peak_source": peak.source if peak else None,
            "days_seen": found.seen.observed_seconds / DAY_SECONDS,
        },
        "lengths": {"prompt_tokens_mean": lengths.prompt_mean, "generation_tokens_mean": lengths.generation_mean},
        "slo": found.asked.kept.value,
        "open_findings": [copy_fields(one, "rule", "started_at") for one in found.burns.findings],
        "prediction": _at_load(found.asked),
        "now": _at_load(found.now) if found.now else None,
        "one_lost": {**_at_load(found.one_lost), "survived_up_to_rps": found.one_lost_rps} if found.one_lost else None,
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
        "cost": _cost(found.cost),
        "cost_now": _cost(found.cost_now) if found.cost_now else None,
        "limits": [_limit(found, one) for one in found.limits],
        "curve_work": found.curve_work,
        "assumed": list(ASSUMED),
    }


def pools_json(found: PoolsWhatIf) -> dict[str, Any]:
    """Return the answer for pools that are served apart."""
    pools = [
        {
            **copy_fields(pool, "pool", "replicas", "now", "utilization"),
            "needed": _needed(pool.needed),
            "cost": _cost(pool.cost),
        }
        for pool in found.pools
    ]
    return {"schema": SCHEMA, **copy_fields(found, "tier", "rps"), "pools": pools, **found.summary}


def _needed(one: ReplicaCount | None) -> dict[str, Any] | None:
    if one is None:
        return None
    return {"replicas": one.replicas, **asdict(build_count_text(one))}


def _at_load(one: AtLoad) -> dict[str, Any]:
    return {
        "replicas": one.replicas,
        "rps_per_replica": one.rps,
        "slo": one.kept.value,
        "quantities": {name: value_json(value) for name, value in one.benchmark.items()},
    }


def value_json(value: SignalValue) -> dict[str, Any]:
    """Return a reading with value, low, high and n, or the gap's name with its text."""
    if isinstance(value, Missing):
        return {"gap": value.gap.value, "text": value.text}
    return copy_fields(value, "value", "low", "high", "n")


def _limit(found: WhatIf, one: CapacityLimit) -> dict[str, Any]:
    load = limit_loads(found, one)
    return {
        **copy_fields(one, "name", "objective", "reason"),
        "rps_per_replica": value_json(one.rps),
        "rps": load and load.rps,
        "headroom": load and load.headroom,
        "fewest_replicas": load and load.fewest,
        "by": one.source.value,
    }


def _cost(cost: FleetCost) -> dict[str, Any]:
    return {
        **copy_fields(cost, "replicas", "gpu_hours_per_hour", "money_per_hour", "money_per_month"),
        "money_per_million_output_tokens": cost.per_million_tokens,
        "output_tokens_per_hour": cost.tokens_per_hour,
        "currency": cost.price.currency or None,
    }
