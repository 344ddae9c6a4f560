"""Episodes and unknown spans as JSON text and back.

Owns the text and which kind of span it is. What an episode is belongs to `rules.episodes`; a new field there with a
default reads back from older texts, one without needs a new version of the file's format.
"""

from __future__ import annotations

import json
from dataclasses import asdict

from pydantic import TypeAdapter

from rules.episodes import Ended, Episode, UnknownSpan

EPISODE, UNKNOWN = "episode", "unknown"

_EPISODE = TypeAdapter(Episode)
_UNKNOWN = TypeAdapter(UnknownSpan)


def kind_of(span: Ended) -> str:
    """The word that tells the two kinds apart."""
    return EPISODE if isinstance(span, Episode) else UNKNOWN


def to_text(span: Ended) -> str:
    """The span as JSON; a bound of a reading may be infinite, which Python's JSON writes and reads as Infinity."""
    return json.dumps(asdict(span), separators=(",", ":"))


def episode(text: str) -> Episode:
    """The episode in a text. Raises ValueError where it holds none."""
    return _EPISODE.validate_python(json.loads(text))


def unknown_span(text: str) -> UnknownSpan:
    """The unknown span in a text. Raises ValueError where it holds none."""
    return _UNKNOWN.validate_python(json.loads(text))
