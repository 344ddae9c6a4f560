"""State machine of the KV cache memory-pressure cascade over one replica's scrapes (guide 7.4, figure 7.4).

It reads scrapes in order, because the slopes show the cascade. Preemptions alone are no cascade: healthy servers
preempt too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from statistics import linear_regression

from rules.telemetry.wording import format_count

STAGES = {0: "none", 1: "filling", 2: "evicting", 3: "queueing", 4: "user-visible"}


@dataclass(frozen=True, slots=True, kw_only=True)
class CascadeThresholds:
    """Thresholds of the cascade; their sources are in the catalogue."""

    filling_level: float
    full_level: float
    pressed_level: float
    growth_share: float
    eviction_rate: float
    waiting_share_of_slo: float
    hold_seconds: float
    look_back_seconds: float
    calm_seconds: float
    slow_share: float
    ttft_slo_seconds: float

    @property
    def half_slo(self) -> float:
        return self.waiting_share_of_slo * self.ttft_slo_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class CascadeSample:
    """Gauges of one scrape and increases since the scrape `dt` seconds earlier.

    `slow_first_tokens` of `first_tokens` are later than the TTFT SLO (best estimate). `request_seconds` is the mean
    duration of finished requests, None without any.
    """

    t: float
    dt: float
    level: float
    running: float
    waiting: float
    preemptions: float
    finished: float
    first_tokens: float
    slow_first_tokens: float
    request_seconds: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CascadeState:
    """Cascade of a replica: `stage` (0: none) since `since`, first stage since `onset`, stage 4 since `breach_at`.

    `confirmed`: two scrapes showed stage 2 or worse, or stage 4 followed an earlier stage. `recent` are the samples of
    the look-back.
    """

    stage: int = 0
    onset: float | None = None
    since: float | None = None
    breach_at: float | None = None
    confirmed: bool = False
    recent: tuple[CascadeSample, ...] = ()
    request_seconds: float | None = None
    climbing_seconds: float = 0.0
    calm_seconds: float = 0.0
    evidence: str = ""


def step_cascade(state: CascadeState, now: CascadeSample, limits: CascadeThresholds) -> CascadeState:
    """Return the state after one more scrape, by the highest stage whose condition holds.

    Stages only rise until the pressure was gone for `calm_seconds`.
    """
    state = _remember(state, now, limits)
    conditions = {4: _user_visible, 3: _queueing, 2: _evicting, 1: _filling}
    shown = [(stage, why) for stage, condition in conditions.items() if (why := condition(state, limits))]
    if not shown:
        return _calm_down(state, now, limits)
    stage, why = shown[0]
    confirmed = state.confirmed or min(stage, state.stage) >= 2 or (stage == 4 and state.stage >= 1)
    state = replace(state, calm_seconds=0.0, confirmed=confirmed)
    if stage <= state.stage:
        return state
    onset = now.t if state.onset is None else state.onset
    breach_at = now.t if stage == 4 else state.breach_at
    return replace(state, stage=stage, since=now.t, onset=onset, evidence=why, breach_at=breach_at)


def interrupt_cascade(state: CascadeState) -> CascadeState:
    """Return the state after a gap or a restart: same stage, no slopes."""
    return replace(state, recent=(), climbing_seconds=0.0, calm_seconds=0.0)


def _calm_down(state: CascadeState, now: CascadeSample, limits: CascadeThresholds) -> CascadeState:
    """Return the state after a scrape without any stage's condition. It ends after enough calm.

    Without pressure all of a scrape is calm, while nearly full or evicting a quarter of it, while users wait nothing.
    Preemptions alone neither begin nor continue a cascade.
    """
    if state.stage == 0:
        return state
    quiet = now.level < limits.pressed_level and now.waiting <= 0 and now.preemptions <= 0
    calm = state.calm_seconds + (now.dt if quiet else now.dt / 4)
    if now.slow_first_tokens >= 0.5 or (now.waiting > 0 and expected_wait_seconds(state) >= limits.half_slo):
        calm = 0.0
    if calm < limits.calm_seconds:
        return replace(state, calm_seconds=calm)
    return CascadeState(recent=state.recent, request_seconds=state.request_seconds)


def _remember(state: CascadeState, now: CascadeSample, limits: CascadeThresholds) -> CascadeState:
    """Add a sample. The look-back covers at least two intervals: one rise is a step, two are a slope."""
    oldest = now.t - max(limits.look_back_seconds, 2 * now.dt) - now.dt / 2
    recent = (*(o for o in state.recent if o.t >= oldest), now)
    climbs = len(recent) > 1 and now.level > recent[-2].level
    seconds, climbing = _request_seconds(state.request_seconds, now.request_seconds), 0.0
    if climbs:
        climbing = state.climbing_seconds + now.dt
    return replace(state, recent=recent, request_seconds=seconds, climbing_seconds=climbing)


def _request_seconds(before: float | None, now: float | None) -> float | None:
    """Return the new mean: longer requests count fully, shorter ones by half. Short requests of a mix finish first."""
    if before is None or now is None:
        return now if before is None else before
    return now if now > before else (before + now) / 2


def _filling(state: CascadeState, limits: CascadeThresholds) -> str:
    """Return a cache that fills before a request leaves, while more come than go (DESIGN 3.9).

    A cache that was already full does not fill. A load that stops just at a full cache looks the same, so filling is
    `likely` and never an alert.
    """
    now = state.recent[-1]
    if state.request_seconds is None or now.level < limits.filling_level or len(state.recent) < 2:
        return ""
    if state.climbing_seconds < limits.hold_seconds or state.recent[-2].level >= limits.full_level:
        return ""
    if time_to_full(state) > state.request_seconds or not _still_growing(state, limits):
        return ""
    return (
        f"KV cache {now.level:.0%} full, full in {time_to_full(state):.0f} s, a request takes "
        f"{state.request_seconds:.0f} s, and more arrive than finish"
    )


def _evicting(state: CascadeState, limits: CascadeThresholds) -> str:
    """Return the evictions of a growing load. Evictions of a full but constant batch are no cascade."""
    now = state.recent[-1]
    if now.level < limits.full_level or not (state.stage >= 1 or now.waiting > 0) or not _still_growing(state, limits):
        return ""
    preempted, finished = _sum(state, "preemptions"), _sum(state, "finished")
    if preempted < 2 or preempted <= limits.eviction_rate * max(1.0, finished):
        return ""
    return f"KV cache {now.level:.0%} full, {preempted:,.0f} preemptions for {finished:,.0f} finished requests"


def _queueing(state: CascadeState, limits: CascadeThresholds) -> str:
    """Return a wait of half the objective in a growing queue, or of all of it in any queue."""
    now = state.recent[-1]
    if now.level < limits.pressed_level or now.waiting <= 0:
        return ""
    wait = expected_wait_seconds(state)
    growing = state.stage >= 1 or _growing(state, limits)
    if wait < (limits.half_slo if growing else limits.ttft_slo_seconds):
        return ""
    waiting = format_count(round(now.waiting), "request")
    return (
        f"KV cache {now.level:.0%} full and {waiting} waiting: about {wait:.1f} s of queue, "
        f"TTFT objective {limits.ttft_slo_seconds:g} s"
    )


def _user_visible(state: CascadeState, limits: CascadeThresholds) -> str:
    """Return first tokens later than the objective, with a pressed cache at some scrape of the look-back.

    At the scrape itself, finished or evicted requests may already have freed blocks.
    """
    now = state.recent[-1]
    on_the_way = state.stage > 0 or bool(_queueing(state, limits))
    if not on_the_way or max(o.level for o in state.recent) < limits.pressed_level:
        return ""
    first, slow = _sum(state, "first_tokens"), _sum(state, "slow_first_tokens")
    if now.slow_first_tokens < 0.5 or slow <= limits.slow_share * first:
        return ""
    waiting = format_count(round(now.waiting), "request")
    return (
        f"{slow:.0f} of {first:.0f} first tokens later than {limits.ttft_slo_seconds:g} s with the KV cache "
        f"{now.level:.0%} full and {waiting} waiting"
    )


def time_to_full(state: CascadeState) -> float:
    """Return the seconds until the KV cache is full at the present slope; inf without a rise."""
    rise = slope([(o.t, o.level) for o in state.recent])
    return (1 - state.recent[-1].level) / rise if rise > 0 else math.inf


def expected_wait_seconds(state: CascadeState) -> float:
    """Return the wait of a request that joins the queue now: waiting / finish rate (Little's law)."""
    seconds = sum(o.dt for o in state.recent)
    finished = max(_sum(state, "finished"), 0.5)
    return state.recent[-1].waiting * seconds / finished


def _growing(state: CascadeState, limits: CascadeThresholds) -> bool:
    """Return whether the requests in the system grow by more than a full batch fluctuates."""
    seconds = state.recent[-1].t - state.recent[0].t
    growth = slope([(o.t, o.running + o.waiting) for o in state.recent]) * seconds
    now = state.recent[-1]
    return growth >= max(1.0, limits.growth_share * (now.running + now.waiting))


def _still_growing(state: CascadeState, limits: CascadeThresholds) -> bool:
    """Return whether the load grows and also grew in the last scrape."""
    if len(state.recent) < 2:
        return False
    before, now = state.recent[-2:]
    return now.running + now.waiting > before.running + before.waiting and _growing(state, limits)


def _sum(state: CascadeState, name: str) -> float:
    return float(sum(getattr(o, name) for o in state.recent))


def slope(points: list[tuple[float, float]]) -> float:
    """Return the least-squares slope per second; 0 with fewer than two points. Times differ."""
    return linear_regression(*zip(*points, strict=True)).slope if len(points) > 1 else 0.0
