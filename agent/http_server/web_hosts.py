"""By which names a page that is open to everybody on this machine may be called.

Owns the question against DNS rebinding: a page of a stranger in a browser on this machine whose name suddenly leads to 127.0.0.1
reads what is served there as its own. It needs a name for that, so addresses and localhost are fine and other names must be
configured. Nothing is asked where credentials are, where other machines are served anyway, and over TLS: no certificate of ours
is for a stranger's name.
"""

from __future__ import annotations

from ipaddress import ip_address
from urllib.parse import urlsplit

from agent.config.weaknesses import is_loopback
from agent.http_server.options import WebOptions


def is_wrong_host(options: WebOptions, host: str) -> bool:
    """Whether a request with this Host header, "" where it has none, is for somebody else."""
    if not host or options.tls or not is_loopback(options.host):
        return False
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return True
    plain = name.removesuffix(".").lower()
    if plain == "localhost" or plain.endswith(".localhost") or plain in {one.lower() for one in options.hosts}:
        return False
    try:
        ip_address(plain)
    except ValueError:
        return True
    return False
