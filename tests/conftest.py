"""Settings for all tests: no test is a timing, and in CI the random ones are the same each time."""

import os
import signal

from hypothesis import settings

# Threads of the numbers' library wait for each other in every worker; set before it is loaded.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

settings.register_profile("here", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "here")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts what runs in the background so; the programs that tests start would inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
