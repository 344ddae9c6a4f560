"""Findings of one cause are one incident: by the stages of their rules, in one tier, in time."""

from dataclasses import replace

import making
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rules.catalogue.registry import BY_NAME, REMEDIES, RULES, SUSPECTED
from rules.causes.explain import LAST, OF_ONE_FAMILY, SUSPECTS, TURNED_AWAY
from rules.confidence import Certainty
from rules.evaluator.incidents import APART_SECONDS, NEAR_SECONDS, SHARP_SECONDS, group_incidents
from rules.methods.evidence import exact_reading, range_reading
from rules.telemetry.signals import Reading
from rules.verdicts.rule import Severity
from rules.verdicts.verdict import Cause, Finding, IdleReplicas, MissedObjective, Status, Subject


def finding(
    rule: str,
    start: float,
    end: float | None = None,
    *,
    replica: str | None = None,
    tier: str = "chat",
    status: Status = Status.CRITICAL,
    certainty: Certainty = Certainty.CERTAIN,
) -> Finding:
    texts = {"sentence": f"{rule} is seen", "actions": (f"mend {rule}",)}
    subject = Subject(tier=tier, replica=replica)
    worst = making.verdict(rule, t=start, subject=subject, status=status, certainty=certainty, **texts)
    return making.finding(worst, ended_at=end)


CASCADE = (
    finding("KvCacheCascade", 85.0, 275.0, replica="a"),
    finding("KvEviction", 170.0, 330.0),
    finding("LoadBeyondBenchmark", 230.0, 290.0, status=Status.WARNING, certainty=Certainty.LIKELY),
    finding("WorkloadDrift", 231.0, 330.0, status=Status.WARNING),
    finding("ItlDivergence", 235.0),
    finding("TtftSloBurn", 290.0),
)


def test_cascade_is_one_incident() -> None:
    (incident,) = group_incidents(CASCADE)
    assert incident.root.rule == "WorkloadDrift"
    assert incident.severity is Severity.PAGE
    assert (incident.started_at, incident.ended_at) == (85.0, None)
    assert list(incident.symptoms)[:2] == ["KvCacheCascade", "KvEviction"]
    burn = BY_NAME["TtftSloBurn"].title
    assert incident.sentence == f"WorkloadDrift is seen from 01 Jan 00:01 to 00:05; still: {burn}"
    assert incident.action == "mend WorkloadDrift"


def test_root_refines_under_one_id() -> None:
    roots = [group_incidents(CASCADE[:n])[0] for n in range(1, len(CASCADE) + 1)]
    rules = (*["KvCacheCascade"] * 3, *["WorkloadDrift"] * 3)
    assert tuple(one.root.rule for one in roots) == rules
    ended = [replace(one, ended_at=one.ended_at or 900.0) for one in CASCADE]
    outlived, over = group_incidents([*ended[:-1], CASCADE[-1]])[0], group_incidents(ended)[0]
    assert (outlived.ended_at, over.ended_at) == (None, 900.0)
    (back,) = group_incidents([*CASCADE, finding("WorkloadDrift", 400.0, status=Status.WARNING)])
    assert (back.root.rule, back.root.started_at, back.root.ended_at) == ("WorkloadDrift", 400.0, None)
    assert back.sentence == "WorkloadDrift is seen since 01 Jan 00:01"
    assert len({one.id for one in (*roots, outlived, back)}) == 1


def test_replicas_alike_are_one_incident() -> None:
    lost = [finding("TargetDown", 10.0 * n, 100.0 + 10.0 * n, replica=f"r{n}") for n in range(5)]
    (incident,) = group_incidents(lost)
    assert incident.root.subject.replica == "r0"
    (later,) = group_incidents([finding("TpotDivergence", -300.0, 300.0, certainty=Certainty.LIKELY), *lost], now=400.0)
    assert later.sentence == "TargetDown is seen from 00:00 to 00:02; tokens come slower"
    other = finding("GpuXid", -300.0, replica="r9", certainty=Certainty.LIKELY)
    (joined,) = group_incidents([other, finding("GpuXid", 0.0, replica="r0")], now=400.0)
    assert joined.sentence == "GpuXid is seen since 00:00", "the state of another replica is no begin"
    assert len(group_incidents([*lost, finding("TargetDown", 0.0, 90.0, tier="other", replica="r0")])) == 2


