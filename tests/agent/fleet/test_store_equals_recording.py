"""One recording through SQLite, through a real Prometheus and through a real VictoriaMetrics: every reading, every episode.

No `rate` is asked of a store: cumulative samples with their true times are, and the differences are ours: nothing is extrapolated.
What is left is stated here. Through SQLite: nothing. Through Prometheus: the rounding of sums in another order. Through
VictoriaMetrics: it keeps 15 digits of a value, of a time in unix seconds some microseconds. Through an agent: when it failed to
scrape is told by the store's own next scrape of the agent, and starts before its own are not told at all.
"""

import json
import math
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import click
import pytest
from fleet_past import book_past
from paths import TESTS
from prometheus_server import prometheus_with_blocks, victoria_metrics
from stored_recordings import RECORDINGS, Sample, agent_samples, engine_samples

from agent.cli.replay import open_store, parameters
from agent.config.files import load_plan
from agent.history.store import HistoryStore
from agent.replay.replay import Replay, replay, replay_store
from agent.scrape.scrapers import PageReader
from agent.sources.recording import Recording, load, scrapes
from rules.evaluator.observation import ClosedMinute, Observation, ReplicaScrape
from rules.evaluator.state import EvaluatorState
from rules.evaluator.step import Evaluator
from rules.plan.load_bins import BinnedWindow
from rules.telemetry import readings
from rules.telemetry.derived import PlanFacts
from rules.telemetry.signals import Missing, Reading
from rules.telemetry.windows import Window
from rules.verdicts.verdict import Finding

NAMES = ("steady", "cascade_fast", "restart", "mixed_tier", "sglang")
SOURCES = ("agents", "engines")
PLANS = TESTS / "plans"
PLAN = {"mixed_tier": PLANS / "mixed-tier.yaml"}
"""Of each recording; cpu-small.yaml unless given."""
LATE_SECONDS = 0.25
TOLERANCES = {"Prometheus": 1e-9, "VictoriaMetrics": 1e-6}
"""Of each value."""

DOWN = frozenset({"TargetDown", "TierDown"})
"""Their sentence ends with why there was no page, in the words of whoever asked for it: the store knows that `up` was 0."""

STARTS = frozenset({"cold_start_seconds", "ColdStartLate"})
"""An agent exports the starts that it saw since its own; what happened before is known to the engine's page alone."""


def plan_of(name: str) -> Path:
    return PLAN.get(name, PLANS / "cpu-small.yaml")


def of_all() -> Iterator[Sample]:
    """Everything that both kinds of store have of all recordings, told apart by two labels."""
    for name in NAMES:
        for source, several in (
            ("agents", agent_samples(name, load_plan(plan_of(name)), LATE_SECONDS)),
            ("engines", engine_samples(name)),
        ):
            for sample, labels, t, value in several:
                yield sample, {**labels, "recording": name, "whose": source}, t, value


@pytest.fixture(scope="module")
def urls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    samples = tuple(of_all())
    folder = tmp_path_factory.mktemp("stores")
    with prometheus_with_blocks(folder, samples) as prometheus, victoria_metrics(folder) as victoria:
        victoria.write(samples)
        yield {"Prometheus": prometheus, "VictoriaMetrics": victoria.url}


@cache
def recorded(name: str) -> tuple[Recording, Replay, float, float]:
    """The recording, what its replay says, and when it began and ended."""
    recording, problems = load(RECORDINGS / name)
    assert problems == ()
    times = [scrape.t for scrape in scrapes(recording, [])]
    return recording, replay(recording, load_plan(plan_of(name))), times[0], times[-1]


