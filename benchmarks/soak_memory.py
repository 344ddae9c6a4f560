"""What a process holds, by who holds it: blocks of Python's allocator, and bytes that malloc gave out or keeps.

Owns the two questions to the allocators and how the answers go from one process to another. Objects are not listed: whoever lists
them (`gc.get_objects`) holds tuples that another thread is still filling, which then fails.
"""

from __future__ import annotations

import ctypes
import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """`blocks` are Python's after turn `turns`, of up to 512 bytes each; `used_bytes` are malloc's that somebody has, `free_bytes`
    those that it keeps for later: larger objects, SQLite, libraries. 0 where they cannot be asked for (glibc before 2.33, other
    libraries)."""

    turns: int = 0
    blocks: int = 0
    used_bytes: int = 0
    free_bytes: int = 0


class _Told(ctypes.Structure):
    """`struct mallinfo2` of glibc's malloc.h."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
        )
    ]  # fmt: skip


def held(turns: int) -> Held:
    """Of this process, after so many turns."""
    ask = getattr(ctypes.CDLL(None), "mallinfo2", None)
    blocks = sys.getallocatedblocks()
    if ask is None:
        return Held(turns=turns, blocks=blocks)
    ask.restype = _Told
    told = ask()
    return Held(turns=turns, blocks=blocks, used_bytes=told.uordblks + told.hblkhd, free_bytes=told.fordblks)


def write(path: Path, turns: int) -> None:
    """For another process, which never sees half of it."""
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(asdict(held(turns))))
    fresh.replace(path)


def read(path: Path) -> Held:
    """What was last written; nothing known where nothing was."""
    return Held(**json.loads(path.read_text())) if path.exists() else Held()
