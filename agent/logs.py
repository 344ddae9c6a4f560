"""Log lines on stderr, for people or as one JSON object a line."""

from __future__ import annotations

import json
import logging
import sys

from agent.config import Logging


class _JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "t": round(record.created, 3),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line)


def set_up(options: Logging) -> None:
    """Sends every logger to stderr in the configured form; the scheduler only speaks up when something is wrong."""
    handler = logging.StreamHandler(sys.stderr)
    text = logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    handler.setFormatter(_JsonLines() if options.format == "json" else text)
    logging.basicConfig(level=options.level.upper(), handlers=[handler], force=True)
    logging.getLogger("apscheduler").setLevel(logging.ERROR)
