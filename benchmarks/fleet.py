"""What a cycle of role fleet costs: queries, own CPU and memory, and what it asks of a real VictoriaMetrics.

    python benchmarks/fleet.py [--replicas 2000] [--tiers 8] [--gpus 4] [--cycles 180] [--source agents|engines]

Writes what so many node agents would export, a virtual minute at a time, into a store that it starts, and lets the real
cycles of role fleet, with their history, run over it on a clock of its own. An hour fills the memory. What is printed is of
the cycles after it, and growth of the last hour of three. Exit 1 where a goal is not met. `--interval 15` writes four
samples a minute, as agents that are scraped every 15 s do. `--each-up-to` is fleet.each_up_to of the configuration, replicas
are of all tiers together, GPUs of each replica. The store's files are in `--folder` while it runs.
"""

from __future__ import annotations

import argparse
import logging
import math
import statistics
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import md5
from pathlib import Path
from typing import Any

import common
import yaml
from common import PLAN
from prometheus_server import Victoria, victoria_metrics
from stored_recordings import Sample, agent_samples, engine_samples
from waiting import StandingClock

from agent.config.files import load_plan
from agent.config.load import build_tier_contexts, plan_versions
from agent.config.load import load as load_config
from agent.history.service import HistoryService, HistorySink
from agent.history.store import HistoryStore
from agent.pipeline.loop import EvaluationLoop
from agent.pipeline.runtime_state import RuntimeState
from agent.sources.store import StoreSource, build_store_source
from rules.plan.schema import Plan

BEGIN = 1_790_000_040.0
"""Unix seconds, the beginning of a minute."""

HOUR = 60
"""Cycles of the hour that rules look back. Memory is full some cycles later."""

MOST_QUERIES, MOST_CPU_SECONDS, MOST_MIB = 40, 2.0, 400.0
MOST_GROWTH_MIB = 1.0
"""Of resident memory over the last hour of three: what is left of a slope when it is flat."""


# ---- what agents export; series of a replica are multiplied by the thousand, so its text is made once for a behaviour ----

GPU_COUNTERS = {
    "busy_seconds": 24.0,
    "energy_joules": 27_000.0,
    "throttled_power_seconds": 0.6,
    **dict.fromkeys(("busy_covered_seconds", "energy_covered_seconds", "throttled_covered_seconds"), 60.0),
    **dict.fromkeys(("throttled_thermal_seconds", "throttled_hardware_seconds"), 0.0),
    **dict.fromkeys(("ecc_uncorrectable_errors", "ecc_correctable_errors", "fault_events"), 0.0),
}
"""What an agent exports of an H100, by minute."""

GPU_GAUGES = {
    "memory_used_bytes": 7.4e10,
    "memory_total_bytes": 8.55e10,
    "memory_reserved_bytes": 5e8,
    "temperature_celsius": 61.0,
    "power_limit_watts": 700.0,
    **dict.fromkeys(("gr_engine_active_ratio", "sm_active_ratio", "tensor_active_ratio", "dram_active_ratio"), 0.4),
    **dict.fromkeys((f"{link}_{way}_bytes_per_second" for link in ("pcie", "nvlink") for way in ("tx", "rx")), 2e9),
}

REPLICA, NODE, CARD = "@REPLICA@", "@NODE", "R" * 27
"""Placeholders of what is a replica's own."""

ADDED_LABELS = {
    "instance": f"10.42.{NODE}:19095",
    "job": "sizewatch/sizewatch-node",
    "namespace": "sizewatch",
    "pod": f"sizewatch-node-{NODE}",
    "container": "sizewatch",
    "endpoint": "http",
}
"""Labels that Prometheus' operator adds to what it scrapes."""

BEHAVIOURS = 16
"""Ways of replicas to behave: each has its load."""

