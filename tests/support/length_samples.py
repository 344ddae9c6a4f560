"""Minutes whose requests have given lengths, for the tests of drift and guardrails."""

import math
from collections.abc import Mapping
from typing import Any

from judging_samples import minute, seen

from rules.methods.evidence import OUTPUTS, PROMPTS
from rules.telemetry.windows import Window

TOKEN_EDGES = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0, math.inf)
"""The engines' usual grid, 1-2-5."""


def sized(number: float, prompts: Mapping[float, float], outputs: Mapping[float, float], **more: Any) -> Window:
    """A minute with so many requests of each prompt and each output length, in tokens."""
    histograms = {PROMPTS: seen(prompts, TOKEN_EDGES), OUTPUTS: seen(outputs, TOKEN_EDGES)}
    return minute(number, histograms={**histograms, **more.pop("histograms", {})}, **more)


def usual(long: float = 0.0, length: float = 400.0, n: float = 180.0) -> dict[float, float]:
    """The lengths of `n` requests: half about 80 tokens, the others 150, `long` of them of another length."""
    return {80.0: n / 2, 150.0: n / 2 - long, length: long}
