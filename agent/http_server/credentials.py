"""Credentials of readers: bearer tokens and users with passwords, from two files.

    bearer_token_file        one token a line; several while one replaces another
    basic_auth_users_file    name:$scrypt$ln=13,r=8,p=10$salt$hash, one user a line (PHC string format)

Empty lines and lines that begin with # are ignored. `python -m agent.http_server.credentials NAME` asks for a password and
prints the line of the user. No message, log or answer holds any part of a secret.
"""

from __future__ import annotations

import base64
import binascii
import getpass
import hashlib
import hmac
import re
import secrets
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

from agent.errors import ConfigError
from agent.http_server.options import WebOptions
from rules.light_dataclass import light_dataclass

LN, R, P = 13, 8, 10
"""8 MiB for each guess, ten times over: OWASP's smallest memory for scrypt (Password Storage Cheat Sheet, 2024); an
agent that may hold 64 MiB in all cannot spend more."""

MAXIMUM_MEMORY_BYTES = 64 * 2**20
MAXIMUM_WORK = 2**22
"""Of a hash, as N times r times p: six times that of LN, R, P, and above all that OWASP gives. One is computed at a time, and
whoever guesses may ask for it."""

SHORTEST_TOKEN = 16
BUSY_SECONDS = 2.0
"""How long a password waits for the one that is being hashed; only one is at a time."""

MOST_WAITING = 2
"""Passwords that wait; a flood of wrong ones must not hold every thread of the web server."""

MOST_OF_ONE_ADDRESS = 2
"""Passwords of one address that are hashed or wait. Of one user at one address it is one at a time."""

_LINE = re.compile(
    r"(?P<name>[^:]+):\$scrypt\$ln=(?P<ln>[0-9]{1,2}),r=(?P<r>[0-9]{1,2}),p=(?P<p>[0-9]{1,2})\$(?P<salt>[^$]+)\$(?P<hash>[^$]+)"
)


@light_dataclass(frozen=True, slots=True, kw_only=True)
class PasswordHash:
    """What is kept of a password: scrypt's cost (log2 N, r, p), the salt, the hash."""

    ln: int
    r: int
    p: int
    salt: bytes
    hash: bytes

    @property
    def memory_bytes(self) -> int:
        return int(128 * self.r * (2**self.ln + self.p))

    @property
    def work(self) -> int:
        """What its time grows with."""
        return int(2**self.ln * self.r * self.p)

    def fits(self, password: bytes) -> bool:
        """Return whether this is the password; takes as long for a wrong one."""
        found = hashlib.scrypt(
            password,
            salt=self.salt,
            n=2**self.ln,
            r=self.r,
            p=self.p,
            maxmem=self.memory_bytes + 2**20,
            dklen=len(self.hash),
        )
        return hmac.compare_digest(found, self.hash)


def hash_password(password: bytes, salt: bytes) -> PasswordHash:
    """The hash that new passwords get."""
    memory = 128 * R * (2**LN + P) + 2**20
    found = hashlib.scrypt(password, salt=salt, n=2**LN, r=R, p=P, maxmem=memory, dklen=32)
    return PasswordHash(ln=LN, r=R, p=P, salt=salt, hash=found)


def users_line(name: str, password: bytes) -> str:
    """A line of the users file. Raises ValueError for a name that it could not hold."""
    if not name or ":" in name or not name.isprintable() or name.startswith("#") or name.strip() != name:
        raise ValueError("a user's name is printable, holds no colon, and neither begins nor ends with a space or #")
    made = hash_password(password, secrets.token_bytes(16))
    return f"{name}:$scrypt$ln={made.ln},r={made.r},p={made.p}${_text(made.salt)}${_text(made.hash)}"


class PasswordCheckError(Exception):
    """Password that could not be checked now: others are before it."""


