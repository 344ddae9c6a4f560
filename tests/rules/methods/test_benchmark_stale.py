from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import recorded
import yaml
from making import bare_page
from prose import explain

from agent.replay.replay import replay
from agent.sources.recording import load
from rules.catalogue.registry import BY_NAME
from rules.confidence import Certainty
from rules.evaluator.scrape_rules import evaluate_tier_availability
from rules.methods.configuration import is_excluded
from rules.plan.load_bins import build_tier_context
from rules.plan.schema import Plan, parse_plan
from rules.replicas.state import ReplicaState, ScrapeTrack
from rules.telemetry.signals import Gap
from rules.telemetry.snapshots import is_same_release
from rules.verdicts.verdict import RuleResult, Status, Verdict

PLAN = yaml.safe_load((recorded.PLANS / "cpu-small-open.yaml").read_text())
OTHERS = frozenset({"failing", "llamacpp", "sglang", "mixed_tier", "pools_real"})
"""Recordings of other engines and tiers."""

RECORDINGS = sorted(set(recorded.names()) - OTHERS)


def plan_of(measured: dict[str, Any] | None) -> Plan:
    tier = PLAN["tiers"]["cpu-small"]
    return parse_plan({"schema": 1, "tiers": {"cpu-small": {**tier, "curve": {**tier["curve"], "measured": measured}}}})


def replica(name: str, facts: Mapping[str, str] | None) -> ReplicaState:
    if facts is None:
        return ReplicaState(tier="t", name=name)
    return ReplicaState(tier="t", name=name, track=replace(ScrapeTrack(), last=bare_page(facts=facts)))


def judge(measured: dict[str, Any] | None, *pages: Mapping[str, str] | None, limits: Any = None) -> RuleResult:
    tier = plan_of(measured).tiers["cpu-small"]
    context = build_tier_context("t", tier, limits=limits)
    replicas = [replica(f"r{number}", facts) for number, facts in enumerate(pages)]
    return next(one for one in evaluate_tier_availability(replicas, [], context, 2.0) if one.rule == "BenchmarkStale")


def runs(*releases: str) -> list[dict[str, str]]:
    return [{"engine_version": release} for release in releases]


def test_other_release_than_benchmarked_is_told() -> None:
    measured = {"engine_version": "0.32.0", "measured_on": "2026-11-20"}
    found = judge(measured, *runs("0.33.0", "0.32.0", "0.33.0"))
    assert (found.status, found.certainty) == (Status.WARNING, Certainty.CERTAIN)
    assert explain(found) == (
        "2 of 3 replicas run release 0.33.0; release 0.32.0 was benchmarked; benchmarked on 2026-11-20"
    )
    every = judge({**measured, "tensor_parallel": 1}, *runs("0.33.0", "0.34.0"))
    assert (
        every.sentence == "All 2 replicas run release 0.33.0 (1) and release 0.34.0 (1); "
        "release 0.32.0, tensor parallel degree 1 was benchmarked"
    )


def test_benchmarked_release_is_ok() -> None:
    found = judge({"engine_version": "0.32.0"}, *runs("0.32.0+cpu"))
    assert (found.status, found.certainty) == (Status.OK, Certainty.CERTAIN)
    assert found.sentence == "The replica runs what was benchmarked: release 0.32.0"
    half = judge({"engine_version": "0.32.0"}, *runs("0.32.0"), {"engine_versions": "after 0.29.0"})
    assert (half.status, half.certainty) == (Status.OK, Certainty.LIKELY)


def test_page_names_only_exclude_releases() -> None:
    page = {"engine_versions": "after 0.29.0 and before 0.33.0"}
    inside = judge({"engine_version": "0.32.0"}, page)
    assert inside.reason is Gap.NOT_EXPOSED
    outside = judge({"engine_version": "0.29.0"}, page)
    assert outside.sentence == (
        "The replica runs a release after 0.29.0 and before 0.33.0; release 0.29.0 was benchmarked"
    )
    assert isinstance(judge({"engine_version": "0.29.0"}, {**page, "engine_version": "0.29.0"}), Verdict)
    told = judge({"engine_version": "0.29.0"}, {**page, "engine_version": "0.29.0"})
    assert told.status is Status.OK


