"""Which family a sample belongs to, and so its type: by the TYPE lines of its page, never by its ending alone.

Owns the matching of sample names to family names. It must not know about lines, caches or wanted series. A new suffix
under which the samples of a family appear is a row of `_SUFFIX_TYPES`.
"""

from collections.abc import Iterable, Mapping

from agent.scrape.exposition_lines import Metadata, Sample

UNTYPED = "untyped"
# Type of a sample by its suffix and the type of its family. A family of the sample's full name comes first: vLLM has a
# histogram whose name ends in `_total`. OpenMetrics puts `_created` in its family, the text format calls it a gauge.
_SUFFIX_TYPES: dict[str, dict[str, str]] = {
    "_total": {"counter": "counter"},
    "_bucket": {"histogram": "histogram", "gaugehistogram": "gaugehistogram"},
    "_count": {"histogram": "histogram", "summary": "summary"},
    "_sum": {"histogram": "histogram", "summary": "summary"},
    "_gcount": {"gaugehistogram": "gaugehistogram"},
    "_gsum": {"gaugehistogram": "gaugehistogram"},
    "_created": {"counter": "gauge", "histogram": "gauge", "summary": "gauge"},
    "_info": {"info": "info"},
}


def declared_families(page: Iterable[Sample | Metadata]) -> tuple[dict[str, str], dict[str, str]]:
    """Type of each family with metadata, and for those of two types the two."""
    types: dict[str, str] = {}
    contradicted: dict[str, str] = {}
    for says in page:
        if not isinstance(says, Metadata) or not says.family:
            continue
        family = says.family
        type_ = UNTYPED if says.type in ("", "unknown") else says.type
        before = types.setdefault(family, type_)
        if before == UNTYPED:
            types[family] = type_
        elif type_ not in (before, UNTYPED):
            contradicted[family] = f"{before} and {type_}"
    return types, contradicted


class FamilyLookup:
    """Finds the family and the type of samples by their names, `vllm_x` also under `vllm:x`."""

    def __init__(self, families: Mapping[str, str]) -> None:
        self._families = families
        self._printed = {name.replace(":", "_"): name for name in families}
        self._known: dict[str, tuple[str, str]] = {}
        self.unplaced: list[str] = []

    def lookup(self, name: str) -> tuple[str, str]:
        """Family and type of a sample; its own name and `untyped` where the page declares no family for it."""
        found = self._known.get(name)
        if found is None:
            found = self._known[name] = self._search(name)
        return found

    def _search(self, name: str) -> tuple[str, str]:
        family = self._family(name)
        if family is not None:
            return family, self._families[family]
        for suffix, types in _SUFFIX_TYPES.items():
            family = self._family(name.removesuffix(suffix)) if name.endswith(suffix) else None
            if family is not None and self._families[family] in types:
                return family, types[self._families[family]]
        self.unplaced.append(name)
        return name, UNTYPED

    def _family(self, name: str) -> str | None:
        return name if name in self._families else self._printed.get(name.replace(":", "_"))
