from typing import Any

import pytest

from rules.confidence import Certainty
from rules.evaluator.alert_state import (
    RESOLVED_KEPT_SECONDS,
    UNASKED_SECONDS,
    AlertKey,
    AlertState,
    Phase,
    restore_alerts,
    step_alerts,
)
from rules.telemetry.signals import Gap, Missing
from rules.verdicts import finding
from rules.verdicts.finding import Finding
from rules.verdicts.verdict import RuleResult, Status, Subject, Unknown, Verdict

SUBJECT = Subject(tier="t", replica="a")
KEY = AlertKey(rule="TtftDivergence", subject=SUBJECT)
OK, WARNING, CRITICAL = Status.OK, Status.WARNING, Status.CRITICAL
CERTAIN, LIKELY = Certainty.CERTAIN, Certainty.LIKELY


def result(status: Status, certainty: Certainty = CERTAIN, rule: str = KEY.rule, **more: Any) -> Verdict:
    missing = Missing(gap=Gap.NOT_IN_PLAN)
    usual = {"t": 0, "observed": missing, "expected": missing, "unit": "ratio", "sentence": status.value}
    return Verdict(rule=rule, subject=SUBJECT, status=status, certainty=certainty, **(usual | more))


GAP = Unknown(t=0, rule=KEY.rule, subject=SUBJECT, reason=Gap.SCRAPE_FAILED)


def after(*steps: tuple[float, list[RuleResult]]) -> dict[AlertKey, AlertState]:
    states: dict[AlertKey, AlertState] = {}
    for now, results in steps:
        states = step_alerts(states, results, now)
    return states


def test_a_certain_verdict_is_an_alert() -> None:
    state = after((10, [result(WARNING)]))[KEY]
    assert (state.phase, state.since, state.resolved_at, state.loudness) == (Phase.FIRING, 10, None, "ticket")
    assert state.verdict.sentence == "warning"


@pytest.mark.parametrize("made", [result(WARNING, LIKELY), result(CRITICAL, LIKELY), result(OK), GAP])
def test_nothing_else_begins_one(made: RuleResult) -> None:
    assert after((10, [made])) == {}


def test_it_is_one_alert_while_it_lasts() -> None:
    state = after((10, [result(WARNING)]), (20, [result(CRITICAL, sentence="worse")]))[KEY]
    assert (state.since, state.verdict.sentence) == (10, "worse")


@pytest.mark.parametrize("made", [[GAP], [], [result(WARNING, LIKELY)]])
def test_a_gap_or_a_doubt_is_no_recovery(made: list[RuleResult]) -> None:
    state = after((10, [result(WARNING)]), (20, made))[KEY]
    assert (state.phase, state.since) == (Phase.FIRING, 10)
    assert state.verdict.certainty is CERTAIN


@pytest.mark.parametrize("reason", [Gap.NOT_IN_PLAN, Gap.NOT_EXPOSED])
def test_a_question_that_is_not_there_any_more_ends_its_alert_after_a_while(reason: Gap) -> None:
    """Speculation was switched off, as its runbook advises; a restart's first pages may lack it too, for a while."""
    silent = Unknown(t=0, rule=KEY.rule, subject=SUBJECT, reason=reason)
    fired = (10.0, [result(WARNING, t=10.0)])
    assert after(fired, (10 + UNASKED_SECONDS, [silent]))[KEY].phase is Phase.FIRING
    over = after(fired, (11 + UNASKED_SECONDS, [silent]))[KEY]
    assert (over.phase, over.resolved_at) == (Phase.RESOLVED, 11 + UNASKED_SECONDS)
    assert after(fired, (5000, [GAP]))[KEY].phase is Phase.FIRING


def test_ok_resolves_it_and_it_is_told_for_fifteen_minutes() -> None:
    resolved = after((10, [result(WARNING)]), (20, [result(OK)]))
    assert (resolved[KEY].phase, resolved[KEY].resolved_at, resolved[KEY].since) == (Phase.RESOLVED, 20, 10)
    assert resolved[KEY].verdict.sentence == "warning"
    kept = step_alerts(resolved, [result(OK)], 20 + RESOLVED_KEPT_SECONDS)
    assert (kept[KEY].resolved_at, RESOLVED_KEPT_SECONDS) == (20, 900)
    assert step_alerts(kept, [result(OK)], 21 + RESOLVED_KEPT_SECONDS) == {}


