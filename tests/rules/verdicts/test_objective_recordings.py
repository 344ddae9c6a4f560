"""What the rules about users' waiting say of real recordings, and of a burn that is followed scrape by scrape."""

import pytest
import recorded
from evaluation_steps import EvaluationSteps
from judging_samples import EDGES, START, context
from making import cumulative, snapshot

from agent.config.files import load_plan
from agent.replay.replay import replay
from agent.sources.recording import load
from rules.catalogue.registry import BURNS
from rules.confidence import Certainty
from rules.evaluator.alert_severity import alert_severity
from rules.verdicts.rule import Severity
from rules.verdicts.verdict import Finding, Status, Subject

RULES = frozenset({*BURNS, "QueueGrowing", "GpuSaturated"})
BURN = ("TtftSloBurn", Subject(tier="t"))


def findings(name: str) -> dict[str, Finding]:
    """What fires where the plan promises whole requests and output events too."""
    recording, _ = load(recorded.folder(name))
    plan = load_plan(recorded.PLANS / "cpu-small-open.yaml")
    tier = plan.tiers["cpu-small"]
    slo = tier.slo.model_copy(update={"itl_p99_seconds": 0.4, "e2e_p99_seconds": 5.0})
    done = replay(recording, plan.model_copy(update={"tiers": {"cpu-small": tier.model_copy(update={"slo": slo})}}))
    every = [e for e in done.ended if isinstance(e, Finding)]
    found = [*every, *(s.finding for s in done.rule_states if s.finding is not None)]
    return {e.rule: e for e in found if e.rule in RULES}


@pytest.mark.parametrize("name", ["steady", "diurnal", "diurnal_quiet", "near_full_healthy", "kv_brim_healthy"])
def test_healthy_traffic_breaks_no_promise(name: str) -> None:
    assert findings(name) == {}


def test_cascade_breaks_the_promise_once() -> None:
    """Five minutes of it spend less than a page's budget: the cascade's page came before, and this is likely."""
    found = findings("kv_cascade")
    burn = found["TtftSloBurn"].worst
    assert (burn.status, burn.certainty) == (Status.CRITICAL, Certainty.LIKELY)
    assert [cause.cause for cause in burn.causes] == ["prompt lengths", "output lengths", "evictions", "queueing"]
    assert "throttling" in burn.causes[0].against[0]


def test_whole_requests_match_clients() -> None:
    """By requests.csv 174 of 279 requests took longer than 5 s. Most of their time passed in the queue."""
    found = findings("kv_cascade")
    worst = found["E2eSloBurn"].worst
    assert (worst.status, worst.certainty) == (Status.CRITICAL, Certainty.LIKELY)
    assert worst.sentence.startswith("62.4% of 279 requests in 5.5 min missed the 5 s E2E objective")
    queue = next(cause for cause in worst.causes if cause.cause == "queueing")
    assert queue.evidence[0].endswith("of the time of requests is spent in the queue")
    assert "ItlSloBurn" not in found, "its tokens came in time"


def test_burn_pages_once_and_resolves() -> None:
    """3 requests a second, all of them in 0.4 s for twelve minutes, then in 0.08 s; 0.26 s are promised."""
    watcher = EvaluationSteps({"t": context(slo={"ttft_p99_seconds": 0.26})})
    seen: list[tuple[float, bool]] = []
    for seconds in range(0, 1260, 15):
        slow = min(seconds, 720) * 3
        latencies = cumulative([0.4] * slow + [0.08] * (seconds * 3 - slow), EDGES)
        made = snapshot(
            START + seconds, counters={"requests_finished": seconds * 3.0}, histograms={"ttft_seconds": latencies}
        )
        watcher.apply_snapshot("t", "a", made)
        watcher.step(START + seconds)
        state = watcher.rules.get(BURN)
        certain = state.finding.certain_transitions if state is not None and state.finding is not None else ()
        pages = any(alert_severity(BURN[0], each.status) is Severity.PAGE for each in certain)
        if not seen or seen[-1][1] != pages:
            seen.append((seconds, pages))
    assert [pages for _, pages in seen] == [False, True, False]
    fired, resolved = seen[1][0], seen[2][0]
    assert 9 * 60 <= fired <= 10 * 60 + 15
    assert 12 * 60 < resolved <= 12 * 60 + 360