def test_likely_or_removed_rules_are_notes() -> None:
    likely = finding("QueueGrowing", 0.0, certainty=Certainty.LIKELY)
    note, old = finding("UtilizationTrap", 0.0), finding("OldRule", 0.0)
    warning = finding("TtftSloBurn", 0.0, tier="other", status=Status.WARNING)
    found = {one.root.rule: one.severity for one in group_incidents([likely, note, warning, old])}
    notes = dict.fromkeys(("QueueGrowing", "UtilizationTrap", "OldRule"), Severity.REPORT)
    assert found == {**notes, "TtftSloBurn": Severity.TICKET}


def _without_overlap(findings: list[Finding]) -> list[Finding]:
    """A rule has at most one open finding of a subject: drop those that begin before the one before it ended."""
    kept: dict[tuple[str, Subject], Finding] = {}
    left = []
    for one in sorted(findings, key=lambda one: one.started_at):
        before = kept.get((one.rule, one.subject))
        if before is None or before.end < one.started_at:
            kept[one.rule, one.subject] = one
            left.append(one)
    return left


@st.composite
def drawn_findings(draw: st.DrawFn) -> Finding:
    start, length = draw(st.integers(0, 20_000)), draw(st.none() | st.integers(0, 4000))
    where = {"replica": draw(st.sampled_from([None, "a", "b"])), "tier": draw(st.sampled_from(["chat", "batch"]))}
    rule = draw(st.sampled_from([rule.name for rule in RULES]))
    return finding(rule, float(start), None if length is None else float(start + length), **where)


FINDINGS = st.lists(drawn_findings(), max_size=14).map(_without_overlap)


@given(FINDINGS, st.randoms(use_true_random=False))
def test_finding_is_in_one_incident(findings: list[Finding], random: object) -> None:
    incidents = group_incidents(findings)
    members = [one for incident in incidents for one in incident.findings]
    assert sorted(map(repr, members)) == sorted(map(repr, findings))
    assert all({one.subject.tier for one in incident.findings} == {incident.tier} for incident in incidents)
    assert all(incident.root in incident.findings for incident in incidents)
    shuffled = list(findings)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert group_incidents(shuffled) == incidents


@given(FINDINGS)
def test_what_begins_later_moves_no_finding(findings: list[Finding]) -> None:
    def begin(one: Finding) -> tuple[float, str, str, str, float]:
        return one.started_at, one.subject.tier, one.rule, one.subject.replica or "", one.end

    ordered = sorted(findings, key=begin)
    after = {id(one): incident.id for incident in group_incidents(ordered) for one in incident.findings}
    for incident in group_incidents(ordered[:-1]):
        assert {after[id(one)] for one in incident.findings} == {incident.id}


def suspecting(one: Finding, *causes: str, certainty: Certainty = Certainty.CERTAIN) -> Finding:
    found = tuple(Cause(cause=cause, certainty=certainty, evidence=(cause,)) for cause in causes)
    return replace(one, worst=replace(one.worst, causes=found))


DRIFT, ROUTED = finding("WorkloadDrift", 195.0), finding("PrefixRoutingBroken", 305.0)
LATE_TOKENS = finding("TtftDivergence", 255.0)
BEGUN, OVER = finding("WorkloadDrift", 0.0), finding("WorkloadDrift", 0.0, 100.0)
EVICTED = finding("KvEviction", 0.0, 100.0)
BURNING = suspecting(finding("TtftSloBurn", 910.0), "prompt lengths")
FELT = finding("AvailabilityBurn", 0.0)
JAMMED, SHORT_JAM = (suspecting(finding("QueueGrowing", 0.0, end), "more load") for end in (None, 205.0))
CLIENTS = suspecting(finding("RequestsRefused", 60.0), "client requests")
GUESS = finding("LoadBeyondBenchmark", 0.0, 100.0, certainty=Certainty.LIKELY)
SURE_DEATH, LIKELY_DEATH = (
    suspecting(finding("AvailabilityBurn", 60.0), "engine stopped", certainty=certainty) for certainty in Certainty
)


