"""One tier as the checks of a plan see it, and what a check yields.

Owns these records alone. The checks are `rules.plan.checks` and `rules.plan.mistakes`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from rules.plan.curve import Curve, OperatingPoint, operating_point
from rules.plan.replica_count import NO_MARGIN, Margin
from rules.plan.schema import Point, TierPlan

Severity = Literal["mistake", "warning", "info"]
SEVERITIES: tuple[Severity, ...] = ("mistake", "warning", "info")
"""In the order in which they are told. A `mistake` fails the check: what follows from that value is wrong."""

Found = Iterator[tuple[str, Severity, str]]
"""Place in the tier, severity and sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """`points` are those of the plan as written; `curve` and `point` are what follows from them, None where nothing does."""

    tier: TierPlan
    points: tuple[Point, ...]
    curve: Curve | None
    point: OperatingPoint | None
    margin: Margin


def case_of(tier: TierPlan, margin: Margin = NO_MARGIN) -> Case:
    """The tier with its curve and its operating point."""
    points = tier.curve.points if tier.curve else ()
    return Case(tier=tier, points=points, curve=Curve.from_plan(tier), point=operating_point(tier), margin=margin)
