"""Limits of address space under which a start or a turn fails, and targets that accept a connection and never answer."""

from __future__ import annotations

import time
import urllib.error
import urllib.request
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from typing import Any

from attacks import Attack, World

MIB = 1 << 20
MANY = 150

_ready: dict[World, float] = {}


def hang(world: World) -> Callable[[BaseHTTPRequestHandler], None]:
    """Return a page that never answers."""
    return lambda handler: world.over.wait() and None


def half_hang(world: World) -> list[dict[str, Any]]:
    """Return 296 further targets in alternation: beside the four of the harness 150 hang and 150 answer."""
    hung = [world.target(f"/hung{n}", hang(world)) for n in range(MANY)]
    well = [world.target(f"/well{n}") for n in range(MANY - 4)]
    return [target for pair in zip(hung, well, strict=False) for target in pair] + hung[len(well) :]


def leave_tiers_to_fleet(world: World, config: dict[str, Any]) -> None:
    """Configure what deploy/kubernetes/base/node/config.yaml does: role fleet judges the tiers."""
    config["tier_verdicts"] = False


def watch_readiness(world: World) -> None:
    """Note the seconds until /readyz first says 200."""
    begin = time.monotonic()
    while not world.over.wait(0.25):
        try:
            urllib.request.urlopen(world.own + "/readyz", timeout=2).close()
        except OSError:
            continue
        _ready[world] = time.monotonic() - begin
        return


def say_reads(world: World) -> str:
    """Return the reads of the healthy targets, and the time of the first readiness."""
    reads = [len(world.reads.get(f"/well{n}", ())) for n in range(MANY - 4)]
    first = f"ready after {_ready[world]:.1f} s" if world in _ready else "never ready"
    return f"{first}, other healthy ones read {min(reads)} to {max(reads)} times"


def say_readiness(world: World) -> str:
    try:
        with urllib.request.urlopen(world.own + "/readyz", timeout=2) as page:
            return f"readyz {page.status}"
    except urllib.error.HTTPError as error:
        return f"readyz {error.code}"
    except OSError:
        return "no answer"


ATTACKS = (
    *(
        Attack(
            name=f"address-space-{mib}",
            text=f"the process may have {mib} MB of address space (RLIMIT_AS)",
            limits={"RLIMIT_AS": mib * MIB},
            lost=say_readiness,
        )
        for mib in (260, 450, 600)
    ),
    Attack(
        name="hung-targets",
        text="300 targets, of which 150 take the connection and never answer",
        targets=half_hang,
        config=leave_tiers_to_fleet,
        act=watch_readiness,
        lost=say_reads,
    ),
)
