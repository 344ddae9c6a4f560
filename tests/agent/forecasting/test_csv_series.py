"""Traces from CSV files: the right series, or the line that is wrong and what to do about it."""

import csv
import gzip
import math
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from paths import SHARED

from agent.forecasting.csv_series import Trace, TraceError, read_trace
from agent.forecasting.input_series import input_from_csv
from forecast.series.binned import Array

NAN = math.nan
BERLIN = "Europe/Berlin"
TRACES = SHARED / "traces"


def row(*values: float) -> Array:
    return np.array(values, dtype=np.float64)


def written(folder: Path, *lines: str, header: str = "timestamp,requests", end: str = "\n") -> Path:
    path = folder / "trace.csv"
    path.write_bytes((end.join((header, *lines)) + end).encode())
    return path


def trace(folder: Path, *lines: str, header: str = "timestamp,requests", zone: str = "UTC") -> Trace:
    return read_trace(written(folder, *lines, header=header), zone=zone)


def wrong(path: Path, zone: str = "UTC", bin_seconds: float | None = None) -> str:
    with pytest.raises(TraceError) as caught:
        read_trace(path, zone=zone, bin_seconds=bin_seconds)
    said = str(caught.value)
    assert said.startswith(str(path)), "the file is named"
    return said.removeprefix(str(path))


def unix(text: str, zone: str = "UTC") -> float:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp()


# ---- what can be read ----


TOKENS = "timestamp,requests,prompt_tokens,output_tokens"
UNREAD, EMPTY = "the column 'note' is not read", "the column 'prompt_tokens' is empty"


@pytest.mark.parametrize(
    ("header", "lines", "values", "notes"),
    [
        (TOKENS, ("0,5,700,90", "300,0,,0", "600,7.5,1050,120"), row(5, 0, 7.5), ()),
        ("timestamp,requests", ("0,1", "60,", "120,3", "300,6", "360,7"), row(1, NAN, 3, NAN, NAN, 6, 7), ()),
        ("note, Requests,Timestamp,prompt_tokens", ("x,1,0,", "y,2,60,", "z,3,120,"), row(1, 2, 3), (UNREAD, EMPTY)),
    ],
    ids=["tokens", "gaps and empty cells", "any order"],
)
def test_requests_become_a_series(
    tmp_path: Path, header: str, lines: tuple[str, ...], values: Array, notes: tuple[str, ...]
) -> None:
    found = trace(tmp_path, *lines, header=header)
    assert_array_equal(found.requests.values, values)
    assert found.notes == notes


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("zipped", [False, True])
def test_encodings_make_no_difference(tmp_path: Path, end: str, mark: bytes, zipped: bool) -> None:
    body = mark + end.join(("timestamp,requests", "0, 1", "", '60,"2"', "120,3", "")).encode()
    path = tmp_path / ("trace.csv.gz" if zipped else "trace.csv")
    path.write_bytes(gzip.compress(body) if zipped else body)
    assert_array_equal(read_trace(path).requests.values, row(1, 2, 3))


@pytest.mark.parametrize(
    "times",
    [
        ("0", "600", "1200"),
        ("1767225600", "1767226200", "1767226800"),
        ("0.0", "0.5", "1.0"),
        ("2026-01-01T00:00:00Z", "2026-01-01T00:10:00Z", "2026-01-01T00:20:00Z"),
        ("2026-01-01 00:00:00+05:30", "2026-01-01 00:10:00+05:30", "2026-01-01 00:20:00+05:30"),
        ("2026-01-01T00:00-0800", "2026-01-01T00:10-0800", "2026-01-01T00:20-0800"),
        ("2026-01-01 00:00", "2026-01-01 00:10", "2026-01-01 00:20"),
        ("2026-01-01T00:00:00.000", "2026-01-01T00:00:00.250", "2026-01-01T00:00:00.500"),
        ("2026-01-01", "2026-01-02", "2026-01-03"),
    ],
)
@pytest.mark.parametrize("zone", ["UTC", BERLIN])
def test_every_form_of_a_time_is_read(tmp_path: Path, times: tuple[str, ...], zone: str) -> None:
    found = trace(tmp_path, *(f"{t},1" for t in times), zone=zone)
    series = found.requests
    if times[0].replace(".", "").isdigit():
        moments = [float(t) for t in times]
    else:
        local = [datetime.fromisoformat(t) for t in times]
        moments = [(t if t.tzinfo else t.replace(tzinfo=ZoneInfo(zone))).timestamp() for t in local]
    assert tuple(found.time_text(t) for t in moments) == times
    assert [series.time(index) for index in range(len(series))] == moments


