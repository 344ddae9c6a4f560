"""Realistic statuses for the tests of exporters and the web server: three tiers, judged by the real rules.

`agent_status()` holds `h100-llama70b-fp8` (planned, one replica down, prefix hits below plan), `l40s-qwen14b` (planned,
in a KV cache cascade that users feel) and `mi300x-mixtral` (no plan). Latencies are log-normal, put into vLLM's buckets.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from itertools import pairwise
from statistics import NormalDist
from typing import Any

import making
import yaml
from judging_samples import add_minute
from paths import TESTS

from exporters.status.records import AgentHealth, AgentStatus, ReplicaStatus, TierStatus, TrendPoint
from rules.confidence import Certainty
from rules.evaluator import rule_evaluation, tier_minutes
from rules.evaluator.rule_evaluation import evaluate_replica_rules
from rules.plan import load_bins
from rules.plan.load_bins import TierContext
from rules.plan.schema import TierPlan, parse_plan
from rules.replicas.cascade import CascadeSample, CascadeState
from rules.replicas.state import ReplicaState, ScrapeTrack
from rules.telemetry import windows
from rules.telemetry.gauges import GaugeSum
from rules.telemetry.histograms import Histogram
from rules.telemetry.readings import read_all
from rules.telemetry.signals import Gap
from rules.telemetry.snapshots import GpuReadout
from rules.telemetry.windows import Window
from rules.verdicts.verdict import FIRING, Finding, RuleResult, Status, Verdict, step_rule_state

NOW = 1_790_000_040.0
MINUTES = 60
GAUGES = ("requests_running", "requests_waiting", "kv_utilization", "kv_utilization_max")

TTFT_EDGES = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
    *(160.0, 640.0, 2560.0, math.inf),
)
TPOT_EDGES = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, math.inf)
TOKEN_EDGES = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0, 10000.0, math.inf)


def log_normal(edges: tuple[float, ...], n: float, median: float, spread: float) -> Histogram:
    """n observations of a log-normal distribution (`spread`: standard deviation of the logarithm) in these buckets."""
    logarithm = NormalDist(math.log(median), spread)
    cumulative = [0.0, *(round(n * logarithm.cdf(math.log(edge))) for edge in edges)]
    counts = tuple(float(b - a) for a, b in pairwise(cumulative))
    return Histogram(edges=edges, counts=counts, total=round(n * median * math.exp(spread**2 / 2), 6))


def level(value: float, wobble: float = 0.0) -> GaugeSum:
    return making.gauge(value, 60.0, value - wobble, value + wobble)


def window(end: float, **traffic: float) -> Window:
    """A minute of one replica. `traffic` may give rps, ttft, tpot (medians), running, waiting, kv, hits, evictions, gpu."""
    usual = {"rps": 9.0, "ttft": 0.22, "tpot": 0.0145, "running": 27.0, "waiting": 0.0, "kv": 0.36, "hits": 0.62}
    t = usual | {"gpu": 0.74, "evictions": 0.0} | traffic
    n = round(t["rps"] * 60.0)
    gauges = {
        "requests_running": level(t["running"], 3),
        "requests_waiting": level(t["waiting"]),
        "kv_utilization": level(t["kv"], 0.02),
        "gpu_gr_engine_active": level(t["gpu"], 0.05),
        "gpu_memory_used_bytes": level(76e9),
        "gpu_memory_total_bytes": level(85e9),
    }
    counters = {
        "requests_finished": float(n),
        "prompt_tokens": n * 900.0,
        "generation_tokens": n * 180.0,
        "preemptions": float(round(n * t["evictions"])),
        "prefix_queried_tokens": n * 900.0,
        "prefix_hit_tokens": round(n * 900.0 * t["hits"]),
        "in_system_change": 0.0,
        "engine_steps": 3600.0,
    }
    histograms = {
        "ttft_seconds": (log_normal(TTFT_EDGES, n, t["ttft"], 0.55),),
        "tpot_seconds": (log_normal(TPOT_EDGES, n, t["tpot"], 0.22),),
        "generation_tokens_per_request": (log_normal(TOKEN_EDGES, n, 180, 0.5),),
        "prompt_tokens_per_request": (log_normal(TOKEN_EDGES, n, 900, 0.8),),
    }
    return making.window(end - 60.0, counters=counters, histograms=histograms, gauges=gauges)


def plan(model: str, product: str, per_replica: int = 4, **changes: Any) -> TierPlan:
    """The plan of the guide's worked example, for another model and GPU."""
    path = TESTS / "plans" / "guide-h100.yaml"
    (tier,) = parse_plan(yaml.safe_load(path.read_text())).tiers.values()
    gpu = tier.gpu.model_copy(update={"product": product, "per_replica": per_replica})
    return tier.model_copy(update={"model": model, "gpu": gpu, **changes})


