"""Reader of YAML and JSON files. Every problem names the file, and no message holds a value of it: it may be a secret."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import yaml

from agent.config.sections import ConfigSection, list_values, repeats
from agent.errors import ConfigError
from exporters.render.safe_text import one_line
from rules.plan.schema import InvalidPlanError, Plan, parse_plan
from rules.plan.validation import path_text

MAX_BYTES = 1024 * 1024
"""Maximum size of a file: a ConfigMap holds no more."""

MOST_VALUES = 200_000
"""Maximum number of values with aliases written out: a few bytes can say billions."""

TEXT_TAGS = ("tag:yaml.org,2002:str", "tag:yaml.org,2002:merge")
"""Tags of a key that is text, and of `<<`."""

# Quotes of the file in parser messages. Single characters and parser words ('<stream end>') are shown.
_QUOTED = re.compile(r"('(?:\\?.|<[a-z ]+>)')|'[^']*'|\"[^\"]{2,}\"")


def is_absent(path: Path) -> bool:
    """Return whether nothing is at a path. What this user may not look at is not absent."""
    try:
        return not path.exists()
    except OSError:
        return False


def read_document(path: Path) -> Any:
    """Return what the YAML or JSON file at `path` says. Raise ConfigError."""
    try:
        # Reading a pipe could block without end.
        if path.is_fifo():
            raise ValueError("is a pipe; give a file")
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise ValueError(f"is larger than {MAX_BYTES} bytes: is this the right file?")
        text = content.decode("utf-8-sig")
        if path.suffix.lower() == ".json":
            return json.loads(text, object_pairs_hook=_unique)
        loader = yaml.SafeLoader(text)
        root = loader.get_single_node()
        _check_node(root, (), count())
        return loader.construct_document(root) if root else None
    except OSError as error:
        missing = isinstance(error, FileNotFoundError)
        problem = "there is no such file" if missing else f"cannot be read: {error.strerror}"
        if missing and path.name == "plan.yaml":
            problem += "; `sizewatch init` or `sizewatch plan init URL` writes one"
    except UnicodeDecodeError:
        problem = "is not a text file in UTF-8"
    except RecursionError:
        problem = "is nested too deeply"
    except yaml.MarkedYAMLError as error:
        words = ", ".join(filter(None, (error.context, error.problem)))
        problem = f"is not YAML: {_QUOTED.sub(lambda quote: quote[1] or 'something', words)}"
        problem += f" (line {error.problem_mark.line + 1})" if error.problem_mark else ""
    except yaml.YAMLError:
        problem = "is not YAML: a character may not stand in a text file"
    except (ValueError, OverflowError) as error:
        problem = f"is not JSON: {error}" if isinstance(error, json.JSONDecodeError) else str(error)
    raise ConfigError((f"{one_line(str(path))[:500]}: {problem}",))


def name_file(path: Path | str, problems: Iterable[str]) -> tuple[str, ...]:
    return tuple(f"{path}: {problem}" for problem in problems)


def load_plan(path: Path) -> Plan:
    """Return the sizing plan in a file. Raise ConfigError with every problem, each with file and path."""
    data = read_document(path)
    try:
        return parse_plan(data)
    except InvalidPlanError as error:
        raise ConfigError(name_file(path, error.problems)) from None


def named_files(section: ConfigSection | None, left_out: frozenset[str] = frozenset()) -> Iterator[tuple[str, str]]:
    """Yield key and path of every file that a section names: keys in `_file` but those of `left_out`, and in `_files`."""
    for place, value in list_values(section):
        key = place.rpartition(".")[2]
        if isinstance(value, str) and ("_files." in place or (key.endswith("_file") and key not in left_out)):
            yield place, value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    for place, _ in repeats(key for key, _ in pairs):
        raise ValueError(f"{path_text((pairs[place][0],))}: is given twice")
    return dict(pairs)


def _check_node(node: yaml.Node | None, path: tuple[str | int, ...], counted: Iterator[int]) -> None:
    """Raise ValueError for a key that is no text or given twice, and for more than MOST_VALUES."""
    if next(counted) > MOST_VALUES:
        raise ValueError(f"says more than {MOST_VALUES} values once its aliases (*name) are written out")
    entries: list[tuple[str | int, yaml.Node]] = []
    if isinstance(node, yaml.MappingNode):
        entries = [(str(key.value), value) for key, value in node.value]
        for key, _ in node.value:
            if key.tag not in TEXT_TAGS:
                where = path_text((*path, key.value) if isinstance(key, yaml.ScalarNode) else path)
                raise ValueError(f"{where}: a key must be text: put it in quotes")
        for place, _ in repeats(key for key, _ in entries):
            raise ValueError(f"{path_text((*path, entries[place][0]))}: is given twice")
    elif isinstance(node, yaml.SequenceNode):
        entries = list(enumerate(node.value))
    for step, value in entries:
        _check_node(value, (*path, step), counted)
