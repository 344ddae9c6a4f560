"""The `/metrics` page, read back by prometheus_client's parsers and checked by promtool; names and spare capacity."""

import math
import re
import subprocess
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import making
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text
from status_samples import (
    NOW,
    TTFT_EDGES,
    agent_status,
    gpus,
    log_normal,
    plan,
    planned_tier,
    replica,
    unplanned_tier,
    window,
)
from tools import tool
from waiting import CEILING_SECONDS

from exporters.metrics import names
from exporters.metrics.exposition import GROUP_REPLICAS, render, render_parts
from exporters.metrics.names import SAMPLES
from exporters.status.records import AgentHealth, AgentStatus, ExportScope, ReplicaStatus, TierStatus
from rules.catalogue.registry import margin_of
from rules.plan.load_bins import build_tier_context
from rules.plan.schema import Workload
from rules.telemetry.families import FAMILIES, GPU_NAMES, FamilyKind
from rules.telemetry.histograms import Histogram
from rules.telemetry.readings import read
from rules.telemetry.signals import BY_NAME, SIGNALS, Reading, SignalKind
from rules.telemetry.snapshots import GpuReadout
from rules.verdicts.verdict import Finding, Status, Subject

PLAIN = "text/plain;version=0.0.4"
OPENMETRICS = "application/openmetrics-text;version=1.0.0"

Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


def series(status: AgentStatus, accept: str = PLAIN) -> Series:
    """Every sample of the page, by name and labels; a series that stands twice fails."""
    body, _ = render(status, accept)
    parse = parse_openmetrics if accept == OPENMETRICS else parse_text
    found: Series = {}
    for family in parse(body.decode()):
        for sample in family.samples:
            key = (sample.name, frozenset(sample.labels.items()))
            assert key not in found, f"{key} stands twice"
            found[key] = sample.value
    return found


def one(found: Series, name: str, **labels: str) -> float:
    """The value of the one series of this name with these labels among its own."""
    (value,) = [v for (n, own), v in found.items() if n == name and labels.items() <= dict(own).items()]
    return value


def of_replica(found: Series, name: str) -> set[str]:
    return {n for (n, own) in found if dict(own).get("replica") == name}


def full_replica(**changes: Any) -> ReplicaStatus:
    """A replica whose engine and GPU say everything there is a family for."""
    counters: dict[str, float] = {}
    for place, family in enumerate(FAMILIES, 1):
        if family.kind is FamilyKind.COUNTER and family.name not in GPU_NAMES:
            parts = ("/0", "/1") if family.name in names.PARTS else ("",)
            counters |= {family.name + part: place + number / 4 for number, part in enumerate(parts)}
    histograms = {f.name: (log_normal(TTFT_EDGES, 500, 0.3, 0.5),) for f in FAMILIES if f.kind is FamilyKind.HISTOGRAM}
    totals = making.window(NOW - 60, counters=counters, histograms=histograms)
    gauges = {
        f.name: 0.25 + place
        for place, f in enumerate(FAMILIES)
        if f.kind is FamilyKind.GAUGE and f.name not in GPU_NAMES
    }
    gpu = GpuReadout(
        t=NOW,
        gpu="GPU-1",
        product="NVIDIA L40S",
        counters={
            name + part: 7.5 + i + number / 4
            for i, (name, row) in enumerate(GPU_NAMES.items())
            if row.kind == "counter"
            for number, part in enumerate(("/xid-31", "/xid-79") if name in names.PARTS else ("",))
        },
        gauges={name: 0.5 + i for i, (name, row) in enumerate(GPU_NAMES.items()) if row.kind == "gauge"},
    )
    return replica("t", "r", totals=totals, gauges=gauges, gpus=(gpu,), **changes)


def alone(one_replica: ReplicaStatus, **changes: Any) -> AgentStatus:
    return agent_status(tiers=(unplanned_tier(replicas=(one_replica,)),), **changes)


def fleet(replicas: int) -> AgentStatus:
    several = tuple(replace(full_replica(), name=f"r{n}") for n in range(replicas))
    return agent_status(tiers=(unplanned_tier(replicas=several),))