@pytest.mark.parametrize(("likely_at", "root"), [(0.0, "likely"), (60.0, "sure")])
def test_earliest_certain_note_is_root(likely_at: float, root: str) -> None:
    note = "UtilizationTrap"
    likely = finding(note, likely_at, replica="likely", certainty=Certainty.LIKELY)
    (incident,) = group_incidents([likely, finding(note, 60.0, replica="sure")])
    assert incident.root.subject.replica == root


@pytest.mark.parametrize(
    ("findings", "roots"),
    [
        # What comes back soon is the same incident.
        ([EVICTED, finding("KvEviction", 100.0 + NEAR_SECONDS)], ["KvEviction"]),
        ([EVICTED, finding("KvEviction", 101.0 + NEAR_SECONDS)], ["KvEviction", "KvEviction"]),
        # A cause too long ago explains nothing.
        ([OVER, finding("KvEviction", 100.0 + NEAR_SECONDS)], ["WorkloadDrift"]),
        ([OVER, finding("KvEviction", 101.0 + NEAR_SECONDS)], ["WorkloadDrift", "KvEviction"]),
        # An outage after a fault joins it.
        ([finding("GpuEccErrors", 0.0, replica="a"), finding("TierDown", 60.0)], ["GpuEccErrors"]),
        # The plan has other lengths all the time; the routing broke.
        ([DRIFT, ROUTED, suspecting(LATE_TOKENS, "routing", "prompt lengths")], ["PrefixRoutingBroken"]),
        ([DRIFT, ROUTED, suspecting(LATE_TOKENS, "queueing", "prompt lengths")], ["WorkloadDrift"]),
        # The loudest root precedes what is suspected.
        ([finding("TierDown", 900.0), BEGUN, BURNING], ["TierDown"]),
        # A symptom that names its own cause for certain is a root.
        ([finding("NoHeadroom", 0.0), SURE_DEATH], ["AvailabilityBurn"]),
        ([finding("NoHeadroom", 0.0), LIKELY_DEATH], ["NoHeadroom"]),
        ([finding("EngineStalled", 30.0, status=Status.WARNING), SURE_DEATH], ["EngineStalled"]),
        # A stall explains no refusal that is its clients' own.
        ([finding("EngineStalled", 30.0, certainty=Certainty.LIKELY), CLIENTS], ["RequestsRefused"]),
        # A guess explains what is certain if that began while it lasted.
        ([GUESS, finding("ReplicaImbalance", 100.0, status=Status.WARNING)], ["LoadBeyondBenchmark"]),
        ([GUESS, finding("ReplicaImbalance", 101.0, status=Status.WARNING)], ["ReplicaImbalance"]),
        # What follows single scrapes explains only what began just before.
        ([FELT, finding("TierDown", SHARP_SECONDS)], ["TierDown"]),
        ([FELT, finding("TierDown", SHARP_SECONDS + 1.0)], ["AvailabilityBurn"]),
        ([JAMMED, finding("TargetDown", 200.0), finding("DemandExceedsCapacity", 210.0)], ["DemandExceedsCapacity"]),
        ([SHORT_JAM, finding("TargetDown", 200.0), finding("DemandExceedsCapacity", 210.0)], ["TargetDown"]),
        ([FELT, finding("WorkloadDrift", 3 * 86_400.0)], ["WorkloadDrift"]),
        # Roots within an hour join.
        ([BEGUN, finding("PrefixRoutingBroken", APART_SECONDS)], ["WorkloadDrift"]),
        ([BEGUN, finding("PrefixRoutingBroken", APART_SECONDS + 1.0)], ["WorkloadDrift", "PrefixRoutingBroken"]),
    ],
)
def test_incidents_and_their_roots(findings: list[Finding], roots: list[str]) -> None:
    assert [incident.root.rule for incident in group_incidents(findings)] == roots


