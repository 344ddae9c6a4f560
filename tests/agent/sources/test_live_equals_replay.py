"""The same pages through the live loop and through replay: the same findings at the same minutes, wherever minutes begin."""

from dataclasses import replace
from pathlib import Path

import pytest
import recorded
from live_runs import cycle_times, lay, live_findings
from thinned import plan_of

from agent.replay.replay import Replay, replay
from agent.sources.recording import Recording, load
from rules.catalogue.registry import BY_NAME
from rules.telemetry.windows import MINUTE_SECONDS
from rules.verdicts.verdict import Finding

MINUTE = 1_795_200_000.0
"""The begin of a minute (unix seconds)."""

PHASES = (0.0, 7.0, 33.0, 52.0)
"""Seconds after a minute's begin at which a recording is laid."""

LAYINGS = range(0, 60, 5)

SCRAPE_SECONDS = 5.0

SILENCE = {"TargetDown", "TierDown", "EngineStalled", "TelemetryStale"}
"""Rules that say that nothing answers."""


def told(findings: list[Finding]) -> list[tuple[str, str, int, str, int | None]]:
    """Rule, subject, minute of the begin, worst status and minute of the end."""
    return sorted(
        (
            one.rule,
            str(one.subject),
            int(one.started_at // MINUTE_SECONDS),
            one.worst.status.value,
            None if one.ended_at is None else int(one.ended_at // MINUTE_SECONDS),
        )
        for one in findings
    )


def all_of(result: Replay) -> list[Finding]:
    ended = [one for one in result.ended if isinstance(one, Finding)]
    return ended + [state.finding for state in result.rule_states if state.finding is not None]


def without_cut_minute(result: Replay) -> list[Finding]:
    """The findings as they were before the last minute, which is not over, was judged."""
    return [
        replace(one, ended_at=None) if one in result.of_cut_minute else one
        for one in all_of(result)
        if one not in result.of_cut_minute or one.ended_at is not None
    ]


def replayed(folder: Path) -> tuple[Recording, Replay]:
    recording, problems = load(folder)
    assert not problems
    return recording, replay(recording, plan_of(recording))


def assert_same(folder: Path) -> list[Finding]:
    recording, result = replayed(folder)
    live = live_findings(folder, dict(result.contexts), cycle_times(recording))
    assert told(live) == told(without_cut_minute(result))
    return live


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("name", ["kv_cascade", "restart", "mixed_tier"])
def test_live_equals_replay_at_each_phase(name: str, phase: float, tmp_path: Path) -> None:
    assert assert_same(lay(recorded.folder(name), MINUTE + phase, tmp_path))


@pytest.mark.parametrize("name", sorted({*recorded.names()} - {"kv_cascade", "restart", "mixed_tier"}))
def test_live_equals_replay_for_all_recordings(name: str) -> None:
    assert_same(recorded.folder(name))


def test_staggered_replicas_are_judged_together(tmp_path: Path) -> None:
    """After each scrape, the tier would be judged by the minute of its first replica before the others close theirs."""
    folder = lay(recorded.folder("routing"), MINUTE, tmp_path, apart=1.5)
    recording, result = replayed(folder)
    over = set(cycle_times(recording))
    assert {change.t for one in all_of(result) for change in one.transitions} <= over


def begins(name: str, into: Path) -> dict[str, list[float]]:
    """Of each rule, how long after the first scrape it begins, for every laying that finds it."""
    found: dict[str, list[float]] = {}
    for phase in LAYINGS:
        _, result = replayed(lay(recorded.folder(name), MINUTE + phase, into))
        first: dict[str, float] = {}
        for one in without_cut_minute(result):
            first[one.rule] = min(first.get(one.rule, one.started_at), one.started_at)
        for rule, t in first.items():
            found.setdefault(rule, []).append(t - result.start)
    return found


@pytest.mark.parametrize(
    ("name", "sometimes", "most"),
    [
        ("kv_cascade", {"QueueGrowing"}, MINUTE_SECONDS),
        ("restart", set[str](), MINUTE_SECONDS),
        ("routing", set[str](), 2 * MINUTE_SECONDS + SCRAPE_SECONDS),
    ],
)
def test_minute_phase_moves_minute_rules_only(name: str, sometimes: set[str], most: float, tmp_path: Path) -> None:
    """docs/readings.md, "Live and replay", has the bounds."""
    found = begins(name, tmp_path)
    assert {rule for rule, several in found.items() if len(several) < len(LAYINGS)} == sometimes
    for rule, several in found.items():
        assert max(several) - min(several) < (0.1 if BY_NAME[rule].per_scrape else most), rule


@pytest.mark.parametrize("name", ["mixed_tier", "routing", "specdecode"])
def test_cut_minute_is_found_live_later(name: str) -> None:
    folder = recorded.folder(name)
    recording, result = replayed(folder)
    early = {one.rule for one in result.of_cut_minute if one.ended_at is None}
    assert early
    over = (result.end // MINUTE_SECONDS + 1) * MINUTE_SECONDS
    times = [*cycle_times(recording), over + 3.0, over + 8.0]
    live = live_findings(folder, dict(result.contexts), times)
    late = [one for one in live if one.started_at > result.end and one.rule not in SILENCE]
    assert {one.rule for one in late} == early
    assert {one.started_at // MINUTE_SECONDS * MINUTE_SECONDS for one in late} == {over}
