"""The panels' queries: what they read and come to, and that a real Prometheus of a watched fleet answers each of them."""

import json
import re
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import recorded
import yaml
from alert_path_servers import query, scraping
from daemon_runs import running, write
from promql import list_panels, read_labels, read_metrics, walk_query
from promql_parser import AggModifierType, AggregateExpr, Call, MatrixSelector, VectorSelector, parse
from promtool import Case, complaints, differences
from simulation_truth import PastFleet
from waiting import CEILING_SECONDS, free_port, wait_for

from agent.daemon.assembly import assemble
from agent.daemon.daemon import Daemon
from agent.demo.engines import HERE, PLAN, Clock, Player, RecordedTrack, track
from agent.demo.simulation.engine import MEMORY_GAUGES, gpu_sums
from agent.demo.simulation.weeks import continue_simulation
from agent.sources.recording import load
from exporters.grafana import dashboards
from exporters.grafana.dashboards import DASHBOARDS, SCOPES, dashboard_json
from exporters.metrics import names
from rules.telemetry.families import FAMILIES, LINKS, FamilyKind
from rules.telemetry.snapshots import GpuReadout

VALUES = {"cluster": ".*", "model": ".*", "tier": "t", "replica": ".*", "instance": ".*", "__rate_interval": "2m"}

METRICS = names.ALL
KINDS = {metric.name: metric.kind for metric in METRICS}
PARTS = ("_bucket", "_sum", "_count")


def expanded(expr: str) -> str:
    """With a value for each of Grafana's variables; KeyError for one that is not known."""
    return re.sub(r"\$(\w+)", lambda found: VALUES[found[1]], expr)


def queries() -> Iterator[tuple[str, str, str]]:
    """Dashboard, panel or mark, and expression."""
    for dashboard in DASHBOARDS:
        model: dict[str, Any] = dashboard_json(dashboard)
        for panel in list_panels(model):
            yield from ((dashboard.uid, panel["title"], target["expr"]) for target in panel.get("targets", ()))
        yield from ((dashboard.uid, mark["name"], mark["expr"]) for mark in model["annotations"]["list"])


QUERIES = tuple(queries())


def nodes(expr: str) -> Iterator[Any]:
    """The expression and everything in it."""
    return walk_query(parse(expanded(expr)))


def named(expr: str) -> Iterable[str]:
    return read_metrics(parse(expanded(expr)))


def base(name: str) -> str:
    """The metric of a part of a histogram; the name itself of everything else."""
    stem = next((name.removesuffix(part) for part in PARTS if name.endswith(part)), name)
    return stem if KINDS.get(stem) is FamilyKind.HISTOGRAM else name


def test_promtool_takes_every_query(tmp_path: Path) -> None:
    file = tmp_path / "queries.yaml"
    rules = [{"record": f"q:{n}:x", "expr": expanded(expr)} for n, (_, _, expr) in enumerate(QUERIES)]
    file.write_text(json.dumps({"groups": [{"name": "g", "rules": rules}]}), encoding="utf-8")
    assert len(QUERIES) > 120
    assert complaints(file) == ""


def test_a_query_reads_only_what_sizewatch_exports() -> None:
    for uid, title, expr in QUERIES:
        assert {base(name) for name in named(expr)} <= set(KINDS), (uid, title)


def test_query_names_labels_of_its_metrics() -> None:
    """Prometheus adds `cluster` and `instance`, and buckets have `le`."""
    labels = {metric.name: {*metric.labels, "cluster", "instance"} for metric in names.ALL}
    for uid, title, expr in QUERIES:
        for label, metrics in read_labels(expanded(expr)):
            known = [
                labels[base(name)] | {"le"} if name.endswith("_bucket") else labels[base(name)] for name in metrics
            ]
            assert any(label in each for each in known), (uid, title, label)


def test_only_counters_are_read_as_rates() -> None:
    for uid, title, expr in QUERIES:
        ranged = {node.vector_selector.name for node in nodes(expr) if isinstance(node, MatrixSelector)}
        for name in named(expr):
            counts = name.endswith(PARTS) or KINDS[base(name)] is FamilyKind.COUNTER
            assert (name in ranged) == counts, (uid, title, name)


def test_no_aggregation_loses_cluster_or_tier() -> None:
    """Sums over agents' own health, which has no tier, are the exception."""
    for uid, title, expr in QUERIES:
        for node in nodes(expr):
            if not isinstance(node, AggregateExpr):
                continue
            read = {base(name) for name in read_metrics(node.expr)}
            assert node.modifier is not None, (uid, title)
            without = node.modifier.type == AggModifierType.Without
            assert ("cluster" in node.modifier.labels) != without, (uid, title)
            if not any("tier" in metric.labels for metric in METRICS if metric.name in read):
                assert uid == "sizewatch-itself"
                continue
            assert ("tier" in node.modifier.labels) != without, (uid, title)


