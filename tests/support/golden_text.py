"""Golden texts in the folder `goldens` beside a test: compared, or written with WRITE=1."""

import json
import os
from pathlib import Path
from pprint import pformat
from typing import Any


def check_golden(test: str, name: str, text: str) -> None:
    """Fail where the text differs from the golden file of the folder of `test`, a path."""
    path = Path(test).parent / "goldens" / name
    if os.environ.get("WRITE"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"{text.rstrip()}\n", encoding="utf-8")
    assert f"{text.rstrip()}\n" == path.read_text(encoding="utf-8")


def print_fields(document: Any) -> str:
    """Return what a program reads from a JSON document, numbers with ten significant digits. Raise ValueError for NaN."""
    text = json.dumps(document, allow_nan=False)
    rounded = json.loads(text, parse_float=lambda digits: float(f"{float(digits):.10g}"))
    return pformat(rounded, width=110, compact=True, sort_dicts=False)