def with_ttft(*parts: Histogram) -> ReplicaStatus:
    return replica("t", "r", totals=making.window(histograms={"ttft_seconds": parts}))


@pytest.mark.parametrize("accept", [PLAIN, OPENMETRICS])
def test_exported_families_keep_their_values(accept: str) -> None:
    said = full_replica()
    found = series(alone(said), accept)
    for family, metric in names.FAMILY.items():
        if metric.kind is FamilyKind.HISTOGRAM:
            (part,) = said.totals.histograms[family]
            assert one(found, f"{metric.name}_count") == part.n
            assert one(found, f"{metric.name}_sum") == part.total
            assert one(found, names.bucket(family), le="+Inf") == part.n
            assert sum(n == names.bucket(family) for n, _ in found) == len(part.edges)
        elif family in GPU_NAMES:
            (gpu,) = said.gpus
            part = {names.PARTS[family]: "xid-79"} if family in names.PARTS else {}
            own = family + "".join(f"/{value}" for value in part.values())
            assert one(found, metric.name, gpu="GPU-1", **part) == (gpu.counters | gpu.gauges)[own]
        elif family in names.PARTS:
            assert one(found, metric.name, position="1") == said.totals.counters[f"{family}/1"]
        else:
            assert one(found, metric.name) == {**said.totals.counters, **said.gauges}[family]


def test_buckets_are_cumulative_with_engine_edges() -> None:
    part = log_normal((0.001, 0.5, 1.0, 20.0, math.inf), 100, 0.4, 1.0)
    found = series(alone(with_ttft(part)))
    edges = {dict(own)["le"]: v for (n, own), v in found.items() if n == "sizewatch_ttft_seconds_bucket"}
    assert list(edges) == ["0.001", "0.5", "1.0", "20.0", "+Inf"]
    assert list(edges.values()) == [sum(part.counts[: i + 1]) for i in range(5)]


@pytest.mark.parametrize("accept", [PLAIN, OPENMETRICS])
def test_doubtful_sum_is_left_out(accept: str) -> None:
    part = replace(log_normal(TTFT_EDGES, 100, 0.4, 1.0), total=None)
    found = series(alone(with_ttft(part)), accept)
    assert one(found, "sizewatch_ttft_seconds_bucket", le="+Inf") == 100
    assert not [n for n, _ in found if n in ("sizewatch_ttft_seconds_sum", "sizewatch_ttft_seconds_count")]


def test_gpu_sum_is_not_exported_twice() -> None:
    totals = making.window(counters={"gpu_energy_joules": 9.0})
    found = series(alone(replica("t", "r", totals=totals, gpus=gpus("r", "NVIDIA L40S", 2))))
    assert len([n for n, _ in found if n == "sizewatch_gpu_energy_joules_total"]) == 2
    assert one(found, "sizewatch_gpu_energy_joules_total", gpu="GPU-r-0") == 1.9e6


def test_dead_replica_keeps_only_known_facts() -> None:
    down = full_replica(up=False, misses=3, last_seen=NOW - 50)
    health = AgentHealth(scrape_failures={("t", "r", "connect"): 3})
    found = series(alone(down, health=health))
    values = {name: value for (name, own), value in found.items() if dict(own).get("replica") == "r"}
    assert values == {
        "sizewatch_target_up": 0,
        "sizewatch_target_last_success_timestamp_seconds": NOW - 50,
        "sizewatch_scrape_failures_total": 3,
    }


def test_two_missed_scrapes_change_only_up() -> None:
    unseen = of_replica(series(alone(replica("t", "r", up=False, last_seen=None, misses=1))), "r")
    assert "sizewatch_target_last_success_timestamp_seconds" not in unseen
    found = series(alone(full_replica(up=False, misses=2)))
    assert one(found, "sizewatch_target_up") == 0
    assert {metric.name for metric in names.FAMILY.values() if metric.kind is FamilyKind.GAUGE} <= of_replica(
        found, "r"
    )


