"""Simulated fleet after its history: engines continue with the demo clock and serve pages like vLLM 0.32.

A new family is a row of COUNTERS, GAUGES or HISTOGRAMS.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

from prometheus_client import generate_latest
from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily, Metric

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
    ("prompt_tokens", "prompt_tokens", None),
    ("prompt_tokens_computed", "prompt_tokens_by_source", ("source", "local_compute")),
    ("generation_tokens", "generation_tokens", None),
    ("preemptions", "num_preemptions", None),
    ("prefix_queried_tokens", "prefix_cache_queries", None),
    ("prefix_hit_tokens", "prefix_cache_hits", None),
    ("admission_rejections", "admission_rejections", ("reason", "max_num_queued_reqs")),
    ("requests_ended_by_length", "request_success", ("finished_reason", "length")),
    ("requests_aborted", "request_success", ("finished_reason", "abort")),
    ("requests_failed", "request_success", ("finished_reason", "error")),
)
"""Family, name after `vllm:`, further label. All other finished requests ended with `stop`."""

GAUGES = (
    ("requests_running", "num_requests_running", None),
    ("requests_waiting", "num_requests_waiting", None),
    ("requests_waiting_capacity", "num_requests_waiting_by_reason", ("reason", "capacity")),
    ("requests_waiting_deferred", "num_requests_waiting_by_reason", ("reason", "deferred")),
    ("kv_utilization", "kv_cache_usage_perc", None),
    ("engine_awake", "engine_sleep_state", ("sleep_state", "awake")),
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
    """Return the page of a simulated engine."""
    return generate_latest(SimpleNamespace(collect=lambda: _metrics(page)))


def _metrics(page: Snapshot) -> Iterator[Metric]:
    note = "A simulated engine of sizewatch demo --history; no request was ever served."
    engine = {"engine": "0", "model_name": page.facts.get("model", "")}
    if page.started_at is not None:
        yield GaugeMetricFamily("process_start_time_seconds", note, page.started_at)
    stopped = page.counters["requests_finished"] - math.fsum(page.counters[family] for family in _ENDED)
    counted = [(name, label, page.counters[family]) for family, name, label in COUNTERS]
    counted.append(("request_success", ("finished_reason", "stop"), stopped))
    metrics: dict[str, Metric] = {}
    for name, label, value in counted:
        metric = metrics.setdefault(name, Metric(f"vllm:{name}", note, "counter"))
        metric.add_sample(f"vllm:{name}_total", engine | dict([label] if label else []), value)
    if page.ready_at is not None:
        metrics["prompt_tokens"].add_sample("vllm:prompt_tokens_created", engine, page.ready_at)
    for family, name, label in GAUGES:
        metric = metrics.setdefault(name, Metric(f"vllm:{name}", note, "gauge"))
        metric.add_sample(f"vllm:{name}", engine | dict([label] if label else []), page.gauges[family])
    yield from metrics.values()
    for family, name in HISTOGRAMS:
        found = page.histograms[family]
        buckets = [
            ("+Inf" if edge == math.inf else repr(edge), count)
            for edge, count in zip(found.edges, found.counts, strict=True)
        ]
        yield _histogram(name, note, engine, buckets, found.total or 0.0)
    steps = page.counters["engine_steps"]
    yield _histogram("iteration_tokens_total", note, engine, [("+Inf", steps)], page.counters["generation_tokens"])


def _histogram(
    name: str, note: str, engine: Mapping[str, str], buckets: Sequence[tuple[str, float]], total: float
) -> Metric:
    metric = HistogramMetricFamily(f"vllm:{name}", note, labels=list(engine))
    metric.add_metric(list(engine.values()), buckets=buckets, sum_value=total)
    return metric


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
