"""Programs of the machine that some tests need. Missing ones are skipped loudly, and never in CI."""

from __future__ import annotations

import os
import shutil

import pytest

PACKAGES = {
    "promtool": "prometheus",
    "prometheus": "prometheus",
    "victoria-metrics": "victoria-metrics",
    "amtool": "prometheus-alertmanager",
    "prometheus-alertmanager": "prometheus-alertmanager",
    "systemd-analyze": "systemd",
    "chromium": "chromium",
}
"""Debian's packages that hold them; `make tools` installs what is missing."""


def tool(name: str) -> str:
    """Where the program is."""
    found = shutil.which(name)
    if found is not None:
        return found
    missing = f"{name} is not here (Debian package {PACKAGES[name]}, `make tools`): what it checks was NOT checked"
    if os.environ.get("CI"):
        pytest.fail(missing)
    pytest.skip(missing)