@pytest.mark.parametrize("accept", [PLAIN, OPENMETRICS])
@pytest.mark.parametrize(
    "model", ['a"b', "a\nb", "a\\b", "a\\nb", 'x"} 1\nsizewatch_cycles_total 99', "模型 é", "a\rb", "", "a\ud800b"]
)
def test_hostile_label_values_read_back(model: str, accept: str) -> None:
    found = series(alone(replica("t", "r", model=model)), accept)
    models = {dict(own).get("model") for n, own in found if n == "sizewatch_requests_running"}
    assert models == {model.replace("\ud800", "?")}
    assert one(found, "sizewatch_cycles_total") == 1431


@pytest.mark.parametrize(
    ("change", "scope", "exported"),
    [
        ({}, ExportScope.REPLICAS, True),
        ({}, ExportScope.WHOLE_TIER, False),
        ({"ended_at": NOW}, ExportScope.ALL, False),
    ],
)
def test_lasting_incident_of_own_part_is_exported(change: dict[str, Any], scope: ExportScope, exported: bool) -> None:
    status = agent_status()
    (tier,) = (tier for tier in status.tiers if tier.name == "l40s-qwen14b")
    findings = tuple(replace(finding, **change) for finding in tier.findings)
    page = series(replace(status, tiers=(replace(tier, findings=findings, export_scope=scope),)))
    roots = {dict(own)["root"] for (name, own), value in page.items() if name == "sizewatch_incident" and value}
    assert ("KvCacheCascade" in roots) is exported


@pytest.mark.parametrize(
    ("scope", "series", "alerts"),
    [(ExportScope.ALL, "tr", "tr"), (ExportScope.WHOLE_TIER, "t", "tr"), (ExportScope.REPLICAS, "r", "r")],
)
def test_series_and_alerts_have_an_agent(scope: ExportScope, series: str, alerts: str) -> None:
    subjects = {"t": Subject(tier="t"), "r": Subject(tier="t", replica="r")}
    assert "".join(name for name, one in subjects.items() if scope.has_series(one)) == series
    assert "".join(name for name, one in subjects.items() if scope.has_alerts(one)) == alerts


def test_the_agent_tells_its_troubles() -> None:
    """`tests/goldens/metrics.json` holds a page of a healthy agent, with its verdicts, incidents and stages."""
    health = AgentHealth(
        history_trouble="full", unbooked_minutes=4, dropped_minutes=3, config_trouble="broken", gpu_problems=("lost",)
    )
    found = series(replace(agent_status(health=health), external_url="https://sizewatch.example"))
    assert one(found, "sizewatch_status_page_info", url="https://sizewatch.example") == 1
    names_and_values = {
        "history_up": 0, "history_unbooked_windows": 4, "history_dropped_windows_total": 3,
        "config_last_reload_successful": 0, "gpu_problems": 1,
    }  # fmt: skip
    for name, value in names_and_values.items():
        assert one(found, f"sizewatch_{name}") == value


def test_idle_agent_has_a_page() -> None:
    status = replace(agent_status(), tiers=(), health=AgentHealth())
    found = series(status)
    assert one(found, "sizewatch_cycles_total") == 0
    assert "sizewatch_target_up" not in {n for n, _ in found}


@pytest.mark.parametrize(
    ("accept", "openmetrics"),
    [
        ("", False),
        ("*/*", False),
        ("text/html", False),
        ("text/plain;version=0.0.4", False),
        (OPENMETRICS, True),
        (f"{OPENMETRICS};q=0.5,application/openmetrics-text;version=0.0.1;q=0.4,{PLAIN};q=0.3,*/*;q=0.2", True),
        ("application/openmetrics-text;q=0.2,text/plain;q=0.9", False),
        ("application/openmetrics-text;q=0", False),
        ("application/openmetrics-text;q=much", False),
        ("application/openmetrics-text;version=\u00e9;q=nan,,;;", False),
    ],
)  # fmt: skip
def test_the_asker_chooses_the_format(accept: str, openmetrics: bool) -> None:
    body, content_type = render(agent_status(), accept)
    assert content_type.startswith(
        "application/openmetrics-text; version=1.0.0" if openmetrics else "text/plain; version=0.0.4"
    )
    assert body.endswith(b"# EOF\n") == openmetrics


