"""Steps 1, 11 and 12 again, on a tier whose numbers are worked out by hand (see report_samples)."""

import math
from dataclasses import replace
from typing import Any

import pytest
from making import verdict
from report_samples import (
    HOUR,
    POOLED,
    START,
    USABLE,
    WEEK,
    day_and_night,
    hour,
    hours,
    minutes_of,
    pool_hours,
    seen_of,
    tier_view,
)

from rules.confidence import Certainty
from rules.plan.load_bins import BinnedWindow, TierContext, build_tier_context
from rules.resize.fleet_cost import planned_cost
from rules.resize.production_summary import ProductionSummary, SloStatus
from rules.resize.proposal import ProposalKind, Resize, propose_size
from rules.telemetry.signals import Missing
from rules.telemetry.windows import Window
from rules.verdicts.verdict import RuleResult

PLANNED = tier_view()
NOTHING: list[RuleResult] = []


def week(context: TierContext = PLANNED, **more: object) -> Resize:
    return propose_size(seen_of(context, hours(**more)), NOTHING)


def test_peak_needs_three_stretches() -> None:
    """Twice the peak for ten minutes of an hour: two stretches of five minutes, not three."""
    now = week().workload
    assert now.average_rps == pytest.approx(20.0)
    assert now.peak_to_average == pytest.approx(1.5)
    assert (now.planned_average_rps, now.planned_peak_rps) == (30, 50)
    noon = START + 12 * HOUR
    whole = hour(12, 60.0)
    counters = {name: value / 12 for name, value in whole.counters.items()}
    part = replace(whole, counters=counters, histograms={}, expected_seconds=3000.0, covered_seconds=3000.0)
    burst = [replace(part, start=at, end=at + 300) for at in (noon, noon + 300)]
    others = [one for one in hours() if one.start != noon]
    short = propose_size(seen_of(PLANNED, [*others, *burst]), NOTHING).workload
    peaks = [(one.highest_rps, one.peak_rps) for one in (now, short)]
    assert peaks == [(pytest.approx(30.0), pytest.approx(30.0)), (pytest.approx(60.0), pytest.approx(30.0))]
    empty = propose_size(seen_of(PLANNED, []), NOTHING).workload
    assert (empty.average_rps, empty.peak_rps) == (None, None)
    assert all(isinstance(one.observed, Missing) for one in empty.lengths)


def test_lengths_have_bucket_bounds_and_plan() -> None:
    planned = week().workload
    found = {(one.what, one.quantile): one for one in planned.lengths}
    p95 = found["prompts", "p95"]
    assert (p95.observed.low, p95.observed.high, p95.planned) == (500.0, 1000.0, 1900)
    assert found["prompts", "p50"].factors == (pytest.approx(500 / 900), pytest.approx(1000 / 900))
    assert (planned.towards, week(prompts=4000.0, outputs=80.0).workload.towards) == ("", "rag")


def test_last_week_tells_lengths() -> None:
    month = []
    for n in range(672):
        prompts, seconds = (800.0, 0.08) if n < 504 else (4000.0, 0.15)
        month.append(hour(n, day_and_night(n), prompts=prompts, ttft={seconds: 1.0}))
    found = propose_size(seen_of(PLANNED, month, START, START + 4 * WEEK), NOTHING)
    assert found.workload.requests == 20 * HOUR * 672
    assert found.workload.prompt_mean == pytest.approx(4000.0)
    assert sum(point.requests for point in found.points) == 20 * HOUR * 168


def test_benchmark_stands_likely_above_production() -> None:
    usable, near = week().usable, week(rps=lambda number: 70.0).usable
    assert (usable.rps, usable.high) == (pytest.approx(USABLE), pytest.approx(USABLE))
    assert (usable.low, usable.kept_rps) == (pytest.approx(3.0), pytest.approx(3.0))
    assert (usable.certainty, usable.knee_seen) == (Certainty.LIKELY, False)
    assert (near.certainty, near.low) == (Certainty.CERTAIN, pytest.approx(USABLE))


