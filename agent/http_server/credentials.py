"""Credentials of readers: bearer tokens, and users of the web configuration file. No message or log holds a secret.

A line of a token file is a token. Empty lines and those
that begin with # are ignored. Passwords are bcrypt hashes.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import re
import secrets
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import bcrypt

from agent.errors import ConfigError

SHORTEST_TOKEN = 16

HASHED_AT_ONCE = 2
"""Passwords that are hashed at the same time. The others wait in order of arrival."""


class Authenticator:
    """Tokens, and users with the bcrypt hashes of their passwords. Without both, every request is let in.

    A password that was verified is remembered as a keyed hash, so that it is hashed by bcrypt only once.
    """

    def __init__(self, tokens: tuple[str, ...] = (), users: Mapping[str, str] | None = None) -> None:
        self._tokens = tuple(hashlib.sha256(token.encode()).digest() for token in tokens)
        self._users = {name: hashed.encode() for name, hashed in (users or {}).items()}
        self._key = secrets.token_bytes(32)
        self._verified: dict[str, bytes] = {}
        # Threads that the end of the process waits for: bcrypt aborts it where a thread is ended within it.
        self._workers = ThreadPoolExecutor(HASHED_AT_ONCE, thread_name_prefix="bcrypt")

    @property
    def open(self) -> bool:
        """Return whether no credentials are needed."""
        return not self._tokens and not self._users

    @property
    def challenge(self) -> str:
        """Return the value of the WWW-Authenticate header (RFC 7235)."""
        schemes = (
            ('Basic realm="sizewatch", charset="UTF-8"', self._users),
            ('Bearer realm="sizewatch"', self._tokens),
        )
        return ", ".join(scheme for scheme, credentials in schemes if credentials)

    def has_token(self, authorization: str) -> bool:
        """Return whether the value of an Authorization header carries a known token."""
        scheme, _, given = authorization.partition(" ")
        digest = hashlib.sha256(given.strip().encode("utf-8", "replace")).digest()
        matches = [hmac.compare_digest(digest, token) for token in self._tokens]
        return scheme.lower() == "bearer" and any(matches)

    async def admits(self, authorization: str) -> bool:
        """Return whether an Authorization header lets its sender in. bcrypt runs in a thread."""
        if self.open or self.has_token(authorization):
            return True
        scheme, _, given = authorization.partition(" ")
        if scheme.lower() != "basic" or not self._users:
            return False
        try:
            login = base64.b64decode(given.strip(), validate=True)
            name, _, password = login.decode().partition(":")
        except ValueError:
            return False
        proof = hmac.digest(self._key, login, "sha256")
        if hmac.compare_digest(self._verified.get(name, b""), proof):
            return True
        # An unknown name takes the time of a known one.
        hashed = self._users.get(name) or next(iter(self._users.values()))
        loop = asyncio.get_running_loop()
        is_right = await loop.run_in_executor(self._workers, _matches, password.encode(), hashed)
        is_admitted = is_right and name in self._users
        if is_admitted:
            self._verified[name] = proof
        return is_admitted


def _matches(password: bytes, hashed: bytes) -> bool:
    # bcrypt reads 72 bytes. Its release 5 raises an error for more, `htpasswd` does not.
    return bcrypt.checkpw(password[:72], hashed)


def read_tokens(key: str, path: str | None) -> tuple[str, ...]:
    """Return the tokens of the file that the configuration names under `key`. Raise ConfigError."""
    if path is None:
        return ()
    try:
        lines = [line.strip() for line in Path(path).read_text("utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no UTF-8 text"
        raise ConfigError((f"{key}: {path} cannot be read: {reason}",)) from None
    tokens = tuple(line for line in lines if line and not line.startswith("#"))
    if not tokens or not all(re.fullmatch(f"[!-~]{{{SHORTEST_TOKEN},}}", token) for token in tokens):
        needed = f"tokens of at least {SHORTEST_TOKEN} ASCII characters without a space, one a line"
        raise ConfigError((f"{key}: {path} must hold {needed}",))
    return tokens
