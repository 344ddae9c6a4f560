"""What can go wrong in a way a person must hear about.

    SizewatchError
    ├── BadConfig(problems)         the configuration cannot be used
    ├── BadPlan(problems)           the sizing plan cannot be used
    ├── BadRecording(path, text)    a recorded folder or file cannot be read
    ├── BadBenchmark(path, text)    a benchmark's result, or telemetry of it, cannot be used
    └── ScrapeError(kind, text)     a target gave no page that may be used

Owns the family and the words of `ScrapeFailure`. Foreign exceptions are translated where they arise, never here.
Add a new failure of a scrape as a row of `ScrapeFailure`; a new class only when a caller must treat it differently.
"""

from enum import StrEnum
from pathlib import Path


class ScrapeFailure(StrEnum):
    """Why a target gave no page: one word, counted and exported."""

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


class SizewatchError(Exception):
    """Anything sizewatch itself reports; whatever else rises is a defect."""


MOST_PROBLEMS = 1_000
"""Of one document that are told: a file of the wrong kind may have one a line."""


class _ProblemsError(SizewatchError):
    """Every problem found in one document, each beginning with its path in it."""

    def __init__(self, problems: tuple[str, ...]) -> None:
        if len(problems) > MOST_PROBLEMS:
            problems = (*problems[:MOST_PROBLEMS], f"{len(problems) - MOST_PROBLEMS} further problems are not told")
        super().__init__("\n".join(problems))
        self.problems = problems


class ConfigError(_ProblemsError):
    """The configuration cannot be used."""


class PlanError(_ProblemsError):
    """The sizing plan cannot be used."""


class RecordingError(SizewatchError):
    """A recorded folder or file cannot be read."""

    def __init__(self, path: Path | str, text: str) -> None:
        super().__init__(f"{path}: {text}")
        self.path = path
        self.text = text


class BenchmarkError(SizewatchError):
    """A benchmark's result file, or the telemetry of its run, cannot be used."""

    def __init__(self, path: Path | str, text: str) -> None:
        super().__init__(f"{path}: {text}")
        self.path = path
        self.text = text


class ScrapeError(SizewatchError):
    """A target gave no page that may be used; nothing of the page was used."""

    def __init__(self, kind: ScrapeFailure, text: str) -> None:
        super().__init__(f"{kind}: {text}")
        self.kind = kind
        self.text = text