class Authenticator:
    """Who is let in. Without tokens and users, everybody."""

    def __init__(self, tokens: tuple[str, ...] = (), users: Mapping[str, PasswordHash] | None = None) -> None:
        self._tokens = tuple(hashlib.sha256(token.encode()).digest() for token in tokens)
        self._users = dict(users or {})
        self._key = secrets.token_bytes(32)
        self._known: dict[str, bytes] = {}
        self._hashing, self._counting = threading.Lock(), threading.Lock()
        self._checks: list[tuple[str, str, bytes]] = []
        """Address, user and proof of the passwords that are hashed or wait."""

    @property
    def open(self) -> bool:
        return not self._tokens and not self._users

    @property
    def challenges(self) -> tuple[str, ...]:
        """What to answer to who brings nothing (RFC 7235)."""
        found = ['Basic realm="sizewatch", charset="UTF-8"'] if self._users else []
        return (*found, *(['Bearer realm="sizewatch"'] if self._tokens else []))

    def admits(self, authorization: str, address: str = "") -> bool:
        """Return whether the Authorization header (as WSGI gives it, bytes as Latin-1) lets its sender in.

        Raise PasswordCheckError for a password that cannot be checked now.
        """
        known, login = self.knows(authorization), _login(authorization)
        return bool(known) if known is not None or login is None else self._password(*login, address)

    def knows(self, authorization: str) -> bool | None:
        """Return the same without waiting, or None for a password that must be hashed."""
        if self.open:
            return True
        scheme, _, given = authorization.partition(" ")
        if scheme.lower() == "bearer":
            return self._token(given.strip().encode("latin-1", "replace"))
        login = _login(authorization)
        if login is None or not self._users:
            return False
        return True if self._is_known(*login) else None

    def _token(self, given: bytes) -> bool:
        digest = hashlib.sha256(given).digest()
        matches = [hmac.compare_digest(digest, token) for token in self._tokens]
        return any(matches)

    def _proof(self, user: str, password: bytes) -> bytes:
        """A password that was right once is remembered under a key of this process."""
        return hmac.digest(self._key, user.encode() + b"\0" + password, "sha256")

    def _is_known(self, user: str, password: bytes) -> bool:
        return hmac.compare_digest(self._known.get(user, b""), self._proof(user, password))

    def _password(self, user: str, password: bytes, address: str) -> bool:
        """By the hash, which is slow: one at a time, and who waited may find the answer of its twin."""
        check = (address, user, self._proof(user, password))
        with self._counting:
            of_address = [one for one in self._checks if one[0] == address]
            # The same password again is no further guess.
            others = any(one[1] == user and one != check for one in of_address)
            if others or len(of_address) >= MOST_OF_ONE_ADDRESS or len(self._checks) > MOST_WAITING:
                raise PasswordCheckError("other passwords are being checked")
            self._checks.append(check)
        try:
            if not self._hashing.acquire(timeout=BUSY_SECONDS):
                raise PasswordCheckError("other passwords are being checked")
            try:
                return self._is_known(user, password) or self._hashed(user, password)
            finally:
                self._hashing.release()
        finally:
            with self._counting:
                self._checks.remove(check)

    def _hashed(self, user: str, password: bytes) -> bool:
        right = self._users.get(user, self._like(user)).fits(password) and user in self._users
        if right:
            self._known[user] = self._proof(user, password)
        return right

    def _like(self, name: str) -> PasswordHash:
        """The hash that an unknown name is compared with: always the same user's, so that it takes as long as some user's does,
        whatever their hashes cost."""
        several = tuple(self._users.values())
        return several[int.from_bytes(hmac.digest(self._key, name.encode(), "sha256")) % len(several)]


def _login(authorization: str) -> tuple[str, bytes] | None:
    """Return user and password of an Authorization header, None where it has none."""
    scheme, _, given = authorization.partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        name, colon, password = base64.b64decode(given.strip(), validate=True).partition(b":")
        return (name.decode(), password) if colon else None
    except (binascii.Error, ValueError):
        return None


