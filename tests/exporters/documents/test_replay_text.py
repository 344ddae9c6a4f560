from pathlib import Path
from typing import Any

import recorded
from judging_samples import START, context

from agent.config.files import load_plan
from agent.replay.replay import replay
from agent.sources.recording import load
from exporters.documents.replay import WIDTH, not_exposed_text, replay_json, replay_text
from rules.confidence import Certainty
from rules.telemetry.signals import Gap, Missing
from rules.verdicts.finding import ClosedSpan, Finding, RuleState, Transition, UnknownSpan
from rules.verdicts.verdict import Cause, RuleResult, Status, Subject, Unknown, Verdict

MISSING = Missing(gap=Gap.NOT_IN_PLAN)
SUSPECT = Cause(cause="c", certainty=Certainty.CERTAIN, evidence=("first", "second"), against=("but",))


def verdict(status: Status = Status.OK, replica: str | None = None, rule: str = "KvEviction", **more: Any) -> Verdict:
    whole = {"observed": MISSING, "expected": MISSING, "unit": "ratio", "sentence": "so it is", **more}
    subject = Subject(tier="t", replica=replica)
    return Verdict(t=START, rule=rule, subject=subject, status=status, certainty=Certainty.CERTAIN, **whole)


def finding(ended_at: float | None = None, stages: tuple[int | None, ...] = (None,), **more: Any) -> Finding:
    worst = verdict(Status.CRITICAL, **more)
    changes = tuple(
        Transition(t=START + 60 * n, status=worst.status, stage=stage, certainty=worst.certainty)
        for n, stage in enumerate(stages, 1)
    )
    return Finding(
        rule=worst.rule,
        subject=worst.subject,
        started_at=START + 60,
        ended_at=ended_at,
        worst=worst,
        transitions=changes,
    )


def rule_state(result: RuleResult, open_episode: Finding | None = None) -> RuleState:
    span = None
    if isinstance(result, Unknown):
        span = UnknownSpan(
            rule=result.rule,
            subject=result.subject,
            reason=result.reason,
            text=result.text,
            started_at=START,
            ended_at=None,
        )
    return RuleState(result=result, finding=open_episode, unknown=span)


def unknown(rule: str, replica: str | None = None, text: str = "nothing there") -> Unknown:
    return Unknown(t=START, rule=rule, subject=Subject(tier="t", replica=replica), reason=Gap.NOT_EXPOSED, text=text)


def text(
    ended: tuple[ClosedSpan, ...] = (), rule_states: tuple[RuleState, ...] = (), end: float = START + 4000
) -> list[str]:
    return replay_text("name", START, end, {"t": context()}, ended, rule_states).splitlines()


def test_a_quiet_recording_says_so() -> None:
    assert text() == ["name: 1:06:40 of t", "", "Nothing was found."]


def test_a_recording_without_a_scrape_says_so() -> None:
    assert replay_text("name", float("nan"), float("nan"), {}, (), ()).splitlines() == [
        "name: holds no scrape",
        "",
        "Nothing was found.",
    ]


def test_an_episode_says_what_when_how_sure_why_and_what_to_do() -> None:
    actions = tuple(f"action {n}" for n in range(5))
    assert text((finding(START + 300, causes=(SUSPECT,), actions=actions),)) == [
        "name: 1:06:40 of t",
        "",
        "CRITICAL KvEviction (t), certain, from 1:00 to 5:00",
        "    so it is",
        "    cause (certain): first; second",
        "      but",
        "    do: action 0",
        "    do: action 1",
        "    do: action 2",
        "    runbook: docs/runbooks.md#kveviction",
    ]


def test_an_episode_that_lasts_says_so() -> None:
    found = rule_state(verdict(Status.CRITICAL), finding())
    assert "CRITICAL KvEviction (t), certain, from 1:00 and lasts" in text(rule_states=(found,))


def test_what_the_cut_last_minute_began_or_ended_is_told() -> None:
    lasts, over = finding(), finding(START + 300)
    for one, word in ((lasts, "began"), (over, "ended")):
        states = (rule_state(verdict(Status.CRITICAL), one),) if one is lasts else ()
        past = (one,) if one is over else ()
        said = replay_text("name", START, START + 300, {"t": context()}, past, states, of_cut_minute=(one,))
        line = f"    {word} with the last minute, which the end cuts: a running agent waits until it is over"
        assert line in said.splitlines()
        assert len(line) <= WIDTH
        told = {"rule": "KvEviction", "tier": "t", "replica": None, "change": word}
        assert replay_json((), {}, past, states, (), (one,))["cut_minute"] == [told]
    assert not [line for line in text((over,)) if "the end cuts" in line]


def test_stages_are_told_when_they_change() -> None:
    assert "    stages: 1 at 1:00, 3 at 2:00, 4 at 4:00" in text((finding(stages=(1, 3, 3, 4, 0)),))
    assert not [line for line in text((finding(),)) if "stages" in line]


def test_episodes_come_in_the_order_in_which_they_began() -> None:
    late = finding(rule="TargetDown")
    early = Finding(**{f: getattr(late, f) for f in late.__slots__} | {"started_at": START, "rule": "KvEviction"})
    heads = [line for line in text((late, early)) if line.startswith("CRITICAL")]
    assert ["KvEviction" in heads[0], "TargetDown" in heads[1]] == [True, True]


def test_what_is_fine_is_listed_unless_it_had_an_episode() -> None:
    fine = (rule_state(verdict(rule="KvEviction")), rule_state(verdict(rule="TargetDown", replica="a")))
    assert "  KvEviction (t), TargetDown (t/a): so it is" in text(rule_states=fine)
    ended = finding(START + 300)
    assert "  TargetDown (t/a): so it is" in text((ended,), fine)


def test_what_is_said_in_the_same_words_is_said_once() -> None:
    several = tuple(rule_state(verdict(rule="TargetDown", replica=name)) for name in "abc")
    assert "  TargetDown (t/a, t/b, t/c): so it is" in text(rule_states=several)
    gaps = (
        rule_state(unknown("TtftDivergence")),
        rule_state(unknown("TpotDivergence")),
        rule_state(unknown("KvEviction", text="")),
    )
    assert text(rule_states=gaps)[-3:] == [
        "Not judged:",
        "  TtftDivergence, TpotDivergence (t): not exposed (nothing there)",
        "  KvEviction (t): not exposed",
    ]


def test_no_line_of_a_real_recording_is_wider_than_the_page() -> None:
    for name in ("kv_cascade", "restart", "routing"):
        recording, _ = load(Path(recorded.folder(name)))
        found = replay(recording, load_plan(recorded.PLANS / "cpu-small.yaml"))
        lines = replay_text(
            found.name, found.start, found.end, found.contexts, found.ended, found.rule_states
        ).splitlines()
        assert max(len(line) for line in lines) <= WIDTH
        assert not [line for line in lines if line != line.rstrip()]


def test_what_an_engine_does_not_expose_is_told_by_tier() -> None:
    recording, problems = load(recorded.folder("llamacpp"))
    found = replay(recording, None, problems=problems)
    text = not_exposed_text({shown.tier: shown.window for shown in found.windows if shown.replica is None})
    words = " ".join(text.split())
    assert "cpu-llamacpp: ttft_p50_seconds, ttft_p99_seconds," in words
    for known in ("generation_tokens_per_second", "requests_running", "tpot_mean_seconds"):
        assert known not in words
    assert not_exposed_text({}) == ""
