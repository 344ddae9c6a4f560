"""Reader of YAML and JSON files that gives every problem its file and line.

No message holds a value of the file, which may be a secret. The size of a YAML document is checked with its aliases
expanded, before anything is built. A few hundred bytes can expand to billions of values.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from pathlib import Path
from typing import Any, ClassVar

import yaml

from agent.errors import PlanError
from exporters.render.text import STAND_IN
from rules.light_dataclass import light_dataclass
from rules.plan.checks import PlanWarning
from rules.plan.memory import read_model_config
from rules.plan.schema import Architecture, InvalidPlanError, Plan, parse_plan
from rules.plan.validation import path_text

_BRACKETS = re.compile(r"[\[\]{}]")

MAX_BYTES = 1024 * 1024
"""Maximum size of a file: a ConfigMap holds no more. YAML takes 60 times as much memory, a node agent has 128 MiB."""

_LONGEST_PATH = 500

# Quotes of the file in parser messages. Single characters and parser words ('<stream end>') may be shown.
_QUOTED = re.compile(r"'(?!\\?[^']'|<[a-z ]+>')[^']*'|\"[^\"]{2,}\"")

MOST_VALUES = 1_000_000
"""Maximum number of values with aliases expanded, for results and recordings."""

MOST_CONFIG_VALUES = 100_000
"""The same for a configuration or plan. A plan of a hundred tiers with curves has some 20,000."""

MOST_DEEP = 200
"""Maximum nesting. PyYAML's time grows with the square of open brackets, and a plan has three levels."""

_DEEPEST_LINE = 20
"""Nesting down to which lines are kept. Paths of deeper values would take more memory than the file."""


class _Mark:
    """Place in a YAML text. PyYAML's has further fields: with two of each value they are half of the memory."""

    __slots__ = ("column", "index", "line")
    name: ClassVar[str] = ""

    def __init__(self, index: int, line: int, column: int) -> None:
        self.index = index
        self.line = line
        self.column = column

    def __str__(self) -> str:
        return f"line {self.line + 1}, column {self.column + 1}"


class _Loader(yaml.SafeLoader):
    """Loader that ends early for too many or too deeply nested values, and keeps no more of a node than its begin."""

    def __init__(self, text: str, most: int) -> None:
        super().__init__(text)
        self._left, self._most, self._depth = most, most, 0

    def get_mark(self) -> Any:
        return _Mark(self.index, self.line, self.column)

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        self._left -= 1
        if self._left < 0:
            raise YamlValueError(f"says more than {self._most} values")
        if self._depth > MOST_DEEP:
            raise RecursionError(f"more than {MOST_DEEP} levels")
        self._depth += 1
        node = super().compose_node(parent, index)
        self._depth -= 1
        if node is not None:
            node.end_mark = None
        return node


def _check_depth(text: str) -> None:
    """Raise RecursionError for deep nesting, which the parser would only do after a long time."""
    deep = 0
    for found in _BRACKETS.finditer(text):
        deep = deep + 1 if found[0] in "[{" else max(0, deep - 1)
        if deep > MOST_DEEP:
            raise RecursionError(f"more than {MOST_DEEP} brackets are open at once")


def parse_yaml(
    text: str, examine: Callable[[yaml.Node], None] = lambda root: None, most_values: int = MOST_VALUES
) -> Any:
    """Return one document as `yaml.safe_load` does. `examine` gets its root node first.

    Raise YAMLError, also for impossible dates and numbers, or RecursionError.
    """
    _check_depth(text)
    loader = None
    try:
        # Not the C parser: a file of brackets overflows its stack and ends the process.
        loader = _Loader(text, most_values)
        root = loader.get_single_node()
        if root is None:
            return None
        if _count_values(root, {}) > most_values:
            raise YamlValueError(f"says more than {most_values} values once its aliases (*name) are written out")
        examine(root)
        return loader.construct_document(root)
    except (ValueError, OverflowError) as error:
        # PyYAML reads 2026-13-45 as a date, which datetime refuses.
        raise YamlValueError(f"holds a value that YAML reads as a date or number it cannot be ({error})") from error
    finally:
        if loader is not None:
            loader.dispose()


def _count_values(node: yaml.Node, known: dict[int, int]) -> int:
    if id(node) in known:
        return known[id(node)]
    known[id(node)] = count = 1
    if isinstance(node, yaml.SequenceNode):
        count += sum(_count_values(entry, known) for entry in node.value)
    elif isinstance(node, yaml.MappingNode):
        count += sum(_count_values(key, known) + _count_values(value, known) for key, value in node.value)
    known[id(node)] = count
    return count


class YamlValueError(yaml.YAMLError):
    """Document with an impossible value, or too many values."""


@light_dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """File contents with the line of each known path, and format problems.

    `data` is None, with a problem, if the file is unreadable.
    """

    name: str
    data: Any
    lines: Mapping[str, int] = field(default_factory=dict)
    problems: tuple[str, ...] = ()

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
    """Read the file at `path`. Report all errors in the document's problems and never raise."""
    name = _shown(path)
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            return _unreadable(name, f"is larger than {MAX_BYTES} bytes: is this the right file?")
        text = content.decode("utf-8-sig")
    except FileNotFoundError:
        return _unreadable(name, "there is no such file")
    except OSError as error:
        return _unreadable(name, f"cannot be read: {error.strerror}")
    except UnicodeDecodeError:
        return _unreadable(name, "is not a text file in UTF-8")
    except ValueError:
        return _unreadable(name, "cannot be the name of a file")
    if not text.strip():
        return _unreadable(name, "is empty")
    try:
        return _READERS.get(path.suffix.lower(), _yaml)(name, text)
    except RecursionError:
        return _unreadable(name, "is nested too deeply")


