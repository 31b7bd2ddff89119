"""Resumption of a run: compares the document in its folder with the one of the current invocation."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from deep5.core.errors import CheckpointError, suggestion

__all__ = ["check_name", "check_recipe", "differing", "going_on", "shortened"]

# Hashes of the inputs: if one differs, it is a different run.
_SAME = ("data", "split", "initial_weights", "init", "batch_order", "network")

# Differences in threads and ranks may change bits; they are reported with the current value.
_REPORTED = {"threads", "ranks", "launcher"}
# Settings with their own command-line option.
_OPTIONS = {"framework", "seed", "device", "init"}


def going_on(left: Mapping[str, Any], now: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The document of a resumed run, from the one in its folder and the one of the current invocation.

    Args:
        left: The document in the folder.
        now: The document of the current recipe on this machine; complete except for `run_id`.
        defaults: Values of the recipe's keys where it does not set them, in JSON types.

    Returns:
        `now`, with the run's id, start, measurement, warnings and earlier resumptions from `left`; and a warning for
        everything that may change bits or times: framework, versions, threads, machine, recipe file, environment
        variables. A checkpoint contains the measurement up to its own step; that in `left` may be of a later step or
        missing.

    Raises:
        CheckpointError: The run is finished, or has another recipe, other settings, data or weights.
    """
    name = left["run_id"]
    if left["status"] == "success":
        raise CheckpointError(f"the run {name} is finished; allowed: an interrupted run")
    check_recipe(name, left["recipe"], now["recipe"], defaults)
    for key in _SAME:
        if left["provenance"][key] != now["provenance"][key]:
            raise CheckpointError(
                f"the run {name} started with other content under {key!r}: its hash was {left['provenance'][key]}, now "
                f"it is {now['provenance'][key]}; remedy: the original data and initial weights"
            )
    if left["seeds"] != now["seeds"]:
        raise CheckpointError(f"the run {name} has the seeds {left['seeds']}, got {now['seeds']}; remedy: --seed")
    document = {**now, **{key: left[key] for key in ("run_id", "started", "measurement", "resumed", "checkpoints")}}
    changes = [warning for warning in _changes(left, now) if warning not in left["warnings"]]
    fresh = [warning for warning in now["warnings"] if warning not in left["warnings"]]
    return {**document, "warnings": [*left["warnings"], *fresh, *changes]}


def check_name(name: str, folder: Path) -> None:
    """Reject a folder whose name is not that of its run: a copy, or a renamed folder.

    Args:
        name: The run's name in its document.
        folder: The folder.

    Raises:
        CheckpointError: The names differ.
    """
    if name != folder.name:
        raise CheckpointError(
            f"the folder {folder} of the run {name!r} was renamed or copied; allowed: the name of its run; remedy: "
            f"rename it to {name}"
        )


def check_recipe(name: str, left: Mapping[str, Any], now: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
    """Reject a run of another recipe, size or setting.

    Args:
        name: Name of the run.
        left: The recipe in the run's document.
        now: The current recipe, in the same form.
        defaults: As for `going_on`.

    Raises:
        CheckpointError: They differ; the message states the difference.
    """
    if left["name"] != now["name"]:
        raise CheckpointError(
            f"the run {name} is of the recipe {left['name']!r}, got {now['name']!r}; remedy: the original recipe"
        )
    if left["size"] != now["size"]:
        raise CheckpointError(
            f"the run {name} has the size {left['size']!r}, got {now['size']!r}; remedy: --size {left['size']}"
        )
    for part, remedy in (("fixed", "the original recipe"), ("mutable", "the original --set")):
        for key in sorted({*left[part], *now[part]} - _REPORTED):
            was, got = (document[part].get(key, defaults.get(key)) for document in (left, now))
            if was != got:
                raise CheckpointError(
                    f"the run {name} has {key!r}: {shortened(was)}, got {shortened(got)}; remedy: "
                    f"{f'--{key} {was}' if key in _OPTIONS and was is not None else remedy}"
                    f"{suggestion(key, now[part]) if key not in now[part] else ''}"
                )
    if left["metrics"] != now["metrics"]:
        raise CheckpointError(
            f"the run {name} has other metrics or goals, {shortened(left['metrics'])}, got "
            f"{shortened(now['metrics'])}; "
            "remedy: the original METRICS"
        )
    if left["hash"] != now["hash"]:
        raise CheckpointError(
            f"the fixed part of {name} has another hash{_changed_content(left, now)}; remedy: the original recipe"
        )


def _changed_content(left: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """What changed in the user's own code, files and network, as the middle of a message."""
    then, here = left.get("content") or {}, now.get("content") or {}
    old, new = then.get("modules", {}), here.get("modules", {})
    named = [f"the module {key}" for key in sorted({*old, *new}) if old.get(key) != new.get(key)]
    what = {"parts": "its own code", "files": "a file that its code opens", "network": "the network of its code"}
    found = [*named, *(text for key, text in what.items() if then.get(key) != here.get(key))]
    return f", because these changed: {', '.join(found)}" if found else ""


def shortened(value: Any) -> str:
    """A value as JSON, shortened; `nothing` for None."""
    text = "nothing" if value is None else json.dumps(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _changes(left: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Differences that may change bits: warnings for users who compare runs."""
    return [
        f"the run was resumed with {what}: {shortened(was)} before, {shortened(got)} now; it may not be bit-identical"
        for what, was, got in differing(left, now)
    ]


def differing(left: Mapping[str, Any], now: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """What may change bits and differs between two runs: what, the earlier value, the later value.

    Args:
        left: The document of the earlier run.
        now: The document of the later run.
    """
    then, here = left["software"] or {}, now["software"] or {}
    packages, present = then.get("packages", {}), here.get("packages", {})
    variables, set_now = _variables(then), _variables(here)
    pairs: list[tuple[str, Any, Any]] = [
        ("another framework", _named(left["framework"]), _named(now["framework"])),
        ("other threads", (left["threads"] or {}).get("framework"), (now["threads"] or {}).get("framework")),
        ("other numerics", left["numerics"], now["numerics"]),
        ("another Python", then.get("python"), here.get("python")),
        ("another deep5", then.get("deep5"), here.get("deep5")),
        *((f"another {name}", packages.get(name), present.get(name)) for name in sorted({*packages, *present})),
        ("another processor", _processor(left), _processor(now)),
        ("another recipe file", left["provenance"]["recipe_source"], now["provenance"]["recipe_source"]),
        *(
            (f"another value of {name}", variables.get(name), set_now.get(name))
            for name in sorted({*variables, *set_now})
        ),
    ]
    different = [pair for pair in pairs if pair[1] != pair[2]]
    if not different:  # memory, usable cores or packages that are not listed
        was, got = left["provenance"]["environment"], now["provenance"]["environment"]
        different = [("another environment", was, got)] if was != got else []
    return different


def _variables(software: Mapping[str, Any]) -> dict[str, str]:
    """The environment variables that may change how frameworks compute."""
    found: dict[str, str] = {**software.get("environment_variables", {})}
    found.pop("DEEP5_CACHE", None)
    return found


def _named(framework: Mapping[str, Any] | None) -> list[Any]:
    return [] if framework is None else [framework["name"], framework["version"], framework["device"]]


def _processor(document: Mapping[str, Any]) -> Any:
    cpu = (document["system"]["before"] or {}).get("cpu", {})
    return [cpu.get("model"), cpu.get("architecture")]
