"""Section `web`, and the web configuration file that it names: TLS and users in the format of Prometheus' exporter-toolkit.

Format: https://github.com/prometheus/exporter-toolkit/blob/master/docs/web-configuration.md. A key of it that is not
supported here is an error that names it.
"""

from __future__ import annotations

import re
import socket
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema

from agent.config.files import name_file, read_document
from agent.config.sections import ConfigSection, is_text
from agent.config.values import EnvironmentFileName, FileName, Text, full_match
from agent.errors import ConfigError
from rules.plan.schema import Plan
from rules.plan.validation import Contradictions, validation_error

BCRYPT_HASH = r"\$2[aby]\$(0[4-9]|1[0-9])\$[./A-Za-z0-9]{53}"
"""bcrypt with a cost of at most 19: each further one doubles the time of a check, and 19 takes half a minute."""


def split_listen(value: str) -> tuple[str, int]:
    """Return host (empty: every address) and port of a valid HOST:PORT, :PORT or [IPV6]:PORT."""
    host, _, port = value.rpartition(":")
    return host.strip("[]"), int(port)


def _listen(value: object) -> str:
    match = re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[^\s:/\[\]]*):([0-9]{1,5})", value if is_text(value) else "")
    if match is None:
        raise validation_error("must be HOST:PORT such as 127.0.0.1:19095, [::1]:19095 or :19095")
    if not 1 <= int(match[2]) <= 65535:
        raise validation_error(f"must have a port from 1 to 65535, not {match[2]}")
    return match[0]


Listen = Annotated[str, BeforeValidator(_listen), WithJsonSchema({"type": "string", "title": "host:port"})]


class Web(ConfigSection):
    """Metrics, health and the status page."""

    listen: Listen = Field("127.0.0.1:19095", description="Address to listen on; ':19095' is every address.")
    probe_listen: Listen | None = Field(None, description="Second address, without TLS: /healthz and /readyz alone.")
    config_file: EnvironmentFileName | None = Field(
        None, description="Web configuration file of Prometheus' exporter-toolkit: TLS and users."
    )
    bearer_token_file: EnvironmentFileName | None = Field(None, description="File with the token a reader must send.")
    hosts: Annotated[tuple[Text, ...], Field(strict=False)] = Field(
        (), description="Names that browsers know a loopback address without credentials by, beside localhost."
    )

    @property
    def address(self) -> tuple[str, int]:
        """Return host (empty: every address) and port."""
        return split_listen(self.listen)


class TlsServerConfig(ConfigSection):
    """Certificate of the server, and which certificates its clients must show."""

    cert_file: FileName
    key_file: FileName
    client_auth_type: Literal["NoClientCert", "VerifyClientCertIfGiven", "RequireAndVerifyClientCert"] = "NoClientCert"
    client_ca_file: FileName | None = None
    min_version: Literal["TLS12", "TLS13"] = "TLS12"

    def contradictions(self, plan: Plan | None) -> Contradictions:
        """Yield clients that are verified without a CA, and a CA that verifies none."""
        if (self.client_auth_type == "NoClientCert") != (self.client_ca_file is None):
            yield (), "client_ca_file goes with a client_auth_type that verifies, and the other way round"


class WebFile(ConfigSection):
    """Web configuration file. `basic_auth_users` holds the bcrypt hash of each user's password."""

    tls_server_config: TlsServerConfig | None = None
    basic_auth_users: dict[
        Text, Annotated[str, full_match(BCRYPT_HASH, "must be a bcrypt hash, which `htpasswd -nBC 10 NAME` prints")]
    ] = {}


def read_web_file(path: str | None) -> WebFile:
    """Return the web configuration file, an empty one without a path. Files that it names are relative to its folder.

    Raise ConfigError with every problem, each with file and key.
    """
    if path is None:
        return WebFile()
    data = read_document(Path(path))
    try:
        return WebFile.read(data, {"folder": Path(path).parent, "environment": {}})
    except ConfigError as error:
        text = str(error).replace("is not a key of the configuration", "is not supported")
        raise ConfigError(name_file(f"web.config_file: {path}", text.split("\n"))) from None


def find_web_file(path: str | None) -> WebFile:
    """Return the web configuration file, an empty one if it cannot be used: the web server reports that."""
    try:
        return read_web_file(path)
    except ConfigError:
        return WebFile()


def page_url(web: Web, port: int) -> str:
    """Return where a browser on this machine finds the status page."""
    host, _ = web.address
    host = "127.0.0.1" if host in ("", "0.0.0.0", "::") else host
    scheme = "https" if find_web_file(web.config_file).tls_server_config else "http"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}/"


def bind_address(listen: str) -> tuple[str, int]:
    """Return host and port to bind. Every address is both families where the machine has both."""
    host, port = split_listen(listen)
    return host or ("::" if socket.has_dualstack_ipv6() else "0.0.0.0"), port
