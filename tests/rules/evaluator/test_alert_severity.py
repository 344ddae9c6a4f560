from typing import Any

import pytest

from rules.confidence import Certainty
from rules.evaluator.alert_severity import alert_severity, list_open_burns
from rules.telemetry.signals import Gap, Missing
from rules.verdicts.rule import Severity
from rules.verdicts.verdict import Status, Subject, Verdict, step_rule_state

SUBJECT = Subject(tier="t", replica="a")
OK, WARNING, CRITICAL = Status.OK, Status.WARNING, Status.CRITICAL
CERTAIN, LIKELY = Certainty.CERTAIN, Certainty.LIKELY


def result(status: Status, certainty: Certainty = CERTAIN, rule: str = "TtftDivergence", **more: Any) -> Verdict:
    missing = Missing(gap=Gap.NOT_IN_PLAN)
    usual = {"t": 0, "observed": missing, "expected": missing, "unit": "ratio", "sentence": status.value}
    return Verdict(rule=rule, subject=SUBJECT, status=status, certainty=certainty, **(usual | more))


@pytest.mark.parametrize(
    ("rule", "status", "severity"),
    [
        ("KvCacheCascade", WARNING, Severity.TICKET),
        ("KvCacheCascade", CRITICAL, Severity.PAGE),
        ("KvEviction", CRITICAL, Severity.TICKET),
    ],
)
def test_rule_pages_only_when_critical(rule: str, status: Status, severity: Severity) -> None:
    assert alert_severity(rule, status) is severity


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
