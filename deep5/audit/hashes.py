"""Hashes of stored contents, recomputed: of JSON values, and of machine and software.

Independent of `deep5.core.canonical` and `deep5.measuring.environment`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

__all__ = ["hash_of_environment", "hash_of_values"]

# Fields that vary between runs on one machine: readings, and the identity of one device among several.
_PASSING = {"clock_mhz", "temperature_c", "power_w", "index", "uuid"}


def hash_of_values(value: Any) -> str:
    """SHA-256 of a value in JSON types, with sorted keys and no spaces."""
    return hashlib.sha256(
        json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
    ).hexdigest()


def hash_of_environment(system: Mapping[str, Any], software: Mapping[str, Any]) -> str:
    """SHA-256 of the parts that are constant on one installation of one kind of machine.

    Args:
        system: `system.before` of a result.
        software: `software` of a result.
    """
    affinity = system["affinity"]
    variables = dict(software["environment_variables"])
    variables.pop("DEEP5_CACHE", None)
    lasting = {
        "cpu": _lasting(system["cpu"]),
        "usable_cores": affinity if affinity is None else len(affinity),
        "memory_bytes": system["memory_bytes"]["total"],
        "accelerators": [_lasting(device) for device in system["accelerators"]],
        "software": {name: software[name] for name in software if name not in ("commit", "environment_variables")},
        "variables": variables,
    }
    return hashlib.sha256(json.dumps(lasting, sort_keys=True).encode()).hexdigest()


def _lasting(device: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in device.items() if name not in _PASSING}
