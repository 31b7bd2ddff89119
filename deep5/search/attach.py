"""`attached`: what an interrupted sweep declares, to resume it by its folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from deep5.results.declared import declared_value, source_of
from deep5.results.kind import SWEEP
from deep5.results.sweep.record import load_sweep

__all__ = ["attached"]


def attached(path: str | Path) -> dict[str, Any]:
    """Arguments of `run_sweep` that resume a sweep.

    Args:
        path: The folder of the sweep.

    Raises:
        UsageError: It holds no sweep, or a damaged one; or its recipe is within it.
    """
    sweep = load_sweep(path)
    file, document = sweep.folder / SWEEP, sweep.document
    goal = declared_value(document, "goal", dict, file)
    return {
        "recipe": source_of(document, "recipe", sweep.folder),
        "space": declared_value(document, "space", dict, file),
        "goal": declared_value(goal, "metric", str, file),
        "common": declared_value(document, "settings", dict, file),
        **{name: declared_value(document, name, str, file) for name in ("sampler", "pruner", "size", "engine")},
        **{name: declared_value(document, name, int, file) for name in ("trials", "seed", "parallel", "workers")},
        "time_limit_s": declared_value(document, "time_limit_s", (int, float), file),
        "memory_limit_bytes": declared_value(document, "memory_limit_bytes", (int, type(None)), file),
        "resume": sweep.folder,
    }
