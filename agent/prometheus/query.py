"""Asks one question of a store over the connection that is kept to it.

Owns the request (always a POST of a form, so that a long query fits), and which parameters make the answer exact and
complete. What an answer means is `answers` and `refusals`. No message holds a secret or a query of ours, except where
the store's own words repeat it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from urllib.parse import urlencode

import requests

from agent.errors import ScrapeError
from agent.http_client.connection import KeptConnection
from agent.http_client.error_text import http_status_error, place_of
from agent.http_client.hidden import redact
from agent.prometheus import refusals
from agent.prometheus.answers import ApiResponse, answer
from agent.prometheus.options import StoreOptions
from agent.prometheus.trouble import StoreError, StoreErrorKind

# Not packed unless the store does so anyway: that saves its CPU, which is everybody's, and network where it stands near by.
_HEADERS = {
    "Accept": "application/json",
    "Accept-Encoding": "identity",
    "Content-Type": "application/x-www-form-urlencoded",
    "User-Agent": "sizewatch",
}
EXACT = {"nocache": "1", "latency_offset": "1ms"}
"""VictoriaMetrics moves times to multiples of the step, and an instant of the newest 30 s back, where its cache may be used;
it paints over the newest 30 s of a grid (older releases in spite of latency_offset)."""

COMPLETE = {"partial_response": "false", "deny_partial_response": "1"}
"""Thanos and VictoriaMetrics' cluster: an error, not a part, where a part of the store is away. Others ignore both."""


class QueryRunner:
    """For one thread at a time. `login` is how its user gives credentials, for messages."""

    def __init__(self, options: StoreOptions, login: str = refusals.LOGIN) -> None:
        self.place = place_of(options.url).rstrip("/")
        self._options = options
        self._login = login
        self._connection = KeptConnection(options.target(), "answer", options.header_files)
        self._requests: dict[str, requests.Request] = {}
        self._parameters = {
            **EXACT,
            **({} if options.partial_response_ok else COMPLETE),
            # Prometheus reads seconds or 1s, and no 0.5s. A store should not work on after nobody waits.
            "timeout": f"{options.timeout_seconds:.3f}",
        }
        self.bytes = 0
        """Of all answers."""

    def ask(self, path: str, form: Mapping[str, str]) -> ApiResponse:
        """The answer to a query, with its data. Raises StoreTrouble."""
        try:
            body, status = self._answered(path, urlencode({**form, **self._parameters}))
        except ScrapeError as error:
            raise self._clean(refusals.transport_error(self.place, error)) from error
        self.bytes += len(body)
        given = answer(self.place, body)
        if given.error is not None:
            raise self._clean(refusals.error_from_body(given, status))
        if status != 200:
            raise refusals.error_without_body(self.place, status)
        if given.partial and not self._options.partial_response_ok:
            raise self._clean(StoreError(StoreErrorKind.PARTIAL, self.place, given.partial))
        return given

    def reload_credentials(self) -> bool:
        """Reads the files where one has changed since they were read; whether it did. Raises StoreTrouble."""
        try:
            return self._connection.load_if_changed()
        except ScrapeError as error:
            raise refusals.transport_error(self.place, error) from error

    def close(self) -> None:
        """Ends the kept connection; a later query opens a new one."""
        self._connection.close()

    def _answered(self, path: str, form: str) -> tuple[bytes, int]:
        deadline = time.monotonic() + self._options.timeout_seconds
        self._connection.load_if_changed()
        headers = _HEADERS | self._connection.headers
        if self._options.org_id is not None:
            headers["X-Scope-OrgID"] = self._options.org_id
        prepared = requests.Request("POST", f"{self.place}{path}", headers=headers, data=form).prepare()
        response = self._connection.answer(prepared, deadline)
        try:
            self._judge(response)
            return self._connection.body(response), response.status_code
        except BaseException:
            response.close()
            raise

    def _judge(self, response: requests.Response) -> None:
        """Raises for what is not worth reading."""
        status = response.status_code
        if 300 <= status < 400:
            error = http_status_error(
                self.place, status, self._connection.redact_reply(response.headers.get("Location", ""))
            )
            raise refusals.transport_error(self.place, error)
        if (trouble := refusals.error_from_status(self.place, status, self._login)) is not None:
            raise trouble
        if status != 200 and "json" not in response.headers.get("Content-Type", "").lower():
            raise refusals.error_without_body(self.place, status)

    def _clean(self, trouble: StoreError) -> StoreError:
        """Without the secrets that a store, or a proxy before it, may repeat."""
        return StoreError(trouble.kind, trouble.place, redact(trouble.text, self._connection.headers.values()))