def test_outage_in_drift_stands_alone() -> None:
    drift, early = finding("WorkloadDrift", 0.0), finding("TtftDivergence", 100.0)
    lost, late = finding("TierDown", 90_000.0, 90_400.0), finding("TtftSloBurn", 90_060.0, 91_000.0)
    first, second = group_incidents([drift, early, lost, late])
    assert (first.root, first.findings, first.ended_at) == (drift, (drift, early), None)
    assert (second.root, second.findings, second.ended_at) == (lost, (lost, late), 91_000.0)
    assert len(group_incidents([drift, early, replace(lost, started_at=3600.0), replace(late, started_at=3660.0)])) == 1


def test_suspected_causes_name_rules() -> None:
    assert {row.cause for row in SUSPECTS} - {"benchmark"} == set(SUSPECTED)
    assert {rule for rules in SUSPECTED.values() for rule in rules} <= BY_NAME.keys()
    blamed = {row.cause for row in SUSPECTS if row.methods & (OF_ONE_FAMILY | TURNED_AWAY)} | LAST.keys()
    assert REMEDIES.keys() - {"changed traffic"} == blamed
    assert BY_NAME["BenchmarkStale"].stage == 0, "a stale benchmark explains nothing"


def test_thousands_of_flapping_findings_are_one_incident() -> None:
    lost = [finding("TargetDown", 60.0 * n, 60.0 * n + 30, replica="a") for n in range(4000)]
    slow = [finding("TtftDivergence", 60.0 * n + 10, 60.0 * n + 40) for n in range(4000)]
    (incident,) = group_incidents([*lost, *slow])
    assert len(incident.findings) == 8000


def missed(share: float, objective: str = "TTFT", limit: float | None = 2.0) -> MissedObjective:
    seen = Reading(value=share, low=share, high=share, n=100.0)
    return MissedObjective(objective=objective, limit_seconds=limit, share=seen)


def felt(one: Finding, share: MissedObjective, sentence: str = "") -> Finding:
    worst = replace(one.worst, missed=share, sentence=sentence or one.worst.sentence)
    return replace(one, worst=worst)


def test_sentence_has_claim_time_and_effect() -> None:
    drift = felt(finding("WorkloadDrift", 37_380.0), missed(0.56), "Prompts are 4x longer than planned: P95 500 tokens")
    (incident,) = group_incidents([drift, finding("KvEviction", 37_390.0)], now=40_000.0)
    assert incident.sentence == (
        "Prompts are 4x longer than planned since 10:23; requests are preempted, "
        "56.0% of requests miss the 2 s TTFT objective"
    )
    assert incident.missed == missed(0.56)


def test_long_sentence_drops_effect_first() -> None:
    def sentence(claim: str) -> str:
        drift = felt(finding("WorkloadDrift", 0.0), missed(0.56), claim)
        return group_incidents([drift, finding("KvEviction", 10.0)], now=20.0)[0].sentence

    assert sentence("a " * 11 + "b").endswith("b since 00:00; 56.0% of requests miss the 2 s TTFT objective")
    assert sentence("a " * 19 + "b").endswith("b since 00:00; requests are preempted")
    assert sentence("a " * 22 + "b").endswith("b since 00:00")


@pytest.mark.parametrize(
    ("rule", "share", "words"),
    [
        ("GpuXid", missed(0.2, "", None), "; 20.0% of requests fail"),
        ("GpuXid", missed(0.009), ""),
        *((rule, missed(0.5), "") for rule in ("TtftSloBurn", "TpotSloBurn", "AvailabilityBurn")),
    ],
)
def test_effect_stands_behind_the_claim(rule: str, share: MissedObjective, words: str) -> None:
    (incident,) = group_incidents([felt(finding(rule, 0.0), share)], now=20.0)
    assert incident.sentence == f"{rule} is seen since 00:00{words}"


@pytest.mark.parametrize(("rule", "share"), [("TierDown", 0.0), ("TierDown", 0.1), ("GpuXid", 0.0)])
def test_dead_tier_misses_requests_as_impact(rule: str, share: float) -> None:
    (incident,) = group_incidents([felt(finding(rule, 0.0), missed(share))])
    assert incident.missed == (None if (rule, share) == ("TierDown", 0.0) else missed(share))