# ---- clocks that are put forward and back ----


def local_rows(first: str, last: str, step: timedelta, zone: str) -> list[str]:
    """What a clock in the zone showed, every `step` from one instant (UTC) to another."""
    t, rows = datetime.fromisoformat(first).replace(tzinfo=UTC), []
    while t < datetime.fromisoformat(last).replace(tzinfo=UTC):
        rows.append(t.astimezone(ZoneInfo(zone)).strftime("%Y-%m-%d %H:%M"))
        t += step
    return rows


@pytest.mark.parametrize("minutes", [5, 15, 60])
@pytest.mark.parametrize("zone", [BERLIN, "America/New_York", "Australia/Lord_Howe", "UTC"])
def test_local_year_is_even_over_clock_changes(tmp_path: Path, zone: str, minutes: int) -> None:
    if zone == "Australia/Lord_Howe" and minutes == 60:
        minutes = 30  # its clock moves by half an hour
    rows: list[str] = []
    for month in ("03", "04", "10", "11"):
        begin, end = f"2026-{month}-01", f"2026-{int(month) + 1:02d}-01"
        rows += local_rows(begin, end, timedelta(minutes=minutes), zone)
    found = trace(tmp_path, *(f"{t},1" for t in rows), zone=zone)
    assert found.requests.start == unix("2026-03-01")
    assert found.requests.bin_seconds == 60.0 * minutes
    assert np.nansum(found.requests.values) == len(rows)
    assert found.requests.end == unix("2026-12-01")


OCTOBER = "2026-10-25"


@pytest.mark.parametrize(
    ("times", "said"),
    [
        (("2026-03-29 01:30", "2026-03-29 02:00", "2026-03-29 03:30"), "2026-03-29 02:00:00 is a nonexistent time"),
        ([f"{OCTOBER} 0{h}:{m}" for h in (1, 2, 3) for m in (10, 25, 40)], f"{OCTOBER} 02:10:00 is an ambiguous time"),
        ([f"{OCTOBER} 02:{m}" for _ in range(3) for m in ("00", "30")], "There are 2 dst"),
    ],
    ids=["skipped", "ambiguous", "three times"],
)
def test_impossible_local_hour_is_refused(tmp_path: Path, times: Sequence[str], said: str) -> None:
    path = written(tmp_path, *(f"{t},1" for t in times))
    told = wrong(path, BERLIN)
    assert told.startswith(f": timestamp: by the clock in Europe/Berlin: {said}")
    assert "write times in UTC" in told


@pytest.mark.parametrize(
    ("times", "values"),
    [
        ("29T01:30:00+01:00 29T03:00:00+02:00 29T03:30:00+02:00", row(1, 1, 1)),
        ("25T02:00 25T02:15 25T02:30 25T02:45 25T02:30 25T03:00", row(1, 1, 1, 1, NAN, NAN, 1, NAN, 1)),
    ],
    ids=["an offset that changes", "an hour twice, with a hole"],
)
def test_hour_of_clock_change_is_understood(tmp_path: Path, times: str, values: Array) -> None:
    lines = [f"2026-{'03' if '+' in times else '10'}-{t.replace('T', ' ')},1" for t in times.split()]
    assert_array_equal(trace(tmp_path, *lines, zone=BERLIN).requests.values, values)


