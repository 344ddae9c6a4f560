"""Cold start of a tier as the lead of its pre-warming: measured starts against the number in the plan.

`rules.replicas.starts` supplies the starts of one tier. Tiers are never combined: a lead measured on one hardware
generation is wrong on another (guide 9.5).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from rules.replicas.starts import ENOUGH, FROM_TO, ReplicaStart, StartQuantiles, Timing, quantiles_by_timing
from rules.telemetry.wording import number


class LeadSource(StrEnum):
    """Source of the lead."""

    MEASURED = "measured"  # starts timed from the request for the replica to Ready
    PARTLY = "partly"  # starts timed in part, longer than all else that is known
    PLAN = "plan"


@dataclass(frozen=True, slots=True, kw_only=True)
class ColdStart:
    """Cold start: time in advance to request a replica (`p95_seconds`), from `source`.

    `known` has the quantiles of the starts by kind of timing; it is empty if only the plan has a number. `timing` is
    the kind of the lead, None for the plan.
    """

    p95_seconds: float
    source: LeadSource
    sentence: str
    timing: Timing | None = None
    known: tuple[StartQuantiles, ...] = ()

    @property
    def count(self) -> int:
        """Return the number of recorded starts of all kinds."""
        return sum(quantiles.count for quantiles in self.known)

    @property
    def leading(self) -> StartQuantiles | None:
        """Return the quantiles behind the lead, or None for the plan."""
        return next((quantiles for quantiles in self.known if quantiles.timing is self.timing), None)


_Lead = tuple[float, LeadSource, Timing | None, str]
"""Lead in seconds, its source, its kind of timing, and the reason."""


def cold_start(starts: Iterable[ReplicaStart], plan_seconds: float | None) -> ColdStart | None:
    """Return the cold start of one tier from its starts and the plan's `cold_start_seconds`. None without either.

    The lead is the longest candidate. A long lead costs some warm minutes; a short lead fails at every scale-up. Each
    kind of timing has its own P95 (with fewer than 20 starts, the slowest). Only 20 starts timed from request to Ready
    replace the plan's number. With fewer, one start in twenty may be unobserved. Other kinds omit a part, so they never
    go below the plan. Once there are 20 whole starts, other kinds count only with their lower bounds.
    """
    known = quantiles_by_timing(starts)
    if not known:
        return None if plan_seconds is None else _by_plan(plan_seconds)
    by_timing = {quantiles.timing: quantiles for quantiles in known}
    whole, part = by_timing.get(Timing.POD), by_timing.get(Timing.PROCESS)
    is_measured = whole is not None and whole.has_p95
    plan = "the plan has no cold_start_seconds"
    if plan_seconds is not None:
        plan = f"the plan has {number(plan_seconds, 'seconds')}"
    leads: list[_Lead] = []
    if whole is not None:
        text = f"The {'P95' if is_measured else 'slowest'} from the request to Ready is the lead; {plan}"
        leads.append((whole.p95_seconds, LeadSource.MEASURED, Timing.POD, text))
    if part is not None:
        seconds = part.proven_seconds if is_measured else part.p95_seconds
        left_out = "finding a node and pulling the image are not in it"
        text = f"The lead is at least {number(seconds, 'seconds')}: {left_out}; {plan}"
        leads.append((seconds, LeadSource.PARTLY, Timing.PROCESS, text))
    if plan_seconds is not None and not is_measured:
        leads.append((plan_seconds, LeadSource.PLAN, None, _explain_plan(plan_seconds, whole, part)))
    seconds, source, timing, why = max(leads, key=lambda lead: lead[0])
    text = "; ".join(map(_describe, known))
    return ColdStart(p95_seconds=seconds, source=source, sentence=f"{text}. {why}", timing=timing, known=known)


def _describe(quantiles: StartQuantiles) -> str:
    """Return count and quantiles in words, without a full stop."""
    p50, p95 = (number(seconds, "seconds") for seconds in (quantiles.p50_seconds, quantiles.p95_seconds))
    timed = FROM_TO[quantiles.timing]
    if quantiles.count == 1:
        return f"one start timed {timed}: {p95}"
    name = "P95" if quantiles.has_p95 else "the slowest"
    return f"{quantiles.count} starts timed {timed}: P50 {p50}, {name} {p95}"


def _explain_plan(seconds: float, whole: StartQuantiles | None, part: StartQuantiles | None) -> str:
    planned = number(seconds, "seconds")
    if whole is not None or part is None:
        return f"The plan's {planned} are the lead until {ENOUGH} starts are timed from the request to Ready"
    rest = number(seconds - part.p95_seconds, "seconds")
    return f"No start was timed from the request for its replica. The plan's {planned} are the lead; {rest} of it are not timed"


def _by_plan(seconds: float) -> ColdStart:
    text = f"no start was timed yet: the plan's {number(seconds, 'seconds')} are the lead"
    return ColdStart(p95_seconds=seconds, source=LeadSource.PLAN, sentence=text)