def gpus(replica: str, product: str, number: int) -> tuple[...]:
    return tuple(
        GpuReadout(
            t=NOW,
            gpu=f"GPU-{replica}-{index}",
            product=product,
            counters={"gpu_busy_seconds": 2710.5, "gpu_busy_covered_seconds": 3600.0, "gpu_energy_joules": 1.9e6},
            gauges={
                "gpu_gr_engine_active": 0.7 + index / 50,
                "gpu_memory_used_bytes": 76e9,
                "gpu_memory_total_bytes": 85e9,
                "gpu_temperature_celsius": 61.0 + index,
            },
            gaps={"gpu_sm_active": "the exporter does not print it"},
        )
        for index in range(number)
    )


def replica(tier: str, name: str, **changes: Any) -> ReplicaStatus:
    """A healthy vLLM replica that has run for an hour."""
    usual: dict[str, Any] = {
        "pool": "mixed",
        "url": f"http://{name}.{tier}.svc:8000/metrics",
        "up": True,
        "last_seen": NOW - 4,
        "misses": 0,
        "engine": "vllm",
        "versions": "after 0.29.0",
        "model": "llama-3.3-70b-instruct",
        "totals": windows.sum_windows(window(NOW - 60 * back) for back in range(60)),
        "gauges": dict(zip(GAUGES, (26.0, 0.0, 0.37, 0.37), strict=True)),
        "gpus": gpus(name, "NVIDIA H100 80GB HBM3", 4),
        "scrape_seconds": 0.011,
    }
    return ReplicaStatus(tier=tier, name=name, **(usual | changes))


def judged(context: TierContext, hours: Mapping[str, list[Window]]) -> tuple[RuleResult, ...]:
    """What the rules over load bins say at NOW of the minutes of each replica."""
    minutes = tier_minutes.TierMinutes()
    for number in range(MINUTES):
        for name, hour in hours.items():
            minutes = add_minute(minutes, hour[number], name, context)
    return rule_evaluation.evaluate_tier_rules(minutes, context, NOW)


def watched(
    tier: str, context: TierContext, name: str, misses: int = 0, cascade: CascadeState | None = None, kv: float = 0.36
) -> tuple[RuleResult, ...]:
    """What the rules over one replica's scrapes say at NOW."""
    page = making.bare_page(NOW - 4, gauges={"kv_utilization_max": kv})
    counts = {"running": 60, "waiting": 40, "preemptions": 4, "finished": 30, "first_tokens": 30}
    seen = CascadeSample(t=NOW - 4, dt=15, level=kv, slow_first_tokens=20, request_seconds=9, **counts)
    state = replace(cascade or CascadeState(), recent=(seen,))
    one = ReplicaState(tier=tier, name=name, track=ScrapeTrack(last=page, seen=NOW - 4, misses=misses), cascade=state)
    return evaluate_replica_rules(one, context, NOW)


def trend(context: TierContext, hours: Mapping[str, list[Window]], missing: range = range(0)) -> tuple[TrendPoint, ...]:
    """The readings of each minute; those of `missing` (minutes ago) are gaps: every scrape failed."""
    points = []
    for number in range(MINUTES):
        ago = MINUTES - 1 - number
        several = [hour[number] for hour in hours.values()]
        total = windows.sum_windows(several)
        if ago in missing:
            total = windows.sum_windows(windows.gap_window(w.start, w.end, Gap.SCRAPE_FAILED) for w in several)
        points.append(TrendPoint(t=total.end, readings=read_all(total, context.basis)))
    return tuple(points)


