"""Where a Prometheus-compatible store is, how to get in, and what one query of it may cost.

Owns the fields and their checks. It opens neither file nor socket. Secrets are names of files that hold them. A new field
is a row here, of `agent.config.store_keys` and, where it goes into a request, of `agent.prometheus.query`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import urlsplit

from agent.errors import ConfigError
from agent.http_client.transport import TargetOptions

TIMEOUT_SECONDS = 10.0
MOST_BYTES = 64 * 1024 * 1024
MOST_SAMPLES = 2_000_000
"""About as many as fit into MOST_BYTES (a sample is 20-30 bytes of JSON), and 1 s of own CPU; Prometheus' own limit on
the samples that a query reads is 50,000,000 (--query.max-samples)."""

TURN_SECONDS = 60.0

_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_OWN_HEADERS = frozenset(
    {
        "accept",
        "accept-encoding",
        "authorization",
        "connection",
        "content-length",
        "content-type",
        "host",
        "transfer-encoding",
        "user-agent",
        "x-scope-orgid",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreOptions:
    """Raises BadConfig with every problem.

    `url` is what Prometheus' API is served under (Mimir: with /prometheus; VictoriaMetrics' cluster: /select/0/prometheus).
    `timeout_seconds` is for one whole query, `most_bytes` for its answer after decompression, `most_samples` for the
    samples in it. `turn_seconds` is the time between turns of the caller: a store that is away is left alone for turns.
    `org_id` goes out as X-Scope-OrgID; `header_files` are further headers and the files that hold them. With
    `partial_response_ok` a store may answer without a part of itself, and such an answer is taken.
    """

    url: str
    timeout_seconds: float = TIMEOUT_SECONDS
    most_bytes: int = MOST_BYTES
    most_samples: int = MOST_SAMPLES
    turn_seconds: float = TURN_SECONDS
    bearer_token_file: str | None = None
    username: str | None = None
    password_file: str | None = None
    ca_file: str | None = None
    client_cert_file: str | None = None
    client_key_file: str | None = None
    insecure_skip_verify: bool = False
    server_name: str | None = None
    org_id: str | None = None
    header_files: tuple[tuple[str, str], ...] = ()
    partial_response_ok: bool = False

    def __post_init__(self) -> None:
        problems = [text for wrong, text in self._findings() if wrong]
        try:
            self.target()
        except ConfigError as error:
            problems = [*error.problems, *problems]
        if problems:
            raise ConfigError(tuple(problems))

    def target(self) -> TargetOptions:
        """The connection's part. Raises BadConfig."""
        return TargetOptions(
            url=self.url,
            timeout_seconds=self.timeout_seconds,
            max_bytes=self.most_bytes,
            ca_file=self.ca_file,
            insecure_skip_verify=self.insecure_skip_verify,
            bearer_token_file=self.bearer_token_file,
            username=self.username,
            password_file=self.password_file,
            client_cert_file=self.client_cert_file,
            client_key_file=self.client_key_file,
            server_name=self.server_name,
        )

    def _findings(self) -> Iterator[tuple[bool, str]]:
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
    """Why a further header cannot be called so; empty where it can."""
    if not _HEADER_NAME.fullmatch(name):
        return f"{name[:40]!r} is no name of a header"
    return f"{name} is set by other options" if name.lower() in _OWN_HEADERS else ""


def header_text(text: str) -> bool:
    """Whether a header can carry it."""
    return bool(text) and text == text.strip() and text.isascii() and text.isprintable()
