"""Tables of data in TOML files of packages, each read once when its module is imported."""

from __future__ import annotations

import tomllib
from importlib.resources import files
from typing import Any


def read_table(package: str, name: str) -> dict[str, Any]:
    """Return the keys of a table that is a file of a package. Raise ValueError, with the file's name, if it is no TOML."""
    try:
        return tomllib.loads(files(package).joinpath(f"{name}.toml").read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{table_path(package, name)}: {error}") from error


def table_path(package: str, name: str) -> str:
    """Return the path of a table for messages."""
    return f"{package.replace('.', '/')}/{name}.toml"


def read_tables(package: str) -> dict[str, dict[str, Any]]:
    """Return the keys of every table of a package, by the name of its file."""
    paths = sorted(files(package).iterdir(), key=lambda path: path.name)
    names = [path.name.removesuffix(".toml") for path in paths if path.name.endswith(".toml")]
    return {name: read_table(package, name) for name in names}


def freeze(value: Any) -> Any:
    """Return the value of a table with tuples in place of lists."""
    if isinstance(value, dict):
        return {name: freeze(below) for name, below in value.items()}
    return tuple(map(freeze, value)) if isinstance(value, list) else value
