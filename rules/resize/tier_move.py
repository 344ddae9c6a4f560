"""Moves of traffic to a cheaper tier (guide 9.5, 8.4): same model, matching lengths and enough room.

Numbers at different lengths are different workloads and are never compared (guide 8.4).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from rules.confidence import Certainty
from rules.plan.money import amount, figure
from rules.plan.replica_count import count_fleet
from rules.resize.proposal import ProposalKind, Resize
from rules.resize.workload import WorkloadNow
from rules.telemetry.signals import Reading

MATCHED = 1.25
"""Medians of two tiers within this factor are the same lengths: wider, and the buckets of the engines could not tell."""

CHEAPER = 0.8
"""Of a million tokens; a smaller difference does not pay for moving."""


def add_tier_moves(tiers: Sequence[Resize]) -> tuple[Resize, ...]:
    """Return the proposals, with a move (likely at most) where a cheaper tier has room for a tier's peak."""
    return tuple(_move(tier, [resize for resize in tiers if resize is not tier]) for tier in tiers)


def _move(tier: Resize, resizes: Sequence[Resize]) -> Resize:
    costs = [(cost, resize) for resize in resizes if (cost := _find_cheaper(tier, resize)) is not None]
    kept = tier.proposal
    if kept.kind is ProposalKind.NONE or not costs or tier.measured is None:
        return tier
    cost, best = min(costs, key=lambda pair: pair[0])
    target, own = best.seen.context.name, figure(tier.measured.per_million_tokens or 0.0)
    text = f"Move this traffic to {target}: a million tokens cost {amount(cost, tier.measured.price.currency)} there, "
    text += f"{own} here, at like lengths"
    proposal = replace(
        kept,
        kind=ProposalKind.MOVE,
        certainty=Certainty.LIKELY,
        sentence=text,
        evidence=(*kept.evidence, f"{target} has {_count_spare(best)} replicas more than its own peak needs"),
        against=(f"until it is moved: {kept.sentence[:1].lower()}{kept.sentence[1:]}", *kept.against),
        needed=(),
        to_tier=target,
    )
    return replace(tier, proposal=proposal)


def _find_cheaper(tier: Resize, resize: Resize) -> float | None:
    """Return the other tier's cost of a million tokens if it can take this traffic for clearly less."""
    mine, theirs = tier.seen.context.plan, resize.seen.context.plan
    if mine is None or theirs is None or mine.model != theirs.model or tier.measured is None or resize.measured is None:
        return None
    promised, kept = mine.slo.ttft_p99_seconds, theirs.slo.ttft_p99_seconds
    if (kept or math.inf) > (promised or math.inf) or not have_matching_lengths(tier.workload, resize.workload):
        return None
    own, cost = tier.measured.per_million_tokens, resize.measured.per_million_tokens
    is_same_currency = tier.measured.price.currency == resize.measured.price.currency
    if own is None or cost is None or not is_same_currency or cost > CHEAPER * own:
        return None
    size = resize.sized
    if size is None or not tier.workload.peak_rps:
        return None
    needed = count_fleet(tier.workload.peak_rps, size.capacity.rps, size.safety_factor, size.margin)
    return cost if needed <= _count_spare(resize) else None


def _count_spare(tier: Resize) -> int:
    now = tier.proposal.now or 0
    return max(0, now - tier.sized.replicas) if tier.sized else 0


def have_matching_lengths(tier: WorkloadNow, workload_now: WorkloadNow) -> bool:
    """Return whether prompts and outputs of two tiers are about as long, by their medians."""
    pairs = [
        (a.observed.value, b.observed.value)
        for a, b in zip(tier.lengths, workload_now.lengths, strict=True)
        if a.quantile == "p50" and isinstance(a.observed, Reading) and isinstance(b.observed, Reading)
    ]
    known = [(a, b) for a, b in pairs if a and b]
    return len(known) == 2 and all(1 / MATCHED <= a / b <= MATCHED for a, b in known)
