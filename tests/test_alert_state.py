from typing import Any

import pytest

from rules.alert_state import RESOLVED_KEPT_SECONDS, AlertKey, AlertState, Phase, advance
from rules.signals import Gap, Missing
from rules.verdicts import Answer, Certainty, Status, Subject, Unknown, Verdict

SUBJECT = Subject(tier="t", replica="a")
KEY = AlertKey(rule="TtftDivergence", subject=SUBJECT)
OK, WARNING, CRITICAL = Status.OK, Status.WARNING, Status.CRITICAL
CERTAIN, LIKELY = Certainty.CERTAIN, Certainty.LIKELY


def answer(status: Status, certainty: Certainty = CERTAIN, rule: str = KEY.rule, **more: Any) -> Verdict:
    missing = Missing(gap=Gap.NOT_IN_PLAN)
    whole = {"observed": missing, "expected": missing, "unit": "ratio", "sentence": status.value, **more}
    return Verdict(t=0, rule=rule, subject=SUBJECT, status=status, certainty=certainty, **whole)


GAP = Unknown(t=0, rule=KEY.rule, subject=SUBJECT, reason=Gap.SCRAPE_FAILED)


def after(*steps: tuple[float, list[Answer]]) -> dict[AlertKey, AlertState]:
    states: dict[AlertKey, AlertState] = {}
    for now, answers in steps:
        states = advance(states, answers, now)
    return states


def test_a_certain_verdict_is_an_alert() -> None:
    state = after((10, [answer(WARNING)]))[KEY]
    assert (state.phase, state.since, state.resolved_at, state.loudness) == (Phase.FIRING, 10, None, "ticket")
    assert state.verdict.sentence == "warning"


@pytest.mark.parametrize("made", [answer(WARNING, LIKELY), answer(CRITICAL, LIKELY), answer(OK), GAP])
def test_nothing_else_begins_one(made: Answer) -> None:
    assert after((10, [made])) == {}


def test_it_is_one_alert_while_it_lasts() -> None:
    state = after((10, [answer(WARNING)]), (20, [answer(CRITICAL, sentence="worse")]))[KEY]
    assert (state.since, state.verdict.sentence) == (10, "worse")


@pytest.mark.parametrize("made", [[GAP], [], [answer(WARNING, LIKELY)]])
def test_a_gap_or_a_doubt_is_no_recovery(made: list[Answer]) -> None:
    state = after((10, [answer(WARNING)]), (20, made))[KEY]
    assert (state.phase, state.since) == (Phase.FIRING, 10)
    assert state.verdict.certainty is CERTAIN


def test_ok_resolves_it_and_it_is_told_for_fifteen_minutes() -> None:
    resolved = after((10, [answer(WARNING)]), (20, [answer(OK)]))
    assert (resolved[KEY].phase, resolved[KEY].resolved_at, resolved[KEY].since) == (Phase.RESOLVED, 20, 10)
    assert resolved[KEY].verdict.sentence == "warning"
    kept = advance(resolved, [answer(OK)], 20 + RESOLVED_KEPT_SECONDS)
    assert (kept[KEY].resolved_at, RESOLVED_KEPT_SECONDS) == (20, 900)
    assert advance(kept, [answer(OK)], 21 + RESOLVED_KEPT_SECONDS) == {}


def test_a_resolved_alert_that_comes_back_is_a_new_one() -> None:
    state = after((10, [answer(WARNING)]), (20, [answer(OK)]), (30, [answer(WARNING)]))[KEY]
    assert (state.phase, state.since, state.resolved_at) == (Phase.FIRING, 30, None)
    doubt = after((10, [answer(WARNING)]), (20, [answer(OK)]), (30, [answer(WARNING, LIKELY)]))[KEY]
    assert (doubt.phase, doubt.resolved_at) == (Phase.RESOLVED, 20)


def test_a_cascade_pages_only_when_it_is_critical() -> None:
    cascade = "KvCacheCascade"
    key = AlertKey(rule=cascade, subject=SUBJECT)
    assert after((10, [answer(WARNING, rule=cascade, stage=2)]))[key].loudness == "ticket"
    assert after((10, [answer(WARNING, rule=cascade)]), (20, [answer(CRITICAL, rule=cascade)]))[key].loudness == "page"
    assert (
        after((10, [answer(CRITICAL, rule="KvEviction")]))[AlertKey(rule="KvEviction", subject=SUBJECT)].loudness
        == "ticket"
    )


def test_each_rule_and_subject_has_its_own_alert() -> None:
    both = after((10, [answer(WARNING), answer(WARNING, rule="TpotDivergence")]), (20, [answer(OK)]))
    assert {key.rule: state.phase for key, state in both.items()} == {
        "TtftDivergence": Phase.RESOLVED,
        "TpotDivergence": Phase.FIRING,
    }


def test_what_is_watched_no_more_is_resolved() -> None:
    firing = after((10, [answer(WARNING)]))
    gone = advance(firing, [], 20, {(KEY.rule, SUBJECT)})
    assert (gone[KEY].phase, gone[KEY].resolved_at) == (Phase.RESOLVED, 20)
    again = advance(gone, [], 30, {(KEY.rule, SUBJECT)})
    assert again[KEY].resolved_at == 20
