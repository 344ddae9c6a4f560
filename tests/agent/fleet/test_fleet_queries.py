"""How many queries a cycle of role fleet asks of a real store: they grow with tiers, not with replicas."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from daemon_runs import StandingClock
from paths import ROOT
from store_servers import victoria_metrics

from agent.fleet.sums import MAX_QUERY_CHARACTERS, AgentSums
from agent.pipeline.loop import EvaluationLoop
from rules.verdicts.verdict import Status, Subject

sys.path.append(str(ROOT / "benchmarks"))
from fleet import BEGIN, MOST_QUERIES, build_loop, build_writer, source_of
from fleet_writer import pod_name

TIERS = 8
CYCLES = 4


def asked(folder: Path, replicas: int, each_up_to: int = 0) -> tuple[list[int], EvaluationLoop]:
    """The queries of each cycle over so many replicas in every tier, and the loop."""
    folder.mkdir()
    with victoria_metrics(folder) as store:
        writer = build_writer(store.url, replicas * TIERS, TIERS, gpus=1, source="agents", interval=60.0)
        clock = StandingClock(BEGIN)
        loop = build_loop(folder, store.url, TIERS, clock, history=None, each_up_to=each_up_to)
        told = []
        for number in range(CYCLES):
            clock.now = BEGIN + 60.0 * (number + 1)
            writer.write_minute(number, clock.now)
            before = source_of(loop).api.counts.queries
            loop.run_cycle()
            told.append(source_of(loop).api.counts.queries - before)
    assert source_of(loop).errors == {}
    assert len(loop.source.targets) == replicas * TIERS
    return told, loop


def test_eight_tiers_are_asked_with_at_most_40_queries_and_as_many_for_three_times_the_replicas(tmp_path: Path) -> None:
    few, _ = asked(tmp_path / "few", 4)
    more, loop = asked(tmp_path / "more", 12)
    assert max(few) <= MOST_QUERIES
    assert more == few
    down = loop.state.rules["TierDown", Subject(tier="tier-0", replica=None)].result
    assert down.status is Status.OK
    assert "12 of 12" in down.sentence
    minutes = loop.state.minutes["tier-0"]
    assert sum(s.window.counters.get("requests_finished", 0.0) for s in minutes.binned) > 0
    assert minutes.each is not None
    assert {s.replica for batch in minutes.each for s in batch} == {pod_name(0, number) for number in range(12)}


@pytest.mark.parametrize(("replicas", "most"), [(250, 1), (1000, 4)])
def test_a_query_of_sums_has_room_for_250_pods(replicas: int, most: int) -> None:
    groups = [[pod_name(0, number) for number in range(load, replicas, 6)] for load in range(6)]
    queries = list(AgentSums(tier="h100-llama70b-fp8").queries(groups))
    assert len(queries) <= most
    assert max(map(len, queries)) <= MAX_QUERY_CHARACTERS
    text = "".join(queries)
    assert all(pod_name(0, number)[-7:] in text for number in range(replicas))
