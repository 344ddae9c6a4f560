"""What a cycle of role fleet costs: queries, own CPU and memory, and what it asks of a real VictoriaMetrics.

    python benchmarks/fleet.py [--replicas 2000] [--tiers 8] [--gpus 4] [--cycles 180] [--source agents|engines]

Writes what so many node agents would export, a virtual minute at a time, into a store that it starts, and lets the real
cycles of role fleet, with their history, run over it on a clock of its own. An hour fills the memory. What is printed is of
the cycles after it, and growth of the last hour of three. Exit 1 where a goal is not met. `--interval 15` writes four
samples a minute, as agents that are scraped every 15 s do. With --profile the last cycle is shown by function.
"""

from __future__ import annotations

import argparse
import cProfile
import logging
import pstats
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import common
import yaml
from common import PLAN
from fleet_writer import Writer, pod_name, series_of_an_agent, series_of_an_engine
from store_servers import Victoria, victoria_metrics
from waiting import StandingClock

from agent.config.files import load_plan
from agent.config.load import build_tier_contexts, plan_versions
from agent.config.load import load as load_config
from agent.history.service import HistoryService, HistorySink
from agent.history.store import HistoryStore
from agent.pipeline.loop import EvaluationLoop
from agent.pipeline.runtime_state import RuntimeState
from agent.sources.store import StoreSource, build_store_source

BEGIN = 1_790_000_040.0
"""Unix seconds, the beginning of a minute."""

HOUR = 60
"""Cycles of the hour that rules look back. Memory is full some cycles later."""

MOST_QUERIES, MOST_CPU_SECONDS, MOST_MIB = 40, 2.0, 400.0
MOST_GROWTH_MIB = 1.0
"""Of resident memory over the last hour of three: what is left of a slope when it is flat."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CycleCost:
    """What one cycle took: seconds, queries, bytes, MiB."""

    cpu: float
    wall: float
    queries: int
    received: int
    store_cpu: float
    resident: float


def main() -> int:
    options = _options()
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory(prefix="sizewatch-fleet-", dir=options.folder) as name:
        folder = Path(name)
        with victoria_metrics(folder, "-memory.allowedBytes=4GB") as store:
            clock = StandingClock(BEGIN)
            history = HistoryService(lambda: HistoryStore(folder / "history.db"))
            loop, source = build_loop(folder, store.url, options, clock, history)
            is_met = _report(_run(options, store, loop, source, clock))
            status = common.read_status(store.pid)
            print(f"the store's memory at the end, MiB: {status['VmRSS'] / 1024:.0f}")
            loop.stop()
    return int(not is_met)


def _options() -> argparse.Namespace:
    parser = common.build_parser(__doc__)
    parser.add_argument("--replicas", type=int, default=2000, help="of all tiers together")
    parser.add_argument("--tiers", type=int, default=8)
    parser.add_argument("--gpus", type=int, default=4, help="of each replica")
    parser.add_argument("--each-up-to", type=int, default=32, help="as fleet.each_up_to in the configuration")
    parser.add_argument("--source", choices=("agents", "engines"), default="agents", help="as tiers.*.from")
    parser.add_argument("--cycles", type=int, default=180, help="of a minute each")
    parser.add_argument("--interval", type=float, default=60.0, help="seconds between two samples: 15, 30 or 60")
    parser.add_argument("--folder", type=Path, help="where the store's files go while it runs")
    parser.add_argument("--profile", action="store_true", help="show the last cycle by function")
    return parser.parse_args()


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


def build_writer(url: str, options: argparse.Namespace) -> Writer:
    """Return the writer of so many replicas, spread over tiers."""
    series = series_of_an_engine()
    if options.source == "agents":
        series = series_of_an_agent(load_plan(PLAN), options.gpus)
    counts = [options.replicas // options.tiers] * options.tiers
    counts[0] += options.replicas - sum(counts)
    print(f"{options.replicas} replicas in {options.tiers} tiers, {len(series)} series each", flush=True)
    pods = [[pod_name(tier, number) for number in range(count)] for tier, count in enumerate(counts)]
    return Writer(url, pods, series, options.interval)


def _run(
    options: argparse.Namespace, store: Victoria, loop: EvaluationLoop, source: StoreSource, clock: StandingClock
) -> list[CycleCost]:
    writer = build_writer(store.url, options)
    counts, pid = source.api.counts, store.pid
    costs: list[CycleCost] = []
    for number in range(options.cycles):
        clock.now = BEGIN + 60.0 * (number + 1)
        writer.write_minute(number, clock.now)
        queries, received, store_cpu = counts.queries, counts.bytes, common.cpu_seconds(pid)
        profile = cProfile.Profile()
        is_profiled = options.profile and number == options.cycles - 1
        wall, cpu = time.perf_counter(), time.process_time()
        if is_profiled:
            profile.runcall(loop.run_cycle)
        else:
            loop.run_cycle()
        cost = CycleCost(
            cpu=time.process_time() - cpu,
            wall=time.perf_counter() - wall,
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
        if is_profiled:
            pstats.Stats(profile).sort_stats("cumtime").print_stats(60)
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
        slope = statistics.linear_regression(range(HOUR), [cost.resident for cost in costs[-HOUR:]]).slope
        met.append(common.print_goal("its growth in the last hour of cycles, MiB", slope * HOUR, MOST_GROWTH_MIB))
    print(f"wall time a cycle, s, median: {statistics.median(cost.wall for cost in after):.2f}")
    print(f"received a cycle, MB: {statistics.median(cost.received for cost in after) / 1e6:.2f}")
    print(f"the store's CPU a cycle, s, median: {statistics.median(cost.store_cpu for cost in after):.2f}")
    return all(met)


if __name__ == "__main__":
    sys.exit(main())
