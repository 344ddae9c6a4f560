"""`sizewatch check` after a change of the plan: what was seen under another plan is no failed scrape."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from report_samples import TIER
from test_whatif_command import configured, recent

from agent.cli import main


def check(capsys: pytest.CaptureFixture[str], config: str, *words: str) -> tuple[int, str]:
    code = main.main(["check", "-c", config, *words])
    return code, capsys.readouterr().out


def test_new_plan_waits_for_its_first_minute(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = configured(tmp_path, recent(24))
    assert check(capsys, config)[0] == 0
    changed: dict[str, Any] = {**TIER, "slo": {**TIER["slo"], "ttft_p99_seconds": 3.0}}
    (tmp_path / "plan.yaml").write_text(yaml.safe_dump({"schema": 1, "tiers": {"t": changed}}))
    code, text = check(capsys, config)
    assert code == 3
    assert text.startswith("t: new plan since ")
    assert "no minute under it is over" in text
    assert "scrape" not in text
    told = json.loads(check(capsys, config, "--format", "json")[1])
    assert [tier["answers"] for tier in told["tiers"]] == [[]]


def test_empty_history_is_no_failed_scrape(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text = check(capsys, configured(tmp_path, []))
    assert code == 3
    assert "its history has no minute of this time" in text
    assert "scrape" not in text
