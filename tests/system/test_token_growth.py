"""Only tokens grow: pages through evaluator, history and forecast. The count follows before the first token is late."""

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from evaluation_steps import EvaluationSteps
from judging_samples import context

from agent.config.config import Config
from agent.forecasting.history_input import HistoryForecasts
from agent.forecasting.messages import build_request
from agent.history.service import HistoryService
from agent.history.store import HistoryStore
from exporters.documents.forecast import Recommendation
from rules.catalogue.registry import margin_of
from rules.plan.load_bins import TierContext
from rules.plan.replica_count import count_replicas
from rules.telemetry.arrivals import MinuteSums
from rules.telemetry.histograms import Cumulative
from rules.telemetry.snapshots import Snapshot
from rules.telemetry.work import UNTOLD

BEGIN = 1_780_000_200.0
SCRAPE, MINUTE, LEAD = 15.0, 60.0, 180.0
REPLICAS, RPS, USABLE = 4, 3.0, 6.0
PROMPT, OUTPUT = 1000.0, 100.0
SECONDS = ("expected_seconds", "covered_seconds", "requests_seconds", "prompt_seconds", "generation_seconds")
FIRST = (0.25, 0.5, 1.0, 2.5, 5.0, 10.0, math.inf)
GROW_FROM, GROW_SECONDS, MOST = 600.0, 1800.0, 2.6
"""Requests become 2.6 times the work within half an hour. At twice the work four replicas are full."""


def longer(t: float) -> float:
    return 1.0 + (MOST - 1.0) * min(1.0, max(0.0, (t - BEGIN - GROW_FROM) / GROW_SECONDS))


@dataclass(slots=True)
class Queue:
    """One replica: it serves the tokens of six planned requests a second, the rest waits."""

    backlog: float = 0.0
    counters: dict[str, float] = field(
        default_factory=lambda: dict.fromkeys(
            ("requests_finished", "prompt_tokens", "prompt_tokens_computed", "generation_tokens"), 0.0
        )
    )
    late: list[float] = field(default_factory=lambda: [0.0] * len(FIRST))
    total: float = 0.0

    def page(self, t: float, rps: float, each: float) -> Snapshot:
        """The page at `t`: `rps` arrived for 15 seconds, each of `each` times the planned tokens."""
        served = min(self.backlog + rps * each * SCRAPE, USABLE * SCRAPE)
        self.backlog += rps * each * SCRAPE - served
        finished, first = served / each, 0.2 + self.backlog / USABLE
        grown = (finished, finished * PROMPT * each, finished * PROMPT * each, finished * OUTPUT * each)
        self.counters = {name: value + more for (name, value), more in zip(self.counters.items(), grown, strict=True)}
        self.late = [n + (finished if first <= edge else 0.0) for n, edge in zip(self.late, FIRST, strict=True)]
        self.total += finished * first
        return Snapshot(
            t=t,
            engine="vllm",
            generation="v1",
            started_at=BEGIN - 9e5,
            ready_at=BEGIN - 9e5,
            counters=dict(self.counters),
            histograms={"ttft_seconds": Cumulative(FIRST, tuple(self.late), self.total)},
            gauges={"requests_running": 6.0, "requests_waiting": self.backlog / each, "kv_utilization": 0.3},
            facts={},
        )


def flat_days(path: Path, tier: str) -> None:
    """Three days of the same rate and planned lengths."""
    with HistoryStore(path) as store, store._transaction():
        for back in range(3 * 1440, 0, -1):
            t = BEGIN - MINUTE * back
            n = max(0.0, random.Random(t).gauss(REPLICAS * RPS * MINUTE, math.sqrt(REPLICAS * RPS * MINUTE)))
            whole = dict.fromkeys(SECONDS, MINUTE)
            sums = MinuteSums(
                start=t,
                first=t,
                last=t + MINUTE,
                requests=n,
                completed=n,
                prompt_tokens=n * PROMPT,
                computed_tokens=n * PROMPT,
                generation_tokens=n * OUTPUT,
                computed_seconds=MINUTE,
                **whole,
            )
            store._insert_demand(tier, sums, "ON CONFLICT DO NOTHING")


@dataclass(frozen=True, slots=True)
class Turn:
    """A minute: its time, both recommendations, and the share of requests whose first token took over 0.25 s."""

    t: float
    work: Recommendation
    alone: Recommendation
    late: float


def turns(path: Path, tier: TierContext) -> Iterator[Turn]:
    """Fifty minutes of the pages of four replicas, a forecast after each."""
    flat_days(path, tier.name)
    steps, keeping = EvaluationSteps({tier.name: tier}), HistoryService(lambda: HistoryStore(path))
    queues, weighed, alone, chance = [Queue() for _ in range(REPLICAS)], HistoryForecasts(), HistoryForecasts(), 0.0
    rng = random.Random(7)
    for step in range(1, round(50 * MINUTE / SCRAPE) + 1):
        t = BEGIN + step * SCRAPE
        chance = rng.gauss(0.0, 0.02)
        for number, queue in enumerate(queues):
            page = queue.page(t, RPS * (1 + chance), longer(t))
            steps.apply_snapshot(tier.name, f"r{number}", page)
        _, closed = steps.step(t)
        keeping.write_cycle(closed)
        if not closed:
            continue
        asked = build_request(tier, (), Config(), path, t)
        unweighed = replace(asked, capacity=replace(asked.capacity, lengths=UNTOLD))
        found = [one.respond(two).prewarm for one, two in ((weighed, asked), (alone, unweighed))]
        work, requests = (one.recommendation for one in found)
        assert work is not None
        assert requests is not None
        first = [h for one in closed for h in one.slice.window.histograms["ttft_seconds"]]
        late = sum(sum(h.counts[1:]) for h in first) / sum(sum(h.counts) for h in first)
        yield Turn(t, work, requests, late)
    keeping.close()


@pytest.fixture
def tier() -> TierContext:
    lengths = {"prompt_tokens": {"mean": PROMPT}, "generation_tokens": {"mean": OUTPUT}}
    return context(workload=lengths, cold_start_seconds=LEAD)


def test_count_follows_tokens_within_one_lead(tmp_path: Path, tier: TierContext) -> None:
    assert tier.capacity.rps == USABLE
    seen = list(turns(tmp_path / "history.db", tier))
    moved = next(one.t for one in seen if one.late > 0.01)
    more = next(one.t for one in seen if one.work.replicas > REPLICAS)
    before = [one for one in seen if one.t < moved]
    # The requests never change: counted alone they ask for no replica, until users wait.
    assert {one.alone.replicas for one in before} == {before[0].alone.replicas}
    assert all(one.work.now_requests == pytest.approx(REPLICAS * RPS, rel=0.1) for one in before)
    # A replica asked for at `more` serves one lead later, and nobody has waited yet.
    assert more + LEAD < moved
    for one in seen[10:]:
        needed = REPLICAS * RPS * longer(one.t - LEAD)
        # The minutes vary by two percent.
        assert one.work.replicas >= count_replicas(0.97 * needed, USABLE, margin_of())
    last = before[-1].work
    assert last.now_rps > 1.5 * (last.now_requests or 0.0)
    assert "by their tokens the work of" in last.weighing
