"""Faults on purpose, against real daemons; what must hold is looked at after each.

    python benchmarks/chaos.py [--seconds 120] [--seed N] [--kills 200] [--only FAULT] [--folder DIR]

Three daemons (standalone, node and fleet, as processes, fifty times as fast as life) watch engines that play a recording,
stand-in GPUs, Alertmanagers and a real VictoriaMetrics; each row of `benchmarks/chaos_faults.py` is done to them, in an order
that the seed decides: first each alone, then, while there is time left, each together with another, all of them once more. Up
to half of the time goes to kill -9 before (`benchmarks/chaos_kills.py`): a daemon at random instants, its history compared with
what it had acknowledged. Prints a table; exit 1 where something did not hold. What this machine cannot do (a disk of its own
needs root, GPUs and the clock a C compiler, role fleet VictoriaMetrics) is listed as not tried.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Behind the rooms: a benchmark is named as one of them.
sys.path[:0] = [str(ROOT)]
sys.path.append(str(ROOT / "benchmarks"))

from chaos_faults import FAULTS
from chaos_kills import kills
from chaos_live import Live
from chaos_world import World

WARM_SECONDS = 3.0
ENDED = 143
"""What a shell gives for a command that SIGTERM ended."""


def main() -> int:
    """The whole run; its exit code."""
    options = _options()
    seed = random.SystemRandom().randrange(1_000_000) if options.seed is None else options.seed
    print(f"seed {seed}: again with --seed {seed}", flush=True)
    folder = options.folder or Path(tempfile.mkdtemp(prefix="sizewatch-chaos-"))
    folder.mkdir(parents=True, exist_ok=True)
    print(f"logs and histories: {folder}", flush=True)
    # Before the others: its children are made by fork, of a process without threads.
    failures: list[str] = []
    began = time.monotonic()
    if options.kills and not options.only:
        failures += kills(folder / "kills", options.seconds / 2, options.kills, random.Random(seed), _say)
    left = options.seconds - (time.monotonic() - began)
    failures += _live(folder, left, options.only, random.Random(seed))
    for text in failures:
        print(f"FAILED: {text}")
    print(f"{len(failures)} failures; seed {seed}; {(time.monotonic() - began) / 60:.1f} minutes")
    return 1 if failures else 0


def _live(folder: Path, seconds: float, only: tuple[str, ...], chance: random.Random) -> list[str]:
    # Whoever ends the harness ends its daemons and the store, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(ENDED))
    world = World(folder)
    try:
        world.start()
        time.sleep(WARM_SECONDS)
        live = Live(world, chance, _say)
        live.run(seconds, only)
        live.end()
    finally:
        world.close()
    print(f"\n{'fault':<25} {'tried':>5} {'in pairs':>8} {'turns':>5}  shows in")
    for fault in FAULTS:
        tally = live.tallies[fault.name]
        what = "not tried here" if fault.name in live.skipped else fault.metric
        failed = "; FAILED" if tally.failures else ""
        print(f"{fault.name:<25} {tally.tried:>5} {tally.paired:>8} {tally.turns:>5}  {what}{failed}")
    return live.failures


def _say(text: str) -> None:
    print(text, flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=120.0, help="at least; every fault comes at least once")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--kills", type=int, default=200, help="kills at most")
    parser.add_argument("--only", default="", help="these faults of the table (A,B) again and again, in this order")
    parser.add_argument("--folder", type=Path, help="where logs and histories are kept")
    options = parser.parse_args()
    options.only = tuple(filter(None, options.only.split(",")))
    names = tuple(fault.name for fault in FAULTS)
    if not set(options.only) <= set(names):
        parser.error(f"--only: no such fault; there are {', '.join(names)}")
    return options


if __name__ == "__main__":
    sys.exit(main())
