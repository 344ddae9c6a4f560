"""Value types of a configuration, and its problems: one sentence each, beginning with the path to correct.

Nothing is opened. Relative files are in the configuration's folder. Only file and object names may hold ${NAME}.
`folder` and `environment` come from the validation context. No problem quotes text of the file that may be a secret.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Iterator, Mapping
from functools import partial
from ipaddress import ip_address
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeGuard
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import PydanticCustomError

from agent.durations import EXPECTED, PATTERN, duration_text, parse_duration
from exporters.render.text import one_line
from rules.engines.registry import ENGINES
from rules.plan.schema import Plan
from rules.plan.validation import Path as KeyPath
from rules.plan.validation import path_text, problem_text
from rules.problems import MOST_PROBLEMS, cap_problems, find_close_name

MOST_COMPARED = 100
"""Maximum number of known names that an unknown name is compared with. Its message names no more either."""

Contradictions = Iterator[tuple[KeyPath, str]]
"""Path within a section, and text, of each problem that several valid values have together."""

_PROBLEMS = "problems"

_NAMES_ITS_VALUE = ("literal_error", "float_type", "int_type", "bool_type", "extra_forbidden")
# `rules.plan.validation` names the type of an unknown error; nothing more of a file's text may be shown.
_TEXT: Any = type("text", (), {})()

_VARIABLE = re.compile(r"\$\{(\w+)\}")


def validation_error(text: str) -> PydanticCustomError:
    """Return the error to raise in a validator. Its path is added in front."""
    return PydanticCustomError(_PROBLEMS, _PROBLEMS, {"problems": (((), text),)})


def refuse(problems: Contradictions) -> None:
    """Raise one validation error for all problems, none without any."""
    # More than is told is not worth its memory: a file of the wrong type has thousands.
    if first := tuple(islice(problems, MOST_PROBLEMS + 1)):
        raise PydanticCustomError(_PROBLEMS, _PROBLEMS, {"problems": first})


def printable(text: str) -> str:
    """Escape lone surrogates, which cannot be encoded."""
    return text.encode(errors="backslashreplace").decode()


def problems_of(error: ValidationError, model: type[BaseModel]) -> tuple[str, ...]:
    """Return every problem in the order of the schema's keys."""
    entries = error.errors(include_url=False)
    return cap_problems(printable(text) for entry in entries for text in _problems(entry, model))


def _problems(entry: Any, model: type[BaseModel]) -> Iterator[str]:
    path, kind, value = tuple(entry["loc"]), entry["type"], entry["input"]
    if kind == _PROBLEMS:
        for place, text in entry["ctx"]["problems"]:
            yield f"{path_text((*path, *place))}: {text}"
    elif not path:
        yield "configuration: must be a mapping of keys to values"
    else:
        shown = _TEXT if isinstance(value, str) and kind not in _NAMES_ITS_VALUE else value
        text = problem_text({**entry, "input": shown}, model)
        yield text.replace("is not a key of a plan", "is not a key of the configuration", 1)


def unknown_key_text(name: str, known: tuple[str, ...], what: str) -> str:
    """Return the problem text for an unknown `name`, with the closest or all known names."""
    close = find_close_name(name, known[:MOST_COMPARED])
    if close:
        return f"is not {what}; did you mean {close}?"
    more = f" and {len(known) - MOST_COMPARED} more" if len(known) > MOST_COMPARED else ""
    return f"is not {what}; known: {', '.join(known[:MOST_COMPARED])}{more}"


def repeats(names: Iterable[Hashable]) -> Iterator[tuple[int, int]]:
    """Yield the place of each name that was there before, and the place of its first."""
    first: dict[Hashable, int] = {}
    for place, name in enumerate(names):
        if first.setdefault(name, place) != place:
            yield place, first[name]


def full_match(pattern: str, problem: str) -> BeforeValidator:
    """Return a validator of text. Its problem quotes no value: a secret may stand there by mistake."""

    def read(value: object) -> object:
        if not isinstance(value, str) or not re.fullmatch(pattern, value):
            raise validation_error(problem)
        return value

    return BeforeValidator(read)


def _is_text(value: object) -> TypeGuard[str]:
    """Return whether the value is valid text; YAML and JSON can hold lone surrogates ("\\ud800")."""
    return isinstance(value, str) and value == printable(value) and "\0" not in value


def _name(value: str) -> str:
    if value != one_line(value) or value != value.strip():
        raise validation_error("must be one line without control characters and without blanks around it")
    return value


Name = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_name)]
"""Display name on pages, in labels and in logs."""


