"""Replicas that stop within their own cold start, against replicas that ran long, crashed late or are still there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import pytest
from judging_samples import START, context, minute, minutes
from rule_cases import FINE, WARNED, Wanted, check_result

from rules.evaluator import tier_rules
from rules.plan.load_bins import TierContext
from rules.replicas.starts import ReplicaStart
from rules.telemetry.signals import Gap
from rules.telemetry.windows import Window
from rules.verdicts.verdict import RuleResult, Status, Unknown

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


def said(starts: Iterable[ReplicaStart], replicas: Mapping[str, list[Window]], tier: TierContext) -> RuleResult:
    booked = replace(minutes(tier, {"steady": lived(0, MINUTES), **replicas}), starts=tuple(starts))
    found = tier_rules.evaluate_tier_rules(booked, tier, START + 60 * MINUTES)
    return next(one for one in found if one.rule == RULE)


def short(count: int, ran: int = 3) -> tuple[list[ReplicaStart], dict[str, list[Window]]]:
    """So many replicas that were started one after the other, each gone `ran` minutes after it was ready."""
    begins = [5 + 8 * number for number in range(count)]
    return [start(f"r{n}", at) for n, at in enumerate(begins)], {
        f"r{n}": lived(at, at + ran) for n, at in enumerate(begins)
    }


STARTS, GONE = short(3)
LONG_STARTS, LONG_LIVES = short(3, ran=6)
ALIVE = [start(f"r{n}", 47) for n in range(3)], {f"r{n}": lived(47, MINUTES - n) for n in range(3)}
UNSEEN_STARTS = [ReplicaStart(replica=one.replica, seen_at=one.seen_at) for one in STARTS]
OLD = [start(one.replica, (one.t - START) / 60 - 120) for one in STARTS]
AGAIN = [start("r", at, alive=START + 60 * (at - 8)) for at in (5.0, 15.0, 25.0, 35.0)]
BRIEF = {"r": [*lived(5, 7), *lived(15, 17), *lived(25, 27), *lived(35, MINUTES)]}
PARTIAL = [
    ReplicaStart(replica=name, seen_at=at, started_at=at - 60, ready_at=at, silent_since=0.0)
    for name, at in ((name, of[0].start) for name, of in GONE.items())
]
UNPRICED, QUICK = context(cold_start_seconds=240), context(cold_start_seconds=60)
COST = (
    "Replicas stopped within their own cold start 3 times in an hour; their starts took 0.25 GPU-hours, 0.50 USD; "
    "r0, r1, r2; r0 ran 180 s after a start of 300 s"
)


@pytest.mark.parametrize(
    ("starts", "replicas", "tier", "wanted", "text"),
    [
        (STARTS, GONE, PRICED, WARNED, COST),
        (*short(2), PRICED, FINE, ""),
        (LONG_STARTS, LONG_LIVES, PRICED, FINE, "No replica stopped within its own cold start"),
        (*ALIVE, PRICED, FINE, ""),
        (AGAIN, BRIEF, PRICED, WARNED, "3 times"),
        (UNSEEN_STARTS, GONE, PRICED, FINE, ""),
        (OLD, {}, PRICED, FINE, ""),
        (PARTIAL, GONE, PRICED, WARNED, ""),
        (PARTIAL, GONE, QUICK, FINE, ""),
        (STARTS, GONE, UNPRICED, WARNED, "their starts took 0.25 GPU-hours"),
    ],
)
def test_lives_shorter_than_their_starts(
    starts: list[ReplicaStart], replicas: dict[str, list[Window]], tier: TierContext, wanted: Wanted, text: str
) -> None:
    check_result(said(starts, replicas, tier), wanted, text)


def test_common_silence_is_no_stop() -> None:
    starts = [start(f"r{n}", 5) for n in range(3)]
    booked = replace(minutes(PRICED, {f"r{n}": lived(5, 8) for n in range(3)}), starts=tuple(starts))
    found = tier_rules.evaluate_tier_rules(booked, PRICED, START + 60 * 20)
    (result,) = (one for one in found if one.rule == RULE)
    assert isinstance(result, Unknown) or result.status is Status.OK


def test_tier_sums_tell_no_starts() -> None:
    booked = minutes(PRICED, {"": lived(0, 50)})
    found = tier_rules.evaluate_tier_rules(booked, PRICED, START + 60 * 50)
    (result,) = (one for one in found if one.rule == RULE)
    assert result.reason is Gap.NOT_EXPOSED