def test_a_resolved_alert_that_comes_back_is_a_new_one() -> None:
    state = after((10, [result(WARNING)]), (20, [result(OK)]), (30, [result(WARNING)]))[KEY]
    assert (state.phase, state.since, state.resolved_at) == (Phase.FIRING, 30, None)
    doubt = after((10, [result(WARNING)]), (20, [result(OK)]), (30, [result(WARNING, LIKELY)]))[KEY]
    assert (doubt.phase, doubt.resolved_at) == (Phase.RESOLVED, 20)


def test_a_cascade_pages_only_when_it_is_critical() -> None:
    cascade = "KvCacheCascade"
    key = AlertKey(rule=cascade, subject=SUBJECT)
    assert after((10, [result(WARNING, rule=cascade, stage=2)]))[key].loudness == "ticket"
    assert after((10, [result(WARNING, rule=cascade)]), (20, [result(CRITICAL, rule=cascade)]))[key].loudness == "page"
    assert (
        after((10, [result(CRITICAL, rule="KvEviction")]))[AlertKey(rule="KvEviction", subject=SUBJECT)].loudness
        == "ticket"
    )


def test_each_rule_and_subject_has_its_own_alert() -> None:
    both = after((10, [result(WARNING), result(WARNING, rule="TpotDivergence")]), (20, [result(OK)]))
    assert {key.rule: state.phase for key, state in both.items()} == {
        "TtftDivergence": Phase.RESOLVED,
        "TpotDivergence": Phase.FIRING,
    }


def test_what_is_watched_no_more_is_resolved() -> None:
    firing = after((10, [result(WARNING)]))
    gone = step_alerts(firing, [], 20, {(KEY.rule, SUBJECT)})
    assert (gone[KEY].phase, gone[KEY].resolved_at) == (Phase.RESOLVED, 20)
    again = step_alerts(gone, [], 30, {(KEY.rule, SUBJECT)})
    assert again[KEY].resolved_at == 20


def test_an_alert_only_becomes_louder_while_it_lasts() -> None:
    cascade = AlertKey(rule="KvCacheCascade", subject=SUBJECT)
    steps = [(10.0, WARNING), (20.0, CRITICAL), (30.0, WARNING), (40.0, CRITICAL)]
    state = after(*((t, [result(status, rule=cascade.rule)]) for t, status in steps))[cascade]
    assert (state.loudness, state.since, state.louder_since) == ("page", 10, 20)
    at_once = after((10, [result(CRITICAL, rule=cascade.rule)]), (20, [result(WARNING, rule=cascade.rule)]))[cascade]
    assert (at_once.loudness, at_once.louder_since) == ("page", None)
    again = after((10, [result(CRITICAL, rule=cascade.rule)]), (20, [result(OK, rule=cascade.rule)]))
    assert step_alerts(again, [result(WARNING, rule=cascade.rule)], 30)[cascade].loudness == "ticket"


STEPS = [
    (10, result(WARNING, LIKELY, rule="KvCacheCascade", t=10)),
    (20, result(WARNING, rule="KvCacheCascade", t=20)),
    (30, result(CRITICAL, LIKELY, rule="KvCacheCascade", t=30)),
    (40, result(CRITICAL, rule="KvCacheCascade", t=40)),
    (50, result(WARNING, rule="KvCacheCascade", t=50)),
    (60, result(OK, rule="KvCacheCascade", t=60)),
]


@pytest.mark.parametrize("ended", range(1, len(STEPS) + 1))
def test_after_a_restart_the_states_are_those_that_the_episodes_stand_for(ended: int) -> None:
    states: dict[AlertKey, AlertState] = {}
    rule_state, over = None, []
    for now, made in STEPS[:ended]:
        states = step_alerts(states, [made], now)
        rule_state, gone = finding.step_rule_state(rule_state, made)
        over += gone
    assert rule_state is not None
    kept = [one for one in (*over, rule_state.finding) if isinstance(one, Finding)]
    found = restore_alerts(kept, 70)
    assert {k: _shape(v) for k, v in found.items()} == {k: _shape(v) for k, v in states.items()}


def _shape(state: AlertState) -> tuple[object, ...]:
    return state.phase, state.since, state.resolved_at, state.loudness, state.louder_since


def test_what_ended_long_ago_is_not_told_again_after_a_restart() -> None:
    rule_state, _ = finding.step_rule_state(None, result(WARNING, t=10))
    _, over = finding.step_rule_state(rule_state, result(OK, t=20))
    kept = [one for one in over if isinstance(one, Finding)]
    assert len(restore_alerts(kept, 20 + RESOLVED_KEPT_SECONDS)) == 1
    assert restore_alerts(kept, 21 + RESOLVED_KEPT_SECONDS) == {}