def with_slow(rps: float, slow: dict[float, float], **usual: Any) -> Resize:
    """A week of which each fourth hour is at another load, with these first tokens."""
    several = [hour(n, rps, ttft=slow) if n % 4 == 0 else hour(n, 50.0, **usual) for n in range(168)]
    return propose_size(seen_of(PLANNED, several), NOTHING)


SLOW = {0.15: 0.95, 3.0: 0.05}


def test_knee_lies_between_kept_and_broken() -> None:
    found = with_slow(70.0, SLOW, ttft={0.15: 1.0})
    assert [(point.rps, point.kept) for point in found.points] == [(5.0, SloStatus.KEPT), (7.0, SloStatus.BROKEN)]
    assert (found.usable.low, found.usable.high, found.usable.knee_seen) == (5.0, 7.0, True)
    # Inside its bucket the tail falls by a constant factor: from all requests (5 of a hundred) down to half a one at its end.
    below = 0.1 + 0.1 * math.log(100) / math.log(2 * 126 * 50 * HOUR)
    over = 2 + 2 * math.log(5) / math.log(0.05 * 2 * 42 * 70 * HOUR)
    assert found.usable.rps == pytest.approx(5 + 2 * math.log(2 / below) / math.log(over / below))
    assert found.usable.certainty is Certainty.CERTAIN
    beyond = with_slow(76.0, SLOW, ttft={0.15: 1.0})
    assert beyond.usable.rps == pytest.approx(USABLE), "the benchmark's value stands within the knee"


def test_low_broken_load_is_no_knee() -> None:
    found = with_slow(10.0, {0.08: 0.9, 3.0: 0.1})
    assert [point.kept for point in found.points] == [SloStatus.BROKEN, SloStatus.KEPT]
    assert (found.usable.knee_seen, found.usable.rps) == (False, pytest.approx(USABLE))


def test_slower_production_scales_the_curve() -> None:
    # At 3 rps the benchmark has sqrt(0.1 x 0.2) = 0.1414 s, production's P99 lies in its bucket from 0.2 to 0.5 s.
    usable, calm = (week(**at_rate(30.0), ttft={seconds: 1.0}).usable for seconds in (0.3, 0.08))
    factor = (0.2 + 0.3 * math.log(100) / math.log(2 * 168 * 30 * HOUR)) / math.sqrt(0.02)
    assert usable.rps == pytest.approx(6 + 2 * math.log(2 / (0.5 * factor)) / math.log(8))
    assert (usable.low, usable.certainty) == (pytest.approx(3.0), Certainty.LIKELY)
    # 0.15 s lie in the bucket from 0.1 to 0.2 s, which the benchmark's 0.1414 s x 1.3 divide: that is no proof.
    assert calm.rps == pytest.approx(USABLE)


def test_few_requests_say_nothing() -> None:
    for requests, kept in ((299, SloStatus.TOO_FEW), (300, SloStatus.KEPT)):
        assert propose_size(seen_of(PLANNED, [hour(0, requests / HOUR)]), NOTHING).points[0].kept is kept


def test_step_11_by_hand() -> None:
    found = week().sized
    # 30 x 1.2 / 7.333 = 4.9 and 30 / 7.333 / 0.9 = 4.5, so 5; with one lost 5 are needed, so 6. At 3 rps a replica 12.
    assert (found.replicas, found.fewest, found.most) == (6, 6, 12)
    assert (found.demand_rps, found.capacity.rps) == (pytest.approx(30.0), pytest.approx(USABLE))
    assert (found.safety_factor, found.margin.target_utilization, found.minimum) == (1.2, 0.9, 2)
    unsafe = week(tier_view(fleet={"instances": 10})).sized
    assert (unsafe.safety_factor, unsafe.replicas) == (1.0, 6)


