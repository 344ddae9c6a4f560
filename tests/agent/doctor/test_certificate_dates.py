"""The end of a certificate, read from its bytes, against what the library of the tests says."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given
from hypothesis import strategies as st

from agent.doctor.certificates import find_end

KEY = ec.generate_private_key(ec.SECP256R1())


def certificate(end: datetime) -> bytes:
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "x" * 60)])
    made = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(KEY.public_key())
    dated = made.serial_number(2**158).not_valid_before(end - timedelta(days=1)).not_valid_after(end)
    return dated.sign(KEY, hashes.SHA256()).public_bytes(serialization.Encoding.DER)


@pytest.mark.parametrize("year", [1951, 1999, 2026, 2049, 2050, 2400])
def test_the_end_is_read_in_both_forms_of_time(year: int) -> None:
    end = datetime(year, 3, 1, 12, 30, 59, tzinfo=UTC)
    assert find_end(certificate(end)) == end.timestamp()


SOUND = certificate(datetime(2030, 1, 1, tzinfo=UTC))


@given(st.integers(0, len(SOUND) - 1), st.binary(max_size=4))
def test_a_damaged_one_is_a_value_error_or_another_date(place: int, other: bytes) -> None:
    for spoilt in (SOUND[:place], SOUND[:place] + other + SOUND[place + len(other) :]):
        try:
            assert isinstance(find_end(spoilt), float)
        except ValueError:
            continue
