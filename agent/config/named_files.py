"""Files that a configuration names: keys that end in `_file` or `_files`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pydantic import BaseModel


def named_files(part: object, left_out: frozenset[str], place: str = "") -> Iterator[tuple[str, str]]:
    """Yield the key and the path of every file in a configuration, except for the keys in `left_out`."""
    if isinstance(part, BaseModel):
        part = {name: getattr(part, name) for name in type(part).model_fields}
    if isinstance(part, Mapping):
        for name, value in part.items():
            here = f"{place}.{name}" if place else str(name)
            if isinstance(value, str) and str(name).endswith("_file") and name not in left_out:
                yield here, value
            elif isinstance(value, Mapping) and str(name).endswith("_files"):
                yield from ((f"{here}.{header}", file) for header, file in value.items())
            else:
                yield from named_files(value, left_out, here)
    elif isinstance(part, tuple | list):
        for number, value in enumerate(part):
            yield from named_files(value, left_out, f"{place}[{number}]")
