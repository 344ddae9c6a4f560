"""Everything that fuzzing ever found, again: each kept input against what must hold of it, memory included.

A found input is kept as tests/fuzz_corpus/TARGET/what-it-was; `benchmarks/fuzz.py --reproduce FILE` says what is wrong with one.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import fuzz_answers
import pytest
from fuzz_target import accepted, case
from fuzz_targets import TARGETS
from paths import ROOT, TESTS

sys.path.append(str(ROOT / "benchmarks"))

import fuzz
import fuzz_mutating
import fuzz_reached

CORPUS = TESTS / "fuzz_corpus"
KEPT = sorted(CORPUS.glob("*/*"))


@pytest.fixture(scope="module", autouse=True)
def _server_ends() -> Iterator[None]:
    yield
    fuzz_answers.close()


@pytest.mark.parametrize("path", KEPT, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_what_was_found_once_is_found_no_more(path: Path) -> None:
    assert case(TARGETS[path.parent.name], path.read_bytes(), memory=True) == ""


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_every_target_takes_its_own_seeds_and_some_damage(name: str) -> None:
    import random

    chance, target = random.Random(name), TARGETS[name]
    seeds = [one for one in target.seeds() if len(one) < 16_384][:4]
    assert seeds, "a target without a sound input"
    assert [case(target, data) for data in seeds] == [""] * len(seeds)
    for _ in range(12):
        data = fuzz_mutating.mutated(chance, chance.choice(seeds), chance.choice(seeds), target.words, 16_384)
        assert case(target, data) == "", data[:300]


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_every_target_has_inputs_that_are_read_to_their_end(name: str) -> None:
    """The configuration once had none: its seeds held keys that were gone, and what comes after the keys was never reached."""
    target = TARGETS[name]
    assert any(accepted(target, data) for data in target.seeds())


def test_the_kept_inputs_belong_to_targets_and_are_small() -> None:
    assert {path.parent.name for path in KEPT} <= TARGETS.keys()
    assert max(path.stat().st_size for path in KEPT) <= 16_384


def test_a_short_run_is_guided_by_lines_and_says_why() -> None:
    engine, why = fuzz.chosen("auto", 2.0)
    assert engine == "lines"
    assert "Atheris" in why
    assert fuzz.chosen("atheris", 2.0) == ("atheris", "")


def test_every_target_names_the_modules_that_read_for_it_and_what_is_reached_of_one_can_be_told() -> None:
    for target in TARGETS.values():
        assert all(fuzz_reached.lines_of(module) for module in target.reads), target.name
    found, missing = fuzz_reached.reached("lease", TARGETS["lease"].seeds(), seconds=10.0)
    ((hit, lines),) = found.values()
    assert lines == hit + len(missing)
    assert hit / lines > 0.5
