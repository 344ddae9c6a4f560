"""Simulated fleet after its history: engines continue with the demo clock and serve pages like vLLM 0.32."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from agent.config.load import load
from agent.demo.engines import PageServer, StandInGpus
from agent.demo.runner import DemoRun
from agent.demo.setup import Clock
from agent.demo.simulation.scenario import PARTS
from agent.demo.simulation.weeks import SimulatedHistory, gpu_names, write_configuration
from agent.durations import duration_text
from rules.engines.registry import BY_NAME as TABLES
from rules.telemetry.snapshots import Snapshot

VLLM_V1 = TABLES["vllm/v1"]


def text(page: Snapshot) -> bytes:
    """Return the page of a simulated engine, by the rows with which sizewatch reads it."""
    common = f'engine="0",model_name="{page.facts["model"]}"'
    lines = {
        "process_start_time_seconds": page.started_at,
        f"vllm:prompt_tokens_created{{{common}}}": page.ready_at,
    }
    ended_by_length = page.counters["requests_ended_by_length"]
    values = {**page.counters, **page.gauges, "requests_finished": page.counters["requests_finished"] - ended_by_length}
    for row in VLLM_V1.rows:
        name = row.source.replace("vllm_", "vllm:", 1)
        where = {label: pattern.partition("|")[0] for label, pattern in row.where.items()} or (
            {"finished_reason": "stop"} if row.family == "requests_finished" else {}
        )
        labels = ",".join([common, *(f'{key}="{value}"' for key, value in where.items())])
        if row.family in page.histograms and not row.until:
            histogram = page.histograms[row.family]
            for edge, count in zip(histogram.edges, histogram.counts, strict=True):
                lines[f'{name}_bucket{{{labels},le="{"+Inf" if edge == math.inf else edge}"}}'] = count
            lines[f"{name}_sum{{{labels}}}"], lines[f"{name}_count{{{labels}}}"] = histogram.total, histogram.counts[-1]
        elif row.family in values and not row.until:
            lines[f"{name}{'_' if row.part else ''}{row.part}{{{labels}}}"] = values[row.family]
    note = "# A simulated engine of sizewatch demo --history; no request was ever served."
    return "\n".join([note, *(f"{name} {value!r}" for name, value in lines.items()), ""]).encode()


STEP_SECONDS = 60.0
"""After a longer time without a question the engines go on in steps of it."""


class LiveFleet:
    """Engines of all tiers, advanced whenever somebody asks; safe to ask from several threads."""

    def __init__(self, past: SimulatedHistory, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._places = {name: (run, n) for run in past.runs.values() for n, name in enumerate(run.names)}
        self.server = PageServer(self._places, self.page)
        plans = {name: past.plan.tiers[run.story.tier] for name, (run, _) in self._places.items()}
        self.gpus = StandInGpus(
            {gpu: partial(self._busy, name) for name, plan in plans.items() for gpu in gpu_names(name, plan)},
            {gpu: plan.gpu.product for name, plan in plans.items() for gpu in gpu_names(name, plan)},
        )

    def page(self, replica: str) -> bytes | None:
        """Return a replica's page now. Return None while it is down."""
        run, place = self._places[replica]
        with self._lock:
            now = self._clock()
            while now - run.t >= 1.0:
                run.advance(min(now, run.t + STEP_SECONDS))
            page = run.page(place)
        return None if page is None else text(page)

    def _busy(self, replica: str) -> float:
        run, place = self._places[replica]
        return run.engines[place].busy


BANNER = "SIMULATED: made-up engines, GPUs and prices, with {past} of made-up past. None of it was ever measured."


def continue_simulation(
    past: SimulatedHistory, folder: Path, speed: float, temporary: bool, ends: ExitStack
) -> DemoRun:
    """The fleet of a folder that was filled, going on from its end at that speed."""
    clock = Clock(speed, past.end)
    fleet = LiveFleet(past, clock)
    ends.callback(fleet.server.stop)
    fleet.server.start()
    return DemoRun(
        loaded=load(write_configuration(folder, past, fleet.server.url), environment={}),
        gpus=fleet.gpus,
        clock=clock,
        speed=speed,
        banner=BANNER.format(past=duration_text(past.end - past.begin)),
        parts=PARTS,
        rounds=dict,
        ended="nothing was left behind" if temporary else f"the history stays in {folder}",
    )
