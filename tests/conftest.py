"""Settings for all tests: no test is a timing, and in CI the random ones are the same each time."""

import os
import signal

from hypothesis import settings

settings.register_profile("here", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "here")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts what runs in the background so; the programs that tests start would inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
