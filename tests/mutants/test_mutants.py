"""Rows of mutants.toml fit the code. `make mutants` runs them."""

import tomllib
from collections import Counter
from pathlib import Path

import pytest
from paths import ROOT
from run_mutants import Mutant, apply_mutant, read_mutants, run_tests

MUTANTS = read_mutants()


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_fits_its_file_once_and_compiles(mutant: Mutant) -> None:
    text = mutant.mutate(ROOT)
    if mutant.file.endswith(".toml"):
        assert tomllib.loads(text) != tomllib.loads((ROOT / mutant.file).read_text())
    else:
        compile(text, mutant.file, "exec")
    assert mutant.file.startswith(("agent/", "exporters/", "forecast/", "rules/"))
    assert mutant.after != mutant.before
    assert mutant.tests
    for test in mutant.tests:
        assert (ROOT / test.partition("::")[0]).exists(), test


def test_each_mutant_has_its_own_name_and_none_left_the_list() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 200
    assert max(Counter((mutant.file, mutant.table, mutant.before) for mutant in MUTANTS).values()) == 1


TESTS = """
import pytest
from rules.sums import double

@pytest.fixture
def broken():
    return double("no number")["no key"]

def test_double():
    assert double(2) == 4

def test_sign():
    assert double(1) > 0

def test_fixture(broken):
    pass
"""


@pytest.mark.parametrize(
    ("after", "tests", "expected"),
    [
        ("return 2 * one", "test_double", ("passed", "")),
        ("return 3 * one", "test_double", ("failed", "tests/rules/test_sums.py::test_double")),
        ("return 3 * one", "test_sign", ("passed", "")),
        ("return one / 0", "test_sign", ("failed", "tests/rules/test_sums.py::test_sign")),
        ("return 2 *", "test_double", ("error", "ERROR")),
        ("return 3 * one", "test_fixture", ("error", "ERROR")),
    ],
)
def test_only_a_test_that_fails_catches_a_mutant(
    tmp_path: Path, after: str, tests: str, expected: tuple[str, str]
) -> None:
    files = {
        "pytest.ini": "[pytest]\n",
        "conftest.py": "from hypothesis import settings\n\nsettings.register_profile('ci')\n",
        "rules/__init__.py": "",
        "rules/sums.py": "def double(one):\n    return one + one\n",
        "tests/rules/test_sums.py": TESTS,
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    mutant = Mutant(
        name="m", file="rules/sums.py", before="return one + one", after=after, why="", tests=("tests/rules",)
    )
    with apply_mutant(tmp_path, mutant):
        state, text = run_tests(tmp_path, mutant.tests, f"-k{tests}")
    assert state == expected[0]
    assert expected[1] in text
    assert "one + one" in (tmp_path / mutant.file).read_text()
