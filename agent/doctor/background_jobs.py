"""What the doctor says of forecasts: does their process start within its limits, and with all of its methods?

Owns looking and judging of this one part. The process is begun as the daemon begins it, and ended.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from agent.config.keys import Config
from agent.config.load import LoadedConfig
from agent.doctor.check_result import CheckResult, fail, ok, warn
from agent.worker.process import FORECAST_MEMORY_BYTES, MIB, environment

START_SECONDS = 30.0
"""Its libraries load within a second or two from a disk that is not busy."""

FORECAST_CHECK = "forecast"


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastProbe:
    """What the process said of itself, or why it did not; `no_trees` is why a method is missing, `no_holidays` why the
    configured country's are not known."""

    memory_bytes: int = 0
    no_trees: str = ""
    no_holidays: str = ""
    trouble: str = ""


def probe_forecast(config: Config) -> ForecastProbe | None:
    """Begins the process, where this installation has one; takes a second or two."""
    if config.history_path is None or not config.forecast.enabled:
        return None
    words = [sys.executable, "-P", "-m", "agent.forecasting.probe", str(FORECAST_MEMORY_BYTES)]
    if config.forecast.country is not None:
        words.append(config.forecast.country)
    try:
        done = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            cwd="/",
            env=environment(),
            timeout=START_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return ForecastProbe(trouble=f"did not start within {START_SECONDS:.0f} s")
    except OSError as error:
        return ForecastProbe(trouble=f"cannot be begun: {error}")
    if done.returncode:
        last = done.stderr.decode("utf-8", "replace").strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        return ForecastProbe(trouble=f"does not start: {last[0]}")
    said = json.loads(done.stdout)
    return ForecastProbe(
        memory_bytes=said["memory_bytes"], no_trees=said["no_trees"] or "", no_holidays=said["no_holidays"] or ""
    )


def check_forecast(seen: ForecastProbe | None, loaded: LoadedConfig) -> Iterator[CheckResult]:
    """One line, and one more where a method is left out or the country has no holidays that are known."""
    if seen is None:
        off = "off (forecast.enabled: false)" if loaded.config.history_path else "none: this agent keeps no history"
        yield ok(FORECAST_CHECK, off)
        return
    if seen.trouble:
        advice = (
            "lift limits of memory (ulimit -v, -d), reinstall with requirements.lock, or set forecast.enabled: false"
        )
        yield fail(FORECAST_CHECK, f"its process {seen.trouble}", advice)
        return
    if seen.no_holidays:
        yield fail(
            FORECAST_CHECK,
            f"forecast.country: {seen.no_holidays}",
            "correct it or leave it out; until then nothing is forecast",
        )
    held, limit = seen.memory_bytes // MIB, FORECAST_MEMORY_BYTES // MIB
    yield ok(FORECAST_CHECK, f"its process starts: its libraries take {held} MiB, it may take {limit} MiB for a tier")
    if seen.no_trees:
        text = f"boosted trees are left out ({seen.no_trees.splitlines()[0]})"
        yield warn(
            FORECAST_CHECK,
            text,
            "install libgomp1 (the system's OpenMP library); until then the other methods forecast",
        )
