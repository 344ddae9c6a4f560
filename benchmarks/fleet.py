"""What a turn of role fleet costs: queries, own CPU and memory, and what it asks of the store.

    python benchmarks/fleet.py [--replicas 2000] [--tiers 8] [--gpus 4] [--turns 180] [--store victoria-metrics|prometheus|stand-in]

Writes what so many node agents would export, a virtual minute at a time, into a store that it starts (Debian's package), and
lets the real turns of role fleet, with their history, run over it on a clock of its own. An hour fills the memory; what is
printed is of the turns after it, and growth of the last hour of three. Each figure that has a goal stands beside it; exit 1
where one is not met. `--interval 15` writes four samples a minute, as agents that are scraped every 15 s do: the same turns,
but four times the writing.
With --profile the last turn is shown by function.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import json
import logging
import pstats
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
# Behind the rooms: a benchmark is named as one of them.
sys.path[:0] = [str(ROOT)]
sys.path.append(str(ROOT / "benchmarks"))

import yaml
from fleet_replica import Series, bare_assembly, page_series, replica_series
from fleet_stores import StoreProcess, Writer, pod_name, status_mib, store

from agent.config.files import load_plan
from agent.config.load import build_tier_contexts, plan_versions
from agent.config.load import load as load_config
from agent.daemon.status_builder import status
from agent.history.service import HistoryService, HistorySink
from agent.history.store import HistoryStore
from agent.pipeline.interfaces import Sink
from agent.pipeline.loop import EvaluationLoop
from agent.pipeline.runtime_state import RuntimeState
from agent.sources.recording import load as load_recording
from agent.sources.recording import scrapes
from agent.sources.store import StoreSource, build_store_source
from exporters.metrics import exposition
from exporters.status.records import AgentHealth
from rules.plan.load_bins import build_tier_context

PLAN = ROOT / "tests" / "plans" / "cpu-small.yaml"
RECORDING = ROOT / "tests" / "recordings" / "steady"
BEGIN = 1_790_000_040.0
"""Unix seconds, the beginning of a minute."""

STAND_IN = "stand-in"
"""In a store's place: `fleet_stand_in.py`."""

HOUR = 60
"""Turns of the hour that rules look back. Memory is full some turns later."""

MOST_QUERIES, MOST_CPU_SECONDS, MOST_MIB = 40, 2.0, 400.0
MOST_GROWTH_MIB = 1.0
"""Of resident memory over the last hour of three: what is left of a slope when it is flat."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What one turn took."""

    cpu: float
    wall: float
    queries: int
    received: int
    store_cpu: float
    resident: float


class Clock:
    """Seconds that pass only when told."""

    def __init__(self, now: float) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def main() -> int:
    """Prints the figures; 1 where a goal is not met."""
    options = _options()
    logging.disable(logging.WARNING)
    with ExitStack() as ends:
        folder = Path(ends.enter_context(tempfile.TemporaryDirectory(prefix="sizewatch-fleet-", dir=options.folder)))
        (folder / "store").mkdir()
        server = ends.enter_context(store(options.store, folder / "store", _stand_in(options)))
        clock = Clock(BEGIN)
        history = HistoryService(lambda: HistoryStore(folder / "history.db"))
        loop, runtime = loop_of(folder, server.url, options.tiers, clock, history, options.each_up_to, options.source)
        told = _run(options, server, loop, clock)
        met = _told(options, told, server)
        _page(loop, runtime, clock)
        loop.stop()
    return int(not met)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replicas", type=int, default=2000, help="of all tiers together")
    parser.add_argument("--tiers", type=int, default=8)
    parser.add_argument("--gpus", type=int, default=4, help="of each replica")
    parser.add_argument("--each-up-to", type=int, default=32, help="as fleet.each_up_to in the configuration")
    parser.add_argument("--source", choices=("agents", "engines"), default="agents", help="as tiers.*.from")
    parser.add_argument("--turns", type=int, default=180, help="of a minute each")
    parser.add_argument("--interval", type=float, default=60.0, help="seconds between two samples: 15, 30 or 60")
    parser.add_argument("--store", choices=("victoria-metrics", "prometheus", STAND_IN), default="victoria-metrics")
    parser.add_argument("--folder", type=Path, help="where the store's files go while it runs")
    parser.add_argument("--profile", action="store_true", help="show the last turn by function")
    parser.add_argument("--json", type=Path, help="also write the turns there")
    return parser.parse_args()