def _shown(path: Path) -> str:
    """Return the path for a message: a configuration can name any characters as its plan file."""
    name = str(path) if len(str(path)) <= _LONGEST_PATH else f"{str(path)[: _LONGEST_PATH - 1]}…"
    return "".join(sign if sign.isprintable() else STAND_IN for sign in name)


OF_A_CONFIGURATION = frozenset({"plan", "targets", "store", "role", "data_dir", "scrape_interval"})
"""Keys that only a configuration has."""

_OF_A_TIER = frozenset({"model", "slo", "curve"})


def is_plan(data: object) -> bool:
    """Return whether the data are a sizing plan, by the keys of its tiers."""
    tiers = data.get("tiers") if isinstance(data, Mapping) else None
    several = tiers.values() if isinstance(tiers, Mapping) else ()
    return any(isinstance(tier, Mapping) and tier.keys() & _OF_A_TIER for tier in several)


def load_plan(path: Path) -> Plan:
    """Return the sizing plan in a file. Raise PlanError with every problem, each with file, line and path."""
    document = read_document(path)
    if document.data is None and document.problems:
        raise PlanError(document.problems)
    if isinstance(document.data, Mapping) and document.data.keys() & OF_A_CONFIGURATION:
        raise PlanError(
            (f"{document.name}: is a configuration, not a sizing plan: give the plan that it names (plan:)",)
        )
    try:
        plan = parse_plan(document.data)
    except InvalidPlanError as found:
        raise PlanError((*document.problems, *document.located(found.problems))) from None
    if document.problems:
        raise PlanError(document.problems)
    return plan


def fill_architectures(plan: Plan, path: Path) -> tuple[Plan, tuple[PlanWarning, ...]]:
    """Return the plan with the shapes of the models whose config.json it names, and problems with these files.

    Files are relative to the plan at `path`. Keys of the plan win; a file that differs from them is a warning.
    """
    tiers, found = dict(plan.tiers), list[PlanWarning]()
    for name, tier in plan.tiers.items():
        written = tier.architecture
        if written is None or written.config is None:
            continue
        place = f"tiers.{name}.architecture"
        document = read_document(path.parent / written.config)
        told = read_model_config(document.data) if isinstance(document.data, dict) else {}
        if not told.get("layers"):
            why = document.problems[0] if document.problems else f"{written.config} is no config.json of a model"
            found.append(PlanWarning(path=f"{place}.config", text=why, severity="mistake"))
            continue
        own = written.model_dump(exclude_none=True)
        for key in sorted(own.keys() & told.keys() - {"attention"}):
            if own[key] != told[key]:
                text = f"is {own[key]} here and {told[key]} in {written.config}; the plan's is used"
                found.append(PlanWarning(path=f"{place}.{key}", text=text, severity="warning"))
        filled = Architecture.model_validate({**told, **own})
        tiers[name] = tier.model_copy(update={"architecture": filled})
    return plan.model_copy(update={"tiers": tiers}), tuple(found)


def _unreadable(name: str, why: str, line: int | None = None) -> Document:
    return Document(name=name, data=None, problems=(f"{name}:{line}: {why}" if line else f"{name}: {why}",))


def _yaml(name: str, text: str) -> Document:
    lines: dict[str, int] = {}
    twice: list[str] = []
    try:
        # The walk runs first: the constructor writes merged keys (<<) into the nodes, where they look like duplicates.
        data = parse_yaml(text, lambda root: twice.extend(_walk(root, (), lines, set())), MOST_CONFIG_VALUES)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        reason = _QUOTED.sub("something", error.problem or error.context or "it cannot be parsed")
        if isinstance(error, yaml.composer.ComposerError) and "another document" in reason:
            return _unreadable(name, "holds several documents (---); one is expected", mark.line + 1 if mark else None)
        return _unreadable(name, f"is not YAML: {reason}", mark.line + 1 if mark else None)
    except YamlValueError as error:
        return _unreadable(name, str(error))
    except yaml.reader.ReaderError as error:
        return _unreadable(name, f"is not YAML: character {error.position + 1} may not stand in a text file")
    return Document(name=name, data=data, lines=lines, problems=tuple(f"{name}:{problem}" for problem in twice))


def _walk(node: Any, path: tuple[str | int, ...], lines: dict[str, int], seen: set[int]) -> Iterator[str]:
    """Fill `lines` and yield duplicate keys. A part used in several places has the lines of its first use."""
    if id(node) in seen or len(path) > _DEEPEST_LINE:
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


def repeated_keys(pairs: list[tuple[str, Any]], found: Mapping[str, Any]) -> list[str]:
    """Return the keys that stand in `pairs` more than once. `found` is the dict of the pairs."""
    if len(found) == len(pairs):
        return []
    return [key for key, number in Counter(key for key, _ in pairs).items() if number > 1]


def _json(name: str, text: str) -> Document:
    twice: list[str] = []

    def mapping(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        twice.extend(f"{name}: {path_text((key,))}: is given twice" for key in repeated_keys(pairs, found))
        return found

    try:
        data = json.loads(text, object_pairs_hook=mapping)
    except json.JSONDecodeError as error:
        return _unreadable(name, f"is not JSON: {error.msg}", error.lineno)
    except ValueError:
        return _unreadable(name, "is not JSON: a number has too many digits")
    return Document(name=name, data=data, problems=tuple(twice))


_READERS: Mapping[str, Callable[[str, str], Document]] = {".json": _json}
