"""Until when certificates are good: read from real files, and from what is none."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest
import trustme
from hypothesis import given
from hypothesis import strategies as st

from agent.doctor.certificates import _of_file

BEGIN = datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC)


def made(until: datetime.datetime) -> bytes:
    """A key and the chain behind it in one file, as many servers want it."""
    return (
        trustme.CA().issue_cert("127.0.0.1", not_before=BEGIN, not_after=until).private_key_and_cert_chain_pem.bytes()
    )


# RFC 5280, 4.1.2.5: years from 2050 on are written in another form.
@pytest.mark.parametrize("year", [2001, 2049, 2050, 2199])
def test_the_end_of_the_first_certificate_of_a_file_is_read(year: int, tmp_path: Path) -> None:
    until = datetime.datetime(year, 12, 31, 23, 59, 58, tzinfo=datetime.UTC)
    path = tmp_path / "web.pem"
    path.write_bytes(made(until))
    assert _of_file(str(path)) == until.timestamp()


WHOLE = made(datetime.datetime(2030, 1, 1, tzinfo=datetime.UTC))


@given(st.binary(max_size=80) | st.integers(0, WHOLE.index(b"BEGIN CERT") + 400).map(lambda size: WHOLE[:size]))
def test_of_what_is_no_certificate_nothing_is_told(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.mktemp("pem") / "web.pem"
    path.write_bytes(data)
    assert _of_file(str(path)) is None


@given(st.integers(0, len(WHOLE) - 1), st.integers(0, 255))
def test_a_file_with_a_wrong_byte_is_read_or_nothing_is_told(
    tmp_path_factory: pytest.TempPathFactory, place: int, byte: int
) -> None:
    path = tmp_path_factory.mktemp("pem") / "web.pem"
    path.write_bytes(WHOLE[:place] + bytes([byte]) + WHOLE[place + 1 :])
    found = _of_file(str(path))
    assert found is None or isinstance(found, float)