def _engine(value: str) -> str:
    known = tuple(dict.fromkeys(engine.name for engine in ENGINES))
    if value not in known:
        raise validation_error(unknown_key_text(value, known, "an engine whose pages can be read"))
    return value


EngineName = Annotated[Name, AfterValidator(_engine)]


def parse_seconds(value: object, low: float, high: float) -> float:
    """Return a duration in seconds. Raise a validation error unless it is from `low` to `high`."""
    if not isinstance(value, str):
        raise validation_error(f"must be {EXPECTED}" + (f", not {value}" if type(value) in (int, float) else ""))
    try:
        seconds = parse_duration(value)
    except ValueError as error:
        raise validation_error(str(error)) from None
    if not low <= seconds <= high:
        raise validation_error(f"must be from {duration_text(low)} to {duration_text(high)}, not {value}")
    return seconds


def duration_range(low: float, high: float) -> BeforeValidator:
    """Return a validator of durations from `low` to `high` seconds."""
    return BeforeValidator(lambda value: parse_seconds(value, low, high))


DURATION = "duration"
"""Title of a duration in the JSON Schema."""
Seconds = Annotated[float, WithJsonSchema({"type": "string", "title": DURATION, "pattern": PATTERN})]
"""Seconds, written as a duration. Add `duration_range`."""
Interval = Annotated[Seconds, duration_range(0.5, 60.0)]
"""Seconds, at most a minute: verdicts and history are per minute."""
Timeout = Annotated[Seconds, duration_range(0.1, 60.0)]
Resend = Annotated[Seconds, duration_range(1.0, 300.0)]
"""Seconds. An alert expires after four intervals, 20 minutes at most."""


def _file(value: object, info: ValidationInfo, expands: bool) -> str:
    context: Mapping[str, Any] = info.context or {}
    if not _is_text(value) or not value:
        raise validation_error("must be the name of a file or folder")
    environment: Mapping[str, str] = context["environment"]
    for name in _VARIABLE.findall(value):
        if not expands:
            raise validation_error("holds ${...}, which is replaced in the keys that end in _file only")
        if name not in environment:
            raise validation_error(f"names the environment variable {name}, which is not set")
    folder: Path = context["folder"]
    return str(folder / _VARIABLE.sub(lambda match: environment[match[1]], value))


_FILE = WithJsonSchema({"type": "string", "title": "file", "minLength": 1})
FileName = Annotated[str, BeforeValidator(partial(_file, expands=False)), _FILE]
EnvironmentFileName = Annotated[str, BeforeValidator(partial(_file, expands=True)), _FILE]
"""File name that may hold ${NAME}, such as systemd's ${CREDENTIALS_DIRECTORY}."""


_HOST = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*")


def _url(value: object) -> str:
    if not _is_text(value):
        raise validation_error("must be an address such as http://127.0.0.1:8000/metrics")
    # Problems omit the address: it may hold a password.
    if "@" in re.split(r"[/?#]", value.partition("://")[2] or value, maxsplit=1)[0]:
        raise validation_error("must hold no user or password; put them into basic_auth: {username, password_file}")
    if "${" in value:
        raise validation_error(
            "holds ${...}, which is not replaced here; a secret goes into bearer_token_file or basic_auth"
        )
    try:
        parts = urlsplit(value)
        host, _ = parts.hostname, parts.port
    except ValueError:
        raise validation_error("cannot be read as an address: is the port a number from 0 to 65535?") from None
    if parts.scheme not in ("http", "https"):
        raise validation_error("must begin with http:// or https://")
    if not host or re.search(r"[\s\x00-\x1f]", value):
        raise validation_error("names no host" if not host else "must hold no blank")
    if not _is_host(host):
        raise validation_error("names a host that no host can be called")
    return value


def _is_host(name: str) -> bool:
    """Return whether the host name is valid; library errors for an invalid name quote the whole address."""
    try:
        return bool(":" in name and ip_address(name)) or _HOST.fullmatch(name.encode("idna").decode()) is not None
    except (UnicodeError, ValueError):
        return False


Url = Annotated[str, BeforeValidator(_url), WithJsonSchema({"type": "string", "title": "address", "format": "uri"})]


LISTEN = "must be HOST:PORT such as 127.0.0.1:9095, [::1]:9095 or :9095"


def split_listen(value: str) -> tuple[str, int]:
    """Return host (empty: every address) and port (0: any free one) of HOST:PORT, :PORT or [IPV6]:PORT.

    Raise ValueError otherwise.
    """
    match = re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[^\s:/\[\]]*):([0-9]{1,5})", value)
    if match is None or int(match[2]) > 65535:
        raise ValueError(LISTEN)
    return match[1].strip("[]"), int(match[2])


