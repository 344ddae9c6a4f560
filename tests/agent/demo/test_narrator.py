"""What the demo says of its findings, and that it is readable in a narrow terminal."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agent.cli.terminal import highlight
from agent.demo.runner import NARROWEST, WIDEST, DemoConsole, terminal_width
from rules.confidence import Certainty
from rules.telemetry.signals import Gap, Missing
from rules.verdicts.finding import Finding, RuleState, Transition
from rules.verdicts.verdict import Action, Status, Subject, Verdict

T = 1_800_000_000.0
SENTENCE = "KV cache 97% full and 5 requests waiting. First suspect: prompts are longer than planned"


def finding(
    started: float = 45.0,
    told: float | None = None,
    stage: int | None = 1,
    status: Status = Status.WARNING,
    certainty: Certainty = Certainty.LIKELY,
    rule: str = "KvCacheCascade",
    ended: float | None = None,
) -> Finding:
    worst = Verdict(
        t=T + (started if told is None else told),
        rule=rule,
        subject=Subject(tier="cascade", replica="cascade-0"),
        status=status,
        certainty=certainty,
        observed=Missing(gap=Gap.NOT_IN_PLAN),
        expected=Missing(gap=Gap.NOT_IN_PLAN),
        unit="ratio",
        sentence=SENTENCE,
        stage=stage,
        actions=(Action(text="Shed or reroute load now", runbook=rule),),
    )
    change = Transition(t=worst.t, status=status, stage=stage, certainty=certainty)
    return Finding(
        rule=rule,
        subject=worst.subject,
        started_at=T + started,
        ended_at=None if ended is None else T + ended,
        worst=worst,
        transitions=(change,),
    )


class Told:
    """A narrator and what it said, a text each time."""

    def __init__(self, width: int = WIDEST) -> None:
        self.said: list[str] = []
        self.narrator = DemoConsole(T, width, self.said.append)
        self._ended: list[Finding] = []

    def hear(self, *opened: Finding, ended: Finding | None = None) -> list[str]:
        """Only what is new; as the daemon's, the episodes that ended stay in the list."""
        if ended is not None:
            self._ended.append(ended)
        before = len(self.said)
        self.narrator.show_findings([RuleState(result=e.worst, finding=e) for e in opened], self._ended)
        return self.said[before:]


def test_a_finding_is_told_once_with_its_time_its_sentence_and_what_to_do() -> None:
    told = Told()
    assert told.hear(finding()) == [
        "  0:45  LIKELY KvCacheCascade in cascade/cascade-0, stage 1 (filling)",
        f"        {SENTENCE}",
        "        do: Shed or reroute load now",
    ]
    assert told.hear(finding()) == []
    assert told.hear(finding(told=47.0)) == [], "the same at a later turn is nothing new"


def test_a_step_for_the_worse_is_told_with_its_sentence_and_more_certainty_without() -> None:
    told = Told()
    told.hear(finding())
    worse = finding(told=60.0, stage=3, status=Status.CRITICAL)
    assert told.hear(worse) == [
        "  1:00  LIKELY KvCacheCascade now in cascade/cascade-0, stage 3 (queueing)",
        f"        {SENTENCE}",
    ]
    certain = finding(told=75.0, stage=3, status=Status.CRITICAL, certainty=Certainty.CERTAIN)
    assert told.hear(certain) == [
        "  1:15  CRITICAL KvCacheCascade now in cascade/cascade-0, stage 3 (queueing), certain"
    ]


def test_what_is_over_is_told_once_with_how_long_it_took_and_only_if_it_was_told() -> None:
    told = Told()
    told.hear(finding())
    assert told.hear(ended=finding(ended=240.0)) == ["  4:00  OVER KvCacheCascade in cascade/cascade-0, after 3:15"]
    assert told.hear() == []
    assert told.hear(ended=finding(rule="KvEviction", ended=250.0)) == []


def test_an_episode_that_follows_at_once_is_told_as_another() -> None:
    told = Told()
    told.hear(finding())
    said = told.hear(finding(started=300.0), ended=finding(ended=299.0))
    assert [line.split()[1] for line in said if not line.startswith("        ")] == ["OVER", "LIKELY"]


@pytest.mark.parametrize("width", [NARROWEST, 56, 79, WIDEST])
def test_no_line_is_wider_than_the_terminal_and_all_but_the_first_are_indented(width: int) -> None:
    told = Told(width)
    told.hear(finding(), replace(finding(rule="TtftDivergence"), subject=Subject(tier="noisy")))
    for text in told.said:
        first, *rest = text.split("\n")
        assert all(len(line) <= width for line in (first, *rest))
        assert all(line.startswith("        ") for line in rest)


def test_the_severity_is_where_the_terminal_colours_it() -> None:
    told = Told()
    told.hear(finding(certainty=Certainty.CERTAIN))
    told.hear(ended=finding(ended=240.0))
    assert "\033[33m\033[1mWARNING\033[0m" in highlight(told.said[0])
    assert "\033[32m\033[1mOVER\033[0m" in highlight(told.said[-1])


def test_a_recording_that_begins_anew_is_told_once() -> None:
    told = Told()
    for rounds in ({"quiet": 0}, {"quiet": 1}, {"quiet": 1}, {"quiet": 2}):
        told.narrator.show_rounds(T + 250, rounds)
    assert told.said == ["  4:10  quiet: the recording begins anew, as an engine that restarts"] * 2


def test_the_paper_is_that_of_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for columns, width in (("20", NARROWEST), ("80", 79), ("300", WIDEST)):
        monkeypatch.setenv("COLUMNS", columns)
        assert terminal_width() == width
