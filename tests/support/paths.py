"""Places of the checkout that tests read."""

from pathlib import Path

SUPPORT = Path(__file__).resolve().parent
TESTS = SUPPORT.parent
ROOT = TESTS.parent

SHARED = ROOT.parent / "shared"
"""Data from public sources beside the checkout; tests of it are skipped where it is absent."""
