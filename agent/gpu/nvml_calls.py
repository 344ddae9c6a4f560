"""Calls of NVML with their errors. An error is of one of three sets, or it costs the GPU this cycle."""

import ctypes
import logging
from typing import Any

import pynvml

UNSUPPORTED = frozenset({3, 4, 13, 22, 24, 25, 26, 30})
"""Codes of a value that this GPU, driver or user does not have. An older call may still give it."""

NO_DATA = frozenset({6, 7, 21})
"""Codes of a value that is missing at the moment."""

LIBRARY_LOST = frozenset({1, 9, 12, 18})
"""Codes after which the library must be opened again: no driver, or one of another version."""

INVALID_ARGUMENT, NOT_SUPPORTED, NO_PERMISSION, TIMEOUT = 2, 3, 4, 10

VALUE_FORMATS = {0: "d", 1: "I", 2: "L", 3: "Q", 4: "q", 5: "i", 6: "H"}
"""NVML value type (``NVML_VALUE_TYPE_*``) -> format (of ``struct``) of the value in samples and fields."""

_log = logging.getLogger(__name__)


class NvmlError(Exception):
    """Failed call of NVML, or failed part of its result. ``code`` is that of NVML, None if it gave none.

    An absent value is left out and nothing else is.
    """

    def __init__(self, call: str, code: int | None, words: str = "") -> None:
        self.code = code
        self.is_unsupported = code in UNSUPPORTED
        self.is_absent = code in UNSUPPORTED | NO_DATA
        self.is_library_lost = code in LIBRARY_LOST
        if not words and self.is_unsupported:
            words = "not permitted" if code == NO_PERMISSION else "not supported"
        self.words = words or str(pynvml.NVMLError(code))
        super().__init__(f"{self.words} ({call})")


def ask(call: str, *arguments: Any) -> Any:
    """Call the function of pynvml named ``call``. Raise NvmlError for every error of NVML or its binding."""
    function = getattr(pynvml, call, None)
    if function is None:
        # The installed nvidia-ml-py is older than the function.
        raise NvmlError(call, NOT_SUPPORTED)
    try:
        return function(*arguments)
    except pynvml.NVMLError as error:
        raise NvmlError(call, error.value) from error
    except (OSError, ValueError, ctypes.ArgumentError) as error:
        raise NvmlError(call, None, f"{type(error).__name__}: {error}") from error


def ask_text(absent: str, call: str, *arguments: Any) -> str:
    """Call ``call`` and return its result as text, or ``absent`` if the driver has none."""
    try:
        return str(ask(call, *arguments))
    except NvmlError as error:
        if not error.is_absent:
            raise
        return absent


def give_back(call: str, *arguments: Any) -> None:
    """Free something of NVML, or the library. An error is only logged."""
    try:
        ask(call, *arguments)
    except NvmlError as error:
        _log.info('failed to free something of NVML error="%s"', error)


def value_format(value_type: int, call: str) -> str:
    """Return the format of values of a type. Raise NvmlError for an unknown one."""
    if value_type not in VALUE_FORMATS:
        raise NvmlError(call, None, f"values of the unknown type {value_type}")
    return VALUE_FORMATS[value_type]


def address(handle: Any) -> int:
    """Return the address of a handle. It identifies the GPU until the library is closed."""
    return ctypes.cast(handle, ctypes.c_void_p).value or 0
