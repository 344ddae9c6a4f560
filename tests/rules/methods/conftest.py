"""Limits of prose for every result of a test of a rule: its sentence with the claim, and its details."""

from typing import Any

import pytest
from rule_cases import result_faults

from rules.verdicts.context import RuleContext
from rules.verdicts.verdict import RuleResult


@pytest.fixture(autouse=True)
def results_keep_the_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check each verdict and each unknown where it is made."""
    for name in ("verdict", "unknown"):
        original = getattr(RuleContext, name)

        def check(*args: object, original: Any = original, **more: object) -> RuleResult:
            result: RuleResult = original(*args, **more)
            assert not result_faults(result)
            return result

        monkeypatch.setattr(RuleContext, name, check)
