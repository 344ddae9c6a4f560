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
from rules.resize.production_summary import SloStatus
from rules.resize.proposal import KV
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


def headline(what_if: WhatIf, zone: str) -> str:
    """Return the result in a sentence: an open finding at this size, whether the SLO would hold, and the first limit."""
    each, size = number(what_if.asked.rps, "per_second"), replicas(what_if.asked.replicas)
    text = f"{what_if.seen.context.name} with {size} at {number(what_if.rps, 'per_second')} ({each} a replica)"
    text += f": the SLO {HOLDS[what_if.asked.kept]}"
    is_burning = what_if.burns.cover(what_if.asked.replicas, what_if.rps)
    if is_burning:
        first = what_if.burns.findings[0]
        since = format_local(first.started_at, zone, "%a %d %b %H:%M")
        text = f"{RULES[first.rule].title} is open at this size since {since} ({zone}): {text}"
    breaks = what_if.first_limit
    load = limit_loads(what_if, breaks) if breaks else None
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


def limit_loads(what_if: WhatIf, limit: CapacityLimit) -> LimitLoad | None:
    """Return where the asked replicas meet a limit, None without a known load."""
    if limit.best is None:
        return None
    rps = limit.best * what_if.asked.replicas
    fewest = math.ceil(round(what_if.rps / limit.best, 9)) if limit.best > 0 else None
    return LimitLoad(rps=rps, headroom=rps / what_if.rps - 1, fewest=fewest)


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


def whatif_json(what_if: WhatIf, zone: str, simulated: str = "") -> dict[str, Any]:
    """Return the whole result. The sentence has times in `zone`. `simulated` is the notice of a simulated history."""
    peak, usable, lengths = what_if.peak, what_if.seen.context.capacity, measure_workload(what_if.seen)
    return {
        "schema": SCHEMA,
        "simulated": simulated,
        "tier": what_if.seen.context.name,
        "sentence": headline(what_if, zone),
        "asked": {"instances": what_if.asked.replicas, "rps": what_if.asked_rps},
        "load": {
            "rps": what_if.rps,
            "work_rps": what_if.work_rps,
            "peak_rps": peak.rps if peak else None,
            "peak_at": peak.at if peak else None,
            "peak_source": peak.source if peak else None,
            "days_seen": what_if.seen.observed_seconds / DAY_SECONDS,
        },
        "lengths": {"prompt_tokens_mean": lengths.prompt_mean, "generation_tokens_mean": lengths.generation_mean},
        "slo": what_if.asked.kept.value,
        "open_findings": [copy_fields(finding, "rule", "started_at") for finding in what_if.burns.findings],
        "prediction": _at_load(what_if.asked),
        "now": _at_load(what_if.now) if what_if.now else None,
        "one_lost": {**_at_load(what_if.one_lost), "survived_up_to_rps": what_if.one_lost_rps}
        if what_if.one_lost
        else None,
        "usable_rps": None
        if usable is None
        else {
            "value": usable.rps,
            **copy_fields(usable, "low", "high"),
            "source": usable.source.value,
            "reason": usable.reason,
        },
        "utilization": what_if.utilization,
        "needed": _needed(what_if.needed),
        "safety_factor": what_if.fleet.safety_factor if what_if.fleet else None,
        "needed_with_safety_factor": what_if.fleet.replicas if what_if.fleet else None,
        "cost": _cost(what_if.cost),
        "cost_now": _cost(what_if.cost_now) if what_if.cost_now else None,
        "limits": [_limit(what_if, limit) for limit in what_if.limits],
        "curve_work": what_if.curve_work,
        "assumed": list(ASSUMED),
    }


def pools_json(pools_what_if: PoolsWhatIf) -> dict[str, Any]:
    """Return the answer for pools that are served apart."""
    pools = [
        {
            **copy_fields(pool, "pool", "replicas", "now", "utilization"),
            "needed": _needed(pool.needed),
            "cost": _cost(pool.cost),
        }
        for pool in pools_what_if.pools
    ]
    return {"schema": SCHEMA, **copy_fields(pools_what_if, "tier", "rps"), "pools": pools, **pools_what_if.summary}


def _needed(replica_count: ReplicaCount | None) -> dict[str, Any] | None:
    if replica_count is None:
        return None
    return {"replicas": replica_count.replicas, **asdict(build_count_text(replica_count))}


def _at_load(at_load: AtLoad) -> dict[str, Any]:
    return {
        "replicas": at_load.replicas,
        "rps_per_replica": at_load.rps,
        "slo": at_load.kept.value,
        "quantities": {name: value_json(value) for name, value in at_load.benchmark.items()},
    }


def value_json(value: SignalValue) -> dict[str, Any]:
    """Return a reading with value, low, high and n, or the gap's name with its text."""
    if isinstance(value, Missing):
        return {"gap": value.gap.value, "text": value.text}
    return copy_fields(value, "value", "low", "high", "n")


def _limit(what_if: WhatIf, limit: CapacityLimit) -> dict[str, Any]:
    load = limit_loads(what_if, limit)
    return {
        **copy_fields(limit, "name", "objective", "reason"),
        "rps_per_replica": value_json(limit.rps),
        "rps": load and load.rps,
        "headroom": load and load.headroom,
        "fewest_replicas": load and load.fewest,
        "by": limit.source.value,
    }


def _cost(cost: FleetCost) -> dict[str, Any]:
    return {
        **copy_fields(cost, "replicas", "gpu_hours_per_hour", "money_per_hour", "money_per_month"),
        "money_per_million_output_tokens": cost.per_million_tokens,
        "output_tokens_per_hour": cost.tokens_per_hour,
        "currency": cost.price.currency or None,
    }
