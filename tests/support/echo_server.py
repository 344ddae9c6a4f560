"""A server that fails in every way in turn and repeats what it was sent: headers, decoded passwords, address.

It repeats nothing as a label of a series: names of series are shown, as every monitor shows them.
"""

import base64
import itertools
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler

from loopback import LoopbackServer, Quiet, served

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
            self._give(200, b"x 1\n", "text/plain", length=10_000)
        elif mode == "redirect":
            told = said.strip()[:400]
            self._give(302, said.encode(), "text/html", Location=f"http://user:{told}@elsewhere/?{told}")
        elif mode == "moved":
            self._give(302, b"", "text/html", Location=f"https://{self._heard()}.elsewhere/")
        elif mode == "odd type":
            self._give(200, b"x 1\n", self._heard())
        elif mode == "odd encoding":
            self._give(200, b"x 1\n", "text/plain", **{"Content-Encoding": self._heard()})
        elif mode == "cut late":
            self._give(200, f"x 1\n# {self._heard()}".encode(), "text/plain")
        elif mode in ("garbage", "page", "bad json"):
            kinds = {"garbage": "text/plain", "page": "text/html", "bad json": "application/json"}
            self._give(200, said.encode(), kinds[mode])
        else:
            status = {"unauthorized": 401, "error": 500, "forbidden": 403, "bad request": 400}[mode]
            told = said.strip()
            body = f'{{"status": "error", "errorType": "x", "error": "{told}", "message": "{told}"}}'
            self._give(status, body.encode(), "application/json")

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

    def _give(self, status: int, body: bytes, kind: str, length: int | None = None, **headers: str) -> None:
        self.send_response(status, "OK")
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(length or len(body)))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)
        self.close_connection = True


@contextmanager
def echoing() -> Iterator[Echo]:
    """One until the end of the block."""
    server = Echo()
    with served(server):
        yield server
