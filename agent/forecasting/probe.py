"""Whether the forecasting process could work here: it is begun as the daemon would, loads what it needs, and says so.

Owns what is tried. It reads no history and answers no question; what a doctor makes of it is `agent.doctor_forecast`'s.
"""

from __future__ import annotations

import json
import sys

from agent.forecasting.worker import limit_memory, memory_bytes


def main() -> int:
    """Prints one JSON object: the memory that the libraries take, and why there are no trees (null where there are)."""
    limit_memory(sys.argv[1])
    import agent.forecasting.history_forecasts  # noqa: F401
    from forecast.trees import missing

    print(json.dumps({"memory_bytes": memory_bytes(), "no_trees": missing()}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
