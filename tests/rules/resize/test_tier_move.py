"""Moving traffic between tiers: only at like lengths, for one model, where there is room."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from report_samples import hours, seen_of, tier

from rules.plan.load_bins import build_tier_context
from rules.resize.proposal import ProposalKind, Resize, propose_size
from rules.resize.tier_move import add_tier_moves


def one(name: str, price: float, rps: float, lengths: dict[str, float] | None = None, **parts: Any) -> Resize:
    planned = tier(cost={"gpu_hour_price": price, "currency": "USD"}, **parts)
    return propose_size(
        seen_of(build_tier_context(name, planned), hours(rps=lambda number: rps, **(lengths or {}))), {}
    )


def moved(*several: Resize) -> list[ProposalKind]:
    return [found.proposal.kind for found in add_tier_moves(several)]


def test_traffic_moves_to_a_cheaper_tier_with_room() -> None:
    # 30 rps need 5 of the cheap tier's 10 replicas, its own 7 rps need 2.
    dear, cheap = one("dear", 10.0, 30.0), one("cheap", 1.0, 7.0)
    found = add_tier_moves((dear, cheap))
    assert [f.proposal.kind for f in found] == [ProposalKind.MOVE, ProposalKind.SHRINK]
    assert found[0].proposal.to_tier == "cheap"
    assert "Move this traffic to cheap" in found[0].proposal.sentence
    assert any("shrink from 10 to 6" in text for text in found[0].proposal.against)


def test_not_without_room() -> None:
    assert moved(one("dear", 10.0, 30.0), one("cheap", 1.0, 45.0)) == [ProposalKind.SHRINK, ProposalKind.SHRINK]


def test_not_at_other_lengths() -> None:
    assert moved(one("dear", 10.0, 30.0), one("cheap", 0.1, 7.0, {"prompts": 4000.0})) == [
        ProposalKind.SHRINK,
        ProposalKind.SHRINK,
    ]


def test_not_to_another_model() -> None:
    assert moved(one("dear", 10.0, 30.0), one("cheap", 1.0, 7.0, model="m-8b")) == [
        ProposalKind.SHRINK,
        ProposalKind.SHRINK,
    ]


def test_not_for_a_small_difference() -> None:
    # 7 rps on ten replicas make a token 30 / 7 times as dear: 2.5 x 30 / 7 = 10.7 is not less than 0.8 x 10.
    assert moved(one("dear", 10.0, 30.0), one("cheap", 2.5, 7.0)) == [ProposalKind.SHRINK, ProposalKind.SHRINK]


def test_not_to_a_tier_that_promises_less() -> None:
    slow = one("cheap", 1.0, 7.0, slo={"ttft_p99_seconds": 3.0})
    assert moved(one("dear", 10.0, 30.0), slow) == [ProposalKind.SHRINK, ProposalKind.SHRINK]


def test_nothing_moves_from_too_little_data() -> None:
    dear = one("dear", 10.0, 30.0)
    none = replace(dear, proposal=replace(dear.proposal, kind=ProposalKind.NONE))
    assert moved(none, one("cheap", 1.0, 7.0))[0] is ProposalKind.NONE
