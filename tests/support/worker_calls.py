"""Functions that a child process calls in tests."""

import os
import resource
import sys
import time
from pathlib import Path


def state() -> tuple[int, dict[str, str], list[str]]:
    """The memory limit in bytes, the environment, and the modules that were loaded before the limit."""
    return resource.getrlimit(resource.RLIMIT_DATA)[0], dict(os.environ), sorted(sys.modules)


def fails() -> None:
    raise ValueError("one line\nand another")


def writes_forever(path: str) -> None:
    """Write the process id into a file, as long as the process lives."""
    while True:
        Path(path).write_text(str(os.getpid()))
        time.sleep(0.01)
