"""Until when certificates are good: read from real ones, and from what is none."""

from __future__ import annotations

import contextlib
import datetime
import ssl

import pytest
import trustme
from cryptography import x509
from hypothesis import given
from hypothesis import strategies as st

from agent.doctor_certificates import end_of

BEGIN = datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC)


def made(until: datetime.datetime) -> bytes:
    leaf = trustme.CA().issue_cert("127.0.0.1", not_before=BEGIN, not_after=until)
    return ssl.PEM_cert_to_DER_cert(leaf.cert_chain_pems[0].bytes().decode("ascii"))


# RFC 5280, 4.1.2.5: years from 2050 on are written in another form.
@pytest.mark.parametrize("year", [2001, 2049, 2050, 2199])
def test_the_end_of_a_certificate_is_read_in_both_forms_of_a_year(year: int) -> None:
    until = datetime.datetime(year, 12, 31, 23, 59, 58, tzinfo=datetime.UTC)
    certificate = made(until)
    assert end_of(certificate) == until.timestamp()
    assert x509.load_der_x509_certificate(certificate).not_valid_after_utc == until


def element(tag: int, *parts: bytes) -> bytes:
    content = b"".join(parts)
    return bytes((tag, len(content))) + content


def test_a_certificate_of_version_1_which_does_not_say_its_version_is_read_too() -> None:
    times = element(0x30, element(0x17, b"200101000000Z"), element(0x17, b"300102030405Z"))
    signed = element(0x30, element(0x02, b"1"), element(0x30), element(0x30), times, element(0x30))
    until = datetime.datetime(2030, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)
    assert end_of(element(0x30, signed)) == until.timestamp()


WHOLE = made(datetime.datetime(2030, 1, 1, tzinfo=datetime.UTC))


@given(st.binary(max_size=80) | st.integers(0, len(WHOLE) - 1).map(lambda size: WHOLE[:size]))
def test_what_is_no_certificate_is_said_to_be_none(data: bytes) -> None:
    with pytest.raises(ValueError):
        end_of(data)


@given(st.integers(0, len(WHOLE) - 1), st.integers(0, 255))
def test_a_certificate_with_a_wrong_byte_is_read_or_refused(place: int, byte: int) -> None:
    damaged = bytearray(WHOLE)
    damaged[place] = byte
    with contextlib.suppress(ValueError):
        assert isinstance(end_of(bytes(damaged)), float)
