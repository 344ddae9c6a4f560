"""Heads of requests: what is refused before anything else is done with a request, and which client gets gzip."""

from __future__ import annotations

import pytest

from agent.http_server.request_head import RequestHeadError, find_head_end, is_gzip_accepted, parse_head


def head(*lines: str, first: str = "GET / HTTP/1.1") -> bytes:
    return "\r\n".join((first, *lines, "", "")).encode("latin-1")


def test_a_head_is_parsed_with_its_path_decoded_and_names_in_lower_case() -> None:
    first = "POST /a%20b?c=%20 HTTP/1.1"
    found = parse_head(head("HOST: localhost:9095", "X-A:  b \t", "Content-Length: 7", first=first))
    assert (found.method, found.path, found.query, found.body_bytes) == ("POST", "/a b", "c=%20", 7)
    assert found.headers == {"host": "localhost:9095", "x-a": "b", "content-length": "7"}
    assert not found.expects_continue


def test_only_a_client_of_http_1_1_waits_to_be_told() -> None:
    expects = ("Host: a", "Expect: 100-Continue")
    assert parse_head(head(*expects)).expects_continue
    assert not parse_head(head(*expects, first="POST / HTTP/1.0")).expects_continue


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:9095", "10.0.0.7", "[::1]:9095", "a_b.example.", "a:"])
def test_a_host_header_names_a_host(host: str) -> None:
    assert parse_head(head(f"Host: {host}")).headers["host"] == host


def test_before_http_1_1_no_host_is_needed() -> None:
    assert parse_head(head(first="GET / HTTP/1.0")).headers == {}


REFUSED: tuple[tuple[bytes, str], ...] = (
    (head(), "exactly one Host"),
    (head("Host: a", "Host: a"), "exactly one Host"),
    (head("Host: a", "Host: b", first="GET / HTTP/1.0"), "exactly one Host"),
    (head("Host :a"), "malformed header line"),
    (head("Host: a", "X\t: b"), "malformed header line"),
    (head("Host: a", " Content-Length: 5"), "malformed header line"),
    (head("Host: a", "no colon"), "malformed header line"),
    (head("Host: a", ": b"), "malformed header line"),
    (head("Host: a", "X: b\0"), "malformed header line"),
    (head("Host: a", "X: b\rY: c"), "malformed header line"),
    (head("Host:"), "Host header is malformed"),
    (head("Host: a b"), "Host header is malformed"),
    (head("Host: a, b/c"), "Host header is malformed"),
    (head("Host: ["), "Host header is malformed"),
    (head("Host: a:b"), "Host header is malformed"),
    (head("Host: \xe4"), "Host header is malformed"),
    (head("Host: a", "Content-Length: 1", "Content-Length: 2"), "Content-Length header is malformed"),
    (head("Host: a", "Content-Length: +5"), "Content-Length header is malformed"),
    (head("Host: a", "Content-Length: \xb2"), "Content-Length header is malformed"),
    (head("Host: a", "Content-Length: 5, 5"), "Content-Length header is malformed"),
    (head("Host: a", "Content-Length: 5", "Transfer-Encoding: chunked"), "not both"),
    (head("Host: a", first="GET /"), "malformed request line"),
    (head("Host: a", first="GET /a b HTTP/1.1"), "malformed request line"),
    (b"GET / HTTP/1.1\nHost: a\n\n", "malformed request line"),
    (b"GET / HTTP/1.1\r\nHost: a\n\r\n", "malformed header line"),
    (b"\r\n\r\n", "malformed request line"),
)


@pytest.mark.parametrize(("data", "text"), REFUSED)
def test_a_head_that_is_ambiguous_is_refused(data: bytes, text: str) -> None:
    with pytest.raises(RequestHeadError, match=text) as caught:
        parse_head(data)
    assert caught.value.status == "400 Bad Request"


def test_another_version_is_refused_as_such() -> None:
    with pytest.raises(RequestHeadError) as caught:
        parse_head(head("Host: a", first="GET / HTTP/9.9"))
    assert caught.value.status == "505 HTTP Version Not Supported"


def test_an_empty_line_before_a_request_is_no_part_of_it() -> None:
    data = b"\r\n" + head("Host: a")
    assert find_head_end(data) == len(data)
    assert parse_head(data).path == "/"


def test_a_head_ends_with_an_empty_line() -> None:
    whole = head("Host: a")
    assert find_head_end(whole + b"body") == len(whole)
    assert [find_head_end(whole[:length]) for length in range(len(whole))] == [0] * len(whole)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("", False),
        ("gzip", True),
        ("GZIP", True),
        ("deflate, gzip;q=1.0, *;q=0.5", True),
        ("gzip;q=0", False),
        ("gzip; q=0.000", False),
        ("gzip ; Q=0.001", True),
        ("*", True),
        ("*;q=0", False),
        ("gzip;q=0, *", False),
        ("identity, *;q=0, gzip;q=0.5", True),
        ("x-gzip", True),
        ("gzip;q=", False),
        ("gzip;q=nan", False),
        ("gzip;q=-1", False),
        ("notgzip", False),
        ("br", False),
    ],
)
def test_gzip_is_sent_to_who_accepts_it(value: str, expected: bool) -> None:
    assert is_gzip_accepted(value) is expected
