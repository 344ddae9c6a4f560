"""Sections of a configuration file as pydantic models, and their problems: one sentence each, beginning with the path.

Validation opens no file. The validation context of a file holds `folder`, which its relative files are in,
`environment` for ${NAME} in file and object names, and `plan`. Without a context, code sets a section by the names of
its fields. No problem quotes text of the file that may be a secret.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import Annotated, Any, Self, TypeGuard

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import PydanticCustomError

from agent.durations import EXPECTED, PATTERN, duration_text, parse_duration
from agent.errors import ConfigError
from exporters.render.text import one_line
from rules.plan.schema import Plan
from rules.plan.validation import Path, path_text, problem_text
from rules.problems import MOST_PROBLEMS, cap_problems, find_close_name

MOST_COMPARED = 100
"""Maximum number of known names that an unknown name is compared with, and that its message names."""

Contradictions = Iterator[tuple[Path, str]]
"""Path within a section, and text, of each problem that several valid values have together."""

_PROBLEMS = "problems"

_NAMES_ITS_VALUE = ("literal_error", "float_type", "int_type", "bool_type", "extra_forbidden")
# `rules.plan.validation` names the type of an unknown error; nothing more of a file's text may be shown.
_TEXT: Any = type("text", (), {})()

_VARIABLE = re.compile(r"\$\{(\w+)\}")


class ConfigSection(BaseModel):
    """Section without unknown keys or conversions, immutable. The key of a field `x_seconds` is `x`."""

    model_config = ConfigDict(
        strict=True,
        extra="forbid",
        frozen=True,
        allow_inf_nan=False,
        hide_input_in_errors=True,
        # Most sections are only parts of another section, and need no validator of their own: 0.2 MiB.
        defer_build=True,
        validate_by_name=True,
        alias_generator=lambda name: name.removesuffix("_seconds"),
    )

    def contradictions(self, plan: Plan | None) -> Contradictions:
        """Yield the problems that valid values of this section have together, or with the plan."""
        yield from ()

    @model_validator(mode="after")
    def _refuse_contradictions(self, info: ValidationInfo) -> Self:
        refuse(self.contradictions((info.context or {}).get("plan")))
        return self

    @classmethod
    def read(cls, data: object, context: Mapping[str, Any]) -> Self:
        """Return the section in the data of a file. Raise ConfigError with every problem, in the order of its keys."""
        try:
            return cls.model_validate(data, context=context, by_alias=True, by_name=False)
        except ValidationError as error:
            raise ConfigError(problems_of(error, cls)) from None


def problems_of(error: ValidationError, model: type[BaseModel]) -> tuple[str, ...]:
    """Return every problem in the order of the schema's keys."""
    entries = error.errors(include_url=False)
    return cap_problems(printable(text) for entry in entries for text in _problem_texts(entry, model))


def _problem_texts(entry: Any, model: type[BaseModel]) -> Iterator[str]:
    path, kind, value = tuple(entry["loc"]), entry["type"], entry["input"]
    if kind == _PROBLEMS:
        for place, text in entry["ctx"]["problems"]:
            yield f"{path_text((*path, *place))}: {text}"
    elif not path:
        yield "configuration: must be a mapping of keys to values"
    else:
        shown = _TEXT if isinstance(value, str) and kind not in _NAMES_ITS_VALUE else value
        text = problem_text({**entry, "input": shown}, model)
        yield text.replace("is not a key of a plan", "is not a key of the configuration", 1)


def validation_error(text: str) -> PydanticCustomError:
    """Return the error to raise in a validator. Its path is added in front."""
    return PydanticCustomError(_PROBLEMS, _PROBLEMS, {"problems": (((), text),)})


def refuse(problems: Contradictions) -> None:
    """Raise one validation error for all problems, none without any."""
    # More than is reported is not worth its memory: a file of the wrong type has thousands.
    if first := tuple(islice(problems, MOST_PROBLEMS + 1)):
        raise PydanticCustomError(_PROBLEMS, _PROBLEMS, {"problems": first})


def unknown_key_text(name: str, known: tuple[str, ...], what: str) -> str:
    """Return the problem text for an unknown `name`, with the closest or all known names."""
    known = known[:MOST_COMPARED]
    close = find_close_name(name, known)
    return f"is not {what}; " + (f"did you mean {close}?" if close else f"known: {', '.join(known)}")


def repeats(names: Iterable[Hashable]) -> Iterator[tuple[int, int]]:
    """Yield the place of each name that was there before, and the place of its first."""
    first: dict[Hashable, int] = {}
    for place, name in enumerate(names):
        if first.setdefault(name, place) != place:
            yield place, first[name]


def full_match(pattern: str, problem: str) -> BeforeValidator:
    """Return a validator of text. Its problem quotes no value: a secret may stand there by mistake."""

    def read(value: object) -> object:
        if not isinstance(value, str) or not re.fullmatch(pattern, value):
            raise validation_error(problem)
        return value

    return BeforeValidator(read)


def printable(text: str) -> str:
    """Escape lone surrogates, which cannot be encoded."""
    return text.encode(errors="backslashreplace").decode()


def is_text(value: object) -> TypeGuard[str]:
    """Return whether the value is valid text; YAML and JSON can hold lone surrogates ("\\ud800")."""
    return isinstance(value, str) and value == printable(value) and "\0" not in value


Text = Annotated[str, Field(min_length=1)]


def _name(value: str) -> str:
    if value != one_line(value) or value != value.strip():
        raise validation_error("must be one line without control characters and without blanks around it")
    return value


Name = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_name)]
"""Display name on pages, in labels and in logs."""


def duration_range(low: float, high: float) -> BeforeValidator:
    """Return a validator of durations from `low` to `high` seconds. Code gives seconds."""

    def read(value: object, info: ValidationInfo) -> float:
        if info.context is None and isinstance(value, float):
            return value
        if not isinstance(value, str):
            raise validation_error(f"must be {EXPECTED}" + (f", not {value}" if type(value) in (int, float) else ""))
        try:
            seconds = parse_duration(value)
        except ValueError as error:
            raise validation_error(str(error)) from None
        if not low <= seconds <= high:
            raise validation_error(f"must be from {duration_text(low)} to {duration_text(high)}, not {value}")
        return seconds

    return BeforeValidator(read)


DURATION = "duration"
"""Title of a duration in the JSON Schema."""
Seconds = Annotated[float, WithJsonSchema({"type": "string", "title": DURATION, "pattern": PATTERN})]
"""Seconds, written as a duration. Add `duration_range`."""
Timeout = Annotated[Seconds, duration_range(0.1, 60.0)]


def _file(value: object, info: ValidationInfo, expands: bool) -> str:
    if not is_text(value) or not value:
        raise validation_error("must be the name of a file or folder")
    if info.context is None:
        return value
    environment: Mapping[str, str] = info.context["environment"]
    for name in _VARIABLE.findall(value):
        if not expands:
            raise validation_error("holds ${...}, which is replaced in the keys that end in _file only")
        if name not in environment:
            raise validation_error(f"names the environment variable {name}, which is not set")
    return str(info.context["folder"] / _VARIABLE.sub(lambda match: environment[match[1]], value))


_FILE = WithJsonSchema({"type": "string", "title": "file", "minLength": 1})
FileName = Annotated[str, BeforeValidator(partial(_file, expands=False)), _FILE]
EnvironmentFileName = Annotated[str, BeforeValidator(partial(_file, expands=True)), _FILE]
"""File name that may hold ${NAME}, such as systemd's ${CREDENTIALS_DIRECTORY}."""
