"""Reads the body of an Alertmanager's webhook (payload version 4): all of it is sound, or nothing is used.

Owns the limits and the checks of types; who may send, and how often, is `agent.alerting.webhook`'s. What it takes over
is cut to size: names, labels, one summary. Times that cannot be are replaced by the time of arrival.
Format: prometheus.io/docs/alerting/latest/configuration/#webhook_config, held against Alertmanager 0.25.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from rules.evaluator.external_alerts import OURS, ExternalAlert

VERSION = "4"
MOST_PARTS = 20_000
"""Brackets of any kind in one body; a real alert has three. Nothing is built in memory of a body with more."""

MOST_ALERTS = 1_000
MOST_LABELS = 64
LONGEST_NAME = 200
LONGEST_VALUE = 1_000
LONGEST_SUMMARY = 300
LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*", re.ASCII)
SUMMARIES = ("summary", "message", "title", "description")

AHEAD_SECONDS = 300.0
"""Another machine's clock may be so far ahead; a start beyond that is no start."""


class PayloadError(Exception):
    """A body that cannot be used, in words that quote nothing of it."""


def read(body: bytes, now: float) -> tuple[tuple[ExternalAlert, ...], int]:
    """The alerts of others in a body that arrived at `now` (unix seconds), and how many were ours. Raises BadPayload."""
    if body.count(b"[") + body.count(b"{") > MOST_PARTS:
        raise PayloadError(f"more than {MOST_PARTS} parts")
    try:
        data = json.loads(body)
    except RecursionError:
        raise PayloadError("nested too deeply") from None
    except ValueError:
        # A body that is no UTF-8, no JSON, or holds a number of too many digits.
        raise PayloadError("not JSON") from None
    if not isinstance(data, dict):
        raise PayloadError("must be an object")
    if data.get("version") != VERSION:
        raise PayloadError(f'version must be "{VERSION}"')
    alerts = data.get("alerts")
    if not isinstance(alerts, list) or len(alerts) > MOST_ALERTS:
        raise PayloadError(f"alerts must be a list of at most {MOST_ALERTS}")
    found = [_alert(alert, f"alerts[{place}]", now) for place, alert in enumerate(alerts)]
    foreign = tuple(alert for alert in found if OURS not in alert.labels)
    return foreign, len(found) - len(foreign)


def _alert(data: Any, place: str, now: float) -> ExternalAlert:
    if not isinstance(data, dict):
        raise PayloadError(f"{place} must be an object")
    status = data.get("status")
    if status not in ("firing", "resolved"):
        raise PayloadError(f"{place}.status must be firing or resolved")
    labels = _texts(data.get("labels"), f"{place}.labels")
    annotations = _texts(data.get("annotations", {}), f"{place}.annotations")
    name = labels.get("alertname", "")
    if not name or len(name) > LONGEST_NAME:
        raise PayloadError(f"{place}.labels.alertname must be a name of at most {LONGEST_NAME} characters")
    started_at = _time(data.get("startsAt"), f"{place}.startsAt", now)
    ended_at = None
    if status == "resolved":
        ended_at = max(started_at, _time(data.get("endsAt"), f"{place}.endsAt", now))
    return ExternalAlert(
        name=_plain(name),
        labels=tuple(sorted((key, _plain(value)) for key, value in labels.items())),
        summary=_plain(next((annotations[key] for key in SUMMARIES if annotations.get(key)), ""))[:LONGEST_SUMMARY],
        started_at=started_at,
        ended_at=ended_at,
        heard_at=now,
    )


def _texts(data: Any, place: str) -> Mapping[str, str]:
    if not isinstance(data, dict) or len(data) > MOST_LABELS:
        raise PayloadError(f"{place} must be an object of at most {MOST_LABELS} texts")
    for key, value in data.items():
        if not LABEL.fullmatch(key) or len(key) > LONGEST_NAME:
            raise PayloadError(f"{place} holds a key that is no label name")
        if not isinstance(value, str):
            raise PayloadError(f"{place}.{key} must be a text")
        if len(value) > LONGEST_VALUE and not place.endswith("annotations"):
            raise PayloadError(f"{place}.{key} is longer than {LONGEST_VALUE} characters")
    return data


def _time(data: Any, place: str, now: float) -> float:
    """RFC 3339; the time of arrival for one that lies ahead or has no place among unix seconds (Go's year 1)."""
    if not isinstance(data, str) or len(data) > 64:
        raise PayloadError(f"{place} must be a time")
    try:
        instant = datetime.fromisoformat(data)
        t = instant.timestamp() if instant.tzinfo is not None else None
    except (ValueError, OverflowError):
        t = None
    if t is None:
        raise PayloadError(f"{place} must be a time")
    return t if 0 < t <= now + AHEAD_SECONDS else now


def _plain(text: str) -> str:
    """One line that can be written anywhere: no control characters, no halves of characters."""
    shown = "".join(c if c.isprintable() else " " for c in text.encode("utf-8", "replace").decode("utf-8"))
    return " ".join(shown.split())