def started(result: RuleResult, ago: float) -> tuple[Finding, ...]:
    """The open episode of an answer that fires, begun `ago` seconds before NOW."""
    if not isinstance(result, Verdict) or result.status not in FIRING:
        return ()
    rule_state, _ = step_rule_state(None, replace(result, t=NOW - ago))
    assert rule_state.finding is not None
    return (rule_state.finding,)


def ended(result: Verdict, ago: float, lasted: float) -> Finding:
    """A closed episode of a rule that did fire."""
    first, _ = step_rule_state(None, replace(result, t=NOW - ago - lasted))
    _, (closed,) = step_rule_state(first, replace(result, t=NOW - ago, status=Status.OK, certainty=Certainty.CERTAIN))
    assert isinstance(closed, Finding)
    return closed


def hour(shape: Any) -> list[Window]:
    """Sixty minutes, oldest first; `shape(ago)` gives the traffic of the minute that ended so many minutes before NOW."""
    return [window(NOW - 60 * ago, **shape(ago)) for ago in reversed(range(MINUTES))]


def wave(ago: float) -> float:
    """A steady load that is not perfectly steady."""
    return 0.12 * math.sin(ago / 7) + 0.05 * math.sin(ago * 2.3)


@cache
def planned_tier() -> TierStatus:
    """`h100-llama70b-fp8`: as planned but for its prefix hits; one of four replicas does not answer."""
    name = "h100-llama70b-fp8"
    context = load_bins.build_tier_context(name, plan("llama-3.3-70b-instruct", "NVIDIA H100 80GB HBM3"))
    hours = {
        f"h100-{number}": hour(
            lambda ago, number=number: {
                "rps": 8.6 + number / 5 + 6 * wave(ago + number * 5),
                "ttft": 0.24 + 0.1 * wave(ago),
                "running": 26 + 20 * wave(ago + number * 5),
                "kv": 0.36 + 0.3 * wave(ago + number * 5),
                "hits": 0.33 + 0.05 * wave(ago),
            }
        )
        for number in (1, 2, 3, 4)
    }
    hours["h100-4"][-3:] = [windows.gap_window(w.start, w.end, Gap.SCRAPE_FAILED) for w in hours["h100-4"][-3:]]
    results = judged(context, hours)
    for one in ("h100-1", "h100-2", "h100-3"):
        results += watched(name, context, one)
    results += watched(name, context, "h100-4", misses=9)
    open_ones = [e for result in results for e in started(result, 1500 if result.subject.replica is None else 130)]
    down = next(a for a in results if a.rule == "TargetDown" and a.subject.replica == "h100-4")
    assert isinstance(down, Verdict)
    alive = tuple(replica(name, f"h100-{number}") for number in (1, 2, 3))
    dead = replica(
        name, "h100-4", up=False, misses=9, last_seen=NOW - 139, problems=("connection refused",), scrape_seconds=None
    )
    return TierStatus(
        context=context,
        recent=windows.sum_windows(w for h in hours.values() for w in h[-5:]),
        results=results,
        findings=(*open_ones, ended(replace(down, subject=replace(down.subject, replica="h100-2")), 30_000, 240)),
        trend=trend(context, hours, range(20, 26)),
        replicas=(*alive, dead),
        step13="TTFT, TPOT and GPU utilisation confirmed up to 78 % of usable rps; prefix hits are below plan",
    )


