"""What takes long to build is built once a run, however many workers the run has."""

import fcntl
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

T = TypeVar("T")


def build_once(paths: pytest.TempPathFactory, name: str, build: Callable[[Path], T]) -> T:
    """What `build` gave to the first worker that asked, in a folder of that name that it may fill; others wait for it.

    The result is pickled, so every worker has its own; the folder belongs to all, and nobody changes it afterwards.
    """
    base = paths.getbasetemp()
    # Workers of one run have their folders side by side.
    shared = (base.parent if base.name.startswith("popen-") else base) / f"once-{name}"
    shared.mkdir(exist_ok=True)
    kept = shared / "result"
    with (shared / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not kept.exists():
            kept.write_bytes(pickle.dumps(build(shared / "folder")))
    found: T = pickle.loads(kept.read_bytes())
    return found
