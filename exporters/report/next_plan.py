"""plan.next.yaml: the plan updated from production and the proposed fleet, with the old value of each change.

Benchmark curves stay as measured. If production refutes a curve, the measured operating point is added until the next
benchmark. The proposal itself is in `rules.resize.proposal`. Request lengths follow production only if measured: a
bound keeps the planned value, or no value, with the reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeGuard

from exporters.documents.plan_files import curve_lines, scalar, yaml_number
from exporters.render.text import format_local, printable_line
from exporters.report.inputs import ReportInputs, TierPast
from rules.catalogue.registry import CATALOGUE
from rules.plan.guardrails import judge_guardrails
from rules.plan.schema import Guardrails, Plan, TierPlan, Workload, parse_plan
from rules.plan.validation import impossible_means
from rules.resize.proposal import Proposal, ProposalKind, Resize
from rules.resize.workload import Length
from rules.telemetry.signals import Reading
from rules.telemetry.wording import number
from rules.telemetry.work import SAME, Capacity, CapacitySource
from rules.verdicts.verdict import Status

KEYS = {"prompts": "prompt_tokens", "outputs": "generation_tokens"}
"""Plan keys by the report's words."""

MEASURE = "take it from the requests that a gateway logs, and write it into the plan by hand"


@dataclass(frozen=True, slots=True, kw_only=True)
class NextLength:
    """Quantile or mean of prompts or outputs. `value` is in tokens, None if the plan gets no value.

    `note` explains a value that differs from plan or production. `left` is the reason if production's value is not
    used, else "". `upper` is the upper edge of the bucket of an estimated `value`, else None.
    """

    what: str
    quantile: str
    value: float | None
    note: str = ""
    left: str = ""
    upper: float | None = None

    @property
    def path(self) -> str:
        """Return the path of the value in a tier of the plan."""
        return f"workload.{KEYS[self.what]}.{self.quantile}"


def next_lengths(resize: Resize) -> tuple[NextLength, ...]:
    """Return the planned quantile if it lies in the observed bucket, else the best estimate.

    The mean is exact (tokens by requests) and follows production.
    """
    rows: list[NextLength] = []
    for what in KEYS:
        mean, quantiles = _mean(resize, what), list(_rising(resize, what))
        rows.append(mean)
        p95 = [row.value for row in quantiles if row.quantile == "p95" and row.upper is not None]
        # Estimates are too low in their buckets where the exact mean is above the P95: an upper edge is a bound.
        lie_too_low = mean.value is not None and any(value and mean.value > value for value in p95)
        for row in quantiles:
            if lie_too_low and row.upper is not None:
                row = replace(row, value=row.upper, note=f"{row.note}, by the mean near the upper end")
            rows.append(row)
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
        return NextLength(what=what, quantile="mean", value=given)
    return NextLength(what=what, quantile="mean", value=float(f"{seen:.4g}"))


def _rising(resize: Resize, what: str) -> Iterator[NextLength]:
    """Yield lengths that never fall below the previous quantile: a plan with a falling length is refused."""
    floor = 0.0
    for length in resize.workload.lengths:
        if length.what == what:
            chosen = _chosen(length, floor)
            floor = chosen.value or floor
            yield chosen


def _chosen(length: Length, floor: float) -> NextLength:
    seen, given = length.observed, length.planned
    if not isinstance(seen, Reading) or _holds(seen, given):
        return NextLength(
            what=length.what, quantile=length.quantile, value=None if given is None else max(given, floor)
        )
    if seen.value is None:
        return _bound_only(length, seen.low or 0.0, floor)
    value = max(floor, float(max(1, round(seen.value))))
    low, high = seen.low or 0.0, seen.high or value
    note = f"seen between {number(low, '')} and {number(high, '')}" if high > low else ""
    upper = high if high > low else None
    return NextLength(what=length.what, quantile=length.quantile, value=value, note=note, upper=upper)


def _holds(seen: Reading, given: float | None) -> bool:
    return given is not None and (seen.low or 0.0) <= given and (seen.high is None or given <= seen.high)


