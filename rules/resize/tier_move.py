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
from rules.resize.proposal import Proposal, ProposalKind, Resize
from rules.resize.workload import WorkloadNow
from rules.telemetry.signals import Reading

MATCHED = 1.25
"""Medians of two tiers within this factor are the same lengths: wider, and the buckets of the engines could not tell."""

CHEAPER = 0.8
"""Of a million tokens; a smaller difference does not pay for moving."""


def add_tier_moves(several: Sequence[Resize]) -> tuple[Resize, ...]:
    """Return the proposals, with a move (likely at most) where a cheaper tier has room for a tier's peak."""
    return tuple(_moved(one, [other for other in several if other is not one]) for one in several)


def _moved(one: Resize, others: Sequence[Resize]) -> Resize:
    if one.proposal.kind is ProposalKind.NONE:
        return one
    found = [(cost, other) for other in others if (cost := _cheaper(one, other)) is not None]
    if not found:
        return one
    cost, best = min(found, key=lambda pair: pair[0])
    own = one.measured.per_million_tokens if one.measured else None
    target, currency = best.seen.context.tier, best.measured.currency if best.measured else ""
    text = f"Move this traffic to {target}: a million tokens cost {amount(cost, currency)} there, {figure(own or 0.0)} here, "
    text += "at like lengths"
    kept = one.proposal
    return replace(
        one,
        proposal=Proposal(
            kind=ProposalKind.MOVE,
            certainty=Certainty.LIKELY,
            now=kept.now,
            replicas=kept.replicas,
            sentence=text,
            evidence=(*kept.evidence, f"{target} has {_spare(best)} replicas more than its own peak needs"),
            against=(f"until it is moved: {kept.sentence[:1].lower()}{kept.sentence[1:]}", *kept.against),
            to_tier=target,
        ),
    )


def _cheaper(one: Resize, other: Resize) -> float | None:
    """Return the other tier's cost of a million tokens if it can take this traffic for clearly less."""
    mine, theirs = one.seen.context.plan, other.seen.context.plan
    if mine is None or theirs is None or mine.model != theirs.model:
        return None
    promised, kept = mine.slo.ttft_p99_seconds, theirs.slo.ttft_p99_seconds
    if (kept or math.inf) > (promised or math.inf) or not have_matching_lengths(one.workload, other.workload):
        return None
    own = one.measured.per_million_tokens if one.measured else None
    cost = other.measured.per_million_tokens if other.measured else None
    same = one.measured and other.measured and one.measured.currency == other.measured.currency
    if own is None or cost is None or not same or cost > CHEAPER * own:
        return None
    if other.usable is None or other.sized is None or not one.workload.peak_rps:
        return None
    sized = other.sized
    needed = count_fleet(one.workload.peak_rps, other.usable.rps, sized.safety_factor, sized.count.margin)
    return cost if needed <= _spare(other) else None


def _spare(one: Resize) -> int:
    now = one.proposal.now or 0
    return max(0, now - (one.sized.replicas if one.sized else now))


def have_matching_lengths(one: WorkloadNow, other: WorkloadNow) -> bool:
    """Return whether prompts and outputs of two tiers are about as long, by their medians."""
    pairs = [
        (a.observed.value, b.observed.value)
        for a, b in zip(one.lengths, other.lengths, strict=True)
        if a.quantile == "p50" and isinstance(a.observed, Reading) and isinstance(b.observed, Reading)
    ]
    known = [(a, b) for a, b in pairs if a and b]
    return len(known) == 2 and all(1 / MATCHED <= a / b <= MATCHED for a, b in known)
