"""Golden texts in the folder `goldens` beside a test: compared, or written with WRITE=1."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from textwrap import fill
from typing import Any


def check_golden(test: str, name: str, text: str) -> None:
    """Fail where the text differs from the golden file of the folder of `test`, a path."""
    path = Path(test).parent / "goldens" / name
    if os.environ.get("WRITE"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"{text.rstrip()}\n", encoding="utf-8")
    assert f"{text.rstrip()}\n" == path.read_text(encoding="utf-8")


def print_fields(document: Mapping[str, Any]) -> str:
    """Return what a program reads from a JSON document, a paragraph for each of its keys.

    Numbers have ten significant digits. NaN raises ValueError.
    """
    text = json.dumps(document, allow_nan=False)
    rounded = json.loads(text, parse_float=lambda digits: float(f"{float(digits):.10g}"))
    paragraphs = (f"{key}: {json.dumps(value)}" for key, value in rounded.items())
    return "\n".join(fill(paragraph, 110, subsequent_indent="  ", break_on_hyphens=False) for paragraph in paragraphs)
