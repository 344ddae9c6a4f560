"""Sections of a configuration file as pydantic models, and their problems: one sentence each, beginning with the path.

Validation opens no file. The validation context of a file holds `folder`, which its relative files are in,
`environment` for ${NAME} in file and object names, and `plan`. Without a context, code sets a section by the names of
its fields. No problem quotes text of the file that may be a secret. Types of values are in `agent.config.values`.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import Any, Self, TypeGuard

from pydantic import BaseModel, ConfigDict, ValidationError, ValidationInfo, model_validator

from agent.errors import ConfigError
from rules.plan import validation
from rules.plan.schema import Plan
from rules.plan.validation import Contradictions, refuse
from rules.problems import find_close_name

MOST_COMPARED = 100
"""Maximum number of known names that an unknown name is compared with, and that its message names."""


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
    problems = validation.problems_of(error, model)
    whole = ("plan: must be a mapping", "configuration: must be a mapping")
    key = ("is not a key of a plan", "is not a key of the configuration")
    return tuple(printable(problem).replace(*whole, 1).replace(*key, 1) for problem in problems)


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


def printable(text: str) -> str:
    """Escape lone surrogates, which cannot be encoded."""
    return text.encode(errors="backslashreplace").decode()


def is_text(value: object) -> TypeGuard[str]:
    """Return whether the value is valid text; YAML and JSON can hold lone surrogates ("\\ud800")."""
    return isinstance(value, str) and value == printable(value) and "\0" not in value