def options(url: str, name: str, source: str, folder: Path) -> SimpleNamespace:
    """As a person would ask for it, with a configuration that says where each tier's series stand."""
    recording, _, begin, end = recorded(name)
    tiers = {}
    for tier in sorted({target.tier for target in recording.targets}):
        names = "|".join(target.replica for target in recording.targets if target.tier == tier)
        whose = f',instance=~"{names}"' if source == "engines" else ""
        tiers[tier] = {"from": source, "selector": f'recording="{name}",whose="{source}"{whose}'}
    config = {"role": "fleet", "store": {"url": url}, "tiers": tiers, "data_dir": "history"}
    (folder / "sizewatch.yaml").write_text(json.dumps(config))
    command = click.Command("replay", params=[*parameters()])
    when = ["--from", f"{begin - 1:.3f}", "--to", f"{end + 2 * LATE_SECONDS:.3f}"]
    words = ["-c", str(folder / "sizewatch.yaml"), "--plan", str(plan_of(name)), *when]
    return SimpleNamespace(**command.make_context("replay", words).params)


def from_store(url: str, name: str, source: str, folder: Path) -> Replay:
    given = options(url, name, source, folder)
    loaded, api = open_store(given)
    # The plan may have tiers that the recording has not.
    tiers = {tier: planned for tier, planned in loaded.plan.tiers.items() if tier in loaded.config.tiers}
    loaded = replace(loaded, plan=loaded.plan.model_copy(update={"tiers": tiers}))
    with closing(api):
        return replay_store(loaded, api, given.since, given.until, 60.0)


def differing(a: Window, b: Window, basis: PlanFacts, tolerance: float, source: str = "engines") -> list[str]:
    left, right = readings.read_all(a, basis), readings.read_all(b, basis)
    assert left.keys() == right.keys()
    if source == "agents" and a.gaps:
        # It ends, or the one before it did, when the store scraped the agent.
        tolerance = max(tolerance, 2 * LATE_SECONDS / (b.end - b.start))
    asked = [name for name in left if source == "engines" or name not in STARTS]
    return [
        f"{name}: {left[name]} is not {right[name]}" for name in asked if not same(left[name], right[name], tolerance)
    ]


def same(a: Reading | Missing, b: Reading | Missing, tolerance: float) -> bool:
    if isinstance(a, Missing) or isinstance(b, Missing):
        return a == b
    pairs = ((a.value, b.value), (a.low, b.low), (a.high, b.high), (a.n, b.n))
    return all(
        x == y if x is None or y is None else math.isclose(x, y, rel_tol=tolerance, abs_tol=tolerance) for x, y in pairs
    )


def told(found: Replay) -> list[Finding]:
    """The episodes of all that a person is told."""
    findings = [e for e in found.ended if isinstance(e, Finding)] + [s.finding for s in found.rule_states if s.finding]
    return sorted((e for e in findings if e.rule not in STARTS), key=lambda e: (e.rule, str(e.subject), e.started_at))


def words(one: Finding) -> tuple[object, ...]:
    """What must be the same to the letter: which, of whom, how bad and how sure at each turn, what is said, and why."""
    worst = one.worst
    said = worst.sentence if one.rule not in DOWN else ""
    turns = [(str(t.status), t.stage, str(t.certainty)) for t in one.transitions]
    causes = [(c.cause, str(c.certainty), c.evidence) for c in worst.causes] if one.rule not in DOWN else []
    return (
        one.rule,
        str(one.subject),
        one.ended_at is None,
        turns,
        str(worst.status),
        str(worst.certainty),
        said,
        causes,
    )


def times(one: Finding) -> list[float]:
    return [one.started_at, one.ended_at or 0.0, one.worst.t, *(t.t for t in one.transitions)]


