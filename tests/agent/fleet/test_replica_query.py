"""The query for every replica's series: without the labels of agents, except where several agents export a replica."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import pytest
from store_servers import prometheus_with_blocks, victoria_metrics

from agent.fleet.aggregates import AgentAggregates
from agent.fleet.stored_pages import StoredPage
from agent.fleet.sums import WHAT, AgentSums, regex_any, split_members
from agent.prometheus.answers import InstantSample, Rows, SeriesKind
from agent.prometheus.api import StoreApi
from agent.prometheus.options import StoreOptions

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
def test_a_response_has_no_labels_of_agents_unless_two_of_them_export_a_replica(kind: str, tmp_path: Path) -> None:
    once = [*series("r1", "node-1:9095", 5.0), *series("r2", "node-2:9095", 7.0)]
    with filled(kind, tmp_path / "once", once) as url:
        api = StoreApi(StoreOptions(url=url, timeout_seconds=60.0))
        rows = api.query_rows(AgentSums(tier=TIER).replica_query(()), T, "replica")
        assert rows.count == 10
        assert not any("instance" in kind.labels or WHAT in kind.labels for kind in rows.kinds)
        pages = pages_of(api)
    assert {name: page.snapshot.counters for name, page in pages.items() if page.snapshot} == {
        "r1": {"requests_finished": 5.0},
        "r2": {"requests_finished": 7.0},
    }
    assert pages["r1"].t == T - 3.0
    assert pages["r1"].snapshot is not None
    assert pages["r1"].snapshot.facts == {"model": "llama", "engine_version": "0.32.0"}
    with filled(kind, tmp_path / "twice", [*once, *series("r1", "node-3:9095", 1.0)]) as url:
        api = StoreApi(StoreOptions(url=url, timeout_seconds=60.0))
        both = api.query_rows(AgentSums(tier=TIER).replica_query(()), T, "replica")
        assert {WHAT} == {label for kind in both.kinds for label in kind.labels if label.startswith("sizewatch")}
        snapshot = pages_of(api)["r1"].snapshot
    # The sums of one of both agents, not the larger of each.
    assert snapshot is not None
    assert snapshot.counters["requests_finished"] in (1.0, 5.0)


def pages_of(api: StoreApi) -> dict[str, StoredPage]:
    return {page.replica: page for page in AgentAggregates(AgentSums(tier=TIER), None, api).replica_pages(T)}


@dataclass
class Answers:
    """A store that says that two agents export a replica."""

    asked: list[str] = field(default_factory=list)

    def query_rows(self, expr: str, t: float, label: str) -> Rows:
        self.asked.append(expr)
        several = SeriesKind({WHAT: "several"})
        return Rows({"r1": [(several, 2.0)]}, frozenset({several}), 1)

    def query(self, expr: str, t: float) -> tuple[InstantSample, ...]:
        self.asked.append(expr)
        return (InstantSample({"replica": "r1", "instance": "a", "__name__": "sizewatch_target_up"}, 0.0),)


def test_only_then_a_second_query_is_asked() -> None:
    api = Answers()
    sums = AgentSums(tier=TIER, matchers='cluster="eu"')
    (page,) = AgentAggregates(sums, None, api).replica_pages(T)  # type: ignore[arg-type]
    assert api.asked == [sums.replica_query(()), sums.replica_selector(())]
    assert (page.replica, page.snapshot) == ("r1", None)
    assert api.asked[0].count('cluster="eu"') == 2


def test_lots_of_names_are_as_long_as_their_expression_may_be() -> None:
    chance = random.Random(5)
    names = ["".join(chance.choices('ab.-"\\ä', k=chance.randint(1, 9))) for _ in range(300)]
    for most in (12, 40, 300):
        lots = list(split_members(set(names), most))
        assert [name for lot in lots for name in lot] == sorted(set(names))
        assert all(len(regex_any(lot)) <= most for lot in lots if len(lot) > 1)
        assert all(len(regex_any([*a, b[0]])) > most for a, b in pairwise(lots))
