"""The cascade over what a real vLLM showed: six cascades, and healthy servers of which one runs at the brim."""

import itertools
from functools import cache

import pytest
import recorded

from agent.config.files import load_plan
from agent.scrape.scrapers import PageReader
from agent.sources.recording import load, scrapes
from rules.evaluator.scrape_rules import cascade_limits
from rules.plan.load_bins import TierContext, build_tier_context
from rules.replicas.cascade import CascadeState
from rules.replicas.state import ReplicaState, apply_failed_scrape, apply_snapshot
from rules.telemetry.snapshots import Snapshot

CASCADES = ("cascade_fast", "cascade_large_cache", "cascade_open_ramp", "cascade_slow", "kv_cascade", "overload")
BRIM = "kv_brim_healthy"
HEALTHY = [name for name in recorded.names() if name not in (*CASCADES, BRIM)]
EVERY = {"5 s": 1, "10 s": 2, "15 s": 3}
"""How many recorded scrapes make one of a longer interval."""

Pages = list[tuple[float, Snapshot | None]]


@cache
def plan() -> TierContext:
    return build_tier_context("cpu-small", load_plan(recorded.PLANS / "cpu-small.yaml").tiers["cpu-small"])


@cache
def pages(name: str) -> dict[int, Pages]:
    """The pages of each target, None for a scrape that failed."""
    recording, _ = load(recorded.folder(name))
    readers = [PageReader(target.engine) for target in recording.targets]
    found: dict[int, Pages] = {}
    for one in scrapes(recording, []):
        read = None if one.body is None else readers[one.target].read(one.body, one.t)
        found.setdefault(one.target, []).append((one.t, read))
    return found


def followed(scraped: Pages) -> list[tuple[float, CascadeState]]:
    replica, states = ReplicaState(tier="cpu-small", name="r"), []
    for t, snapshot in scraped:
        replica = (
            apply_failed_scrape(replica, t)
            if snapshot is None
            else apply_snapshot(replica, snapshot, cascade_limits(plan()))
        )[0]
        states.append((t, replica.cascade))
    return states


def phases(name: str, every: int) -> list[list[tuple[float, CascadeState]]]:
    """The cascade of every target, seen at a longer interval, for each scrape at which that could begin."""
    return [followed(scraped[begin::every]) for scraped in pages(name).values() for begin in range(every)]


@pytest.mark.parametrize("interval", EVERY)
@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_server_never_cascades(name: str, interval: str) -> None:
    for states in phases(name, EVERY[interval]):
        assert max(state.stage for _, state in states) == 0


@pytest.mark.parametrize("interval", EVERY)
def test_brimming_load_is_only_suspicion(interval: str) -> None:
    """Until it stops it is the ramp of a cascade, scrape by scrape: nothing on the pages tells them apart."""
    for states in phases(BRIM, EVERY[interval]):
        assert max(state.stage for _, state in states) <= 1
        assert not any(state.confirmed for _, state in states)
        assert states[-1][1].stage == 0


@pytest.mark.parametrize("interval", EVERY)
@pytest.mark.parametrize("name", CASCADES)
def test_a_cascade_is_found_felt_and_over(name: str, interval: str) -> None:
    for states in phases(name, EVERY[interval]):
        seen = [state.stage for _, state in states]
        assert max(seen) == 4
        assert (seen[0], seen[-1]) == (0, 0)
        assert sum(1 for before, now in itertools.pairwise(seen) if now and not before) == 1


@pytest.mark.parametrize("name", CASCADES)
def test_cascade_warns_before_and_ends_with_queue(name: str) -> None:
    """It warns before the first user waits longer than the objective."""
    waits = ((float(row["t_start"]), float(row["ttft"])) for row in recorded.requests(name) if row["ttft"])
    late = min(start + ttft for start, ttft in waits if ttft > 2)
    (states,) = phases(name, 1)
    onset = next(t for t, state in states if state.stage > 0)
    over = next(t for (_, before), (t, state) in itertools.pairwise(states) if before.stage and not state.stage)
    waiting = max(t for t, page in pages(name)[0] if page is not None and page.gauges["requests_waiting"] > 0)
    assert onset < late
    assert 0 < over - waiting <= 30