def test_quantiles_keep_tier_and_release() -> None:
    """Other releases may have other bucket edges: their buckets must not be added up."""
    found = 0
    for uid, title, expr in QUERIES:
        for node in nodes(expr):
            if isinstance(node, Call) and node.func.name == "histogram_quantile":
                found += 1
                buckets = node.args[1]
                assert isinstance(buckets, AggregateExpr), (uid, title)
                assert {"tier", "engine", "engine_version", "le"} <= set(buckets.modifier.labels), (uid, title)
                assert (str(buckets.op), buckets.modifier.type == AggModifierType.By) == ("sum", True)
    assert found > 12


def test_every_number_is_about_the_chosen_tiers() -> None:
    """A selector without the variable would show tiers that nobody asked for: a pattern does so where one is chosen."""
    for uid, title, expr in QUERIES:
        assert uid == "sizewatch-fleet" or 'tier=~"' not in expr, (uid, title)
        if uid == "sizewatch-itself":
            continue
        for node in nodes(expr):
            if isinstance(node, VectorSelector):
                assert {"cluster", "tier"} <= {one.name for one in node.matchers.matchers}, (uid, title, node.name)


def test_every_planned_number_is_shown() -> None:
    shown = {base(name) for _, _, expr in QUERIES for name in named(expr)}
    planned = {metric.name for metric in names.OWN if metric.name.startswith("sizewatch_plan_")}
    assert planned <= shown


MODEL = ',model="m"'


def sample(metric: str, tier: str, replica: str = "", *, agent: str = "a", pool: str = "mixed", more: str = "") -> str:
    of_replica = f',pool="{pool}",replica="{replica}"' if replica else ""
    return f'sizewatch_{metric}{{instance="{agent}",job="s",tier="{tier}"{of_replica}{more}}}'


def told() -> dict[str, str]:
    """Tier t: two replicas of unlike releases, each seen by two agents; tier u beside it; tier d in two pools."""
    found = {}
    for agent in ("a", "b"):
        for replica, each, release in (("r1", 30, "1"), ("r2", 60, "2")):
            one: dict[str, str] = {
                sample("requests_finished_total", "t", replica, agent=agent, more=MODEL): f"0+{each}x60",
                sample("generation_tokens_total", "t", replica, agent=agent, more=MODEL): f"0+{each * 100}x60",
                sample("target_up", "t", replica, agent=agent): "1x60",
                sample(
                    "replica_info", "t", replica, agent=agent, more=f'{MODEL},engine="e",engine_version="{release}"'
                ): "1x60",
            }
            # Half a second for nearly all on the one, one second on the other.
            for le, share in (("0.5", 0.9 if release == "1" else 0.0), ("1.0", 1.0), ("+Inf", 1.0)):
                buckets = sample("ttft_seconds_bucket", "t", replica, agent=agent, more=f'{MODEL},le="{le}"')
                one[buckets] = f"0+{each * share:g}x60"
            found |= one
    found |= {
        sample("requests_finished_total", "u", "r", more=MODEL): "0+1500x60",
        sample("target_up", "u", "r"): "0x60",
        sample("requests_finished_total", "d", "p", pool="prefill", more=MODEL): "0+45x60",
        sample("requests_finished_total", "d", "d", pool="decode", more=MODEL): "0+30x60",
        sample("target_up", "d", "p", pool="prefill"): "1x60",
        sample("target_up", "d", "d", pool="decode"): "1x60",
        sample("surplus_replicas", "t"): "1.5x60",
        sample("fleet_utilization_ratio", "t"): "0.25x60",
        sample("verdict", "t", "r1", more=',rule="A"').replace(',pool="mixed"', ""): "2x60",
        sample("verdict_certain", "t", "r1", more=',rule="A"').replace(',pool="mixed"', ""): "0x60",
        sample("verdict", "t", more=',replica="",rule="B"'): "1x60",
        sample("verdict", "e", more=',replica="",rule="B"'): "0x60",
        sample("verdict_certain", "t", more=',replica="",rule="B"'): "1x60",
    }
    for agent, root, severity in (
        ("a", "A", "critical"),
        ("b", "A", "critical"),
        ("a", "B", "warning"),
        ("a", "C", "info"),
    ):
        found[sample("incident", "t", agent=agent, more=f',root="{root}",severity="{severity}"')] = "1x60"
    for tier in ("t", "u", "d"):
        found |= {
            sample("capacity_rps", tier): "12x60",
            sample("plan_gpus_per_replica", tier): "4x60",
            sample("plan_slo_ttft_p99_seconds", tier): "2x60",
            sample("plan_gpu_hour_price", tier, more=',currency="EUR"'): "2x60",
        }
    return found


