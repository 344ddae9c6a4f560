"""What counts as a secret of a request, in whatever spelling it comes back, and that hiding it changes nothing a page says."""

from __future__ import annotations

import base64
import html
import json
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import pytest
from engine_server import Engine, Handler, engines
from hostile_store import give as give_json
from hostile_store import serving

from agent.alerting.delivery import AlertmanagerClient, DeliveryError
from agent.errors import ConfigError, ScrapeError
from agent.http_client.connection import PageFetcher
from agent.http_client.error_text import HIDDEN, redact, secrets_of, unmistakable
from agent.http_client.transport import TargetOptions
from agent.prometheus.answers import StoreError
from agent.prometheus.api import StoreApi
from agent.prometheus.options import StoreOptions

TOKEN = 'aB3+/"<ä&=='
"""With all that is spelled otherwise somewhere."""

SPELLINGS = {
    "as it is": lambda text: text,
    "in an address": lambda text: quote(text, safe=""),
    "in an address, small": lambda text: re.sub("%..", lambda found: found[0].lower(), quote(text, safe="")),
    "in a path": quote,
    "in HTML": html.escape,
    "in JSON": lambda text: json.dumps(text)[1:-1],
    "in PHP's JSON": lambda text: json.dumps(text)[1:-1].replace("/", "\\/"),
    "without its end": lambda text: text.rstrip("="),
}


@pytest.mark.parametrize(
    "spelling", [name for name in SPELLINGS if name not in ("in an address, small", "in PHP's JSON")]
)
def test_a_secret_is_hidden_in_whatever_spelling_it_comes_back(spelling: str) -> None:
    said = SPELLINGS[spelling](TOKEN)
    assert redact(f"you said {said}, no", (f"Bearer {TOKEN}",)) in (
        f"you said {HIDDEN}, no",
        f"you said {HIDDEN}==, no",
    )


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_so_is_a_password_and_all_of_a_basic_header(spelling: str) -> None:
    pair = base64.b64encode(b"ada:p/w+d?x=").decode()
    for secret in (pair, "p/w+d?x="):
        said = redact(f"<{SPELLINGS[spelling](secret)}>", (f"Basic {pair}",))
        assert secret.rstrip("=") not in said
        assert said.startswith(f"<{HIDDEN}")


@pytest.mark.parametrize(
    ("query", "gone"),
    [
        ("key=abcd1234", "abcd1234"),
        ("x=1&api_key=ab%2Fcd", "ab%2Fcd"),
        ("x=1&api_key=ab%2Fcd", "ab/cd"),
        ("X-Amz-Signature=0f9e", "0f9e"),
        ("a=1;sig=zzzz", "zzzz"),
        ("justatokenalone", "justatokenalone"),
        ("whatever=some-long-value", "some-long-value"),
    ],
)
def test_what_the_query_of_an_address_holds_is_hidden_in_a_message(query: str, gone: str) -> None:
    assert redact(f"no such page: {gone}", (), f"http://h/m?{query}") == f"no such page: {HIDDEN}"


@pytest.mark.parametrize("query", ["", "auth=1", "format=text", "a&b=c", "key="])
def test_small_change_in_a_query_is_no_secret(query: str) -> None:
    assert secrets_of((), f"http://h/m?{query}") == ()


def test_in_a_page_only_what_can_be_nothing_else_is_hidden() -> None:
    def basic(password: str) -> str:
        return f"Basic {base64.b64encode(f'x:{password}'.encode()).decode()}"

    assert "hunter2-is-mine" in unmistakable((basic("hunter2-is-mine"),))
    for password in ("vllm", "1", "0.5", "requests", "num_requests_running", "1234567"):
        assert password not in unmistakable((basic(password),))
        assert password in secrets_of((basic(password),))
    # A value may be a model's name, which the page says too; what is called a secret is one.
    assert unmistakable((), "http://h/m?model=llama-3.3-70b-instruct") == ()
    assert unmistakable((), "http://h/m?token=llama-3.3-70b-instruct") == ("llama-3.3-70b-instruct",)


