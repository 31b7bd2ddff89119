"""Rules 2, 3 and 14: what timed processes read back of their settings, beside threads, types and processors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from deep5.audit.finding import Ledger
from deep5.audit.host import check_device, check_pools
from deep5.audit.own_optimizer import check_described

__all__ = ["check_reported"]

# What each of deep5's frameworks reads back.
_OWN = ("reference", "pytorch", "onnxruntime", "jax", "tensorflow", "openvino")
_KEYS = ("framework", "version", "device", "threads", "tf32", "deterministic", "pools", "affinity", "waiting")
_PROVIDERS = {"cpu": "CPUExecutionProvider"}


def check_reported(ledger: Ledger, document: Mapping[str, Any]) -> None:
    """Check the settings that each timed candidate read back.

    Args:
        ledger: Receives the findings.
        document: comparison.json.
    """
    timed = [row for row in document["candidates"] if row["status"] == "timed" and row["observed"]]
    counts: dict[str, tuple[str, Any]] = {}
    libraries: dict[str, set[str]] = {}
    for row in timed:
        label, found, parts = row["label"], row["observed"], {**document["recipe"]["fixed"], **row["recipe"]}
        framework = str(row["framework"])
        if framework.partition(":")[0] in _OWN:
            missing = [key for key in _KEYS if key not in found]
            ledger.hold(3, not missing, f"{label} does not state {', '.join(missing)}; allowed: all settings")
        check_pools(ledger, label, document, found.get("pools"), document["threads"])
        check_device(ledger, label, document, framework, found.get("device"), parts.get("device"))
        if parts.get("deterministic", True) is True and found.get("deterministic") is False:
            said = any("deterministic" in warning for warning in document["warnings"])
            ledger.hold(2, said, f"{label} was not deterministic, as its recipe requires; allowed: with a warning")
        ledger.hold(
            3, found.get("spinning") is not True, f"{label}: its threads spin between operators; allowed: they wait"
        )
        if framework.partition(":")[0] == "onnxruntime" and "provider" in found:
            due = _PROVIDERS.get(str(found.get("device")))
            right = found["provider"] == due if due else found["provider"] not in _PROVIDERS.values()
            ledger.hold(3, right, f"{label} ran on {found['provider']!r:.60} and the device {found.get('device')}")
        if "optimizer" in found:  # older comparisons do not state it
            check_described(ledger, document, f"optimizer of {label}", parts, found["optimizer"])
        libraries[label] = {name.partition(" ")[0] for name in found.get("pools") or {}}
        if (count := found.get("train_samples")) is not None:
            _check_count(ledger, label, parts, count)
            group = json.dumps(row["settings"], sort_keys=True)
            first, other = counts.setdefault(group, (label, count))
            ledger.same(12, f"{label}: its training samples, compared with {first}", count, other)
    _check_blas(ledger, libraries)


def _check_count(ledger: Ledger, label: str, parts: Mapping[str, Any], count: Any) -> None:
    """The size of a data set that is drawn at random is among its arguments."""
    stated = (parts.get("dataset_kwargs") or {}).get("train")
    if parts.get("dataset") == "synthetic" and isinstance(stated, int):
        ledger.same(12, f"{label}: its training samples, by the recipe", count, stated)


def _check_blas(ledger: Ledger, libraries: Mapping[str, set[str]]) -> None:
    """Each process loads NumPy, and NumPy its BLAS library: all have a pool of it, or none."""
    having = {label for label, names in libraries.items() if "openblas" in names}
    missing = sorted(libraries.keys() - having)
    ledger.hold(
        3, not having or not missing, f"{', '.join(missing)[:80]} states no pool of openblas, which others have"
    )
