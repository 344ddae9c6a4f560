"""Result of a check: record, levels and layout of the text output."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from rules.telemetry.wording import format_count


class CheckLevel(StrEnum):
    OK = "ok"
    WARN = "warn"
    """Data is lost, or a risk."""
    FAIL = "fail"
    """Not working as configured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """Result line. `advice` is empty for level ok. Without a `check` it is named after the row of its check."""

    check: str = ""
    level: CheckLevel
    text: str
    advice: str = ""


def ok(text: str) -> CheckResult:
    return CheckResult(level=CheckLevel.OK, text=text)


def warn(text: str, advice: str) -> CheckResult:
    return CheckResult(level=CheckLevel.WARN, text=text, advice=advice)


def fail(text: str, advice: str) -> CheckResult:
    return CheckResult(level=CheckLevel.FAIL, text=text, advice=advice)


def exit_code(findings: Sequence[CheckResult]) -> int:
    """Return 1 if a check failed, else 0."""
    return int(any(finding.level is CheckLevel.FAIL for finding in findings))


_FIRST = (CheckLevel.FAIL, CheckLevel.WARN, CheckLevel.OK)


def format_text(findings: Sequence[CheckResult]) -> str:
    """Return the results with their advice, failing ones first, and a summary; without a final line end."""
    width = max((len(finding.check) for finding in findings), default=0)
    lines = []
    for finding in sorted(findings, key=lambda finding: _FIRST.index(finding.level)):
        lines.append(f"{finding.level:<4}  {finding.check:<{width}}  {finding.text}")
        if finding.advice:
            lines.append(f"{'':<4}  {'':<{width}}  -> {finding.advice}")
    failing = [finding.check for finding in findings if finding.level is CheckLevel.FAIL]
    warnings = sum(finding.level is CheckLevel.WARN for finding in findings)
    names = ", ".join(dict.fromkeys(failing))
    verdict = "sound"
    if failing:
        verdict = f"not sound: {format_count(len(failing), 'failing line')} ({names})"
    lines.append(f"{verdict}, {format_count(warnings, 'warning')}" if warnings or failing else verdict)
    return "\n".join(lines)