def by_place(found: Replay) -> dict[tuple[str, str | None, int], Window]:
    """The windows of each tier and replica, numbered in order of time."""
    counted: dict[tuple[str, str | None], int] = {}
    windows = {}
    for shown in sorted(found.windows, key=lambda s: s.window.end):
        place = counted[shown.tier, shown.replica] = counted.get((shown.tier, shown.replica), -1) + 1
        windows[shown.tier, shown.replica, place] = shown.window
    return windows


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", ["Prometheus", "VictoriaMetrics"])
def test_store_readings_equal_recording(
    urls: dict[str, str], tmp_path: Path, kind: str, name: str, source: str
) -> None:
    _, expected, _, _ = recorded(name)

    found = from_store(urls[kind], name, source, tmp_path)

    assert not found.cut_short
    assert not [text for text in found.problems if text.partition(":")[0] in expected.engines]
    ours, theirs = by_place(found), by_place(expected)
    assert len(theirs) >= 4
    assert ours.keys() == theirs.keys()
    for key, window in theirs.items():
        assert ours[key].end == pytest.approx(window.end, abs=LATE_SECONDS + 0.001)
        assert not differing(ours[key], window, expected.contexts[key[0]].basis, TOLERANCES[kind], source)


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", ["Prometheus", "VictoriaMetrics"])
def test_store_findings_equal_recording(
    urls: dict[str, str], tmp_path: Path, kind: str, name: str, source: str
) -> None:
    found, expected = told(from_store(urls[kind], name, source, tmp_path)), told(recorded(name)[1])

    assert [words(one) for one in found] == [words(one) for one in expected]
    for ours, theirs in zip(found, expected, strict=True):
        assert times(ours) == pytest.approx(times(theirs), abs=LATE_SECONDS + 0.001)
        assert same(ours.worst.observed, theirs.worst.observed, TOLERANCES[kind])
        assert same(ours.worst.expected, theirs.worst.expected, TOLERANCES[kind])


def closed_minutes(name: str) -> list[ClosedMinute]:
    """The minutes that a daemon closes that scrapes the recorded engines."""
    recording, expected, _, _ = recorded(name)
    evaluator, state = Evaluator(expected.contexts), EvaluatorState()
    readers = [PageReader(target.engine) for target in recording.targets]
    closed: list[ClosedMinute] = []
    for scrape in scrapes(recording, []):
        target = recording.targets[scrape.target]
        page = readers[scrape.target].read(scrape.body, scrape.t) if scrape.body is not None else None
        one = ReplicaScrape(tier=target.tier, replica=target.replica, t=scrape.t, snapshot=page, error=scrape.error)
        closed += evaluator.step(state, Observation(now=scrape.t, scrapes=(one,))).minutes
    return [*closed, *evaluator.flush(state)]


def in_order(binned: Iterable[BinnedWindow]) -> list[BinnedWindow]:
    return sorted(binned, key=lambda s: (s.window.start, s.replica or ""))


def where(binned: list[BinnedWindow]) -> list[tuple[str | None, float, float]]:
    return [(one.replica, round(one.window.start, 3), round(one.window.end, 3)) for one in binned]


@pytest.mark.parametrize("name", NAMES)
def test_history_readings_equal_recording(tmp_path: Path, name: str) -> None:
    closed = closed_minutes(name)
    with HistoryStore(tmp_path / "history.db") as store:
        store.book(ClosedMinute(tier=one.tier, plan_version="", slice=one.slice) for one in closed)
        for tier, context in recorded(name)[1].contexts.items():
            found = in_order(store.minutes(tier, 0.0, 4e9))
            wanted = in_order(one.slice for one in closed if one.tier == tier)

            assert len(found) >= 3
            assert where(found) == where(wanted)
            pairs = list(zip(found, wanted, strict=True))
            assert not [bad for a, b in pairs if (bad := differing(a.window, b.window, context.basis, 0.0))]
            assert all((a.rps, a.in_system, a.beyond) == (b.rps, b.in_system, b.beyond) for a, b in pairs)


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("name", ["steady", "cascade_fast", "mixed_tier"])
def test_fleet_history_equals_daemon_history(urls: dict[str, str], tmp_path: Path, name: str, source: str) -> None:
    closed = closed_minutes(name)
    given = options(urls["Prometheus"], name, source, tmp_path)
    loaded, api = open_store(given)
    with closing(api), HistoryStore(tmp_path / "history.db") as store:
        assert book_past(loaded, api, store, given.since - 600, given.until + 600) == len(closed)
        for tier, context in recorded(name)[1].contexts.items():
            found = in_order(store.minutes(tier, 0.0, 4e9))
            wanted = in_order(one.slice for one in closed if one.tier == tier)

            assert where(found) == where(wanted)
            tolerance = TOLERANCES["Prometheus"]
            pairs = list(zip(found, wanted, strict=True))
            assert not [
                bad for a, b in pairs if (bad := differing(a.window, b.window, context.basis, tolerance, source))
            ]
