"""Reader of YAML and JSON files that gives every problem its file and line.

No message holds a value of the file, which may be a secret.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from agent.errors import PlanError
from exporters.render.text import STAND_IN
from rules.plan.checks import PlanWarning
from rules.plan.memory import read_model_config
from rules.plan.schema import Architecture, InvalidPlanError, Plan, parse_plan
from rules.plan.validation import path_text

MAX_BYTES = 1024 * 1024
"""Maximum size of a file: a ConfigMap holds no more."""

MOST_VALUES = 1_000_000
"""Maximum number of values with aliases written out."""

_LONGEST_PATH = 500

# Quotes of the file in parser messages. Single characters and parser words ('<stream end>') may be shown.
_QUOTED = re.compile(r"'[^']*'|\"[^\"]{2,}\"")
_SHOWN = re.compile(r"'(\\?.|<[a-z ]+>)'")

OF_A_CONFIGURATION = frozenset({"plan", "targets", "store", "role", "data_dir", "scrape_interval"})
"""Keys that only a configuration has."""

_OF_A_TIER = frozenset({"model", "slo", "curve"})


class RepeatedKeyError(yaml.YAMLError):
    """Document with a key that is given twice. `line` is 0 where it is not known."""

    def __init__(self, text: str, line: int = 0) -> None:
        super().__init__(text)
        self.line = line


class UniqueKeyLoader(yaml.SafeLoader):
    """Safe loader that refuses a key given twice, and notes the line of every key and entry."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.lines: dict[tuple[str | int, ...], int] = {}
        self._path: tuple[str | int, ...] = ()
        self._values, self._sizes = 0, dict[int, int]()

    def compose_node(self, parent: Any, index: Any) -> yaml.Node | None:
        """Return the next node. `index` is the key node of a value, the number of an entry, None for keys."""
        if index is None:
            return self._counted(parent, index)
        above = self._path
        if isinstance(index, yaml.Node):
            line, self._path = index.start_mark.line + 1, (*above, str(index.value))
            if self._path in self.lines and index.tag != "tag:yaml.org,2002:merge":
                first = self.lines[self._path]
                raise RepeatedKeyError(f"{path_text(self._path)}: is given twice, first in line {first}", line)
        else:
            line, self._path = self.peek_event().start_mark.line + 1, (*above, index)  # type: ignore[no-untyped-call]
        self.lines[self._path] = line
        node = self._counted(parent, index)
        self._path = above
        return node

    def _counted(self, parent: Any, index: Any) -> yaml.Node | None:
        """Return the next node. An alias counts as many values as its part: a few bytes can say billions."""
        before, is_alias = self._values, self.check_event(yaml.AliasEvent)
        self._values += 1
        node = super().compose_node(parent, index)
        if is_alias:
            self._values += self._sizes.get(id(node), 0)
        self._sizes.setdefault(id(node), self._values - before)
        if self._values > MOST_VALUES:
            raise yaml.YAMLError(f"says more than {MOST_VALUES} values once its aliases (*name) are written out")
        return node


def parse_yaml(text: str) -> Any:
    """Return one document as `yaml.safe_load` does. Raise YAMLError, also for impossible dates, or RecursionError."""
    return _parse(UniqueKeyLoader(text))


def _parse(loader: UniqueKeyLoader) -> Any:
    try:
        return loader.get_single_data()
    except (ValueError, OverflowError) as error:
        # PyYAML reads 2026-13-45 as a date, which datetime refuses.
        raise yaml.YAMLError(f"holds a value that YAML reads as a date or number it cannot be ({error})") from error
    finally:
        loader.dispose()


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """File contents with the line of each known path. `data` is None, with a problem, if the file is unusable."""

    name: str
    data: Any = None
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
    """Read the file at `path`. Report the error of an unusable one in the document's problems and never raise."""
    name = _shown(path)
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            return _unusable(name, f"is larger than {MAX_BYTES} bytes: is this the right file?")
        text = content.decode("utf-8-sig")
    except FileNotFoundError:
        return _unusable(name, "there is no such file")
    except OSError as error:
        return _unusable(name, f"cannot be read: {error.strerror}")
    except UnicodeDecodeError:
        return _unusable(name, "is not a text file in UTF-8")
    except ValueError:
        return _unusable(name, "cannot be the name of a file")
    if not text.strip():
        return _unusable(name, "is empty")
    try:
        return _read_json(name, text) if path.suffix.lower() == ".json" else _read_yaml(name, text)
    except RecursionError:
        return _unusable(name, "is nested too deeply")