SEEN = "sizewatch_target_last_success_timestamp_seconds"
OF_LOAD = ("_running", "_waiting", "kv_utilization_ratio", "kv_utilization_max_ratio", "_active_ratio")
WHOLE = ("_bucket", "_count", "requests_finished_total", "tokens_total")
OF_COUNTERS = ("_total", "_bucket", "_sum", "_count")
POST_BYTES = 16_000_000

Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One series: its name and other labels, its value at the beginning and what a minute adds, None of a gauge."""

    name: str
    labels: Labels
    first: float
    a_minute: float | None = None


def series_of_an_agent(plan: Plan, gpus: int) -> list[Series]:
    """Return what the node agent of a recorded vLLM exports about it and its GPUs."""
    series = [row for row in _series(agent_samples("steady", plan)) if dict(row.labels).get("replica")]
    for number in range(gpus):
        labels = (("gpu", f"GPU-{number:08x}-{CARD}"), ("pool", "mixed"))
        for name, rate in GPU_COUNTERS.items():
            name = f"sizewatch_gpu_{name}_total"
            series.append(Series(name=name, labels=labels, first=0.0, a_minute=rate))
        for name, value in GPU_GAUGES.items():
            series.append(Series(name=f"sizewatch_gpu_{name}", labels=labels, first=value))
    return series


def _series(samples: Iterable[Sample]) -> list[Series]:
    """Return the series of the last page, as the first begins and what a minute adds."""
    times: dict[tuple[str, Labels], list[tuple[float, float]]] = {}
    for name, labels, t, value in samples:
        times.setdefault((name, tuple(sorted(labels.items()))), []).append((t, value))
    newest = max(values[-1][0] for values in times.values())
    series = []
    for (name, labels), values in times.items():
        (start, first), (end, last) = values[0], values[-1]
        if end < newest:
            continue
        rate = None
        if name.endswith(OF_COUNTERS) and end > start:
            rate = (last - first) / (end - start) * 60.0
        series.append(Series(name=name, labels=labels, first=last if rate is None else first, a_minute=rate))
    return series


def pod_name(tier: int, number: int) -> str:
    """Return a name as a Deployment gives it to its pods."""
    hashed = md5(f"{tier}/{number}".encode(), usedforsecurity=False).hexdigest()
    return f"vllm-llama-70b-t{tier}-6c9f7d8b5d-{hashed[:7]}"


class Writer:
    """Writes what every replica exports, a minute at a time; `tiers` are the names of their replicas."""

    def __init__(self, url: str, tiers: Sequence[Sequence[str]], series: Sequence[Series], interval: float) -> None:
        self.samples = 0
        self._url, self._tiers, self._series = url, tiers, series
        self._steps = max(1, round(60.0 / interval))
        self._done = [0.0] * BEHAVIOURS

    def write_minute(self, number: int, end: float) -> None:
        """Write the minute that ends at `end` (unix seconds), the `number`th. Minutes must follow each other."""
        texts = [self._behave(behaviour, number, end) for behaviour in range(BEHAVIOURS)]
        body = bytearray()
        for tier, replicas in enumerate(self._tiers):
            for place, name in enumerate(replicas):
                card = md5(name.encode(), usedforsecurity=False).hexdigest()[: len(CARD)]
                own = {"@TIER@": f"tier-{tier}", REPLICA: name, NODE: card[:5], CARD: card}
                text = texts[place % BEHAVIOURS]
                for placeholder, value in own.items():
                    text = text.replace(placeholder.encode(), value.encode())
                body += text
                if len(body) > POST_BYTES:
                    self._post(bytes(body))
                    body.clear()
        self._post(bytes(body))
        self.samples += self._steps * len(self._series) * sum(map(len, self._tiers))

    def _behave(self, behaviour: int, number: int, end: float) -> bytes:
        """Return the lines of a replica of one behaviour. Its load is a share of the recorded load, and swings."""
        load = (0.3 + 0.11 * behaviour) * (1.0 + 0.25 * math.sin(number / 9.0 + behaviour))
        lines = []
        for step in range(1, self._steps + 1):
            part = step / self._steps
            t = end - 60.0 * (1.0 - part) - 14.0 + 0.8 * behaviour
            done = self._done[behaviour] + load * part
            for series in self._series:
                value = self._value(series, load, done, number + part, t)
                labels = {**dict(series.labels), **ADDED_LABELS, "tier": "@TIER@", "replica": REPLICA}
                text = ",".join(f'{name}="{label}"' for name, label in labels.items())
                lines.append(f"{series.name}{{{text}}} {value!r} {round(t * 1000)}\n")
        self._done[behaviour] += load
        return "".join(lines).encode()

    def _value(self, series: Series, load: float, done: float, minutes: float, t: float) -> float:
        if series.name == SEEN:
            return t - 0.25
        if series.a_minute is None:
            value = series.first * (load if series.name.endswith(OF_LOAD) else 1.0)
        else:
            value = series.first + series.a_minute * (minutes if "_gpu_" in series.name else done)
        return math.floor(value) if series.name.endswith(WHOLE) else value

    def _post(self, body: bytes) -> None:
        for path, data in (("/api/v1/import/prometheus", body), ("/internal/force_flush", b"")):
            with urllib.request.urlopen(urllib.request.Request(self._url + path, data=data), timeout=300):
                pass


# ---- the cycles ----


@dataclass(frozen=True, slots=True, kw_only=True)
class CycleCost:
    """What one cycle took: CPU seconds, queries, bytes, MiB."""

    cpu: float
    queries: int
    received: int
    store_cpu: float
    resident: float


def main() -> int:
    defaults = {"each_up_to": 32, "cycles": 180, "interval": 60.0, "folder": Path}
    parser = common.build_parser(__doc__, replicas=2000, tiers=8, gpus=4, **defaults)
    parser.add_argument("--source", choices=("agents", "engines"), default="agents", help="as tiers.*.from")
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory(prefix="sizewatch-fleet-", dir=options.folder) as name:
        folder = Path(name)
        with victoria_metrics(folder, "-memory.allowedBytes=4GB") as store:
            clock = StandingClock(BEGIN)
            history = HistoryService(lambda: HistoryStore(folder / "history.db"))
            loop, source = build_loop(folder, store.url, options, clock, history)
            is_met = _report(_run(options, store, loop, source, clock))
            loop.stop()
    return int(not is_met)


def build_loop(
    folder: Path, url: str, options: argparse.Namespace, clock: StandingClock, history: HistoryService
) -> tuple[EvaluationLoop, StoreSource]:
    """Return role fleet's loop and source over so many equal tiers, `tier-0` and so on, configured as a user would."""
    plan = yaml.safe_load(PLAN.read_text(encoding="utf-8"))
    (keys_of_tier,) = plan["tiers"].values()
    plan["tiers"] = {f"tier-{number}": keys_of_tier for number in range(options.tiers)}
    (folder / "plan.yaml").write_text(yaml.safe_dump(plan, sort_keys=False), encoding="utf-8")
    keys: dict[str, Any] = {
        "role": "fleet",
        "plan": "plan.yaml",
        "data_dir": ".",
        "store": {"url": url, "timeout": "60s"},
        "fleet": {"delay": "0s", "back_fill": "0s", "each_up_to": options.each_up_to},
    }
    if options.source == "engines":
        keys["tiers"] = {}
        for tier in plan["tiers"]:
            keys["tiers"][tier] = {"from": "engines", "selector": f'tier="{tier}"', "replica_label": "replica"}
    loaded = load_config(common.write_config(folder, keys))
    contexts = build_tier_contexts(loaded)
    store = build_store_source(loaded, contexts, None)
    sinks = (RuntimeState(store.agent_tiers), HistorySink(history, store, plan_versions(loaded)))
    return EvaluationLoop(source=store, tiers=contexts, sinks=sinks, clock=clock), store


