"""Main function of a separate process: run one job, read from a file, and write its answer to another."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from time import perf_counter
from typing import Any

from deep5.compare.clocks import replaced_clock
from deep5.core.child_main import Report
from deep5.core.memory import peak_bytes

__all__ = ["ARRAYS", "main"]

Job = Callable[..., tuple[dict[str, Any], dict[str, Any]]]

ARRAYS = "arrays.safetensors"
"""File in a job's folder with the arrays of its answer."""


def main(place: str, report: Report) -> None:
    """Run the job in a folder.

    Args:
        place: The folder.
        report: Reports what the job is doing.
    """
    begin = perf_counter()
    folder = Path(place)
    request = json.loads((folder / "request.json").read_text())
    if hasattr(os, "sched_setaffinity"):
        # Before anything is loaded: libraries count processors at load time.
        os.sched_setaffinity(0, request["processors"])

    # If memory runs out, the system should end this process rather than its parent.
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("500")

    from deep5.core.errors import Deep5Error, contained, described

    report("the imports")
    try:
        with contained():
            answer, arrays = _job(request, report, begin)
        if (fault := replaced_clock()) is not None:
            answer = {**answer, "reason": fault}
    except Deep5Error as error:
        answer, arrays = {"reason": str(error)}, {}
    except Exception as error:  # any error of a framework or of user code is the candidate's answer
        answer, arrays = {"reason": f"it raised {' '.join(described(error).split())[:500]}"}, {}
    report("the end")
    if arrays:
        _write_arrays(folder / ARRAYS, arrays)
    (folder / "answer.json").write_text(json.dumps({"memory_bytes": peak_bytes(), **answer}))
    sys.stdout.flush()
    # Errors while libraries unload do not belong to the candidate's result.
    os._exit(0)


def _job(
    request: Mapping[str, Any], report: Callable[[str], object], begin: float
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The result in JSON types, and arrays by name."""
    from deep5.compare import inference, operators, training
    from deep5.compare.candidate import content_hash
    from deep5.compare.candidate_check import check_candidate
    from deep5.compare.request import recipe_of
    from deep5.core.errors import RecipeError

    recipe = recipe_of(request)
    if content_hash(recipe) != request["content"]:
        raise RecipeError(f"{recipe.name}, or a file that it names, has changed since the start; remedy: start again")
    if request["job"] == "check":
        check_candidate(recipe, request["kind"], request["framework"])
        return {}, {}
    kinds: dict[str, Any] = {"training": training, "inference": inference, "operators": operators}
    job: Job = kinds[request["kind"]].JOBS[request["job"]]
    return job(recipe, request, report, begin)


def _write_arrays(path: Path, arrays: Mapping[str, Any]) -> None:
    import numpy as np
    from safetensors.numpy import save_file

    save_file({name: np.asarray(value, order="C") for name, value in arrays.items()}, path)
