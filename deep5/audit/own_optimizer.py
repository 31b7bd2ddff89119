"""Rule 14: an optimizer of deep5 that a recipe names has its rule, the recipe's arguments, and defaults otherwise."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from typing import Any

from deep5.audit.finding import Ledger
from deep5.audit.numerics import parts_of
from deep5.core.plugins import registered
from deep5.core.version import __version__

__all__ = ["check_described", "check_optimizer", "without_kernel"]

# An optimizer's field that depends on the machine, and its values on the reference.
_KERNEL, _KERNELS = "kernel", ("c", "numpy", None)
# Arguments in [0, 1], and those that are not negative.
_SHARES = {"beta1", "beta2", "momentum", "rho"}
_POSITIVE = {"lr", "adam_lr", "epsilon", "epsilon1", "epsilon2", "weight_decay", "trust", "clip"}


def without_kernel(document: Mapping[str, Any]) -> Any:
    """The described optimizer of a run, without the field that depends on the machine.

    Args:
        document: result.json.
    """
    found = document["components"].get("optimizer")
    return {key: value for key, value in found.items() if key != _KERNEL} if isinstance(found, dict) else found


def check_optimizer(ledger: Ledger, document: Mapping[str, Any]) -> None:
    """For a run: compare a named optimizer with its recipe.

    Args:
        ledger: Receives the findings.
        document: result.json.
    """
    parts, found = parts_of(document), without_kernel(document)
    _check_scheme(ledger, document, parts, found)
    check_described(ledger, document, "optimizer", parts, found)
    if isinstance(found, dict) and _entry(parts) is not None:
        kernel = document["components"]["optimizer"].get(_KERNEL)
        # Other frameworks compile the rule themselves.
        host = str((document["framework"] or {}).get("name")) != "reference" or kernel in _KERNELS
        ledger.hold(14, host, f"the optimizer's kernel is {kernel!r:.40}; allowed: c or numpy")


def check_described(
    ledger: Ledger, document: Mapping[str, Any], what: str, parts: Mapping[str, Any], found: Any
) -> None:
    """Compare a described optimizer with the recipe that names it: rule, arguments, and defaults.

    Args:
        ledger: Receives the findings.
        document: The document that describes it.
        what: The optimizer, in findings.
        parts: The recipe's parts.
        found: The optimizer as described, without its kernel.
    """
    given, name = parts.get("optimizer_kwargs") or {}, str(parts.get("optimizer"))
    entry = _entry(parts)
    if (entry is None and not name.startswith("native:")) or not isinstance(found, dict):
        # A third-party optimizer may name its arguments freely.
        ledger.skip("the optimizer compared with its arguments: the recipe does not name one of deep5's")
        return
    scheduled = set(parts.get("schedules") or {})
    for key in sorted(given.keys() & found.keys() - scheduled):
        if isinstance(given[key], (bool, int, float, str)):
            ledger.same(14, f"the {what}'s {key}, by its recipe", found[key], given[key])
    if entry is not None:
        rule = found.get("rule", found.get("optimizer"))
        ledger.same(14, f"the {what}'s rule, by its recipe", rule, entry.value.rpartition(":")[2])
        _check_ranges(ledger, found)
        if document["software"]["deep5"] == __version__:
            _check_defaults(ledger, what, entry.load(), found, given.keys() | scheduled)
        else:
            ledger.skip("the optimizer's defaults: another version of deep5 made the result")


def _entry(parts: Mapping[str, Any]) -> Any:
    """The entry point of the optimizer of deep5 that a recipe names; None for another one."""
    entry = registered("optimizers").get(str(parts.get("optimizer")))
    return entry if entry is not None and entry.value.startswith("deep5.") else None


def _check_scheme(ledger: Ledger, document: Mapping[str, Any], parts: Mapping[str, Any], found: Any) -> None:
    """Of a run with several ranks: compare a named scheme and its arguments with its recipe."""
    if not isinstance(found, dict) or document["ranks"] == 1:
        return
    name = "all_reduce" if parts.get("scheme") is None else parts["scheme"]
    entry = registered("schemes").get(name) if isinstance(name, str) else None
    if entry is None or not entry.value.startswith("deep5."):
        ledger.skip("the scheme compared with its arguments: the recipe does not name one of deep5's")
        return
    ledger.same(14, "the scheme, by its recipe", found.get("scheme"), entry.value.rpartition(":")[2])
    given = parts.get("scheme_kwargs") or {}
    for key in sorted(given.keys() & found.keys()):
        if isinstance(given[key], (bool, int, float, str)):
            ledger.same(14, f"the scheme's {key}, by its recipe", found[key], given[key])
    if parts.get("compression") is None and "compression" not in given:
        ledger.same(14, "the compression, by the recipe", found.get("compression"), None)
    if document["software"]["deep5"] == __version__ and not parts.get("scheme_args"):
        _check_defaults(ledger, "scheme", entry.load(), found, given)


def _check_ranges(ledger: Ledger, found: Mapping[str, Any]) -> None:
    for key, value in found.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            continue
        most = 1.0 if key in _SHARES else math.inf
        ledger.hold(
            14,
            key not in _SHARES | _POSITIVE or 0 <= value <= most,
            f"the optimizer's {key} is {value!r}; allowed: from 0 to {most:g}",
        )


def _check_defaults(ledger: Ledger, what: str, made_by: Any, found: Mapping[str, Any], given: Any) -> None:
    """What the recipe does not give is as the installed component has it."""
    for key, parameter in inspect.signature(made_by).parameters.items():
        if key in found and key not in given and isinstance(parameter.default, (bool, int, float, str)):
            ledger.same(14, f"the {what}'s {key}, which its recipe does not give", found[key], parameter.default)
