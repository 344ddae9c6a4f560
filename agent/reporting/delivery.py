"""Delivery of a report with Apprise: address, attachments, and the reason of a failure.

The address is a secret, and library messages may contain it. A failure is therefore described with the texts of
`REASONS` only. The daemon does not load this module: the sending process and `report --deliver` do.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from logging.handlers import BufferingHandler
from pathlib import Path

from apprise import Apprise, AppriseAsset, AppriseAttachment, NotifyFormat

from agent.config.report import Destination
from agent.errors import SizewatchError
from exporters.report.build import message

MOST_BYTES = 8192
"""Maximum size of an address in bytes."""

ATTACHED = {
    "report": "report.html",
    "markdown": "report.md",
    "json": "report.json",
    "plan": "plan.next.yaml",
}

REASONS: tuple[tuple[str, str], ...] = (
    (r"error=(\d{3})|\b([45]\d\d)\b .*(?:Error|for url)", "it answered {0}"),
    (r"refused", "the connection was refused"),
    (r"name or service not known|failed to resolve|nodename|name resolution", "its host is not known"),
    (r"certificate", "its certificate cannot be trusted"),
    (r"authentication|\b535\b", "it does not take the credentials"),
    (r"timed out|timeout", "it did not answer in time"),
)
"""Patterns of library messages and the texts to show. Only three-digit numbers are copied."""

NOT_TAKEN = "it did not take the report"


class AddressError(SizewatchError):
    """Unreadable address. The text contains no part of it."""


def address(destination: Destination) -> str:
    """Return the secret address. Raise AddressError."""
    if destination.url_env is not None:
        text = os.environ.get(destination.url_env, "")
        where = f"the environment variable {destination.url_env}"
    else:
        where = str(destination.url_file)
        try:
            with Path(where).open("rb") as opened:
                text = opened.read(MOST_BYTES + 1).decode()
        except UnicodeDecodeError:
            raise AddressError(f"{where} is no text") from None
        except OSError as error:
            raise AddressError(f"{where} cannot be read ({error.strerror})") from None
    if not text.strip():
        raise AddressError(f"{where} is empty or not set")
    if len(text.split()) > 1 or len(text) > MOST_BYTES:
        raise AddressError(f"{where} must hold one address and nothing else")
    return text.strip()


def deliver(place: Path, destination: Destination, link: str) -> str:
    """Deliver the report in a folder. Return "" if it was accepted, else the reason."""
    try:
        url = address(destination)
        text = message(json.loads((place / "report.json").read_bytes()), link)
    except AddressError as error:
        return str(error)
    except FileNotFoundError:
        return "the report is gone"
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError):
        return "its report.json is damaged; `sizewatch report` makes it anew"
    with _captured_logs() as logs:
        asset = AppriseAsset(
            app_id="sizewatch", app_desc="sizewatch", app_url="", async_mode=False, secure_logging=True, plugin_paths=[]
        )
        plugin = Apprise.instantiate(url, asset=asset)
        if plugin is None:
            return "its address is none that Apprise understands (such as mailtos://, slack://, json://)"
        sender = Apprise(asset=asset)
        sender.add(plugin)
        paths = [place / ATTACHED[part] for part in destination.attached]
        files = AppriseAttachment([str(path) for path in paths if path.is_file()], asset=asset)
        accepted = sender.notify(
            title=text.subject, body=text.body, body_format=NotifyFormat.TEXT, attach=files or None
        )
    return "" if accepted else _reason(logs)


@contextmanager
def _captured_logs() -> Iterator[list[logging.LogRecord]]:
    """Redirect the logs of Apprise and its HTTP libraries to a list, away from all other handlers."""
    loggers, captured = [logging.getLogger(name) for name in ("apprise", "urllib3", "requests")], BufferingHandler(1000)
    before = [(logger.level, logger.propagate, logger.handlers) for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.DEBUG)
        logger.propagate, logger.handlers = False, [captured]
    try:
        yield captured.buffer
    finally:
        for logger, (level, propagate, handlers) in zip(loggers, before, strict=True):
            logger.setLevel(level)
            logger.propagate, logger.handlers = propagate, handlers


def _reason(logs: list[logging.LogRecord]) -> str:
    """Return the text of the last message that matches REASONS."""
    for record in reversed(logs):
        for pattern, words in REASONS:
            match = re.search(pattern, record.getMessage(), re.IGNORECASE)
            if match is not None:
                return words.format(*filter(None, match.groups()))
    return NOT_TAKEN
