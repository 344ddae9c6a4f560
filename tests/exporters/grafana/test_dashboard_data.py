"""Every query of every dashboard asked of a real Prometheus that scraped a watched fleet or simulated weeks: it answers."""

import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import recorded
import yaml
from alert_path_servers import query, scraping
from daemon_runs import running, write
from simulation_truth import PastFleet
from test_dashboard_queries import QUERIES, VALUES, base, named
from waiting import CEILING_SECONDS, free_port, wait_for

from agent.daemon.daemon import Daemon
from agent.daemon.factory import assemble
from agent.demo.engines import HERE, PLAN, Clock, Player, RecordedTrack, track
from agent.demo.simulation.engine import MEMORY_GAUGES, gpu_sums
from agent.demo.simulation.weeks import continue_simulation
from agent.sources.recording import load
from exporters.grafana.dashboards import DASHBOARDS, dashboard_json
from exporters.metrics import names
from rules.telemetry.families import FAMILIES, LINKS
from rules.telemetry.snapshots import GpuReadout

SPEED = 60.0
NOBODY = "http://127.0.0.1:9"

Query = tuple[str, str, str]

CAST: tuple[tuple[str, str, str, float], ...] = (
    ("quiet", "quiet-0", "steady_quiet", 0.0),
    ("quiet", "quiet-1", "diurnal_quiet", 0.0),
    ("noisy", "noisy-0", "diurnal", 30.0),
    ("cascade", "cascade-0", "kv_cascade", 46.0),
    ("code", "code-0", "specdecode", 0.0),
    ("chat", "chat-0", "prefix", 0.0),
    ("tuned", "tuned-0", "lora", 0.0),
    ("flaky", "flaky-0", "restart", 0.0),
)
"""Tier, replica, recording, and the second of it with which it begins."""


class StandInGpus:
    """A GPU for each replica, busy half of the time."""

    def read(self, now: float) -> tuple[tuple[GpuReadout, ...], tuple[str, ...]]:
        gpus = []
        for index, (_, replica, *_) in enumerate(CAST):
            gpu = GpuReadout(
                t=now,
                gpu=f"stand-in-{replica}",
                index=index,
                product="stand-in GPU (simulated)",
                counters=gpu_sums(0.5, now),
                gauges={**MEMORY_GAUGES, "gpu_temperature_celsius": 52.5, "gpu_power_limit_watts": 700.0},
            )
            gpus.append(gpu)
        return tuple(gpus), ()

    def close(self) -> None:
        """Nothing is held."""


def _track(tier: str, replica: str, recording: str, begin: float) -> RecordedTrack:
    own = HERE / "recordings" / recording
    found, problems = load(own if own.is_dir() else recorded.folder(recording))
    assert problems == ()
    return track(found, replica, begin)


def plan(folder: Path) -> Path:
    """The demo's plan, with the tiers that it has not."""
    data: dict[str, Any] = yaml.safe_load(PLAN.read_text(encoding="utf-8"))
    tier = data["tiers"]["quiet"]
    data["tiers"] = dict.fromkeys(dict.fromkeys(name for name, *_ in CAST), tier)
    data["tiers"]["quiet"] = {**tier, "fleet": {**tier["fleet"], "instances": 2}}
    data["tiers"]["noisy"] = {**tier, "slo": {**tier["slo"], "itl_p99_seconds": 0.2, "e2e_p99_seconds": 60.0}}
    data["tiers"]["chat"] = {**tier, "workload": {**tier["workload"], "prefix_hit_ratio": 0.9}}
    path = folder / "plan.yaml"
    path.write_text(yaml.safe_dump(data), encoding="utf-8")
    return path


def listening(path: Path, assembled: Any, clock: Any, port: int) -> AbstractContextManager[Daemon]:
    """The daemon of a configuration, on this port."""
    return running(
        path,
        assemble=assembled,
        clock=clock,
        speed=SPEED,
        web=lambda loaded: loaded.config.web.model_copy(update={"listen": f"127.0.0.1:{port}"}),
    )


@contextmanager
def fleet(folder: Path, port: int) -> Iterator[Daemon]:
    """The daemon on this port, until the end of the block."""
    clock = Clock(SPEED)
    player = Player(tuple(_track(*row) for row in CAST), clock)
    targets = [
        {"url": player.url(replica), "tier": tier, "replica": replica, "gpus": [f"stand-in-{replica}"]}
        for tier, replica, *_ in CAST
    ]
    data: dict[str, Any] = {
        "plan": str(plan(folder)),
        "data_dir": str(folder / "data"),
        "scrape_interval": "15s",
        "targets": targets,
    }
    # Whether an hour of minutes is there in time depends on the machine.
    data["forecast"] = {"enabled": False}
    assembled = partial(assemble, clock=clock, gpu_source=StandInGpus())
    try:
        with listening(write(folder, data), assembled, clock, port) as daemon:
            yield daemon
            assert daemon.counts.cycle_errors == 0
    finally:
        player.stop()


pytestmark = pytest.mark.server

STARTS = {names.COLD_START_SECONDS.name, names.COLD_STARTS.name}
"""Measured with or without a forecast."""