# ---- what cannot ----


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (("0,1", "60,2", "60,3", "120,4"), ":4: timestamp: '60' is not later than the row before; sort by time"),
        (("0,1", "9,2", "6,3"), ":4: timestamp: '6' is not later than the row before; sort by time, and write the"),
        (("0,1", "60,-3", "120,4"), ":3: requests: '-3' is no count of 0 to 1e+15; leave the cell empty"),
        (("0,1", "60,many", "120,4"), ":3: requests: 'many' is no count"),
        (("0,1", "60,nan", "120,4"), ":3: requests: 'nan' is no count"),
        (("0,1", "60,inf", "120,4"), ":3: requests: 'inf' is no count"),
        (("0,1", "60,1e400", "120,4"), ":3: requests: '1e400' is no count"),
        (("0,1", "60,1e300", "120,4"), ":3: requests: '1e300' is no count"),
        (("0,1", "60,1_000", "120,4"), ":3: requests: '1_000' is no count"),
        (("0,True", "60,True", "120,True"), ":2: requests: 'True' is no count"),
        (("0,1", "60,1,200", "120,4"), ":3: is no CSV in UTF-8 with as many cells in each line"),
        (("0,1,200", "60,1,100", "120,1,000"), ":2: is no CSV in UTF-8 with as many cells in each line"),
        (("0,1", ",2", "120,4"), ":3: timestamp: is missing"),
        (("-60,1", "-0,2", "60,4"), ":4: timestamp: '60' is written otherwise"),
        (("-60,1", "-0,2", "-30,4"), ":2: timestamp: '-60' is no time; write a time such as 2026-03-01T00:05:00Z"),
        (("0,1", "60,2"), ": has 2 of the 3 rows that tell how long a bin is"),
        (("0,1", "60,2", "121,3", "180,4", "240,4"), ":4: timestamp: '121' is no whole number of bins of 60 s after"),
        (("0,", "60,", "120,"), ": holds no number in the column requests"),
        (("1767225600000,1",), ":2: timestamp: '1767225600000' is too large for seconds; are these milli"),
        (("0,1", "2026-01-01T00:00:00Z,2"), ":3: timestamp: '2026-01-01T00:00:00Z' is written otherwise than the"),
        (("2026-01-01T00:00Z,1", "2026-01-01T00:01,2"), ":3: timestamp: '2026-01-01T00:01' is written otherwise"),
        (("2026-01-01T00:00,1", "2026-01-01T00:01Z,2"), ":3: timestamp: '2026-01-01T00:01Z' is written otherwise"),
        (("2026-02-28T00:00Z,1", "2026-02-30T00:00Z,2"), ":3: timestamp: '2026-02-30T00:00Z' is no time; write"),
        (("01/02/2026 00:00,1",), ":2: timestamp: '01/02/2026 00:00' is no time; write"),
        ((), ": has a header and no row"),
        # Lines are counted with the blank ones.
        (("0,1", "", "60,2", "   ", "", "60,3"), ":7: timestamp: '60' is not later than the row before"),
        (("0,1", "", "60,2", "   ", "", "90,x"), ":7: requests: 'x' is no count"),
        (("0,1", "1,1", "2,1", "25920000,1"), ": spans 25920001 bins of 1 s, most of them missing"),
        (("time,requests", "0,1"), ":1: has no column timestamp"),
        (("timestamp,request", "0,1"), ":1: has no column requests; the header must be timestamp,requests[,prompt_"),
        (("arrival_s,prompt_tokens,output_tokens", "0,1"), ":1: has no column timestamp"),
        (("timestamp;requests,x", "0,1"), ":1: has no column timestamp"),
        (("0,5", "0,1"), ":1: has no column timestamp"),
        (("timestamp,requests,requests", "0,1,1"), ":1: has more than one column requests"),
    ],
)
def test_errors_name_line_and_remedy(tmp_path: Path, lines: tuple[str, ...], said: str) -> None:
    own_header = said.startswith(":1:")
    path = written(tmp_path, *lines[own_header:], header=lines[0] if own_header else "timestamp,requests")
    assert wrong(path).startswith(said)


CUT_OFF = gzip.compress(b"timestamp,requests\n0,1\n60,1\n120,2\n" * 99)[:-30]
NO_CSV = ": is no CSV in UTF-8"


@pytest.mark.parametrize(
    ("name", "body", "said"),
    [
        pytest.param("t.csv", b"", NO_CSV, id="empty"),
        pytest.param("t.csv", b"\n\n", NO_CSV, id="blank lines"),
        pytest.param("t.csv.gz", b"timestamp,requests\n0,1\n", ": cannot be read: Not a gzipped file", id="not packed"),
        pytest.param("t.csv.gz", CUT_OFF, NO_CSV, id="cut off"),
        pytest.param("t.csv", "timestamp,requests\n0,1\n".encode("utf-16"), NO_CSV, id="UTF-16"),
        pytest.param("t.csv", b"timestamp,requests\n0,1\n60,\xff\n120,3\n", NO_CSV, id="a byte of Latin-1"),
        pytest.param("t.csv", b"timestamp,requests\n0,1\n60,5\x00\n120,3\n", "", id="a zero byte"),
        pytest.param("t.csv", b'timestamp,requests\n0,1\n60,"5\n', NO_CSV, id="a quote"),
    ],
)
def test_broken_csv_is_refused_in_words(tmp_path: Path, name: str, body: bytes, said: str) -> None:
    path = tmp_path / name
    assert wrong(path) == ": cannot be read: No such file or directory"
    path.write_bytes(body)
    assert wrong(path).startswith(said)


