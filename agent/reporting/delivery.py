"""Delivery of a report with Apprise: address, attachments, and the reason of a failure.

The address is a secret, and library messages may contain it. A failure is therefore described with the texts of
`REASONS` only. The daemon does not load this module: the sending process and `report --deliver` do.
"""

from __future__ import annotations

import json
import logging
import os
import re
from logging.handlers import BufferingHandler
from pathlib import Path

from apprise import Apprise, AppriseAsset, AppriseAttachment, NotifyFormat

from agent.config.notifications import Destination
from agent.errors import SizewatchError
from exporters.report.build import message

ATTACHED = {"report": "report.html", "markdown": "report.md", "json": "report.json", "plan": "plan.next.yaml"}

REASONS: tuple[tuple[str, str], ...] = (
    (r"error=(\d{3})|\b([45]\d\d)\b .*(?:Error|for url)", "it answered {0}"),
    (r"refused", "the connection was refused"),
    (r"name or service not known|failed to resolve|nodename|name resolution", "its host is not known"),
    (r"certificate", "its certificate cannot be trusted"),
    (r"authentication|\b535\b", "it does not take the credentials"),
    (r"timed out|timeout", "it did not answer in time"),
)
"""Patterns of library messages and the texts to show. Only three-digit numbers are copied."""


def address(destination: Destination) -> str:
    """Return the secret address. Raise SizewatchError."""
    if destination.url_env is not None:
        text = os.environ.get(destination.url_env, "")
        where = f"the environment variable {destination.url_env}"
    else:
        where = str(destination.url_file)
        try:
            text = Path(where).read_text(errors="replace")
        except OSError as error:
            raise SizewatchError(f"{where} cannot be read ({error.strerror})") from None
    if len(text.split()) != 1:
        raise SizewatchError(f"{where} is not set, or holds more than one address")
    return text.strip()


def deliver(place: Path, destination: Destination, link: str) -> str:
    """Deliver the report in a folder. Return "" if it was accepted, else the reason. Raise SizewatchError.

    From then on the logs of Apprise and its HTTP libraries, which may hold the address, reach no handler.
    """
    url = address(destination)
    try:
        subject, body = message(json.loads((place / "report.json").read_bytes()), link)
    except FileNotFoundError:
        return "the report is gone"
    logs = BufferingHandler(1000)
    for name in ("apprise", "urllib3", "requests"):
        logger = logging.getLogger(name)
        logger.setLevel(logging.DEBUG)
        logger.propagate, logger.handlers = False, [logs]
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
    accepted = sender.notify(title=subject, body=body, body_format=NotifyFormat.TEXT, attach=files or None)
    return "" if accepted else _reason(logs.buffer)


def _reason(logs: list[logging.LogRecord]) -> str:
    for record in reversed(logs):
        for pattern, words in REASONS:
            match = re.search(pattern, record.getMessage(), re.IGNORECASE)
            if match is not None:
                return words.format(*filter(None, match.groups()))
    return "it did not take the report"
