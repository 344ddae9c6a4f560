"""A canary in every place of a configuration that holds a secret; daemons that fail in every way; and everything they wrote,
served, printed or passed on, searched for each of them.

A new key that holds a secret is found by `test_every_secret_key_has_a_canary`; it gets a line in `Nest`.
"""

from __future__ import annotations

import base64
import contextlib
import gzip
import http.client
import itertools
import json
import os
import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import bcrypt
import pytest
import trustme
import yaml
from daemon_runs import PLAN, process, run_command
from engine_server import engines
from loopback import LoopbackServer, Quiet, give, served
from tools import run_words
from waiting import CEILING_SECONDS, free_port, wait_for

from agent.cli.main import main
from agent.config.config import Config
from agent.config.notifications import Alertmanager
from agent.config.targets import Connection

MINED = re.compile(r"(_file$|^url_env$|^header_files$)")
"""Keys that name a secret's place."""

PUBLIC = frozenset({"ca_file", "client_ca_file", "pid_file"})


class Nest:
    """Secrets, each in a file of a folder; `found` says which of them stand in bytes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.eggs: dict[str, str] = {}

    def file(self, place: str, around: str = "{}\n") -> str:
        """The name of a new file with the secret of this place."""
        path = self.folder / f"{place}.secret"
        path.write_text(around.replace("{}", self.egg(place)))
        path.chmod(0o600)
        return str(path)

    def egg(self, place: str) -> str:
        return self.eggs.setdefault(place, f"canary{len(self.eggs):02d}x{os.urandom(12).hex()}")

    def key(self, place: str, path: str) -> None:
        """A private key that is there already: a line of its text is the canary."""
        self.eggs[place] = Path(path).read_text().splitlines()[3]

    def found(self, data: bytes) -> list[str]:
        text = data.decode("utf-8", "replace")
        encoded = {place: base64.b64encode(f"sizewatch:{egg}".encode()).decode() for place, egg in self.eggs.items()}
        # A third of a secret is as bad as all of it.
        return [
            place
            for place, egg in self.eggs.items()
            if egg[: len(egg) // 2] in text or egg[len(egg) // 2 :] in text or encoded[place] in text
        ]

    def around(self, data: bytes) -> list[str]:
        """What stands before each secret that was found, to see who let it out."""
        text = data.decode("utf-8", "replace")
        return [f"{place}: ...{text.partition(self.eggs[place][:15])[0][-120:]}" for place in self.found(data)]


def login(nest: Nest, place: str) -> dict[str, Any]:
    return {"basic_auth": {"username": "sizewatch", "password_file": nest.file(place)}}


def issued(nest: Nest, authority: trustme.CA, place: str) -> dict[str, str]:
    made = authority.issue_cert("127.0.0.1", "localhost")
    certificate, key = nest.folder / f"{place}.pem", nest.folder / f"{place}.key"
    made.cert_chain_pems[0].write_to_path(certificate)
    made.private_key_pem.write_to_path(key)
    nest.key(place, str(key))
    return {"cert_file": str(certificate), "key_file": str(key)}


def standalone(nest: Nest, echo: Echo, port: int, authority: trustme.CA) -> dict[str, Any]:
    secure = echo.url.replace("http", "https")

    def target(replica: str, path: str = "metrics", url: str = echo.url, **keys: Any) -> dict[str, Any]:
        return {"url": f"{url}/{path}", "tier": "cpu-small", "scrape_timeout": "500ms", "replica": replica, **keys}

    def manager(url: str, **keys: Any) -> dict[str, Any]:
        return {"url": url, "timeout": "500ms", **keys}

    down, odd = nest.file("targets token of one that is down"), nest.file("targets token no header takes", "{}\n\x01\n")
    way_in = f"json://user:{{}}@{echo.url[7:]}/{{}}\n"
    return {
        "plan": str(PLAN),
        "scrape_interval": "500ms",
        "data_dir": str(nest.folder / "data"),
        "targets": [
            target("a", f"metrics?key={nest.egg('targets query')}", bearer_token_file=nest.file("targets token")),
            target("q", f"metrics?token={nest.egg('targets query alone')}"),
            target("b", **login(nest, "targets password")),
            target("c", url=secure, tls=issued(nest, authority, "targets key")),
            target("d", url="http://127.0.0.1:1", bearer_token_file=down),
            target("e", bearer_token_file=odd),
        ],
        "gpus": {"source": "dcgm", "dcgm": {"url": f"{echo.url}/gpu", "bearer_token_file": nest.file("gpus token")}},
        "web": _web(nest, port, _users(nest)),
        "alerting": {
            "path": "posts",
            "alertmanagers": [
                manager(echo.url, bearer_token_file=nest.file("alertmanagers token")),
                manager(f"{echo.url}/b", **login(nest, "alertmanagers password")),
                manager(f"{echo.url}/c?sig={nest.egg('alertmanagers query')}"),
                manager(secure, tls=issued(nest, authority, "alertmanagers key")),
            ],
            "receiver": {"bearer_token_file": nest.file("receiver token")},
        },
        "report": {
            "deliver": [
                {"name": "file", "url_file": nest.file("report file", way_in)},
                {"name": "variable", "url_env": "CANARY_URL"},
                {"name": "odd", "url_file": nest.file("report odd", "{} and more\n")},
                {"name": "unknown", "url_file": nest.file("report unknown", "nobody://{}\n")},
            ]
        },
        "logging": {"level": "debug"},
    }


def _web(nest: Nest, port: int, config_file: str = "") -> dict[str, str]:
    keys = {"listen": f"127.0.0.1:{port}", "bearer_token_file": nest.file("web token")}
    return keys | ({"config_file": config_file} if config_file else {})


def _users(nest: Nest) -> str:
    path = nest.folder / "web.yml"
    hashed = bcrypt.hashpw(nest.egg("web password").encode(), bcrypt.gensalt(4)).decode()
    path.write_text(yaml.safe_dump({"basic_auth_users": {"ada": hashed}}))
    nest.eggs["web hash"] = hashed.rpartition("$")[2]
    return str(path)


def fleet(nest: Nest, echo: Echo, port: int, authority: trustme.CA) -> dict[str, Any]:
    web_file = nest.folder / "tls.yml"
    web_file.write_text(yaml.safe_dump({"tls_server_config": issued(nest, authority, "web key")}))
    return {
        "role": "fleet",
        "plan": str(PLAN),
        "data_dir": str(nest.folder / "data"),
        "fleet": {},
        "store": {
            "url": echo.url,
            "timeout": "500ms",
            "bearer_token_file": nest.file("store token"),
            "header_files": {"X-Api-Key": nest.file("store header")},
        },
        "web": _web(nest, port, str(web_file)),
        "logging": {"level": "debug", "format": "json"},
    }


def node(nest: Nest, echo: Echo, port: int, authority: trustme.CA) -> dict[str, Any]:
    api = {"url": echo.url, "bearer_token_file": nest.file("kubernetes token")}
    return {
        "role": "node",
        "plan": str(PLAN),
        "gpus": {"source": "none"},
        "scrape_interval": "500ms",
        "discovery": {"kubernetes": {"node": "gpu-1", "api": api}},
        "web": _web(nest, port),
        "logging": {"level": "debug"},
    }


ROLES = {"standalone": standalone, "fleet": fleet, "node": node}
PAGES = ("/", "/metrics", "/api/status", "/healthz", "/readyz", "/reports/", "/nothing", "/webhook/alertmanager")


@pytest.mark.parametrize("role", ROLES)
def test_no_secret_leaves_its_files(role: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority, nest, port = trustme.CA(), Nest(tmp_path), free_port()
    with echoing() as echo:
        monkeypatch.setenv("CANARY_URL", f"jsons://user:{nest.egg('report variable')}@{echo.url[7:]}/")
        data = ROLES[role](nest, echo, port, authority)
        path = tmp_path / "sizewatch.yaml"
        path.write_text(yaml.safe_dump(data))
        found: dict[str, bytes] = {}
        with process("run", "-c", str(path)) as daemon:
            assert wait_for(lambda: _opened(port)), "it did not start"
            assert wait_for(lambda: _at_home(nest, echo, role) <= FLOWN_LATER, every=0.1), _at_home(nest, echo, role)
            time.sleep(4.0)
            found |= _served(nest, port, tls=role == "fleet")
            found |= _seen_by_ps(daemon.pid)
            _misconfigured(nest, path, data)
            daemon.send_signal(signal.SIGHUP)
            time.sleep(1.0)
            found |= {f"{name}, later": text for name, text in _served(nest, port, tls=role == "fleet").items()}
            path.write_text(yaml.safe_dump(data))
            daemon.send_signal(signal.SIGTERM)
            out, err = daemon.communicate(timeout=CEILING_SECONDS)
        found |= {"stdout": out.encode(), "stderr": err.encode()}
        found |= _commands(nest, path, echo, role)
    found |= _written(tmp_path / "data")
    assert len(err) > 500, err
    assert _at_home(nest, echo, role) == set(), "a canary that never left its file would prove nothing"
    leaks = {name: nest.around(text) for name, text in found.items() if nest.found(text)}
    assert leaks == {}, "\n".join(f"{name}: {where}" for name, where in leaks.items())


def _opened(port: int) -> bool:
    try:
        return bool(_get(port, "/healthz", tls=False) or True)
    except (OSError, http.client.HTTPException) as error:
        return not isinstance(error, ConnectionRefusedError)


def _get(port: int, page: str, tls: bool, method: str = "GET", **headers: str) -> bytes:
    import ssl

    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    kinds = {False: http.client.HTTPConnection, True: http.client.HTTPSConnection}
    more: dict[str, Any] = {"context": context} if tls else {}
    with contextlib.closing(kinds[tls]("127.0.0.1", port, timeout=CEILING_SECONDS, **more)) as asked:
        asked.request(method, page, headers=headers, body=b"{}" if method == "POST" else None)
        result = asked.getresponse()
        body = result.read()
        body = gzip.decompress(body) if result.headers.get("Content-Encoding") == "gzip" else body
        return f"{result.status} {result.reason}\n{result.headers}\n".encode() + body


def _served(nest: Nest, port: int, tls: bool) -> dict[str, bytes]:
    """Every page, to a reader who may and to some who may not, one of whom has mistyped."""
    token = f"Bearer {nest.egg('web token')}"
    wrong = f"Bearer {nest.egg('web token')}x"
    found = {f"page {page}": _get(port, page, tls, Authorization=token) for page in PAGES}
    assert found["page /api/status"].startswith((b"200", b"503"))
    open_metrics = "application/openmetrics-text;version=1.0.0"
    found["page openmetrics"] = _get(port, "/metrics", tls, Authorization=token, Accept=open_metrics)
    found |= {f"refused {page}": _get(port, page, tls, Authorization=wrong) for page in PAGES}
    found["mistyped"] = _get(
        port, f"/{nest.egg('mistyped path')}?token={nest.egg('mistyped query')}", tls, Authorization=token
    )
    found["posted"] = _get(
        port, "/webhook/alertmanager", tls, "POST", Authorization=wrong, Content_Type="application/json"
    )
    return found


def _seen_by_ps(pid: int) -> dict[str, bytes]:
    """Command lines of the daemon and all that it began. Their environments began as that of the daemon."""
    found = {f"command line of {pid}": Path(f"/proc/{pid}/cmdline").read_bytes()}
    children = run_words(["ps", "-o", "pid=", "--ppid", str(pid)])
    for child in map(int, children.stdout.split()):
        with contextlib.suppress(OSError):
            found[f"command line of {child}"] = Path(f"/proc/{child}/cmdline").read_bytes()
    return found


def _misconfigured(nest: Nest, path: Path, data: dict[str, Any]) -> None:
    """Secrets where names of files belong, as people paste them: nothing of it may be repeated."""
    wrong = json.loads(json.dumps(data))
    wrong["web"]["bearer_token"] = nest.egg("pasted into an unknown key")
    wrong["web"]["bearer_token_file"] = {"token": nest.egg("pasted into a mapping")}
    wrong["alerting"] = {"alertmanagers": [{"url": f"http://me:{nest.egg('pasted into an address')}@host/"}]}
    name, variable = nest.egg("pasted into a name"), nest.egg("pasted into a variable")
    wrong["report"] = {"deliver": [{"name": f"slack://{name}", "url_env": f"x://{variable}"}]}
    path.write_text(yaml.safe_dump(wrong) + f"broken: [{nest.egg('on a broken line')}\n" * (len(nest.eggs) % 2))


def _commands(nest: Nest, path: Path, echo: Echo, role: str) -> dict[str, bytes]:
    out = str(path.parent / "out")
    several: list[list[str]] = [["doctor", "-c", str(path)], ["doctor", "-c", str(path), "--format", "json"]]
    if role == "standalone":
        inspect = ["inspect", f"{echo.url}/metrics?key={nest.egg('option query')}"]
        login_ways = ["--username", "sizewatch", "--password-file", nest.file("option password")]
        push = ["dashboards", "push", "--token-file", nest.file("grafana token"), "--url"]
        several += [
            ["check", "-c", str(path)],
            ["timeline", "-c", str(path)],
            ["report", "-c", str(path), "--out", out, "--deliver"],
            *([*inspect, "--bearer-token-file", nest.file("option token")],) * 4,
            *([*inspect, *login_ways],) * 4,
            *([*push, echo.url],) * 8,
            [*push, f"http://me:{nest.egg('grafana address')}@h"],
            ["run", "--help"],
        ]
    found = {}
    for number, words in enumerate(several):
        _, out_text, errors = run_command(*words)
        found[f"{number}: {' '.join(words[:2])}"] = (out_text + errors).encode()
    return found | _written(Path(out))


def _written(folder: Path) -> dict[str, bytes]:
    return {f"file {one.relative_to(folder)}": one.read_bytes() for one in folder.rglob("*") if one.is_file()}


def _at_home(nest: Nest, echo: Echo, role: str) -> set[str]:
    """What is used and was not heard yet."""
    heard = "\n".join(list(echo.seen))
    targets = ("targets token", "targets password", "targets query", "targets query alone", "gpus token")
    expected = {
        "standalone": (*targets, *FLOWN_LATER),
        "fleet": ("store token", "store header"),
        "node": ("kubernetes token",),
    }[role]
    return {place for place in expected if place not in nest.eggs or nest.egg(place) not in heard}


FLOWN_LATER = {"grafana token", "option token", "report file"}
"""What the commands use, not the daemon."""


def test_what_a_search_would_find_is_found(tmp_path: Path) -> None:
    nest = Nest(tmp_path)
    nest.file("one")
    egg = nest.egg("one")
    for text in (egg, egg[:-3], f"x{egg}x", base64.b64encode(f"sizewatch:{egg}".encode()).decode()):
        assert nest.found(text.encode()) == ["one"]
    assert nest.found(b"canary") == []


def test_every_secret_key_has_a_canary(tmp_path: Path) -> None:
    """By the schema: a new key of this kind fails here until it has a canary."""
    schema = Config.model_json_schema(mode="validation")
    named = {name for name in _used(schema) if MINED.search(name)} - PUBLIC
    nest, authority = Nest(tmp_path), trustme.CA()
    with echoing() as echo:
        used = {key for make in ROLES.values() for key in _used(make(nest, echo, 1, authority))}
    assert named - used == set()
    assert named >= {"bearer_token_file", "password_file", "key_file", "url_file", "url_env", "header_files"}
    assert Connection.model_fields.keys() >= {"bearer_token_file"} <= Alertmanager.model_fields.keys()


def _used(data: Any) -> Iterator[str]:
    """Every key of a document, and what stands below each."""
    if isinstance(data, dict):
        yield from data
    for value in data.values() if isinstance(data, dict) else data if isinstance(data, list) else ():
        yield from _used(value)


@pytest.mark.parametrize("words", [["inspect"], ["inspect", "--format", "json"], ["plan", "init"]])
@pytest.mark.parametrize("page", ["metrics", "nothing"])
def test_command_leaves_query_out_of_output(
    words: list[str], page: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of an engine that answers well: what goes into a ticket is what a command said of it."""
    nest = Nest(tmp_path)
    with engines(1) as served:
        address = f"{served[0].url.replace('metrics', page)}?token={nest.egg('query')}"
        code = main([*words, address])
    assert code in (0, 1, 2, 3)
    said = capsys.readouterr()
    assert len(said.out + said.err) > 20
    assert nest.around((said.out + said.err).encode()) == []


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
