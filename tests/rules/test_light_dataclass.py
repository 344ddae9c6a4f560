"""Records that are frozen for the type checker only."""

from __future__ import annotations

from dataclasses import field, replace

import pytest

from rules.light_dataclass import light_dataclass
from rules.verdicts.verdict import Subject


def test_a_record_is_equal_and_hashed_by_its_fields_and_has_no_others() -> None:
    one, same = Subject(tier="a", replica="r"), Subject(tier="a", replica="r")
    assert one == same
    assert {one: 1}[same] == 1
    assert replace(one, replica=None) != one
    with pytest.raises(AttributeError):
        one.other = 1  # type: ignore[attr-defined]


def test_a_record_describes_itself_as_a_dataclass_does() -> None:
    @light_dataclass(frozen=True, slots=True)
    class Login:
        name: str
        password: str = field(repr=False)

    assert repr(Login("a", "b")) == f"{Login.__qualname__}(name='a')"


def test_only_records_that_are_frozen_for_the_type_checker_are_made() -> None:
    with pytest.raises(AssertionError):
        light_dataclass(frozen=False, slots=True)
