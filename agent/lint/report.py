"""What the linter found, in lines for people and in a document for programs.

Owns words and layout. It judges nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from agent.lint.findings import Finding, Linted

SCHEMA = 1


def text_of(found: Linted) -> str:
    """One line a finding (`FILE:LINE: RULE: what is wrong; write: what to write`), then what was not judged."""
    return "\n".join((*map(_line, _in_order(found)), *_notes(found), _summary(found)))


def json_of(found: Linted) -> dict[str, Any]:
    """The same: `findings` beside `broken` files and expressions, and `not_judged`."""
    return {
        "schema": SCHEMA,
        "files": found.files,
        "expressions": found.expressions,
        "findings": [asdict(one) for one in found.findings],
        "broken": [asdict(one) for one in found.broken],
        "not_judged": [asdict(one) for one in found.remarks],
    }


def _in_order(found: Linted) -> list[Finding]:
    return sorted((*found.broken, *found.findings), key=lambda one: (one.file, one.line))


def _line(one: Finding) -> str:
    where = f"{one.file}:{one.line}" if one.line else one.file
    rule = f" {one.rule}:" if one.rule else ""
    return f"{where}:{rule} {one.text}" + (f"; write: {one.fix}" if one.fix else "")


def _notes(found: Linted) -> Iterator[str]:
    texts: dict[str, list[str]] = {}
    for remark in found.remarks:
        texts.setdefault(remark.text, []).append(remark.name)
    for text, names in texts.items():
        yield f"not judged: {', '.join(sorted(set(names)))}: {text}"


def _summary(found: Linted) -> str:
    count = len(found.findings) + len(found.broken)
    what = "nothing wrong was found" if not count else "1 finding" if count == 1 else f"{count} findings"
    files = "1 file" if found.files == 1 else f"{found.files} files"
    expressions = "1 expression" if found.expressions == 1 else f"{found.expressions} expressions"
    return f"{expressions} in {files}: {what}"