def test_two_bucket_grids_are_refused() -> None:
    with pytest.raises(ValueError, match="t/r: totals hold 2 bucket grids of ttft_seconds"):
        with_ttft(log_normal((1.0, math.inf), 5, 1, 1), log_normal((2.0, math.inf), 5, 1, 1))


def test_promtool_finds_nothing_wrong_with_the_page() -> None:
    promtool = tool("promtool")
    for status in (agent_status(), alone(full_replica()), agent_status(tiers=(planned_tier(),))):
        body, _ = render(status, PLAIN)
        checked = subprocess.run(
            [promtool, "check", "metrics"], input=body, capture_output=True, timeout=CEILING_SECONDS
        )
        assert (checked.returncode, checked.stderr.decode()) == (0, "")


def measure_peak(run: Callable[[], int]) -> tuple[int, float]:
    """Return the result, and the most bytes that were allocated for it."""
    tracemalloc.start()
    try:
        return run(), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.slow
@pytest.mark.parametrize("accept", [PLAIN, OPENMETRICS], ids=["text", "OpenMetrics"])
def test_page_memory_is_bounded(accept: str) -> None:
    status = fleet(30)
    body, _ = render(status, accept)
    size, peak = measure_peak(lambda: len(render(status, accept)[0]))
    assert peak < 2.5 * size
    whole, peak = measure_peak(lambda: sum(len(part) for part in render_parts(status, accept)[0]))
    assert (whole, size) == (len(body), len(body))
    assert peak < len(body) / 2
    assert (body.endswith(b"# EOF\n"), body.count(b"# EOF\n")) == (accept != PLAIN, accept != PLAIN)


@pytest.mark.parametrize("accept", [PLAIN, OPENMETRICS], ids=["text", "OpenMetrics"])
def test_metric_head_stands_once(accept: str) -> None:
    def heads(replicas: int) -> list[bytes]:
        body, _ = render(fleet(replicas), accept)
        return [line for line in body.splitlines() if line.startswith(b"#")]

    assert heads(2 * GROUP_REPLICAS + 1) == heads(1)


def found(rule: str, ago: float, replica: str | None = None, lasted: float | None = None, **changes: Any) -> Finding:
    """A certain critical finding of tier t that began so many seconds before NOW."""
    verdict = making.verdict(rule, t=NOW - ago, subject=Subject(tier="t", replica=replica), status=Status.CRITICAL)
    ended = None if lasted is None else NOW - ago + lasted
    return replace(making.finding(verdict, ended_at=ended), **changes)


def tier_with(*findings: Finding) -> AgentStatus:
    tier = unplanned_tier(replicas=(replica("t", "r"),), findings=findings, export_scope=ExportScope.ALL)
    return agent_status(tiers=(replace(tier, context=replace(tier.context, name="t")),))


def incident_series(*findings: Finding) -> dict[tuple[str, str, str], float]:
    """The alerts of incidents by rule, replica and severity."""
    found: dict[tuple[str, str, str], float] = {}
    for (name, labels), value in series(tier_with(*findings)).items():
        own = dict(labels)
        if name == "sizewatch_incident_alert":
            found[own["rule"], own["replica"], own["severity"]] = value
    return found


def test_incident_alert_counts_held_back_rules() -> None:
    cascade, eviction = found("KvCacheCascade", 400, "r"), found("KvEviction", 390)
    assert incident_series() == {}
    assert incident_series(cascade, eviction) == {("KvCacheCascade", "r", "critical"): 2}
    over = replace(cascade, ended_at=NOW - 60)
    assert incident_series(over, eviction) == {}
    burn = found("TtftSloBurn", 200)
    assert incident_series(over, burn) == {("KvCacheCascade", "r", "critical"): 2}


def test_ticket_and_page_are_one_incident() -> None:
    later_page = incident_series(found("QueueGrowing", 1400), found("TtftSloBurn", 400))
    assert later_page == {("QueueGrowing", "", "warning"): 2, ("TtftSloBurn", "", "critical"): 1}


