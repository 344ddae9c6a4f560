"""Windows in batches give every rule the result that the same windows give without them."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import chain

import pytest
from judging_samples import START, context, minute, minutes

from rules.catalogue.registry import BY_NAME
from rules.evaluator import tier_minutes, tier_rules
from rules.methods.divergence import Tail, compute_tail
from rules.plan.load_bins import BinnedWindow, TierContext
from rules.telemetry.signals import Gap
from rules.telemetry.windows import Window, gap_window
from rules.verdicts.context import BenchmarkComparison, RuleContext, select_comparable
from rules.verdicts.held_windows import HeldWindows
from rules.verdicts.verdict import RuleResult, Status

COUNT = 20
NAMES = ("a", "b", "c", "d")
PLAN = context(workload={"prefix_hit_ratio": 0.9, "requests_per_second": {"average": 2.0, "peak": 4.0}})


def asked(number: float, requests: float = 60.0, hits: float = 0.9, **more: float) -> Window:
    """A minute of a replica whose prompts ask the prefix cache."""
    tokens = {"prefix_queried_tokens": 1000.0 * requests, "prefix_hit_tokens": 1000.0 * requests * hits}
    return minute(number, rps=requests / 60.0, counters=tokens, **more)


def steady(number: int, name: str) -> Window:
    return asked(number)


def slow_tail(number: int, name: str) -> Window:
    return asked(number, slow=9.0 if number < 12 or number % 2 else 1.0)


def broken_routing(number: int, name: str) -> Window:
    return asked(number) if number < 17 else asked(number, hits=0.3)


def overload(number: int, name: str) -> Window:
    return minute(number, rps=9.0, slow=50.0, in_system=40.0)


def growing_queue(number: int, name: str) -> Window:
    return minute(number, rps=4.0, waiting=3.0 * number, in_system=4.0 + 3.0 * number, change=5.0)


def hot_spot(number: int, name: str) -> Window:
    busy = name == "a"
    return minute(number, rps=4.0 if busy else 2.0, waiting=6.0 if busy else 0.0, in_system=20.0 if busy else 3.0)


def new_and_restarted(number: int, name: str) -> Window:
    if name == "b" and number == 8:
        start = START + 60.0 * number
        return replace(gap_window(start, start + 60.0, Gap.RESTARTED), counters={"restarts": 1.0}, covered_seconds=5.0)
    return asked(number, hits=0.1 if name == "d" and number < 14 else 0.9)


def holes(number: int, name: str) -> Window:
    start = START + 60.0 * number
    return gap_window(start, start + 60.0, Gap.SCRAPE_FAILED) if number % 3 else asked(number)


SCENARIOS = (steady, slow_tail, broken_routing, overload, growing_queue, hot_spot, new_and_restarted, holes)


def windows_of(scenario: Callable[[int, str], Window]) -> HeldWindows:
    """The minutes of four replicas, of which one comes later."""
    late = {"d": 9} if scenario is new_and_restarted else {}
    made = {
        name: [shifted(scenario(n, name), place) for n in range(late.get(name, 0), COUNT)]
        for place, name in enumerate(NAMES)
    }
    return minutes(PLAN, made).binned


def shifted(window: Window, place: int) -> Window:
    """Replicas are scraped at different seconds: their minutes lie in two minutes of the clock."""
    return replace(window, start=window.start + 15.0 * place, end=window.end + 15.0 * place)


def in_batches(flat: HeldWindows, seconds: float) -> HeldWindows:
    """The same windows, as turns of so many seconds bring them."""
    turns: dict[float, list[BinnedWindow]] = {}
    for one in flat:
        turns.setdefault(one.window.end // seconds, []).append(one)
    held = HeldWindows.of_batches(map(HeldWindows, turns.values()))
    assert held == flat
    assert len(held.batches) == len(turns) > 1
    return held


def results(held: HeldWindows, now: float) -> Iterator[RuleResult]:
    kept = tier_minutes.TierMinutes(binned=held)
    fleet = tier_rules.compared_tiers({"t": kept}, {"t": PLAN}, now)
    yield from tier_rules.evaluate_tier_rules(kept, PLAN, now, fleet)


@pytest.mark.parametrize("seconds", [60.0, 75.0, 300.0])
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda one: one.__name__)
def test_batches_give_every_rule_the_same_result(scenario: Callable[[int, str], Window], seconds: float) -> None:
    flat = windows_of(scenario)
    now = max(one.window.end for one in flat)
    assert list(results(in_batches(flat, seconds), now)) == list(results(flat, now))


def test_changed_basis_counts_minutes_anew() -> None:
    flat = windows_of(slow_tail)
    held, now = in_batches(flat, 60.0), flat.ends[1]
    slower = context({"ttft_p99_seconds": 0.15}, requests=100)
    lenient, trusting = (
        {"TtftDivergence": {name: value}} for name, value in (("factor", 3.0), ("supported_requests", 90))
    )
    plans = PLAN, slower, replace(PLAN, limits=lenient), replace(slower, limits=trusting), PLAN

    def tails(of: HeldWindows, plan: TierContext, rule: str) -> list[Tail | None]:
        case = RuleContext(rule=BY_NAME[rule], catalogue=BY_NAME, tier=plan, binned=of, now=now)
        found = select_comparable(case)
        assert isinstance(found, BenchmarkComparison)
        return [compute_tail(found, minute) for minute in case.periods(found.binned)]

    asked_of = [(plan, rule) for plan in plans for rule in ("TtftDivergence", "TpotDivergence")]
    found = [tails(held, *one) for one in asked_of]
    assert found == [tails(windows_of(slow_tail), *one) for one in asked_of]
    assert all(found[0] != other for other in found[2:8:2])


def test_scenarios_fire_batch_rules() -> None:
    firing: Mapping[str, set[str]] = {
        scenario.__name__: {
            one.rule
            for flat in [windows_of(scenario)]
            for one in results(flat, flat.ends[1])
            if getattr(one, "status", Status.OK) is not Status.OK
        }
        for scenario in SCENARIOS
    }
    assert {"TtftDivergence", "TpotDivergence"} <= firing["slow_tail"]
    assert "PrefixRoutingBroken" in firing["broken_routing"]
    assert "LoadBeyondBenchmark" in firing["overload"]
    assert "QueueGrowing" in firing["growing_queue"]
    assert "ReplicaImbalance" in firing["hot_spot"]
    assert firing["steady"] == set()


def test_shared_batch_is_asked_once() -> None:
    asked_of: list[int] = []

    def count(batch: HeldWindows) -> int:
        asked_of.append(len(batch))
        return len(batch)

    held = in_batches(windows_of(steady), 60.0)
    first = [held.by_batch(count), HeldWindows.of_batches(held.batches[1:]).by_batch(count)]
    assert first == [[len(batch) for batch in held.batches], [len(batch) for batch in held.batches[1:]]]
    assert asked_of == first[0]


def test_kept_results_hold_no_windows() -> None:
    held = HeldWindows(windows_of(steady))
    kept = held.since(0.0, 0.0, 60.0)
    assert kept == held
    assert kept is not held
    assert all(batch is not held for batch in kept.batches)


def test_aggregated_batches_age_whole() -> None:
    kept, sizes = tier_minutes.TierMinutes(each=()), []
    for number in range(70):
        newest = [BinnedWindow(replica=name, window=minute(number), rps=3.0, in_system=3.0) for name in NAMES]
        before = kept.each or ()
        kept = tier_minutes.add_minutes(kept, newest[:1], PLAN, each=newest)
        assert kept.each is not None
        sizes.append(sum(map(len, kept.each)))
        lasting = [batch for batch in kept.each if any(batch is one for one in before)]
        assert len(lasting) >= len(before) - 2, "one is dropped and one is aged at most"
    assert sizes[-1] == sizes[-2] == 4 * 61
    now = kept.each[-1].ends[1]
    for one in chain.from_iterable(kept.each):
        old = one.window.end <= now - tier_minutes.RECENT_SECONDS
        assert bool("ttft_seconds" in one.window.histograms) is not old
