"""Types of the values of a configuration: names, durations, files and lists."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, WithJsonSchema

from agent.durations import PATTERN, duration_text, parse_duration
from exporters.render.safe_text import one_line
from rules.plan.validation import validation_error

DURATION = "duration"
"""Title of a duration in the JSON Schema."""

_VARIABLE = re.compile(r"\$\{(\w+)\}")


def full_match(pattern: str, problem: str) -> BeforeValidator:
    """Return a validator of text. Its problem quotes no value: a secret may stand there by mistake."""

    def read(value: object) -> object:
        if not isinstance(value, str) or not re.fullmatch(pattern, value):
            raise validation_error(problem)
        return value

    return BeforeValidator(read)


def names_or_numbers(pattern: str, problem: str, or_text: str | None = None) -> BeforeValidator:
    """Return a validator of `or_text`, or of a list of names and whole numbers that match the pattern."""

    def read(value: Any) -> object:
        if value == or_text:
            return value
        is_list = isinstance(value, list | tuple) and value
        if not is_list or not all(type(entry) in (str, int) and re.fullmatch(pattern, str(entry)) for entry in value):
            raise validation_error(problem)
        return tuple(value)

    return BeforeValidator(read)


def duration_range(low: float, high: float) -> BeforeValidator:
    """Return a validator of durations from `low` to `high` seconds. Code gives seconds."""

    def read(value: object, info: ValidationInfo) -> float:
        if info.context is None and isinstance(value, float):
            return value
        try:
            seconds = parse_duration(str(value))
        except ValueError as error:
            raise validation_error(str(error)) from None
        if not low <= seconds <= high:
            raise validation_error(f"must be from {duration_text(low)} to {duration_text(high)}, not {value}")
        return seconds

    return BeforeValidator(read)


def expand(text: str, environment: Mapping[str, str]) -> str:
    for name in _VARIABLE.findall(text):
        if not environment.get(name):
            raise validation_error(f"names the environment variable {name}, which is not set")
    return _VARIABLE.sub(lambda match: environment[match[1]], text)


def _name(value: str) -> str:
    if value != one_line(value) or value != value.strip():
        raise validation_error("must be one line without control characters and without blanks around it")
    return value


def _file(value: str, info: ValidationInfo, expands: bool) -> str:
    if "\0" in value:
        raise validation_error("must be the name of a file or folder")
    if info.context is None:
        return value
    if not expands and _VARIABLE.search(value):
        raise validation_error("holds ${...}, which is replaced in the keys that end in _file only")
    return str(info.context["folder"] / expand(value, info.context["environment"]))


T = TypeVar("T")
Entries = Annotated[tuple[T, ...], Field(strict=False)]
"""List in a file."""
Text = Annotated[str, Field(min_length=1)]
Name = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_name)]
"""Display name on pages, in labels and in logs."""
Seconds = Annotated[float, WithJsonSchema({"type": "string", "title": DURATION, "pattern": PATTERN})]
"""Seconds, written as a duration. Add `duration_range`."""
Timeout = Annotated[Seconds, duration_range(0.1, 60.0)]
FileName = Annotated[str, Field(min_length=1, title="file"), AfterValidator(partial(_file, expands=False))]
ExpandedFile = Annotated[str, Field(min_length=1, title="file"), AfterValidator(partial(_file, expands=True))]
"""File name that may hold ${NAME}, such as systemd's ${CREDENTIALS_DIRECTORY}."""
