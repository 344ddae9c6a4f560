"""What goes to Alertmanager: labels that never change, annotations that say everything, times."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from test_alert_state import CRITICAL, LIKELY, OK, SUBJECT, WARNING, result

from exporters.alertmanager.payload import (
    OWN_LABELS,
    TICKET_AFTER_SECONDS,
    VALID_RESENDS,
    AlertPayload,
    AlertSettings,
    present,
    timestamp,
)
from rules.catalogue.registry import BY_NAME
from rules.evaluator.alert_state import RESOLVED_KEPT_SECONDS, AlertKey, AlertState, step_alerts
from rules.evaluator.external_alerts import Diagnosis, ExternalAlert
from rules.telemetry.signals import Reading
from rules.verdicts.rule import Severity
from rules.verdicts.verdict import Action, Cause, Status

T = 1_790_000_000.0
SETTINGS = AlertSettings(resend_seconds=60)
TICKET = next(rule.name for rule in BY_NAME.values() if rule.loudness is Severity.TICKET)
PAGE = "KvCacheCascade"


def states(*steps: tuple[float, Status], rule: str = TICKET, **more: Any) -> dict[AlertKey, AlertState]:
    found: dict[AlertKey, AlertState] = {}
    for after, status in steps:
        found = step_alerts(found, [result(status, rule=rule, **more)], T + after)
    return found


def posted(
    found: dict[AlertKey, AlertState], after: float = 0.0, settings: AlertSettings = SETTINGS
) -> tuple[AlertPayload, ...]:
    return present(found.values(), (), T + after, settings)


def test_an_alert_carries_labels_times_and_all_that_helps() -> None:
    cause = Cause(
        cause="longer prompts", certainty=LIKELY, evidence=("P95 900, 400 planned",), against=("few of them",)
    )
    reading = Reading(value=0.3, low=0.2, high=0.4, n=10)
    found = states(
        (0, WARNING),
        observed=reading,
        expected=reading,
        causes=(cause,),
        actions=(Action(text="Add one", runbook="x"),),
    )
    (one,) = posted(found, 30)
    rule = BY_NAME[TICKET]
    assert one.firing
    assert one.body == {
        "labels": {
            "alertname": TICKET,
            "tier": "t",
            "replica": "a",
            "severity": "warning",
            "loudness": "ticket",
            "source": "sizewatch",
        },
        "annotations": {
            "summary": f"{rule.title} in t/a",
            "description": f"warning. {rule.meaning}",
            "status": "warning, certain",
            "observed": "20.0% to 40.0%",
            "expected": "20.0% to 40.0%",
            "causes": "longer prompts (likely): P95 900, 400 planned (against it: few of them)",
            "actions": "Add one",
            "runbook_url": f"https://sizewatch.dev/runbooks#{TICKET.lower()}",
        },
        "startsAt": timestamp(T),
        "endsAt": timestamp(T + 30 + VALID_RESENDS * 60),
    }


def test_labels_are_the_same_whatever_the_alert_says() -> None:
    steps = [(0.0, WARNING), (60.0, CRITICAL), (120.0, WARNING)]
    seen = [posted(states(*steps[:count], sentence=f"{count} said"), 500)[0].body for count in (1, 2, 3)]
    assert len({str(body["labels"]) for body in seen}) == 1
    assert len({body["startsAt"] for body in seen}) == 1
    assert len({body["annotations"]["description"] for body in seen}) == 3


def test_what_a_configuration_adds_stands_beside_our_labels() -> None:
    settings = AlertSettings(
        external_labels={"cluster": "c", "tier": "other"}, external_url="http://sizewatch.example/"
    )
    (one,) = posted(states((0, WARNING)), settings=settings)
    assert one.body["labels"]["cluster"] == "c"
    assert one.body["labels"]["tier"] == "t"
    assert one.body["generatorURL"] == "http://sizewatch.example/"
    assert set(one.body["labels"]) - {"cluster"} <= OWN_LABELS


def test_one_that_is_resolved_says_when_and_keeps_its_annotations_for_fifteen_minutes() -> None:
    found = states((0, WARNING), (60, OK))
    (one,) = posted(found, 100)
    assert not one.firing
    assert (one.body["startsAt"], one.body["endsAt"]) == (timestamp(T), timestamp(T + 60))
    assert one.body["annotations"]["description"].startswith("warning.")
    assert posted(step_alerts(found, [], T + 61 + RESOLVED_KEPT_SECONDS), 61 + RESOLVED_KEPT_SECONDS) == ()


def test_one_that_ends_before_it_began_by_a_clock_that_went_back_ends_where_it_began() -> None:
    (state,) = states((0, WARNING), (60, OK)).values()
    (one,) = present([replace(state, resolved_at=T - 5)], (), T, SETTINGS)
    assert one.body["startsAt"] == one.body["endsAt"]


def test_a_page_at_once_or_soon_is_one_alert() -> None:
    for steps in (
        ((0.0, CRITICAL),),
        ((0.0, WARNING), (20.0, CRITICAL)),
        ((0.0, WARNING), (20.0, CRITICAL), (30.0, OK)),
    ):
        (one,) = posted(states(*steps, rule=PAGE), 1000)
        assert one.body["labels"]["severity"] == "critical"
        assert one.body["startsAt"] == timestamp(T + (20 if len(steps) > 1 else 0))


def test_a_rule_that_pages_is_a_ticket_while_it_lasts_as_one_and_the_ticket_stays_beside_the_page() -> None:
    waiting = states((0, WARNING), rule=PAGE)
    assert posted(waiting, TICKET_AFTER_SECONDS - 1) == ()
    (ticket,) = posted(waiting, TICKET_AFTER_SECONDS)
    assert ticket.body["labels"]["severity"] == "warning"
    both = posted(states((0, WARNING), (400, CRITICAL), (500, WARNING), rule=PAGE), 600)
    assert [(one.body["labels"]["severity"], one.body["startsAt"]) for one in both] == [
        ("warning", timestamp(T)),
        ("critical", timestamp(T + 400)),
    ]
    assert both[0].body["labels"] == ticket.body["labels"]
    over = posted(states((0, WARNING), (400, CRITICAL), (500, OK), rule=PAGE), 600)
    assert [one.firing for one in over] == [False, False]
    assert posted(states((0, WARNING), (100, OK), rule=PAGE), 600) == ()


def test_what_is_for_the_report_only_is_no_alert() -> None:
    (state,) = states((0, WARNING)).values()
    assert present([replace(state, loudness=Severity.REPORT.value)], (), T, SETTINGS) == ()


def test_halves_of_characters_are_replaced() -> None:
    (one,) = posted(states((0, WARNING), sentence="a\ud800b"))
    assert one.body["annotations"]["description"].startswith("a?b.")


FOREIGN = ExternalAlert(
    name="ApiLatencyHigh",
    labels=(("alertname", "ApiLatencyHigh"),),
    summary="",
    started_at=T,
    ended_at=None,
    heard_at=T,
    tier="t",
    diagnosis=Diagnosis(
        rule=PAGE,
        subject=SUBJECT,
        began_at=T - 360,
        certain=True,
        sentence="this latency alert: cascade, began earlier",
    ),
)


def test_an_explanation_of_an_alert_of_others_goes_out_for_information() -> None:
    (one,) = present((), (FOREIGN,), T + 10, SETTINGS)
    assert one.body["labels"] == {
        "alertname": "ForeignAlertDiagnosis",
        "tier": "t",
        "severity": "info",
        "loudness": "report",
        "foreign_alertname": "ApiLatencyHigh",
        "source": "sizewatch",
    }
    assert one.body["annotations"]["summary"] == "ApiLatencyHigh in t: this latency alert: cascade, began earlier"
    assert one.body["annotations"]["runbook_url"].endswith("#kvcachecascade")
    assert set(one.body["labels"]) <= OWN_LABELS


@pytest.mark.parametrize(
    "changed",
    [
        replace(FOREIGN, diagnosis=None),
        replace(FOREIGN, diagnosis=replace(FOREIGN.diagnosis, certain=False)),  # type: ignore[type-var]
        replace(FOREIGN, tier=None),
        replace(FOREIGN, ended_at=T - 1000),
    ],
)
def test_without_a_certain_explanation_nothing_goes_out(changed: ExternalAlert) -> None:
    assert present((), (changed,), T, SETTINGS) == ()


def test_of_two_alerts_of_others_with_one_name_the_one_that_fires_is_told() -> None:
    over = replace(FOREIGN, ended_at=T + 1)
    for several in ((over, FOREIGN), (FOREIGN, over)):
        (one,) = present((), several, T + 10, SETTINGS)
        assert one.firing


def test_a_time_is_cut_to_milliseconds() -> None:
    assert timestamp(1_790_000_000.9999) == "2026-09-21T14:13:20.999Z"