def loop_of(
    folder: Path,
    url: str,
    tiers: int,
    clock: Clock,
    history: HistoryService | None,
    each_up_to: int = 0,
    source: str = "agents",
) -> tuple[EvaluationLoop, RuntimeState]:
    """Role fleet's loop over so many equal tiers, `tier-0` and so on, configured as a user would."""
    plan = yaml.safe_load(PLAN.read_text(encoding="utf-8"))
    (one,) = plan["tiers"].values()
    plan["tiers"] = {f"tier-{number}": one for number in range(tiers)}
    (folder / "plan.yaml").write_text(yaml.safe_dump(plan, sort_keys=False), encoding="utf-8")
    keys: dict[str, Any] = {
        "role": "fleet",
        "plan": "plan.yaml",
        "data_dir": ".",
        "store": {"url": url, "timeout": "60s"},
        "fleet": {"delay": "0s", "back_fill": "0s", "each_up_to": each_up_to},
    }
    if source == "engines":
        keys["tiers"] = {
            tier: {"from": source, "selector": f'tier="{tier}"', "replica_label": "replica"} for tier in plan["tiers"]
        }
    (folder / "sizewatch.yaml").write_text(yaml.safe_dump(keys), encoding="utf-8")
    loaded = load_config(folder / "sizewatch.yaml")
    contexts = build_tier_contexts(loaded)
    source = build_store_source(loaded, contexts, None)
    runtime = RuntimeState(source.agent_tiers)
    sinks: tuple[Sink, ...] = (runtime,)
    if history is not None:
        sinks = (*sinks, HistorySink(history, source, plan_versions(loaded)))
    return EvaluationLoop(source=source, tiers=contexts, sinks=sinks, clock=clock), runtime


def source_of(loop: EvaluationLoop) -> StoreSource:
    """The loop's source, which is a store's."""
    assert isinstance(loop.source, StoreSource)
    return loop.source


def recorded_pages() -> list[tuple[float, bytes]]:
    """The pages of a vLLM 0.32 under light load, with their times."""
    recording, _ = load_recording(RECORDING)
    return [(scrape.t, scrape.body) for scrape in scrapes(recording, []) if scrape.body is not None]


def series_of_a_replica(gpus: int) -> tuple[Series, ...]:
    """What the node agent of a recorded vLLM exports about it and its GPUs."""
    plan = load_plan(PLAN)
    (name,) = plan.tiers
    return replica_series(recorded_pages(), build_tier_context(name, plan.tiers[name]), "replica", gpus)


def series_of_an_engine() -> tuple[Series, ...]:
    """Return the series of a recorded vLLM's own page, with `up`."""
    pages = recorded_pages()
    up = Series(labels=(("__name__", "up"),), first=1.0, a_minute=0.0, level=True)
    return up, *page_series(pages[0], pages[-1])


def _stand_in(options: argparse.Namespace) -> tuple[str, ...]:
    """The command of the stand-in for a store, none for a real one."""
    if options.store != STAND_IN:
        return ()
    program = str(ROOT / "benchmarks" / "fleet_stand_in.py")
    return sys.executable, program, str(options.replicas), str(options.tiers), str(options.gpus)


