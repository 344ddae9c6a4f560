"""Releases of a tier's replicas: events of a change, and replaced pods."""

from making import bare_page
from paths import TESTS

from agent.config.files import load_plan
from rules.evaluator.observation import ClosedMinute, Observation, ReplicaScrape
from rules.evaluator.state import EvaluatorState
from rules.evaluator.step import Evaluator
from rules.evaluator.timeline import TimelineEvent, TimelineKind, list_entries
from rules.plan.load_bins import build_tier_context
from rules.plan.schema import Precision
from rules.telemetry.snapshots import Snapshot
from tests.support.judging_samples import context

T = 1_800_000_000.0


class Fleet:
    """Replicas of tier t that tell their release, turn by turn."""

    def __init__(self) -> None:
        self.evaluator, self.state, self.t = Evaluator({"t": context()}), EvaluatorState(), T
        self.events: list[TimelineEvent] = []
        self.minutes: list[ClosedMinute] = []

    def turn(self, removed: tuple[str, ...] = (), **releases: str) -> list[str]:
        """The texts of the releases that this turn told."""
        self.t += 15
        pages = {name: _page(self.t, release) for name, release in releases.items()}
        scrapes = tuple(ReplicaScrape(tier="t", replica=name, t=self.t, snapshot=page) for name, page in pages.items())
        gone = frozenset(("t", name) for name in removed)
        result = self.evaluator.step(self.state, Observation(now=self.t, scrapes=scrapes, removed=gone))
        result.raise_defects()
        self.minutes += result.minutes
        found = [one for one in result.events if one.kind == TimelineKind.RELEASE]
        self.events += found
        return [one.text for one in found]

    @property
    def timeline(self) -> list[tuple[float, str]]:
        found = list_entries([], [], self.events, 0.0)
        return [(one.t, one.text) for one in found if one.kind == TimelineKind.RELEASE]


def _page(t: float, release: str) -> Snapshot:
    facts = {"engine_version": release, "cache_dtype": "fp8_e4m3"} if release else {"cache_dtype": "auto"}
    return bare_page(t, counters={"requests_finished": t - T}, facts=facts)


def test_changed_replicas_are_one_entry() -> None:
    fleet = Fleet()
    old = dict.fromkeys("abcd", "0.32.0")
    assert fleet.turn(**old) == fleet.turn(**old) == []
    assert fleet.turn(**{**old, "a": "0.33.0"}) == ["vllm 0.32.0 → 0.33.0"]
    began = fleet.t
    # A page whose release is not known yet is no change, nor is the builder's part of a release.
    assert fleet.turn(a="0.33.0+cpu", b="", c="0.33.0") == ["vllm 0.32.0 → 0.33.0"]
    assert fleet.turn(b="0.33.0") == ["vllm 0.32.0 → 0.33.0"]
    assert fleet.timeline == [(began, "vllm 0.32.0 → 0.33.0")]
    assert fleet.turn(a="0.32.0") == ["vllm 0.33.0 → 0.32.0"]
    assert fleet.timeline == [(began, "vllm 0.32.0 → 0.33.0"), (fleet.t, "vllm 0.33.0 → 0.32.0")]


def test_replaced_pods_change_release() -> None:
    fleet, at_once = Fleet(), Fleet()
    fleet.turn(a="0.32.0", b="0.32.0")
    assert fleet.turn(c="0.33.0") == ["vllm 0.32.0 → 0.33.0"]
    assert fleet.turn(d="0.32.0") == []
    assert fleet.turn(removed=("a", "b", "d"), e="0.33.0") == []
    assert [text for _, text in fleet.timeline] == ["vllm 0.32.0 → 0.33.0"]
    at_once.turn(a="0.32.0")
    at_once.turn(removed=("a",))
    assert at_once.turn(b="0.33.0") == ["vllm 0.32.0 → 0.33.0"]


def test_minute_knows_release_and_precision() -> None:
    fleet = Fleet()
    plan = load_plan(TESTS / "plans" / "cpu-small.yaml").tiers["cpu-small"]
    planned = plan.model_copy(update={"precision": Precision(weights="fp8", kv="bf16")})
    fleet.evaluator = Evaluator({"t": build_tier_context("t", planned)})
    for _ in range(6):
        fleet.turn(a="0.32.0", b="")
    for _ in range(6):
        fleet.turn(a="0.33.0", b="")
    served = {(one.replica, one.release, one.precision) for one in fleet.minutes}
    # What the page tells of the KV cache goes before the plan; "auto" tells nothing.
    assert served == {
        ("a", "vllm 0.32.0", "fp8/fp8_e4m3"),
        ("a", "vllm 0.33.0", "fp8/fp8_e4m3"),
        ("b", "vllm", "fp8/bf16"),
    }
