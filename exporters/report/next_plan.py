"""plan.next.yaml: the plan updated from production and the proposed fleet, with the old value of each change.

Benchmark curves stay as measured. If production refutes a curve, the measured operating point is added until the next
benchmark. The proposal itself is in `rules.resize.proposal`. Request lengths follow production only if measured: a
bound keeps the planned value, or no value, with the reason.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeGuard

from exporters.documents.plan_files import DUMP_WIDTH, scalar
from exporters.render.text import dump_object, format_local, format_reading, printable_line
from exporters.report.inputs import TierPast
from exporters.report.records import Report, TierReport
from rules.catalogue.registry import CATALOGUE
from rules.plan.guardrails import judge_guardrails
from rules.plan.schema import Guardrails, Plan, TierPlan, Workload, parse_plan
from rules.plan.validation import impossible_means
from rules.resize.proposal import ProposalKind, Resize
from rules.resize.workload import Length
from rules.telemetry.signals import Reading
from rules.telemetry.wording import number
from rules.telemetry.work import SAME, Capacity, CapacitySource
from rules.verdicts.verdict import Status

KEYS = {"prompts": "prompt_tokens", "outputs": "generation_tokens"}
"""Plan keys by the report's words."""

MEASURE = "take it from the requests that a gateway logs, and write it into the plan by hand"


@dataclass(frozen=True, slots=True)
class NextLength:
    """Quantile or mean of prompts or outputs. `value` is in tokens, None if the plan gets no value.

    `left` is the reason if production's value is not used, else "". `upper` is the upper edge of the bucket of an
    estimated `value`, else None.
    """

    what: str
    quantile: str
    value: float | None
    left: str = ""
    upper: float | None = None


def next_lengths(resize: Resize) -> tuple[NextLength, ...]:
    """Return the planned quantile if it lies in the observed bucket, else the best estimate.

    The mean is exact (tokens by requests) and follows production.
    """
    rows: list[NextLength] = []
    for what in KEYS:
        mean, floor = _mean(resize, what), 0.0
        quantiles = []
        for length in resize.workload.lengths:
            if length.what == what:
                quantiles.append(_next_quantile(length, floor))
                # A plan with a quantile below the previous one is refused.
                floor = quantiles[-1].value or floor
        p95 = [row.value for row in quantiles if row.quantile == "p95" and row.upper is not None]
        # Estimates are too low in their buckets where the exact mean is above the P95: an upper edge is a bound.
        lie_too_low = mean.value is not None and any(value and mean.value > value for value in p95)
        if lie_too_low:
            quantiles = [replace(row, value=row.upper or row.value) for row in quantiles]
        rows += [mean, *quantiles]
    return tuple(rows)


def unchanged_lengths(resize: Resize) -> tuple[str, ...]:
    """Return a sentence for each length that the proposal does not change. Return nothing without a proposal."""
    if resize.proposal.kind is ProposalKind.NONE:
        return ()
    return tuple(length.left for length in next_lengths(resize) if length.left)


def _mean(resize: Resize, what: str) -> NextLength:
    plan, now = resize.seen.context.plan, resize.workload
    lengths = getattr(plan.workload, KEYS[what]) if plan and plan.workload else None
    given = lengths.mean if lengths else None
    seen = {"prompts": now.prompt_mean, "outputs": now.generation_mean}[what]
    if not seen or (given is not None and abs(seen / given - 1) <= SAME):
        return NextLength(what, "mean", given)
    return NextLength(what, "mean", float(f"{seen:.4g}"))


def _next_quantile(length: Length, floor: float) -> NextLength:
    """Return a planned length within its bucket, else the estimate. Production's value stays out where it is a bound."""
    seen, given, row = length.observed, length.planned, partial(NextLength, length.what, length.quantile)
    if not isinstance(seen, Reading):
        return row(None if given is None else max(given, floor))
    low = seen.low or 0.0
    if given is not None and low <= given and (seen.high is None or given <= seen.high):
        return row(max(given, floor))
    if seen.value is not None:
        value = max(floor, float(max(1, round(seen.value))))
        high = seen.high or value
        return row(value, upper=high if high > low else None)
    name, above = f"{length.what} {length.quantile.upper()}", number(low, "")
    text = f"{name}: production tells only that it is above {above} tokens, where the engine's buckets end; "
    if given is None:
        return row(None, f"{text}the plan gets none: {MEASURE}")
    if given < floor:
        why = "cannot stay, the quantile below it is longer"
        return row(None, f"{text}the planned {number(given, '')} {why}: {MEASURE}")
    return row(given, f"{text}the planned {number(given, '')} stays, too low as it is: {MEASURE}")


def next_plan(plan: Plan, tiers: Sequence[TierPast]) -> Plan:
    """Return the plan with every tier as production showed it. A tier without a recommendation is unchanged."""
    known = {past.resize.seen.context.name: past for past in tiers}
    whole = plan.model_dump(mode="json", by_alias=True, exclude_none=True)
    for name, tier in whole["tiers"].items():
        if name in known and known[name].resize.proposal.kind is not ProposalKind.NONE:
            _follow(tier, known[name])
    return parse_plan(whole)


