"""Reads the YAML and JSON files people write, and says of every problem which file and line it is in.

Owns decoding, syntax, keys given twice and the way from a path in a document to its line. It knows no key of any
document: `agent.config.load` and `rules.plan.schema` do. No message holds a value of the file, which may be a secret. Another
format is a row of `_READERS`.

How much a YAML document says once every alias in it is written out: a few hundred bytes can say billions of values.

Owns the count and the limit, before anything is built from the nodes. What a document means, its readers know.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from agent.errors import PlanError
from exporters.render.text import STAND_IN
from rules.plan.schema import InvalidPlanError, Plan, parse_plan
from rules.plan.validation import path_text

_BRACKETS = re.compile(r"[\[\]{}]")

MOST_VALUES = 1_000_000
"""With aliases written out; a plan of a hundred tiers with curves is some 20,000."""

TOO_MUCH = f"says more than {MOST_VALUES} values once its aliases (*name) are written out"


class YamlSizeError(yaml.YAMLError):
    """A document of more than MOST_VALUES values."""


MOST_DEEP = 200
"""Brackets within brackets: PyYAML's time grows with the square of them, and a plan has three."""


def check_text(text: str) -> None:
    """Raises RecursionError, which the parser would after a long time."""
    deep = 0
    for found in _BRACKETS.finditer(text):
        deep = deep + 1 if found[0] in "[{" else max(0, deep - 1)
        if deep > MOST_DEEP:
            raise RecursionError(f"more than {MOST_DEEP} brackets are open at once")


def check(root: yaml.Node | None) -> None:
    """Raises TooMuch; a part that refers to itself counts once where it does."""
    if root is not None and _values(root, {}) > MOST_VALUES:
        raise YamlSizeError(TOO_MUCH)


def loaded(text: str) -> Any:
    """One document as `yaml.safe_load` reads it. Raises YAMLError, for dates and numbers that cannot be as well, and
    RecursionError.
    """
    check_text(text)
    # Not the parser in C: a file of brackets overflows its stack and ends the process.
    loader = yaml.SafeLoader(text)
    try:
        root = loader.get_single_node()
        check(root)
        return loader.construct_document(root) if root is not None else None
    except (ValueError, OverflowError) as error:
        raise yaml.YAMLError(f"holds a value that YAML reads as a date or number it cannot be ({error})") from error
    finally:
        loader.dispose()


def _values(node: yaml.Node, known: dict[int, int]) -> int:
    found = known.get(id(node))
    if found is not None:
        return found
    known[id(node)] = count = 1
    if isinstance(node, yaml.SequenceNode):
        count += sum(_values(entry, known) for entry in node.value)
    elif isinstance(node, yaml.MappingNode):
        count += sum(_values(key, known) + _values(value, known) for key, value in node.value)
    known[id(node)] = count
    return count


MAX_BYTES = 4 * 1024 * 1024

_LONGEST_PATH = 500

# What the parser quotes of the file; single characters and its own words ('<stream end>') may be shown.
_QUOTED = re.compile(r"'(?!\\?[^']'|<[a-z ]+>')[^']*'|\"[^\"]{2,}\"")


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A file that was read: what it holds, the line of each path where known, and what is wrong with its form.

    `data` is None, beside a problem, where the file could not be read at all.
    """

    name: str
    data: Any
    lines: Mapping[str, int] = field(default_factory=dict)
    problems: tuple[str, ...] = ()

    def located(self, problems: tuple[str, ...]) -> tuple[str, ...]:
        """The same problems, each with file and line before it, in the order of the file.

        A problem begins with its path and a colon; one whose path has no line stands at that of what is around it.
        """
        at = [(self._line(problem.partition(": ")[0]), problem) for problem in problems]
        return tuple(
            f"{self.name}:{line}: {problem}" if line else f"{self.name}: {problem}"
            for line, problem in sorted(at, key=lambda entry: entry[0])
        )

    def _line(self, path: str) -> int:
        while path and path not in self.lines:
            # A key with a bracket in it leaves one that is no step of a path.
            path = re.sub(r"(\[[^]]*\]|\.?[^.[]+|.)$", "", path, flags=re.DOTALL)
        return self.lines.get(path, 0)


def read_document(path: Path) -> Document:
    """The file at `path`. Never raises for what the file is or holds: that is in the document's problems."""
    name = _shown(path)
    try:
        if path.stat().st_size > MAX_BYTES:
            return _unreadable(name, f"is larger than {MAX_BYTES} bytes: is this the right file?")
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        return _unreadable(name, "there is no such file")
    except OSError as error:
        return _unreadable(name, f"cannot be read: {error.strerror}")
    except UnicodeDecodeError:
        return _unreadable(name, "is not a text file in UTF-8")
    except ValueError:
        return _unreadable(name, "cannot be the name of a file")
    try:
        return _READERS.get(path.suffix.lower(), _yaml)(name, text)
    except RecursionError:
        return _unreadable(name, "is nested too deeply")


