"""`attached`: what an interrupted study declares, to resume it by its folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from deep5.core.errors import UsageError
from deep5.recipe.recipe import load_recipe
from deep5.results.declared import declared_value, source_of
from deep5.results.kind import STUDY, SWEEP
from deep5.results.reading import NotThere, read_object
from deep5.results.study.folder import folder_of
from deep5.results.time_to_target import Target

__all__ = ["attached"]


def attached(path: str | Path) -> dict[str, Any]:
    """Arguments of `run_study` that resume a study.

    Args:
        path: The folder of the study.

    Raises:
        UsageError: It holds no study, or one of an older deep5; or its recipe is within it.
    """
    folder = folder_of(path).absolute()
    file = folder / STUDY
    try:
        document = read_object(file)
    except NotThere as error:
        remedy = f"; remedy: deep5 sweep --attach {folder}" if (folder / SWEEP).exists() else ""
        raise UsageError(f"{folder} holds no {STUDY}; allowed: a folder that 'deep5 study' wrote{remedy}") from error
    if document.get("finished") is True:
        raise UsageError(f"the study {folder} is finished; allowed: an interrupted one; remedy: deep5 report {folder}")
    source = source_of(document, "source", folder)
    candidates = declared_value(document, "candidates", dict, file)
    settings = {name: dict(declared_value(own, "settings", dict, file)) for name, own in candidates.items()}
    own = load_recipe(source).study
    about: dict[str, Any]
    if own is None:
        about = {"varied": settings}
    else:
        # What a candidate of the file sets comes from there: it may be any object.
        shared = [
            {key: value for key, value in all_.items() if key not in own.get(name, {})}
            for name, all_ in settings.items()
        ]
        about = {"only": list(settings), "common": shared[0] if shared else {}}
    target = document.get("target")
    return {
        "recipe": source,
        **about,
        "size": declared_value(document, "size", str, file),
        "seeds": declared_value(document, "seeds", list, file),
        "target": None
        if target is None
        else Target(metric=target.get("metric", ""), goal=target.get("goal", 0.0), origin="asked"),
        "time_limit_s": declared_value(document, "time_limit_s", (int, float), file),
        "memory_limit_bytes": declared_value(document, "memory_limit_bytes", (int, type(None)), file),
        "engine": declared_value(document, "engine", str, file),
        "workers": declared_value(document, "workers", int, file),
        "resume": folder,
    }
