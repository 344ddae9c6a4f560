"""The rules on engines alone agree with the Python judgement at and around each threshold.

promtool replays series of the same numbers that the judgement gets as windows. An alert must be there exactly where the
judgement is a certain warning.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from itertools import accumulate
from pathlib import Path

import pytest
import yaml
from engine_rules import written
from judging_samples import START, answered, context, each, gauge, minute, seen
from promtool import Case, differences, firing, narrowed

from exporters.prometheus_rules.engine_queries import EDGES
from exporters.prometheus_rules.engine_rules import Z
from rules.confidence import Certainty, poisson_lower_bound
from rules.evaluator.scrape_rules import evaluate_replica_rules
from rules.replicas.state import ReplicaState
from rules.replicas.track import ScrapeTrack
from rules.telemetry.gauges import STEP_FAMILY
from rules.telemetry.snapshots import Snapshot
from rules.telemetry.windows import Window
from rules.verdicts.verdict import FIRING, RuleResult, Verdict

LABELS = 'tier="t",instance="a:8000"'
FINISHED = f'vllm:request_success_total{{{LABELS},finished_reason="stop"}}'
PREEMPTED = f"vllm:num_preemptions_total{{{LABELS}}}"
RUNNING, WAITING = (f"vllm:num_requests_{what}{{{LABELS}}}" for what in ("running", "waiting"))
KV = f"vllm:kv_cache_usage_perc{{{LABELS}}}"
STEPS = f"vllm:iteration_tokens_total_count{{{LABELS}}}"


@pytest.fixture(scope="module")
def rules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("engine"))


def counted(minutes: Iterable[float]) -> str:
    """A counter that grows evenly within each minute, scraped every 15 s."""
    return " ".join(f"{value:.10g}" for value in accumulate((m / 4 for m in minutes for _ in range(4)), initial=0.0))


def level(minutes: Iterable[float]) -> str:
    """A gauge that stands at one value for each minute, scraped at its end as well."""
    levels = [f"{value:.10g}" for value in minutes for _ in range(4)]
    return " ".join([levels[0], *levels])


def certain(result: RuleResult) -> bool:
    return isinstance(result, Verdict) and result.status in FIRING and result.certainty is Certainty.CERTAIN


def asked(rules: Path, rule: str) -> str:
    """Whether what any alert of the rule asks holds, whatever it waits for before it fires and however long it is kept."""
    groups = yaml.safe_load(rules.read_text(encoding="utf-8"))["groups"]
    counts = [f"count({row['expr']})" for group in groups for row in group["rules"] if row.get("alert") == rule]
    assert counts
    return f"({' or '.join(counts)}) > bool 0 or vector(0)"


def disagreements(
    folder: Path, rules: Path, rule: str, when: str, cases: Mapping[str, tuple[dict[str, str], RuleResult]]
) -> str:
    """Where promtool and the judgement do not say the same of a case; of both answers there must be some."""
    expected = {name: certain(result) for name, (_, result) in cases.items()}
    assert set(expected.values()) == {True, False}
    ran = [
        Case(name=name, series=told, values=[(when, asked(rules, rule), float(expected[name]))])
        for name, (told, _) in cases.items()
    ]
    return differences(folder, narrowed(folder, rules, rule), ran)


EVICTIONS: Mapping[str, tuple[float, list[float]]] = {
    "none": (3.0, [0, 0, 0, 0, 0]),
    "just at the limit": (3.0, [9, 9, 9, 9, 9]),
    "above it, within chance": (3.0, [10, 10, 10, 10, 10]),
    "nearly certain": (3.0, [14, 13, 13, 13, 13]),
    "certain": (3.0, [14, 14, 14, 14, 14]),
    "just at the critical limit": (3.0, [36, 36, 36, 36, 36]),
    "above the critical limit": (3.0, [37, 37, 37, 37, 37]),
    "in two minutes only": (3.0, [0, 0, 0, 60, 60]),
    "in three minutes": (3.0, [0, 0, 60, 60, 60]),
    "over by now": (3.0, [60, 60, 60, 60, 0]),
    "few at the end": (3.0, [60, 60, 60, 60, 8]),
    "few requests, as many preemptions as chance gives": (0.05, [1, 0, 1, 0, 1]),
    "few requests, many preemptions": (0.05, [10, 10, 10, 10, 10]),
    "heavy traffic, just below": (40.0, [118, 118, 118, 118, 118]),
    "heavy traffic, above": (40.0, [150, 150, 150, 150, 150]),
}


def test_evictions_agree_with_the_judgement_at_and_around_each_limit(tmp_path: Path, rules: Path) -> None:
    cases = {}
    for name, (rps, events) in EVICTIONS.items():
        windows = each(5, lambda n, rps=rps, events=events: minute(n, rps=rps, counters={"preemptions": events[n]}))
        told = {PREEMPTED: counted(events), FINISHED: counted([rps * 60] * 5)}
        cases[name] = (told, answered("KvEviction", context(), windows))
    assert not disagreements(tmp_path, rules, "KvEviction", "5m", cases)


def test_the_bound_in_promql_is_never_bolder_than_the_exact_one() -> None:
    z = Z
    for k in (1, 2, 3, 5, 8, 10, 20, 50, 100, 1000, 10_000):
        here = k * (1 - 1 / (9 * k) - z / (3 * k**0.5)) ** 3
        exact = poisson_lower_bound(k)
        assert here <= exact + 1e-9
        assert k < 10 or here == pytest.approx(exact, rel=0.02)


LOADS: Mapping[str, tuple[list[float], list[float]]] = {
    "below the top": ([6.1] * 15, [4.0] * 15),
    "above the top": ([6.15] * 15, [4.0] * 15),
    "in the last two minutes": ([3.0] * 13 + [7.0] * 2, [4.0] * 15),
    "in the last three minutes": ([3.0] * 12 + [7.0] * 3, [4.0] * 15),
    "in three minutes, one of them late": ([3.0] * 5 + [7.0] * 2 + [3.0] * 7 + [7.0], [4.0] * 15),
    "in three minutes, two of them late": ([3.0] * 5 + [7.0] + [3.0] * 7 + [7.0] * 2, [4.0] * 15),
    "over by now": ([7.0] * 8 + [3.0] * 7, [4.0] * 15),
    "as many in the system as were measured": ([3.0] * 15, [8.0] * 15),
    "more in the system than were measured": ([3.0] * 15, [8.5] * 15),
}


def test_load_beyond_the_benchmark_agrees_with_the_judgement(tmp_path: Path, rules: Path) -> None:
    cases = {}
    for name, (rates, system) in LOADS.items():
        windows = each(15, lambda n, r=rates, s=system: minute(n, rps=r[n], in_system=s[n], waiting=1.0))
        told = {
            FINISHED: counted(rate * 60 for rate in rates),
            RUNNING: level(one - 1.0 for one in system),
            WAITING: level([1.0] * 15),
        }
        cases[name] = (told, answered("LoadBeyondBenchmark", context(), windows))
    assert not disagreements(tmp_path, rules, "LoadBeyondBenchmark", "15m", cases)


def test_one_overloaded_replica_of_two_is_found_and_named(tmp_path: Path, rules: Path) -> None:
    busy, idle = (FINISHED.replace("a:8000", name) for name in ("busy", "idle"))
    told = {busy: counted([420.0] * 20), idle: counted([60.0] * 20)}
    name = firing("LoadBeyondBenchmark", instance="busy")
    assert not differences(
        tmp_path, rules, [Case(series=told, values=[("20m", name, 1), ("20m", firing("LoadBeyondBenchmark"), 1)])]
    )


def test_a_target_is_down_after_as_many_scrapes_as_the_judgement_counts(tmp_path: Path, rules: Path) -> None:
    page = snapshot({}, {})
    up = {"up{" + LABELS + "}": "1x9 0x9"}
    values = []
    for misses in (1, 2, 3, 4):
        one = ReplicaState(tier="t", name="a", track=ScrapeTrack(last=page, seen=START, misses=misses))
        (result,) = [a for a in evaluate_replica_rules(one, context(), START) if a.rule == "TargetDown"]
        values.append((f"{(9 + misses) * 15}s", firing("TargetDown"), float(certain(result))))
    assert [value for *_, value in values] == [0, 0, 1, 1]
    assert not differences(tmp_path, rules, [Case(series=up, values=values)])


def test_telemetry_is_stale_after_as_long_as_the_judgement_waits(tmp_path: Path, rules: Path) -> None:
    moving = {STEPS: "0+5x20 100x40", RUNNING: "3x60", WAITING: "0x60", KV: "0.5x60"}
    values = []
    for stood in (90.0, 105.0, 120.0, 135.0):
        one = ReplicaState(
            tier="t", name="a", track=ScrapeTrack(last=snapshot({STEP_FAMILY: 9.0}, {"requests_running": 3.0}), seen=START),
            stale_seconds=stood,
        )  # fmt: skip
        (result,) = [a for a in evaluate_replica_rules(one, context(), START) if a.rule == "TelemetryStale"]
        values.append((f"{300 + stood:.0f}s", asked(rules, "TelemetryStale"), float(certain(result))))
    assert [value for *_, value in values] == [0, 0, 1, 1]
    idle = {**moving, RUNNING: "0x60", KV: "0x60"}
    assert not differences(
        tmp_path,
        rules,
        [Case(series=moving, values=values), Case(series=idle, values=[("12m", asked(rules, "TelemetryStale"), 0)])],
    )


def snapshot(counters: Mapping[str, float], gauges: Mapping[str, float]) -> Snapshot:
    return Snapshot(
        t=START, engine="vllm", generation="v1", started_at=None, ready_at=None, counters=counters, histograms={},
        gauges=gauges, facts={},
    )  # fmt: skip


VLLM_EDGES = (*EDGES["vllm", "ttft_seconds"], math.inf)


def ttft(hour: list[tuple[float, float, float]], what: str = "time_to_first_token") -> dict[str, str]:
    """Minutes of (requests above 2.5 s, above the objective of 2 s and not above that, all)."""
    name = f"vllm:{what}_seconds"
    below = {"1.0": [n - slow - near for slow, near, n in hour], "2.5": [n - slow for slow, _, n in hour]}
    found = {f'{name}_bucket{{{LABELS},le="{le}"}}': counted(minutes) for le, minutes in below.items()}
    return {**found, f"{name}_count{{{LABELS}}}": counted(n for *_, n in hour)}


def slow_minute(number: int, slow: float, near: float, n: float) -> Window:
    """The same minute as the judgement gets it."""
    parts = seen({3.0: slow, 2.3: near, 0.08: n - slow - near}, VLLM_EDGES)
    return minute(number, rps=n / 60, histograms={"ttft_seconds": parts})


HOURS: Mapping[str, list[tuple[float, float, float]]] = {
    "nothing slow": [(0, 0, 125)] * 60,
    "at the limit": [(18, 0, 125)] * 60,
    "above it, within chance": [(19, 0, 125)] * 60,
    "certain": [(20, 0, 125)] * 60,
    "far above": [(60, 0, 125)] * 60,
    "over by now": [(60, 0, 125)] * 50 + [(0, 0, 125)] * 10,
    "in two minutes only": [(0, 0, 1)] * 58 + [(60, 0, 60)] * 2,
    "in three minutes": [(0, 0, 1)] * 57 + [(60, 0, 60)] * 3,
    "too few requests": [(1, 0, 1)] * 45 + [(0, 0, 0)] * 15,
    "too few of late": [(30, 0, 60)] * 55 + [(5, 0, 9)] * 5,
    "above the objective, below the edge": [(0, 30, 60)] * 60,
}


def test_the_objective_burns_where_the_judgement_is_certain_that_it_does(tmp_path: Path, rules: Path) -> None:
    """The first hour of a tier: 14.4 x 1 % of its requests; of the longer windows the rest counts as free of slow ones."""
    cases = {}
    for name, hour in HOURS.items():
        windows = each(60, lambda n, hour=hour: slow_minute(n, *hour[n]))
        cases[name] = (ttft(hour), answered("TtftSloBurn", context(), windows))
    expected = {name: certain(result) for name, (_, result) in cases.items()}
    assert set(expected.values()) == {True, False}
    burns = asked(rules, "TtftSloBurn")
    ran = [Case(name=n, series=told, values=[("1h", burns, float(expected[n]))]) for n, (told, _) in cases.items()]
    assert not differences(tmp_path, narrowed(tmp_path, rules, "TtftSloBurn"), ran, evaluated="1m")


OTHERS = (
    ("ItlSloBurn", "itl_seconds", "inter_token_latency", 10),
    ("E2eSloBurn", "e2e_seconds", "e2e_request_latency", 1),
)


@pytest.mark.parametrize(("rule", "family", "what", "per_request"), OTHERS)
def test_whole_requests_and_output_events_burn_where_the_judgement_is_certain(
    tmp_path: Path, rule: str, family: str, what: str, per_request: float
) -> None:
    """Ten gaps a request prove no more than their requests do."""
    slo = {"ttft_p99_seconds": 2.0, family.replace("_seconds", "_p99_seconds"): 2.2}
    rules, cases = written(tmp_path, slo=slo), {}
    for name, hour in HOURS.items():
        events = [(slow * per_request, near * per_request, n * per_request) for slow, near, n in hour]
        windows = each(60, lambda n, hour=hour, events=events: minute(
            n, rps=hour[n][2] / 60, histograms={family: slow_minute(n, *events[n]).histograms["ttft_seconds"]}
        ))  # fmt: skip
        series = {**ttft(events, what), FINISHED: counted(n for *_, n in hour)}
        cases[name] = (series, answered(rule, context(slo=slo), windows))
    expected = {name: certain(result) for name, (_, result) in cases.items()}
    assert set(expected.values()) == {True, False}
    ran = [
        Case(name=n, series=told, values=[("1h", asked(rules, rule), float(expected[n]))])
        for n, (told, _) in cases.items()
    ]
    assert not differences(tmp_path, narrowed(tmp_path, rules, rule), ran, evaluated="1m")


def test_what_was_not_seen_of_the_long_window_counts_as_free_of_slow_requests(tmp_path: Path, rules: Path) -> None:
    """Ten minutes at 20 x are 3.3 x of the hour; ten at which every request is slow are 16.7 x."""
    cases = []
    for slow in (12.0, 60.0):
        short = [(slow, 0.0, 60.0)] * 10
        windows = each(10, lambda n, short=short: slow_minute(n, *short[n]))
        result = answered("TtftSloBurn", context(), windows)
        cases.append(Case(series=ttft(short), values=[("10m", asked(rules, "TtftSloBurn"), float(certain(result)))]))
        assert certain(result) == (slow == 60)
    assert not differences(tmp_path, narrowed(tmp_path, rules, "TtftSloBurn"), cases, evaluated="1m")


LEVELS_OF_KV: Mapping[str, list[float]] = {
    "just below": [0.899] * 15,
    "just above": [0.901] * 15,
    "in the last two minutes": [0.8] * 13 + [1.0] * 2,
    "high on the whole and over by now": [1.0] * 11 + [0.8] * 4,
    "three full minutes, low on the whole": [0.5] * 12 + [1.0] * 3,
    "a dip in the middle": [0.95] * 6 + [0.89] * 3 + [0.95] * 6,
}


def test_a_full_cache_agrees_with_the_judgement(tmp_path: Path, rules: Path) -> None:
    cases = {}
    for name, levels in LEVELS_OF_KV.items():
        windows = each(15, lambda n, levels=levels: minute(n, gauges={"kv_utilization": gauge(levels[n])}))
        cases[name] = ({KV: level(levels)}, answered("KvCacheNearCeiling", context(), windows))
    assert not disagreements(tmp_path, rules, "KvCacheNearCeiling", "15m", cases)


HITS: Mapping[str, list[float]] = {
    "just above": [0.31] * 15,
    "just below": [0.29] * 15,
    "none": [0.0] * 15,
    "low and over by now": [0.1] * 11 + [0.5] * 4,
    "low in two minutes": [0.5] * 13 + [0.0] * 2,
}


@pytest.mark.parametrize("queried", [1000.0, 600.0])
def test_low_prefix_hits_agree_with_the_judgement(tmp_path: Path, rules: Path, queried: float) -> None:
    """15,000 looked up tokens are enough to judge by, 9,000 are not."""
    results = {}
    cases = []
    for name, shares in HITS.items():
        counters = [{"prefix_queried_tokens": queried, "prefix_hit_tokens": queried * share} for share in shares]
        windows = each(15, lambda n, counters=counters: minute(n, counters=counters[n]))
        results[name] = certain(answered("PrefixHitLow", context(workload={"prefix_hit_ratio": 0.6}), windows))
        told = {
            f"vllm:prefix_cache_{what}_total{{{LABELS}}}": counted(one[family] for one in counters)
            for what, family in (("queries", "prefix_queried_tokens"), ("hits", "prefix_hit_tokens"))
        }
        cases.append(Case(name=name, series=told, values=[("15m", asked(rules, "PrefixHitLow"), float(results[name]))]))
    assert any(results.values()) == (queried == 1000)
    assert not differences(tmp_path, narrowed(tmp_path, rules, "PrefixHitLow"), cases)


def test_a_tier_is_down_when_its_last_target_is(tmp_path: Path, rules: Path) -> None:
    ups = {f'up{{tier="t",instance="{name}"}}': values for name, values in (("a", "1x9 0x20"), ("b", "1x19 0x10"))}
    fire = firing("TierDown", severity="critical")
    values = [("240s", fire, 0.0), ("315s", fire, 0.0), ("330s", fire, 1.0)]
    assert not differences(tmp_path, rules, [Case(series=ups, values=values)])


def test_a_burning_objective_says_what_was_seen_and_what_was_expected(tmp_path: Path, rules: Path) -> None:
    labels = {
        "tier": "t", "rule": "TtftSloBurn", "window": "1h", "severity": "critical", "loudness": "page",
        "source": "sizewatch",
    }  # fmt: skip
    text = rules.read_text(encoding="utf-8")
    assert "TTFT above 2.5 s, the bucket edge next to the 2 s promised; expected at most 1%" in text
    assert "TPOT above 0.1 s, the bucket edge next to the 0.08 s promised" in text
    assert not differences(
        tmp_path, rules, [Case(series=ttft([(30, 0, 60)] * 60), values=[("1h", firing("TtftSloBurn", **labels), 1)])]
    )
