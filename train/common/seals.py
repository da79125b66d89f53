"""Checksums in JSON files that are read again."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

SIGNATURE = "sha256"  # Field of the checksum of the others.
CHANGED = "it was changed: its content has another sha256"


def sealed(content: Any) -> dict[str, Any]:
    """Return JSON values with their checksum, which finds what was changed in the file.

    >>> unsealed(sealed([0.5])), unsealed([0.5])
    ([0.5], [0.5])
    """
    return {SIGNATURE: _digest(content), "content": content}


def unsealed(found: Any) -> Any:
    """Return what was sealed; of an earlier version, which wrote no checksum, return all.

    Raises:
      ValueError: if the checksum is of another content.
    """
    if not isinstance(found, dict) or found.keys() != {SIGNATURE, "content"}:
        return found
    if found[SIGNATURE] != _digest(found["content"]):
        raise ValueError(CHANGED)
    return found["content"]


def signed(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return an object of JSON with its checksum, whatever the order of its fields, as a further field.

    >>> check_signature(signed({"epochs": 2}))
    """
    return {**fields, SIGNATURE: _digest(sorted(fields.items()))}


def check_signature(found: Mapping[str, Any]) -> None:
    """Raise ``ValueError`` if the checksum is of other fields; an earlier version wrote none."""
    fields = sorted((name, value) for name, value in found.items() if name != SIGNATURE)
    if SIGNATURE in found and found[SIGNATURE] != _digest(fields):
        raise ValueError(CHANGED)


def _digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()
