"""Simulated fleet after its history: engines continue with the demo clock and serve pages like vLLM 0.32.

A new family is a row of COUNTERS, GAUGES or HISTOGRAMS.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

from agent.config.load import LoadedConfig, parse_config
from agent.demo.engines import PageServer, StandInGpus
from agent.demo.runner import DemoRun
from agent.demo.setup import Clock
from agent.demo.simulation.folder import BANNER, SimulatedHistory, configuration, write_configuration
from agent.demo.simulation.scenario import PARTS
from agent.demo.simulation.tier_run import TierRun
from agent.durations import duration_text
from rules.plan.schema import TierPlan
from rules.telemetry.snapshots import Snapshot

COUNTERS = (
    ("prompt_tokens", "prompt_tokens_total", ""),
    ("prompt_tokens_computed", "prompt_tokens_by_source_total", 'source="local_compute"'),
    ("generation_tokens", "generation_tokens_total", ""),
    ("preemptions", "num_preemptions_total", ""),
    ("prefix_queried_tokens", "prefix_cache_queries_total", ""),
    ("prefix_hit_tokens", "prefix_cache_hits_total", ""),
    ("admission_rejections", "admission_rejections_total", 'reason="max_num_queued_reqs"'),
    ("requests_ended_by_length", "request_success_total", 'finished_reason="length"'),
    ("requests_aborted", "request_success_total", 'finished_reason="abort"'),
    ("requests_failed", "request_success_total", 'finished_reason="error"'),
)
"""Family, name after `vllm:`, further label. All other finished requests ended with `stop`."""

GAUGES = (
    ("requests_running", "num_requests_running", ""),
    ("requests_waiting", "num_requests_waiting", ""),
    ("requests_waiting_capacity", "num_requests_waiting_by_reason", 'reason="capacity"'),
    ("requests_waiting_deferred", "num_requests_waiting_by_reason", 'reason="deferred"'),
    ("kv_utilization", "kv_cache_usage_perc", ""),
    ("engine_awake", "engine_sleep_state", 'sleep_state="awake"'),
)

HISTOGRAMS = (
    ("ttft_seconds", "time_to_first_token_seconds"),
    ("tpot_seconds", "request_time_per_output_token_seconds"),
    ("itl_seconds", "inter_token_latency_seconds"),
    ("e2e_seconds", "e2e_request_latency_seconds"),
    ("queue_seconds", "request_queue_time_seconds"),
    ("prefill_seconds", "request_prefill_time_seconds"),
    ("decode_seconds", "request_decode_time_seconds"),
    ("prompt_tokens_per_request", "request_prompt_tokens"),
    ("generation_tokens_per_request", "request_generation_tokens"),
)

_ENDED = ("requests_ended_by_length", "requests_aborted")


def text(page: Snapshot) -> bytes:
    return ("\n".join(_lines(page)) + "\n").encode()


def _lines(page: Snapshot) -> Iterator[str]:
    engine = f'engine="0",model_name="{page.facts.get("model", "")}"'
    yield "# A simulated engine of sizewatch demo --history; no request was ever served."
    if page.started_at is not None:
        yield from _typed("process_start_time_seconds", "gauge", f"process_start_time_seconds {page.started_at!r}")
    if page.ready_at is not None:
        yield f"vllm:prompt_tokens_created{{{engine}}} {page.ready_at!r}"
    stopped = page.counters["requests_finished"] - math.fsum(page.counters[family] for family in _ENDED)
    said = [(name, label, page.counters[family]) for family, name, label in COUNTERS]
    said.append(("request_success_total", 'finished_reason="stop"', stopped))
    for name in sorted({name for name, _, _ in said}):
        samples = (_sample(name, engine, label, value) for n, label, value in said if n == name)
        yield from _typed(f"vllm:{name}", "counter", *samples)
    for name in sorted({name for _, name, _ in GAUGES}):
        samples = (_sample(n, engine, label, page.gauges[family]) for family, n, label in GAUGES if n == name)
        yield from _typed(f"vllm:{name}", "gauge", *samples)
    for family, name in HISTOGRAMS:
        yield from _histogram(page, family, name, engine)
    steps = page.counters["engine_steps"]
    yield "# TYPE vllm:iteration_tokens_total histogram"
    yield f'vllm:iteration_tokens_total_bucket{{{engine},le="+Inf"}} {steps!r}'
    yield f"vllm:iteration_tokens_total_sum{{{engine}}} {page.counters['generation_tokens']!r}"
    yield f"vllm:iteration_tokens_total_count{{{engine}}} {steps!r}"


def _typed(name: str, kind: str, *samples: str) -> Iterator[str]:
    yield f"# TYPE {name} {kind}"
    yield from samples


def _sample(name: str, engine: str, label: str, value: float) -> str:
    return f"vllm:{name}{{{engine}{f',{label}' if label else ''}}} {float(value)!r}"


def _histogram(page: Snapshot, family: str, name: str, engine: str) -> Iterator[str]:
    of = page.histograms[family]
    yield f"# TYPE vllm:{name} histogram"
    for edge, count in zip(of.edges, of.counts, strict=True):
        told = "+Inf" if edge == math.inf else repr(edge)
        yield f'vllm:{name}_bucket{{{engine},le="{told}"}} {count!r}'
    yield f"vllm:{name}_sum{{{engine}}} {of.total!r}"
    yield f"vllm:{name}_count{{{engine}}} {of.counts[-1]!r}"


STEP_SECONDS = 60.0
"""After a longer time without a question the engines go on in steps of it."""


class LiveFleet:
    """The engines of all tiers, advanced whenever somebody asks; safe to ask from several threads."""

    def __init__(self, past: SimulatedHistory, clock: Callable[[], float]) -> None:
        self._runs, self._clock = past.filling.runs, clock
        self._lock = threading.Lock()
        self._places = {
            follower.name: (tier, n) for tier, run in self._runs.items() for n, follower in enumerate(run.followers)
        }
        self.server = PageServer(self._places, self.page)
        self.targets = targets(past, self.server.url)
        busy: dict[str, Callable[[], float]] = {}
        products: dict[str, str] = {}
        for name, (tier, _) in self._places.items():
            for gpu in _gpus(name, past.plan.tiers[tier]):
                busy[gpu], products[gpu] = self._busy(name), past.plan.tiers[tier].gpu.product
        self.gpus = StandInGpus(busy, products)

    def page(self, replica: str) -> bytes | None:
        """A replica's page now; None while it is down."""
        tier, place = self._places[replica]
        with self._lock:
            self._go_on(self._runs[tier])
            page = self._runs[tier].page(place, gpus=False)
        return None if page is None else text(page)

    def _go_on(self, run: TierRun) -> None:
        now = self._clock()
        while now - run.t >= 1.0:
            run.advance(min(now, run.t + STEP_SECONDS))

    def _busy(self, replica: str) -> Callable[[], float]:
        tier, place = self._places[replica]

        def share() -> float:
            with self._lock:
                return self._runs[tier].followers[place].engine.busy

        return share


