"""Before and after a change of release: what is slower at equal load, how sure that is, and what is never mixed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import pytest

from rules.confidence import Certainty
from rules.evaluator import tier_minutes, tier_rules
from rules.evaluator.long_rules import evaluate_upgrade, find_upgrade_hours
from rules.replicas.track import ReplicaRelease, find_upgrade
from rules.telemetry.signals import Gap
from rules.telemetry.windows import HOUR_SECONDS, Window
from rules.verdicts.verdict import RuleResult, Status, Unknown, Verdict
from tests.support.judging_samples import START, context, each, minute, minutes, seen

MINUTES = 14
SWITCH = START + 7 * 60.0


def records(*rows: tuple[float, str, str, str, int, int]) -> tuple[ReplicaRelease, ...]:
    return tuple(
        ReplicaRelease(t=t, replica=name, engine="vllm", release=to, before=was, running=on, replicas=of)
        for t, name, was, to, on, of in rows
    )


OLD = records((START, "a", "", "0.32.0", 1, 1))
IN_PLACE = (*OLD, *records((SWITCH, "a", "0.32.0", "0.33.0", 1, 1)))
ROLLOUT = (
    *records((START, "a", "", "0.32.0", 1, 1), (START, "b", "", "0.32.0", 2, 2)),
    *records((START, "c", "0.32.0", "0.33.0", 1, 3)),
)


def latency(seconds: float, rps: float = 3.0, slowest: float = 0.0) -> Mapping[str, object]:
    """TPOT of most requests of a minute, and of a twentieth of them `slowest`."""
    n = rps * 60
    values = {seconds: n - n / 20, slowest or seconds: n / 20} if slowest else {seconds: n}
    return {"histograms": {"tpot_seconds": seen(values)}}


def at(number: int, seconds: float, slowest: float = 0.0, rps: float = 3.0) -> Window:
    return minute(number, rps=rps, **latency(seconds, rps, slowest))


def answered(
    replicas: Mapping[str, Iterable[Window]], releases: tuple[ReplicaRelease, ...], now: float | None = None
) -> RuleResult:
    view = context()
    booked = minutes(view, replicas)
    for one in releases:
        booked = tier_minutes.add_release(booked, one)
    end = now or max(s.window.end for s in booked.binned)
    return next(a for a in tier_rules.evaluate_tier_rules(booked, view, end) if a.rule == "UpgradeRegression")


def verdict(replicas: Mapping[str, Iterable[Window]], releases: tuple[ReplicaRelease, ...] = IN_PLACE) -> Verdict:
    found = answered(replicas, releases)
    assert isinstance(found, Verdict), found
    return found


def slower_from(switch: int, slowest: float = 0.4) -> list[Window]:
    return each(MINUTES, lambda number: at(number, 0.08, slowest if number >= switch else 0.0))


def test_a_release_with_a_longer_tail_is_found_and_certain() -> None:
    found = verdict({"a": slower_from(8)})
    assert (found.status, found.certainty) == (Status.WARNING, Certainty.CERTAIN)
    assert found.sentence == "vllm 0.32.0 to 0.33.0: TPOT P99 4.3x as long at equal load since 08:07"
    assert "4.3% or more have a TPOT that 99% stayed below before" in found.details


def test_the_same_latencies_are_no_finding() -> None:
    found = verdict({"a": slower_from(99)})
    assert found.status is Status.OK
    assert found.sentence == "vllm 0.32.0 to 0.33.0: nothing slower at equal load"


def test_a_faster_release_is_no_finding_and_the_number_is_told() -> None:
    found = verdict({"a": each(MINUTES, lambda number: at(number, 0.08, 0.4 if number < 7 else 0.0))})
    assert found.status is Status.OK
    assert any("TPOT P99" in text and "faster" in text for text in found.details)


def test_the_tail_inside_one_bucket_is_not_proven() -> None:
    # 0.2 s and 0.25 s lie in the same bucket: nothing is above the edge that the older release stayed below.
    windows = each(MINUTES, lambda number: at(number, 0.2 if number < 8 else 0.25))
    assert verdict({"a": windows}).status is Status.OK


def test_other_load_is_not_compared() -> None:
    windows = each(MINUTES, lambda n: at(n, 0.08, 0.0, rps=1.5) if n < 8 else at(n, 0.08, 0.4, rps=5.0))
    found = answered({"a": windows}, IN_PLACE)
    assert isinstance(found, Unknown)
    assert (found.reason, found.text) == (Gap.LOAD_NOT_REACHED, "0.32.0 and 0.33.0 served no load in common")


def test_during_a_rollout_replicas_of_both_releases_are_compared_and_never_blended() -> None:
    fast, slow = each(MINUTES, lambda n: at(n, 0.08)), each(MINUTES, lambda n: at(n, 0.08, 0.4))
    found = verdict({"a": fast, "b": fast, "c": slow}, ROLLOUT)
    assert (found.status, found.certainty) == (Status.WARNING, Certainty.CERTAIN)
    assert found.details[0] == "vllm 0.32.0 → 0.33.0 on 1 of 3 replicas"
    # The same slow requests on a replica of the older release say nothing about the newer one.
    assert verdict({"a": slow, "b": fast, "c": fast}, ROLLOUT).status is Status.OK


def test_minutes_around_the_change_belong_to_neither_release() -> None:
    upgrade = find_upgrade(IN_PLACE)
    assert upgrade is not None
    assert upgrade.find_release("a", SWITCH - 180, SWITCH - 120) == "0.32.0"
    assert [upgrade.find_release("a", SWITCH + d - 60, SWITCH + d) for d in (0, 30, 59)] == [""] * 3
    assert upgrade.find_release("a", SWITCH, SWITCH + 60) == "0.33.0"
    assert upgrade.find_release("z", SWITCH, SWITCH + 60) == ""


def test_the_whole_tier_runs_a_release_only_outside_of_the_change() -> None:
    upgrade = find_upgrade((*ROLLOUT, *records((SWITCH, "d", "0.32.0", "0.33.0", 2, 2))))
    assert upgrade is not None
    hours = [(START - 60, START), (START, SWITCH), (SWITCH - 30, SWITCH + 30), (SWITCH, SWITCH + 60)]
    assert [upgrade.find_release(None, *hour) for hour in hours] == ["0.32.0", "", "", "0.33.0"]
    unfinished = find_upgrade(ROLLOUT)
    assert unfinished is not None
    assert unfinished.find_release(None, SWITCH, SWITCH + 60) == ""


def test_a_burst_of_one_minute_is_no_finding() -> None:
    windows = each(MINUTES, lambda number: at(number, 0.08, 0.4 if number == 10 else 0.0))
    assert verdict({"a": windows}).status is Status.OK


def test_a_tail_that_is_proven_in_one_minute_only_is_likely() -> None:
    def mixed(number: int) -> Window:
        longer = {} if number < 8 else {0.14: 18.0, 0.4: 40.0 if number == 12 else 0.0}
        rest = {0.08: 180.0 - sum(longer.values())} | longer
        if number < 8:
            rest = {0.08: 179.0, 0.14: 1.0}
        return minute(number, histograms={"tpot_seconds": seen(rest)})

    found = verdict({"a": each(MINUTES, mixed)})
    assert (found.status, found.certainty) == (Status.WARNING, Certainty.LIKELY)


def test_too_few_requests_of_a_release_are_named() -> None:
    found = answered({"a": slower_from(8)[:7]}, IN_PLACE)
    assert isinstance(found, Unknown)
    assert (found.reason, found.text) == (Gap.TOO_FEW_REQUESTS, "0 requests of 0.33.0, 100 are needed")


def test_longer_prompts_or_a_cold_cache_leave_it_likely() -> None:
    def longer(number: int) -> Window:
        one = at(number, 0.08, 0.4 if number >= 8 else 0.0)
        prompts = seen({1000.0 if number < 8 else 3000.0: 180.0}, (2000.0, 5000.0, float("inf")))
        return minute(number, histograms={**one.histograms, "prompt_tokens_per_request": prompts})

    found = verdict({"a": each(MINUTES, longer)})
    assert (found.status, found.certainty) == (Status.WARNING, Certainty.LIKELY)
    assert "the prompts changed too: 1,000 tokens before, 2,714 after" in found.details

    def colder(number: int) -> Window:
        one, hits = at(number, 0.08, 0.4 if number >= 8 else 0.0), 60.0 if number < 8 else 30.0
        counters = {"prefix_queried_tokens": 100.0, "prefix_hit_tokens": hits}
        return minute(number, histograms=dict(one.histograms), counters=counters)

    found = verdict({"a": each(MINUTES, colder)})
    assert found.certainty is Certainty.LIKELY
    assert "prefix hits changed too: 60% before, 34% after" in found.details


def test_throughput_of_both_releases_at_equal_load_is_told() -> None:
    def tokens(number: int) -> Window:
        one = at(number, 0.08)
        return minute(
            number, histograms=dict(one.histograms), counters={"generation_tokens": 5400.0 if number < 8 else 4500.0}
        )

    found = verdict({"a": each(MINUTES, tokens)})
    assert "throughput 30 to 25.7 output tokens/s of a request in the system (-14%)" in found.details


@pytest.mark.parametrize("releases", [(), OLD])
def test_without_a_change_nothing_is_compared(releases: tuple[ReplicaRelease, ...]) -> None:
    found = answered({"a": slower_from(8)}, releases)
    if not releases:
        assert isinstance(found, Unknown)
        assert found.reason is Gap.NOT_EXPOSED
    else:
        assert isinstance(found, Verdict)
        assert found.sentence == "No replica changed its release in this time (vllm 0.32.0)"


def test_hours_before_and_after_a_finished_change_are_compared_for_a_week() -> None:
    view = context()
    booked = minutes(view, {"a": each(20, lambda n: at(n, 0.08, 0.4 if n >= 10 else 0.0))})
    # Each minute stands for an hour of the history: sums over the replicas.
    hours = tuple(
        replace(one, replica=None, window=replace(one.window, start=t, end=t + HOUR_SECONDS))
        for number, one in enumerate(booked.binned)
        for t in (START + number * HOUR_SECONDS,)
    )
    change = START + 10 * HOUR_SECONDS
    releases = (*OLD, *records((change, "a", "0.32.0", "0.33.0", 1, 1)))
    now = START + 20 * HOUR_SECONDS
    assert find_upgrade_hours(releases, now) == (change - 7 * 86_400, now)
    assert find_upgrade_hours(releases, change + 7.1 * 86_400) is None
    assert find_upgrade_hours(ROLLOUT, now) is None
    found = evaluate_upgrade(view, hours, releases, now)
    assert isinstance(found, Verdict)
    assert (found.status, found.certainty) == (Status.WARNING, Certainty.CERTAIN)
    assert isinstance(evaluate_upgrade(view, (), (), now), Unknown)
