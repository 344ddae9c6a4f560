"""Log output on stderr, as text or one JSON object per line."""

from __future__ import annotations

import json
import logging
import sys
from typing import Any

from agent.config.config import Logging
from exporters.render.safe_text import one_line, strip_control_characters


class _Lines(logging.Formatter):
    """Text formatter with one line per record. Traceback lines are indented, so that none looks like a record."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the library's name
        record.message = one_line(record.message)
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:  # noqa: N802 - the library's name
        return strip_control_characters(super().formatException(ei)).replace("\n", "\n    ")


class _JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {"t": round(record.created, 3), "level": record.levelname.lower()}
        line |= {"logger": record.name, "message": record.getMessage()}
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line)


def set_up(options: Logging) -> None:
    """Configure all loggers to write to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    text = _Lines("%(asctime)s %(levelname)s %(name)s: %(message)s")
    handler.setFormatter(_JsonLines() if options.format == "json" else text)
    logging.basicConfig(level=options.level.upper(), handlers=[handler], force=True)
    # At debug level urllib3 logs addresses with their query, which may hold a key.
    logging.getLogger("urllib3").setLevel(logging.INFO)
