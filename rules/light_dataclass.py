"""Dataclass decorator for records of a node: there are two hundred classes of them, and role fleet makes some by the hundred
thousand in a cycle.

A frozen dataclass stores each field by `object.__setattr__`, which makes it three times as expensive as a plain one. Its
own `__setattr__`, `__delattr__` and `__repr__` take 7 kB of a class. mypy checks these classes as frozen; at run time they
are plain. Do not assign to a field: use `dataclasses.replace`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__all__ = ["light_dataclass"]

if TYPE_CHECKING:
    from dataclasses import dataclass as light_dataclass
else:
    from dataclasses import dataclass, fields

    def light_dataclass(*, frozen, slots, kw_only=False):
        """Return the decorator of a class that is frozen for the type checker only. The hash is that of a frozen one."""
        assert frozen

        def decorate(cls):
            if "__repr__" not in vars(cls):
                cls.__repr__ = _describe
            return dataclass(slots=slots, kw_only=kw_only, unsafe_hash=True, repr=False)(cls)

        return decorate

    def _describe(self):
        """Return what the repr of a dataclass says."""
        shown = ", ".join(f"{field.name}={getattr(self, field.name)!r}" for field in fields(self) if field.repr)
        return f"{type(self).__qualname__}({shown})"
