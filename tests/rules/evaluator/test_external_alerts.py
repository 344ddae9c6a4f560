"""Alerts of others: whose replica they are about, what explains them, and how they are remembered."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from test_alert_severity import CERTAIN, CRITICAL, LIKELY, OK, WARNING, result

from agent.alerting import service as memory
from agent.alerting.service import ExternalAlertStore, alert_targets
from agent.config.peer import Peer
from agent.scrape.scrapers import Target
from rules.confidence import Certainty
from rules.evaluator.external_alerts import AFTERMATH_SECONDS, AlertTargets, ExternalAlert, assign_tier, attach_finding
from rules.plan import load_bins
from rules.verdicts.verdict import Finding, Status, Subject, Verdict, step_rule_state

T = 1_790_000_000.0


def alert(name: str = "ApiLatencyHigh", after: float = 0.0, ended: float | None = None, **labels: str) -> ExternalAlert:
    return ExternalAlert(
        name=name,
        labels=tuple(sorted({"alertname": name, **labels}.items())),
        summary="",
        started_at=T + after,
        ended_at=None if ended is None else T + ended,
        heard_at=T + after,
    )


def target(tier: str, replica: str, url: str) -> Target:
    return Target(tier=tier, replica=replica, pool="mixed", peer=Peer(url=url), engine=None)


TARGETS = (
    target("a", "a0", "http://10.0.3.17:8000/metrics"),
    target("a", "a1", "http://10.0.3.17:8001/metrics"),
    target("b", "b0", "http://vllm-0.llm.svc:8000/metrics"),
)
FLEET = alert_targets(
    TARGETS, {"c": load_bins.build_tier_context("c", None)}, [("a", "llama"), ("b", "qwen"), ("c", "qwen")]
)


@pytest.mark.parametrize(
    ("labels", "tier", "replica"),
    [
        ({"tier": "a"}, "a", None),
        ({"tier": "c"}, "c", None),
        ({"tier": "gold"}, None, None),
        ({"instance": "10.0.3.17:8001"}, "a", "a1"),
        ({"instance": "10.0.3.17"}, "a", None),
        ({"tier": "a", "replica": "a0"}, "a", "a0"),
        ({"tier": "b", "instance": "10.0.3.17:8001"}, "b", None),
        ({"pod": "vllm-0"}, "b", "b0"),
        ({"model_name": "llama"}, "a", None),
        ({"model_name": "qwen"}, None, None),
        ({"model": "llama", "instance": "elsewhere:1"}, "a", None),
        ({}, None, None),
    ],
)
def test_alert_finds_its_tier(labels: dict[str, str], tier: str | None, replica: str | None) -> None:
    found = assign_tier(alert(**labels), FLEET)
    assert (found.tier, found.replica) == (tier, replica)


def make_finding(
    after: float = -360.0,
    ended: float | None = None,
    rule: str = "KvCacheCascade",
    replica: str | None = "a0",
    status: Status = CRITICAL,
    certainty: Certainty = CERTAIN,
    **more: Any,
) -> Finding:
    def made(t: float, said: Status) -> Verdict:
        return replace(result(said, certainty, rule=rule, t=T + t, **more), subject=Subject(tier="a", replica=replica))

    rule_state, _ = step_rule_state(None, made(after, status))
    if ended is None:
        assert rule_state.finding is not None
        return rule_state.finding
    _, over = step_rule_state(rule_state, made(ended, OK))
    return next(one for one in over if isinstance(one, Finding))


def sentence(one: ExternalAlert, *found: Finding, after: float = 60.0) -> str | None:
    done = attach_finding(one, found, T + after)
    return done.diagnosis.sentence if done.diagnosis else None


HERE = replace(alert(), tier="a", replica="a0")


def test_latency_alert_names_earlier_episode() -> None:
    said = sentence(HERE, make_finding(stage=3))
    assert said == "this latency alert: KV cache cascade of a0, stage 3, began 6 minutes earlier"


@pytest.mark.parametrize(
    ("began", "ended", "words"),
    [
        (-40, None, "began 40 seconds earlier"),
        (0, None, "began at the same time"),
        (0.9, None, None),
        (45, None, None),
        (-7200, -60, "began 2 hours earlier and ended 1 minute before it"),
        (-2000, -AFTERMATH_SECONDS, "began 33 minutes earlier and ended 15 minutes before it"),
        (-2000, -AFTERMATH_SECONDS - 1, None),
        (61, None, None),
    ],
)
def test_overlapping_or_recent_episode_explains(began: float, ended: float | None, words: str | None) -> None:
    said = sentence(HERE, make_finding(began, ended))
    assert (said is None) if words is None else str(said).endswith(words)


@pytest.mark.parametrize(
    ("one", "found"),
    [
        (replace(HERE, tier=None), make_finding()),
        (replace(HERE, tier="b"), make_finding()),
        (replace(HERE, replica="a1"), make_finding()),
        (replace(HERE, name="DiskAlmostFull"), make_finding()),
        (HERE, make_finding(rule="TelemetryStale", status=WARNING)),
    ],
)
def test_elsewhere_or_of_another_kind_nothing_explains(one: ExternalAlert, found: Finding) -> None:
    assert sentence(one, found) is None


def test_certain_and_worst_episode_explains_best() -> None:
    likely = make_finding(certainty=LIKELY, rule="LoadBeyondBenchmark", replica=None)
    mild = make_finding(rule="KvEviction", replica=None, status=WARNING)
    worst = make_finding(stage=4)
    assert "stage 4" in str(sentence(HERE, likely, mild, worst))
    assert "KV cache evictions, began" in str(sentence(HERE, likely, mild))
    assert "Load beyond benchmark (likely), began" in str(sentence(HERE, likely))
    assert attach_finding(HERE, [likely], T).diagnosis.certain is False  # type: ignore[union-attr]


def test_explanation_outlives_its_episode() -> None:
    done = attach_finding(HERE, [make_finding()], T)
    assert attach_finding(done, [], T + 9000) == done


def test_error_alert_is_explained_by_errors() -> None:
    down = make_finding(rule="TargetDown", status=WARNING)
    assert str(sentence(replace(HERE, name="HighErrorRate"), down)).startswith("this error alert: Target down of a0")


class Memory:
    def __init__(self) -> None:
        self.foreign = ExternalAlertStore()

    def turn(self, *arrived: ExternalAlert, after: float = 0.0, found: Sequence[Finding] = ()) -> int:
        return len(self.foreign.update(arrived, found, T + after, lambda: FLEET))

    @property
    def one(self) -> ExternalAlert:
        (found,) = self.foreign.alerts
        return found


def test_repeated_alert_is_one() -> None:
    seen = Memory()
    assert seen.turn(alert(tier="a")) == 1
    assert seen.turn(replace(alert(tier="a"), heard_at=T + 60), after=60) == 0
    assert seen.one.tier == "a"
    assert seen.turn(alert(tier="a", ended=90.0), after=100) == 1
    assert seen.one.ended_at == T + 90


def test_late_explanation_is_a_change() -> None:
    seen = Memory()
    seen.turn(alert(instance="10.0.3.17:8000"))
    assert seen.turn(after=30, found=[make_finding(-20)]) == 1
    assert seen.turn(after=45, found=[make_finding(-20)]) == 0
    assert seen.one.diagnosis is not None


def test_silent_alert_ends_at_last_word() -> None:
    seen = Memory()
    seen.turn(alert())
    assert seen.turn(after=memory.SILENT_SECONDS) == 0
    (gone,) = seen.foreign.update((), (), T + memory.SILENT_SECONDS + 1, lambda: FLEET)
    assert gone.ended_at == T
    assert seen.foreign.alerts == ()


def test_ended_alert_is_forgotten_tomorrow() -> None:
    seen = Memory()
    seen.turn(alert(ended=10.0), after=10)
    seen.turn(after=10 + memory.KEPT_SECONDS)
    assert len(seen.foreign.alerts) == 1
    seen.turn(after=11 + memory.KEPT_SECONDS)
    assert seen.foreign.alerts == ()


def test_storm_is_bounded_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "MOST", 3)
    seen = Memory()
    seen.turn(*(alert(number=str(n)) for n in range(5)))
    assert (len(seen.foreign.alerts), seen.foreign.left_out) == (3, 2)


def test_restart_counts_alert_as_heard() -> None:
    seen = Memory()
    seen.foreign.resume([alert(after=-9 * 86400.0), alert("Other", ended=5.0)], T)
    assert seen.turn(after=1) == 0
    assert [one.ended_at for one in seen.foreign.alerts] == [None, T + 5]


def test_a_fleet_without_replicas_has_no_alerts() -> None:
    assert assign_tier(alert(tier="a"), AlertTargets(tiers=frozenset(), replicas={})).tier is None
