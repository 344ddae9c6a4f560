"""The same pages through the live loop and through replay: the same findings at the same times; engines that share a page."""

import gzip
import json
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import recorded
import yaml
from loops import LoopParts, scrape_loop
from paths import TESTS
from test_thinned_recordings import plan_of
from waiting import StandingClock

from agent.config.files import load_plan
from agent.config.peer import Peer
from agent.errors import ScrapeError, ScrapeFailure
from agent.replay.replay import Replay, replay
from agent.scrape.scrapers import GONE_SECONDS, Scrapers, Target
from agent.sources.recording import Recording, Scrape, load, scrapes
from rules.catalogue.registry import BY_NAME
from rules.plan.load_bins import TierContext, build_tier_context
from rules.telemetry.windows import MINUTE_SECONDS
from rules.verdicts.verdict import Finding, Subject, Verdict

_START_TIMES = re.compile(r"^(process_start_time_seconds|\S+_created(?:\{[^}]*\})?) (\S+)$", re.MULTILINE)


def lay(folder: Path, begin: float, into: Path, apart: float = 0.0) -> Path:
    """Write the recording as it would be if its first scrape had been at `begin` (unix seconds).

    The scrapes of its targets lie so many seconds `apart`."""
    made = into / f"{folder.name}-{begin:.0f}"
    made.mkdir()
    shutil.copy(folder / "recording.yaml", made)
    files = [one["file"] for one in yaml.safe_load((folder / "recording.yaml").read_text())["targets"]]
    told = {name: list(map(json.loads, gzip.decompress((folder / name).read_bytes()).splitlines())) for name in files}
    by = begin - min(lines[0]["t"] for lines in told.values())
    for place, (name, lines) in enumerate(told.items()):
        with gzip.open(made / name, "wt", compresslevel=1) as file:
            for line in lines:
                line["t"] += by + place * apart
                if "text" in line:
                    line["text"] = _START_TIMES.sub(lambda at: f"{at[1]} {float(at[2]) + by!r}", line["text"])
                file.write(json.dumps(line) + "\n")
    return made


@dataclass
class RecordedEngine:
    """The latest recorded answer of a target at the clock's time. It tells no release."""

    scrapes: Sequence[Scrape]
    clock: StandingClock

    def fetch(self) -> bytes:
        """Return the page. Raise ScrapeError where the recording has none."""
        before = [one for one in self.scrapes if one.t <= self.clock.now]
        if not before or before[-1].body is None:
            raise ScrapeError(ScrapeFailure.CONNECT, before[-1].error if before else "it has not begun")
        return before[-1].body

    def close(self) -> None:
        """Nothing is held."""


def cycle_times(recording: Recording) -> list[float]:
    """Return when each round of the recorder was over."""
    times: list[float] = []
    met: set[int] = set()
    for one in scrapes(recording, []):
        if not met or one.target in met:
            met = set()
            times.append(one.t)
        met.add(one.target)
        times[-1] = one.t
    return times


def live_findings(folder: Path, contexts: dict[str, TierContext], times: Sequence[float]) -> list[Finding]:
    """Return what the loop of role node finds that scrapes the recorded engines at these times."""
    recording, _ = load(folder)
    lines = list(scrapes(recording, []))
    clock = StandingClock()
    targets, engines = [], {}
    for place, one in enumerate(recording.targets):
        options = Peer(url=f"http://127.0.0.1/{place}/metrics", timeout_seconds=60.0)
        engines[options.url] = RecordedEngine([line for line in lines if line.target == place], clock)
        targets.append(
            Target(
                tier=one.tier,
                replica=one.replica,
                pool=one.pool,
                peer=options,
                engine=one.engine,
                engine_version=one.engine_version,
            )
        )
    silent = RecordedEngine((), clock)
    scrapers = Scrapers(targets, clock=clock, fetcher=lambda options, accept="": engines.get(options.url, silent))
    parts = scrape_loop(targets, contexts, scrapers, clock)
    try:
        for clock.now in times:
            parts.loop.run_cycle()
        return [*parts.runtime.past, *parts.loop.state.open_findings()]
    finally:
        parts.loop.stop()


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


T = 1_790_000_000.0
TWO = (TESTS / "cases" / "04-sidecar-two-workers" / "page.prom").read_text()
ROUTER = (TESTS / "cases" / "01-router" / "page.prom").read_text()
ONE = "\n".join(line for line in TWO.splitlines() if "127.0.0.1:8002" not in line) + "\n"
WORKERS = ("a/127.0.0.1:8001", "a/127.0.0.1:8002")