def targets(past: SimulatedHistory, url: Callable[[str], str]) -> tuple[dict[str, object], ...]:
    """The fleet as a configuration names it, at the addresses that `url` gives its replicas."""
    return tuple(
        {
            "url": url(follower.name),
            "tier": tier,
            "replica": follower.name,
            "engine": "vllm",
            "gpus": [f"stand-in-{gpu}" for gpu in _gpus(follower.name, past.plan.tiers[tier])],
        }
        for tier, run in past.filling.runs.items()
        for follower in run.followers
    )


def _gpus(replica: str, plan: TierPlan) -> tuple[str, ...]:
    """Their names, without what every stand-in is called by."""
    return tuple(f"{replica}-gpu{n}" for n in range(plan.gpu.per_replica))


def continue_simulation(
    past: SimulatedHistory, folder: Path, speed: float, temporary: bool, ends: ExitStack
) -> DemoRun:
    """The fleet of a folder that was filled, going on from its end at that speed."""
    clock = Clock(speed, past.end)
    fleet = LiveFleet(past, clock)
    ends.callback(fleet.server.stop)
    fleet.server.start()
    data = configuration(fleet.targets)
    path = write_configuration(folder, data)
    config = parse_config(data, folder=folder, plan=past.plan)
    return DemoRun(
        loaded=LoadedConfig(path=path, config=config, plan=past.plan, warnings=()),
        gpus=fleet.gpus,
        clock=clock,
        speed=speed,
        banner=BANNER.format(past=duration_text(past.seconds)),
        parts=PARTS,
        rounds=dict,
        ended="nothing was left behind" if temporary else f"the history stays in {folder}",
    )
