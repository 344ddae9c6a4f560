"""The page on scaling out says what the manifests hold."""

from __future__ import annotations

import re
from pathlib import Path

import yaml
from scaling_samples import CHAT, objects

from exporters.scaling_cronjob import LATEST_START_SECONDS, NOBODY
from exporters.scaling_formats import FORMATS
from exporters.scaling_keda import FAILURES
from exporters.scaling_objects import LONGEST_STABILISATION, TOLERATED

PAGE = (Path(__file__).parent.parent / "docs" / "scaling-out.md").read_text(encoding="utf-8")


def test_every_format_has_its_row() -> None:
    assert set(re.findall(r"--format (\w+)", PAGE)) == set(FORMATS)


def test_the_trigger_shown_is_the_one_that_is_written() -> None:
    (shown,) = yaml.safe_load(re.findall(r"```yaml\n(.*?)```", PAGE, flags=re.DOTALL)[0])
    assert shown == objects(CHAT, "keda")[0]["spec"]["triggers"][0]


def test_the_numbers_are_those_of_the_program() -> None:
    page = " ".join(PAGE.split())
    assert f"after {FAILURES} failed looks" in page
    assert f"From {TOLERATED} replicas on" in page
    assert f"as user {NOBODY}" in page
    assert LONGEST_STABILISATION == 3600
    assert "an hour at most" in page
    assert f"could not start for {LATEST_START_SECONDS // 60} minutes" in page
