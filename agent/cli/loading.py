"""What commands read of an installation: its configuration, and the daemon's history."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

from agent.config.load import LoadedConfig, find, history_path, load
from agent.history.reader import Reader
from agent.history.store import HistoryStore


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