def _shown(path: Path) -> str:
    """As it may stand in a message: a configuration names the plan's file, in whatever signs."""
    name = str(path) if len(str(path)) <= _LONGEST_PATH else f"{str(path)[: _LONGEST_PATH - 1]}…"
    return "".join(sign if sign.isprintable() else STAND_IN for sign in name)


def load_plan(path: Path) -> Plan:
    """The sizing plan in a file. Raises BadPlan with every problem, each with file, line and path."""
    document = read_document(path)
    if document.data is None and document.problems:
        raise PlanError(document.problems)
    try:
        plan = parse_plan(document.data)
    except InvalidPlanError as found:
        raise PlanError((*document.problems, *document.located(found.problems))) from None
    if document.problems:
        raise PlanError(document.problems)
    return plan


def _unreadable(name: str, why: str, line: int | None = None) -> Document:
    return Document(name=name, data=None, problems=(f"{name}:{line}: {why}" if line else f"{name}: {why}",))


def _yaml(name: str, text: str) -> Document:
    loader = None
    lines: dict[str, int] = {}
    twice: tuple[str, ...] = ()
    try:
        check_text(text)
        # Not the parser in C: a file of brackets overflows its stack and ends the process.
        loader = yaml.SafeLoader(text)
        root = loader.get_single_node()
        check(root)
        # First: constructing it writes merged keys (<<) into the nodes, where they look as if given twice.
        twice = tuple(_walk(root, (), lines, set())) if root is not None else ()
        data = loader.construct_document(root) if root is not None else None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        reason = _QUOTED.sub("something", error.problem or error.context or "it cannot be parsed")
        if isinstance(error, yaml.composer.ComposerError) and "another document" in reason:
            return _unreadable(name, "holds several documents (---); one is expected", mark.line + 1 if mark else None)
        return _unreadable(name, f"is not YAML: {reason}", mark.line + 1 if mark else None)
    except YamlSizeError as error:
        return _unreadable(name, str(error))
    except yaml.reader.ReaderError as error:
        return _unreadable(name, f"is not YAML: character {error.position + 1} may not stand in a text file")
    except (ValueError, OverflowError) as error:
        # PyYAML reads 2026-13-45 as a date and lets datetime complain.
        return _unreadable(name, f"holds a value that YAML reads as a date or number it cannot be ({error})")
    finally:
        if loader is not None:
            loader.dispose()
    return Document(name=name, data=data, lines=lines, problems=tuple(f"{name}:{problem}" for problem in twice))


def _walk(node: Any, path: tuple[str | int, ...], lines: dict[str, int], seen: set[int]) -> Iterator[str]:
    """Fills `lines`; yields keys given twice. A part that is used in several places has the lines of the first."""
    if id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        for place, entry in enumerate(node.value):
            lines[path_text((*path, place))] = entry.start_mark.line + 1
            yield from _walk(entry, (*path, place), lines, seen)
    if not isinstance(node, yaml.MappingNode):
        return
    first: dict[str, int] = {}
    for key, value in node.value:
        name, line = str(key.value), key.start_mark.line + 1
        where = path_text((*path, name))
        if name in first and key.tag != "tag:yaml.org,2002:merge":
            yield f"{line}: {where}: is given twice, first in line {first[name]}"
        first.setdefault(name, line)
        lines[where] = line
        yield from _walk(value, (*path, name), lines, seen)


def _json(name: str, text: str) -> Document:
    twice: list[str] = []

    def mapping(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        keys = [key for key, _ in pairs]
        twice.extend(
            f"{name}: {path_text((key,))}: is given twice" for key in dict.fromkeys(keys) if keys.count(key) > 1
        )
        return dict(pairs)

    try:
        data = json.loads(text, object_pairs_hook=mapping)
    except json.JSONDecodeError as error:
        return _unreadable(name, f"is not JSON: {error.msg}", error.lineno)
    except ValueError:
        return _unreadable(name, "is not JSON: a number has too many digits")
    return Document(name=name, data=data, problems=tuple(twice))


_READERS: Mapping[str, Callable[[str, str], Document]] = {".json": _json}
