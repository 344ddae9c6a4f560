"""What a late first token waited for: the queue, or prefill, by the engine's own histograms of both.

Owns these two suspects of `rules.causes.checks`. A histogram tells of each part on its own: a request that spent more than the
limit in the queue alone was late whatever prefill took, so the bucket edges prove it.

Throttling: clocks that something holds down, as a suspect for slow requests.

Owns that one examination of `rules.causes.checks`. A power limit that is reached is how GPUs are run, so by itself it proves
nothing; heat and the board's own brakes do.
"""

from __future__ import annotations

from rules.causes.context import USERS, CauseContext, CauseResult
from rules.telemetry import histograms
from rules.telemetry.histograms import Share
from rules.telemetry.reading_methods import mean_level, ratio
from rules.telemetry.signals import Missing
from rules.telemetry.wording import number

MOST = 0.5
"""The part of the late requests that proves what holds them up."""

NOTICEABLE = 0.05
"""Below this part of them it is excluded (the guide's 5 % for evictions, as for the other suspects)."""

FAMILY = "ttft_seconds"


def check_queueing_cause(scene: CauseContext) -> CauseResult:
    """Late requests that waited in the queue for longer than the limit; without that histogram the mean queue."""
    found = _late(scene, "queue_seconds")
    return _by_gauge(scene) if found is None else _judged(found, "queueing", "in the queue", _waiting(scene))


def check_prefill_cause(scene: CauseContext) -> CauseResult:
    """Late requests whose prefill alone took longer than the limit."""
    found = _late(scene, "prefill_seconds")
    if found is None:
        return CauseResult(supported=None, text="how long prefill takes is not exposed")
    return _judged(found, "prefill", "in prefill", "")


def _late(scene: CauseContext, family: str) -> tuple[Share, Share, float] | None:
    """First tokens later than the limit, those whose part `family` alone took longer, and the limit in seconds."""
    first, parts, limit = (
        scene.total.histograms.get(FAMILY),
        scene.total.histograms.get(family),
        explain_late_first_token(scene),
    )
    if scene.rule.method not in USERS or not first or not parts or not limit:
        return None
    late = histograms.share_above(first, limit)
    return (late, histograms.share_above(parts, limit), limit) if late.best > 0 else None


def explain_late_first_token(scene: CauseContext) -> float | None:
    """What the rule calls late (seconds): so many times the median, or the objective."""
    if "ratio" not in scene.rule.thresholds:
        return scene.view.basis.ttft_slo_seconds
    median = histograms.quantile(scene.total.histograms.get(FAMILY, ()), 0.5)
    if median is None or median.high is None:
        return None
    return scene.rule.limit("ratio", scene.view.limits) * median.high


def _judged(found: tuple[Share, Share, float], cause: str, where: str, more: str) -> CauseResult:
    late, part, limit = found
    spent, were = _counted(part.best, "requests"), _counted(late.best, "were", "was")
    text = f"{spent} spent more than {number(limit, 'seconds')} {where} alone; {were} late{more}"
    if part.best > NOTICEABLE * late.best:
        return CauseResult(supported=True, proven=part.low > MOST * late.best, text=f"{cause}: {text}")
    return CauseResult(supported=False, text=f"not {cause}: {text}")


def _counted(count: float, several: str, one: str = "request") -> str:
    text = f"{count:.0f}"
    return f"{text} {one if text == '1' else several}"


def _waiting(scene: CauseContext) -> str:
    waiting = _level(scene)
    return "" if waiting is None else f", {waiting:.2g} waiting a replica on average"


def _level(scene: CauseContext) -> float | None:
    for family in ("requests_waiting_capacity", "requests_waiting"):
        found = mean_level(scene.total, family)
        if not isinstance(found, Missing):
            return found.value or 0.0
    return None


def _by_gauge(scene: CauseContext) -> CauseResult:
    waiting = _level(scene)
    if waiting is None:
        return CauseResult(supported=None, text="the queue is not known")
    text = f"{waiting:.2g} requests waiting a replica on average"
    if waiting > MOST:
        return CauseResult(supported=True, text=f"queueing: {text}")
    return CauseResult(supported=False, text=f"no queue ({text})")


NOTICEABLE_THROTTLING = 0.05
"""The share of time below which clocks are taken as free (as for the other suspects)."""

HELD_BY = (("thermal", "heat", True), ("hardware", "the board", True), ("power", "the power limit", False))
"""What holds clocks down, in words, and whether that alone proves slower GPUs."""

COVERED = "gpu_throttled_covered_seconds"


def check_throttling_cause(scene: CauseContext) -> CauseResult:
    """The shares of time in which clocks were held down, the largest of what proves it first."""
    found = [
        (ratio(scene.total, f"gpu_throttled_{what}_seconds", COVERED), word, proof) for what, word, proof in HELD_BY
    ]
    known = [(share.value or 0.0, word, proof) for share, word, proof in found if not isinstance(share, Missing)]
    if not known:
        return CauseResult(supported=None, text="GPU throttling is not known")
    held = [one for one in known if one[0] > NOTICEABLE_THROTTLING]
    if not held:
        return CauseResult(supported=False, text=f"clocks were not held down ({max(known)[0]:.0%} of the time at most)")
    share, word, proof = max(held, key=lambda one: (one[2], one[0]))
    text = f"throttling: clocks were held down by {word} {share:.0%} of the time"
    return CauseResult(supported=True, proven=proof, text=text)
