"""What the demo prints of findings."""

from dataclasses import replace

import making
import pytest

from agent.demo.runner import DemoConsole
from rules.confidence import Certainty
from rules.evaluator.observation import StepResult
from rules.verdicts.verdict import Finding, Status, Subject, Transition

T = 1_800_000_000.0
SENTENCE = "KV cache 97% full and 5 requests waiting. First suspect: prompts are longer than planned"


def finding(rule: str = "KvCacheCascade", stage: int = 1) -> Finding:
    parts = {"subject": Subject(tier="cascade", replica="cascade-0"), "certainty": Certainty.LIKELY, "stage": stage}
    actions = ("Shed or reroute load now",)
    return making.finding(making.verdict(rule, t=T + 45.0, sentence=SENTENCE, actions=actions, **parts))


def printed(capsys: pytest.CaptureFixture[str], change: Finding) -> list[str]:
    DemoConsole(T, lambda: None).accept(StepResult(now=T, tiers={}, changed=(change,)))
    return capsys.readouterr().out.splitlines()


def test_finding_prints_time_sentence_and_action(capsys: pytest.CaptureFixture[str]) -> None:
    first = finding()
    assert printed(capsys, first) == [
        "  0:45  LIKELY KvCacheCascade in cascade/cascade-0, stage 1 (filling)",
        f"        {SENTENCE}",
        "        do: Shed or reroute load now",
    ]
    worst = replace(first.worst, t=T + 60.0, stage=3, status=Status.CRITICAL, certainty=Certainty.CERTAIN)
    change = Transition(t=worst.t, status=worst.status, stage=3, certainty=worst.certainty)
    worse = replace(first, worst=worst, transitions=(*first.transitions, change))
    head = "  1:00  CRITICAL KvCacheCascade in cascade/cascade-0, stage 3 (queueing), certain"
    assert printed(capsys, worse)[0] == head
    assert printed(capsys, finding("UtilizationTrap")) == [], "a rule of reports is not printed"
