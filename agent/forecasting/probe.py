"""Whether the forecasting process could work here: it is begun as the daemon would, loads what it needs, and says so.

Owns what is tried. It reads no history and answers no question; what a doctor makes of it is `agent.doctor.background_jobs`'s.
"""

from __future__ import annotations

import json
import sys

from agent.forecasting.worker import limit_memory, memory_bytes


def run_probe() -> int:
    """Prints one JSON object: the memory that the libraries take, why there are no trees (null where there are), and what
    is wrong with the country that is the second argument (null where nothing is, or where there is none)."""
    limit_memory(sys.argv[1])
    import agent.forecasting.history_input  # noqa: F401
    from forecast.models.learners import missing_library

    said = {"memory_bytes": memory_bytes(), "no_trees": missing_library(), "no_holidays": no_holidays(*sys.argv[2:])}
    print(json.dumps(said))
    return 0


def no_holidays(country: str = "") -> str | None:
    """Why the public holidays of a country are not known; None where they are, and for none."""
    from forecast.series.public_holidays import public_holidays

    try:
        public_holidays(country, ()) if country else None
    except ValueError as error:
        return str(error)
    return None


if __name__ == "__main__":
    sys.exit(run_probe())
