"""Sections of a configuration file as pydantic models. Types of values are in `agent.config.values`.

Validation opens no file. The validation context of a file holds `folder` of its relative files, and `environment` for
${NAME} in file and object names. Without a context, code sets a section by the names of its fields. A problem begins
with its path, and quotes no text of the file that may be a secret.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from agent.errors import ConfigError
from rules.plan.validation import Contradictions, problems_of, refuse


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

    def _contradictions(self) -> Contradictions:
        """Yield the problems that valid values of this section have together."""
        yield from ()

    @model_validator(mode="after")
    def _refuse_contradictions(self) -> Self:
        refuse(self._contradictions())
        return self

    @classmethod
    def read(cls, data: object, context: Mapping[str, Any] | None = None) -> Self:
        """Return the section in the data of a file, or in fields by name. Raise ConfigError with every problem."""
        try:
            return cls.model_validate(data, context=context, by_alias=True, by_name=context is None)
        except ValidationError as error:
            raise ConfigError(problems_of(error, cls)) from None


def list_values(part: object, place: str = "") -> Iterator[tuple[str, object]]:
    """Yield path and value of everything in a section, the section itself first."""
    yield place, part
    entries: Iterable[tuple[str, object]] = ()
    if isinstance(part, BaseModel | Mapping):
        fields = part.items() if isinstance(part, Mapping) else part
        entries = ((f"{place}.{name}".removeprefix("."), value) for name, value in fields)
    elif isinstance(part, list | tuple):
        entries = ((f"{place}[{number}]", value) for number, value in enumerate(part))
    for inner, value in entries:
        yield from list_values(value, inner)


def repeats(names: Iterable[Hashable]) -> Iterator[tuple[int, int]]:
    """Yield the place of each name that was there before, and the place of its first."""
    first: dict[Hashable, int] = {}
    for place, name in enumerate(names):
        if first.setdefault(name, place) != place:
            yield place, first[name]