def read_gate(options: WebOptions) -> Authenticator:
    """The gate that the files make. Raises ConfigError with every problem, naming key, file and line."""
    problems: list[str] = []
    tokens = tuple(_tokens("web.bearer_token_file", options.bearer_token_file, problems))
    users = dict(_users("web.basic_auth_users_file", options.basic_auth_users_file, problems))
    if problems:
        raise ConfigError(tuple(problems))
    return Authenticator(tokens, users)


def token_gate(key: str, path: str) -> Authenticator:
    """A gate for the tokens in one file, which the configuration names under `key`. Raises ConfigError as `read_gate`."""
    problems: list[str] = []
    tokens = tuple(_tokens(key, path, problems))
    if problems:
        raise ConfigError(tuple(problems))
    return Authenticator(tokens)


def _tokens(key: str, path: str | None, problems: list[str]) -> Iterator[str]:
    for place, line in _lines(key, path, "token", problems):
        if len(line) < SHORTEST_TOKEN:
            problems.append(f"{place}: a token of fewer than {SHORTEST_TOKEN} characters can be guessed")
        elif not line.isascii() or " " in line:
            problems.append(f"{place}: a token holds only ASCII characters and no space")
        else:
            yield line


def _users(key: str, path: str | None, problems: list[str]) -> Iterator[tuple[str, PasswordHash]]:
    seen: set[str] = set()
    for place, line in _lines(key, path, "user", problems):
        found = _user(line)
        if found is None:
            problems.append(f"{place}: is no line that `python -m agent.http_server.credentials NAME` prints")
        elif found[1].memory_bytes > MAXIMUM_MEMORY_BYTES:
            problems.append(f"{place}: its hash takes more than 64 MiB to check")
        elif found[1].work > MAXIMUM_WORK:
            problems.append(f"{place}: its hash takes longer to check than N * r * p = {MAXIMUM_WORK} does")
        elif found[0] in seen:
            problems.append(f"{place}: the same name stands in a line above")
        else:
            seen.add(found[0])
            yield found


def _user(line: str) -> tuple[str, PasswordHash] | None:
    match = _LINE.fullmatch(line)
    if match is None:
        return None
    ln, r, p = (int(match[key]) for key in ("ln", "r", "p"))
    try:
        salt, digest = _bytes(match["salt"]), _bytes(match["hash"])
    except (binascii.Error, ValueError):
        return None
    if not (1 <= ln <= 20 and 1 <= r <= 64 and 1 <= p <= 64 and len(digest) >= 16):
        return None
    return match["name"], PasswordHash(ln=ln, r=r, p=p, salt=salt, hash=digest)


def _lines(key: str, path: str | None, noun: str, problems: list[str]) -> list[tuple[str, str]]:
    """The lines that say something, each with its place; one problem for a file that says nothing."""
    if path is None:
        return []
    try:
        text = Path(path).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        problems.append(f"{key}: {path} cannot be read: {getattr(error, 'strerror', None) or 'it is no UTF-8 text'}")
        return []
    numbered = enumerate((line.strip() for line in text.splitlines()), 1)
    lines = [(f"{key}: {path}:{number}", line) for number, line in numbered if line and not line.startswith("#")]
    if not lines:
        problems.append(f"{key}: {path} holds no {noun}")
    return lines


def _text(value: bytes) -> str:
    return base64.b64encode(value).decode().rstrip("=")


def _bytes(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)


def main(arguments: list[str]) -> int:
    """Prints a user's line; the password comes from the terminal, or from standard input where there is none."""
    if len(arguments) != 1:
        print("usage: python -m agent.http_server.credentials NAME", file=sys.stderr)
        return 2
    asked = getpass.getpass("Password: ") if sys.stdin.isatty() else sys.stdin.readline().rstrip("\n")
    if not asked:
        print("no password was given", file=sys.stderr)
        return 2
    try:
        print(users_line(arguments[0], asked.encode()))
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
