"""The queries of role fleet: every replica's series with one label of its agent, and lots of names that fit a limit."""

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest
from paths import ROOT
from prometheus_server import prometheus_with_blocks, victoria_metrics

from agent.config.store import StoreConfig
from agent.fleet.stored_pages import StoredPage
from agent.fleet.sums import MAX_QUERY_CHARACTERS, AgentSums, regex_any, split_members
from agent.fleet.tier_readers import SummedReader
from agent.prometheus.api import StoreApi

sys.path.append(str(ROOT / "benchmarks"))
from fleet import pod_name

T = 1_790_000_000.0
TIER = "chat"

Sample = tuple[str, dict[str, str], float, float]


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
def filled(kind: str, folder: Path, samples: list[Sample]) -> Iterator[str]:
    """The address of a store with these samples."""
    folder.mkdir()
    if kind == "prometheus":
        with prometheus_with_blocks(folder, samples) as url:
            yield url
        return
    with victoria_metrics(folder) as store:
        store.write(samples)
        yield store.url


@pytest.mark.parametrize("kind", ["victoria-metrics", "prometheus"])
def test_agents_of_one_replica_never_mix(kind: str, tmp_path: Path) -> None:
    once = [*series("r1", "node-1:19095", 5.0), *series("r2", "node-2:19095", 7.0)]
    with filled(kind, tmp_path / "once", once) as url:
        api = StoreApi(StoreConfig(url=url, timeout_seconds=60.0))
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
    with filled(kind, tmp_path / "twice", [*once, *series("r1", "node-3:19095", 1.0)]) as url:
        api = StoreApi(StoreConfig(url=url, timeout_seconds=60.0))
        snapshot = pages_of(api)["r1"].snapshot
    # The sums of one of both agents, not the larger of each.
    assert snapshot.counters["requests_finished"] in (1.0, 5.0)


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
