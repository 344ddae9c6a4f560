"""Releases of a tier's replicas: events of a change, replaced pods, and what a restarted agent still knows."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import yaml

from agent.config.files import load_plan
from agent.history.daily_queries import _compare_releases
from agent.history.store import HistoryStore
from agent.pipeline.loop import EvaluationLoop
from agent.replay.replay import ReplayResult, replay
from agent.sources.recording import load
from rules.confidence import Certainty
from rules.evaluator.observation import Observation, ReplicaScrape
from rules.evaluator.state import EvaluatorState
from rules.evaluator.step import Evaluator
from rules.evaluator.timeline import TimelineEvent, TimelineKind, list_entries
from rules.replicas.track import parse_release
from rules.telemetry.signals import Gap
from rules.telemetry.snapshots import Snapshot
from rules.verdicts.verdict import Unknown, Verdict
from tests.support import recorded
from tests.support.judging_samples import context

T = 1_800_000_000.0


class Fleet:
    """Replicas of tier t that tell their release, turn by turn."""

    def __init__(self) -> None:
        self.evaluator, self.state, self.t = Evaluator({"t": context()}), EvaluatorState(), T
        self.events: list[TimelineEvent] = []

    def turn(self, removed: tuple[str, ...] = (), **releases: str) -> list[str]:
        """The texts of the releases that this turn told."""
        self.t += 15
        pages = {name: _page(self.t, release) for name, release in releases.items()}
        scrapes = tuple(ReplicaScrape(tier="t", replica=name, t=self.t, snapshot=page) for name, page in pages.items())
        gone = frozenset(("t", name) for name in removed)
        result = self.evaluator.step(self.state, Observation(now=self.t, scrapes=scrapes, removed=gone))
        result.raise_defects()
        found = [one for one in result.events if one.kind == TimelineKind.RELEASE]
        self.events += found
        return [one.text for one in found]

    @property
    def timeline(self) -> list[tuple[float, str]]:
        found = list_entries([], [], self.events, 0.0)
        return [(one.t, one.text) for one in found if one.kind == TimelineKind.RELEASE]


def _page(t: float, release: str) -> Snapshot:
    facts = {"engine_version": release} if release else {}
    return Snapshot(
        t=t,
        engine="vllm",
        generation="v1",
        started_at=None,
        ready_at=None,
        counters={"requests_finished": t - T},
        histograms={},
        gauges={},
        facts=facts,
    )


def test_replicas_that_change_in_place_are_one_entry_with_how_far_it_came() -> None:
    fleet = Fleet()
    old = dict.fromkeys("abcd", "0.32.0")
    assert fleet.turn(**old) == [f"vllm 0.32.0 on {n} of {max(n, 1)} replicas" for n in (1, 2, 3, 4)]
    assert fleet.timeline == []
    assert fleet.turn(**old) == []
    assert fleet.turn(**{**old, "a": "0.33.0"}) == ["vllm 0.32.0 → 0.33.0 on 1 of 4 replicas"]
    began = fleet.t
    # A page whose release is not known yet is no change, nor is the builder's part of a release.
    assert fleet.turn(a="0.33.0+cpu", b="", c="0.33.0") == ["vllm 0.32.0 → 0.33.0 on 2 of 4 replicas"]
    assert fleet.turn(b="0.33.0") == ["vllm 0.32.0 → 0.33.0 on 3 of 4 replicas"]
    assert fleet.timeline == [(began, "vllm 0.32.0 → 0.33.0 on 3 of 4 replicas")]
    assert fleet.turn(a="0.32.0") == ["vllm 0.33.0 → 0.32.0 on 2 of 4 replicas"]
    assert [text for _, text in fleet.timeline][1:] == ["vllm 0.33.0 → 0.32.0 on 2 of 4 replicas"]


def test_replaced_pods_change_the_release_and_added_ones_of_the_old_release_do_not() -> None:
    fleet = Fleet()
    fleet.turn(a="0.32.0", b="0.32.0")
    assert fleet.turn(c="0.33.0") == ["vllm 0.32.0 → 0.33.0 on 1 of 3 replicas"]
    assert fleet.turn(d="0.32.0") == ["vllm 0.32.0 on 3 of 4 replicas"]
    assert fleet.turn(e="0.33.0") == ["vllm 0.32.0 → 0.33.0 on 2 of 5 replicas"]
    assert fleet.turn(removed=("a", "b"), c="0.33.0") == []
    assert fleet.turn(removed=("d",), c="0.33.0") == ["vllm 0.32.0 → 0.33.0 on 2 of 2 replicas"]
    assert fleet.turn(f="0.33.0") == ["vllm 0.33.0 on 3 of 3 replicas"]
    assert [text for _, text in fleet.timeline] == ["vllm 0.32.0 → 0.33.0 on 2 of 2 replicas"]


def test_all_pods_replaced_at_once_are_a_change_too() -> None:
    fleet = Fleet()
    fleet.turn(a="0.32.0")
    fleet.turn(removed=("a",))
    assert fleet.turn(b="0.33.0") == ["vllm 0.32.0 → 0.33.0 on 1 of 1 replicas"]


def test_an_upgrade_while_the_agent_was_away_is_found_by_the_history(tmp_path: Path) -> None:
    fleet = Fleet()
    fleet.turn(a="0.32.0", b="0.32.0")
    with HistoryStore(tmp_path / "history.db") as store:
        store.add_event(*fleet.events, TimelineEvent(t=T, kind="release", tier="t", replica="a", text="another form"))
    later = Fleet()
    later.t += 3600
    with HistoryStore.open_reader(tmp_path / "history.db") as reader:
        loop = SimpleNamespace(source=SimpleNamespace(tiers={"t"}), state=later.state)
        EvaluationLoop.restore_starts(loop, reader.events(0.0))  # type: ignore[arg-type]
        assert later.turn(a="0.32.0") == []
        assert later.turn(b="0.33.0")[0].startswith("vllm 0.32.0 → 0.33.0 on ")
        # A history without a change has nothing to compare, and says so.
        found = _compare_releases(reader, context(), "", T + 7200)
        assert isinstance(found, Unknown)
        assert found.reason is Gap.NOT_EXPOSED


def test_a_record_reads_its_own_text() -> None:
    text = "vllm 0.32.0 → 0.33.0rc1+cpu on 3 of 4 replicas"
    found = parse_release(T, "a", text)
    assert found is not None
    assert (str(found), found.before, found.release) == (text, "0.32.0", "0.33.0rc1+cpu")
    assert parse_release(T, "a", "upgraded") is None


def _joined(folder: Path, newer: str) -> ReplayResult:
    """Two servers of mixed_tier as one tier: the fast one, and as the newer release the fast or the throttled one."""
    source = recorded.folder("mixed_tier")
    targets = [
        {"file": f"{name}.jsonl.gz", "tier": "cpu-small", "replica": name, "engine": "vllm", "engine_version": release}
        for name, release in (("old", "0.32.0"), ("new", "0.33.0"))
    ]
    for name, page in (("old", "cpu-fast-0.jsonl.gz"), ("new", newer)):
        shutil.copy(source / page, folder / f"{name}.jsonl.gz")
    (folder / "recording.yaml").write_text(yaml.safe_dump({"schema": 1, "name": "joined", "targets": targets}))
    recording, problems = load(folder)
    return replay(recording, load_plan(recorded.PLANS / "cpu-small.yaml"), problems=problems)


def _upgrade_of(found: ReplayResult) -> Verdict | None:
    open_now = [one.finding for one in found.rule_states if one.finding is not None]
    return next((one.worst for one in open_now if one.rule == "UpgradeRegression"), None)


def test_real_pages_of_a_slower_server_under_another_release_are_found(tmp_path: Path) -> None:
    found = _upgrade_of(_joined(tmp_path, "cpu-slow-0.jsonl.gz"))
    assert found is not None
    assert found.sentence.startswith("vllm 0.32.0 to 0.33.0: ITL P99 12.1x as long at equal load since ")
    assert any(text.startswith("TPOT P99 7.3x as long: 22.3 ms to 162 ms, 255 and 315") for text in found.details)
    assert found.certainty in Certainty


def test_real_pages_of_the_same_server_under_another_release_are_no_finding(tmp_path: Path) -> None:
    assert _upgrade_of(_joined(tmp_path, "cpu-fast-0.jsonl.gz")) is None
