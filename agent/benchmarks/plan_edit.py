"""Editor that replaces a curve in a plan file and keeps the rest byte for byte.

YAML is edited as text between the marks of its parser: dumping it would lose comments, order and quoting. JSON is
rewritten with its own indentation. Unsafe text (one-line mappings, anchors into the curve) is refused and the file
stays unchanged. The edited text is parsed again and must differ in that curve alone.
"""

from __future__ import annotations

import copy
import json
import os
import re
import stat
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml

from agent.config.files import Document, read_document
from agent.errors import PlanError
from exporters.documents.plan_files import WRITTEN, YamlIndentation, curve_lines
from rules.plan.schema import BenchmarkCurve, InvalidPlanError, Plan, parse_plan
from rules.plan.validation import path_text

CURVE = "curve"

BY_HAND = "paste the curve that `sizewatch plan import` prints without --into"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFile:
    """Plan file as read, not validated: path, text without byte order mark, and parsed document."""

    path: Path
    text: str
    document: Document

    @property
    def tiers(self) -> Mapping[str, Any]:
        """Return the tiers by name, not validated."""
        tiers = self.document.data["tiers"]
        assert isinstance(tiers, dict)
        return tiers


@dataclass(frozen=True, slots=True, kw_only=True)
class EditedPlan:
    """Edited plan: the new text, the parsed plan, and the user comments lost with the old curve."""

    text: str
    plan: Plan
    lost_comments: tuple[str, ...]


def open_plan(path: Path) -> PlanFile:
    """Read a plan file to edit. Raise PlanError if it is unreadable or has no tiers."""
    document = read_document(path)
    if document.problems:
        raise PlanError(document.problems)
    tiers = document.data.get("tiers") if isinstance(document.data, dict) else None
    if not isinstance(tiers, dict) or not tiers:
        raise PlanError((f"{path}: is no plan: it has no tiers",))
    text = path.read_bytes().decode("utf-8-sig")
    return PlanFile(path=path, text=text, document=document)


def chosen_tier(plan: PlanFile, asked: str | None) -> str:
    """Return the requested tier, or the only one. Raise PlanError with the names of the tiers."""
    names = ", ".join(map(str, plan.tiers))
    if asked is None and len(plan.tiers) > 1:
        raise PlanError((f"{plan.path}: has several tiers; say which with --tier: {names}",))
    tier = next(iter(plan.tiers)) if asked is None else asked
    if not isinstance(tier, str):
        raise PlanError((f"{plan.path}: tiers: the name {tier} must be text; put it in quotes",))
    if tier not in plan.tiers:
        raise PlanError((f"{plan.path}: has no tier {tier}; it has {names}",))
    if not isinstance(plan.tiers[tier], dict):
        raise PlanError((f"{plan.path}: tiers.{tier}: must be a mapping of keys to values",))
    return tier


def replace_curve(
    plan: PlanFile,
    tier: str,
    curve: BenchmarkCurve,
    *,
    head: Sequence[str] = (),
    notes: Sequence[Sequence[str]] = (),
) -> EditedPlan:
    """Return the plan with this curve in that tier, without writing it.

    `head` and `notes` are comments above the curve and above its points. Raise PlanError if the text cannot be edited
    safely or the result is not a valid plan.
    """
    lost: tuple[str, ...] = ()
    if plan.path.suffix.lower() == ".json":
        text = _as_json(plan, tier, curve)
    else:
        text, lost = _as_yaml(plan, tier, curve, head, notes)
        _same_but_curve(plan, tier, curve, text)
    return EditedPlan(
        text=text,
        plan=_validated(plan, tier, text),
        # In a narrow column the mark wraps to two lines.
        lost_comments=() if WRITTEN in " ".join(lost) else lost,
    )


