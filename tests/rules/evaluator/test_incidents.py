"""Findings of one cause are one incident: by the catalogue, in one tier, in time."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rules.catalogue.registry import BY_NAME, RULES, upstream_rules
from rules.confidence import Certainty
from rules.evaluator.incidents import FLAP_SECONDS, _is_linked, group_incidents, is_explained
from rules.telemetry.signals import Gap, Missing
from rules.verdicts.finding import Finding, Transition
from rules.verdicts.rule import Severity
from rules.verdicts.verdict import Action, Status, Subject, Verdict

NOTHING = Missing(gap=Gap.NO_TRAFFIC)


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
    subject = Subject(tier=tier, replica=replica)
    verdict = Verdict(
        t=start,
        rule=rule,
        subject=subject,
        status=status,
        certainty=certainty,
        observed=NOTHING,
        expected=NOTHING,
        unit="ratio",
        sentence=f"{rule} is seen",
        actions=(Action(text=f"mend {rule}", runbook=rule),),
    )
    changes = (Transition(t=start, status=status, stage=None, certainty=certainty),)
    return Finding(rule=rule, subject=subject, started_at=start, ended_at=end, worst=verdict, transitions=changes)


CASCADE = (
    finding("KvCacheCascade", 85.0, 275.0, replica="a"),
    finding("KvEviction", 170.0, 330.0),
    finding("LoadBeyondBenchmark", 230.0, 290.0, status=Status.WARNING, certainty=Certainty.LIKELY),
    finding("WorkloadDrift", 231.0, 330.0, status=Status.WARNING),
    finding("TtftTail", 235.0),
    finding("TtftSloBurn", 290.0),
)


def test_a_cascade_is_one_incident_whose_root_is_what_began_it() -> None:
    (incident,) = group_incidents(CASCADE)
    assert incident.root.rule == "WorkloadDrift"
    assert incident.severity is Severity.PAGE
    assert (incident.started_at, incident.ended_at) == (85.0, None)
    assert [one.rule for one in incident.symptoms][:2] == ["KvCacheCascade", "KvEviction"]
    assert (incident.sentence, incident.action) == ("WorkloadDrift is seen", "mend WorkloadDrift")


def test_the_root_is_refined_as_evidence_comes_and_the_id_stays() -> None:
    roots = [group_incidents(CASCADE[:n])[0] for n in range(1, len(CASCADE) + 1)]
    assert [one.root.rule for one in roots] == [
        *("KvCacheCascade", "KvCacheCascade", "LoadBeyondBenchmark"),
        *["WorkloadDrift"] * 3,
    ]
    assert len({one.id for one in roots}) == 1


def test_a_finding_that_outlives_its_root_keeps_the_id() -> None:
    ended = [replace(one, ended_at=one.ended_at or 900.0) for one in CASCADE]
    later = [*ended[:-1], CASCADE[-1]]
    assert group_incidents(later)[0].id == group_incidents(CASCADE)[0].id
    assert group_incidents(later)[0].ended_at is None
    assert group_incidents(ended)[0].ended_at == 900.0


def test_what_comes_back_soon_is_the_same_incident() -> None:
    first, soon = finding("KvEviction", 0.0, 100.0), finding("KvEviction", 100.0 + FLAP_SECONDS, None)
    late = finding("KvEviction", 101.0 + FLAP_SECONDS, None)
    assert len(group_incidents([first, soon])) == 1
    assert len(group_incidents([first, late])) == 2


def test_replicas_that_show_the_same_are_one_incident() -> None:
    lost = [finding("TargetDown", 10.0 * n, 100.0, replica=f"r{n}") for n in range(5)]
    (incident,) = group_incidents(lost)
    assert incident.root.subject.replica == "r0"
    assert len(group_incidents([*lost, finding("TargetDown", 0.0, 90.0, tier="other", replica="r0")])) == 2


def test_a_cause_too_long_ago_explains_nothing() -> None:
    cause = finding("KvCacheCascade", 0.0, 100.0, replica="a")
    assert is_explained(finding("KvEviction", 1000.0), cause)
    assert not is_explained(finding("KvEviction", 1001.0), cause)
    assert not is_explained(cause, finding("KvEviction", 50.0))


def test_a_replica_does_not_explain_another_one() -> None:
    lost = finding("TargetDown", 0.0, replica="a")
    assert is_explained(finding("KvCacheCascade", 10.0, replica="a"), lost)
    assert not is_explained(finding("KvCacheCascade", 10.0, replica="b"), lost)
    assert not is_explained(finding("QueueGrowing", 10.0, tier="other"), lost)


def test_what_is_only_likely_or_of_the_report_is_a_note() -> None:
    likely = finding("QueueGrowing", 0.0, certainty=Certainty.LIKELY)
    note = finding("UtilizationTrap", 0.0)
    warning = finding("TtftSloBurn", 0.0, tier="other", status=Status.WARNING)
    found = {one.root.rule: one.severity for one in group_incidents([likely, note, warning])}
    assert found == {
        "QueueGrowing": Severity.REPORT,
        "UtilizationTrap": Severity.REPORT,
        "TtftSloBurn": Severity.TICKET,
    }


def test_a_rule_that_was_removed_is_a_note_of_its_own() -> None:
    old = finding("OldRule", 0.0)
    found = group_incidents([old, *CASCADE])
    assert (found[0].root.rule, found[0].severity) == ("OldRule", Severity.REPORT)


def test_the_catalogue_has_no_circle_and_names_rules_that_exist() -> None:
    table = {rule.name: [one.rule for one in rule.explained_by] for rule in RULES}
    assert {name for names in table.values() for name in names} <= BY_NAME.keys()
    assert all(len(set(names)) == len(names) for names in table.values())
    assert upstream_rules(RULES).keys() == BY_NAME.keys()


@pytest.mark.parametrize("rule", ["TtftSloBurn", "TpotSloBurn", "AvailabilityBurn"])
def test_what_users_feel_is_explained_by_the_cascade_and_by_lost_replicas(rule: str) -> None:
    upstream = {one.rule for one in BY_NAME[rule].explained_by}
    assert {"KvCacheCascade", "TargetDown", "TierDown", "WorkloadDrift", "LoadBeyondBenchmark"} <= upstream


RULES_DRAWN = st.sampled_from([rule.name for rule in RULES])
FINDINGS = st.lists(
    st.builds(
        lambda rule, start, length, replica, tier: finding(
            rule, start, None if length is None else start + length, replica=replica, tier=tier
        ),
        RULES_DRAWN,
        st.integers(0, 20_000).map(float),
        st.none() | st.integers(0, 4000).map(float),
        st.sampled_from([None, "a", "b"]),
        st.sampled_from(["chat", "batch"]),
    ),
    max_size=14,
)


@given(FINDINGS, st.randoms(use_true_random=False))
def test_any_order_of_arrival_gives_the_same_incidents(findings: list[Finding], random: object) -> None:
    shuffled = list(findings)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert group_incidents(shuffled) == group_incidents(findings)


@given(FINDINGS)
def test_every_finding_is_in_exactly_one_incident_of_its_tier(findings: list[Finding]) -> None:
    incidents = group_incidents(findings)
    members = [one for incident in incidents for one in incident.findings]
    assert sorted(map(repr, members)) == sorted(map(repr, findings))
    assert all({one.subject.tier for one in incident.findings} == {incident.tier} for incident in incidents)
    assert all(incident.root in incident.findings for incident in incidents)


@given(FINDINGS)
def test_incidents_of_a_longer_past_join_and_never_split(findings: list[Finding]) -> None:
    ordered = sorted(findings, key=lambda one: one.started_at)
    before = group_incidents(ordered[:-1])
    after = group_incidents(ordered)
    for incident in before:
        homes = [one for one in after if incident.findings[0] in one.findings]
        assert len({one.id for one in homes}) == 1
        assert all(one in homes[0].findings for one in incident.findings)


@given(FINDINGS)
def test_incidents_are_the_connected_findings(findings: list[Finding]) -> None:
    """Against the plain definition: whatever is linked, through however many others, is together."""
    homes = [{n} for n in range(len(findings))]
    for n, one in enumerate(findings):
        for m, other in enumerate(findings[:n]):
            if _is_linked(one, other) and homes[n] is not homes[m]:
                homes[m] |= homes[n]
                for k in homes[n]:
                    homes[k] = homes[m]
    expected = {frozenset(id(findings[k]) for k in home) for home in homes}
    assert {frozenset(map(id, one.findings)) for one in group_incidents(findings)} == expected
