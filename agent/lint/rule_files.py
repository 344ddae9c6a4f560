"""From a file to the expressions in it, each with its line: Prometheus rules, PrometheusRule objects, Grafana dashboards.

Owns where expressions stand in such files. It parses no expression. Whatever holds rules (a rule file, an object, a list
of objects, several documents, Helm values) has them as mappings with `alert` or `record` beside `expr`; a dashboard has
`expr` in the list `targets` of a panel. Another place for expressions is a branch of `_search`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

MAX_BYTES = 4 * 1024 * 1024
ALERT, RECORD, PANEL = "alert", "record", "panel"


class BadRuleFile(Exception):
    """A file that cannot be read as any of these; its text begins with file and, where known, line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One expression as it stands in a file. `words` is every text beside it that tells what it is for: its name, labels
    and annotations. `source` are the lines it stands in, the first of which is `line`."""

    file: str
    line: int
    kind: str
    name: str
    expression: str
    words: str
    source: tuple[str, ...]

    def line_of(self, token: str) -> int:
        """The line in which a part of the expression stands; that of the expression where it cannot be told."""
        pattern = re.compile(rf"(?<![\w:]){re.escape(token)}(?![\w:])")
        if not token:
            return self.line
        return next((self.line + n for n, text in enumerate(self.source) if pattern.search(text)), self.line)


def read_rules(path: Path) -> tuple[Rule, ...]:
    """Every expression of a file, in its order. Raises BadRuleFile, also where there is none."""
    text = _text(path)
    if path.suffix.lower() == ".json":
        text = _checked_json(path, text)
    lines = text.splitlines()
    rules: list[Rule] = []
    try:
        # Not the parser in C: a file of brackets overflows its stack and ends the process.
        for root in yaml.compose_all(text, Loader=yaml.SafeLoader):
            rules += _search(root, _Place(str(path), lines), "", set())
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{path}:{mark.line + 1}" if mark else str(path)
        raise BadRuleFile(f"{where}: is not YAML: {error.problem or error.context}{_template_hint(text)}") from error
    except yaml.reader.ReaderError as error:
        raise BadRuleFile(f"{path}: is not YAML: character {error.position + 1} may not stand in a text") from error
    except RecursionError as error:
        raise BadRuleFile(f"{path}: is nested too deeply") from error
    if not rules:
        raise BadRuleFile(f"{path}: holds no rules (alert or record beside expr) and no panels (targets with expr)")
    return tuple(rules)


def _text(path: Path) -> str:
    try:
        if path.stat().st_size > MAX_BYTES:
            raise BadRuleFile(f"{path}: is larger than {MAX_BYTES} bytes: is this the right file?")
        return path.read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        raise BadRuleFile(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error


def _checked_json(path: Path, text: str) -> str:
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        raise BadRuleFile(f"{path}:{error.lineno}: is not JSON: {error.msg}") from error
    except (ValueError, RecursionError) as error:
        raise BadRuleFile(f"{path}: is not JSON: {error}") from error
    # A tab may not stand in a JSON string, and YAML knows none between tokens.
    return text.replace("\t", " ")


def _template_hint(text: str) -> str:
    return "; render the template first (helm template)" if "{{-" in text or "{{ ." in text else ""


@dataclass(frozen=True, slots=True)
class _Place:
    file: str
    lines: list[str]


def _search(node: Any, place: _Place, title: str, seen: set[int]) -> Iterator[Rule]:
    if id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        for entry in node.value:
            yield from _search(entry, place, title, seen)
    if not isinstance(node, yaml.MappingNode):
        return
    fields = {key.value: value for key, value in node.value if isinstance(key, yaml.ScalarNode)}
    kind = next((kind for kind in (ALERT, RECORD) if kind in fields), "")
    if kind:
        yield _rule(node, fields, kind, _scalar(fields[kind]), place)
        return
    title = _scalar(fields.get("title")) or title
    for key, value in fields.items():
        if key == "targets" and isinstance(value, yaml.SequenceNode):
            yield from _targets(value, place, title)
        yield from _search(value, place, title, seen)


def _targets(node: Any, place: _Place, title: str) -> Iterator[Rule]:
    for entry in node.value:
        if not isinstance(entry, yaml.MappingNode):
            continue
        fields = {key.value: value for key, value in entry.value if isinstance(key, yaml.ScalarNode)}
        if _scalar(fields.get("expr")):
            yield _rule(entry, {"expr": fields["expr"]}, PANEL, title or "panel without title", place)


def _rule(node: Any, fields: dict[str, Any], kind: str, name: str, place: _Place) -> Rule:
    found = fields.get("expr")
    line = (found or node).start_mark.line + 1
    if not isinstance(found, yaml.ScalarNode):
        raise BadRuleFile(f"{place.file}:{line}: {name}: has no expr")
    words = " ".join((name, *_texts(fields.get("labels")), *_texts(fields.get("annotations"))))
    source = tuple(place.lines[line - 1 : max(line, found.end_mark.line + 1)])
    return Rule(file=place.file, line=line, kind=kind, name=name, expression=found.value, words=words, source=source)


def _texts(node: Any) -> tuple[str, ...]:
    """The values of a mapping of texts, but for links: a path in one says little about the rule."""
    if not isinstance(node, yaml.MappingNode):
        return ()
    return tuple(v.value for k, v in node.value if isinstance(v, yaml.ScalarNode) and not k.value.endswith("url"))


def _scalar(node: Any) -> str:
    return str(node.value) if isinstance(node, yaml.ScalarNode) else ""
