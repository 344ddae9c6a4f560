"""A fleet with a past: what was filled in is what a daemon would have booked, and it agrees with the truth beside it."""

import json
import random
import re
import threading
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import making
import pytest
from simulation_truth import END, SECONDS, TRUTH, PastFleet
from waiting import wait_for

from agent.cli.main import main
from agent.config.files import load_plan
from agent.config.load import load as load_config
from agent.daemon.daemon import Daemon
from agent.demo.runner import DemoConsole, watch
from agent.demo.simulation.engine import Conditions, SimulatedEngine
from agent.demo.simulation.scenario import DAY, QUARTER, TierRun, stories
from agent.demo.simulation.weeks import CONFIG, HISTORY, PLAN, SimulatedHistory, continue_simulation, fill
from agent.errors import ConfigError
from agent.history.service import check_tier
from agent.history.store import NOTE, HistoryStore, Reader
from rules.confidence import Certainty
from rules.evaluator import rule_evaluation
from rules.evaluator.observation import StepResult
from rules.evaluator.timeline import TimelineKind, parse_start_event
from rules.plan import load_bins
from rules.plan.curve import Curve
from rules.plan.load_bins import BinnedWindow
from rules.plan.schema import plan_version
from rules.telemetry import windows
from rules.telemetry.readings import read
from rules.telemetry.signals import BY_NAME, Reading
from rules.telemetry.snapshots import Snapshot
from rules.telemetry.windows import Window
from rules.verdicts.verdict import FIRING, Finding, Status, Subject, Transition, Verdict

BEGIN = END - SECONDS
CHAT, RAG, CODE = "chat-h100", "rag-l40s", "code-h100"

Truth = Mapping[str, Any]


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory, past_fleet: PastFleet) -> tuple[Path, SimulatedHistory]:
    """A folder with two weeks, of which the last hour is there in minutes."""
    folder = tmp_path_factory.mktemp("past") / "fleet"
    return folder, past_fleet.into(folder)


@pytest.fixture(scope="module")
def past(filled: tuple[Path, SimulatedHistory]) -> Iterator[tuple[Reader, Truth]]:
    """The history and the truth, each as it was written."""
    with HistoryStore.open_reader(filled[0] / HISTORY) as store:
        yield store, json.loads((filled[0] / TRUTH).read_text())


def hours(store: Reader, tier: str, since: float = BEGIN, until: float = END) -> tuple[BinnedWindow, ...]:
    return store.bins(tier, since, until)


def test_history_equals_simulated_truth(past: tuple[Reader, Truth]) -> None:
    store, truth = past
    names = {
        "requests_finished": "finished",
        "prompt_tokens": "prompt_tokens",
        "generation_tokens": "generation_tokens",
    }
    (silent,) = truth["not_watched"]
    for tier, told in truth["tiers"].items():
        for day in told["days"]:
            begin, end = day["day"], day["day"] + DAY
            if silent["begin"] < end and silent["end"] > begin:
                continue
            total = windows.sum_windows(one.window for one in hours(store, tier, max(BEGIN, begin), end))
            counted = {names[name]: total.counters[name] for name in names}
            assert counted == pytest.approx({name: day[name] for name in names.values()}, rel=2e-3), (tier, begin)


def test_demand_covers_watched_minutes_only(past: tuple[Reader, Truth]) -> None:
    store, truth = past
    (silent,) = truth["not_watched"]
    for tier, told in truth["tiers"].items():
        minutes = store.demand(tier, BEGIN, END)
        known = {one.start for one in minutes if one.requests is not None}
        missing = {BEGIN + 60.0 * n for n in range(round((END - BEGIN) / 60))} - known
        assert missing == {silent["begin"] + 60.0 * n for n in range(round((silent["end"] - silent["begin"]) / 60))}
        day = told["days"][2]
        asked = sum(one.requests or 0.0 for one in minutes if day["day"] <= one.start < day["day"] + DAY)
        assert asked == pytest.approx(day["arrived"], rel=5e-3)


