"""GPUs of replicas from what a store has of their exporters: whose they are, when, and what they add to a minute."""

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise, product
from pathlib import Path

import pytest
from paths import ROOT
from prometheus_server import prometheus_with_blocks, victoria_metrics
from stored_recordings import MemoryStore, PastStore, Sample, engine_samples
from test_fleet_cycles import TIER, VIEW, Fleet, adaptive, times

from agent.config.store import FleetConfig, GpuSource, StoreConfig, TierSource
from agent.fleet import engine_series
from agent.fleet.engine_series import GpuPages
from agent.fleet.stored_pages import StoredPage
from agent.fleet.sums import MAX_QUERY_CHARACTERS, AgentSums, regex_any, split_members
from agent.fleet.tier_readers import SummedReader, build_replica_reader, build_tier_reader
from agent.prometheus.api import StoreApi
from rules.engines.registry import PROCESS_START
from rules.gpu_sources.exporter import GpuExporter
from rules.gpu_sources.registry import BY_NAME, EXPORTERS
from rules.telemetry import readings
from rules.telemetry.windows import Window

sys.path.append(str(ROOT / "benchmarks"))
from fleet import pod_name

POD = "cpu-small-0"


def exporter_samples(begin: float, end: float, replica: str, gpu: str = "GPU-1", every: float = 30.0) -> list[Sample]:
    """A dcgm-exporter as Prometheus scrapes it: 100 W, 60 % busy, and from the fourth scrape on a fault."""
    labels = {"UUID": gpu, "gpu": "0", "modelName": "NVIDIA H100", "instance": "node-1:9400", "job": "dcgm"}
    labels |= {"pod": "dcgm-exporter-x", "exported_pod": replica}
    found: list[Sample] = []
    for place in range(int((end - begin) // every) + 1):
        values = {
            "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": 5e6 + place * every * 100.0 * 1000.0,
            "DCGM_FI_DEV_POWER_USAGE": 100.0,
            "DCGM_FI_PROF_GR_ENGINE_ACTIVE": 0.6,
            "DCGM_FI_DEV_XID_ERRORS": 79.0 if place >= 3 else 0.0,
        }
        found += [(name, labels, begin + place * every, value) for name, value in values.items()]
    return found


SOURCE = TierSource.model_validate(
    {"from": "engines", "selector": 'job="vllm"', "gpus": {"selector": 'job="dcgm"', "replica_label": "exported_pod"}}
)


def watched(samples: list[Sample], source: TierSource = SOURCE) -> tuple[Fleet, Window]:
    api = PastStore(MemoryStore.of(samples))
    fleet = Fleet(api, build_replica_reader(TIER, source, VIEW, api), times(samples)[0] - 1.0)
    fleet.go(5)
    fleet.closed += fleet.loop.evaluator.flush(fleet.loop.state)
    return fleet, fleet.total


def test_replica_has_gpus_of_its_exporter() -> None:
    engines = list(engine_samples("steady"))
    begin, end = times(engines)
    gpus = exporter_samples(begin, end, POD)
    others = exporter_samples(begin, end, "someone-else", "GPU-2")
    fleet, whole = watched([*engines, *gpus, *others])
    read = readings.read_all(whole, VIEW.basis)
    assert read["gpu_power_watts"].value == pytest.approx(100.0)  # type: ignore[union-attr]
    assert whole.counters["gpu_fault_events"] == 1
    assert [one.gpu for one in fleet.runtime.replicas[TIER, POD].gpus.readouts] == ["GPU-1"]
    assert whole.counters["gpu_energy_joules"] == pytest.approx(100.0 * whole.counters["gpu_energy_covered_seconds"])
    _, without = watched(engines, SOURCE.model_copy(update={"gpus": None}))
    assert not any(name.startswith("gpu_") for name in (*without.counters, *without.gauges))
    assert without.counters == {f: v for f, v in whole.counters.items() if f in without.counters}


def test_moved_label_is_read() -> None:
    samples = list(engine_samples("sglang", "vllm"))
    operated = []
    for name, labels, t, value in samples:
        moved = {key.replace("endpoint", "exported_endpoint"): text for key, text in labels.items()}
        operated.append((name, {**moved, "endpoint": "metrics"}, t, value))
    source = SOURCE.model_copy(update={"engine": "sglang", "gpus": None})
    _, plain = watched(samples, source)
    for stored in (operated, [sample for sample in operated if sample[0] != "up"]):
        _, whole = watched(stored, source)
        assert whole.counters["http_requests_ok"] == plain.counters["http_requests_ok"] > 0


@pytest.mark.parametrize(("label", "words"), [("world_rank", "its label world_rank differs"), ("worker", "2 engines")])
def test_parts_of_unknown_kind_are_refused_by_name(label: str, words: str) -> None:
    once = list(engine_samples("steady"))
    parts = [(name, {**labels, label: part}, t, v) for name, labels, t, v in once for part in "ab" if name != "up"]
    fleet, whole = watched([*parts, *(sample for sample in once if sample[0] == "up")])
    assert words in fleet.findings("TargetDown")[0].worst.sentence
    assert whole.covered_seconds == 0


def test_engines_of_one_name_are_refused() -> None:
    samples: list[Sample] = []
    for name, labels, t, v in engine_samples("steady"):
        for instance, later in (("a", 0.0), ("b", 3.0)):
            own = labels | {"pod": "p", "instance": instance}
            samples.append((name, own, t + later, v + later * (name == PROCESS_START)))
    fleet, _ = watched(samples, SOURCE.model_copy(update={"gpus": None, "replica_label": "pod"}))
    assert "several engines have its name (a and b)" in fleet.findings("TargetDown")[0].worst.sentence


def test_engine_tier_is_read_by_replica() -> None:
    samples = [
        (name, {**labels, "instance": f"{labels['instance']}-{number}"}, t, value)
        for number in range(3)
        for name, labels, t, value in engine_samples("steady", "vllm")
    ]
    api = PastStore(MemoryStore.of(samples))
    reader = build_tier_reader(TIER, SOURCE, VIEW, FleetConfig(each_up_to=0), api)  # type: ignore[arg-type]
    fleet = Fleet(api, reader, times(samples)[0] - 1.0)
    fleet.go(3)
    assert reader.sums is False
    assert len(fleet.source.targets) == 3
    assert {closed.replica for closed in fleet.closed} == {target.replica for target in fleet.source.targets}


def test_large_engine_tier_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    begin = 1_790_000_000.0
    up = [("up", {"instance": f"e{n}", "job": "vllm"}, begin + 15.0 * k, 0.0) for n in range(101) for k in range(20)]
    reader = build_replica_reader(TIER, SOURCE, VIEW, MemoryStore.of(up))
    for turn in range(3):
        pages = reader.ask(begin + 60.0 * turn, begin + 60.0 * (turn + 1))
        assert len({page.replica for page in pages}) == 101
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert warnings == [f"tier larger than measured tier={TIER} replicas=101 limit=100"]


def test_what_overlapping_answers_repeat_counts_once() -> None:
    reader = GpuPages(BY_NAME["dcgm"], "exported_pod")
    begin = 1_790_000_000.0
    store = MemoryStore.of(exporter_samples(begin, begin + 120, POD))
    reader.take(store.query_samples('{__name__=~"DCGM.*"}', begin - 1, begin + 60))
    first = reader.pop_readouts_until(POD, begin + 60)
    reader.take(store.query_samples('{__name__=~"DCGM.*"}', begin - 1, begin + 60))
    assert [one.t for one in first] == [begin + 60]
    assert reader.pop_readouts_until(POD, begin + 90) == ()
    reader.take(store.query_samples('{__name__=~"DCGM.*"}', begin + 30, begin + 120))
    assert [one.t for one in reader.pop_readouts_until(POD, begin + 100)] == [begin + 90]
    assert [one.t for one in reader.pop_readouts_until(POD, begin + 130)] == [begin + 120]
    assert reader.pop_readouts_until("someone-else", begin + 130) == ()


@pytest.mark.parametrize("exporter", EXPORTERS, ids=lambda exporter: exporter.name)
def test_store_accepts_selectors_of_all_exporters(exporter: GpuExporter, tmp_path: Path) -> None:
    names = sorted({name for row in exporter.fields for name in row.names})
    begin = 1_790_000_000.0
    with victoria_metrics(tmp_path) as store:
        store.write((name, {"job": "gpus"}, begin, 1.0) for name in (*names, "stranger"))
        api = StoreApi(StoreConfig(url=store.url, timeout_seconds=60.0))
        found = api.query_samples(engine_series.exporter_selector(exporter, 'job="gpus"'), begin - 10, begin + 10)
    assert sorted(one.labels["__name__"] for one in found) == names


def test_gpus_of_agent_tiers_are_refused() -> None:
    source = TierSource.model_construct(gpus=GpuSource(selector='job="dcgm"'))
    assert [path for path, _ in source._contradictions()] == [("gpus",)]


# ---- queries of role fleet: one label of an agent a replica, lots of names that fit a limit ----


T = 1_790_000_000.0


def series(replica: str, agent: str, finished: float) -> list[Sample]:
    labels = {"tier": TIER, "replica": replica, "pool": "mixed", "instance": agent, "namespace": "sizewatch"}
    facts = labels | {"model": "llama", "engine": "vllm", "engine_version": "0.32.0"}
    return [
        ("sizewatch_target_up", labels, T, 1.0),
        ("sizewatch_target_last_success_timestamp_seconds", labels, T, T - 3.0),
        ("sizewatch_replica_info", facts, T, 1.0),
        ("sizewatch_requests_finished_total", labels | {"model": "llama"}, T, finished),
        ("sizewatch_ttft_seconds_bucket", labels | {"model": "llama", "le": "+Inf"}, T, finished),
        ("sizewatch_ttft_seconds_bucket", labels | {"model": "llama", "le": "0.25"}, T, finished),
    ]


@contextmanager
def filled(kind: str, folder: Path, samples: list[Sample]) -> Iterator[StoreApi]:
    """A store with these samples."""
    folder.mkdir()
    if kind == "prometheus":
        with prometheus_with_blocks(folder, samples) as url:
            yield StoreApi(StoreConfig(url=url, timeout_seconds=60.0))
        return
    with victoria_metrics(folder) as store:
        store.write(samples)
        yield StoreApi(StoreConfig(url=store.url, timeout_seconds=60.0))


@pytest.mark.parametrize("kind", ["victoria-metrics", "prometheus"])
def test_agents_of_one_replica_never_mix(kind: str, tmp_path: Path) -> None:
    once = [*series("r1", "node-1:19095", 5.0), *series("r2", "node-2:19095", 7.0)]
    with filled(kind, tmp_path / "once", once) as api:
        found = api.query(AgentSums(tier=TIER).replica_query(()), T)
        assert len(found) == 10
        assert not any("namespace" in sample.labels for sample in found)
        pages = pages_of(api)
    assert {name: page.snapshot.counters for name, page in pages.items() if page.snapshot} == {
        "r1": {"requests_finished": 5.0},
        "r2": {"requests_finished": 7.0},
    }
    assert pages["r1"].t == T - 3.0
    assert pages["r1"].snapshot is not None
    assert pages["r1"].snapshot.facts == {"model": "llama", "engine_version": "0.32.0"}
    with filled(kind, tmp_path / "twice", [*once, *series("r1", "node-3:19095", 1.0)]) as api:
        snapshot = pages_of(api)["r1"].snapshot
    # The sums of one of both agents, not the larger of each.
    assert snapshot.counters["requests_finished"] in (1.0, 5.0)


@pytest.mark.parametrize("kind", ["victoria-metrics", "prometheus"])
def test_worst_gpus_are_found_among_sums(kind: str, tmp_path: Path) -> None:
    samples: list[Sample] = []
    for place, minute, gpu in product(range(9), range(20), "ab"):
        labels, seconds = {"tier": TIER, "replica": f"r{place}", "pool": "mixed", "instance": "n"}, 60.0 * minute
        held, used = seconds / 2 * (gpu == "b" and place == 7), 79.0 if gpu == "a" and place == 6 else 60.0
        values = {"memory_used_bytes": used, "memory_total_bytes": 80.0, "throttled_covered_seconds_total": seconds}
        values |= {"throttled_thermal_seconds_total": held, "throttled_hardware_seconds_total": 0.0}
        samples += [
            (f"sizewatch_gpu_{n}", labels | {"gpu": f"{place}{gpu}"}, T + seconds, v) for n, v in values.items()
        ]
        samples.append(("sizewatch_target_up", labels, T + seconds, 1.0))
    with filled(kind, tmp_path / "store", samples) as api:
        fleet = Fleet(api, adaptive(api, 0), T)
        fleet.go(19)
    assert fleet.result("GpuMemoryHigh").sentence == "GPU memory use is 98.8%; up to 95.0% is healthy; on replica r6"
    assert fleet.result("GpuThrottling").sentence.startswith("Throttled GPU time is 50.0%")


def pages_of(api: StoreApi) -> dict[str, StoredPage]:
    found = SummedReader(TIER, AgentSums(tier=TIER), None, api, 60.0).ask(T - 60.0, T)
    return {page.replica: page for page in found}


def test_name_lots_fit_their_limit() -> None:
    chance = random.Random(5)
    names = ["".join(chance.choices('ab.-"\\ä', k=chance.randint(1, 9))) for _ in range(300)]
    for most in (12, 40, 300):
        lots = list(split_members(set(names), most))
        assert [name for lot in lots for name in lot] == sorted(set(names))
        assert all(len(regex_any(lot)) <= most for lot in lots if len(lot) > 1)
        assert all(len(regex_any([*a, b[0]])) > most for a, b in pairwise(lots))


@pytest.mark.parametrize(("replicas", "most"), [(250, 1), (1000, 4)])
def test_sum_query_holds_250_pods(replicas: int, most: int) -> None:
    groups = [[pod_name(0, number) for number in range(load, replicas, 6)] for load in range(6)]
    queries = list(AgentSums(tier="h100-llama70b-fp8").queries(groups))
    assert len(queries) <= most
    assert max(map(len, queries)) <= MAX_QUERY_CHARACTERS
    text = "".join(queries)
    assert all(pod_name(0, number)[-7:] in text for number in range(replicas))