@pytest.mark.parametrize(
    ("measured", "page", "words"),
    [
        ({"max_num_seqs": 256}, {"max_num_seqs": "128"}, "max-num-seqs 128; max-num-seqs 256 was benchmarked"),
        (
            {"tensor_parallel": 2},
            {"tensor_parallel_size": "4"},
            "tensor parallel degree 4; tensor parallel degree 2 was",
        ),
    ],
)
def test_batch_limit_and_parallelism_count(measured: dict[str, Any], page: dict[str, str], words: str) -> None:
    found = judge(measured, page)
    assert found.status is Status.WARNING
    assert words in found.sentence


@pytest.mark.parametrize(
    ("measured", "pages", "reason"),
    [
        (None, runs("0.33.0"), Gap.NOT_IN_PLAN),
        ({"measured_on": "2026-11-20"}, runs("0.33.0"), Gap.NOT_IN_PLAN),
        ({"engine_version": "0.32.0"}, [{}], Gap.NOT_EXPOSED),
        ({"engine_version": "0.32.0"}, [None], Gap.SCRAPE_FAILED),
    ],
)
def test_what_is_not_known_is_no_verdict(measured: Any, pages: Any, reason: Gap) -> None:
    found = judge(measured, *pages)
    assert found.reason is reason


def test_a_canary_may_be_allowed() -> None:
    limits = {"BenchmarkStale": {"replicas": 2}}
    one = judge({"engine_version": "0.32.0"}, *runs("0.33.0", "0.32.0"), limits=limits)
    assert (one.status, one.sentence[:16]) == (Status.OK, "1 of 2 replicas ")
    two = judge({"engine_version": "0.32.0"}, *runs("0.33.0", "0.33.0"), limits=limits)
    assert two.status is Status.WARNING


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("0.32.0", "v0.32", True),
        ("0.32.0+cpu", "0.32.0+cu129", True),
        ("0.33.0rc1", "0.33.0", False),
        ("0.10.0.post2", "0.10.0", False),
        ("0.3.2", "0.32", False),
        ("main-a1b2", "main-a1b2", True),
        ("main-a1b2", "main-c3d4", False),
    ],
)
def test_releases_are_compared_by_their_numbers(one: str, other: str, same: bool) -> None:
    assert is_same_release(one, other) is same
    assert is_same_release(other, one) is same


@pytest.mark.parametrize(
    ("allowed", "release", "excluded"),
    [
        ("after 0.29.0", "0.29.0", True),
        ("after 0.29.0", "0.9.2", True),
        ("after 0.29.0", "0.29.1", False),
        ("before 0.33.0", "0.33.0", True),
        ("before 0.33.0", "0.32.0", False),
        ("after 0.10.2 and before 0.12.0", "0.12.1", True),
        ("", "0.32.0", False),
        ("after 0.29.0", "nightly", False),
    ],
)
def test_a_range_of_releases_excludes_its_ends(allowed: str, release: str, excluded: bool) -> None:
    assert is_excluded(allowed, release) is excluded


def test_stale_benchmark_explains_nothing() -> None:
    assert BY_NAME["BenchmarkStale"].stage == 0


@pytest.mark.parametrize("name", RECORDINGS)
@pytest.mark.parametrize("release", ["0.32.0", "0.31.0"])
def test_recordings_fire_on_other_releases(name: str, release: str) -> None:
    recording, _ = load(Path(recorded.folder(name)))
    states = replay(recording, plan_of({"engine_version": release})).rule_states
    (state,) = [one for one in states if one.result.rule == "BenchmarkStale"]
    assert isinstance(state.result, Verdict)
    if release == "0.32.0":
        assert (state.result.status, state.finding) == (Status.OK, None)
    else:
        assert state.finding.worst.sentence.endswith("release 0.32.0; release 0.31.0 was benchmarked")
