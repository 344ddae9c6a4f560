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


class NvmlErrorKind(StrEnum):
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


CODES: Mapping[int, tuple[NvmlErrorKind, str]] = MappingProxyType(
    {
        1: (NvmlErrorKind.LIBRARY, "NVML is not open"),
        2: (NvmlErrorKind.BUG, "invalid argument"),
        3: (NvmlErrorKind.GAP, "not supported"),
        4: (NvmlErrorKind.PERMISSION, "not permitted"),
        5: (NvmlErrorKind.BUG, "already initialised"),
        6: (NvmlErrorKind.NOTHING, "not found"),
        7: (NvmlErrorKind.NOTHING, "more than fitted was given"),
        8: (NvmlErrorKind.LOST, "external power is not attached properly"),
        9: (NvmlErrorKind.LIBRARY, "the NVIDIA driver is not loaded"),
        10: (NvmlErrorKind.LOST, "timeout inside the driver"),
        11: (NvmlErrorKind.LOST, "interrupt trouble"),
        12: (
            NvmlErrorKind.LIBRARY,
            "libnvidia-ml.so.1 was not found: no NVIDIA driver here, or the container was not given it",
        ),
        13: (NvmlErrorKind.GAP, "not offered"),
        14: (NvmlErrorKind.LOST, "its infoROM is corrupted"),
        15: (NvmlErrorKind.LOST, "it is lost (fallen off the bus or otherwise out of reach)"),
        16: (NvmlErrorKind.LOST, "it needs a reset"),
        17: (NvmlErrorKind.LOST, "the operating system blocked the request"),
        18: (
            NvmlErrorKind.LIBRARY,
            "driver and libnvidia-ml.so.1 differ in version: restart sizewatch after a driver upgrade",
        ),
        19: (NvmlErrorKind.LOST, "it is in use"),
        20: (NvmlErrorKind.LOST, "out of memory inside the driver"),
        21: (NvmlErrorKind.NOTHING, "no data given"),
        22: (NvmlErrorKind.GAP, "ECC under vGPU not supported"),
        23: (NvmlErrorKind.LOST, "the driver ran out of resources"),
        24: (NvmlErrorKind.GAP, "that frequency not supported"),
        25: (NvmlErrorKind.GAP, "that structure version not accepted"),
        26: (NvmlErrorKind.GAP, "no longer offered"),
        27: (NvmlErrorKind.LOST, "it is not ready"),
        28: (NvmlErrorKind.LOST, "it was not found"),
        29: (NvmlErrorKind.LOST, "it is in an invalid state"),
        30: (NvmlErrorKind.GAP, "that reset type not supported"),
        999: (NvmlErrorKind.LOST, "unknown error inside the driver"),
    }
)
"""NVML error code -> kind and words; codes as in nvidia-ml-py 13.615.71 (``NVML_ERROR_*``)."""

CAPABILITY = frozenset({NvmlErrorKind.GAP, NvmlErrorKind.PERMISSION})
"""Refusals that stay: worth remembering, and worth asking in another way."""
ABSENT = CAPABILITY | {NvmlErrorKind.NOTHING}
"""Refusals that leave a value out and nothing else."""


TIMEOUT = 10
"""What waiting for events answers when none came, and any other call when the driver did not answer it in time."""


class NvmlRefusedError(Exception):
    """NVML did not give what was asked: which call, which kind, in which words; its code where NVML gave one."""

    def __init__(self, call: str, kind: NvmlErrorKind, words: str, code: int | None = None) -> None:
        super().__init__(
            f"{words} ({call})" if kind is not NvmlErrorKind.BUG else f"{words} ({call}): please report this"
        )
        self.call = call
        self.kind = kind
        self.words = words
        self.code = code


def refusal(call: str, code: int) -> NvmlRefusedError:
    """What the code means that NVML returned for ``call``, or in a part of its answer."""
    # A code of a newer driver may be anything: that GPU loses its turn and the code is named.
    kind, words = CODES.get(code, (NvmlErrorKind.LOST, f"NVML error {code}, unknown to sizewatch"))
    return NvmlRefusedError(call, kind, words, code)


def ask(call: str, *arguments: Any, **options: Any) -> Any:
    """Call the function of pynvml named ``call``; every use of NVML goes through here.

    Raises NvmlRefusedError, and nothing else that NVML, its binding or a value it could not decode can cause.
    """
    function = getattr(pynvml, call, None)
    if function is None:
        raise NvmlRefusedError(call, NvmlErrorKind.GAP, "not known to the installed nvidia-ml-py and so not given")
    try:
        return function(*arguments, **options)
    except pynvml.NVMLError as error:
        raise refusal(call, error.value) from error
    except (OSError, ValueError, ctypes.ArgumentError) as error:
        raise NvmlRefusedError(call, NvmlErrorKind.BUG, f"{type(error).__name__}: {error}") from error