def _run(
    options: argparse.Namespace, store: Victoria, loop: EvaluationLoop, source: StoreSource, clock: StandingClock
) -> list[CycleCost]:
    # A recorded vLLM's own page, with `up`.
    series = _series(engine_samples("steady"))
    if options.source == "agents":
        series = series_of_an_agent(load_plan(PLAN), options.gpus)
    sizes = [options.replicas // options.tiers] * options.tiers
    sizes[0] += options.replicas - sum(sizes)
    print(f"{options.replicas} replicas in {options.tiers} tiers, {len(series)} series each", flush=True)
    pods = [[pod_name(tier, number) for number in range(size)] for tier, size in enumerate(sizes)]
    writer = Writer(store.url, pods, series, options.interval)
    counts, pid = source.api.counts, store.pid
    costs: list[CycleCost] = []
    for number in range(options.cycles):
        clock.now = BEGIN + 60.0 * (number + 1)
        writer.write_minute(number, clock.now)
        queries, received, store_cpu = counts.queries, counts.bytes, common.cpu_seconds(pid)
        cpu = time.process_time()
        loop.run_cycle()
        cost = CycleCost(
            cpu=time.process_time() - cpu,
            queries=counts.queries - queries,
            received=counts.bytes - received,
            store_cpu=common.cpu_seconds(pid) - store_cpu,
            resident=common.read_status()["VmRSS"] / 1024,
        )
        costs.append(cost)
        for tier, text in source.errors.items():
            print(f"cycle {number}: {tier} cannot be read: {text}", flush=True)
        if number % 10 == 9:
            print(f"  cycle {number + 1}: {cost}", flush=True)
    print(f"{writer.samples / 1e6:.1f} million samples written")
    return costs


def _report(costs: list[CycleCost]) -> bool:
    after = costs[HOUR:] or costs[len(costs) // 2 :]
    cpu = [cost.cpu for cost in after]
    met = [
        common.print_goal("queries a cycle, most", max(cost.queries for cost in after), MOST_QUERIES, "{:.0f}"),
        common.print_goal("own CPU a cycle, s, median", statistics.median(cpu), MOST_CPU_SECONDS),
        common.print_goal("own CPU a cycle, s, worst", max(cpu), MOST_CPU_SECONDS),
        common.print_goal("resident memory, MiB, most ever", common.read_status()["VmHWM"] / 1024, MOST_MIB, "{:.0f}"),
    ]
    if len(costs) >= 3 * HOUR:
        # After the memory was read: it takes 70 MiB.
        from scipy.stats import theilslopes

        # The C library gives 32 MiB back after some cycles and takes them again: Theil and Sen's slope ignores that.
        slope = theilslopes([cost.resident for cost in costs[-HOUR:]]).slope
        met.append(common.print_goal("its growth in the last hour of cycles, MiB", slope * HOUR, MOST_GROWTH_MIB))
    print(f"received a cycle, MB: {statistics.median(cost.received for cost in after) / 1e6:.2f}")
    print(f"the store's CPU a cycle, s, median: {statistics.median(cost.store_cpu for cost in after):.2f}")
    return all(met)


if __name__ == "__main__":
    sys.exit(main())
