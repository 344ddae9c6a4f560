"""Errors that sizewatch reports to a user. Foreign exceptions are translated where they arise.

A new scrape failure is a member of `ScrapeFailure`.
"""

from collections.abc import Mapping
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path

from rules.problems import cap_problems


class ScrapeFailure(StrEnum):
    """Reason of a failed scrape: one word, used as a metric label."""

    CONNECT = "connect"
    TIMEOUT = "timeout"
    TLS = "tls"
    AUTH = "auth"
    HTTP_STATUS = "http_status"
    REDIRECT = "redirect"
    TOO_LARGE = "too_large"
    CUT_OFF = "cut_off"
    CONTENT_TYPE = "content_type"
    SYNTAX = "syntax"
    DUPLICATE = "duplicate"
    INCONSISTENT = "inconsistent"
    NOT_ONE_ENGINE = "not_one_engine"


class SizewatchError(Exception):
    """Any error that sizewatch reports. Every other exception is a defect."""


class ConfigError(SizewatchError):
    """Unusable configuration or sizing plan, with all problems of it. Each begins with its path in the document."""

    def __init__(self, problems: tuple[str, ...]) -> None:
        problems = cap_problems(problems)
        super().__init__("\n".join(problems))
        self.problems = problems


class CannotJudgeError(SizewatchError):
    """No answer for want of data or of engines, though the input is right."""


class PathError(SizewatchError):
    """Unusable file or folder."""

    def __init__(self, path: Path | str, text: str) -> None:
        super().__init__(f"{path}: {text}")
        self.path = path
        self.text = text


class BenchmarkError(PathError):
    """Unusable benchmark result file, or unusable telemetry of its run."""


class NotAResultError(BenchmarkError):
    """File that is no benchmark result, or one that has no place in a curve. Others beside it may be one."""


class ScrapeError(SizewatchError):
    """No usable page from a target. Nothing of the page was used."""

    def __init__(self, kind: ScrapeFailure, text: str) -> None:
        super().__init__(f"{kind}: {text}")
        self.kind = kind
        self.text = text


_FOR_NUMBERS = ("pandas", "numpy", "statsmodels", "scipy")
OPTIONAL_MODULES: Mapping[str, str] = {
    **dict.fromkeys(_FOR_NUMBERS, "the image for role node leaves it out; use the full one"),
    **dict.fromkeys(("grpc", "google"), "pip install 'sizewatch[kubernetes]'"),
}
"""Modules that an installation may lack, with the advice."""


def find_missing(module: str) -> str | None:
    """Return the advice for one of OPTIONAL_MODULES that is missing, None if it is there."""
    return None if find_spec(module) else explain_missing_module(ModuleNotFoundError(name=module))


def explain_missing_module(error: ModuleNotFoundError) -> str | None:
    """Return the advice for one of OPTIONAL_MODULES, None for any other module: that is a defect."""
    name = (error.name or "").partition(".")[0]
    if name not in OPTIONAL_MODULES:
        return None
    return f"needs {name}, which this installation lacks: {OPTIONAL_MODULES[name]}"
