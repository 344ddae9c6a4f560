"""Alerts of findings, of incidents and of others: when they begin, what they are, and how they are remembered."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_incidents import CASCADE, finding

from agent.alerting import service as memory
from agent.alerting.service import ExternalAlertStore, alert_targets
from agent.config.peer import Peer
from agent.scrape.scrapers import Target
from rules.confidence import Certainty
from rules.evaluator.alert_severity import alert_severity, list_open_burns
from rules.evaluator.external_alerts import AFTERMATH_SECONDS, ExternalAlert, assign_tier, attach_finding
from rules.evaluator.incident_alerts import (
    AHEAD_SECONDS,
    KEEP_SECONDS,
    LEFT_OVER_SECONDS,
    TICKET_WAIT_SECONDS,
    IncidentAlert,
    held_back,
    is_lasting,
    step_incident_alerts,
)
from rules.evaluator.incidents import group_incidents
from rules.plan import load_bins
from rules.telemetry.signals import Gap, Missing
from rules.verdicts.rule import Severity
from rules.verdicts.verdict import Finding, Status, Subject, Transition, Verdict, step_rule_state

SUBJECT = Subject(tier="t", replica="a")
OK, WARNING, CRITICAL = Status.OK, Status.WARNING, Status.CRITICAL
CERTAIN, LIKELY = Certainty.CERTAIN, Certainty.LIKELY


def result(status: Status, certainty: Certainty = CERTAIN, rule: str = "TtftDivergence", **more: Any) -> Verdict:
    missing = Missing(gap=Gap.NOT_IN_PLAN)
    usual = {"t": 0, "subject": SUBJECT, "observed": missing, "expected": missing, "unit": "ratio"}
    return Verdict(rule=rule, status=status, certainty=certainty, **({**usual, "sentence": status.value} | more))


@pytest.mark.parametrize(("rule", "severity"), [("KvCacheCascade", Severity.PAGE), ("KvEviction", Severity.TICKET)])
def test_rule_pages_only_when_critical(rule: str, severity: Severity) -> None:
    assert alert_severity(rule, CRITICAL) is severity
    assert alert_severity(rule, WARNING) is Severity.TICKET


@pytest.mark.parametrize(
    ("verdict", "burns"),
    [
        (result(CRITICAL, rule="KvCacheCascade", stage=3), True),
        (result(WARNING, rule="KvCacheCascade", stage=2), False),
        (result(WARNING, rule="TtftSloBurn"), True),
        (result(CRITICAL, LIKELY, rule="TtftSloBurn"), False),
        (result(CRITICAL, rule="KvEviction"), False),
    ],
)
def test_burn_and_late_cascade_break_slo(verdict: Verdict, burns: bool) -> None:
    state, _ = step_rule_state(None, verdict)
    assert state.finding is not None
    assert bool(list_open_burns([state.finding])) is burns


Told = tuple[str, str, float, float | None]


def seen_at(findings: Iterable[Finding], now: float) -> list[Finding]:
    """The findings as they were known at that time."""
    begun = [one for one in findings if one.started_at <= now]
    return [replace(one, ended_at=None) if one.ended_at is not None and one.ended_at > now else one for one in begun]


def alerts(
    findings: Iterable[Finding], now: float, previous: Iterable[IncidentAlert] = ()
) -> tuple[IncidentAlert, ...]:
    return step_incident_alerts(previous, group_incidents(seen_at(findings, now)), now)


def told(found: Iterable[IncidentAlert]) -> list[Told]:
    return [(one.rule, one.severity.value, one.since, one.resolved_at) for one in found]


def story(findings: Iterable[Finding], until: float, every: float = 15.0) -> list[Told]:
    """The alerts that begin and end while the findings come and go, in order."""
    known, firing = list(findings), set[Told]()
    found: tuple[IncidentAlert, ...] = ()
    changes: list[Told] = []
    for now in (n * every for n in range(int(until / every) + 1)):
        found = alerts(known, now, found)
        for one in told(found):
            if one not in firing:
                firing.add(one)
                changes.append(one)
    return changes


def over(findings: Iterable[Finding], end: float) -> list[Finding]:
    return [one if one.ended_at is not None else replace(one, ended_at=end) for one in findings]


LONG_QUEUE, PAGED = finding("QueueGrowing", 0.0, 1400.0, status=WARNING), finding("TtftSloBurn", 1000.0, 1300.0)


@pytest.mark.parametrize(
    ("findings", "told"),
    [
        (over(CASCADE, 420.0), [("KvCacheCascade", "critical", 85.0, end) for end in (None, 420.0)]),
        ([finding("TargetDown", 100.0, 99.0 + TICKET_WAIT_SECONDS, replica="a", status=WARNING)], []),
        (
            [LONG_QUEUE, PAGED],
            [
                ("QueueGrowing", "warning", 0.0, None),
                *(("TtftSloBurn", "critical", 1000.0, end) for end in (None, 1300.0)),
                ("QueueGrowing", "warning", 0.0, 1400.0),
            ],
        ),
        (
            [finding("TierDown", 0.0, 200.0), finding("TierDown", 199.0 + KEEP_SECONDS, 800.0)],
            [("TierDown", "critical", 0.0, end) for end in (None, 800.0)],
        ),
        (
            [
                *(
                    finding("WorkloadDrift", *span, status=WARNING)
                    for span in ((0.0, 300.0), (615.0, 630.0), (645.0, 915.0))
                ),
                finding("KvCacheCascade", 930.0, 945.0),
            ],
            [
                *(("WorkloadDrift", "warning", 0.0, end) for end in (None, 300.0)),
                *(("WorkloadDrift", "warning", 615.0, end) for end in (None, 930.0)),
                *(("KvCacheCascade", "critical", 930.0, end) for end in (None, 945.0)),
            ],
        ),
    ],
    ids=[
        "cascade is one page",
        "too short for a ticket",
        "page after a ticket",
        "short recovery",
        "ticket becomes a page",
    ],
)
def test_story_of_the_alerts(findings: list[Finding], told: list[Told]) -> None:
    assert story(findings, 4000.0) == told


def test_ticket_waits_for_its_root() -> None:
    known = [
        finding("TtftDivergence", 100.0, status=WARNING),
        finding("PrefixHitLow", 100.0 + TICKET_WAIT_SECONDS - 1, status=WARNING),
        finding("WorkloadDrift", 100.0 + TICKET_WAIT_SECONDS + 60, status=WARNING),
    ]
    assert alerts(known, 99.0 + TICKET_WAIT_SECONDS) == ()
    (one,) = alerts(known, 101.0 + TICKET_WAIT_SECONDS)
    assert told([one]) == [("PrefixHitLow", "warning", 100.0, None)]
    (later,) = alerts(known, 2000.0)
    assert later.incident.root.rule == "WorkloadDrift"
    assert told([later]) == told([one]), "a refined root makes no other alert"


def test_rest_of_page_is_late_ticket() -> None:
    page = finding("KvCacheCascade", 0.0, 300.0, replica="a")
    lag = finding("TtftDivergence", 60.0, 299.0 + LEFT_OVER_SECONDS, status=WARNING)
    late = 400.0 + LEFT_OVER_SECONDS
    assert [one[1] for one in story([page, lag], late, 60.0)] == ["critical", "critical"]
    lasts = replace(lag, ended_at=None)
    assert story([page, lasts], late, 60.0)[2:] == [("TtftDivergence", "warning", 300.0 + LEFT_OVER_SECONDS, None)]
    again = finding("TtftDivergence", 290.0 + AFTERMATH_SECONDS, status=WARNING)
    other = finding("QueueGrowing", 310.0 + AFTERMATH_SECONDS, status=WARNING)
    assert [one[1] for one in story([page, lasts, again], 5000.0)] == ["critical", "critical"]
    assert story([page, lasts, again, other], 5000.0)[2:] == [("QueueGrowing", "warning", other.started_at, None)]


def test_likely_or_reported_sends_nothing() -> None:
    likely = finding("TtftSloBurn", 0.0, certainty=Certainty.LIKELY)
    noted = finding("GpuMemoryLow", 0.0, status=WARNING)
    assert alerts([likely, noted, finding("RemovedRule", 0.0)], 5000.0) == ()


def test_future_end_is_over() -> None:
    incidents = group_incidents([finding("TierDown", 0.0, 10_000.0)])
    early, late = (step_incident_alerts((), incidents, 10_000.0 - ahead)[0] for ahead in (AHEAD_SECONDS + 1, 0.0))
    assert early.resolved_at is not None
    assert late.resolved_at is None


def test_alert_outlives_its_findings() -> None:
    first = finding("TpotDivergence", 0.0, 90_000.0, status=WARNING)
    later = finding("ItlDivergence", 80_000.0, status=WARNING)
    before = alerts([first, later], 90_100.0)
    # A day after its end the first finding is no longer in memory.
    assert told(alerts([later], 180_000.0, before)) == told(before) == [("TpotDivergence", "warning", 0.0, None)]


def test_milder_finding_keeps_its_alert() -> None:
    cascade = finding("KvCacheCascade", 100.0)
    milder = Transition(t=200.0, status=WARNING, stage=1, certainty=Certainty.CERTAIN)
    cascade = replace(cascade, transitions=(*cascade.transitions, milder))
    (alert,) = step_incident_alerts((), group_incidents([cascade]), 5000.0)
    assert (alert.severity, is_lasting(alert)) == (Severity.PAGE, True)
    (over,) = step_incident_alerts((), group_incidents([replace(cascade, ended_at=4900.0)]), 5000.0)
    assert (over.resolved_at, is_lasting(over)) == (None, False)


def test_root_holds_back_other_findings() -> None:
    known = [*CASCADE, finding("GpuMemoryLow", 240.0, status=WARNING)]
    (one,) = alerts(known, 295.0)
    assert one.incident.root.rule == "WorkloadDrift"
    assert held_back(one) == ("KvEviction", "ItlDivergence", "TtftSloBurn")
    (later,) = alerts(known, 335.0)
    assert held_back(later) == ("ItlDivergence", "TtftSloBurn"), "what has ended is held back no more"
    (after,) = alerts(over(known, 400.0), 900.0)
    assert held_back(after) == held_back(one), "but at the end all that was"


RULES = ("KvCacheCascade", "TtftSloBurn", "QueueGrowing", "WorkloadDrift", "TtftDivergence", "TierDown", "GpuXid")


@st.composite
def drawn_findings(draw: st.DrawFn) -> Finding:
    start, length = 15.0 * draw(st.integers(0, 120)), 15.0 * draw(st.integers(1, 120))
    return finding(
        draw(st.sampled_from(RULES)), start, start + length, status=draw(st.sampled_from([WARNING, CRITICAL]))
    )


FINDINGS = st.lists(drawn_findings(), max_size=6)


def after_steps(known: Iterable[Finding], steps: int) -> tuple[IncidentAlert, ...]:
    found: tuple[IncidentAlert, ...] = ()
    for step in range(steps + 1):
        found = alerts(known, step * 15.0, found)
    return found


@given(FINDINGS, st.integers(0, 300))
def test_a_restart_loses_and_adds_no_page(known: list[Finding], at: int) -> None:
    several = (after_steps(known, at), alerts(known, at * 15.0))
    # Where two incidents joined, the page that stays may have another name.
    before, after = ([o for o in one if o.resolved_at is None and o.severity is Severity.PAGE] for one in several)
    assert len(before) == len(after)


def test_restart_keeps_cascade_alerts() -> None:
    ended = over(CASCADE, 420.0)
    for now in (120.0, 300.0, 500.0, 900.0):
        assert told(after_steps(ended, int(now / 15))) == told(alerts(ended, now)) != []


@given(FINDINGS)
def test_every_page_is_told_and_resolved(known: list[Finding]) -> None:
    last = max((one.ended_at or 0.0 for one in known), default=0.0)
    told_ = story(known, last + KEEP_SECONDS + 30.0)
    pages = [one for one in known if one.worst.status is CRITICAL and one.rule in PAGING]
    for page in pages:
        assert any(one[1] == "critical" and one[2] <= page.started_at <= (one[3] or math.inf) for one in told_)
    begun = {one[:3] for one in told_ if one[3] is None}
    # A finding may join two incidents that were too short for a ticket: theirs is over when it is known.
    assert begun <= {one[:3] for one in told_ if one[3] is not None}


PAGING = frozenset({"KvCacheCascade", "TtftSloBurn", "TierDown"})


@pytest.mark.parametrize("severity", [Severity.PAGE, Severity.TICKET])
def test_equal_findings_are_one_alert(severity: Severity) -> None:
    status = CRITICAL if severity is Severity.PAGE else WARNING
    rules = ("KvCacheCascade", "TtftSloBurn", "TpotSloBurn")
    known = [finding(rule, 100.0 * n, 3000.0, status=status) for n, rule in enumerate(rules)]
    assert [one[1] for one in story(known, 4000.0)] == [severity.value] * 2


def test_death_in_incident_is_own_page() -> None:
    cascade, tail = finding("KvCacheCascade", 0.0, 4000.0), finding("TtftDivergence", 600.0, 5000.0, status=WARNING)
    died, slower = finding("TierDown", 3000.0), finding("TtftDivergence", 3010.0, status=WARNING)
    known: tuple[IncidentAlert, ...] = ()
    for now in (2990.0, 3000.0, 3015.0, 3600.0):
        known = alerts([cascade, tail, died, slower], now, known)
        pages = {one.rule for one in known if one.severity is Severity.PAGE and one.resolved_at is None}
        assert pages == {"KvCacheCascade", *(["TierDown"] if now >= 3000.0 else [])}
    failing = finding("AvailabilityBurn", 3060.0)
    known = alerts([cascade, tail, died, slower, failing], 3700.0, known)
    assert len([one for one in known if one.severity is Severity.PAGE]) == 2, "what the outage explains is no page"


def test_death_of_incident_is_same_page() -> None:
    cascade, died = finding("KvCacheCascade", 0.0, 400.0), finding("TierDown", 300.0)
    slower = finding("AvailabilityBurn", 250.0)
    (page,) = (one for one in alerts([cascade, slower, died], 310.0) if one.severity is Severity.PAGE)
    assert page.rule == "KvCacheCascade"


T = 1_790_000_000.0


def alert(name: str = "ApiLatencyHigh", after: float = 0.0, ended: float | None = None, **labels: str) -> ExternalAlert:
    pairs = tuple(sorted({"alertname": name, **labels}.items()))
    end = None if ended is None else T + ended
    return ExternalAlert(name=name, labels=pairs, summary="", started_at=T + after, ended_at=end, heard_at=T + after)


HOSTS = {("a", "a0"): "10.0.3.17:8000", ("a", "a1"): "10.0.3.17:8001", ("b", "b0"): "vllm-0.llm.svc:8000"}
TARGETS = [
    Target(tier=tier, replica=replica, pool="mixed", peer=Peer(url=f"http://{host}/metrics"), engine=None)
    for (tier, replica), host in HOSTS.items()
]
MODELS = [("a", "llama"), ("b", "qwen"), ("c", "qwen")]
FLEET = alert_targets(TARGETS, {"c": load_bins.build_tier_context("c", None)}, MODELS)


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
    **more: Any,
) -> Finding:
    about = {"status": CRITICAL, "rule": rule, "subject": Subject(tier="a", replica=replica), **more}
    began = result(**about, t=T + after)
    rule_state, _ = step_rule_state(None, began)
    if ended is None:
        assert rule_state.finding is not None
        return rule_state.finding
    _, over = step_rule_state(rule_state, replace(began, t=T + ended, status=OK))
    return next(one for one in over if isinstance(one, Finding))


def sentence(one: ExternalAlert, *found: Finding, after: float = 60.0) -> str | None:
    done = attach_finding(one, found, T + after)
    return done.diagnosis.sentence if done.diagnosis else None


HERE = replace(alert(), tier="a", replica="a0")


@pytest.mark.parametrize(
    ("began", "ended", "words"),
    [
        (-360, None, "began 6 min earlier"),
        (-40, None, "began 40 s earlier"),
        (0, None, "began at the same time"),
        (0.9, None, None),
        (45, None, None),
        (-7200, -60, "began 2 h earlier and ended 1 min before it"),
        (-2000, -AFTERMATH_SECONDS, "began 33 min earlier and ended 15 min before it"),
        (-2000, -AFTERMATH_SECONDS - 1, None),
        (61, None, None),
    ],
)
def test_overlapping_or_recent_episode_explains(began: float, ended: float | None, words: str | None) -> None:
    whole = f"this latency alert: KV cache cascade of a0, stage 3, {words}" if words else None
    assert sentence(HERE, make_finding(began, ended, stage=3)) == whole


@pytest.mark.parametrize("changes", [{"tier": None}, {"tier": "b"}, {"replica": "a1"}, {"name": "DiskAlmostFull"}])
def test_elsewhere_or_of_another_kind_nothing_explains(changes: dict[str, Any]) -> None:
    assert sentence(replace(HERE, **changes), make_finding()) is None
    assert sentence(HERE, make_finding(rule="TelemetryStale", status=WARNING)) is None


def test_certain_and_worst_episode_explains_best() -> None:
    likely = make_finding(certainty=LIKELY, rule="LoadBeyondBenchmark", replica=None)
    mild = make_finding(rule="KvEviction", replica=None, status=WARNING)
    worst = make_finding(stage=4)
    assert "stage 4" in str(sentence(HERE, likely, mild, worst))
    assert "KV cache evictions, began" in str(sentence(HERE, likely, mild))
    assert "Load beyond benchmark (likely), began" in str(sentence(HERE, likely))
    done = attach_finding(HERE, [likely], T)
    assert done.diagnosis.certain is False  # type: ignore[union-attr]
    assert attach_finding(done, [], T + 9000) == done, "an explanation outlives its episode"
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
    for late, ended_at in ((299.0, T + 90), (300.0, None)):
        seen.turn(replace(alert(tier="a"), heard_at=seen.one.heard_at + late), after=100 + late)
        assert seen.one.ended_at == ended_at


def test_late_explanation_is_a_change() -> None:
    seen = Memory()
    seen.turn(alert(instance="10.0.3.17:8000"))
    assert seen.turn(after=30, found=[make_finding(-20)]) == 1
    assert seen.turn(after=45, found=[make_finding(-20)]) == 0
    assert seen.one.diagnosis is not None


def test_alerts_end_and_are_forgotten() -> None:
    seen = Memory()
    seen.turn(alert())
    assert seen.turn(after=memory.SILENT_SECONDS) == 0
    (gone,) = seen.foreign.update((), (), T + memory.SILENT_SECONDS + 1, lambda: FLEET)
    assert (gone.ended_at, seen.foreign.alerts) == (T, ())
    seen.turn(alert(ended=10.0), after=10)
    seen.turn(after=10 + memory.DAY_SECONDS)
    assert len(seen.foreign.alerts) == 1
    seen.turn(after=11 + memory.DAY_SECONDS)
    assert seen.foreign.alerts == ()


def test_storm_is_bounded_and_restart_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "MOST", 3)
    seen = Memory()
    seen.turn(*(alert(number=str(n)) for n in range(5)))
    assert (len(seen.foreign.alerts), seen.foreign.left_out) == (3, 2)
    seen = Memory()
    seen.foreign.resume([alert(after=-9 * 86400.0), alert("Other", ended=5.0)], T)
    assert seen.turn(after=1) == 0
    assert [one.ended_at for one in seen.foreign.alerts] == [None, T + 5]
