from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import recorded
import yaml
from making import bare_page
from rule_cases import FAIRLY, FINE, HIDDEN, UNPLANNED, WARNED, Wanted, check_result

from agent.replay.replay import replay
from agent.sources.recording import load
from rules.catalogue.registry import BY_NAME
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


BENCHMARKED = {"engine_version": "0.32.0"}
RANGE = {"engine_versions": "after 0.29.0 and before 0.33.0"}
CANARY = {"BenchmarkStale": {"replicas": 2}}
TWO_OF_THREE = "2 of 3 replicas run release 0.33.0; release 0.32.0 was benchmarked; benchmarked on 2026-11-20"
ALL = (
    "All 2 replicas run release 0.33.0 (1) and release 0.34.0 (1); "
    "release 0.32.0, tensor parallel degree 1 was benchmarked"
)
OUTSIDE = "The replica runs a release after 0.29.0 and before 0.33.0; release 0.29.0 was benchmarked"


@pytest.mark.parametrize(
    ("measured", "pages", "limits", "wanted", "text"),
    [
        ({**BENCHMARKED, "measured_on": "2026-11-20"}, runs("0.33.0", "0.32.0", "0.33.0"), None, WARNED, TWO_OF_THREE),
        ({**BENCHMARKED, "tensor_parallel": 1}, runs("0.33.0", "0.34.0"), None, WARNED, ALL),
        (BENCHMARKED, runs("0.32.0+cpu"), None, FINE, "The replica runs what was benchmarked: release 0.32.0"),
        (BENCHMARKED, [*runs("0.32.0"), {"engine_versions": "after 0.29.0"}], None, FAIRLY, ""),
        # Names of metrics only exclude releases.
        (BENCHMARKED, [RANGE], None, HIDDEN, ""),
        ({"engine_version": "0.29.0"}, [RANGE], None, WARNED, OUTSIDE),
        ({"engine_version": "0.29.0"}, [{**RANGE, "engine_version": "0.29.0"}], None, FINE, ""),
        ({"max_num_seqs": 256}, [{"max_num_seqs": "128"}], None, WARNED, "max-num-seqs 128; max-num-seqs 256 was"),
        (
            {"tensor_parallel": 2},
            [{"tensor_parallel_size": "4"}],
            None,
            WARNED,
            "degree 4; tensor parallel degree 2 was",
        ),
        (None, runs("0.33.0"), None, UNPLANNED, ""),
        ({"measured_on": "2026-11-20"}, runs("0.33.0"), None, UNPLANNED, ""),
        (BENCHMARKED, [{}], None, HIDDEN, ""),
        (BENCHMARKED, [None], None, Gap.SCRAPE_FAILED, ""),
        (BENCHMARKED, runs("0.33.0", "0.32.0"), CANARY, FINE, "1 of 2 replicas "),
        (BENCHMARKED, runs("0.33.0", "0.33.0"), CANARY, WARNED, ""),
    ],
)
def test_release_against_the_benchmarked(measured: Any, pages: Any, limits: Any, wanted: Wanted, text: str) -> None:
    check_result(judge(measured, *pages, limits=limits), wanted, text)


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