def test_impact_follows_lasting_findings() -> None:
    drift = felt(finding("WorkloadDrift", 0.0), missed(0.5), "Prompts are 2x longer")
    now = replace(drift.worst, t=60.0, sentence="Prompts are 3x longer", missed=missed(0.1))
    (incident,) = group_incidents([drift], [now], 90.0)
    assert incident.sentence == "Prompts are 3x longer since 00:00; 10.0% of requests miss the 2 s TTFT objective"
    (ended,) = group_incidents([replace(drift, ended_at=80.0)], [now], 90.0)
    assert ended.sentence.startswith("Prompts are 2x longer from 00:00 to 00:01; 50.0%")
    (brief,) = group_incidents([replace(drift, ended_at=50.0)], [now], 90.0)
    assert brief.sentence.startswith("Prompts are 2x longer at 00:00; 50.0%")


def idle(replicas: float) -> IdleReplicas:
    cost = {"cost_per_day": replicas * 48.0, "currency": "USD"}
    return IdleReplicas(replicas=replicas, ready=10, needed=1, minimum_warm=0, **cost)


def test_impact_names_replicas_and_money() -> None:
    trap = felt(finding("UtilizationTrap", 0.0), missed(0.5))
    (incident,) = group_incidents([replace(trap, worst=replace(trap.worst, idle=idle(2.5)))])
    assert (incident.idle, incident.replicas) == (idle(2.5), ())
    assert incident.missed is None, "a note is not the cause of what users feel"
    assert group_incidents([finding("TargetDown", 0.0, replica="b")])[0].replicas == ("b",)


def test_impact_ends_with_the_worst() -> None:
    ends = {0.1: None, 0.3: None, 0.2: None, 0.9: 70.0}
    found = []
    for share, end in ends.items():
        one = felt(finding("GpuXid", 0.0, end, replica=str(share)), missed(share))
        found.append(replace(one, worst=replace(one.worst, idle=idle(share * 10))))
    for known, share in ((found, 0.3), ([replace(one, ended_at=80.0) for one in found], 0.9)):
        incident = group_incidents(known)[0]
        assert (incident.missed, incident.idle) == (missed(share), idle(share * 10))


def test_relief_joins_page_and_root() -> None:
    drift, burn = finding("WorkloadDrift", 0.0), finding("TtftSloBurn", 600.0)
    (incident,) = group_incidents([drift, burn])
    assert (incident.action, incident.relief) == ("mend WorkloadDrift", "mend TtftSloBurn")
    assert [group_incidents(found)[0].relief for found in ([burn], [drift])] == ["", ""]
    for seconds, relief in ((NEAR_SECONDS, incident.relief), (NEAR_SECONDS + 1.0, "")):
        assert group_incidents([drift, replace(burn, ended_at=700.0)], now=700.0 + seconds)[0].relief == relief


def test_forecast_demand_is_not_arriving() -> None:
    burn, demand = finding("TtftSloBurn", 600.0), finding("DemandExceedsCapacity", 500.0, status=Status.WARNING)
    expected = replace(demand, worst=replace(demand.worst, is_forecast=True))
    root = replace(finding("WorkloadDrift", 0.0), subject=demand.subject)
    for one, words in ((demand, "more arrives than"), (expected, "more is expected than")):
        (incident,) = group_incidents([root, one, burn])
        assert f"{words} the fleet can serve" in incident.sentence
    for most in (8.9, 9.0):
        rates = {"observed": exact_reading(9.0, 60.0), "expected": range_reading(0.0, most, 60.0)}
        (incident,) = group_incidents([root, replace(demand, worst=replace(demand.worst, **rates)), burn])
        assert ("can serve" in incident.sentence) is (most < 9.0), "not if only the plan is outgrown"
    forecast = finding("ForecastDegraded", 0.0, status=Status.WARNING)
    note, incident = group_incidents([demand, forecast, burn])
    assert (note.root.rule, note.severity) == ("ForecastDegraded", Severity.REPORT)
    assert (incident.root.rule, list(incident.symptoms)) == ("DemandExceedsCapacity", ["TtftSloBurn"])
