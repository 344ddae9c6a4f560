"""The KV cache memory-pressure cascade as a state machine over one replica's scrapes (guide 7.4, figure 7.4).

Owns the stages and the conditions between them. It sees observations in order, never windows added up: the cascade is
in the slopes. Thresholds come in as `Limits` from the catalogue. Preemptions alone are no cascade: healthy servers
preempt too, and a queue or a slow first token with an empty KV cache is something else.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

STAGES = {0: "none", 1: "filling", 2: "evicting", 3: "queueing", 4: "user-visible"}


@dataclass(frozen=True, slots=True, kw_only=True)
class CascadeThresholds:
    """Thresholds of the cascade; each one's source stands in the catalogue row."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class CascadeSample:
    """One scrape: gauges at its instant, increases since the scrape before, `dt` seconds earlier.

    `slow_first_tokens` are the first tokens later than the TTFT SLO (best estimate) of `first_tokens`.
    `request_seconds` is the mean duration of the requests that finished, None where none did.
    """

    t: float
    dt: float
    level: float
    running: float
    waiting: float
    preemptions: float
    finished: float
    generated: float
    first_tokens: float
    slow_first_tokens: float
    request_seconds: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CascadeState:
    """Where the replica stands. `stage` 0 is none; `since` is when the present stage was entered, `onset` the first.

    `breach_at` is when users first felt it (stage 4). `confirmed` says that more than one scrape showed stage 2 or worse,
    or that users felt what an earlier one had announced. `recent` are the observations of the look-back.
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
    """The state after one more scrape. Stages only rise until the pressure has been gone for `calm_seconds`."""
    state = _remember(state, now, limits)
    climbs = len(state.recent) > 1 and now.level > state.recent[-2].level
    state = replace(state, climbing_seconds=state.climbing_seconds + now.dt if climbs else 0.0)
    stage, why = _stage(state, limits)
    if stage == 0:
        return _calmer(state, now, limits)
    confirmed = state.confirmed or min(stage, state.stage) >= 2 or (stage == 4 and state.stage >= 1)
    state = replace(state, calm_seconds=0.0, confirmed=confirmed)
    if stage <= state.stage:
        return state
    return replace(
        state,
        stage=stage,
        since=now.t,
        onset=now.t if state.onset is None else state.onset,
        evidence=why,
        breach_at=now.t if stage == 4 else state.breach_at,
    )


def interrupt_cascade(state: CascadeState) -> CascadeState:
    """After a gap or a restart: the stage stands, slopes start anew."""
    return replace(state, recent=(), climbing_seconds=0.0, calm_seconds=0.0)


def _calmer(state: CascadeState, now: CascadeSample, limits: CascadeThresholds) -> CascadeState:
    """After a scrape at which no stage's condition holds: over once it has been calm for long enough."""
    if state.stage == 0:
        return state
    calm = _calm(state, now, limits)
    state = replace(state, calm_seconds=state.calm_seconds + calm if calm > 0 else 0.0)
    return _over(state) if state.calm_seconds >= limits.calm_seconds else state


def _remember(state: CascadeState, now: CascadeSample, limits: CascadeThresholds) -> CascadeState:
    """The look-back reaches over at least two intervals: one rise is a step, two are a slope."""
    oldest = now.t - max(limits.look_back_seconds, 2 * now.dt) - now.dt / 2
    recent = (*(o for o in state.recent if o.t >= oldest), now)
    duration = _request_seconds(state.request_seconds, now.request_seconds)
    return replace(state, recent=recent, request_seconds=duration)


def _request_seconds(before: float | None, now: float | None) -> float | None:
    """Longer requests count at once, shorter ones by half: those that finish first are the short ones of a mixed lot."""
    if before is None or now is None:
        return now if before is None else before
    return now if now > before else (before + now) / 2


def _over(state: CascadeState) -> CascadeState:
    return CascadeState(recent=state.recent, request_seconds=state.request_seconds)


def _stage(state: CascadeState, limits: CascadeThresholds) -> tuple[int, str]:
    """The highest stage whose condition holds at this scrape, with the numbers that say so."""
    for stage, condition in ((4, _user_visible), (3, _queueing), (2, _evicting), (1, _filling)):
        why = condition(state, limits)
        if why:
            return stage, why
    return 0, ""


def _filling(state: CascadeState, limits: CascadeThresholds) -> str:
    if state.climbing_seconds < limits.hold_seconds or not _fills_within_a_request(state, limits):
        return ""
    now = state.recent[-1]
    return (
        f"KV cache {now.level:.0%} full and full in {time_to_full(state):.0f} s, sooner than the "
        f"{state.request_seconds or 0:.0f} s that a request takes, while more arrive than finish"
    )


def _evicting(state: CascadeState, limits: CascadeThresholds) -> str:
    """While ever more requests come, after filling or with a queue: evictions of a full batch that stays are no cascade."""
    now = state.recent[-1]
    preempted, finished = _sum(state, "preemptions"), _sum(state, "finished")
    on_the_way = (state.stage >= 1 or now.waiting > 0) and _still_growing(state, limits)
    if now.level < limits.full_level or not on_the_way:
        return ""
    if preempted < 2 or preempted <= limits.eviction_rate * max(1.0, finished):
        return ""
    return f"KV cache {now.level:.0%} full, {preempted:,.0f} preemptions for {finished:,.0f} finished requests"


