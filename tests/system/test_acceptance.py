"""The whole promise in short; `python benchmarks/acceptance.py` shows all of it."""

import sys
from pathlib import Path

import pytest
from nvml_fixture import StandIn, nvml_library, nvml_state  # noqa: F401 - fixtures
from paths import ROOT
from tools import tool

sys.path.append(str(ROOT / "benchmarks"))
from acceptance import Acceptance


@pytest.mark.server
@pytest.mark.slow
def test_promise_holds_in_short(tmp_path: Path, nvml: StandIn) -> None:
    for name in ("prometheus", "prometheus-alertmanager"):
        tool(name)
    table, is_fine = Acceptance(tmp_path, nvml, short=True).run()
    assert is_fine, table
