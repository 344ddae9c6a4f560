"""The keys of a connection that is opened to somebody: a user and password, and TLS. They are the same wherever one is.

Owns `basic_auth` and `tls`; which sections have them, beside `url` and `bearer_token_file`, is config_keys' and
config_store's. Secrets stand in files; no key holds one.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from agent.config.values import EnvironmentFileName

Text = Annotated[str, Field(min_length=1)]


class ConfigSection(BaseModel):
    """A section: nothing unknown, nothing converted, nothing changed later."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)


class BasicAuth(ConfigSection):
    username: Text = Field(description="User name of basic authentication.")
    password_file: EnvironmentFileName = Field(description="File that holds the password.")


class TlsConfig(ConfigSection):
    ca_file: EnvironmentFileName | None = Field(
        None, description="CA that signed the target's certificate; default the system's."
    )
    cert_file: EnvironmentFileName | None = Field(
        None, description="Client certificate, where the target asks for one."
    )
    key_file: EnvironmentFileName | None = Field(None, description="Its key, where it is not in cert_file.")
    server_name: Text | None = Field(
        None, description="What the target's certificate is for, where that is not the host of the url."
    )
    insecure_skip_verify: bool = Field(False, description="Do not check the target's certificate.")