def _queueing(state: CascadeState, limits: CascadeThresholds) -> str:
    """Half of the objective spent waiting in a queue that grows, or all of it in any queue."""
    now = state.recent[-1]
    if now.level < limits.pressed_level or now.waiting <= 0:
        return ""
    wait = expected_wait_seconds(state)
    growing = state.stage >= 1 or _growing(state, limits)
    if wait < (_half(limits) if growing else limits.ttft_slo_seconds):
        return ""
    return (
        f"KV cache {now.level:.0%} full and {now.waiting:.0f} requests waiting: about {wait:.1f} s of queue against "
        f"a TTFT objective of {limits.ttft_slo_seconds:g} s"
    )


def _user_visible(state: CascadeState, limits: CascadeThresholds) -> str:
    """First tokens later than the objective, with the cache pressed at some scrape of the look-back.

    Not at this very one: those who just finished or were evicted have freed blocks when the late ones get their tokens.
    """
    now = state.recent[-1]
    on_the_way = state.stage > 0 or bool(_queueing(state, limits))
    if not on_the_way or max(o.level for o in state.recent) < limits.pressed_level:
        return ""
    first, slow = _sum(state, "first_tokens"), _sum(state, "slow_first_tokens")
    if now.slow_first_tokens < 0.5 or slow <= limits.slow_share * first:
        return ""
    return (
        f"{slow:.0f} of {first:.0f} first tokens later than {limits.ttft_slo_seconds:g} s with the KV cache "
        f"{now.level:.0%} full and {now.waiting:.0f} requests waiting"
    )


def _fills_within_a_request(state: CascadeState, limits: CascadeThresholds) -> bool:
    """Nobody who is in will leave before it is full, and more come than go (DESIGN 3.9: the slope leads, not evictions).

    A cache that was full before does not fill: then evictions and the queue tell. A load that rises and stops just where
    the cache is full looks the same until it stops: that is why filling is `likely` and never an alert.
    """
    now = state.recent[-1]
    if state.request_seconds is None or now.level < limits.filling_level or len(state.recent) < 2:
        return False
    if state.recent[-2].level >= limits.full_level:
        return False
    return time_to_full(state) <= state.request_seconds and _still_growing(state, limits)


def time_to_full(state: CascadeState) -> float:
    """Seconds until the KV cache is full at the present slope; inf where it does not climb."""
    rise = slope([(o.t, o.level) for o in state.recent])
    return (1 - state.recent[-1].level) / rise if rise > 0 else math.inf


def expected_wait_seconds(state: CascadeState) -> float:
    """What a request that joins the queue now will wait: waiting / rate at which requests finish (Little's law)."""
    seconds = sum(o.dt for o in state.recent)
    finished = max(_sum(state, "finished"), 0.5)
    return state.recent[-1].waiting * seconds / finished


def _growing(state: CascadeState, limits: CascadeThresholds) -> bool:
    """By the slope of the look-back, notably more requests in the system: a full batch fluctuates by some."""
    seconds = state.recent[-1].t - state.recent[0].t
    growth = slope([(o.t, o.running + o.waiting) for o in state.recent]) * seconds
    now = state.recent[-1]
    return growth >= max(1.0, limits.growth_share * (now.running + now.waiting))


def _still_growing(state: CascadeState, limits: CascadeThresholds) -> bool:
    """Growing, and still at the last scrape: a load that rose to a new level and stays there has stopped."""
    if len(state.recent) < 2:
        return False
    before, now = state.recent[-2:]
    return now.running + now.waiting > before.running + before.waiting and _growing(state, limits)


def _calm(state: CascadeState, now: CascadeSample, limits: CascadeThresholds) -> float:
    """Seconds of calm in this scrape: all of it below pressure, a quarter while the cache is nearly full or evicts.

    None while users wait: preemptions alone are no cascade, neither to begin nor to go on.
    """
    if now.slow_first_tokens >= 0.5 or (now.waiting > 0 and expected_wait_seconds(state) >= _half(limits)):
        return 0.0
    quiet = now.level < limits.pressed_level and now.waiting <= 0 and now.preemptions <= 0
    return now.dt if quiet else now.dt / 4


def _half(limits: CascadeThresholds) -> float:
    return limits.waiting_share_of_slo * limits.ttft_slo_seconds


def _sum(state: CascadeState, name: str) -> float:
    return float(sum(getattr(o, name) for o in state.recent))


def slope(points: list[tuple[float, float]]) -> float:
    """Least-squares slope per second; 0 with fewer than two points."""
    if len(points) < 2:
        return 0.0
    mt = sum(t for t, _ in points) / len(points)
    mv = sum(v for _, v in points) / len(points)
    spread = sum((t - mt) ** 2 for t, _ in points)
    return sum((t - mt) * (v - mv) for t, v in points) / spread if spread > 0 else 0.0
