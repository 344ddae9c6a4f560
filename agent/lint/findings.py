"""The records of the linter: an expression to be judged, what is wrong with it, what could not be judged.

Owns types only; it must not know how they are found or printed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from agent.lint.catalogue import Catalogue
from agent.lint.expressions import Node
from agent.lint.rule_files import Rule


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One thing that is wrong. `kind` is one word for programs, `fix` what to write instead ("" where nothing fits),
    `token` the part of the expression that tells the line."""

    kind: str
    text: str
    fix: str = ""
    token: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remark:
    """What these pages do not decide: `name` could be right or wrong, and `text` says why and what to do."""

    name: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """One rule with its parsed expression, and what it is judged by.

    `recorded` are the expressions of the recording rules that were given, by the name they record. `target_labels` are
    labels that Prometheus itself puts on series.
    """

    rule: Rule
    node: Node
    catalogue: Catalogue
    recorded: Mapping[str, Node]
    target_labels: frozenset[str]


Check = Callable[[Judged], Iterator[Fault | Remark]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A fault in its place."""

    file: str
    line: int
    rule: str
    kind: str
    text: str
    fix: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Linted:
    """What became of some files. `broken` are findings that make the input unusable: a file or an expression that cannot
    be read at all."""

    expressions: int
    files: int
    findings: tuple[Finding, ...]
    broken: tuple[Finding, ...]
    remarks: tuple[Remark, ...]
