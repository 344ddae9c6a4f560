"""Throttling: clocks that something holds down, as a suspect for slow requests.

Owns that one examination of `rules.causes.checks`. A power limit that is reached is how GPUs are run, so by itself it proves
nothing; heat and the board's own brakes do.
"""

from __future__ import annotations

from rules.causes.context import CauseContext, CauseResult
from rules.telemetry.reading_methods import ratio
from rules.telemetry.signals import Missing

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