def test_incidents_of_one_root_are_counted() -> None:
    page = series(tier_with(found("GpuXid", 9000, "r"), found("GpuXid", 400, "s")))
    labels = {"tier": "t", "root": "GpuXid"}
    assert one(page, "sizewatch_incident", **labels) == 1
    assert one(page, "sizewatch_incident_start_timestamp_seconds", **labels) == NOW - 9000


def test_replicas_of_down_tier_are_tickets() -> None:
    """On another node a replica may serve: then the rule file drops the page, and Alertmanager does not hold back these."""
    gone = [found("TargetDown", 90, "r"), found("TargetDown", 90, "back", lasted=20), found("TierDown", 80)]
    assert incident_series(*gone) == {("TierDown", "", "critical"): 2, ("TargetDown", "r", "warning"): 1}


def gauges(tier: TierStatus) -> dict[str, float]:
    wanted = {names.SPARE_RPS: "rps", names.SPARE_TOKENS: "tokens"}
    status = agent_status(tiers=(tier,))
    return {
        wanted[metric]: value for metric, samples in SAMPLES.items() if metric in wanted for _, value in samples(status)
    }


def test_spare_is_margin_capacity_less_demand() -> None:
    tier = planned_tier()
    capacity, recent = tier.context.capacity, tier.recent
    assert recent is not None
    used, arriving = (read(BY_NAME[name], recent, tier.context.basis) for name in ("fleet_utilization", "arrival_rps"))
    assert used.value is not None
    come = (arriving.value or arriving.low or 0.0) if isinstance(arriving, Reading) else 0.0
    demand = max(used.value * capacity.rps * 3, come)
    found = gauges(tier)
    # Three of four replicas are up, so none may be lost.
    assert found["rps"] == pytest.approx(max(0.0, 3 * margin_of().target_utilization * capacity.rps - demand))
    assert gauges(replace(tier, replicas=()))["rps"] == 0.0
    idle = replace(tier, recent=window(tier.recent.end, rps=1.0))  # type: ignore[union-attr]
    assert gauges(idle)["rps"] > found["rps"]


def test_spare_capacity_may_be_absent() -> None:
    tier = planned_tier()
    batch = plan("m", "NVIDIA H100 80GB HBM3", workload=Workload(archetype="batch"))
    assert gauges(replace(tier, context=build_tier_context(tier.name, batch))) == {}
    assert gauges(replace(tier, recent=None)) == {}
    assert gauges(replace(tier, export_scope=ExportScope.REPLICAS)) == {}
    assert gauges(unplanned_tier()) == {}


def test_names_are_unique_lower_case() -> None:
    stems = [metric.name for metric in names.ALL]
    assert len(stems) == len(set(stems))
    for metric in names.ALL:
        assert re.fullmatch(r"sizewatch_[a-z][a-z0-9_]*", metric.name)
        assert metric.name.endswith("_total") == (metric.kind is FamilyKind.COUNTER), metric.name
        assert not metric.name.endswith(("_bucket", "_sum", "_count")), metric.name


def test_no_window_quantile_or_ratio_exported() -> None:
    taken = {metric.name for metric in names.ALL}
    for signal in SIGNALS:
        if signal.how in (SignalKind.QUANTILE, SignalKind.RATIO):
            assert f"sizewatch_{signal.name}" not in taken


def test_names_by_family_and_part() -> None:
    assert names.exported("requests_finished") == "sizewatch_requests_finished_total"
    assert names.exported("spec_accepted_at_position/2") == "sizewatch_spec_accepted_tokens_at_position_total"
    assert names.metric("spec_accepted_at_position/2").labels[-1] == "position"
    assert names.exported("gpu_fault_events_by_code/xid-79") == "sizewatch_gpu_fault_events_by_code_total"
    assert names.metric("gpu_fault_events_by_code/xid-79").labels == ("tier", "pool", "replica", "gpu", "code")
    assert names.bucket("ttft_seconds") == "sizewatch_ttft_seconds_bucket"


def test_unexported_name_is_an_error() -> None:
    with pytest.raises(KeyError):
        names.exported("in_system_change")
    with pytest.raises(KeyError, match="requests_finished is no histogram"):
        names.bucket("requests_finished")