def write(plan: PlanFile, text: str) -> bool:
    """Replace the file atomically and return whether it changed. Write to the target of a link.

    The permissions stay; as root the owner stays too. Raise PlanError if the folder or file is not writable.
    """
    if text == plan.text:
        return False
    target = plan.path.resolve()
    temporary = ""
    try:
        mark = b"\xef\xbb\xbf" if target.read_bytes().startswith(b"\xef\xbb\xbf") else b""
        handle, temporary = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
        with os.fdopen(handle, "wb") as out:
            out.write(mark + text.encode("utf-8"))
            out.flush()
            os.fsync(out.fileno())
        before = target.stat()
        if os.geteuid() == 0:
            os.chown(temporary, before.st_uid, before.st_gid)
        os.chmod(temporary, stat.S_IMODE(before.st_mode))
        os.replace(temporary, target)
    except OSError as error:
        if temporary:
            Path(temporary).unlink(missing_ok=True)
        raise PlanError((f"{plan.path}: cannot be written: {error.strerror}",)) from error
    return True


def _validated(plan: PlanFile, tier: str, text: str) -> Plan:
    try:
        return parse_plan(json.loads(text) if plan.path.suffix.lower() == ".json" else yaml.safe_load(text))
    except InvalidPlanError as found:
        # The file is unchanged, so line numbers are valid, except inside the new curve.
        place = path_text(("tiers", tier, CURVE))
        lines = {path: line for path, line in plan.document.lines.items() if not path.startswith(place)}
        problems = replace(plan.document, lines=lines).located(found.problems)
        raise PlanError((f"{plan.path}: is no valid plan, and nothing was written", *problems)) from None


def _as_json(plan: PlanFile, tier: str, curve: BenchmarkCurve) -> str:
    data = copy.deepcopy(plan.document.data)
    data["tiers"][tier][CURVE] = curve_data(curve)
    found = re.match(r"\{(\r?\n([ \t]+))?", plan.text.lstrip())
    indent = found[2] if found else None
    text = json.dumps(data, indent=indent, ensure_ascii=plan.text.isascii(), allow_nan=False)
    end = plan.text[len(plan.text.rstrip()) :]
    return text.replace("\n", _line_end(plan.text)) + end


def curve_data(curve: BenchmarkCurve) -> dict[str, Any]:
    """Return the curve for JSON without fields that were not measured."""
    whole = curve.model_dump(mode="json", exclude_none=True)
    points = [
        {name: value for name, value in point.items() if (name, value) != ("censored", False)}
        for point in whole["points"]
    ]
    return {**whole, "points": points}


def _as_yaml(
    plan: PlanFile, tier: str, curve: BenchmarkCurve, head: Sequence[str], notes: Sequence[Sequence[str]]
) -> tuple[str, tuple[str, ...]]:
    """Return the new text, and the comments in the replaced piece of the old text."""
    root = yaml.compose(plan.text, yaml.SafeLoader)
    _, tiers = _entry(plan, root, "tiers", "the plan")
    name, mapping = _entry(plan, tiers, tier, "tiers")
    place = f"tiers.{tier}"
    if mapping.start_mark.index < name.end_mark.index:
        raise _unsafe(plan, place, "is written elsewhere in the file and only referred to here")
    if not isinstance(mapping, yaml.MappingNode) or mapping.flow_style:
        raise _unsafe(plan, place, "is written in braces")
    margin = mapping.value[0][0].start_mark.column
    layout = YamlIndentation(
        margin=margin, step=max(margin - name.start_mark.column, 1), lists_indented=_lists_indented(plan.text)
    )
    block = _line_end(plan.text).join(curve_lines(curve, layout, head=head, notes=notes))
    keys: list[Any] = [key for key, _ in mapping.value]
    for at, following in pairwise([*keys, None]):
        if at is not None and at.value == CURVE:
            limit = following.start_mark.index if following is not None else mapping.end_mark.index
            end = _end(plan, place, at.end_mark.index, limit)
            start = at.start_mark.index
            return plan.text[:start] + block + plan.text[end:], _comments(plan.text, start, end)
    region = slice(mapping.start_mark.index, mapping.end_mark.index)
    placeholder = re.compile(rf"^ {{{margin}}}# curve:[^\r\n]*", re.MULTILINE).search(plan.text[region])
    if placeholder is not None:
        # The line that `init` and `plan init` leave for it.
        start, end = (region.start + place for place in placeholder.span())
        return plan.text[:start] + " " * margin + block + plan.text[end:], ()
    end = _end(plan, place, keys[-1].end_mark.index, mapping.end_mark.index)
    # Comments below the last key that are indented deeper belong to it: they may be its keys for later.
    deeper = re.compile(rf"(\r?\n {{{margin + 1},}}#[^\r\n]*)*").match(plan.text, end)
    end = deeper.end() if deeper is not None else end
    return plan.text[:end] + _line_end(plan.text) + " " * margin + block + plan.text[end:], ()


