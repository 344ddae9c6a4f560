"""Simulated tier over time: engines advance, and their pages become windows as in the daemon.

Pages are 15 minutes apart in calm weeks, a minute in the newest days, and 15 seconds around a restart or cascade.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from agent.demo.simulation.engine import SimulatedEngine
from agent.demo.simulation.scenario import CASCADE_SECONDS, QUARTER, Restart, TierScenario, conditions
from rules.evaluator import timeline
from rules.evaluator.observation import ClosedMinute
from rules.evaluator.timeline import TimelineEvent, TimelineKind
from rules.plan import load_bins
from rules.plan.curve import Curve
from rules.plan.load_bins import BinnedWindow, TierContext
from rules.plan.schema import TierPlan
from rules.replicas import starts
from rules.replicas.starts import ReplicaStart
from rules.replicas.track import ScrapeTrack, record_failure, record_success
from rules.telemetry import gauges, windows
from rules.telemetry.snapshots import Snapshot
from rules.telemetry.windows import MINUTE_SECONDS, Window

SCRAPE_SECONDS = 15.0
AROUND_SECONDS = 45.0
"""Before and after what happens in seconds, pages are as close as a real agent's."""

SCENE_BEFORE, SCENE_AFTER = 1800.0, 1500.0
"""How long before and after a cascade its tier is watched every 15 seconds."""


def build_window(earlier: Snapshot, later: Snapshot) -> Window:
    """A window of many minutes as pages close to each other make it: gauges move in a straight line."""
    found = windows.diff_snapshots(earlier, later)
    told = {
        family: gauges.interpolate(earlier.gauges[family], value, later.t - earlier.t)
        for family, value in later.gauges.items()
        if family in earlier.gauges
    }
    return replace(found, gauges=told, gaps={f: reason for f, reason in found.gaps.items() if f not in told})


@dataclass(slots=True)
class ReplicaRun:
    """What is remembered of a replica between two pages: the way of `rules.replicas.state`, without the cascade."""

    name: str
    engine: SimulatedEngine
    track: ScrapeTrack = field(default_factory=ScrapeTrack)
    open: tuple[Window, ...] = ()
    before: BinnedWindow | None = None
    start: ReplicaStart | None = None

    def take(self, page: Snapshot | None, t: float) -> tuple[Window, ...]:
        """A page, or None for a failed scrape, at `t`; the minutes that are over with it."""
        if page is None:
            self.track, window = record_failure(self.track, t)
        else:
            self.start = starts.detect_start(self.track, page, self.name) or starts.update_start(self.start, page)
            last = self.track.last
            if last is not None and self.track.misses == 0 and page.t - last.t > gauges.GAUGE_HOLD_SECONDS:
                # A silence for `tracks`; here every second of it was watched.
                self.track, window = ScrapeTrack(last=page, seen=page.t), build_window(last, page)
            else:
                self.track, window = record_success(self.track, page)
        if window is None:
            return ()
        over: list[Window] = []
        if self.open and windows.minute_of(window) != windows.minute_of(self.open[0]):
            over.append(self._closed())
        self.open = (*self.open, window)
        if window.end % MINUTE_SECONDS == 0:
            over.append(self._closed())
        return tuple(over)

    def _closed(self) -> Window:
        several, self.open = self.open, ()
        return windows.sum_windows(several)

    def resume(self, page: Snapshot | None) -> None:
        """Goes on from this page, without a window up to it: nobody watched, or somebody else did."""
        self.track = ScrapeTrack() if page is None else ScrapeTrack(last=page, seen=page.t)
        self.open = ()