def test_check_finds_only_the_drift(past: tuple[Reader, Truth]) -> None:
    store, _ = past
    for name, tier in load_plan(PLAN).tiers.items():
        found = check_tier(store, load_bins.build_tier_context(name, tier), plan_version(tier), END - 7 * DAY, END)
        firing = [a for a in found.results if isinstance(a, Verdict) and a.status in FIRING]
        if name == CHAT:
            assert [one.rule for one in firing] == ["TtftDivergence"]
            assert firing[0].certainty is Certainty.CERTAIN
            assert "prompts are longer than planned" in firing[0].causes[0].evidence[0]
        else:
            assert firing == []
            assert found.status is Status.OK


def test_utilization_trap_is_in_its_tier(past: tuple[Reader, Truth]) -> None:
    store, truth = past
    trapped = {finding.subject.tier for finding in store.spans(Finding, BEGIN) if finding.rule == "UtilizationTrap"}
    assert trapped == {tier for tier, told in truth["tiers"].items() if told["utilization_trap"]} == {RAG}
    for name, tier in load_plan(PLAN).tiers.items():
        context = load_bins.build_tier_context(name, tier)
        results = rule_evaluation.evaluate_long_rules(context, hours(store, name, END - 8 * DAY), END)
        (trap,) = (one for one in results if one.rule == "UtilizationTrap")
        fires = isinstance(trap, Verdict) and trap.status in FIRING
        assert fires is truth["tiers"][name]["utilization_trap"], trap


def test_restarts_have_cold_starts(past: tuple[Reader, Truth]) -> None:
    store, truth = past
    for tier, told in truth["tiers"].items():
        events = [event for event in store.events(BEGIN) if event.tier == tier]
        starts = [start for event in events if (start := parse_start_event(event)) is not None]
        restarts = sorted(told["restarts"], key=lambda restart: restart["ready"])
        assert [one.ready_at for one in starts] == [one["ready"] for one in restarts]
        seconds = [one["cold_start_seconds"] for one in restarts]
        assert [one.seconds.value for one in starts] == pytest.approx(seconds)
        assert sum(event.kind == TimelineKind.RESTART for event in events) == len(starts)
        total = windows.sum_windows(one.window for one in hours(store, tier))
        assert total.counters.get("cold_starts", 0.0) == len(starts)


def test_plan_change_splits_history(past: tuple[Reader, Truth]) -> None:
    store, truth = past
    at = truth["tiers"][CODE]["plan_changed_at"]
    before, after = store.plan_versions(CODE, BEGIN, END)
    assert after == plan_version(load_plan(PLAN).tiers[CODE])
    assert store.bins(CODE, at, END, before) == ()
    assert store.bins(CODE, BEGIN, at, after) == ()
    assert [event.t for event in store.events(BEGIN) if event.kind == TimelineKind.PLAN] == [at]


def test_impossible_past_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["demo", "--out", str(tmp_path / "x")]) == 2
    assert "goes with --history" in capsys.readouterr().err
    for words in ("3d", "1000w", "w", "soon"):
        assert main(["demo", "--history", words]) == 2
        assert "--history" in capsys.readouterr().err


def test_filled_folder_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "history.db").write_text("mine")
    with pytest.raises(ConfigError, match="cannot be made"):
        fill(tmp_path, seconds=14 * DAY, end=END)
    with pytest.raises(KeyboardInterrupt):
        fill(tmp_path / "ended", seconds=14 * DAY, end=END, progress=Mock(side_effect=KeyboardInterrupt))
    assert [(one.name, one.read_text()) for one in tmp_path.iterdir()] == [("history.db", "mine")]


def test_history_says_it_is_simulated(filled: tuple[Path, SimulatedHistory]) -> None:
    folder, _ = filled
    with HistoryStore.open_reader(folder / HISTORY) as store:
        assert store.simulated_notice() == NOTE
    with HistoryStore(folder / "other.db") as real:
        assert real.simulated_notice() == ""
    assert all("(simulated)" in tier.gpu.product for tier in load_plan(PLAN).tiers.values())


def _episodes(url: str) -> set[str]:
    """The rules of the episodes that are open or were of late; none before the first turn."""
    try:
        with urllib.request.urlopen(f"{url}api/status") as page:
            told = json.load(page)
    except OSError:
        return set()
    return {finding["rule"] for tier in told["tiers"] for finding in tier["episodes"]}