# ---- bins that are asked for ----


def test_bins_are_added_up_or_kept(tmp_path: Path) -> None:
    found = read_trace(written(tmp_path, *(f"{60 * i},{i}" for i in range(10))), bin_seconds=300.0)
    assert (found.requests.bin_seconds, found.notes) == (300.0, ())
    assert_array_equal(found.requests.values, row(10, 35))
    coarse = read_trace(written(tmp_path, "0,1", "600,2", "1200,3"), bin_seconds=300.0)
    assert coarse.requests.bin_seconds == 600.0
    assert coarse.notes == ("bins of 5m were asked for; the file's own are 10m and are kept",)
    path = written(tmp_path, "0,1", "120,2", "240,3")
    assert wrong(path, bin_seconds=300.0) == ": has bins of 2m, of which no whole number makes 5m; ask for a multiple"


# ---- whatever is in it ----


@settings(max_examples=60, deadline=None)
@given(
    amounts=st.lists(st.one_of(st.none(), st.integers(0, 10**9)), min_size=3, max_size=40),
    left_out=st.sets(st.integers(1, 39)),
    width=st.sampled_from((1, 60, 300, 86_400)),
    start=st.integers(0, 2_000_000_000),
)
def test_each_amount_is_at_its_time(
    tmp_path_factory: pytest.TempPathFactory, amounts: list[int | None], left_out: set[int], width: int, start: int
) -> None:
    # The first two rows tell the width, whatever is left out after them.
    rows = {i: a for i, a in enumerate(amounts) if i < 3 or i not in left_out}
    path = tmp_path_factory.mktemp("any") / "t.csv"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(
            (("timestamp", "requests"), *((start + width * i, "" if a is None else a) for i, a in rows.items()))
        )
    if all(a is None for a in rows.values()):
        # Rows that are not evenly spaced are told first.
        assert any(text in wrong(path) for text in ("holds no number", "one row must be one bin"))
        return
    found = read_trace(path).requests
    assert (found.start, found.bin_seconds) == (start, width)
    expected = [NAN if (a := rows.get(i)) is None else float(a) for i in range(max(rows) + 1)]
    assert_array_equal(found.values, row(*expected))


@pytest.mark.skipif(not TRACES.is_dir(), reason="../shared/traces is not there: real traces are not read")
@pytest.mark.parametrize("name", ["nab_elb_requests", "nasa_http_1995", "servegen_mmid_diurnal", "nab_tweets_goog"])
def test_real_traces_are_read_as_they_are(name: str) -> None:
    path = TRACES / f"{name}.csv.gz"
    found = read_trace(path)
    with gzip.open(path, "rt") as file:
        rows = list(csv.DictReader(file))
    total = sum(float(one["requests"]) for one in rows if one["requests"])
    assert np.nansum(found.requests.values) == pytest.approx(total)
    first = rows[0]["timestamp"]
    assert found.time_text(found.requests.start) == first


def test_trace_with_tokens_is_work(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    rows = ("0,10,1000,100", "60,10,3000,300", "120,10,,", "180,,2000,200")
    path.write_text("\n".join(("timestamp,requests,prompt_tokens,output_tokens", *rows)) + "\n")
    trace = read_trace(path)
    assert str(trace.mean_lengths) == "200 prompt and 20 output tokens"
    work = trace.work(trace.mean_lengths).values
    # Unknown tokens count as their requests, unknown requests stay unknown.
    np.testing.assert_allclose(work, [5.0, 15.0, 10.0, np.nan])
    read = input_from_csv(path, None, None)
    assert read.requests is not None
    assert "in requests of 200 prompt and 20 output tokens" in read.notes[-1]
    path.write_text("timestamp,requests\n0,10\n60,10\n120,10\n")
    alone = input_from_csv(path, None, None)
    assert (alone.requests, str(alone.lengths)) == (None, "lengths that are not known")
