import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import making
import pytest
import recorded
from golden_text import check_golden
from judging_samples import START, context

from agent.config.files import load_plan
from agent.replay.replay import replay
from agent.sources.recording import load
from exporters.documents.replay import ReplayResult, replay_json, replay_text
from exporters.render.terminal import WIDTH
from exporters.render.text import copy_fields
from rules.confidence import Certainty
from rules.telemetry.signals import Gap
from rules.verdicts.verdict import (
    Cause,
    ClosedSpan,
    Finding,
    RuleState,
    Status,
    Subject,
    Unknown,
    UnknownSpan,
    Verdict,
)

SUSPECT = Cause(cause="c", certainty=Certainty.CERTAIN, evidence=("first", "second"), against=("but",))


def fine(rule: str = "KvEviction", replica: str | None = None, status: Status = Status.OK, **more: Any) -> Verdict:
    return making.verdict(rule, replica, START, status=status, sentence="so it is", **more)


def finding(ended_at: float | None = None, stages: tuple[int | None, ...] = (None,), **more: Any) -> Finding:
    first = making.finding(fine(status=Status.CRITICAL, **more), started_at=START + 60, ended_at=ended_at)
    (change,) = first.transitions
    changes = tuple(replace(change, t=START + 60 * n, stage=stage) for n, stage in enumerate(stages, 1))
    return replace(first, transitions=changes)


def unknown(rule: str, text: str = "nothing there") -> RuleState:
    fields: Any = {"rule": rule, "subject": Subject(tier="t"), "reason": Gap.NOT_EXPOSED, "text": text}
    span = UnknownSpan(started_at=START, ended_at=None, **fields)
    return RuleState(result=Unknown(t=START, **fields), unknown=span)


def result(ended: tuple[ClosedSpan, ...] = (), rule_states: tuple[RuleState, ...] = (), **more: Any) -> ReplayResult:
    fields = {"name": "name", "start": START, "end": START + 4000, "contexts": {"t": context()}} | more
    return ReplayResult(ended=ended, rule_states=rule_states, **fields)


ACTIONS = tuple(f"action {n}" for n in range(5))
EXPLAINED = finding(START + 300, causes=(SUSPECT,), actions=ACTIONS, stages=(1, 3, 3, 4, 0))
LASTS, OVER = finding(), finding(START + 300)
FINE = (RuleState(result=fine()), RuleState(result=fine("TargetDown", "a")))
MERGED = (
    *(RuleState(result=fine("TargetDown", name)) for name in "abc"),
    *(unknown(name) for name in ("TtftDivergence", "TpotDivergence")),
    unknown("KvEviction", ""),
)
SHOWN = {
    "quiet": result(),
    "unseen": result(seen=False),
    "empty": result(start=math.nan, end=math.nan),
    "explained": result((EXPLAINED,)),
    "lasting": result(
        rule_states=(RuleState(result=fine(status=Status.CRITICAL), finding=LASTS),), of_cut_minute=(LASTS,)
    ),
    "ended": result((OVER,), FINE, of_cut_minute=(OVER,)),
    "merged": result(rule_states=MERGED),
}


def test_replay_prints_its_golden_text() -> None:
    text = "".join(f"# {name}\n{replay_text(shown)}\n\n" for name, shown in SHOWN.items())
    check_golden(__file__, "replay.txt", text)


@pytest.mark.parametrize(("cut", "change"), [(LASTS, "began"), (OVER, "ended")])
def test_cut_minute_is_listed_for_programs(cut: Finding, change: str) -> None:
    expected = {"rule": "KvEviction", "tier": "t", "replica": None, "change": change}
    assert replay_json(result(of_cut_minute=(cut,)))["cut_minute"] == [expected]


def test_findings_are_sorted_by_begin() -> None:
    late = finding(rule="TargetDown")
    early = replace(late, started_at=START, rule="KvEviction")
    assert [f.rule for f in result((late, early)).findings] == ["KvEviction", "TargetDown"]


@pytest.mark.parametrize("name", ["kv_cascade", "restart", "routing"])
def test_replay_lines_fit_the_terminal(name: str) -> None:
    recording, _ = load(Path(recorded.folder(name)))
    replayed = replay(recording, load_plan(recorded.PLANS / "cpu-small.yaml"))
    fields = ("name", "start", "end", "contexts", "ended", "rule_states", "windows", "of_cut_minute")
    lines = replay_text(ReplayResult(**copy_fields(replayed, *fields))).splitlines()
    assert max(map(len, lines)) <= WIDTH
    assert [line for line in lines if line != line.rstrip()] == []
