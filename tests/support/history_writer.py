"""A process of its own that writes history, for tests of what is left when it is killed and of reading beside it.

    history_writer.py write PATH FIRST COUNT     books turns, prints the number of each after it was booked
    history_writer.py kill PATH ROUNDS           does so in children and kills each with -9 at a random instant

`kill` prints one JSON object: `acknowledged`, the turns whose number was read, and `deaths`, how often it killed.
"""

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from history_samples import booking

from agent.history.store import HistoryStore

REPLICAS = ("r0", "r1", "r2")
LONGEST_LIFE_SECONDS = 0.1


def write(path: Path, first: int, count: int, say: Callable[[int], object]) -> None:
    """Turn n books minute n of every replica with n + 1 requests each."""
    with HistoryStore(path) as store:
        # Often enough that a kill also hits the copying of the log into the file.
        store._connection.execute("PRAGMA wal_autocheckpoint = 20")
        for turn in range(first, first + count):
            store.book(booking(turn, replica, turn % 3, finished=turn + 1.0) for replica in REPLICAS)
            say(turn)


def kill(path: Path, rounds: int) -> dict[str, object]:
    """Writes and kills in turn; each child goes on after the last turn that any before it can have booked."""
    acknowledged: list[int] = []
    first = 0
    for number in range(rounds):
        read_end, write_end = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(read_end)
            write(path, first, 10_000, lambda turn, end=write_end: os.write(end, b"%d\n" % turn))
            os._exit(1)
        os.close(write_end)
        # One of three may die before its first turn; the others have some behind them, however busy the machine is.
        least = random.randint(2, 9) if number % 3 else 0
        said = b""
        while said.count(b"\n") < least and (part := os.read(read_end, 65_536)):
            said += part
        time.sleep(random.uniform(0.0, LONGEST_LIFE_SECONDS))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        with os.fdopen(read_end, "rb") as rest:
            heard = [int(line) for line in (said + rest.read()).splitlines(keepends=True) if line.endswith(b"\n")]
        acknowledged += heard
        # One more may have been booked and not yet acknowledged: left out, so that no turn is ever booked twice.
        first = heard[-1] + 2 if heard else first + 1
    return {"acknowledged": acknowledged, "deaths": rounds}


if __name__ == "__main__":
    if sys.argv[1] == "kill":
        print(json.dumps(kill(Path(sys.argv[2]), int(sys.argv[3]))))
    else:
        write(Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), lambda turn: print(turn, flush=True))