FORECASTS = names.OWN[names.OWN.index(names.RECOMMENDED) : names.OWN.index(names.FORECAST_FAILURES)]
"""Metrics of a tier's forecast, recommendation and measured starts."""

EMPTY = frozenset(
    metric.name
    for metric in (
        # Stand-in GPUs have no profiling fields, no clocks that are held down, and no faults.
        *map(names.metric, ("gpu_sm_active", "tensor_active", "dram_active", *LINKS, "gpu_throttled_covered_seconds")),
        *map(names.metric, ("gpu_fault_events", "gpu_ecc_uncorrectable_errors")),
        # No recorded engine samples the life of blocks, moves or offloads them.
        *(names.metric(family.name) for family in FAMILIES if family.name.startswith(("kv_offload", "kv_transfer"))),
        names.metric("kv_residency_seconds"),
        # The plan's sweep did not measure concurrency, and the demo has not seen a week of hours.
        *(names.PLAN_C_MAX, names.SURPLUS_REPLICAS),
        # The fleet posts no alerts and is called by nobody.
        *(names.FOREIGN_ALERTS, names.ALERTMANAGER_UP, names.ALERTMANAGER_SUCCESS),
        *(names.ALERTS_REFUSED, names.ALERTS_POSTED, names.ALERT_POST_FAILURES),
        *(names.WEBHOOK_TAKEN, names.WEBHOOK_REFUSED, names.WEBHOOK_LEFT_OUT),
        # The forecasting process needs days of history.
        *(metric for metric in FORECASTS if metric.name not in STARTS),
    )
)
"""Metrics that this fleet does not give: a query that reads one of them need not answer."""


def test_recorded_fleet_answers_every_query(tmp_path: Path) -> None:
    """Metrics that are said to be absent are; variables need no cluster."""
    queries = [query for query in QUERIES if not reads(query) & EMPTY]
    there: set[str] = set()
    values: dict[str, set[str]] = {}
    port = free_port()
    with fleet(tmp_path, port), scraping(tmp_path, f"127.0.0.1:{port}", NOBODY) as prometheus:
        assert wait_for_answers(prometheus, queries) == []

        def are_values_there() -> bool:
            rows = query(prometheus, 'group by (__name__) ({job="sizewatch"})')
            there.clear()
            there.update(row["metric"]["__name__"] for row in rows)
            values.update(_values(prometheus))
            return len(there) > 60 and all(values.values())

        # A scrape that a busy machine misses makes everything stale until the next one.
        assert wait_for(are_values_there, every=0.5)
    assert not there & EMPTY
    assert values["sizewatch-fleet cluster"] == {""}
    assert values["sizewatch-fleet tier"] >= {"quiet", "noisy", "cascade", "code", "chat"}
    assert values["sizewatch-tier replica"] == {"quiet-0", "quiet-1"}


def has_answer(prometheus: str, expr: str) -> bool:
    """For one of the tiers at least; the rate window holds some scrapes of one a second."""
    values = {**VALUES, "tier": ".*", "__rate_interval": "15s"}
    text = re.sub(r"\$(\w+)", lambda name: values[name[1]], expr.replace('tier="$tier"', 'tier=~"$tier"'))
    return bool(query(prometheus, text))


def reads(query: Query) -> set[str]:
    return {base(name) for name in named(query[2])}


def wait_for_answers(prometheus: str, queries: list[Query]) -> list[Query]:
    """Ask until each of the queries has an answer. Return the silent ones."""
    waiting = list(queries)

    def all_answer() -> bool:
        waiting[:] = [query for query in waiting if not has_answer(prometheus, query[2])]
        return not waiting

    wait_for(all_answer, 2 * CEILING_SECONDS, every=1.0)
    return waiting


def _values(prometheus: str) -> Iterator[tuple[str, set[str]]]:
    """What each variable offers, the earlier ones chosen."""
    for dashboard in DASHBOARDS:
        for variable in dashboard_json(dashboard)["templating"]["list"][1:]:
            asked = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["query"]["query"])
            assert asked
            source = re.sub(r"\$(\w+)", lambda name: {**VALUES, "tier": "quiet"}[name[1]], asked[1])
            rows = query(prometheus, f"group by ({asked[2]}) ({source})")
            yield f"{dashboard.uid} {variable['name']}", {row["metric"].get(asked[2], "") for row in rows}


def test_queries_about_the_forecast_answer(tmp_path: Path, past_fleet: PastFleet) -> None:
    """Of a simulated fleet with its weeks behind it: the fleet of recordings cannot give these."""
    ours = {metric.name for metric in FORECASTS} | {names.PLAN_C_MAX.name}
    queries = [query for query in QUERIES if reads(query) & ours and not reads(query) & (EMPTY - ours)]
    assert len(queries) > 15
    show = continue_simulation(past_fleet.into(tmp_path / "fleet"), tmp_path / "fleet", SPEED)
    port = free_port()
    daemon = listening(show.loaded.path, show.assemble, show.clock, port)
    with daemon, scraping(tmp_path, f"127.0.0.1:{port}", NOBODY) as prometheus:
        assert wait_for_answers(prometheus, queries) == []
