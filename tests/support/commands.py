"""Commands of sizewatch in this process, with what they print, at any time of the clock."""

import io
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout

import pytest

from agent.cli.main import main


@contextmanager
def at(now: float) -> Iterator[None]:
    """The clock stands at `now` (unix seconds)."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(time, "time", lambda: now)
        yield


def run_command(*words: str) -> tuple[int, str, str]:
    """The exit code of a command, which ends as one that was foreseen, and both of its outputs."""
    out, errors = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(errors):
        code = main(list(words))
    assert code in (0, 1, 2, 3), (words, errors.getvalue())
    return code, out.getvalue(), errors.getvalue()
