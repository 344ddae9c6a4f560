"""Where tests deliver reports to: a webhook and a mail server, both real, on sockets of this machine."""

import json
import socketserver
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from email import message_from_bytes, policy
from email.message import EmailMessage
from http.server import BaseHTTPRequestHandler
from typing import Any

from loopback import LoopbackServer, Quiet, give, served


class Webhook:
    """Takes POSTs. `results` are the statuses of the next ones, then 200; `before` is called with each, before it is answered."""

    def __init__(self) -> None:
        self.taken: list[dict[str, Any]] = []
        self.asked = 0
        self.results: list[int] = []
        self.before: Callable[[], None] = lambda: None
        self.port = 0

    @property
    def place(self) -> str:
        return f"127.0.0.1:{self.port}"


@contextmanager
def webhook() -> Iterator[Webhook]:
    one = Webhook()

    class Handler(Quiet, BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
            one.asked += 1
            one.before()
            status = one.results.pop(0) if one.results else 200
            if status == 200:
                kind = self.headers.get("Content-Type", "")
                said = json.loads(body) if kind.startswith("application/json") else {"form": body, "type": kind}
                one.taken.append({**said, "path": self.path, "authorization": self.headers.get("Authorization")})
            give(self, b"", status)

    server = LoopbackServer(Handler)
    one.port = server.port
    with served(server):
        yield one


class Mailbox:
    """Takes mails."""

    def __init__(self) -> None:
        self.mails: list[EmailMessage] = []
        self.port = 0


@contextmanager
def mail_server() -> Iterator[Mailbox]:
    box = Mailbox()

    class Handler(socketserver.StreamRequestHandler):
        """As much of RFC 5321 as a sender needs."""

        def handle(self) -> None:
            self._say("220 test")
            while line := self.rfile.readline():
                word = line.split(b" ", 1)[0].strip().upper()
                if word == b"EHLO":
                    self._say("250-test\r\n250-AUTH PLAIN LOGIN\r\n250 8BITMIME")
                elif word == b"AUTH":
                    self._say("235 ok")
                elif word == b"DATA":
                    self._say("354 go on")
                    self._data()
                elif word == b"QUIT":
                    self._say("221 bye")
                    return
                else:
                    self._say("250 ok")

        def _data(self) -> None:
            lines = []
            while (line := self.rfile.readline()) not in (b".\r\n", b""):
                lines.append(line.removeprefix(b".") if line.startswith(b"..") else line)
            found = message_from_bytes(b"".join(lines), policy=policy.default)
            assert isinstance(found, EmailMessage)
            box.mails.append(found)
            self._say("250 taken")

        def _say(self, text: str) -> None:
            self.wfile.write(f"{text}\r\n".encode())

    socketserver.ThreadingTCPServer.allow_reuse_address = True
    server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    box.port = server.server_address[1]
    with served(server):
        yield box
