"""Editor that replaces the lines of a curve in a plan file and keeps all others byte for byte.

The edited text is parsed again and must differ in that curve
alone, else the file stays unchanged.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from agent.config.files import name_file, read_document
from agent.errors import ConfigError
from agent.files import write_files
from exporters.documents.plan_files import curve_lines
from rules.plan.schema import BenchmarkCurve, InvalidPlanError, Plan, parse_plan

Comments = tuple[Sequence[str], Sequence[Sequence[str]]]
"""Comments above a curve, and above each of its points."""


class PlanFile(NamedTuple):
    """Plan file as read, not validated: path, text and parsed document."""

    path: Path
    text: str
    data: Any


def open_plan(path: Path) -> PlanFile:
    """Read a plan file to edit. Raise ConfigError if it is unreadable or has no tiers."""
    data = read_document(path)
    if not isinstance(data, dict) or not isinstance(data.get("tiers") or None, dict):
        raise ConfigError((f"{path}: is no plan: it has no tiers",))
    return PlanFile(path=path, text=path.read_bytes().decode(), data=data)


def chosen_tier(plan: PlanFile, name: str | None) -> str:
    """Return the tier of this name, or the only one. Raise ConfigError with the names of the tiers."""
    tiers = plan.data["tiers"]
    names = ", ".join(map(str, tiers))
    if name is None and len(tiers) > 1:
        raise ConfigError((f"{plan.path}: has several tiers; say which with --tier: {names}",))
    tier = next(iter(tiers)) if name is None else name
    if not isinstance(tiers.get(tier), dict):
        raise ConfigError((f"{plan.path}: has no tier {tier}; it has {names}",))
    return str(tier)


def replace_curve(plan: PlanFile, tier: str, curve: BenchmarkCurve, comments: Comments = ((), ())) -> tuple[str, Plan]:
    """Return the text of the file with this curve in that tier, and the plan in it, without writing it.

    Raise ConfigError if the text cannot be edited safely or the result is not a valid plan.
    """
    wanted = _unshared(plan.data)
    wanted["tiers"][tier]["curve"] = curve.model_dump(mode="json", exclude_defaults=True)
    text, edited = "", None
    with suppress(yaml.YAMLError, LookupError, TypeError, ValueError, AttributeError, RecursionError):
        text = _with_lines(plan.text, tier, curve, comments)
        edited = _unshared(yaml.safe_load(text))
    if edited != wanted:
        why = f"tiers.{tier} is in braces, or shares parts with other places of the file, so it cannot be edited safely"
        hint = "paste the curve that `sizewatch plan import` prints without --into"
        raise ConfigError((f"{plan.path}: {why}; {hint}",))
    try:
        return text, parse_plan(wanted)
    except InvalidPlanError as error:
        problems = name_file(plan.path, error.problems)
        raise ConfigError((f"{plan.path}: is no valid plan, and nothing was written", *problems)) from None


def _unshared(data: Any) -> Any:
    """Copy parsed YAML without shared parts, so that a change to an anchor's parts does not appear elsewhere."""
    return json.loads(json.dumps(data, default=str))


def _with_lines(text: str, tier: str, curve: BenchmarkCurve, comments: Comments) -> str:
    """Return the text with the lines of this curve. Raise LookupError or AttributeError for other forms of a tier."""
    mapping: Any = yaml.compose(text, yaml.SafeLoader)
    for key in ("tiers", tier):
        name, mapping = {name.value: (name, value) for name, value in mapping.value}[key]
    keys = [key for key, _ in mapping.value]
    margin, lines = keys[0].start_mark.column, text.split("\n")
    starts = [*(key.start_mark.line for key in keys), mapping.end_mark.line]
    first, following = starts[-1], starts[-1]
    names = [key.value for key in keys]
    if "curve" in names:
        first, following = starts[names.index("curve") :][:2]
    # Later comments belong to the next key.
    while not (line := lines[following - 1]).strip() or re.match(rf" {{0,{margin}}}#", line):
        following -= 1
    # The line that `init` and `plan init` leave for a curve.
    placeholders = [n for n in range(starts[0], starts[-1]) if lines[n].startswith(" " * margin + "# curve:")]
    if "curve" not in names:
        first = following
        if placeholders:
            first, following = placeholders[0], placeholders[0] + 1
    inner = margin + max(margin - name.start_mark.column, 1)
    top, *block = curve_lines(curve, inner, head=comments[0], notes=comments[1])
    return "\n".join([*lines[:first], " " * margin + top, *block, *lines[following:]])


def write(plan: PlanFile, text: str) -> bool:
    """Replace the file whole or not at all, and return whether it changed. Write to the target of a link.

    The permissions stay; as root the owner stays too. Raise ConfigError if the folder or file is not writable.
    """
    if text == plan.text:
        return False
    target = plan.path.resolve()
    try:
        before = target.stat()
        write_files({target: text}, stat.S_IMODE(before.st_mode))
        # The umask may have taken rights.
        target.chmod(stat.S_IMODE(before.st_mode))
        if os.geteuid() == 0:
            os.chown(target, before.st_uid, before.st_gid)
    except OSError as error:
        raise ConfigError((f"{plan.path}: cannot be written: {error.strerror}",)) from error
    return True
