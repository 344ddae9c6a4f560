"""The threat model against the tests: each that docs/security.md names exists; files that people give cannot unfold without end."""

import re
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from paths import ROOT

from agent.benchmarks.formats import read_all_results
from agent.config.files import load_plan
from agent.config.load import load as load_config
from agent.errors import SizewatchError
from agent.sources.recording import load as load_recording

PAGE = (ROOT / "docs" / "security.md").read_text("utf-8")


def test_every_test_that_the_page_names_exists() -> None:
    named = set(re.findall(r"`(test_\w+)`", PAGE))
    assert len(named) > 40
    paths = ROOT.glob("tests/**/test_*.py")
    known = {name for path in paths for name in re.findall(r"^def (test_\w+)", path.read_text("utf-8"), re.MULTILINE)}
    assert named - known == set()


BILLION = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{new}: &{new} [{', '.join([f'*{old}'] * 9)}]\n" for old, new in zip("abcdefghi", "bcdefghij", strict=True)
)


def _folder(path: Path) -> object:
    (path.parent / "recording.yaml").write_text(f"{BILLION}targets: *j\n")
    return load_recording(path.parent)


READERS: dict[str, Callable[[Path], object]] = {
    "plan": load_plan,
    "configuration": load_config,
    "recording": _folder,
    "benchmark": lambda path: read_all_results((path,)),
}


@pytest.mark.parametrize("what", READERS)
@pytest.mark.parametrize(
    "end", ["", "schema: 1\ntiers: *j\n", "targets: *j\n", "thresholds: {t: *j}\n", "self: &s [*s]\n"]
)
def test_billion_laughs_is_refused_cheaply(tmp_path: Path, what: str, end: str) -> None:
    path = tmp_path / "file.yaml"
    path.write_text(BILLION + end)
    tracemalloc.start()
    try:
        with pytest.raises(SizewatchError) as caught:
            READERS[what](path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # A benchmark's file may be that large, so that much is set aside for reading it.
    assert peak < (320 if what == "benchmark" else 64) * 2**20
    assert len(str(caught.value)) < 100_000
