"""Scenario of the simulated weeks: request rates and incidents per tier, and the engines that live through it.

All times count back from the end, so that the newest days are those before now. A rate depends on time and seed only.
A new incident is a field of `TierScenario`, a line in
`stories`, and its effect in `conditions`.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from dataclasses import dataclass

from agent.demo.simulation.engine import Conditions, SimulatedEngine
from rules.plan.curve import Curve
from rules.plan.schema import TierPlan
from rules.telemetry.snapshots import Snapshot

QUARTER, HOUR, DAY = 900.0, 3600.0, 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    """Requests per second of a tier, in UTC.

    `busiest` is the rate of a workday at `peak_hour`; `night` (0-1) of it is left at night, `weekend` of every hour at
    weekends. `batch` is a job's rate between the hours `batch_from` and `batch_until` of each day.
    """

    busiest: float
    peak_hour: float
    night: float = 0.15
    weekend: float = 0.5
    chance: float = 0.06
    batch: float = 0.0
    batch_from: float = 0.0
    batch_until: float = 0.0

    def rate(self, t: float, seed: str) -> float:
        """Requests per second expected at `t` (unix seconds)."""
        hour = t % DAY / HOUR
        near = math.exp(1.8 * (math.cos(2 * math.pi * (hour - self.peak_hour) / 24) - 1))
        people = self.busiest * (self.night + (1 - self.night) * near)
        if weekday(t) >= 5:
            people *= self.weekend
        job = self.batch if self.batch_from <= hour < self.batch_until else 0.0
        return (people + job) * (1 + self.chance * _slow(t, seed))


def weekday(t: float) -> int:
    """Return the weekday at `t`, Monday is 0. Unix time began on a Thursday."""
    return int(t // DAY + 3) % 7


def _slow(t: float, seed: str) -> float:
    """Normal noise that takes an hour to become another: between two hours' values, evenly."""
    hour, place = divmod(t / HOUR, 1.0)
    before, after = (random.Random(f"{seed}/{int(hour) + more}").gauss(0.0, 1.0) for more in (0, 1))
    return before + place * (after - before)


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    """A replica whose process ended at `gone`, was started again at `started` and served from `ready` on (unix seconds)."""

    replica: int
    gone: float
    started: float
    ready: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """Prompts that grow evenly from `begin` to `end` until they are `factor` times as long, and stay so."""

    begin: float
    end: float
    factor: float

    def factor_at(self, t: float) -> float:
        """Return how many times as long as planned at `t`."""
        place = min(1.0, max(0.0, (t - self.begin) / (self.end - self.begin)))
        return round(1 + place * (self.factor - 1), 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedCascade:
    """A KV cascade of one replica. `begin` is when long answers begin to be asked for."""

    replica: int
    begin: float
    alert_at: float
    alert_until: float

    @property
    def scene(self) -> tuple[float, float]:
        """Begin and end of the time in which its tier is watched page by page."""
        return self.begin - 1800.0, self.begin + CASCADE_SECONDS + 1500.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TierScenario:
    """One tier; `says` is what a newcomer is told of it.

    From `changes_at` on its pattern is `then`; `replanned_at` is when the present plan took effect.
    """

    tier: str
    replicas: int
    pattern: Pattern
    says: str = ""
    changes_at: float = math.inf
    then: Pattern | None = None
    restarts: tuple[Restart, ...] = ()
    drift: Drift | None = None
    cascade: ScriptedCascade | None = None
    replanned_at: float | None = None

    def rate(self, t: float, seed: str) -> float:
        """Return the requests per second expected at `t` (unix seconds)."""
        pattern = self.then if self.then is not None and t >= self.changes_at else self.pattern
        return pattern.rate(t, seed)


CASCADE_SECONDS = 1200.0

# Seconds after the begin: KV level, running, waiting, preemptions a second, times the usual TTFT, times the usual answers.
_CASCADE = (
    (0.0, 0.36, 12.0, 0.0, 0.0, 1.0, 1.0),
    (60.0, 0.42, 14.0, 0.0, 0.0, 1.0, 4.0),
    (120.0, 0.83, 30.0, 0.0, 0.0, 1.1, 4.0),
    (135.0, 0.97, 35.0, 0.0, 0.9, 1.3, 4.0),
    (150.0, 0.98, 37.0, 0.0, 0.9, 1.5, 4.0),
    (180.0, 0.99, 38.0, 7.0, 0.9, 2.0, 4.0),
    (240.0, 0.99, 36.0, 22.0, 0.9, 6.0, 4.0),
    (420.0, 0.99, 36.0, 40.0, 0.9, 12.0, 3.0),
    (600.0, 0.98, 36.0, 36.0, 0.7, 12.0, 1.0),
    (720.0, 0.95, 35.0, 14.0, 0.3, 6.0, 1.0),
    (780.0, 0.75, 28.0, 2.0, 0.0, 2.0, 1.0),
    (840.0, 0.50, 18.0, 0.0, 0.0, 1.0, 1.0),
    (CASCADE_SECONDS, 0.36, 12.0, 0.0, 0.0, 1.0, 1.0),
)


def conditions(story: TierScenario, replica: int, t: float) -> Conditions:
    """What is unusual about a replica at `t`."""
    longer = story.drift.factor_at(t) if story.drift is not None else 1.0
    cascade = story.cascade
    if cascade is None or replica != cascade.replica or not 0 <= t - cascade.begin <= CASCADE_SECONDS:
        return Conditions(prompt_scale=longer)
    level, running, waiting, preemptions, first, results = _between(t - cascade.begin)
    return Conditions(
        prompt_scale=longer,
        generation_scale=results,
        first_token_factor=first,
        kv_level=level,
        running=round(running),
        waiting=round(waiting),
        preemptions_per_second=preemptions,
    )


def _between(elapsed: float) -> tuple[float, ...]:
    after = min(bisect_right(_CASCADE, elapsed, key=lambda row: row[0]), len(_CASCADE) - 1)
    earlier, later = _CASCADE[after - 1], _CASCADE[after]
    share = (elapsed - earlier[0]) / (later[0] - earlier[0])
    return tuple(a + share * (b - a) for a, b in zip(earlier[1:], later[1:], strict=True))


def find_outage(begin: float, end: float) -> tuple[float, float]:
    """Return begin and end of the outage: an hour and a half of a night in which sizewatch itself does not run."""
    night = (begin + 0.4 * (end - begin)) // DAY * DAY + DAY + 2 * HOUR
    return night, night + 1.5 * HOUR


def stories(begin: float, end: float, seed: int) -> tuple[TierScenario, ...]:
    """Return the tiers between `begin` and `end` (unix seconds, full quarters of an hour, 14 days apart or more)."""
    days = [day * DAY for day in range(math.ceil(begin / DAY), math.floor(end / DAY))]
    # Prompts double over ten days: people paste whole documents. It is deployed twice a week.
    rng = random.Random(f"{seed}/chat")
    deploys = [day + 9 * HOUR + rng.randrange(0, 8) * 600.0 for day in days if weekday(day) in (1, 3)]
    chat = TierScenario(
        tier="chat-h100",
        replicas=3,
        says="prompts grow until they are twice as long as planned",
        pattern=Pattern(busiest=8.8, peak_hour=14.0, night=0.25, weekend=0.75),
        restarts=_rolled(deploys, 3, 172.0, rng, end),
        drift=Drift(begin=end - min(14 * DAY, (end - begin) / 2), end=end - 4 * DAY, factor=2.0),
    )
    rag = TierScenario(
        tier="rag-l40s",
        replicas=3,
        says="sized for traffic that never came: the utilization trap",
        pattern=Pattern(busiest=5.4, peak_hour=13.0, night=0.2, weekend=0.4),
        restarts=_rolled(
            [day + 8 * HOUR for day in days if weekday(day) == 2], 3, 88.0, random.Random(f"{seed}/rag"), end
        ),
    )
    # A KV cascade on a busy afternoon; three days before the end a nightly job moves in and half of the people leave.
    rng = random.Random(f"{seed}/code")
    workdays = [day for day in days if weekday(day) < 5 and end - 12 * DAY <= day < end - 5 * DAY]
    at = workdays[rng.randrange(len(workdays))] + 15 * HOUR + rng.randrange(0, 4) * 600.0
    crashes = [day + rng.uniform(6, 8) * HOUR for day in days[2::5] if abs(day + 14 * HOUR - at) > DAY]
    wednesday = next(day for day in days if weekday(day) == 2 and begin + 3 * DAY < day)
    code = TierScenario(
        tier="code-h100",
        replicas=2,
        says="a KV cascade; then, three days ago, the traffic became another one",
        pattern=Pattern(busiest=3.6, peak_hour=15.0, night=0.35, weekend=0.6),
        changes_at=math.floor((end - 3 * DAY) / DAY) * DAY,
        then=Pattern(busiest=2.0, peak_hour=15.0, night=0.35, weekend=0.6, batch=2.8, batch_from=1.0, batch_until=6.0),
        restarts=tuple(_restart(rng.randrange(2), t, 121.0, rng) for t in crashes if t < end - HOUR),
        cascade=ScriptedCascade(replica=0, begin=at, alert_at=at + 270.0, alert_until=at + 1020.0),
        replanned_at=wednesday + 10 * HOUR,
    )
    return chat, rag, code


def _rolled(deploys: list[float], replicas: int, cold: float, rng: random.Random, end: float) -> tuple[Restart, ...]:
    """One replica after the other, ten minutes apart, so that the others carry the load meanwhile."""
    restarts = [_restart(n, at + n * 600.0, cold, rng) for at in deploys for n in range(replicas)]
    return tuple(restart for restart in restarts if restart.ready < end - HOUR)


def _restart(replica: int, at: float, cold: float, rng: random.Random) -> Restart:
    gone = round(at) + rng.uniform(1, 14)
    started = gone + rng.uniform(3, 9)
    return Restart(replica=replica, gone=gone, started=started, ready=started + cold * rng.lognormvariate(0.0, 0.08))


class TierRun:
    """Engines of a tier, advanced up to `t` (unix seconds). `names` are their replicas."""

    def __init__(self, story: TierScenario, plan: TierPlan, begin: float, seed: int) -> None:
        curve = Curve.from_plan(plan)
        assert curve is not None, "a simulated tier has a curve"
        self.story, self.t = story, begin
        self.names = tuple(f"{story.tier}-{n}" for n in range(story.replicas))
        self._seed = f"{seed}/{story.tier}"
        self._rng = random.Random(f"{self._seed}/run")
        self.engines = tuple(SimulatedEngine(plan, curve, self._rng, begin) for _ in self.names)

    def advance(self, t: float) -> None:
        """Advance every engine that is ready to `t`."""
        rate = self.story.rate((self.t + t) / 2, self._seed)
        ready = [replica for replica in range(self.story.replicas) if not self._is_down(replica, t)]
        for replica in ready:
            self.advance_replica(replica, t, rate, len(ready))
        self.t = t

    def advance_replica(self, replica: int, t: float, rate: float, ready: int) -> tuple[int, int, float, float]:
        """Advance one of the `ready` replicas at `rate` (1/s). Return requests arrived and finished, prompt and output tokens."""
        engine = self.engines[replica]
        for restart in self.story.restarts:
            if restart.replica == replica and self.t < restart.ready <= t:
                engine.restart(restart.started, restart.ready)
        mean = rate * (t - engine.t) / ready
        arrivals = max(0, round(mean + self._rng.gauss(0.0, 1.0) * math.sqrt(mean)))
        return arrivals, *engine.advance(t, arrivals, conditions(self.story, replica, t))

    def pages(self) -> dict[str, Snapshot]:
        engines = zip(self.names, self.engines, strict=True)
        return {name: engine.snapshot() for n, (name, engine) in enumerate(engines) if not self._is_down(n, self.t)}

    def _is_down(self, replica: int, t: float) -> bool:
        return any(r.replica == replica and r.gone <= t < r.ready for r in self.story.restarts)