@pytest.mark.parametrize("password", ["vllm", "1", "vllm:num_requests_running", "TYPE", "0"])
def test_a_password_that_is_a_word_of_the_page_changes_nothing_that_is_read(tmp_path: Path, password: str) -> None:
    file = tmp_path / "password"
    file.write_text(password)
    with engines(1) as served:
        options = TargetOptions(url=served[0].url, username="ada", password_file=str(file))
        before = served[0].pages[0]
        served[0].pages = (before,)
        assert PageFetcher(options).fetch() == before


@contextmanager
def moved(to: str) -> Iterator[Engine]:
    def act(handler: Handler) -> None:
        handler.send_response(302)
        handler.send_header("Location", to)
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    with engines(1) as served:
        served[0].act = act
        yield served[0]


@pytest.mark.parametrize("place", ["https://{}.evil.example/", "//{}/", "https://{}:443/x"])
def test_a_redirect_to_a_host_that_is_called_like_our_secret_does_not_tell_it(tmp_path: Path, place: str) -> None:
    file, secret = tmp_path / "token", "s3cret-token-of-ours"
    file.write_text(secret)
    for spelled in (secret, secret.upper()):
        with moved(place.format(spelled)) as engine, pytest.raises(ScrapeError, match="redirects") as caught:
            PageFetcher(TargetOptions(url=engine.url, bearer_token_file=str(file))).fetch()
        # A host's name has no case; what a server changes on purpose it could as well say in the clear elsewhere.
        assert secret not in str(caught.value)
    with moved(place.format("another-secret9")) as engine, pytest.raises(ScrapeError, match="redirects") as caught:
        PageFetcher(TargetOptions(url=f"{engine.url}?token=another-secret9")).fetch()
    assert "another-secret9" not in str(caught.value)


def test_a_store_that_redirects_does_not_bring_our_token_into_a_message(tmp_path: Path) -> None:
    file, secret = tmp_path / "token", "s3cret-token-of-ours"
    file.write_text(secret)
    with serving() as store:
        store.act = lambda handler: give_json(handler, b"", 302, Location=f"https://{secret}.evil.example/")
        with pytest.raises(StoreError) as caught:
            StoreApi(StoreOptions(url=store.url, bearer_token_file=str(file))).query("up", time.time())
    assert "redirects" in caught.value.text
    assert secret not in caught.value.text


def test_the_type_and_the_packing_of_an_answer_do_not_tell_it_either(tmp_path: Path) -> None:
    file, secret = tmp_path / "token", "s3cret-token-of-ours"
    file.write_text(secret)
    for header in ("Content-Type", "Content-Encoding"):

        def act(handler: Handler, header: str = header) -> None:
            handler.send_response(200)
            if header != "Content-Type":
                handler.send_header("Content-Type", "text/plain")
            handler.send_header(header, secret)
            handler.send_header("Content-Length", "4")
            handler.end_headers()
            handler.wfile.write(b"x 1\n")

        with engines(1) as served:
            served[0].act = act
            with pytest.raises(ScrapeError) as caught:
                PageFetcher(TargetOptions(url=served[0].url, bearer_token_file=str(file))).fetch()
        assert HIDDEN in str(caught.value)
        assert secret not in str(caught.value)


def test_the_words_of_an_alertmanager_are_searched_for_the_query_too() -> None:
    with serving() as server:
        server.act = lambda handler: give_json(handler, b'"no: abcd-1234-secret"', 400)
        with pytest.raises(DeliveryError) as caught:
            AlertmanagerClient(TargetOptions(url=f"{server.url}?key=abcd-1234-secret")).round(())
    assert f"400: no: {HIDDEN}" in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "http://.example/m",
        "http://a..b/m",
        "http://*/m",
        f"http://{'a' * 70}/m",
        "http://a b/m",
        "http://[::1]x/m",
        "http://h\0/",
    ],
)
def test_an_address_that_nothing_can_be_asked_at_is_refused_before_the_first_turn(url: str) -> None:
    """It was a defect in every turn, told with its traceback."""
    with pytest.raises(ConfigError, match="no host can be called") as caught:
        TargetOptions(url=f"{url}?key=abcd-1234-secret")
    assert "secret" not in str(caught.value)