def _follow(tier: dict[str, Any], past: TierPast) -> None:
    resize = past.resize
    workload = tier.setdefault("workload", {})
    before = workload.get("prompt_tokens", {}).get("mean")
    workload.update({key: {} for key in KEYS.values()})
    for length in next_lengths(resize):
        if length.value is not None:
            workload[KEYS[length.what]][length.quantile] = length.value
    rates = workload.setdefault("requests_per_second", {})
    for name, seen in (("average", resize.workload.average_rps), ("peak", resize.workload.peak_rps)):
        if seen and abs(seen / rates.get(name, seen * 2) - 1) > SAME:
            rates[name] = float(f"{seen:.3g}")
    if rates.get("average", 0) > rates.get("peak", float("inf")):
        rates["average"] = rates["peak"]
    if resize.proposal.replicas is not None:
        tier.setdefault("fleet", {})["instances"] = resize.proposal.replicas
    if refutes_plan(resize.usable):
        bounds = {"low": resize.usable.low, "usable_rps": resize.usable.rps, "high": resize.usable.high}
        point: dict[str, Any] = {name: float(f"{value:.3g}") for name, value in bounds.items() if value}
        tier["operating_point"] = {**point, "source": CapacitySource.PRODUCTION.value}
    _guard(tier, resize)
    if before is not None and workload["prompt_tokens"].get("mean") != before:
        # Keep the curve as measured. Points without lengths were measured at the workload's mean.
        for point in tier.get("curve", {}).get("points", ()):
            point.setdefault("prompt_tokens_mean", before)
    guardrails = Guardrails.model_validate(tier["guardrails"])
    if any(impossible_means(Workload.model_validate(workload), guardrails)):
        # A quantile with only a bound stays too low. The true mean must not be written with it.
        for key in KEYS.values():
            workload[key].pop("mean", None)
    for part in ("workload", "guardrails"):
        tier[part] = {key: value for key, value in tier.get(part, {}).items() if value != {}}
        if not tier[part]:
            del tier[part]


def refutes_plan(capacity: Capacity | None) -> TypeGuard[Capacity]:
    """Return whether production measured a capacity that differs from the plan by more than SAME.

    If no load kept the SLO, nothing was measured. Such a number would become the floor of the next plan.
    """
    if capacity is None or capacity.source is not CapacitySource.PRODUCTION or capacity.kept_rps is None:
        return False
    return capacity.planned_rps is None or abs(capacity.rps / capacity.planned_rps - 1) > SAME


def _guard(tier: dict[str, Any], resize: Resize) -> None:
    """Update guardrails that are missing, or do not fit the lengths and the peak of the next plan.

    Nothing follows from a length that the plan keeps because production's is beyond the engine's last bucket.
    """
    limit = partial(CATALOGUE["Guardrails"].limit, overrides=resize.seen.context.limits)
    lengths = {f"{KEYS[length.what]}_{length.quantile}": length.observed for length in resize.workload.lengths}
    seen = {name: value for name, value in lengths.items() if isinstance(value, Reading) and value.high is None}
    # A mean that the quantiles exclude is dropped later, and no guardrail follows from it.
    quantiles = {key: {**tier["workload"][key], "mean": None} for key in KEYS.values()}
    planned = TierPlan.model_validate({**tier, "workload": {**tier["workload"], **quantiles}})
    present = tier.setdefault("guardrails", {})
    for guardrail in judge_guardrails(planned, limit, seen, None):
        if guardrail.status != Status.OK and guardrail.proposed is not None:
            present[guardrail.key] = guardrail.proposed


def is_benchmark_refuted(resize: Resize) -> bool:
    """Return whether the tier has a benchmark and production takes clearly less than it."""
    usable, context = resize.usable, resize.seen.context
    if context.curve is None or not refutes_plan(usable):
        return False
    return usable.planned_rps is not None and usable.rps < usable.planned_rps


HEAD = """\
# Written by `sizewatch report` at {made}: the plan with what production showed. Read it before you use it:
# `sizewatch plan check` says what weakens it, `sizewatch plan diff OLD NEW` what changed and what that costs.
{simulated}schema: 1
tiers:
"""


def next_plan_text(report: Report, proposed: Plan) -> str:
    """Return the plan as YAML. Comments above each tier have the proposal, its reasons, and the old value of each change."""
    made = format_local(report.made_at, "UTC", "%Y-%m-%d %H:%M UTC")
    simulated = "# SIMULATED: none of the traffic behind it is real.\n" if report.simulated else ""
    text = HEAD.format(made=made, simulated=simulated)
    comments = {tier.tier: _comments(tier) for tier in report.tiers}
    for name, tier in proposed.tiers.items():
        fields = tier.model_dump(mode="json", exclude_none=True)
        if tier.curve is not None:
            fields["curve"] = tier.curve.model_dump(mode="json", exclude_defaults=True)
        lines = []
        for comment in comments.get(name, ()):
            lines += textwrap.wrap(
                f"# {printable_line(comment)}", 110, subsequent_indent="#   ", break_on_hyphens=False
            )
        lines.append(dump_object(fields, allow_unicode=True, default_flow_style=None, width=DUMP_WIDTH))
        text += f"  {scalar(name)}:\n" + textwrap.indent("\n".join(lines), "    ")
    return text


def _comments(tier: TierReport) -> Iterator[str]:
    proposal = tier.proposal
    if tier.curve.benchmark_refuted and tier.curve.usable is not None:
        yield f"First benchmark again: {tier.curve.usable.reason}."
        yield "Until then operating_point has what production measured; the curve stays, to compare at equal load."
    if proposal.kind is ProposalKind.NONE:
        yield f"{proposal.sentence}."
    else:
        yield f"{proposal.sentence} ({proposal.certainty.value})."
    yield from (f"- {text}" for text in proposal.evidence)
    yield from (f"- {text.removeprefix(f'{tier.tier}: ')}" for text in tier.changes)
    yield from (f"{text}." for text in tier.left)
    for length in tier.workload.lengths:
        if tier.changes and isinstance(length.observed, Reading):
            yield f"{length.what} {length.quantile.upper()} in production: {format_reading(length.observed, 'tokens')}"
