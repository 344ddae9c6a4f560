"""Where the recordings of the tests stand: those that the demo ships too are package data of `agent.demo`."""

import csv
import gzip
from pathlib import Path

from paths import TESTS

HERE = TESTS
FOLDERS = (HERE / "recordings", HERE.parent / "agent" / "demo" / "recordings")
PLANS = HERE / "plans"


def folder(name: str) -> Path:
    """The folder of a recording."""
    for parent in FOLDERS:
        if (parent / name / "recording.yaml").is_file():
            return parent / name
    raise FileNotFoundError(f"no recording {name} in {', '.join(map(str, FOLDERS))}")


def names() -> list[str]:
    """All recordings, by name."""
    return sorted(path.parent.name for parent in FOLDERS for path in parent.glob("*/recording.yaml"))


def requests(name: str) -> list[dict[str, str]]:
    """What the clients measured: a row a request."""
    with gzip.open(folder(name) / "requests.csv.gz", "rt", newline="") as rows:
        return list(csv.DictReader(rows))
