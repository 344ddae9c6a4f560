"""The report as a message: the headline as the subject, and the first sentences of each tier.

Owns the words of a message, plain text without markup; what a service makes of it (HTML, Markdown) it escapes itself. It reads
report.json as it stands on the disk, so a report that waited through an upgrade can still be sent. Nothing here knows an address.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from exporters.report.wording import SIMULATED, instant

MOST_LETTERS = 180
"""Of a subject."""

MOST_TIERS = 12
"""The shortest message that a chat takes in one piece holds some 2000 letters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """`subject` is one line."""

    subject: str
    body: str


def message(found: Mapping[str, Any], link: str) -> Message:
    """From the object in report.json; `link` is where the whole is read, "" where nobody said. Raises KeyError, TypeError,
    ValueError where it is no report."""
    return Message(subject=_line(str(found["headline"]), MOST_LETTERS), body="\n\n".join(_paragraphs(found, link)))


def _paragraphs(found: Mapping[str, Any], link: str) -> Iterator[str]:
    if found["simulated"]:
        yield SIMULATED
    tiers = found["tiers"]
    yield from (_line(str(tier["verdict"])) for tier in tiers[:MOST_TIERS])
    if len(tiers) > MOST_TIERS:
        yield f"{len(tiers) - MOST_TIERS} more tiers are in the report."
    yield from (_line(str(remark)) for remark in found["remarks"][:3])
    zone = str(found["zone"])
    yield f"{instant(float(found['since']), zone)} to {instant(float(found['until']), zone)}{f': {link}' if link else ''}"


def _line(text: str, most: int = 1000) -> str:
    """Without line ends and what else is no letter: a subject must not begin another header."""
    plain = " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
    return plain if len(plain) <= most else f"{plain[: most - 1]}…"