def _shown(path: Path) -> str:
    """Return the path for a message: a configuration can name any characters as its plan file."""
    name = str(path) if len(str(path)) <= _LONGEST_PATH else f"{str(path)[: _LONGEST_PATH - 1]}…"
    return "".join(sign if sign.isprintable() else STAND_IN for sign in name)


def is_plan(data: object) -> bool:
    """Return whether the data are a sizing plan, by the keys of its tiers."""
    tiers = data.get("tiers") if isinstance(data, Mapping) else None
    entries = tiers.values() if isinstance(tiers, Mapping) else ()
    return any(isinstance(tier, Mapping) and tier.keys() & _OF_A_TIER for tier in entries)


def load_plan(path: Path) -> Plan:
    """Return the sizing plan in a file. Raise PlanError with every problem, each with file, line and path."""
    document = read_document(path)
    if document.problems:
        raise PlanError(document.problems)
    if isinstance(document.data, Mapping) and document.data.keys() & OF_A_CONFIGURATION:
        raise PlanError(
            (f"{document.name}: is a configuration, not a sizing plan: give the plan that it names (plan:)",)
        )
    try:
        return parse_plan(document.data)
    except InvalidPlanError as error:
        raise PlanError(document.located(error.problems)) from None


def fill_architectures(plan: Plan, path: Path) -> tuple[Plan, tuple[PlanWarning, ...]]:
    """Return the plan with the shapes of the models whose config.json it names, and problems with these files.

    Files are relative to the plan at `path`. Keys of the plan win; a file that differs from them is a warning.
    """
    tiers, warnings = dict(plan.tiers), list[PlanWarning]()
    for name, tier in plan.tiers.items():
        written = tier.architecture
        if written is None or written.config is None:
            continue
        place = f"tiers.{name}.architecture"
        document = read_document(path.parent / written.config)
        read = read_model_config(document.data) if isinstance(document.data, dict) else {}
        if not read.get("layers"):
            why = document.problems[0] if document.problems else f"{written.config} is no config.json of a model"
            warnings.append(PlanWarning(path=f"{place}.config", text=why, severity="mistake"))
            continue
        own = written.model_dump(exclude_none=True)
        for key in sorted(own.keys() & read.keys() - {"attention"}):
            if own[key] != read[key]:
                text = f"is {own[key]} here and {read[key]} in {written.config}; the plan's is used"
                warnings.append(PlanWarning(path=f"{place}.{key}", text=text, severity="warning"))
        filled = Architecture.model_validate({**read, **own})
        tiers[name] = tier.model_copy(update={"architecture": filled})
    return plan.model_copy(update={"tiers": tiers}), tuple(warnings)


def _unusable(name: str, why: str, line: int | None = None) -> Document:
    return Document(name=name, problems=(f"{name}:{line}: {why}" if line else f"{name}: {why}",))


def _read_yaml(name: str, text: str) -> Document:
    try:
        loader = UniqueKeyLoader(text)
        data = _parse(loader)
    except RepeatedKeyError as error:
        return _unusable(name, str(error), error.line)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        why = f"is not YAML: {_QUOTED.sub(_hide, error.problem or error.context or 'it cannot be parsed')}"
        if "another document" in why:
            why = "holds several documents (---); one is expected"
        return _unusable(name, why, mark.line + 1 if mark else None)
    except yaml.reader.ReaderError as error:
        return _unusable(name, f"is not YAML: character {error.position + 1} may not stand in a text file")
    except yaml.YAMLError as error:
        return _unusable(name, str(error))
    return Document(name=name, data=data, lines={path_text(path): line for path, line in loader.lines.items()})


def _read_json(name: str, text: str) -> Document:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        keys: set[str] = set()
        for key, _ in pairs:
            if key in keys:
                raise RepeatedKeyError(f"{path_text((key,))}: is given twice")
            keys.add(key)
        return dict(pairs)

    try:
        return Document(name=name, data=json.loads(text, object_pairs_hook=unique))
    except RepeatedKeyError as error:
        return _unusable(name, str(error))
    except json.JSONDecodeError as error:
        return _unusable(name, f"is not JSON: {error.msg}", error.lineno)
    except ValueError:
        return _unusable(name, "is not JSON: a number has too many digits")


def _hide(quote: re.Match[str]) -> str:
    return quote[0] if _SHOWN.fullmatch(quote[0]) else "something"