def pods_of_tiers(replicas: int, tiers: int) -> list[list[str]]:
    """The names of so many replicas, by tier."""
    counts = [replicas // tiers] * tiers
    counts[0] += replicas - sum(counts)
    return [[pod_name(tier, number) for number in range(count)] for tier, count in enumerate(counts)]


def _writer(options: argparse.Namespace, url: str) -> Writer:
    series = series_of_an_engine() if options.source == "engines" else series_of_a_replica(options.gpus)
    print(
        f"{options.store}: {options.replicas} replicas in {options.tiers} tiers, {len(series)} series each", flush=True
    )
    tiers = [] if options.store == STAND_IN else pods_of_tiers(options.replicas, options.tiers)
    return Writer(url, tiers, series, options.interval)


def _run(options: argparse.Namespace, server: StoreProcess, loop: EvaluationLoop, clock: Clock) -> list[Turn]:
    writer = _writer(options, server.url)
    api = source_of(loop).api
    told: list[Turn] = []
    for number in range(options.turns):
        clock.now = BEGIN + 60.0 * (number + 1)
        writer.minute(number, clock.now)
        server.flush()
        queries, received, store_cpu = api.counts.queries, api.counts.bytes, server.cpu_seconds
        profile = cProfile.Profile() if options.profile and number == options.turns - 1 else None
        wall, cpu = time.perf_counter(), time.process_time()
        if profile is not None:
            profile.runcall(loop.run_cycle)
        else:
            loop.run_cycle()
        told.append(
            Turn(
                cpu=time.process_time() - cpu,
                wall=time.perf_counter() - wall,
                queries=api.counts.queries - queries,
                received=api.counts.bytes - received,
                store_cpu=server.cpu_seconds - store_cpu,
                resident=status_mib("VmRSS"),
            )
        )
        for tier, text in source_of(loop).errors.items():
            print(f"turn {number}: {tier} cannot be seen: {text}", flush=True)
        if number % 10 == 9:
            print(f"  turn {number + 1}: {told[-1]}", flush=True)
        if profile is not None:
            pstats.Stats(profile).sort_stats("cumtime").print_stats(60)
            pstats.Stats(profile).sort_stats("tottime").print_stats(40)
    print(f"{writer.samples / 1e6:.1f} million samples written")
    return told


def _told(options: argparse.Namespace, told: list[Turn], server: StoreProcess) -> bool:
    if options.json:
        options.json.write_text(json.dumps([{n: getattr(t, n) for n in Turn.__slots__} for t in told]))
    after = told[HOUR:] or told[len(told) // 2 :]
    cpu = [one.cpu for one in after]
    growth = _slope([one.resident for one in told[-HOUR:]]) * HOUR
    met = [
        _goal("queries a turn, most", max(one.queries for one in after), MOST_QUERIES, "{:.0f}"),
        _goal("own CPU a turn, s, median", statistics.median(cpu), MOST_CPU_SECONDS, "{:.2f}"),
        _goal("own CPU a turn, s, worst", max(cpu), MOST_CPU_SECONDS, "{:.2f}"),
        _goal("resident memory, MiB, most ever", status_mib("VmHWM"), MOST_MIB, "{:.0f}"),
    ]
    if len(told) >= 3 * HOUR:
        met.append(_goal("its growth in the last hour of turns, MiB", growth, MOST_GROWTH_MIB, "{:.2f}"))
    else:
        print(f"growth of memory, MiB an hour: {growth:.2f}, after {len(told)} turns: too few to judge")
    print(f"wall time a turn, s, median: {statistics.median(one.wall for one in after):.2f}")
    print(f"received a turn, MB: {statistics.median(one.received for one in after) / 1e6:.2f}")
    print(f"the store's CPU a turn, s, median: {statistics.median(one.store_cpu for one in after):.2f}")
    print(f"the store's memory at the end, MiB: {server.resident_mib:.0f}", flush=True)
    return all(met)


def _slope(values: list[float]) -> float:
    """Of the straight line through values one turn apart, a turn."""
    return statistics.linear_regression(range(len(values)), values).slope if len(values) > 1 else 0.0


def _goal(what: str, value: float, most: float, form: str) -> bool:
    word = "" if value <= most else "  NOT MET"
    print(f"{what}: {form.format(value)} (goal {form.format(most)}){word}")
    return value <= most


def _page(loop: EvaluationLoop, runtime: RuntimeState, clock: Clock) -> None:
    """What a scrape of the fleet role's own page takes beside the turns."""
    parts = bare_assembly(loop, runtime, "fleet")
    gc.collect()
    cpu = time.process_time()
    page, _ = exposition.render(status(parts, clock.now, AgentHealth()), "")
    told = page.count(b"\n") - page.count(b"\n#")
    print(f"its own /metrics: {told} samples, {time.process_time() - cpu:.2f} s CPU")


if __name__ == "__main__":
    sys.exit(main())
