"""The version, from the installed package."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

try:
    VERSION = version("sizewatch")
except PackageNotFoundError:
    VERSION = "unknown (not installed)"