@cache
def cascading_tier() -> TierStatus:
    """`l40s-qwen14b`: its second replica fills its KV cache, evicts, queues, and users wait."""
    name = "l40s-qwen14b"
    context = load_bins.build_tier_context(name, plan("qwen3-14b", "NVIDIA L40S", per_replica=1))

    def shape(ago: float) -> dict[str, float]:
        late = max(0.0, 12 - ago) / 12
        return {
            "rps": 11 + 4 * wave(ago) + 2.5 * late,
            "ttft": 0.5 + 7.5 * late**2,
            "tpot": 0.016 + 0.012 * late,
            "running": 40 + 20 * late + 10 * wave(ago),
            "waiting": 58 * late**2,
            "kv": min(0.95, 0.48 + 0.62 * late + 0.2 * wave(ago)),
            "evictions": 0.34 * late**2,
            "hits": 0.6,
            "gpu": min(0.94, 0.79 + 0.2 * late),
        }

    hours = {
        "l40s-1": hour(lambda ago: {"rps": 10.4 + 4 * wave(ago), "kv": 0.45 + 0.3 * wave(ago)}),
        "l40s-2": hour(shape),
    }
    cascade = CascadeState(
        confirmed=True,
        stage=4,
        onset=NOW - 430,
        since=NOW - 200,
        breach_at=NOW - 200,
        evidence="41 of 64 first tokens later than 2 s with the KV cache 97% full and 58 requests waiting",
    )
    results = (
        judged(context, hours)
        + watched(name, context, "l40s-1")
        + watched(name, context, "l40s-2", cascade=cascade, kv=0.97)
    )
    busy = dict(zip(GAUGES, (60.0, 58.0, 0.97, 0.97), strict=True))

    def like(replica_name: str, **parts: Any) -> ReplicaStatus:
        own = gpus(replica_name, "NVIDIA L40S", 1)
        return replica(name, replica_name, model="qwen3-14b", gpus=own, **parts)

    return TierStatus(
        context=context,
        recent=windows.sum_windows(w for h in hours.values() for w in h[-5:]),
        results=results,
        findings=tuple(e for result in results for e in started(result, 430)),
        trend=trend(context, hours),
        replicas=(like("l40s-1"), like("l40s-2", gauges=busy, cascade_stage=4)),
    )


def unplanned_tier(**changes: Any) -> TierStatus:
    """`mi300x-mixtral`: watched for ten minutes, without a plan and without a GPU source."""
    name = "mi300x-mixtral"
    context = load_bins.build_tier_context(name, None)
    hours = {"mi300x-1": hour(lambda ago: {"rps": 4 + 5 * wave(ago), "running": 12 + 20 * wave(ago), "kv": 0.22})}
    bare = [
        replace(w, gauges={k: v for k, v in w.gauges.items() if not k.startswith("gpu_")}) for w in hours["mi300x-1"]
    ]
    results = judged(context, {"mi300x-1": bare}) + watched(name, context, "mi300x-1", kv=0.22)
    usual: dict[str, Any] = {
        "context": context,
        "recent": windows.sum_windows(bare[-5:]),
        "results": results,
        "trend": trend(context, {"mi300x-1": bare})[-10:],
        "replicas": (replica(name, "mi300x-1", model="mixtral-8x22b", versions="0.11 to 0.13", gpus=()),),
    }
    return TierStatus(**(usual | changes))


def agent_status(**changes: Any) -> AgentStatus:
    """The whole installation after some hours."""
    tiers = changes.get("tiers") or (planned_tier(), cascading_tier(), unplanned_tier())
    health = AgentHealth(
        cycles=1431,
        overruns=2,
        last_cycle_at=NOW - 4,
        last_cycle_seconds=0.086,
        scrape_failures={("h100-llama70b-fp8", "h100-4", "connect"): 9, ("l40s-qwen14b", "l40s-1", "timeout"): 1},
        config_reloads=1,
    )
    usual: dict[str, Any] = {
        "role": "standalone",
        "version": "0.1.0",
        "started_at": NOW - 21_465,
        "now": NOW,
        "tiers": tiers,
        "health": health,
    }
    return AgentStatus(**(usual | changes))


def fine_tier(name: str, **changes: Any) -> TierStatus:
    """A tier of `planned_tier` whose replicas all answer and in which nothing fires but what `results` hold."""
    base = planned_tier()
    fine = tuple(one for one in base.results if not (isinstance(one, Verdict) and one.status in FIRING))
    usual: dict[str, Any] = {
        "context": replace(base.context, name=name),
        "results": fine,
        "findings": tuple(finding for one in changes.get("results", ()) for finding in started(one, 60)),
        "replicas": tuple(replica(name, one.name) for one in base.replicas),
    }
    return replace(base, **(usual | changes))


def fleet_status(number: int = 40) -> AgentStatus:
    """`number` tiers: the cascading one, and others that are as planned or learning."""
    names = (f"h100-llama70b-fp8-{place:02d}" for place in range(number - 1))
    fine = [fine_tier(name, observed_seconds=240.0 if name.endswith("5") else 86_400.0) for name in names]
    return agent_status(tiers=(*fine[: number // 2], cascading_tier(), *fine[number // 2 :]))
