"""Webhook of the web server: what it asks of a receiver of alerts, and a receiver's refusal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookRejection:
    """Answer other than 200: its status line and one sentence. `reason` labels the metric of refusals."""

    status: str
    reason: str
    text: str


class WebhookEndpoint(Protocol):
    """Receiver of the alerts that a request carries. Its own credentials count, not those of the pages."""

    @property
    def challenges(self) -> tuple[str, ...]:
        """Values of the WWW-Authenticate header."""

    def refuses(
        self, authorization: str, content_type: str, content_encoding: str, length: str
    ) -> WebhookRejection | None:
        """Return why a request is refused before its body is read, or None."""

    def take(self, body: bytes) -> WebhookRejection | None:
        """Accept the alerts of a body. Return why it is refused, or None."""
