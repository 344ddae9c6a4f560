"""How far back minutes and quarters of an hour are read: no command and no daemon needs more than is kept."""

import io
from collections import defaultdict
from contextlib import redirect_stdout
from pathlib import Path

import pytest
import yaml
from report_samples import DAY, HOUR, START, TIER, book, hours, plan

from agent.cli.main import main
from agent.config.load import load
from agent.daemon.factory import assemble
from agent.history.reader import Reader
from agent.history.store import HistoryStore

WEEKS = 13
NOW = START + WEEKS * 7 * DAY + 60.0
MOST_DAYS = {"minutes": 2, "replica_bins": 8}
"""Days back by method of `Reader`. Sums by hour are read as long as they are kept."""


@pytest.fixture
def reach(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, dict[str, float]]:
    """A configuration with thirteen weeks of history, and the longest way back in seconds of each method so far."""
    (tmp_path / "plan.yaml").write_text(yaml.safe_dump({"schema": 1, "tiers": {"t": TIER}}))
    target = {"url": "http://127.0.0.1:9/metrics", "tier": "t", "replica": "r0"}
    config = tmp_path / "sizewatch.yaml"
    config.write_text(yaml.safe_dump({"plan": "plan.yaml", "targets": [target], "gpus": {"source": "none"}}))
    file = tmp_path / "sizewatch-data" / "history.db"
    file.parent.mkdir(mode=0o700)
    with HistoryStore(file) as store:
        book(store, plan(), hours(WEEKS * 7 * 24)[::12])
    longest: dict[str, float] = defaultdict(float)
    for name in (*MOST_DAYS, "bins"):
        read = getattr(Reader, name)

        def watched(reader, tier, since, *rest, read=read, name=name):  # type: ignore[no-untyped-def]
            longest[name] = max(longest[name], NOW - since)
            return read(reader, tier, since, *rest)

        monkeypatch.setattr(Reader, name, watched)
    monkeypatch.setattr("time.time", lambda: NOW)
    return str(config), longest


def test_nothing_reads_further_than_is_kept(reach: tuple[str, dict[str, float]]) -> None:
    config, longest = reach
    every = ("-c", config)
    with redirect_stdout(io.StringIO()):
        for words in (
            ("check", *every, "--since", "13w"),
            ("check", *every, "--since", "30m"),
            ("whatif", *every, "--instances", "8", "--since", "13w"),
            ("prewarm", *every),
            ("timeline", *every, "--since", "13w"),
            ("report", *every, "--since", "4w", "--out", str(Path(config).parent / "report")),
        ):
            assert main(list(words)) in (0, 1, 3), words
    daemon = assemble(load(Path(config)), clock=lambda: NOW)
    try:
        daemon.upkeep(NOW)
        daemon.forecast(NOW)
    finally:
        daemon.close(NOW)
    assert longest["bins"] > 12 * 7 * DAY, "the sums by hour are read as far as they are kept"
    assert longest["minutes"] > 0
    for name, days in MOST_DAYS.items():
        assert longest[name] <= days * DAY + HOUR, name
