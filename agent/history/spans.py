"""Episodes, unknown spans and alerts of others as JSON text and back.

Owns the text, which kind of span it is, and by what a row is known. What an episode is belongs to `rules.verdicts.finding`; a new
field there with a default reads back from older texts, one without needs a new version of the file's format.
"""

from __future__ import annotations

import json
from dataclasses import asdict

from pydantic import TypeAdapter

from rules.evaluator.external_alerts import ExternalAlert
from rules.verdicts.finding import ClosedSpan, Finding, UnknownSpan

EPISODE, UNKNOWN, FOREIGN = "episode", "unknown", "foreign"

Span = ClosedSpan | ExternalAlert
"""What has a beginning and, some time, an end."""

_EPISODE = TypeAdapter(Finding)
_UNKNOWN = TypeAdapter(UnknownSpan)
_FOREIGN = TypeAdapter(ExternalAlert)

Row = tuple[str, str, str, str, float, float | None, str]


def row(span: Span) -> Row:
    """Kind, rule, tier, replica, start, end and text. All but the last two never change; empty is none."""
    if isinstance(span, ExternalAlert):
        # Two alerts of one name may begin at the same instant.
        name = f"{span.name}/{span.identity}"
        return FOREIGN, name, span.tier or "", span.replica or "", span.started_at, span.ended_at, encode_span(span)
    kind = EPISODE if isinstance(span, Finding) else UNKNOWN
    subject = span.subject
    return kind, span.rule, subject.tier, subject.replica or "", span.started_at, span.ended_at, encode_span(span)


def encode_span(span: Span) -> str:
    """The span as JSON; a bound of a reading may be infinite, which Python's JSON writes and reads as Infinity."""
    return json.dumps(asdict(span), separators=(",", ":"))


def episode(text: str) -> Finding:
    """The episode in a text. Raises ValueError where it holds none."""
    return _EPISODE.validate_python(json.loads(text))


def unknown_span(text: str) -> UnknownSpan:
    """The unknown span in a text. Raises ValueError where it holds none."""
    return _UNKNOWN.validate_python(json.loads(text))


def foreign_alert(text: str) -> ExternalAlert:
    """The alert of another system in a text. Raises ValueError where it holds none."""
    return _FOREIGN.validate_python(json.loads(text))
