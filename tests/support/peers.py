"""Fields of a Peer from flat names, as tests of connections give them."""

from typing import Any

LOGIN = ("username", "password_file")
TLS = ("ca_file", "cert_file", "key_file", "server_name", "insecure_skip_verify")


def peer_fields(**flat: Any) -> dict[str, Any]:
    """Return the fields with those of a login and of TLS in sections of their own."""
    given = {name: value for name, value in flat.items() if value is not None}
    fields = {name: value for name, value in given.items() if name not in LOGIN + TLS}
    for section, names in (("basic_auth", LOGIN), ("tls", TLS)):
        if part := {name: given[name] for name in names if name in given}:
            fields[section] = part
    return fields
