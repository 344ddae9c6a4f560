"""Replicas that stop within their own cold start, against replicas that ran long, crashed late or are still there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import pytest
from judging_samples import START, context, minute, minutes
from prose import explain

from rules.confidence import Certainty
from rules.evaluator import tier_rules
from rules.plan.load_bins import TierContext
from rules.replicas.starts import ReplicaStart
from rules.telemetry.signals import Gap
from rules.telemetry.windows import Window
from rules.verdicts.verdict import RuleResult, Status, Unknown, Verdict

RULE = "ReplicaFlapping"
PRICED = context(cost={"gpu_hour_price": 2.0, "currency": "USD"}, cold_start_seconds=240)
MINUTES = 50


def start(replica: str, at: float, took: float = 300.0, alive: float | None = None) -> ReplicaStart:
    """A pod that was Ready `at` minutes after START, asked for `took` seconds before."""
    t = START + 60 * at
    return ReplicaStart(
        replica=replica, seen_at=t, asked_at=t - took, pod_ready_at=t, silent_since=t - took, alive_at=alive
    )


def lived(begin: int, end: int) -> list[Window]:
    return [minute(number) for number in range(begin, end)]


def said(
    starts: Iterable[ReplicaStart], replicas: Mapping[str, list[Window]], tier: TierContext = PRICED
) -> RuleResult:
    booked = replace(minutes(tier, {"steady": lived(0, MINUTES), **replicas}), starts=tuple(starts))
    found = tier_rules.evaluate_tier_rules(booked, tier, START + 60 * MINUTES)
    return next(one for one in found if one.rule == RULE)


def verdict(
    starts: Iterable[ReplicaStart], replicas: Mapping[str, list[Window]], tier: TierContext = PRICED
) -> Verdict:
    found = said(starts, replicas, tier)
    assert isinstance(found, Verdict), found
    return found


def short(count: int, ran: int = 3) -> tuple[list[ReplicaStart], dict[str, list[Window]]]:
    """So many replicas that were started one after the other, each gone `ran` minutes after it was ready."""
    begins = [5 + 8 * number for number in range(count)]
    return [start(f"r{n}", at) for n, at in enumerate(begins)], {
        f"r{n}": lived(at, at + ran) for n, at in enumerate(begins)
    }


def test_three_short_lives_flap_and_cost() -> None:
    found = verdict(*short(3))
    assert (found.status, found.certainty) == (Status.WARNING, Certainty.CERTAIN)
    assert explain(found) == (
        "Replicas stopped within their own cold start 3 times in an hour; their starts took 0.25 GPU-hours, 0.50 USD; "
        "r0, r1, r2; r0 ran 180 s after a start of 300 s"
    )


def test_two_are_not_yet_flapping() -> None:
    assert verdict(*short(2)).status is Status.OK


def test_long_or_living_replicas_do_not_flap() -> None:
    found = verdict(*short(3, ran=6))
    assert (found.status, found.sentence) == (Status.OK, "No replica stopped within its own cold start")
    starts = [start(f"r{n}", 47) for n in range(3)]
    assert verdict(starts, {f"r{n}": lived(47, MINUTES - n) for n in range(3)}).status is Status.OK


def test_restarting_process_flaps() -> None:
    ready = [5.0, 15.0, 25.0, 35.0]
    again = [start("r", at, alive=START + 60 * (at - 8)) for at in ready]
    replicas = {"r": [one for at in (5, 15, 25) for one in lived(at, at + 2)] + lived(35, MINUTES)}
    found = verdict(again, replicas)
    assert found.status is Status.WARNING
    assert "3 times" in found.sentence


@pytest.mark.parametrize("known", [False, True])
def test_unseen_starts_do_not_count(known: bool) -> None:
    starts, replicas = short(3)
    seen = starts if known else [ReplicaStart(replica=one.replica, seen_at=one.seen_at) for one in starts]
    assert (verdict(seen, replicas).status is Status.WARNING) is known


def test_old_stops_are_over() -> None:
    starts, _ = short(3)
    before = [replace(one, seen_at=one.seen_at - 7200, asked_at=(one.asked_at or 0) - 7200) for one in starts]
    assert verdict([replace(one, pod_ready_at=one.seen_at) for one in before], {}).status is Status.OK


def test_common_silence_is_no_stop() -> None:
    starts = [start(f"r{n}", 5) for n in range(3)]
    booked = replace(minutes(PRICED, {f"r{n}": lived(5, 8) for n in range(3)}), starts=tuple(starts))
    found = tier_rules.evaluate_tier_rules(booked, PRICED, START + 60 * 20)
    (result,) = (one for one in found if one.rule == RULE)
    assert isinstance(result, Unknown) or result.status is Status.OK


def test_partial_start_counts_as_planned() -> None:
    _, replicas = short(3)
    starts = [
        ReplicaStart(
            replica=name, seen_at=of[0].start, started_at=of[0].start - 60, ready_at=of[0].start, silent_since=0.0
        )
        for name, of in replicas.items()
    ]
    assert verdict(starts, replicas).status is Status.WARNING
    assert verdict(starts, replicas, context(cold_start_seconds=60)).status is Status.OK


def test_unpriced_flapping_costs_gpu_hours() -> None:
    found = verdict(*short(3), tier=context(cold_start_seconds=240))
    assert found.sentence.endswith("their starts took 0.25 GPU-hours")


def test_tier_sums_tell_no_starts() -> None:
    booked = minutes(PRICED, {"": lived(0, 50)})
    found = tier_rules.evaluate_tier_rules(booked, PRICED, START + 60 * 50)
    (result,) = (one for one in found if one.rule == RULE)
    assert result.reason is Gap.NOT_EXPOSED
