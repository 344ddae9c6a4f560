"""The one way to ask NVML anything, and what each of its refusals means.

Owns the funnel ``ask`` and the table from NVML's error codes to six kinds. Must not decide what to do about a refusal:
that is ``nvml_gpu`` (one GPU) and ``nvml`` (the library). A code that a newer nvidia-ml-py adds is a row of ``CODES``;
the tests fail until it is there.
"""

import ctypes
from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Any

import pynvml


class Kind(StrEnum):
    """What a refusal means for the one who asked."""

    GAP = "gap"
    """This GPU or driver never gives it: a capability, remembered."""
    PERMISSION = "permission"
    """We may not have it: remembered like a capability."""
    NOTHING = "nothing"
    """Nothing there just now: a gap of this turn only."""
    LOST = "lost"
    """The GPU does not answer as it should: costs it this turn, tried again in the next."""
    LIBRARY = "library"
    """Library or driver are not usable: every GPU is out until they are opened again."""
    BUG = "bug"
    """We asked wrongly. Costs the GPU this turn and is reported as our fault."""


CODES: Mapping[int, tuple[Kind, str]] = MappingProxyType(
    {
        1: (Kind.LIBRARY, "NVML is not open"),
        2: (Kind.BUG, "invalid argument"),
        3: (Kind.GAP, "not supported"),
        4: (Kind.PERMISSION, "not permitted"),
        5: (Kind.BUG, "already initialised"),
        6: (Kind.NOTHING, "not found"),
        7: (Kind.NOTHING, "more than fitted was given"),
        8: (Kind.LOST, "external power is not attached properly"),
        9: (Kind.LIBRARY, "the NVIDIA driver is not loaded"),
        10: (Kind.LOST, "timeout inside the driver"),
        11: (Kind.LOST, "interrupt trouble"),
        12: (Kind.LIBRARY, "libnvidia-ml.so.1 was not found: no NVIDIA driver here, or the container was not given it"),
        13: (Kind.GAP, "not offered"),
        14: (Kind.LOST, "its infoROM is corrupted"),
        15: (Kind.LOST, "it is lost (fallen off the bus or otherwise out of reach)"),
        16: (Kind.LOST, "it needs a reset"),
        17: (Kind.LOST, "the operating system blocked the request"),
        18: (Kind.LIBRARY, "driver and libnvidia-ml.so.1 differ in version: restart sizewatch after a driver upgrade"),
        19: (Kind.LOST, "it is in use"),
        20: (Kind.LOST, "out of memory inside the driver"),
        21: (Kind.NOTHING, "no data given"),
        22: (Kind.GAP, "ECC under vGPU not supported"),
        23: (Kind.LOST, "the driver ran out of resources"),
        24: (Kind.GAP, "that frequency not supported"),
        25: (Kind.GAP, "that structure version not accepted"),
        26: (Kind.GAP, "no longer offered"),
        27: (Kind.LOST, "it is not ready"),
        28: (Kind.LOST, "it was not found"),
        29: (Kind.LOST, "it is in an invalid state"),
        30: (Kind.GAP, "that reset type not supported"),
        999: (Kind.LOST, "unknown error inside the driver"),
    }
)
"""NVML error code -> kind and words; codes as in nvidia-ml-py 13.615.71 (``NVML_ERROR_*``)."""

CAPABILITY = frozenset({Kind.GAP, Kind.PERMISSION})
"""Refusals that stay: worth remembering, and worth asking in another way."""
ABSENT = CAPABILITY | {Kind.NOTHING}
"""Refusals that leave a value out and nothing else."""


TIMEOUT = 10
"""What waiting for events answers when none came, and any other call when the driver did not answer it in time."""


class NvmlRefusedError(Exception):
    """NVML did not give what was asked: which call, which kind, in which words; its code where NVML gave one."""

    def __init__(self, call: str, kind: Kind, words: str, code: int | None = None) -> None:
        super().__init__(f"{words} ({call})" if kind is not Kind.BUG else f"{words} ({call}): please report this")
        self.call = call
        self.kind = kind
        self.words = words
        self.code = code


def refusal(call: str, code: int) -> NvmlRefusedError:
    """What the code means that NVML returned for ``call``, or in a part of its answer."""
    # A code of a newer driver may be anything: that GPU loses its turn and the code is named.
    kind, words = CODES.get(code, (Kind.LOST, f"NVML error {code}, unknown to sizewatch"))
    return NvmlRefusedError(call, kind, words, code)


def ask(call: str, *arguments: Any, **options: Any) -> Any:
    """Call the function of pynvml named ``call``; every use of NVML goes through here.

    Raises NvmlRefusedError, and nothing else that NVML, its binding or a value it could not decode can cause.
    """
    function = getattr(pynvml, call, None)
    if function is None:
        raise NvmlRefusedError(call, Kind.GAP, "not known to the installed nvidia-ml-py and so not given")
    try:
        return function(*arguments, **options)
    except pynvml.NVMLError as error:
        raise refusal(call, error.value) from error
    except (OSError, ValueError, ctypes.ArgumentError) as error:
        raise NvmlRefusedError(call, Kind.BUG, f"{type(error).__name__}: {error}") from error
