"""A tier's cold start as the lead of its pre-warming: P50 and P95 of the starts that are known, beside the plan's number.

Owns the combination of what was measured, what engines say of themselves and what the configuration has, in this order; and
the sentence about it. The starts are `rules.starts`'; they are one tier's: a lead that was measured on one hardware
generation is wrong on another (guide 9.5), so tiers are never put together here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from rules.starts import ENOUGH, LEAD_QUANTILE, Start, nearest_rank
from rules.wording import number


class Source(StrEnum):
    """Where the P95, which is the lead, comes from."""

    MEASURED = "measured"
    ENGINE = "engine"
    PLAN = "plan"


@dataclass(frozen=True, slots=True, kw_only=True)
class ColdStart:
    """How long before a replica is needed it must be asked for: `p95_seconds`, from `source`.

    `count` are the starts that are known, 0 where only the plan tells. `measured_p95_seconds` is theirs, also where the plan's
    larger number is the lead; None without any.
    """

    p50_seconds: float
    p95_seconds: float
    count: int
    source: Source
    sentence: str
    measured_p95_seconds: float | None = None


def cold_start(starts: Iterable[Start], plan_seconds: float | None) -> ColdStart | None:
    """The cold start of one tier from its known starts and the plan's `cold_start_seconds`; None where neither tells anything.

    Quantiles are by nearest rank: the P95 of fewer than 20 starts is the slowest of them. What was measured is believed alone
    from 20 starts on (below, one start in twenty need not have been seen), before that the larger of it and the plan's: a lead
    too long costs some warm minutes, one too short is missed at every scale-up. What an engine says of its own start leaves
    out container and interpreter, however often it says so: the larger of it and the plan's, always.
    """
    every = tuple(starts)
    measured = tuple(one for one in every if one.measured)
    known, source = (measured, Source.MEASURED) if measured else (every, Source.ENGINE)
    if not known:
        return None if plan_seconds is None else _by_plan(plan_seconds)
    seconds = [one.lead_seconds for one in known]
    p95 = nearest_rank(seconds, LEAD_QUANTILE)
    alone = source is Source.MEASURED and len(known) >= ENOUGH
    planned = plan_seconds is not None and plan_seconds > p95 and not alone
    return ColdStart(
        p50_seconds=nearest_rank(seconds, 0.5),
        p95_seconds=plan_seconds if planned and plan_seconds is not None else p95,
        count=len(known),
        source=Source.PLAN if planned else source,
        sentence=_sentence(known, source, plan_seconds, alone),
        measured_p95_seconds=p95,
    )


def _by_plan(seconds: float) -> ColdStart:
    said = f"no start was seen yet: the plan's {number(seconds, 'seconds')} are the lead"
    return ColdStart(p50_seconds=seconds, p95_seconds=seconds, count=0, source=Source.PLAN, sentence=said)


def _sentence(known: tuple[Start, ...], source: Source, plan_seconds: float | None, alone: bool) -> str:
    said = f"{_known(known, source)}{_bounds(known, source)}"
    if plan_seconds is None:
        return f"{said}; the plan has no cold_start_seconds"
    planned = number(plan_seconds, "seconds")
    p95 = nearest_rank([one.lead_seconds for one in known], LEAD_QUANTILE)
    if plan_seconds > p95 and not alone:
        why = (
            f"until {ENOUGH} starts are known" if source is Source.MEASURED else "for that leaves out what came before"
        )
        return f"{said}; the plan's {planned} are the lead {why}"
    return f"{said}; the plan has {planned}"


def _known(known: tuple[Start, ...], source: Source) -> str:
    seconds = [one.lead_seconds for one in known]
    p50, p95 = (number(nearest_rank(seconds, q), "seconds") for q in (0.5, LEAD_QUANTILE))
    how = "measured" if source is Source.MEASURED else "as the engine tells"
    if len(known) == 1:
        return f"one start, {how}: {p95}"
    slowest = "the slowest" if len(known) < ENOUGH else "P95"
    return f"{len(known)} starts, {how}: P50 {p50}, {slowest} {p95}"


def _bounds(known: tuple[Start, ...], source: Source) -> str:
    """How many of them are no more than a bound, in words."""
    if source is Source.ENGINE:
        return ""
    upper = sum(1 for one in known if one.seconds.value is None)
    if not upper:
        return ""
    return f" ({'all' if upper == len(known) else upper} of them at most, by the scrapes around)"