def test_step_12_by_hand() -> None:
    found = week()
    # 10 x 2 x 2.5 = 50 USD an hour; 80 tokens a request: usable x 80 tokens/s x 10 x 0.5 and 20 x 80 tokens a second.
    assert found.planned.per_million_tokens == pytest.approx(50 / (USABLE * 80 * 10 * 0.5 * 3600) * 1e6)
    assert found.measured.per_million_tokens == pytest.approx(50 / (20 * 80 * 3600) * 1e6)
    assert found.proposed.per_million_tokens == pytest.approx(30 / (20 * 80 * 3600) * 1e6)
    assert (found.measured.money_a_day, found.proposed.money_a_day) == (pytest.approx(1200.0), pytest.approx(720.0))
    assert found.measured.utilization == pytest.approx(2 / USABLE)
    assert found.proposed.utilization == pytest.approx(2 / USABLE * 10 / 6)
    # At the operator's 5 rps of requests with twice the benchmark's outputs, 1.5 times the work: 5 / 1.5 x 160 tokens/s.
    tokens = {"prompt_tokens": {"mean": 800}, "generation_tokens": {"mean": 160}}
    longer = planned_cost(tier_view(workload=tokens, operating_point={"usable_rps": 5.0}).plan)
    assert longer.per_million_tokens == pytest.approx(50 / (5 / 1.5 * 160 * 10 * 0.5 * 3600) * 1e6)
    # Of 10 planned replicas 5 were ready: of 6 proposed ones 3 would be.
    assert week(replicas=5).proposed.replicas == pytest.approx(3.0)


def planned(instances: int, safety: float | None = 1.2, warm: int | None = None, **more: Any) -> TierContext:
    fleet = {"instances": instances, "safety_factor": safety, "minimum_warm": warm}
    return tier_view(fleet={name: value for name, value in fleet.items() if value is not None}, **more)


def at_rate(rps: float) -> dict[str, Any]:
    return {"rps": lambda number: rps}


CERTAIN, LIKELY = Certainty.CERTAIN, Certainty.LIKELY
NONE, KEEP, GROW, SHRINK = ProposalKind.NONE, ProposalKind.KEEP, ProposalKind.GROW, ProposalKind.SHRINK
NEEDS = "the peak needs 6 replicas (30 rps at 7.33 rps a replica at up to 0.9 of it, one may be lost: 6)"
CACHE = "KV cache in use (hourly mean) would be"
TOO_FEW = f"9 replicas would be too few: {CACHE} 97.5% of at most 90.0% with one of 9 lost"
# 20 rps on average and 30 at the peak, 7.33 a replica.
USE = "6 replicas would be used to 45.5% on average and to 68.2% at the peak"

UNKEPT = tier_view(slo={"ttft_p99_seconds": 0.05})