def test_daemon_continues_after_past(
    filled: tuple[Path, SimulatedHistory], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, past = filled
    daemons: list[Daemon] = []

    def daemon(*parts: Any) -> Daemon:
        daemons.append(Daemon(*parts))
        return daemons[-1]

    monkeypatch.setattr("agent.demo.runner.Daemon", daemon)
    with ExitStack() as ends:
        show = continue_simulation(past, folder, 60.0)
        watching = threading.Thread(target=watch, args=(show, 0, 86_400.0, ends))
        watching.start()
        ends.callback(watching.join)
        ends.callback(lambda: [one.stop() for one in daemons])
        heard: list[str] = []

        def address() -> re.Match[str] | None:
            heard.append(capsys.readouterr().out)
            return re.search(r"http://127[0-9.:]+/", "".join(heard))

        found = wait_for(address)
        said = "".join(heard)
        assert found, said
        assert wait_for(lambda: _episodes(found[0]) >= {"UtilizationTrap", "WorkloadDrift"})
        with urllib.request.urlopen(f"{found[0]}api/status") as page:
            told = json.load(page)
        with urllib.request.urlopen(found[0]) as page:
            shown = page.read().decode()
    assert said.startswith("SIMULATED")
    assert "SIMULATED" in shown
    assert told["simulated"].startswith("SIMULATED")
    assert {one["tier"] for one in told["tiers"]} == {CHAT, RAG, CODE}
    written = load_config(folder / CONFIG, environment={})
    assert {target.replica for target in written.config.targets} >= {f"{CHAT}-0", f"{RAG}-2", f"{CODE}-1"}


def test_seed_decides_the_pages() -> None:
    def pages(seed: int) -> list[Snapshot]:
        plan = load_plan(PLAN)
        story = stories(BEGIN, END, seed)[0]
        run = TierRun(story, plan.tiers[story.tier], BEGIN, seed)
        for quarter in range(1, 20):
            run.advance(BEGIN + quarter * QUARTER)
        return list(run.pages().values())

    assert pages(3) == pages(3)
    assert pages(3) != pages(4)
    assert stories(BEGIN, END, 3) == stories(BEGIN, END, 3)


def test_reading_agrees_with_curve() -> None:
    tier = load_plan(PLAN).tiers[CODE]
    curve = Curve.from_plan(tier)
    engine = SimulatedEngine(tier, curve, random.Random(1), BEGIN)
    engine.advance(BEGIN + 60.0, 90, Conditions())
    before = engine.snapshot()
    engine.advance(BEGIN + 3660.0, 5400, Conditions())
    window = windows.diff_snapshots(before, engine.snapshot())
    context = load_bins.build_tier_context(CODE, tier)
    bin, _ = curve.place(1.5, None)
    for signal, metric in (("ttft_p99_seconds", "ttft_p99_seconds"), ("tpot_p99_seconds", "tpot_p99_seconds")):
        assert bin is not None
        expected = curve.expectation(bin, metric, 1.5)
        found = _read(signal, window, context)
        assert (found.low or 0.0) <= expected.value <= (found.high or 0.0)
    assert _read("prefix_hit_ratio", window, context).value == pytest.approx(0.55, abs=0.01)
    assert _read("completed_rps", window, context).value == pytest.approx(1.5, rel=0.05)


def _read(signal: str, window: Window, context: load_bins.TierContext) -> Reading:
    found = read(BY_NAME[signal], window, context.basis)
    assert isinstance(found, Reading), found
    return found


# ---- what the demo prints of findings ----


T = 1_800_000_000.0
SENTENCE = "KV cache 97% full and 5 requests waiting. First suspect: prompts are longer than planned"


def finding(rule: str = "KvCacheCascade", stage: int = 1) -> Finding:
    parts = {"subject": Subject(tier="cascade", replica="cascade-0"), "certainty": Certainty.LIKELY, "stage": stage}
    actions = ("Shed or reroute load now",)
    return making.finding(making.verdict(rule, t=T + 45.0, sentence=SENTENCE, actions=actions, **parts))


def printed(capsys: pytest.CaptureFixture[str], *changed: Finding, closed: tuple[Finding, ...] = ()) -> list[str]:
    DemoConsole(T, lambda: None).accept(StepResult(now=T + 90.0, tiers={}, changed=changed, closed=closed))
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
    of_reports = finding("UtilizationTrap")
    ends = printed(capsys, of_reports, closed=(of_reports, worse))
    assert ends == ["  1:30  ended: KvCacheCascade in cascade/cascade-0"], "a rule of reports is not printed"
