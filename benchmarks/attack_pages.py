"""Pages that cost more than they tell: long labels, blank lines, comments, series without end."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterable
from itertools import cycle
from typing import Any

from attacks import Attack, World, answer

GZIP = {"Content-Encoding": "gzip"}
MiB = 1 << 20
DISTINCT_PAGES = 40
"""Pages whose series are new; they come again after ten minutes, when a refused page is long forgotten."""


def _hostile(
    pages: Callable[[bytes], Iterable[bytes]],
) -> Callable[[World], list[dict[str, Any]]]:
    """Return a target that gives these pages in turn, made of a healthy one. They are packed here, before the attack begins:
    packing 300 MB costs seconds of CPU, which would lengthen the daemon's turns."""

    def targets(world: World) -> list[dict[str, Any]]:
        packed = cycle([gzip.compress(page, 1) for page in pages(world.bodies[0])])
        path = f"/hostile{len(world.pages)}"
        return [world.target(path, lambda handler: answer(handler, next(packed), GZIP))]

    return targets


def _long_label(characters: int) -> Callable[[bytes], Iterable[bytes]]:
    name = b'model_name="' + b"m" * characters
    return lambda body: (body.replace(b'model_name="', name),)


def _new_series(body: bytes) -> Iterable[bytes]:
    for number in range(DISTINCT_PAGES):
        lines = (
            b'vllm:num_requests_running{engine="0",model_name="m%d-%d"} 1.0\n' % (number, n) for n in range(49_000)
        )
        yield body + b"".join(lines)


ATTACKS = (
    Attack(name="page-label-70k", text="a model_name of 70 kB", targets=_hostile(_long_label(70_000))),
    Attack(name="page-label-1m", text="a model_name of 1 MB", targets=_hostile(_long_label(1_000_000))),
    Attack(
        name="page-blank-lines",
        text="16 MB of blank lines in 16 kB",
        targets=_hostile(lambda body: (body + b"\n" * (15 * MiB),)),
    ),
    Attack(
        name="page-comments",
        text="1.2 million comment lines",
        targets=_hostile(lambda body: (body + b"# a comment\n" * 1_200_000,)),
    ),
    Attack(name="page-new-series", text="49,000 new series on every page", targets=_hostile(_new_series)),
)
