"""Limits of prose for every result of a test of a rule: its sentence with the claim, and its details."""

from collections.abc import Callable

import pytest
from rule_cases import result_faults

from rules.verdicts.context import RuleContext
from rules.verdicts.verdict import RuleResult


@pytest.fixture(autouse=True)
def results_keep_the_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check each verdict and each unknown where it is made."""

    def checked(make: Callable[..., RuleResult]) -> Callable[..., RuleResult]:
        def check(*args: object, **more: object) -> RuleResult:
            result = make(*args, **more)
            assert not result_faults(result)
            return result

        return check

    for name in ("verdict", "unknown"):
        monkeypatch.setattr(RuleContext, name, checked(getattr(RuleContext, name)))
