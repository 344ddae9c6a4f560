"""Where a name is still held: every way from an object to texts that contain it, for tests of what is forgotten."""

import gc
from collections.abc import Iterator
from types import BuiltinFunctionType, CodeType, FrameType, FunctionType, MethodType, ModuleType
from typing import Any

SKIPPED = (type, ModuleType, FunctionType, BuiltinFunctionType, MethodType, CodeType, FrameType)
"""What belongs to the program and not to what it remembers."""


def held(root: object, text: str) -> list[str]:
    """The attributes and keys that lead from `root` to `text`, outermost first, each container once."""
    found: list[str] = []
    seen: set[int] = set()
    waiting: list[tuple[object, str]] = [(root, "")]
    while waiting:
        one, path = waiting.pop()
        if isinstance(one, (str, bytes)):
            if (text if isinstance(one, str) else text.encode()) in one:  # type: ignore[operator]
                found.append(path)
            continue
        if id(one) in seen or isinstance(one, SKIPPED):
            continue
        seen.add(id(one))
        waiting.extend((each, f"{path}.{name}" if name else path) for name, each in _parts(one))
    return sorted(set(found))


def _parts(one: object) -> Iterator[tuple[str, Any]]:
    if isinstance(one, dict):
        for key, value in list(one.items()):
            yield "", key
            yield key if isinstance(key, str) else "", value
        return
    slots = (name for kind in type(one).__mro__ for name in getattr(kind, "__slots__", ()))
    named = {name: getattr(one, name, None) for name in slots if not name.startswith("__")} | getattr(
        one, "__dict__", {}
    )
    yield from named.items()
    if not named:
        yield from (("", each) for each in gc.get_referents(one))
