"""The keys of `store`: the Prometheus-compatible store that role fleet reads, as a strict frozen record.

Owns the keys; how a store is asked is `agent.prometheus`'s. A new key is a field here with a
description; then `sizewatch render` writes the documentation.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema

from agent.config.config_connection import BasicAuth, ConfigSection, TlsConfig
from agent.config.values import EnvironmentFileName, Timeout, Url, validation_error
from agent.prometheus.options import (
    MOST_BYTES,
    MOST_SAMPLES,
    TIMEOUT_SECONDS,
    TURN_SECONDS,
    StoreOptions,
    header_problem,
    header_text,
)


def _base(value: object) -> object:
    if isinstance(value, str) and re.search(r"[?#]", value):
        raise validation_error("must be the store's base address, without a query")
    if isinstance(value, str) and re.search(r"/api/v1(/|$)", value):
        raise validation_error("must be the address before /api/v1, which is added")
    return value


def _org_id(value: object) -> object:
    if isinstance(value, str) and not header_text(value):
        raise validation_error("must be printable ASCII without blanks around it, as a header carries")
    return value


def _header_name(value: object) -> object:
    if isinstance(value, str) and (problem := header_problem(value)):
        raise validation_error(problem)
    return value


OrgId = Annotated[str, BeforeValidator(_org_id), WithJsonSchema({"type": "string", "minLength": 1})]
HeaderName = Annotated[str, BeforeValidator(_header_name)]


class StoreConfig(ConfigSection):
    """A Prometheus-compatible store: Prometheus, Thanos, Mimir, VictoriaMetrics."""

    url: Annotated[Url, BeforeValidator(_base)] = Field(
        description="What its Prometheus API is served under, such as http://prometheus:9090, http://mimir:8080/prometheus or "
        "http://vmselect:8481/select/0/prometheus."
    )
    timeout_seconds: Timeout = Field(
        TIMEOUT_SECONDS, alias="timeout", description="For one query.", json_schema_extra={"default": "10s"}
    )
    most_samples: Annotated[int, Field(ge=1000, le=50_000_000)] = Field(
        MOST_SAMPLES, description="An answer with more samples is refused; long grids are asked in parts of so many."
    )
    max_answer_bytes: Annotated[int, Field(ge=65536)] = Field(
        MOST_BYTES, description="A larger answer, after decompression, is refused."
    )
    partial_answers: Literal["refuse", "take"] = Field(
        "refuse",
        description="What to do with an answer that lacks a part of the store (Thanos, Mimir, VictoriaMetrics' cluster): refuse "
        "makes it a gap; take judges by too little.",
    )
    bearer_token_file: EnvironmentFileName | None = Field(None, description="File that holds a bearer token.")
    basic_auth: BasicAuth | None = None
    tls: TlsConfig | None = None
    org_id: OrgId | None = Field(None, description="Tenant, sent as X-Scope-OrgID; a|b of several.")
    header_files: dict[HeaderName, EnvironmentFileName] = Field(
        {}, description="Further headers, by name: files that hold them."
    )

    def options(self, turn_seconds: float = TURN_SECONDS) -> StoreOptions:
        """The same for the client; a store that is away is left alone for turns of this length."""
        tls, login = self.tls or TlsConfig(), self.basic_auth
        return StoreOptions(
            url=self.url,
            timeout_seconds=self.timeout_seconds,
            most_bytes=self.max_answer_bytes,
            most_samples=self.most_samples,
            turn_seconds=turn_seconds,
            bearer_token_file=self.bearer_token_file,
            username=login.username if login else None,
            password_file=login.password_file if login else None,
            ca_file=tls.ca_file,
            client_cert_file=tls.cert_file,
            client_key_file=tls.key_file,
            server_name=tls.server_name,
            insecure_skip_verify=tls.insecure_skip_verify,
            org_id=self.org_id,
            header_files=tuple(self.header_files.items()),
            partial_response_ok=self.partial_answers == "take",
        )