def _entry(plan: PlanFile, node: Any, name: str, place: str) -> tuple[Any, Any]:
    """Return the key and value nodes of an entry."""
    found = [pair for pair in node.value if pair[0].value == name] if isinstance(node, yaml.MappingNode) else []
    if len(found) != 1:
        raise _unsafe(plan, place, f"does not hold {name} itself: it comes from another place of the file")
    return found[0]  # type: ignore[no-any-return]


def _end(plan: PlanFile, place: str, start: int, limit: int) -> int:
    """Return the end of the last line of the value that begins after `start`, including its comment.

    The parser's end of a mapping lies behind comments and empty lines that belong to the next key.
    """
    text = plan.text
    # After the colon of the key.
    end = text.find(":", start) + 1 or start
    events: Iterator[Any] = yaml.parse(text, yaml.SafeLoader)
    for event in events:
        first, last = event.start_mark.index, event.end_mark.index
        closes = isinstance(event, yaml.CollectionEndEvent) and last > first
        if start <= first < limit and (closes or isinstance(event, yaml.ScalarEvent | yaml.AliasEvent)):
            end = max(end, last)
    end = len(text[:end].rstrip())
    rest = re.compile(r"[^\r\n]*").match(text, end)
    assert rest is not None
    if rest[0].strip() and not re.match(r"[ \t]+#", rest[0]):
        raise _unsafe(plan, place, "shares a line with something else")
    return rest.end()


def _lists_indented(text: str) -> bool:
    """Return whether lists are indented under their key. Return True if the file has no list."""
    tokens = list(yaml.scan(text, yaml.SafeLoader))
    entries = any(isinstance(token, yaml.BlockEntryToken) for token in tokens)
    return not entries or any(isinstance(token, yaml.BlockSequenceStartToken) for token in tokens)


def _same_but_curve(plan: PlanFile, tier: str, curve: BenchmarkCurve, text: str) -> None:
    """Check that the parsed text has that curve in that tier and is otherwise unchanged."""
    try:
        after, before = _unshared(yaml.safe_load(text)), _unshared(plan.document.data)
        found = BenchmarkCurve.model_validate(after["tiers"][tier].pop(CURVE))
    except (yaml.YAMLError, KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise _unsafe(plan, f"tiers.{tier}", "refers to other parts of the file, or they to it") from error
    before["tiers"][tier].pop(CURVE, None)
    if after != before or found != curve:
        raise _unsafe(plan, f"tiers.{tier}", "shares parts with other places of the file")


def _unshared(part: Any) -> Any:
    """Copy the values without shared anchors, so that a change does not appear elsewhere."""
    if isinstance(part, dict):
        return {key: _unshared(value) for key, value in part.items()}
    return [_unshared(value) for value in part] if isinstance(part, list) else part


def _unsafe(plan: PlanFile, place: str, why: str) -> PlanError:
    return PlanError((f"{plan.path}: {place} {why}, so the text cannot be edited safely; {BY_HAND}",))


def _comments(text: str, start: int, end: int) -> tuple[str, ...]:
    """Return the comments between two positions, including trailing ones. Text between tokens is blank or a comment."""
    found: list[str] = []
    last = start
    for token in yaml.scan(text, yaml.SafeLoader):
        between = text[last : min(token.start_mark.index, end)]
        found += [line.strip().lstrip("# ") for line in between.splitlines() if line.strip().startswith("#")]
        last = max(last, token.end_mark.index)
    return tuple(found)


def _line_end(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"