EXPECTED: dict[tuple[str, str], tuple[str, float]] = {
    ("both agents count once", "t"): (dashboards.FINISHED, 6.0),
    ("a tier is not added to another", "u"): (dashboards.FINISHED, 100.0),
    ("a request in two pools counts once", "d"): (dashboards.FINISHED, 3.0),
    ("running replicas", "t"): (dashboards.REPLICAS_UP, 2.0),
    ("replicas of all pools", "d"): (dashboards.REPLICAS_UP, 2.0),
    ("work by capacity", "t"): (dashboards.of_tier(names.FLEET_UTILIZATION), 0.25),
    ("money of running GPUs", "t"): (dashboards.MONEY_PER_HOUR, 16.0),
    ("cost of a million tokens", "t"): (dashboards.COST_PER_MILLION, 16e6 / (600 * 3600)),
    ("tokens a GPU", "t"): (dashboards.divide(dashboards.GENERATED, dashboards.GPUS_UP, dashboards.ON_TIER), 600 / 8),
    ("requests for money", "t"): (dashboards.REQUESTS_FOR_MONEY, 3600 * 6 / 16),
    ("money for what is surplus", "t"): (dashboards.SURPLUS_MONEY, 1.5 * 4 * 2),
    # The second release: 99 % of requests between 0.5 and 1 s.
    ("the slower release", "t"): (dashboards.TTFT_SHARE, (0.5 + 0.5 * 0.99) / 2),
    ("only what is certain", "t"): (dashboards.WORST_VERDICT, 1.0),
    ("incidents but notes, of two agents once", "t"): (dashboards.INCIDENT_COUNT, 2.0),
    ("no incident is none", "e"): (dashboards.INCIDENT_COUNT, 0.0),
}
"""What is asked and of which tier: the expression, and what it should come to."""


def only(expr: str, tier: str) -> str:
    """The expression for one tier, as Grafana would send it."""
    values = {"cluster": ".*", "tier": tier, "__rate_interval": "5m"}
    scoped = expr.replace(dashboards.SCOPE, SCOPES["tiers"]).replace(dashboards.OF_TIER, SCOPES["tiers"])
    return re.sub(r"\$(\w+)", lambda name: values[name[1]], scoped)


def lines(quantile: float) -> str:
    """The expression of a quantile: a line for each release."""
    return only(dashboards.quantile(quantile, "ttft_seconds"), "t")


@pytest.mark.slow
def test_the_numbers_are_right(tmp_path: Path) -> None:
    values = [
        ("10m", f"abs(vector(scalar({only(expr, tier)})) - {value!r}) < bool {1e-9 * (value or 1.0)!r}", 1.0)
        for (_, tier), (expr, value) in EXPECTED.items()
    ]
    release = 'label_replace(vector(1), "engine_version", "1", "", "")'
    first = f"{lines(0.5)} and on (engine_version) {release}"
    values += [("10m", f"count({lines(0.5)})", 2.0), ("10m", f"vector(scalar({first}))", 0.5 * 0.5 / 0.9)]
    for expr in (dashboards.COST_PER_MILLION, dashboards.REQUESTS_FOR_MONEY):
        values.append(("10m", f"vector(1) unless on () ({only(expr, 'u')})", 1.0))
    # One agent sees an upgrade a scrape before the other.
    late = sample("replica_info", "t", "r1", agent="c", more=f'{MODEL},engine="e",engine_version="0"')
    still = {name: "5x60" if "_bucket{" in name else samples for name, samples in told().items()}
    cases = [
        Case(name="numbers, releases apart, no cost of a stopped tier", series=told(), values=values),
        Case(name="a late agent", series={**told(), late: "1x60"}, values=[("10m", f"count({lines(0.5)})", 2.0)]),
        Case(name="no request", series=still, values=[("10m", f"vector(1) unless on () ({lines(0.99)})", 1.0)]),
    ]
    assert not differences(tmp_path, None, cases)


def test_expressions_use_names_of_metrics() -> None:
    assert {name.partition("{")[0] for name in told()} <= {m.name for m in names.ALL} | {names.bucket("ttft_seconds")}


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


@pytest.mark.server
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


@pytest.mark.server
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
