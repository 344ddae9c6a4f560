"""What the doctor says: one finding a line, and the text of them all.

Owns the record, its levels and the layout. What is looked at is `agent.doctor.run`'s.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class CheckLevel(StrEnum):
    OK = "ok"
    WARN = "warn"
    """It runs, but something is lost or risky."""
    FAIL = "fail"
    """It does not do what it was set up for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """One line. `check` says what was looked at, `advice` what to do; no advice where all is well."""

    check: str
    level: CheckLevel
    text: str
    advice: str = ""


def ok(check: str, text: str) -> CheckResult:
    return CheckResult(check=check, level=CheckLevel.OK, text=text)


def warn(check: str, text: str, advice: str) -> CheckResult:
    return CheckResult(check=check, level=CheckLevel.WARN, text=text, advice=advice)


def fail(check: str, text: str, advice: str) -> CheckResult:
    return CheckResult(check=check, level=CheckLevel.FAIL, text=text, advice=advice)


def exit_code(findings: Sequence[CheckResult]) -> int:
    """0 where nothing fails, else 1."""
    return int(any(finding.level is CheckLevel.FAIL for finding in findings))


def format_text(findings: Sequence[CheckResult]) -> str:
    """A line a finding, its advice below it, and one line for the whole; without a final line end."""
    width = max((len(finding.check) for finding in findings), default=0)
    lines = []
    for finding in findings:
        lines.append(f"{finding.level:<4}  {finding.check:<{width}}  {finding.text}")
        if finding.advice:
            lines.append(f"{'':<4}  {'':<{width}}  -> {finding.advice}")
    failing = sum(finding.level is CheckLevel.FAIL for finding in findings)
    warnings = sum(finding.level is CheckLevel.WARN for finding in findings)
    verdict = f"not sound: {count(failing, 'failing line')}" if failing else "sound"
    lines.append(f"{verdict}, {count(warnings, 'warning')}" if warnings or failing else verdict)
    return "\n".join(lines)


def count(number: int, one: str, many: str = "") -> str:
    """`1 target`, `3 targets`."""
    return f"{number} {one if number == 1 else many or one + 's'}"
