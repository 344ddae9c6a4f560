"""Connection and query options of a store. The configuration needs them in every role, and only `fleet` asks a store.

A new option needs a field of `StoreOptions`, one in `agent.config.store` and, if a request contains it, a use in
`agent.prometheus.query.QueryRunner`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import urlsplit

from agent.http_client.options import TargetOptions
from rules.light_dataclass import light_dataclass

TIMEOUT_SECONDS = 10.0
MOST_BYTES = 64 * 1024 * 1024
MOST_SAMPLES = 2_000_000
"""Sample limit of one query: about the content of MOST_BYTES (20-30 bytes of JSON each), and 1 s of CPU of this agent.

Prometheus itself limits the samples that a query reads to 50,000,000 (--query.max-samples)."""

TURN_SECONDS = 60.0

_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_OWN_HEADERS = frozenset(
    (
        *("accept", "accept-encoding", "authorization", "connection", "content-length", "content-type", "host"),
        *("transfer-encoding", "user-agent", "x-scope-orgid"),
    )
)


@light_dataclass(frozen=True, slots=True, kw_only=True)
class StoreOptions(TargetOptions):
    """Connection and query options of one store. Raises ConfigError with every problem.

    `url` is the base of the Prometheus API (Mimir: with /prometheus; VictoriaMetrics cluster: /select/0/prometheus).
    `timeout_seconds` bounds a whole query, `max_bytes` its decompressed response, `most_samples` the samples in it.
    `turn_seconds` is the caller's cycle time, the unit of the backoff. `org_id` is sent as X-Scope-OrgID.
    `header_files` are pairs of a header and the file with its value. `partial_response_ok` accepts responses without a
    part of the store.
    """

    timeout_seconds: float = TIMEOUT_SECONDS
    max_bytes: int = MOST_BYTES
    most_samples: int = MOST_SAMPLES
    turn_seconds: float = TURN_SECONDS
    org_id: str | None = None
    header_files: tuple[tuple[str, str], ...] = ()
    partial_response_ok: bool = False

    def find_problems(self) -> Iterator[tuple[bool, str]]:
        """Yield for each check whether it fails, and its text."""
        # No super(): a class with slots is made twice.
        yield from TargetOptions.find_problems(self)
        try:
            parts = urlsplit(self.url)
        except ValueError:
            return
        yield bool(parts.query or parts.fragment), "url: must be the store's base address, without a query"
        yield not self.most_samples > 0, "most_samples: must be above 0"
        yield not self.turn_seconds > 0, "turn_seconds: must be above 0"
        yield self.org_id is not None and not header_text(self.org_id), "org_id: holds what a header cannot carry"
        for name, _ in self.header_files:
            yield bool(header_problem(name)), f"header_files: {header_problem(name)}"


def header_problem(name: str) -> str:
    """Return why a header name is not allowed, or an empty string."""
    if not _HEADER_NAME.fullmatch(name):
        return f"{name[:40]!r} is no name of a header"
    return f"{name} is set by other options" if name.lower() in _OWN_HEADERS else ""


def header_text(text: str) -> bool:
    """Return whether the text is a valid header value."""
    return bool(text) and text == text.strip() and text.isascii() and text.isprintable()
