"""How many queries a cycle of role fleet asks of a real store: they grow with tiers, not with replicas."""

import sys

import pytest
from paths import ROOT

from agent.fleet.sums import MAX_QUERY_CHARACTERS, AgentSums

sys.path.append(str(ROOT / "benchmarks"))
from fleet import pod_name


@pytest.mark.parametrize(("replicas", "most"), [(250, 1), (1000, 4)])
def test_sum_query_holds_250_pods(replicas: int, most: int) -> None:
    groups = [[pod_name(0, number) for number in range(load, replicas, 6)] for load in range(6)]
    queries = list(AgentSums(tier="h100-llama70b-fp8").queries(groups))
    assert len(queries) <= most
    assert max(map(len, queries)) <= MAX_QUERY_CHARACTERS
    text = "".join(queries)
    assert all(pod_name(0, number)[-7:] in text for number in range(replicas))
