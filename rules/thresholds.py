"""Thresholds of the catalogue with their sources, and rows that hold them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from pydantic import ConfigDict


@dataclass(frozen=True, slots=True)
class Threshold:
    """Number with its unit and its source."""

    value: float
    unit: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogueRow:
    """Named thresholds. A tier's configuration may override them."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    name: str
    thresholds: Mapping[str, Threshold]

    def limit(self, name: str, overrides: Mapping[str, Mapping[str, float]]) -> float:
        """Return a threshold's value, or the tier's override."""
        return overrides.get(self.name, {}).get(name, self.thresholds[name].value)
