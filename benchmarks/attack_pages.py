"""Pages that cost more than they tell: long labels, blank lines, comments, series without end."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from itertools import count
from typing import Any

from attacks import Attack, World, answer

GZIP = {"Content-Encoding": "gzip"}
MiB = 1 << 20


def _hostile(
    page: Callable[[World], Callable[[BaseHTTPRequestHandler], None]],
) -> Callable[[World], list[dict[str, Any]]]:
    return lambda world: [world.target("/hostile", page(world))]


def _long_label(characters: int) -> Callable[[World], Callable[[BaseHTTPRequestHandler], None]]:
    def page(world: World) -> Callable[[BaseHTTPRequestHandler], None]:
        name = b'model_name="' + b"m" * characters
        return lambda handler: answer(handler, gzip.compress(world.body().replace(b'model_name="', name), 1), GZIP)

    return page


def _more(lines: Callable[[int], bytes]) -> Callable[[World], Callable[[BaseHTTPRequestHandler], None]]:
    """The healthy page with further lines, which may differ from page to page."""
    number = count()
    return lambda world: lambda handler: answer(handler, gzip.compress(world.body() + lines(next(number)), 1), GZIP)


def _new_series(number: int) -> bytes:
    lines = (b'vllm:num_requests_running{engine="0",model_name="m%d-%d"} 1.0\n' % (number, n) for n in range(49_000))
    return b"".join(lines)


ATTACKS = (
    Attack(name="page-label-70k", text="a model_name of 70 kB", targets=_hostile(_long_label(70_000))),
    Attack(name="page-label-1m", text="a model_name of 1 MB", targets=_hostile(_long_label(1_000_000))),
    Attack(
        name="page-blank-lines",
        text="16 MB of blank lines in 16 kB",
        targets=_hostile(_more(lambda n: b"\n" * (15 * MiB))),
    ),
    Attack(
        name="page-comments",
        text="1.2 million comment lines",
        targets=_hostile(_more(lambda n: b"# a comment\n" * 1_200_000)),
    ),
    Attack(name="page-new-series", text="49,000 new series on every page", targets=_hostile(_more(_new_series))),
)
