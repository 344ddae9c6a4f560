"""What survives which scrape interval: our recordings with fewer scrapes, against the clients and against 15 s."""

import atexit
import csv
import functools
import gzip
import json
import math
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

import pytest
import recorded
from paths import SHARED
from recorded import findings

from agent.cli import main
from agent.config.files import load_plan
from agent.replay import replay as replaying
from agent.replay.replay import replay
from agent.sources.recording import Recording, load
from rules.confidence import Certainty
from rules.evaluator.observation import Observation
from rules.plan.schema import Plan
from rules.telemetry import gauges
from rules.telemetry.gauges import IN_SYSTEM_BY_LITTLE, STEP_GAUGES
from rules.telemetry.signals import Gap
from rules.verdicts.verdict import FIRING, Finding, RuleResult, Status, Subject, Verdict

Answers = Mapping[tuple[str, Subject], RuleResult]

LATE_SECONDS = 0.5
"""A scrape this much before it is due is the one that is due: the recorder's clock is no metronome."""


def thin(name: str, seconds: float, into: Path) -> Path:
    """A folder with the recording as an agent that scrapes every so many seconds would have made it."""
    made = into / f"{name}-{seconds:g}"
    shutil.copytree(recorded.folder(name), made)
    for path in made.glob("*.jsonl.gz"):
        kept: list[str] = []
        due = float("-inf")
        with gzip.open(path, "rt") as lines:
            for line in lines:
                t = json.loads(line)["t"]
                if t >= due - LATE_SECONDS:
                    kept.append(line)
                    due = t + seconds
        with gzip.open(path, "wt", compresslevel=1) as file:
            file.writelines(kept)
    return made


def plan_of(recording: Recording) -> Plan | None:
    """The plan that has all of its tiers; None where there is none."""
    tiers = {target.tier for target in recording.targets}
    plans = (load_plan(recorded.PLANS / name) for name in ("cpu-small.yaml", "mixed-tier.yaml"))
    return next((plan for plan in plans if tiers <= plan.tiers.keys()), None)


def judge(folder: Path) -> list[tuple[float, Answers]]:
    """What stood after each scrape of a recording, with its time."""
    kept: list[tuple[float, Answers]] = []

    class Keeping(replaying.Replay):
        def evaluate(self, observation: Observation) -> None:
            super().evaluate(observation)
            kept.append((observation.now, {key: state.result for key, state in self.state.rules.items()}))

    recording, _ = load(folder)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(replaying, "Replay", Keeping)
        replaying.replay(recording, plan_of(recording))
    return kept


NAMES = recorded.names()
USUAL = 15.0
SPARSE = (60.0, 120.0, 300.0)

OF_PAGES = {"TargetDown", "EngineStalled", "TelemetryStale", "TierDown", "UnknownTooLong"}
"""What these say is of the page itself, at the moment of the scrape."""

MOVED_SECONDS = 120.0
"""An answer that comes or goes with one scrape more or less of those that are far apart is late, not false."""


@functools.cache
def scratch() -> Path:
    """One folder for all of this run; it goes with the process."""
    folder = tempfile.TemporaryDirectory(prefix="thinned-")
    atexit.register(folder.cleanup)
    return Path(folder.name)


@functools.cache
def thinned(name: str, seconds: float) -> Path:
    return thin(name, seconds, scratch())


@functools.cache
def judged(name: str, seconds: float) -> list[tuple[float, Answers]]:
    return judge(thinned(name, seconds))


def word(result: object) -> str:
    """What it comes to: unknown, ok or firing."""
    if not isinstance(result, Verdict):
        return "unknown"
    return "firing" if result.status in FIRING else "ok"


def compared(name: str, seconds: float, within: float) -> list[tuple[float, str, str, set[str]]]:
    """Each answer that some answer of 15 s scraping near it stands against: time, rule, what it says, what those say."""
    reference = judged(name, USUAL)
    found = []
    for t, results in judged(name, seconds):
        near = [there for at, there in reference if abs(at - t) <= within]
        for key, result in results.items():
            said = {word(there[key]) for there in near if key in there}
            if said:
                found.append((t, key[0], word(result), said))
    return found


def false_ones(name: str, seconds: float, within: float) -> list[tuple[float, str, str, set[str]]]:
    """Answers that say ok where all that can judge say firing, and firing where all say ok."""
    return [
        one
        for one in compared(name, seconds, within)
        if (one[2] == "ok" and one[3] - {"unknown"} == {"firing"}) or (one[2] == "firing" and one[3] == {"ok"})
    ]


@pytest.mark.parametrize("name", NAMES)
def test_minute_scrapes_never_contradict_15_seconds(name: str) -> None:
    assert false_ones(name, 60.0, MOVED_SECONDS) == []


@pytest.mark.parametrize("seconds", [120.0, 300.0])
@pytest.mark.parametrize("name", NAMES)
def test_sparse_scrapes_are_never_certain_or_false(name: str, seconds: float) -> None:
    assert false_ones(name, seconds, MOVED_SECONDS) == []
    for t, results in judged(name, seconds):
        for (rule, _), result in results.items():
            # Of an engine that took no step the gauges are known, and so is that its cache is empty.
            if isinstance(result, Verdict) and rule not in {*OF_PAGES, "KvCacheCascade"}:
                assert result.certainty is Certainty.LIKELY, (t, rule, result.sentence)


def test_beyond_a_minute_some_rules_still_judge() -> None:
    kinds = {
        word(a)
        for name in NAMES
        for _, there in judged(name, 120.0)
        for (rule, _), a in there.items()
        if rule not in OF_PAGES
    }
    assert kinds == {"unknown", "ok", "firing"}