def _listen(value: object) -> str:
    try:
        _, port = split_listen(value if _is_text(value) else "")
    except ValueError as error:
        raise validation_error(str(error)) from None
    if port == 0:
        raise validation_error(LISTEN)
    return str(value)


Listen = Annotated[str, BeforeValidator(_listen), WithJsonSchema({"type": "string", "title": "host:port"})]


def _gpus(value: object) -> object:
    if value == "auto":
        return value
    if not isinstance(value, list | tuple) or not value:
        raise validation_error("must be auto or a list of GPUs, by UUID or index")
    seen: set[str | int] = set()
    for place, gpu in enumerate(value):
        is_index = type(gpu) is int and 0 <= gpu < 1024
        if not is_index and not (isinstance(gpu, str) and re.fullmatch(r"[A-Za-z0-9][\w.:/#-]*", gpu)):
            raise validation_error(f"[{place}] is neither an index nor a UUID; `nvidia-smi -L` lists both")
        if gpu in seen:
            raise validation_error(f"[{place}] names GPU {gpu} again")
        seen.add(gpu)
    return tuple(value)


_GPU_SCHEMA: dict[str, Any] = {
    "title": "auto or list of GPUs",
    "anyOf": [
        {"const": "auto"},
        {"type": "array", "minItems": 1, "items": {"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string"}]}},
    ],
}
GpuList = Annotated[tuple[str | int, ...] | Literal["auto"], BeforeValidator(_gpus), WithJsonSchema(_GPU_SCHEMA)]


Text = Annotated[str, Field(min_length=1)]


class ConfigSection(BaseModel):
    """Section without unknown keys or conversions, immutable. The key of a field `x_seconds` is `x`."""

    model_config = ConfigDict(
        strict=True,
        extra="forbid",
        frozen=True,
        allow_inf_nan=False,
        hide_input_in_errors=True,
        # Most sections are only parts of another one, and need no validator of their own: 0.2 MiB.
        defer_build=True,
        alias_generator=lambda name: name.removesuffix("_seconds"),
    )

    def contradictions(self, plan: Plan | None) -> Contradictions:
        """Yield the problems that valid values of this section have together, or with the plan."""
        yield from ()

    @model_validator(mode="after")
    def _refuse_contradictions(self, info: ValidationInfo) -> Self:
        refuse(self.contradictions((info.context or {}).get("plan")))
        return self


class BasicAuth(ConfigSection):
    username: Text = Field(description="User name of basic authentication.")
    password_file: EnvironmentFileName = Field(description="File that holds the password.")


class TlsConfig(ConfigSection):
    ca_file: EnvironmentFileName | None = Field(
        None, description="CA that signed the target's certificate; default the system's."
    )
    cert_file: EnvironmentFileName | None = Field(
        None, description="Client certificate, where the target asks for one."
    )
    key_file: EnvironmentFileName | None = Field(None, description="Its key, where it is not in cert_file.")
    server_name: Text | None = Field(
        None, description="What the target's certificate is for, where that is not the host of the url."
    )
    insecure_skip_verify: bool = Field(False, description="Do not check the target's certificate.")


class Peer(ConfigSection):
    """Server that is asked, and the credentials for it."""

    url: Url
    bearer_token_file: EnvironmentFileName | None = Field(None, description="File that holds a bearer token.")
    basic_auth: BasicAuth | None = None
    tls: TlsConfig | None = None

    @property
    def credentials(self) -> dict[str, Any]:
        """Return bearer token, login and TLS options by their names in `TargetOptions`."""
        tls, login = self.tls or TlsConfig(), self.basic_auth
        return {
            "ca_file": tls.ca_file,
            "insecure_skip_verify": tls.insecure_skip_verify,
            "bearer_token_file": self.bearer_token_file,
            "username": login.username if login else None,
            "password_file": login.password_file if login else None,
            "client_cert_file": tls.cert_file,
            "client_key_file": tls.key_file,
            "server_name": tls.server_name,
        }

    def contradictions(self, plan: Plan | None) -> Contradictions:
        """Yield two logins at once, and TLS options that cannot be used."""
        if self.bearer_token_file and self.basic_auth:
            yield ("basic_auth",), "is given beside bearer_token_file; a request carries only one of them"
        if self.tls and self.url.lower().startswith("http://"):
            yield ("tls",), "is given, but the url begins with http://; write https://"
        if self.tls and self.tls.key_file and not self.tls.cert_file:
            yield ("tls", "key_file"), "needs cert_file"
