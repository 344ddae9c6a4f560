"""A table against pages: what it knows of them, which of its rows they have, and the same page as OpenMetrics."""

import re
import tomllib
from collections.abc import Iterable

from paths import TESTS

from rules.engines.coverage import FamilyUse
from rules.engines.registry import ENGINES, EngineTable, normalize_name, strip_wrapper_prefix
from rules.telemetry.readings import read_all, window_since_start
from rules.telemetry.signals import SignalValue
from rules.telemetry.snapshots import Snapshot

TABLES = {f"{engine.name}/{engine.generation}": engine for engine in ENGINES}

UNREAD = tomllib.loads((TESTS / "rules" / "unread_series.toml").read_text(encoding="utf-8"))
"""By table: why a family is not read, by the start of its name. A new family needs a row or a reason here."""


def why_unread(table: str, name: str) -> str:
    """The reason of the longest start of a name, "" where there is none."""
    if name.endswith("_created"):
        return "tells when its family began to count"
    for reasons in (UNREAD.get(table, {}), UNREAD["any page"]):
        if fitting := [start for start in reasons if name.startswith(start)]:
            return reasons[max(fitting, key=len)]
    return ""


def unexplained(engine: EngineTable, found: Iterable[FamilyUse]) -> list[str]:
    """Families of a page that the table has no row and the list no reason for."""
    plain = {use.name: strip_wrapper_prefix(normalize_name(use.name), engine) for use in found if not use.text}
    return [name for name, own in plain.items() if not why_unread(engine.label, own)]


def openmetrics(text: str) -> str:
    """The page as OpenMetrics spells it: a TYPE line names its counter without `_total`, `# EOF` ends it."""
    bare = re.sub(r"(?m)^(# (?!TYPE).*|\S+_created\{.*|# TYPE \S+_created .*)\n", "", text)
    return re.sub(r"(?m)^# TYPE (\S+)_total counter$", r"# TYPE \1 counter", bare) + "# EOF\n"


def signals(page: Snapshot) -> dict[str, SignalValue]:
    """Readings of all that a process counted since its start."""
    return dict(read_all(window_since_start(page)))


def with_value(text: str, series: str, value: object) -> str:
    """The page with another value in the one series whose line begins so."""
    changed, times = re.subn(rf"(?m)^({re.escape(series)}.*) \S+$", rf"\g<1> {value}", text)
    assert times == 1, f"{series}: {times} series"
    return changed


def without_lines(text: str, *parts: str) -> str:
    """The page without the lines that hold one of these."""
    return "".join(line for line in text.splitlines(keepends=True) if not any(part in line for part in parts))


def without(text: str, *names: str) -> str:
    """The page without the families of these names."""
    family = "|".join(re.escape(name) for name in names)
    return re.sub(rf"(?m)^(# TYPE )?({family})(_bucket|_sum|_count)?[ {{].*\n", "", text)
