"""A server that fails in every way in turn and repeats what it was sent: headers, decoded passwords, address.

It repeats nothing as a label of a series: names of series are shown, as every monitor shows them.
"""

import base64
import itertools
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler

from loopback import LoopbackServer, Quiet, give, served

MODES = (
    *("unauthorized", "error", "redirect", "garbage", "moved", "page", "bad json", "forbidden", "cut", "odd type"),
    *("hangs", "bad request", "odd encoding", "cut late"),
)


class Echo(LoopbackServer):
    """`seen` are the Authorization and other headers that came."""

    def __init__(self) -> None:
        super().__init__(_Handler)
        self.modes = itertools.cycle(MODES)
        self.seen: list[str] = []


class _Handler(Quiet, BaseHTTPRequestHandler):
    server: Echo

    def _answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        said = self._said()
        self.server.seen.append(f"{self.path} {said}")
        mode = next(self.server.modes)
        if mode == "hangs":
            time.sleep(1.5)
        elif mode == "cut":
            give(self, b"x 1\n", 200, "text/plain", length="10000")
        elif mode == "redirect":
            told = said.strip()[:400]
            give(self, said.encode(), 302, "text/html", Location=f"http://user:{told}@elsewhere/?{told}")
        elif mode == "moved":
            give(self, b"", 302, "text/html", Location=f"https://{self._heard()}.elsewhere/")
        elif mode == "odd type":
            give(self, b"x 1\n", 200, self._heard())
        elif mode == "odd encoding":
            give(self, b"x 1\n", 200, "text/plain", Content_Encoding=self._heard())
        elif mode == "cut late":
            give(self, f"x 1\n# {self._heard()}".encode(), 200, "text/plain")
        elif mode in ("garbage", "page", "bad json"):
            kinds = {"garbage": "text/plain", "page": "text/html", "bad json": "application/json"}
            give(self, said.encode(), 200, kinds[mode])
        else:
            status = {"unauthorized": 401, "error": 500, "forbidden": 403, "bad request": 400}[mode]
            told = said.strip()
            body = f'{{"status": "error", "errorType": "x", "error": "{told}", "message": "{told}"}}'
            give(self, body.encode(), status, "application/json")

    do_GET = do_POST = _answer  # noqa: N815 - the library's names

    def _said(self) -> str:
        words = [self.path, *(f"{name}: {value}" for name, value in self.headers.items())]
        authorization = self.headers.get("Authorization", "")
        if authorization.startswith("Basic "):
            words.append(base64.b64decode(authorization[6:]).decode("utf-8", "replace"))
        return f"you said {' '.join(words)}\n".replace('"', "'")

    def _heard(self) -> str:
        """The secret alone: a password, a token, or what the query holds."""
        given = self.headers.get("Authorization", "").partition(" ")[2] or self.headers.get("X-Api-Key", "")
        return given or self.path.rpartition("=")[2] or "nothing"


@contextmanager
def echoing() -> Iterator[Echo]:
    """One until the end of the block."""
    server = Echo()
    with served(server):
        yield server
