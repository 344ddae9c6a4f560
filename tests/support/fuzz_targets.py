"""The table of all fuzz targets, by name."""

from __future__ import annotations

from collections.abc import Mapping

import fuzz_answers
import fuzz_documents
import fuzz_kept
import fuzz_limits
import fuzz_pages
import fuzz_rules
import fuzz_wire
from fuzz_target import Target

TARGETS: Mapping[str, Target] = {
    one.name: one
    for module in (fuzz_pages, fuzz_limits, fuzz_documents, fuzz_answers, fuzz_wire, fuzz_rules, fuzz_kept)
    for one in module.TARGETS
}