class Sidecar:
    """A page that can be changed, at a clock that can be set."""

    def __init__(self) -> None:
        self.page, self.now = TWO, T

    def fetch(self) -> bytes:
        if not self.page:
            raise ScrapeError(ScrapeFailure.CONNECT, "refused")
        return self.page.encode()

    def close(self) -> None:
        """Nothing is held."""

    def loop(self, pool: str = "mixed") -> LoopParts:
        options = Peer(url="http://127.0.0.1:1/metrics", timeout_seconds=60.0)
        target = Target(tier="t", replica="a", pool=pool, peer=options)
        scrapers = Scrapers([target], clock=lambda: self.now, fetcher=lambda *options: self)  # type: ignore[arg-type, return-value]
        return scrape_loop([target], {"t": build_tier_context("t", None)}, scrapers, lambda: self.now)

    def cycle(self, parts: LoopParts, seconds: float = 15.0) -> None:
        self.now += seconds
        parts.loop.run_cycle()


@pytest.fixture
def sidecar() -> Sidecar:
    return Sidecar()


def replicas(parts: LoopParts) -> list[str]:
    return [name for _, name in parts.loop.state.replicas]


def verdict(parts: LoopParts, rule: str, replica: str | None) -> str:
    result = parts.loop.state.rules[rule, Subject(tier="t", replica=replica)].result
    return result.status.value if isinstance(result, Verdict) else result.reason.value


def test_each_worker_is_a_replica(sidecar: Sidecar) -> None:
    parts = sidecar.loop("decode")
    for _ in range(3):
        sidecar.cycle(parts)
    assert tuple(replicas(parts)) == WORKERS
    pages = [one.track.last for one in parts.loop.state.replicas.values()]
    assert [page.gauges["kv_utilization"] for page in pages if page] == [0.11, 0.93]
    (tier,) = parts.status(sidecar.now).tiers
    assert [(one.name, one.up, one.pool) for one in tier.replicas] == [(name, True, "decode") for name in WORKERS]
    assert parts.loop.evaluator.tier("t").pools == dict.fromkeys(WORKERS, "decode")
    assert verdict(parts, "TierDown", None) == "ok"


def test_vanished_worker_is_down_then_gone(sidecar: Sidecar) -> None:
    parts = sidecar.loop()
    sidecar.page = ""
    sidecar.cycle(parts)
    assert replicas(parts) == ["a"], "a page that is down at first"
    sidecar.page = TWO
    for _ in range(3):
        sidecar.cycle(parts)
    assert tuple(replicas(parts)) == WORKERS
    sidecar.page = ""
    for _ in range(6):
        sidecar.cycle(parts)
    assert [verdict(parts, "TargetDown", name) for name in WORKERS] == ["warning", "warning"]
    sidecar.page = TWO
    for _ in range(3):
        sidecar.cycle(parts)
    sidecar.page = ONE + 'sglang_num_running_reqs{worker_addr="http://127.0.0.1:8003"} 1\n'
    for _ in range(3):
        sidecar.cycle(parts)
    assert [verdict(parts, "TargetDown", name) for name in WORKERS] == ["ok", "warning"]
    sidecar.cycle(parts, GONE_SECONDS)
    assert replicas(parts) == [WORKERS[0], "a/127.0.0.1:8003"]


def test_router_page_is_no_replica(sidecar: Sidecar) -> None:
    parts = sidecar.loop()
    sidecar.page = ROUTER
    for _ in range(20):
        sidecar.cycle(parts)
    assert replicas(parts) == []
    assert parts.loop.state.open_findings() == ()
    (tier,) = parts.status(sidecar.now).tiers
    ((row),) = tier.replicas
    assert not row.up
    assert "a router's page" in row.problems[0]


def test_replay_judges_each_worker(tmp_path: Path) -> None:
    lines = [json.dumps({"t": T + 15 * cycle, "text": TWO}) for cycle in range(20)]
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    (tmp_path / "x.jsonl.gz").write_bytes(gzip.compress(json.dumps({"t": T, "text": ROUTER}).encode()))
    targets = [{"file": f"{name}.jsonl.gz", "tier": "cpu-small", "replica": name} for name in "ax"]
    (tmp_path / "recording.yaml").write_text(yaml.safe_dump({"schema": 1, "name": "two", "targets": targets}))
    recording, problems = load(tmp_path)
    result = replay(recording, load_plan(TESTS / "plans" / "cpu-small.yaml"), 60.0, problems)
    assert {one.replica for one in result.windows if one.replica} == set(WORKERS)
    assert {one.result.subject.replica for one in result.rule_states} == {*WORKERS, None}
    assert "a router's page" in result.problems[0]
