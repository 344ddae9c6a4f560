"""A plan as a page, the difference of two plans and its exit code; a replay as text and as JSON."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import making
import pytest
import recorded
import yaml
from golden_text import check_golden
from judging_samples import START, context
from making import plan_document
from paths import TESTS
from report_samples import POINTS, TIER, plan

from agent.cli import main
from agent.config.files import load_plan
from agent.replay.replay import replay
from agent.sources.recording import load
from exporters.documents.plan_show import plan_diff, show
from exporters.documents.replay import ReplayResult, replay_json, replay_text
from exporters.render.terminal import WIDTH
from exporters.render.text import copy_fields
from rules.confidence import Certainty
from rules.plan.schema import Plan, parse_plan
from rules.telemetry.signals import Gap
from rules.verdicts.verdict import Cause, ClosedSpan, Finding, RuleState, Status, Subject, Unknown, UnknownSpan, Verdict

PLANS = TESTS / "plans"
NAMES = {"cpu-small": "cpu-small", "cpu-small-open": "cpu-small", "guide-h100": "h100-llama70b-fp8"}


def shown(name: str, **parts: Any) -> str:
    tiers = yaml.safe_load((PLANS / f"{name}.yaml").read_text(encoding="utf-8"))["tiers"]
    tiers[NAMES[name]] |= parts
    return show(parse_plan({"schema": 1, "tiers": tiers}), NAMES[name])


def shown_with(**parts: Any) -> str:
    return show(parse_plan(plan_document(**{"gpu": {"product": "A", "per_replica": 2}, **parts})), "t")


def fleet(warm: int) -> str:
    return shown_with(
        operating_point={"usable_rps": 3},
        workload={"requests_per_second": {"peak": 7}},
        fleet={"instances": 4, "safety_factor": 1.2, "minimum_warm": warm},
    )


def curve_of(*points: dict[str, Any]) -> str:
    return shown_with(curve={"points": list(points)})


GIVEN = {"operating_point": {"usable_rps": 3, "c_max": 9}, "workload": {"requests_per_second": {"peak": 7}}}
BOUNDED = {
    "operating_point": {"usable_rps": 3},
    "workload": {"prompt_tokens": {"p50": 900, "p95": 3800, "p99": 7200}, "generation_tokens": {"p50": 180}},
    "guardrails": {"max_prompt_tokens": 12000},
}
POINT, FLEET_SIZE, CURVE = "Operating point of one replica", "Fleet", "Measured curve of one replica"
SECTIONS = {
    "usable by production": (
        POINT,
        shown("guide-h100", operating_point={"usable_rps": 9.0, "source": "production"}),
    ),
    "too few requests": ("Findings", shown("cpu-small")),
    "curve to its highest load": (POINT, shown("cpu-small-open")),
    "nothing known": (POINT, shown_with(fleet={"instances": 1})),
    "one planned": (FLEET_SIZE, shown_with(fleet={"instances": 1})),
    "usable as given": (POINT, shown_with(**GIVEN)),
    "peak by usable": (FLEET_SIZE, shown_with(**GIVEN)),
    "lengths with bounds": (POINT, shown_with(**BOUNDED)),
    "four warm": (FLEET_SIZE, fleet(warm=4)),
    "one warm": (FLEET_SIZE, fleet(warm=1)),
    "points with gaps": (CURVE, curve_of({"completed_rps": 1.0, "tpot_p99_seconds": 0.02}, {"completed_rps": 2.0})),
    "censored point": (
        CURVE,
        curve_of(
            {"completed_rps": 2, "ttft_p99_seconds": 1}, {"completed_rps": 4, "ttft_p99_seconds": 9, "censored": True}
        ),
    ),
}


def test_page_explains_its_numbers() -> None:
    """13 replicas x 2760 tokens/s x 3600 s x 0.6 = 77.5008 million tokens for 130 USD."""
    texts = [shown("guide-h100")]
    for name, (heading, text) in SECTIONS.items():
        (section,) = (part for part in text.split("\n\n") if part.startswith(heading))
        texts.append(f"# {name}\n{section}")
    check_golden(__file__, "plan.txt", "\n\n".join(texts))
    assert CURVE not in shown_with(fleet={"instances": 1})


@pytest.mark.parametrize("name", NAMES)
def test_page_fits_the_terminal(name: str) -> None:
    assert max(map(len, shown(name).splitlines())) <= WIDTH


FLEET = TIER["fleet"]
FEWER = {**FLEET, "instances": 6}
LONGER = {**TIER["workload"], "prompt_tokens": {**TIER["workload"]["prompt_tokens"], "mean": 1000}}
SHORTER = {**TIER["workload"], "archetype": None, "prompt_tokens": {**TIER["workload"]["prompt_tokens"], "p95": None}}
BOTH = parse_plan({"schema": 1, "tiers": {"t": TIER, "u": TIER}})


def curve(points: Any) -> Plan:
    return plan(curve={"loop": "open", "points": list(points)})


DIFFERENCES = {
    "same": (plan(), plan()),
    "fewer": (plan(), plan(fleet=FEWER)),
    "more": (plan(), plan(fleet={**FLEET, "instances": 12})),
    "unpriced": (plan(cost=None), plan(cost=None, fleet=FEWER)),
    "shorter curve": (plan(), curve(POINTS[:3])),
    "other values": (plan(), curve({**point, "prompt_tokens_mean": 800} for point in POINTS)),
    "longer prompts": (plan(), plan(workload=LONGER)),
    "new tier": (plan(), BOTH),
    "gone tier": (BOTH, plan()),
    "new keys": (plan(fleet=None), plan(fleet={"instances": 10, "safety_factor": 1.2})),
    "missing keys": (plan(), plan(workload=SHORTER)),
}


def test_differences_have_a_line_each() -> None:
    lines = [f"# {name}: {line}" for name, plans in DIFFERENCES.items() for line in plan_diff(*plans) or ("none",)]
    check_golden(__file__, "plan_diff.txt", "\n".join(lines))


@pytest.mark.parametrize(
    ("instances", "code", "words"), [(10, 0, "The plans say the same."), (6, 1, "fleet instances: 10 -> 6")]
)
def test_command_exits_by_difference(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], instances: int, code: int, words: str
) -> None:
    for name, count in (("a", 10), ("b", instances)):
        whole = {"schema": 1, "tiers": {"t": {**TIER, "fleet": {"instances": count}}}}
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(whole), encoding="utf-8")
    assert main.main(["plan", "diff", str(tmp_path / "a.yaml"), str(tmp_path / "b.yaml")]) == code
    assert words in capsys.readouterr().out


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
