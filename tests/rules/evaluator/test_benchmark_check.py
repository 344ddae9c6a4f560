from dataclasses import replace

import pytest
from judging_samples import START, context, minute, tier
from test_incidents import finding as make_finding

from exporters.documents.replay import check_json, check_text
from rules.confidence import Certainty
from rules.evaluator.benchmark_check import Step13, check_benchmark
from rules.evaluator.incidents import group_incidents
from rules.plan.load_bins import BinnedWindow, bin_window
from rules.plan.load_bins import build_tier_context as view_of
from rules.verdicts.verdict import Status, Subject, Unknown, Verdict

WEEK = 7 * 24
PLANNED = context()


def hour(
    number: int, rps: float = 3.0, slow: float = 0.0, bin: int | None = 1, beyond: str = "", **more: object
) -> BinnedWindow:
    """The sum of one load bin in one hour, as the history keeps it; `slow` is a share."""
    window = minute(60 * number, rps=rps, slow=slow * rps * 3600, seconds=3600.0, **more)
    placed = bin_window(window, PLANNED.curve, None, bin)
    return BinnedWindow(replica=None, window=window, rps=placed.rps, in_system=placed.in_system, bin=bin, beyond=beyond)


def checked(binned: list[BinnedWindow]) -> Step13:
    return check_benchmark(PLANNED, binned, START + WEEK * 3600)


def result(found: Step13, rule: str) -> Verdict | Unknown:
    return next(a for a in found.results if a.rule == rule)


def test_a_week_like_the_benchmark_confirms_it() -> None:
    found = checked([hour(n, slow=0.002) for n in range(WEEK)])
    assert found.status is Status.OK
    assert found.requests == WEEK * 3600 * 3
    assert (found.highest_rps, found.usable_rps) == (3.0, 6.0)
    assert found.highest_share == 0.5


def test_slow_week_refutes_the_benchmark() -> None:
    found = checked([hour(n, slow=0.05) for n in range(WEEK)])
    assert found.status is Status.WARNING
    ttft = result(found, "TtftDivergence")
    assert (ttft.status, ttft.certainty) == (Status.WARNING, Certainty.CERTAIN)
    assert ttft.causes
    assert "1,814,400 requests, at least 5.0%" in ttft.details[0]


def test_two_bad_hours_refute_nothing() -> None:
    assert checked([hour(n, slow=0.9 if n > 165 else 0.0) for n in range(WEEK)]).status is Status.OK
    assert checked([hour(n, slow=0.9 if n > 164 else 0.0) for n in range(WEEK)]).status is Status.WARNING


def test_bins_of_one_hour_are_one() -> None:
    def both(n: int) -> list[BinnedWindow]:
        return [hour(n, rps=1.0, bin=0, slow=0.9), hour(n, slow=0.9)] if n > 165 else [hour(n)]

    assert checked([one for n in range(WEEK) for one in both(n)]).status is Status.OK


def test_ended_divergence_is_over() -> None:
    assert checked([hour(n, slow=0.2 if n < 120 else 0.0) for n in range(WEEK)]).status is Status.OK
    assert checked([hour(n, slow=0.2 if n < 140 else 0.0) for n in range(WEEK)]).status is Status.WARNING


def test_bins_that_were_never_visited_are_named() -> None:
    found = checked([hour(0), hour(1, rps=3.8)])
    assert found.unvisited == ("0 to 2 rps", "4 to 6 rps")
    assert found.highest_rps == 3.8


def test_requestless_visit_reaches_no_bin() -> None:
    assert checked([hour(0, rps=0.0, bin=0), hour(1)]).unvisited == ("0 to 2 rps", "4 to 6 rps")


def test_load_beyond_is_counted_apart() -> None:
    beyond = [hour(n, rps=7.0, bin=None, beyond="7 completed rps is above 6") for n in range(WEEK)]
    found = checked([one for n in range(WEEK) for one in (hour(n), beyond[n])])
    assert found.highest_share == pytest.approx(7 / 6)
    load = result(found, "LoadBeyondBenchmark")
    assert load.certainty is Certainty.CERTAIN
    assert load.sentence.startswith("The tier is beyond the benchmarked load; ")
    assert load.details[0].startswith("in 168 hours: 7 completed rps is above 6")


def test_without_a_benchmark_nothing_is_confirmed() -> None:
    bare = view_of("t", None)
    binned = [bin_window(minute(60 * n, seconds=3600.0), None, None) for n in range(WEEK)]
    found = check_benchmark(bare, binned, START + WEEK * 3600)
    assert isinstance(result(found, "KvEviction"), Verdict)
    assert found.status is Status.UNKNOWN
    assert (found.unvisited, found.highest_share) == (None, None)


def test_an_engine_without_latencies_confirms_nothing() -> None:
    found = checked([hour(n, histograms={"ttft_seconds": (), "tpot_seconds": ()}) for n in range(WEEK)])
    assert found.status is Status.UNKNOWN


def test_evictions_alone_still_fail_the_check() -> None:
    bare = view_of("t", None)
    binned = [
        bin_window(minute(60 * n, seconds=3600.0, counters={"preemptions": 5000.0}), None, None) for n in range(WEEK)
    ]
    assert check_benchmark(bare, binned, START + WEEK * 3600).status is Status.CRITICAL


def test_nothing_seen_is_unknown() -> None:
    found = checked([])
    assert (found.status, found.requests, found.highest_rps, found.highest_share) == (Status.UNKNOWN, 0, None, None)
    assert len(found.unvisited) == 3


def test_short_spans_use_minutes() -> None:
    binned = [bin_window(minute(n, slow=20 if n >= 50 else 0), PLANNED.curve, "a") for n in range(60)]
    now = START + 3600
    # Of one hour nobody can tell whether it lasts.
    assert check_benchmark(PLANNED, binned, now).status is Status.UNKNOWN
    assert check_benchmark(PLANNED, binned, now, period_seconds=60.0).status is Status.WARNING


def test_usable_rps_is_the_plans() -> None:
    tight = view_of("t", tier(slo={"ttft_p99_seconds": 0.2}))
    found = check_benchmark(tight, [hour(n) for n in range(WEEK)], START + WEEK * 3600)
    assert found.usable_rps == pytest.approx(4.0)
    assert found.highest_share == pytest.approx(0.75)


def test_divergence_names_its_newest_incident() -> None:
    found = checked([hour(n, slow=0.05) for n in range(WEEK)])
    drift, slow = make_finding("WorkloadDrift", 0.0), make_finding("TtftDivergence", 60.0)
    elsewhere = replace(slow, subject=Subject(tier="elsewhere"))
    mine = [replace(one, subject=Subject(tier=found.tier)) for one in (drift, slow)]
    incidents = group_incidents([*mine, elsewhere], now=90.0)
    text = check_text([found], "the last 7d", 0.0, incidents)
    assert text.count("incident: WorkloadDrift is seen since 00:00") == 1
    (tier,) = check_json([found], incidents)["tiers"]
    assert [one["root"] for one in tier["incidents"]] == ["WorkloadDrift"]
    assert "incident:" not in check_text([found], "the last 7d", 0.0)
