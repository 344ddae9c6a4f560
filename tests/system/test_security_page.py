"""Each test that docs/security.md names exists; no file unfolds without end; no message quotes what may be our secret."""

import ast
import re
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from hostile_store import Handler, serving
from loopback import give
from paths import ROOT

from agent.alerting.delivery import AlertmanagerClient
from agent.benchmarks.formats import read_all_results
from agent.config.files import load_plan
from agent.config.load import load as load_config
from agent.config.peer import Peer
from agent.config.store import StoreConfig
from agent.errors import ConfigError, ScrapeError, SizewatchError
from agent.http_client.client import PageFetcher
from agent.prometheus.answers import StoreError
from agent.prometheus.api import StoreApi
from agent.sources.recording import load as load_recording

PAGE = (ROOT / "docs" / "security.md").read_text("utf-8")


def test_every_test_that_the_page_names_exists() -> None:
    named = set(re.findall(r"`(test_\w+)`", PAGE))
    assert len(named) > 40
    paths = ROOT.glob("tests/**/test_*.py")
    known = {name for path in paths for name in re.findall(r"^def (test_\w+)", path.read_text("utf-8"), re.MULTILINE)}
    assert named - known == set()


BILLION = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{new}: &{new} [{', '.join([f'*{old}'] * 9)}]\n" for old, new in zip("abcdefghi", "bcdefghij", strict=True)
)


def _folder(path: Path) -> object:
    (path.parent / "recording.yaml").write_text(f"{BILLION}targets: *j\n")
    return load_recording(path.parent)


READERS: dict[str, Callable[[Path], object]] = {
    "plan": load_plan,
    "configuration": load_config,
    "recording": _folder,
    "benchmark": lambda path: read_all_results((path,)),
}


@pytest.mark.parametrize("what", READERS)
@pytest.mark.parametrize(
    "end", ["", "schema: 1\ntiers: *j\n", "targets: *j\n", "thresholds: {t: *j}\n", "self: &s [*s]\n"]
)
def test_billion_laughs_is_refused_cheaply(tmp_path: Path, what: str, end: str) -> None:
    path = tmp_path / "file.yaml"
    path.write_text(BILLION + end)
    tracemalloc.start()
    try:
        with pytest.raises(SizewatchError) as caught:
            READERS[what](path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # A benchmark's file may be that large, so that much is set aside for reading it.
    assert peak < (320 if what == "benchmark" else 64) * 2**20
    assert len(str(caught.value)) < 100_000


SECRET = "s3cret-token-of-ours"


def fetch_page(url: str, file: str) -> None:
    PageFetcher(Peer(url=url, bearer_token_file=file)).fetch()


def query_store(url: str, file: str) -> None:
    StoreApi(StoreConfig(url=url, bearer_token_file=file)).query("up", time.time())


def post_alerts(url: str, file: str) -> None:
    AlertmanagerClient(Peer(url=f"{url}?key={SECRET}")).round(())


def redirect(place: str) -> Callable[[Handler], None]:
    return lambda handler: give(handler, b"", 302, Location=place)


REPEATED: dict[str, tuple[Callable[[str, str], None], Callable[[Handler], None], str]] = {
    "host": (fetch_page, redirect(f"https://{SECRET}.evil.example/"), "redirects"),
    # A host's name has no case; what a server changes on purpose it could as well say in the clear elsewhere.
    "host in capitals": (fetch_page, redirect(f"https://{SECRET.upper()}.evil.example/"), "redirects"),
    "host alone": (fetch_page, redirect(f"//{SECRET}/"), "redirects"),
    "host and port": (fetch_page, redirect(f"https://{SECRET}:443/x"), "redirects"),
    "store's redirect": (query_store, redirect(f"https://{SECRET}.evil.example/"), "redirects"),
    "content type": (fetch_page, lambda handler: give(handler, b"x 1\n", 200, SECRET), ""),
    "Alertmanager's words": (
        post_alerts,
        lambda handler: give(handler, b'"no: %s"' % SECRET.encode(), 400),
        "answered 400",
    ),
}
"""Who asks, what it is answered, and what is said of it."""


@pytest.mark.parametrize("case", REPEATED)
def test_repeated_secret_is_not_shown(tmp_path: Path, case: str) -> None:
    ask, act, words = REPEATED[case]
    (tmp_path / "token").write_text(SECRET)
    with serving() as server:
        server.act = act
        with pytest.raises((ScrapeError, StoreError)) as caught:
            ask(server.url, str(tmp_path / "token"))
    assert words in str(caught.value)
    assert SECRET not in str(caught.value)


def test_secret_of_a_query_is_not_shown() -> None:
    with serving() as server:
        server.act = redirect("https://another-secret9.evil.example/")
        with pytest.raises(ScrapeError, match="redirects") as caught:
            PageFetcher(Peer(url=f"{server.url}?token=another-secret9")).fetch()
    assert "another-secret9" not in str(caught.value)


HOSTS = (".example", "a..b", "*", "a" * 70, "a b", "[::1]x", "h\0")


@pytest.mark.parametrize("host", HOSTS)
def test_impossible_address_is_refused_at_start(host: str) -> None:
    """It was a defect in every turn, told with its traceback."""
    with pytest.raises(ConfigError, match=r"must be an http:// or https:// address") as caught:
        Peer.read({"url": f"http://{host}/m?key=abcd-1234-secret"})
    assert "secret" not in str(caught.value)


def test_secrets_are_compared_in_constant_time() -> None:
    """No comparison of a token, password or hash in the web server's own gate but `hmac.compare_digest`."""
    text = (ROOT / "agent/http_server/credentials.py").read_text("utf-8")
    suspects = {"token", "digest", "proof", "hash", "password", "found"}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Compare) and any(isinstance(sign, ast.Eq | ast.NotEq) for sign in node.ops):
            sides = {ast.unparse(side).rpartition(".")[2] for side in (node.left, *node.comparators)}
            assert not suspects & sides, ast.unparse(node)
    assert text.count("hmac.compare_digest(") >= 2
