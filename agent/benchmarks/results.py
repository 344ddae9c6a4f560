"""What a benchmark's result file says, whatever tool wrote it: one record a load.

Owns the record and nothing else. How a tool spells it is one file beside this one, listed in `agent.benchmarks.formats`;
how records become a curve is `agent.benchmarks.curves`'s business. A quantity that the file does not hold is None: it is
never guessed from another one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rules.plan.schema import Point

Loop = Literal["open", "closed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthQuantiles:
    """Tokens a request: what the file tells of them."""

    mean: float | None = None
    p50: float | None = None
    p95: float | None = None
    p99: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What was measured, as far as the file tells; empty or None: it does not.

    `engine` is a name of `rules.engines`, `gpu` as the file spells it, `tensor_parallel` the GPUs over which a layer is split.
    """

    engine: str = ""
    gpu: str = ""
    tensor_parallel: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkMeasurement:
    """One load of one run.

    `source` is the file as it was named, `place` where in it (empty: the whole file). Times are unix seconds, None where
    the file has none. `remarks` say what a reader of the curve must know of this point, a sentence each.
    """

    source: str
    place: str = ""
    tool: str
    loop: Loop | None
    point: Point
    started_at: float | None = None
    ended_at: float | None = None
    model: str = ""
    setup: Setup = Setup()
    prompt_tokens: LengthQuantiles = LengthQuantiles()
    generation_tokens: LengthQuantiles = LengthQuantiles()
    remarks: tuple[str, ...] = ()

    @property
    def location(self) -> str:
        """File and place, for messages."""
        return f"{self.source}: {self.place}" if self.place else self.source
