"""Reader of YAML and JSON files that gives every problem its file and line.

No message holds a value of the file, which may be a secret.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel

from agent.config.sections import repeats
from agent.errors import ConfigError
from exporters.render.text import one_line
from rules.plan.schema import InvalidPlanError, Plan, parse_plan
from rules.plan.validation import path_text

MAX_BYTES = 1024 * 1024
"""Maximum size of a file: a ConfigMap holds no more."""

_LONGEST_NAME = 500

MOST_VALUES = 200_000
"""Maximum number of values with aliases written out."""

# Quotes of the file in parser messages. Single characters and parser words ('<stream end>') are shown.
_QUOTED = re.compile(r"('(?:\\?.|<[a-z ]+>)')|'[^']*'|\"[^\"]{2,}\"")


Lines = dict[tuple[str | int, ...], int]
"""Line of every key and entry of a YAML document, by its path."""


def _note_lines(name: str, node: yaml.Node | None, path: tuple[str | int, ...], lines: Lines) -> None:
    """Note the lines within a node. Aliases count as often as they stand there: a few bytes can say billions of values."""
    if len(lines) > MOST_VALUES:
        raise _unusable(name, f"says more than {MOST_VALUES} values once its aliases (*name) are written out")
    entries: Iterable[tuple[str | int, yaml.Node, yaml.Node]] = ()
    if isinstance(node, yaml.MappingNode):
        entries = ((str(key.value), key, value) for key, value in node.value)
    elif isinstance(node, yaml.SequenceNode):
        entries = ((place, value, value) for place, value in enumerate(node.value))
    for key, marked, value in entries:
        place, line = (*path, key), marked.start_mark.line + 1
        if place in lines and marked.tag != "tag:yaml.org,2002:merge":
            raise _unusable(name, f"{path_text(place)}: is given twice, first in line {lines[place]}", line)
        lines[place] = line
        _note_lines(name, value, place, lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """File contents with the line of each known path."""

    name: str
    data: Any
    lines: Mapping[str, int] = field(default_factory=dict)

    def located(self, problems: tuple[str, ...]) -> tuple[str, ...]:
        """Prefix each problem with file and line, in file order.

        A problem begins with its path and a colon. A path without a line gets the line of its nearest parent.
        """
        at = [(self._line(problem.partition(": ")[0]), problem) for problem in problems]
        return tuple(
            f"{self.name}:{line}: {problem}" if line else f"{self.name}: {problem}"
            for line, problem in sorted(at, key=lambda entry: entry[0])
        )

    def _line(self, path: str) -> int:
        while path and path not in self.lines:
            # A key with a bracket leaves a bracket that is not a step of a path.
            path = re.sub(r"(\[[^]]*\]|\.?[^.[]+|.)$", "", path, flags=re.DOTALL)
        return self.lines.get(path, 0)


def read_document(path: Path) -> Document:
    """Read the file at `path`. Raise ConfigError with the file and, if known, the line of what is wrong."""
    # A configuration can name any characters as its plan file.
    name = one_line(str(path))[:_LONGEST_NAME]
    try:
        # Reading a pipe could block without end.
        if path.is_fifo():
            raise _unusable(name, "is a pipe; give a file")
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise _unusable(name, f"is larger than {MAX_BYTES} bytes: is this the right file?")
        text = content.decode("utf-8-sig")
    except OSError as error:
        missing = isinstance(error, FileNotFoundError)
        raise _unusable(name, "there is no such file" if missing else f"cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise _unusable(name, "is not a text file in UTF-8") from None
    if not text.strip():
        raise _unusable(name, "is empty")
    try:
        return _read_json(name, text) if path.suffix.lower() == ".json" else _read_yaml(name, text)
    except RecursionError:
        raise _unusable(name, "is nested too deeply") from None


def load_plan(path: Path) -> Plan:
    """Return the sizing plan in a file. Raise ConfigError with every problem, each with file, line and path."""
    document = read_document(path)
    try:
        return parse_plan(document.data)
    except InvalidPlanError as error:
        raise ConfigError(document.located(error.problems)) from None


def named_files(part: object, left_out: frozenset[str], place: str = "") -> Iterator[tuple[str, str]]:
    """Yield key and path of every file that a section names: keys in `_file` but those of `left_out`, and in `_files`."""
    key = place.rpartition(".")[2]
    if isinstance(part, BaseModel):
        part = part.model_dump()
    if isinstance(part, Mapping):
        for name, value in part.items():
            yield from named_files(value, left_out, f"{place}.{name}".removeprefix("."))
    elif isinstance(part, list | tuple):
        for number, entry in enumerate(part):
            yield from named_files(entry, left_out, f"{place}[{number}]")
    elif isinstance(part, str) and ("_files." in place or (key.endswith("_file") and key not in left_out)):
        yield place, part


def _unusable(name: str, why: str, line: int = 0) -> ConfigError:
    return ConfigError((f"{name}:{line}: {why}" if line else f"{name}: {why}",))


def _read_yaml(name: str, text: str) -> Document:
    lines = Lines()
    try:
        loader = yaml.SafeLoader(text)
        root = loader.get_single_node()
        _note_lines(name, root, (), lines)
        data = loader.construct_document(root) if root else None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        text = error.problem or error.context or "it cannot be parsed"
        why = f"is not YAML: {_QUOTED.sub(lambda quote: quote[1] or 'something', text)}"
        if "another document" in text:
            why = "holds several documents (---); one is expected"
        raise _unusable(name, why, mark.line + 1 if mark else 0) from None
    except yaml.reader.ReaderError as error:
        raise _unusable(name, f"is not YAML: character {error.position + 1} may not stand in a text file") from None
    except (ValueError, OverflowError) as error:
        # PyYAML reads 2026-13-45 as a date, which datetime refuses.
        why = f"holds a value that YAML reads as a date or number it cannot be ({error})"
        raise _unusable(name, why) from None
    return Document(name=name, data=data, lines={path_text(path): line for path, line in lines.items()})


def _read_json(name: str, text: str) -> Document:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        for place, _ in repeats(key for key, _ in pairs):
            raise _unusable(name, f"{path_text((pairs[place][0],))}: is given twice")
        return dict(pairs)

    try:
        return Document(name=name, data=json.loads(text, object_pairs_hook=unique))
    except json.JSONDecodeError as error:
        raise _unusable(name, f"is not JSON: {error.msg}", error.lineno) from None
    except ValueError:
        raise _unusable(name, "is not JSON: a number has too many digits") from None
