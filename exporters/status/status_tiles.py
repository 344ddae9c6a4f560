"""The row of a tier's numbers on the status page: each now, with its bounds, beside the plan's.

Owns how one number is shown. Which numbers there are, and which rule colours each, stands in
`exporters.status.plan_comparison`.
"""

from __future__ import annotations

from html import escape

from exporters.render.html_parts import sign
from exporters.render.svg_charts import draw_scale
from exporters.status.plan_comparison import PlanComparison, compare_with_plan
from exporters.status.records import TierStatus
from rules.telemetry.signals import Gap, Missing, Reading, SignalValue
from rules.telemetry.wording import number, quantity
from rules.verdicts.verdict import Status, Unknown


def numbers(tier: TierStatus, now: float) -> str:
    """Every row of the comparison as a tile."""
    return f'<dl class="numbers">{"".join(_tile(one, tier) for one in compare_with_plan(tier))}</dl>'


def _tile(one: PlanComparison, tier: TierStatus) -> str:
    row, currency = one.row, _currency(tier)
    unit_text = f" {currency}" if row.unit == "money" and currency else ""
    status, words = _judged(one)
    plan = "not in plan"
    if one.planned is not None:
        plan = f"plan <b>{escape(number(one.planned.value, row.unit) + unit_text)}</b> {escape(one.planned.text)}"
    expected, missing = "", " missing" if isinstance(one.now, Missing) else ""
    if one.at_this_load is not None:
        expected = f'<dd class="expected"><b>{escape(quantity(one.at_this_load, row.unit))}</b> at this load</dd>'
    now, bounds = escape(_now(one) + unit_text), escape(_bounds(one))
    return (
        f'<div class="tile {status.value}{missing}"><dt>{escape(row.title)}</dt><dd class="now">{now}</dd>'
        f'<dd class="bounds">{bounds}</dd><dd>{_scale(one)}</dd><dd class="plan">{plan}</dd>{expected}'
        f'<dd class="judged">{sign(status, words) if words else ""}</dd></div>'
    )


def _currency(tier: TierStatus) -> str:
    plan = tier.view.plan
    return plan.cost.currency if plan and plan.cost else ""


def _now(one: PlanComparison) -> str:
    if isinstance(one.now, Missing):
        return one.now.gap.value.replace("_", " ")
    if one.now.value is not None:
        return number(one.now.value, one.row.unit)
    return quantity(one.now, one.row.unit)


def _bounds(one: PlanComparison) -> str:
    """What surrounds the best estimate; why there is none, where there is more to say than the gap's name."""
    if isinstance(one.now, Missing):
        return one.now.text
    if one.now.value is None or one.now.low is None or one.now.high is None:
        return ""
    if one.now.high <= one.now.low * 1.001:
        return ""
    return f"{one.row.seen} {number(one.now.low, one.row.unit)} to {number(one.now.high, one.row.unit)}".strip()


def _scale(one: PlanComparison) -> str:
    planned = (one.planned.value,) if one.planned else ()
    measured = _ends(one.now)
    known = [*planned, *(end for end in measured or () if end is not None)]
    top = 1.0 if one.row.unit == "ratio" and max(known, default=0.0) > 0.2 else max(known, default=0.0) * 1.25
    return draw_scale(measured, planned, top)


def _ends(value: SignalValue) -> tuple[float, float | None] | None:
    if not isinstance(value, Reading):
        return None
    low = value.low if value.low is not None else value.value
    return None if low is None else (low, value.high)


def _judged(one: PlanComparison) -> tuple[Status, str]:
    """The worst answer about the number, in words; never "as planned" of a number that is not."""
    answer = one.judged
    if answer is None:
        return Status.UNKNOWN, ""
    if isinstance(answer, Unknown):
        why = "" if answer.reason is Gap.NOT_IN_PLAN else f": {answer.reason.value.replace('_', ' ')}"
        return Status.UNKNOWN, f"not judged{why}"
    if answer.status is Status.OK:
        return Status.OK, "no finding" if one.is_worse or one.planned is None else "as planned"
    return answer.status, f"{answer.status.value}, {answer.certainty.value}"
