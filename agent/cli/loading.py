"""Readers of configuration and history, and the calibration file that two commands write."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

from agent.config.load import LoadedConfig, find, history_path, load
from agent.errors import ConfigError
from agent.history.store import HistoryStore, Reader
from exporters.documents.calibration import ADAPTER, CalibrationFile


def load_config(options: SimpleNamespace) -> LoadedConfig:
    """Return the configuration of `--config`, or of the default paths. Raise ConfigError."""
    return load(find(options.config))


@contextmanager
def open_history(loaded: LoadedConfig) -> Iterator[Reader]:
    """Open the history, and say on stderr if it is simulated. Raise ConfigError or HistoryError."""
    with HistoryStore.open_reader(history_path(loaded)) as store:
        if notice := store.simulated_notice():
            print(notice, file=sys.stderr)
        yield store


@contextmanager
def writing(path: Path, option: str = "--out") -> Iterator[None]:
    """Make an OSError of the block a ConfigError that names the option."""
    try:
        yield
    except OSError as error:
        raise ConfigError((f"{path} cannot be written: {error.strerror}; give another {option}",)) from error


def write_calibration(path: Path, made: CalibrationFile, option: str = "--out") -> None:
    """Write the file that the option names. Raise ConfigError."""
    with writing(path, option):
        path.write_bytes(ADAPTER.dump_json(made, indent=2) + b"\n")
