"""Which lengths of requests the next plan has, and what is said beside each.

Owns the choice, length by length: a bound is no measurement, so what production tells only "above" of keeps the planned value, or
none, with the reason. Writing them down is `exporters.report.next_plan`'s.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from rules.resize.proposal import ProposalKind, Resize
from rules.resize.workload import Length
from rules.telemetry.signals import Reading
from rules.telemetry.wording import number
from rules.telemetry.work import SAME

KEYS = {"prompts": "prompt_tokens", "outputs": "generation_tokens"}
"""The words of the report and the plan's keys."""

MEASURE = "take it from the requests that a gateway logs, and write it into the plan by hand"


@dataclass(frozen=True, slots=True, kw_only=True)
class NextLength:
    """One quantile of prompts or outputs, or their mean: `value` in tokens, None where the plan gets none.

    `note` stands beside a value that is not what was planned or not what was seen; `left` says in a sentence why
    production's is not taken over, "" where it is. `upper` is the upper edge of the bucket that `value` was estimated in, None
    where it was not.
    """

    what: str
    quantile: str
    value: float | None
    note: str = ""
    left: str = ""
    upper: float | None = None

    @property
    def path(self) -> str:
        """Where it stands in a tier of the plan."""
        return f"workload.{KEYS[self.what]}.{self.quantile}"


def next_lengths(resize: Resize) -> tuple[NextLength, ...]:
    """The planned quantile where its bucket holds it, for then nothing says that it is another one; else the best estimate.

    The mean is exact (tokens by requests): production's, where it is another one.
    """
    found: list[NextLength] = []
    for what in KEYS:
        mean, quantiles = _mean(resize, what), tuple(_rising(resize, what))
        found += [mean, *(_at_upper_edges(quantiles) if _lie_too_low(mean, quantiles) else quantiles)]
    return tuple(found)


def _lie_too_low(mean: NextLength, quantiles: Sequence[NextLength]) -> bool:
    """Whether the exact mean is above the estimate of P95: then the estimates lie too low inside their buckets."""
    p95 = next((one for one in quantiles if one.quantile == "p95" and one.upper is not None), None)
    return p95 is not None and mean.value is not None and p95.value is not None and mean.value > p95.value


def _at_upper_edges(quantiles: Sequence[NextLength]) -> tuple[NextLength, ...]:
    """The quantiles that were estimated inside a bucket, at its upper edge: production's are at most so long."""
    return tuple(
        one if one.upper is None else replace(one, value=one.upper, note=f"{one.note}, by the mean near the upper end")
        for one in quantiles
    )


def unchanged_lengths(resize: Resize) -> tuple[str, ...]:
    """A sentence for each length that a proposal does not take over; none without a proposal."""
    if resize.proposal.kind is ProposalKind.NONE:
        return ()
    return tuple(one.left for one in next_lengths(resize) if one.left)


def _mean(resize: Resize, what: str) -> NextLength:
    plan, now = resize.seen.view.plan, resize.workload
    lengths = getattr(plan.workload, KEYS[what]) if plan and plan.workload else None
    given = lengths.mean if lengths else None
    seen = {"prompts": now.prompt_mean, "outputs": now.generation_mean}[what]
    if not seen or (given is not None and abs(seen / given - 1) <= SAME):
        return NextLength(what=what, quantile="mean", value=given)
    return NextLength(what=what, quantile="mean", value=float(f"{seen:.4g}"))


def _rising(resize: Resize, what: str) -> Iterator[NextLength]:
    """None below the one before it: a plan with one is refused."""
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
    """Production tells only that it is longer than the last edge of the engine's buckets."""
    name, given, above = f"{length.what} {length.quantile.upper()}", length.planned, f"above {number(low, '')}"
    said = f"{name}: production tells only that it is {above} tokens, where the engine's buckets end; "
    if given is None:
        left = f"{said}the plan gets none: {MEASURE}"
    elif given < floor:
        left = f"{said}the planned {number(given, '')} cannot stay, the quantile below it is longer: {MEASURE}"
    else:
        left = f"{said}the planned {number(given, '')} stays, too low as it is: {MEASURE}"
    stays = given is not None and given >= floor
    note = f"stays, too low: production is {above}" if stays else ""
    return NextLength(what=length.what, quantile=length.quantile, value=given if stays else None, note=note, left=left)