@pytest.mark.parametrize("seconds", SPARSE)
@pytest.mark.parametrize("name", NAMES)
def test_requests_in_system_obey_littles_law(name: str, seconds: float) -> None:
    """Against what the clients had in flight; they have a request a little longer than the engine."""
    recording, _ = load(thinned(name, seconds))
    several = len(recording.targets) > 1
    times = [
        (row.get("replica") if several else None, float(row["t_start"]), float(row["t_start"]) + float(row["e2e"]))
        for row in recorded.requests(name)
        if row["t_start"] and row["e2e"]
    ]
    for one in replay(recording, None, 1.0).windows:
        window, told = one.window, one.window.gauges.get(gauges.IN_SYSTEM_BY_LITTLE)
        if one.replica is None or told is None:
            continue
        inside = (
            max(0.0, min(end, window.end) - max(start, window.start))
            for replica, start, end in times
            if replica in (None, one.replica)
        )
        truth = math.fsum(inside) / window.span
        assert told.minimum * 0.95 - 0.2 <= truth <= told.maximum * 1.05 + 0.2, (window.start, truth, told)


@pytest.mark.parametrize(
    "name", ["kv_cascade", "cascade_fast", "cascade_slow", "cascade_open_ramp", "cascade_large_cache"]
)
def test_cascades_are_found_at_60_seconds(name: str) -> None:
    def words(seconds: float) -> set[str]:
        every = (there for _, there in judged(name, seconds))
        return {word(result) for there in every for (rule, _), result in there.items() if rule == "KvCacheCascade"}

    assert "firing" in words(60.0)
    assert words(120.0) == {"unknown"}


def test_unscraped_target_is_not_ok(tmp_path: Path) -> None:
    """Every silence is longer than what is bridged."""
    results = judge(thin("cascade_slow", 320.0, tmp_path))[-1][1]
    about = {rule: result for (rule, _), result in results.items()}
    for rule in ("TargetDown", "EngineStalled", "TelemetryStale", "TierDown", "KvCacheNearCeiling", "GpuComputeLow"):
        result = about[rule]
        assert result.reason is Gap.NOT_SCRAPED, rule
    assert not any(isinstance(a, Verdict) and a.status is Status.OK for r, a in about.items() if r != "UnknownTooLong")


def test_replay_without_data_exits_3(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = str(recorded.PLANS / "cpu-small.yaml")
    assert main.main(["replay", str(thin("cascade_slow", 320.0, tmp_path)), "--plan", plan]) == 3
    said = capsys.readouterr()
    assert "Nothing was seen." in said.out
    assert "Nothing was found." not in said.out
    assert said.err == "sizewatch replay: nothing was seen: not_scraped\n"
    assert main.main(["replay", str(thin("cascade_slow", 1e6, tmp_path))]) == 3
    assert "a replica needs two pages of one process" in capsys.readouterr().err


PUBLIC = SHARED / "recordings" / "public"
PRESSURE = PUBLIC / "kv_pressure_4090"
FOLDERS = (PRESSURE, *sorted((PUBLIC / "cells_4090").glob("*")))

needs_public_recordings = pytest.mark.skipif(
    not PRESSURE.exists(),
    reason="LOUD: ../shared/recordings/public is absent: recordings of a real GPU were not judged",
)


@functools.cache
def judged_pressure() -> dict[str, Finding]:
    return findings(replay(load(PRESSURE)[0], load_plan(PRESSURE / "plan.yaml")))


@functools.cache
def requests(folder: Path) -> list[dict[str, str]]:
    with gzip.open(folder / "requests.csv.gz", "rt", newline="") as rows:
        return list(csv.DictReader(rows))


@needs_public_recordings
@pytest.mark.parametrize(("rule", "column", "limit"), [("TtftSloBurn", "ttft_s", 2.0), ("TpotSloBurn", "tpot_s", 0.1)])
def test_slow_share_is_within_bounds(rule: str, column: str, limit: float) -> None:
    """69.3 % and 58.1 % by the clients; a TTFT on the way to them is a little longer."""
    values = [float(row[column]) for row in requests(PRESSURE) if row["ok"] == "True" and row[column]]
    truth = sum(value > limit for value in values) / len(values)
    verdict = judged_pressure()[rule].worst
    assert (verdict.observed.low or 0.0) - 0.005 <= truth <= (verdict.observed.high or 1.0) + 0.005
    assert f"of {len(values):,} requests" in verdict.sentence


@needs_public_recordings
@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_requests_in_system_match_clients(folder: Path) -> None:
    """Nobody is there at either end of a cell: Little's law is exact. Clients have a request a little longer."""
    recording, _ = load(folder)
    cells: dict[str, float] = {}
    for row in requests(folder):
        cells[row["cell"]] = cells.get(row["cell"], 0.0) + float(row["latency_s"] or 0.0)
    whole = [
        one.window
        for one in replay(recording, None, 1.0).windows
        if one.replica and IN_SYSTEM_BY_LITTLE in one.window.gauges
    ]
    assert len(whole) == len(cells)
    for window, spent in zip(whole, cells.values(), strict=True):
        told = window.gauges[IN_SYSTEM_BY_LITTLE]
        assert told.minimum == told.maximum
        assert 0.85 * spent / window.span <= told.minimum <= spent / window.span
        assert not any(window.gauge(family) for family in STEP_GAUGES)
        assert math.isclose(told.seconds, window.span, rel_tol=0.02)
