"""What the product reads and judges is what the golden files hold (`make goldens`), and the whole promise in short."""

import sys
from pathlib import Path

import goldens
import pytest
from nvml_fixture import StandIn, nvml_library, nvml_state  # noqa: F401 - fixtures
from paths import ROOT
from tools import tool

sys.path.append(str(ROOT / "benchmarks"))
from acceptance import Acceptance

QUICK = [golden for golden in goldens.all_goldens() if not golden.slow]


@pytest.mark.parametrize("golden", QUICK, ids=lambda golden: golden.name)
def test_nothing_differs_from_the_golden_file(golden: goldens.Golden) -> None:
    found = goldens.differences(golden)
    if found is None:
        pytest.skip(f"../shared is absent: {golden.name} was not compared")
    assert found == [], "if it is meant, write it with `make goldens WRITE=1` and list the differences in the commit"


def test_every_golden_file_is_compared() -> None:
    """A file whose data is in ../shared is compared on machines that have it."""
    written = {str(path.relative_to(goldens.GOLDENS).with_suffix("")) for path in goldens.GOLDENS.rglob("*.json")}
    known = {golden.name for golden in goldens.all_goldens()}
    assert known <= written
    if goldens.SHARED.exists():
        assert written == known


@pytest.mark.server
@pytest.mark.slow
def test_promise_holds_in_short(tmp_path: Path, nvml: StandIn) -> None:
    for name in ("prometheus", "prometheus-alertmanager"):
        tool(name)
    table, is_fine = Acceptance(tmp_path, nvml, short=True).run()
    assert is_fine, table
