"""A queue that stands still misses the TTFT objective: cases of the field, further ones, and what must stay quiet."""

from pathlib import Path

import pytest
from making import START, cumulative, snapshot
from paths import TESTS

from agent.config.files import load_plan
from agent.replay.replay import replay
from agent.sources.recording import load
from rules.confidence import Certainty
from rules.evaluator.observation import Observation, ReplicaScrape
from rules.evaluator.state import EvaluatorState
from rules.evaluator.step import Evaluator
from rules.plan.load_bins import build_tier_context
from rules.plan.schema import parse_plan
from rules.verdicts.verdict import Finding, RuleResult, Status, Subject, Verdict

CASES = TESTS / "cases"
CPU_SMALL = TESTS / "plans" / "cpu-small.yaml"
PLAN = parse_plan(
    {
        "schema": 1,
        "tiers": {
            "t": {
                "model": "m",
                "engine": "vllm",
                "gpu": {"product": "A", "per_replica": 1},
                "slo": {"ttft_p99_seconds": 2.0},
            }
        },
    }
)
TIER = Subject(tier="t")


def findings(folder: Path, rule: str) -> list[Finding]:
    recording, _ = load(folder)
    done = replay(recording, load_plan(CPU_SMALL))
    every = [*done.ended, *(state.finding for state in done.rule_states)]
    return [one for one in every if isinstance(one, Finding) and one.rule == rule]


@pytest.mark.parametrize(
    ("name", "status"),
    [("25-one-crawls", Status.CRITICAL), ("25-long-generations", Status.CRITICAL), ("25-one-waits", Status.WARNING)],
)
def test_half_hour_wait_missed_the_objective(name: str, status: Status) -> None:
    (burn,) = findings(CASES / name, "TtftSloBurn")
    assert burn.ended_at is None
    assert (burn.worst.status, burn.worst.certainty) == (status, Certainty.CERTAIN)
    assert "wait" in burn.worst.sentence


def test_requests_whose_clients_all_leave_have_arrived() -> None:
    assert findings(CASES / "26-all-abort", "TtftSloBurn") == [], "each got its first token in time"
    recording, _ = load(CASES / "26-all-abort")
    states = replay(recording, load_plan(CPU_SMALL)).rule_states
    said = {one.result.rule: one.result.sentence for one in states if isinstance(one.result, Verdict)}
    assert said["LoadBeyondBenchmark"].startswith("At most 0 rps a replica; the benchmark goes to ")
    assert said["DemandExceedsCapacity"].startswith("2 rps arrive")
    assert said["AvailabilityBurn"].startswith("0.0% of 4,1")


class Fleet:
    """Two replicas whose queues and first tokens the test sets, scraped every 10 s."""

    def __init__(self) -> None:
        self.evaluator = Evaluator({"t": build_tier_context("t", PLAN.tiers["t"])})
        self.state = EvaluatorState()
        self.t = START
        self.tokens = {"a": 0.0, "b": 0.0}
        self.slow = {"a": 0.0, "b": 0.0}

    def run(self, seconds: int, queues: dict[str, float], rps: dict[str, float], slow: float = 0.0) -> RuleResult:
        """The result of TtftSloBurn after so many seconds; `slow` is the share of slow first tokens."""
        for _ in range(seconds // 10):
            self.t += 10
            scrapes = []
            for name in ("a", "b"):
                self.tokens[name] += rps[name] * 10
                self.slow[name] += rps[name] * 10 * slow
                fast, late = round(self.tokens[name] - self.slow[name]), round(self.slow[name])
                page = snapshot(
                    self.t,
                    counters={"requests_finished": self.tokens[name], "engine_steps": self.t},
                    gauges={"requests_waiting": queues[name], "requests_running": 1.0},
                    histograms={"ttft_seconds": cumulative([0.2] * fast + [9.0] * late, (0.5, 2.0, float("inf")))},
                )
                scrapes.append(ReplicaScrape(tier="t", replica=name, t=self.t, snapshot=page))
            self.evaluator.step(self.state, Observation(now=self.t, scrapes=tuple(scrapes))).raise_defects()
        return self.state.rules["TtftSloBurn", TIER].result


SERVED = {"a": 3.0, "b": 3.0}
NONE = {"a": 0.0, "b": 0.0}


def verdict(result: RuleResult) -> tuple[Status, Certainty]:
    return result.status, result.certainty


def share(result: RuleResult) -> float | None:
    """The observed share of requests that missed the objective."""
    return result.observed.value


def test_standing_queue_of_one_replica_shows() -> None:
    fleet = Fleet()
    assert verdict(fleet.run(900, NONE, SERVED)) == (Status.OK, Certainty.CERTAIN)
    result = fleet.run(900, {"a": 120.0, "b": 0.0}, {"a": 0.0, "b": 3.0})
    assert verdict(result)[1] is Certainty.CERTAIN
    assert verdict(result)[0] is not Status.OK
    assert result.missed.share.value is not None
    assert result.missed.share.value == pytest.approx(120 / (2700 + 120), rel=0.1)


def test_single_hang_and_deep_queue_pass() -> None:
    fleet = Fleet()
    fleet.run(900, NONE, SERVED)
    result = fleet.run(1800, {"a": 1.0, "b": 0.0}, {"a": 0.0, "b": 6.0})
    assert verdict(result) == (Status.OK, Certainty.CERTAIN)
    assert share(result) == pytest.approx(1 / 15_781, rel=0.01), "it is counted"
    assert verdict(Fleet().run(1800, {"a": 25.0, "b": 25.0}, SERVED)) == (Status.OK, Certainty.CERTAIN)


def test_served_queue_ends_finding() -> None:
    fleet = Fleet()
    fleet.run(900, NONE, SERVED)
    fleet.run(600, {"a": 60.0, "b": 0.0}, {"a": 0.0, "b": 3.0})
    late = fleet.run(60, NONE, {"a": 9.0, "b": 3.0}, slow=60 / 720)
    assert late.status is not Status.OK
    after = fleet.run(3600, NONE, SERVED)
    assert verdict(after)[0] is Status.OK


def test_leavers_of_queue_stay_missed() -> None:
    fleet = Fleet()
    fleet.run(600, NONE, SERVED)
    fleet.run(300, {"a": 90.0, "b": 90.0}, NONE)
    result = fleet.run(240, NONE, SERVED)
    assert share(result) == pytest.approx((180 - 60) / (840 * 6), rel=0.1), "60 may have got the first tokens of 10 s"
