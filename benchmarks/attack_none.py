"""Nothing is attacked: the row that the others are compared with."""

from __future__ import annotations

from attacks import Attack

ATTACKS = (Attack(name="none", text="healthy targets only"),)
