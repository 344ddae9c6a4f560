"""Dataclass decorator for records that role fleet makes by the hundred thousand in a cycle.

A frozen dataclass stores each field by `object.__setattr__`, which makes it three times as expensive as a plain one. mypy
checks these classes as frozen; at run time they are plain. Do not assign to a field: use `dataclasses.replace`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__all__ = ["light_dataclass"]

if TYPE_CHECKING:
    from dataclasses import dataclass as light_dataclass
else:
    from dataclasses import dataclass

    def light_dataclass(*, frozen, slots, kw_only=False):
        """Return the decorator of a class that is frozen for the type checker only. The hash is that of a frozen one."""
        assert frozen
        return dataclass(slots=slots, kw_only=kw_only, unsafe_hash=True)
