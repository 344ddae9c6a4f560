"""Names of Kubernetes' objects in a configuration: written out, or from the environment that a pod is given.

Owns their form, `${NAME}` in them, and the words for a variable that is not set. Which keys hold such a name is
`agent.config.discovery_keys`'s and `agent.config.store_keys`'s.
"""

from __future__ import annotations

import re

from pydantic import ValidationInfo

from agent.config.values import validation_error

_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_ENVIRONMENT_NAME = re.compile(r"\$\{(\w+)\}")

NOT_SET = {
    "NODE_NAME": "the downward API gives it: env NODE_NAME, valueFrom fieldRef spec.nodeName",
    "POD_NAME": "the downward API gives it: env POD_NAME, valueFrom fieldRef metadata.name",
    "POD_NAMESPACE": "the downward API gives it: env POD_NAMESPACE, valueFrom fieldRef metadata.namespace",
}


def object_name(value: object, info: ValidationInfo) -> str:
    """The name that a key means. Raises a problem of that key for one that cannot be an object's (RFC 1123), or whose variable
    is not set."""
    environment = (info.context or {}).get("environment", {})
    text = value if isinstance(value, str) else ""
    for name in _ENVIRONMENT_NAME.findall(text):
        if not environment.get(name):
            more = f"; {NOT_SET[name]}" if name in NOT_SET else ""
            raise validation_error(f"names the environment variable {name}, which is not set{more}")
    text = _ENVIRONMENT_NAME.sub(lambda found: environment[found[1]], text)
    if not _NAME.fullmatch(text):
        raise validation_error("must be the name of an object of Kubernetes (small letters, digits, - and .)")
    return text
