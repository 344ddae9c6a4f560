"""Known vulnerabilities of what requirements.lock pins, asked of PyPI by pip-audit. What could not be asked is said.

    python deploy/audit.py build/audit/bin/pip-audit            # 3 where a part could not be asked about
    python deploy/audit.py build/audit/bin/pip-audit --lenient  # 0 then: for a machine that reaches no PyPI

Owns how its answer is told and the exit code: 1 where a part has a hole. A hole that is no danger to us stands in NO_DANGER
with the reason.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

LOCK = Path(__file__).parent.parent / "requirements.lock"
FINE, FINDING, COULD_NOT = 0, 1, 3
LONGEST_SECONDS = 120.0
"""A network that swallows every question would hold each of the lock's lines for pip-audit's 15 s."""

NO_DANGER: Mapping[str, str] = {}
"""A vulnerability's identifier, and why it cannot be reached here."""


def asked(pip_audit: str) -> tuple[Sequence[Mapping[str, Any]], str]:
    """What pip-audit says of each line of the lock, and why it says nothing at all."""
    words = [
        pip_audit,
        "--requirement",
        str(LOCK),
        "--no-deps",
        "--disable-pip",
        "--format",
        "json",
        "--progress-spinner",
        "off",
    ]
    try:
        ended = subprocess.run(words, capture_output=True, text=True, timeout=LONGEST_SECONDS)
        return json.loads(ended.stdout)["dependencies"], ""
    except FileNotFoundError:
        return (), f"{pip_audit} is not installed"
    except subprocess.TimeoutExpired:
        return (), f"no answer within {LONGEST_SECONDS:g} s"
    except (ValueError, KeyError):
        return (), (ended.stderr.strip().splitlines() or [f"pip-audit ended with {ended.returncode}"])[-1]


def told(parts: Sequence[Mapping[str, Any]], trouble: str, lenient: bool) -> tuple[list[str], int]:
    """What to print and the exit code. `parts` are pip-audit's: a name with `vulns`, or with a `skip_reason`."""
    holes = [
        f"{part['name']} {part['version']}: {hole['id']}, mended in {', '.join(hole['fix_versions']) or 'no version yet'}"
        for part in parts
        for hole in part.get("vulns", ())
        if not NO_DANGER.keys() & {hole["id"], *hole.get("aliases", ())}
    ]
    skipped = [part for part in parts if "skip_reason" in part]
    lines = [*holes, f"{len(parts) - len(skipped)} of {len(parts)} parts audited, {len(holes)} known holes"]
    if trouble:
        lines.append(f"NOT AUDITED: {trouble}")
    if skipped:
        lines.append(f"NOT AUDITED: {len(skipped)} parts, the first: {skipped[0]['skip_reason']}")
    missed = COULD_NOT if (trouble or skipped) and not lenient else FINE
    return lines, FINDING if holes else missed


def main() -> int:
    """Asks, prints, and gives the exit code."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("pip_audit", help="the program")
    parser.add_argument("--lenient", action="store_true", help="what could not be asked is said and no failure")
    options = parser.parse_args()
    lines, code = told(*asked(options.pip_audit), options.lenient)
    print("\n".join(lines))
    return code


if __name__ == "__main__":
    sys.exit(main())
