"""Section `web`, and the web configuration file that it names: TLS and users in the format of Prometheus' exporter-toolkit.

Format: https://github.com/prometheus/exporter-toolkit/blob/master/docs/web-configuration.md. A key of it that is not
supported here is an error that names it.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from agent.config.files import name_file, read_document
from agent.config.sections import ConfigSection
from agent.config.values import Entries, ExpandedFile, FileName, Text, full_match
from agent.errors import ConfigError
from rules.plan.validation import Contradictions, validation_error

# A cost of 19 takes half a minute a check, each further one doubles it.
_HASH = full_match(
    r"\$2[aby]\$(0[4-9]|1[0-9])\$[./A-Za-z0-9]{53}", "must be a bcrypt hash, which `htpasswd -nBC 10 NAME` prints"
)


def _listen(value: str) -> str:
    match = re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[^\s:/\[\]\0]*):([0-9]{1,5})", value)
    if match is None or not 1 <= int(match[2]) <= 65535:
        raise validation_error("must be HOST:PORT such as 127.0.0.1:19095, [::1]:19095 or :19095, with port 1 to 65535")
    return value


Listen = Annotated[str, AfterValidator(_listen), Field(title="host:port")]


class Web(ConfigSection):
    """Metrics, health and the status page."""

    listen: Listen = Field("127.0.0.1:19095", description="Address to listen on; ':19095' is every address.")
    probe_listen: Listen | None = Field(None, description="Second address, without TLS: /healthz and /readyz alone.")
    config_file: ExpandedFile | None = Field(
        None, description="TLS and users, in the format of Prometheus' exporter-toolkit."
    )
    bearer_token_file: ExpandedFile | None = Field(None, description="File with the token a reader must send.")
    hosts: Entries[Text] = Field((), description="Names of a loopback address in browsers, beside localhost.")

    @property
    def address(self) -> tuple[str, int]:
        """Return host (empty: every address) and port."""
        host, _, port = self.listen.rpartition(":")
        return host.strip("[]"), int(port)


class TlsServerConfig(ConfigSection):
    """Certificate of the server, and which certificates its clients must show."""

    cert_file: FileName
    key_file: FileName
    client_auth_type: Literal["NoClientCert", "VerifyClientCertIfGiven", "RequireAndVerifyClientCert"] = "NoClientCert"
    client_ca_file: FileName | None = None
    min_version: Literal["TLS12", "TLS13"] = "TLS12"

    def _contradictions(self) -> Contradictions:
        if (self.client_auth_type == "NoClientCert") != (self.client_ca_file is None):
            yield (), "client_ca_file goes with a client_auth_type that verifies, and the other way round"


class WebFile(ConfigSection):
    """Web configuration file. `basic_auth_users` holds the bcrypt hash of each user's password."""

    tls_server_config: TlsServerConfig | None = None
    basic_auth_users: dict[Text, Annotated[str, _HASH]] = {}


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
        raise ConfigError(name_file(f"web.config_file: {path}", error.problems)) from None


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