Row = tuple[TierContext, list[Window], list[RuleResult], ProposalKind, Certainty, int | None, str]
ROWS: list[Row] = [
    (PLANNED, hours(), NOTHING, SHRINK, LIKELY, 6, "Shrink from 10 to 6 replicas"),
    (PLANNED, hours(), NOTHING, SHRINK, LIKELY, 6, "rests on the benchmark"),
    (PLANNED, hours(), NOTHING, SHRINK, LIKELY, 6, NEEDS),
    (PLANNED, hours(), NOTHING, SHRINK, LIKELY, 6, f"{CACHE} 60.0% of at most 90.0% with one of 6 lost"),
    # The minimum warm count is never undercut.
    (planned(10, warm=8), hours(), NOTHING, SHRINK, LIKELY, 8, ""),
    (planned(10, 1.8), hours(), NOTHING, SHRINK, LIKELY, 8, "safety factor makes it ceil(30 x 1.8 / 7.33) = 8"),
    (planned(6), hours(), NOTHING, KEEP, LIKELY, 6, "that is what the traffic seen needs"),
    (planned(8, warm=8), hours(), NOTHING, KEEP, LIKELY, 8, "Keep 8 replicas: the minimum warm count asks for as many"),
    (planned(6, None), hours(replicas=6), NOTHING, KEEP, LIKELY, 6, USE),
    # 72 x 1.2 / 7.333 = 11.8.
    (PLANNED, hours(24, **at_rate(72.0)), NOTHING, GROW, CERTAIN, 12, ""),
    (PLANNED, hours(21, **at_rate(90.0)), NOTHING, NONE, LIKELY, None, ""),
    (PLANNED, hours(22, **at_rate(90.0)), NOTHING, GROW, CERTAIN, 12, ""),
    (PLANNED, hours(84), NOTHING, NONE, LIKELY, None, "84 hours were seen; 152 are needed to propose fewer replicas"),
    (PLANNED, hours(kv=0.76), NOTHING, KEEP, LIKELY, 10, "memory sets the size"),
    # 13 at 60 % are 7.8 full caches: eight hold them at 97.5 %, nine at 86.7 %, and one more may be lost.
    (planned(13), hours(replicas=13, kv=0.6), NOTHING, SHRINK, LIKELY, 10, TOO_FEW),
    (PLANNED, hours(kv=0.74), NOTHING, KEEP, LIKELY, 10, f"with fewer, {CACHE} 92.5% of at most 90.0% with one of 9"),
    (PLANNED, hours(), [verdict("KvEviction", None, 0.0)], KEEP, LIKELY, 10, ""),
    (tier_view(pools=["prefill", "decode"]), hours(), NOTHING, NONE, LIKELY, None, "prefill and decode apart"),
    (build_tier_context("t", None), hours(), NOTHING, NONE, LIKELY, None, "the tier has no plan"),
    # It is the load that the present fleet gives a replica: more replicas lower it, and would ask for more again.
    (tier_view(curve=None), hours(), NOTHING, NONE, LIKELY, None, "what a replica can take is not known"),
    (UNKEPT, hours(ttft={0.04: 1.0}), NOTHING, NONE, LIKELY, None, "no load of the benchmark keeps the SLO"),
]


@pytest.mark.parametrize("row", ROWS)
def test_proposal_of_replicas(row: Row) -> None:
    context, several, results, *wanted, text = row
    found = propose_size(seen_of(context, several, until=several[-1].end), results).proposal
    assert [found.kind, found.certainty, found.replicas] == wanted
    assert text in "; ".join((found.sentence, *found.evidence, *found.against, *found.needed))


def test_nothing_seen_proposes_nothing() -> None:
    proposal = propose_size(seen_of(PLANNED, []), NOTHING).proposal
    hours_needed = "nothing was seen, 22 hours are needed to propose more replicas and 152 to propose fewer"
    assert (proposal.kind, len(proposal.needed)) == (ProposalKind.NONE, 3)
    assert proposal.needed[:2] == (hours_needed, "0 requests were seen, 300 are needed")


def test_levers_by_hand() -> None:
    levers = week().levers
    found = {one.name: one.replicas for one in levers}
    by_day, by_night = 10 * (1 - 3 / USABLE / 0.6), 10 * (1 - 1 / USABLE / 0.6)
    assert found["Offline batch fill"] == pytest.approx((by_day + by_night) / 2)
    assert found["Model colocation"] == pytest.approx(10 - 6), "30 rps by day"
    # Six replicas by day, 10 / 7.333 / 0.9 = 1.5 by night, so 2: 4 and 8 of 10 could go.
    assert (levers[0].name, levers[0].money_a_day) == ("Scaling by schedule", pytest.approx(6.0 * 120))
    assert found["Scaling by schedule"] == pytest.approx(6.0)
    assert (found["Shorter prompts"], found["Routing simple requests"]) == (1.0, 3.0)
    sure = [one.name for one in levers if one.certainty is CERTAIN]
    assert sorted(sure) == ["Model colocation", "Offline batch fill"]
    day = propose_size(seen_of(PLANNED, hours(24)), NOTHING).levers
    assert {one.certainty for one in day} == {LIKELY}, "another weekday may need more"
    full = {one.name: one for one in week(kv=0.8).levers}["Model colocation"]
    assert (full.replicas, full.missing) == (None, "memory sets the size of this fleet, not load")


def test_holes_use_only_seen_hours() -> None:
    some = [one for number, one in enumerate(hours(rps=lambda number: 20.0)) if not 40 <= number < 80]
    seen = seen_of(PLANNED, some)
    assert (seen.observed_seconds, seen.total.span) == (128 * HOUR, 128 * HOUR)