def _bound_only(length: Length, low: float, floor: float) -> NextLength:
    """Return the length if production shows only that it exceeds the engine's last bucket edge."""
    name, given, above = f"{length.what} {length.quantile.upper()}", length.planned, f"above {number(low, '')}"
    text = f"{name}: production tells only that it is {above} tokens, where the engine's buckets end; "
    if given is None:
        left = f"{text}the plan gets none: {MEASURE}"
    elif given < floor:
        left = f"{text}the planned {number(given, '')} cannot stay, the quantile below it is longer: {MEASURE}"
    else:
        left = f"{text}the planned {number(given, '')} stays, too low as it is: {MEASURE}"
    stays = given is not None and given >= floor
    note = f"stays, too low: production is {above}" if stays else ""
    return NextLength(what=length.what, quantile=length.quantile, value=given if stays else None, note=note, left=left)


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
    lengths = next_lengths(resize)
    for what, key in KEYS.items():
        workload[key] = {
            length.quantile: length.value for length in lengths if length.what == what and length.value is not None
        }
    rates = workload.setdefault("requests_per_second", {})
    for name, seen in (("average", resize.workload.average_rps), ("peak", resize.workload.peak_rps)):
        if seen and abs(seen / rates.get(name, seen * 2) - 1) > SAME:
            rates[name] = float(f"{seen:.3g}")
    if rates.get("average", 0) > rates.get("peak", float("inf")):
        rates["average"] = rates["peak"]
    if resize.proposal.replicas is not None:
        tier.setdefault("fleet", {})["instances"] = resize.proposal.replicas
    if refutes_plan(resize.usable):
        tier["operating_point"] = _measured_point(resize.usable)
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


def _measured_point(capacity: Capacity) -> dict[str, Any]:
    """Return the operating point that production measured, with its known bounds."""
    rounded = {"low": capacity.low, "usable_rps": capacity.rps, "high": capacity.high}
    point: dict[str, Any] = {name: float(f"{value:.3g}") for name, value in rounded.items() if value}
    return {**point, "source": CapacitySource.PRODUCTION.value}


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


def next_plan_text(past: ReportInputs, proposed: Plan) -> str:
    """Return the plan as YAML with comments: the proposal, its reason and the old value of each change."""
    made = format_local(past.made_at, "UTC", "%Y-%m-%d %H:%M UTC")
    lines = [
        f"# Written by `sizewatch report` at {made}: the plan with what production showed. Read it before you use it:",
        "# `sizewatch plan check` says what weakens it, `sizewatch plan diff OLD NEW` what changed and what that costs.",
    ]
    if past.simulated:
        lines.append("# SIMULATED: none of the traffic behind it is real.")
    lines += ["schema: 1", "tiers:"]
    known = {tier_past.resize.seen.context.name: tier_past.resize for tier_past in past.tiers}
    for name, tier in proposed.tiers.items():
        before = past.plan.tiers.get(name) if past.plan else None
        lines.append(f"  {scalar(name)}:")
        if name in known:
            lines += [f"    # {line}" for line in _reasons(known[name])]
        lines += _tier(tier, before, _notes(known.get(name)))
    return "\n".join(lines) + "\n"


def _reasons(resize: Resize) -> Iterator[str]:
    proposal: Proposal = resize.proposal
    sure = f" ({proposal.certainty.value})" if proposal.kind is not ProposalKind.NONE else ""
    if is_benchmark_refuted(resize):
        yield printable_line(f"First benchmark again: {resize.usable.reason if resize.usable else ''}.")
        yield "Until then operating_point has what production measured; the curve stays, to compare at equal load."
    yield printable_line(f"{proposal.sentence}{sure}.")
    for text in proposal.evidence:
        yield printable_line(f"- {text}")
    for text in unchanged_lengths(resize):
        yield printable_line(f"{text}.")


def _notes(resize: Resize | None) -> Mapping[str, str]:
    """Return the notes on values by their path in the tier. An unchanged tier has no notes."""
    if resize is None or resize.proposal.kind is ProposalKind.NONE:
        return {}
    return {length.path: length.note for length in next_lengths(resize) if length.note}


def _tier(tier: TierPlan, before: TierPlan | None, notes: Mapping[str, str]) -> list[str]:
    new = tier.model_dump(mode="json", exclude_none=True, exclude={"curve"})
    old = before.model_dump(mode="json", exclude_none=True, exclude={"curve"}) if before else None
    lines: list[str] = []
    for key, value in new.items():
        lines += _value((key,), value, old.get(key) if old is not None else None, old is not None, notes)
    if tier.curve is not None:
        first, *rest = curve_lines(tier.curve, 6)
        lines += [f"    {first}", *rest]
    return lines


def _value(path: tuple[str, ...], value: Any, old: Any, compared: bool, notes: Mapping[str, str]) -> Iterator[str]:
    key = f"{' ' * (2 + 2 * len(path))}{path[-1]}:"
    if isinstance(value, dict):
        yield key if value else f"{key} {{}}"
        for name, part in value.items():
            before = old.get(name) if isinstance(old, dict) else None
            yield from _value((*path, name), part, before, compared, notes)
        return
    was = [f"was {_scalar(old)}" if old is not None else "new"] if compared and old != value else []
    text = "; ".join((*was, *filter(None, [notes.get(".".join(path))])))
    yield f"{key} {_scalar(value)}{f'  # {text}' if text else ''}"


def _scalar(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return yaml_number(value)
    if isinstance(value, list):
        return f"[{', '.join(_scalar(entry) for entry in value)}]"
    return scalar(str(value))