class TierRun:
    """One tier's replicas. `fine_from` is from when on (unix seconds) minutes are kept."""

    def __init__(self, story: TierScenario, plan: TierPlan, begin: float, fine_from: float, seed: int) -> None:
        self.story = story
        self._seed = f"{seed}/{story.tier}"
        self._rng = random.Random(f"{self._seed}/run")
        self._fine_from = fine_from
        curve = Curve.from_plan(plan)
        assert curve is not None, "a simulated tier has a curve"
        self.followers = tuple(
            ReplicaRun(f"{story.tier}-{n}", SimulatedEngine(plan, curve, self._rng, begin))
            for n in range(story.replicas)
        )
        self._restarts = {n: [r for r in story.restarts if r.replica == n] for n in range(story.replicas)}
        self.t = begin
        self.scrape(begin)

    def scene(self, t: float) -> bool:
        """Return whether the tier is watched closely at `t`, because of its cascade."""
        cascade = self.story.cascade
        if cascade is None:
            return False
        return cascade.begin - SCENE_BEFORE <= t < cascade.begin + CASCADE_SECONDS + SCENE_AFTER

    def ticks(self, quarter: float) -> tuple[float, ...]:
        """The scrape instants of the quarter of an hour that begins at `quarter`."""
        spans = [(r.gone - AROUND_SECONDS, r.ready + AROUND_SECONDS) for r in self.story.restarts]
        near = [span for span in spans if quarter < span[1] and quarter + QUARTER > span[0]]
        if self.scene(quarter):
            return _instants(quarter, SCRAPE_SECONDS)
        if not near:
            return _instants(quarter, MINUTE_SECONDS if quarter >= self._fine_from else QUARTER)
        return tuple(
            t
            for t in _instants(quarter, SCRAPE_SECONDS)
            if t % MINUTE_SECONDS == 0 or any(begin <= t <= end for begin, end in near)
        )

    def advance(self, t: float) -> None:
        """Every engine up to `t`: requests go to those that are ready, evenly but for chance."""
        rate = self.story.demand.rate((self.t + t) / 2, self._seed)
        ready = [n for n in range(self.story.replicas) if self.current_restart(n, t) is None]
        for n in ready:
            self.advance_replica(n, t, rate, len(ready))
        self.t = t

    def advance_replica(self, replica: int, t: float, rate: float, ready: int) -> tuple[int, int, float, float]:
        """Advance one of the `ready` replicas of a tier at `rate` requests per second.

        Return its arrived and finished requests, their prompt and their generated tokens.
        """
        engine = self.followers[replica].engine
        begun = next((r for r in self._restarts[replica] if self.t < r.ready <= t), None)
        if begun is not None:
            engine.restart(begun.started, begun.ready)
        mean = rate * (t - engine.t) / ready
        arrivals = max(0, round(mean + self._rng.gauss(0.0, 1.0) * math.sqrt(mean)))
        return arrivals, *engine.advance(t, arrivals, conditions(self.story, replica, t))

    def skip(self) -> None:
        """A quarter of an hour with nobody watching: what the engines did is on their pages, and in no window."""
        for tick in self.ticks(self.t):
            self.advance(tick)
        self.resume()

    def resume(self) -> None:
        """Watching goes on from the pages as they stand, without a window up to them."""
        for n, follower in enumerate(self.followers):
            follower.resume(self.page(n))

    def current_restart(self, replica: int, t: float) -> Restart | None:
        """The restart that keeps a replica from answering at `t`."""
        return next((r for r in self._restarts[replica] if r.gone <= t < r.ready), None)

    def pages(self) -> tuple[tuple[str, Snapshot | None], ...]:
        """Every replica's page as it stands."""
        return tuple((follower.name, self.page(n)) for n, follower in enumerate(self.followers))

    def page(self, replica: int, gpus: bool = True) -> Snapshot | None:
        """What a replica answers now, with the sums of its GPUs or without; None while it is down."""
        return self.followers[replica].engine.snapshot(gpus) if self.current_restart(replica, self.t) is None else None

    def scrape(self, t: float) -> tuple[tuple[str, Window], ...]:
        """Every replica's page at `t`, to where the engines have been advanced; the minutes that are over."""
        found = []
        for n, follower in enumerate(self.followers):
            found += [(follower.name, window) for window in follower.take(self.page(n), t)]
        return tuple(found)

    def bin_minutes(self, minutes: tuple[tuple[str, Window], ...], context: TierContext) -> tuple[ClosedMinute, ...]:
        """The minutes on the curve, as a turn closes them."""
        by_name = {follower.name: follower for follower in self.followers}
        found = []
        for name, window in minutes:
            one = load_bins.mark_backlog(load_bins.bin_window(window, context.curve, name), by_name[name].before)
            by_name[name].before = one
            found.append(ClosedMinute(tier=context.tier, replica=name, slice=one))
        return tuple(found)

    def detect_events(
        self, t: float, known: tuple[ReplicaStart, ...], say: Callable[[TimelineEvent], None]
    ) -> tuple[ReplicaStart, ...]:
        """Restarts and cold starts that the pages at `t` told, as events; the starts known after it."""
        for follower in self.followers:
            start = follower.start
            if start is None or not start.is_final or start.seen_at > t:
                continue
            after = starts.add_start(known, start)
            if after is not known and start.has_observed_begin:
                say(
                    TimelineEvent(
                        t=start.seen_at,
                        kind=TimelineKind.RESTART,
                        tier=self.story.tier,
                        replica=follower.name,
                        text=RESTARTED,
                    )
                )
                say(timeline.start_event(self.story.tier, start))
            known = after
        return known


RESTARTED = "the engine restarted"


def _instants(quarter: float, step: float) -> tuple[float, ...]:
    return tuple(quarter + number * step for number in range(1, round(QUARTER / step) + 1))