def test_p99_and_slow_share_agree() -> None:
    # Two of a hundred in the bucket from 2 to 4 s that holds the SLO of 3 s: by the falling tail fewer than one is above it.
    wide = tier_view(slo={"ttft_p99_seconds": 3.0})
    found = week(wide, ttft={0.08: 0.98, 3.5: 0.02}).points[-1]
    assert found.kept is SloStatus.LIKELY_KEPT
    assert (found.ttft_p99.low, found.ttft_p99.high) == (2.0, 4.0)
    assert found.ttft_p99.value < 3.0


def test_saturated_overload_is_no_knee() -> None:
    several = hours()
    seen = seen_of(PLANNED, several)
    slow = hour(200, 10.0, ttft={3.0: 1.0})
    beyond = type(seen.bins[0])(replica=None, window=slow, rps=1.0, in_system=60.0, beyond="60 requests in the system")
    found = propose_size(replace(seen, bins=(*seen.bins, beyond)), NOTHING)
    assert found.points[-1].kept is SloStatus.BROKEN
    assert not found.usable.knee_seen


def pooled_week(rps: float, **parts: object) -> Resize:
    """A week of both pools, 2 prefill and 4 decode replicas, at one load of 800 prompt and 80 output tokens."""
    seen = ProductionSummary(context=tier_view(**{**POOLED, **parts}), since=START, until=START + WEEK, versions=("v",))
    told = pool_hours(168, lambda _: rps)
    placed = []
    for pool, several in told.items():
        placed += [BinnedWindow(replica=pool, window=one, rps=None, in_system=None) for one in several]
    return propose_size(seen.add(placed, placed, [part for one in told["decode"] for part in minutes_of(one)]), NOTHING)


def test_pools_get_counts_from_peak() -> None:
    # 45 rps: 36,000 of 16,000 prompt tokens and 3,600 of 1,000 output tokens.
    # At 90 % these are 2.5 and 4.0 replicas; of four one may be lost.
    found = pooled_week(45.0)
    proposal = found.proposal
    assert (proposal.kind, proposal.now, proposal.replicas) == (GROW, 6, 8)
    assert proposal.sentence == "Grow: 8 replicas, decode 5 instead of 4, prefill 3 instead of 2"
    assert {pool: one.sized.replicas for pool, one in found.pools.items() if one.sized} == {"prefill": 3, "decode": 5}
    assert "prefill pool: a replica takes 20 rps: 16,000 prompt" in " ".join(proposal.evidence)


def test_fitting_pools_stay_idle_shrink() -> None:
    assert pooled_week(30.0).proposal.sentence == "Shrink: 5 replicas, decode 3 instead of 4, prefill 2"
    fits = {**POOLED["disaggregation"], "decode_instances": 3}
    assert pooled_week(30.0, disaggregation=fits).proposal.sentence == "Keep: 5 replicas, decode 3, prefill 2"
    idle = pooled_week(5.0).proposal
    assert (idle.kind, idle.replicas) == (SHRINK, 3)
    unknown = pooled_week(30.0, disaggregation=None).proposal
    assert unknown.kind is NONE
    assert "no tokens a second of the pool" in " ".join(unknown.needed)


@pytest.mark.parametrize(
    ("warm", "kind", "more"), [(3, SHRINK, ""), (5, SHRINK, ", and 2 more"), (6, KEEP, ", and 3 more")]
)
def test_pools_keep_minimum_warm_count(warm: int, kind: ProposalKind, more: str) -> None:
    found = pooled_week(10.0, fleet={"instances": 6, "minimum_warm": warm}).proposal
    assert (found.kind, found.replicas) == (kind, warm)
    pools = "decode 2 instead of 4, prefill 1 instead of 2"
    reason = " for the minimum warm count" if more else ""
    assert found.sentence == f"{kind.value.capitalize()}: {warm} replicas, {pools}{more}{reason}"
