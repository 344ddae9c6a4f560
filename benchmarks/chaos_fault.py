"""What a fault is: one row of the tables, and how it is told from a daemon's own page.

Owns the record and the conditions that rows share. The rows are `chaos_faults`' (engines, GPUs, others),
`chaos_process_faults`', `chaos_store_faults`' and `chaos_hours`'.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from chaos_world import Metrics, World, total

Shows = Callable[[Metrics, Metrics], bool]
"""Of a daemon's page before the fault and now."""

Act = Callable[[World], None]

TURNS_TO_RECOVER = 2
RESEND_TURNS = TURNS_TO_RECOVER + 6
"""Of an Alertmanager: what was posted in vain is posted again after at most a minute, six turns of 10 s."""

STANDALONE, BOTH, FLEET = ("standalone",), ("standalone", "node"), ("fleet",)
POSTING = STANDALONE + FLEET
EVERY = BOTH + FLEET
DOWN = frozenset({"TargetDown", "TelemetryStale"})
TIER_DOWN = DOWN | {"TierDown"}
VICTIM = 'replica="r1"'

Promise = Callable[[World], list[str]]
"""What of it did not hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One row. `shows` is judged on the daemons of `on`; `metric` names what it looks at. `deserves` are alerts that may be posted.

    `needs` says whether it can be done here. `lasts` is how many turns the fault stays at least. `stops` says that no page is
    answered while it lasts, so that it shows afterwards. `turns` after its end all must be as before. What is seen in a
    time that the clock shows twice is not booked twice: `moves_clock`, and for so long after its end `again_seconds`.
    `may_log`: what is logged may be a traceback. `hour` is done in place of waiting for turns, and takes an hour of the
    daemons' clock; `promised` is looked at right after the end, `later` once all is as before. `stays` says that
    it shows for as long as it lasts. `apart` are groups that it is not paired with.
    """

    name: str
    group: str
    do: Act
    undo: Act
    shows: Shows
    metric: str
    on: tuple[str, ...] = BOTH
    deserves: frozenset[str] = frozenset()
    needs: Callable[[World], bool] = lambda world: True
    lasts: int = 3
    turns: int = TURNS_TO_RECOVER
    moves_clock: bool = False
    again_seconds: float = 0.0
    may_log: bool = False
    stops: bool = False
    hour: Act | None = None
    promised: Promise = lambda world: []
    later: Promise = lambda world: []
    stays: bool = False
    apart: frozenset[str] = frozenset()

    def goes_with(self, other: Fault) -> bool:
        """Whether both may be done at once."""
        apart = self.group == other.group or self.group in other.apart or other.group in self.apart
        return not (apart or (self.stops and other.stops))


def grew(name: str, *having: str) -> Shows:
    return lambda before, now: total(now, name, *having) > total(before, name, *having)


def is_at(name: str, value: float, *having: str) -> Shows:
    return lambda before, now: any(
        v == value for k, v in now.items() if k.partition("{")[0] == name and all(text in k for text in having)
    )


def turns_go_on(before: Metrics, now: Metrics) -> bool:
    return total(now, "sizewatch_cycles_total") > total(before, "sizewatch_cycles_total") + 2
