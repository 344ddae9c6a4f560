"""By what a history says that it was made up: a kept value, so that whatever is made from the history can say so too.

Owns the name and the words; whoever prints from a history asks `simulated`. Nothing of the simulator is loaded by it.
"""

from __future__ import annotations

import json
import sys

from agent.history.reader import Reader

KEPT = "simulated"
"""Under this name a simulated history holds `text`, `seed`, `begin` and `end`; one of a real fleet has nothing there."""

NOTE = "SIMULATED: made-up traffic, engines, GPUs and prices (sizewatch demo --history). None of it was ever measured."


def simulated_notice(history: Reader) -> str:
    """What to say of a history whose weeks were made up; "" of a real one. Raises HistoryTrouble."""
    kept = history.read_value(KEPT)
    return "" if kept is None else str(json.loads(kept)["text"])


def print_simulated_notice(history: Reader) -> None:
    """Says it on stderr before a command prints what it found there; nothing of a real history."""
    text = simulated_notice(history)
    if text:
        print(text, file=sys.stderr)
