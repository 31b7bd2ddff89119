"""A recipe that times code to a result: a candidate against a baseline, in turn."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from deep5.components import make_candidate
from deep5.metric import Sample
from deep5.recipe import Recipe
from deep5.record import CLOCK, RunRecord, thread_pools
from deep5.timing import time_rounds

if TYPE_CHECKING:
    from deep5.results.result import Result

__all__ = ["time_code"]


def time_code(recipe: Recipe, out: str | Path) -> Result:
    """Time as a recipe says; arguments and errors as for `deep5.run.execute`."""
    from deep5.results.samples_file import sample_rows

    candidate = make_candidate(recipe, "candidate")
    baseline, again = make_candidate(recipe, "baseline"), make_candidate(recipe, "baseline")
    run = RunRecord(
        recipe,
        out,
        level=2,
        threads={"asked": recipe.value("threads"), "framework": None, "pools": thread_pools()},
        measurement={
            "mode": "quick",
            "clock": CLOCK,
            "scope": f"whole calls of {recipe.value('steps')} steps",
            "loops": recipe.value("steps"),
            "processes": 1,
            "order": "candidate, baseline and a second baseline in a new random order each round",
            "cache_state": "warm",
        },
        seeds={"run": recipe.value("seed")},
    )
    with run.guarded():
        rounds = time_rounds(
            candidate,
            baseline,
            again,
            rounds=recipe.value("rounds"),
            steps=recipe.value("steps"),
            seed=recipe.value("seed"),
        )
        run.document["measurement"] |= {"warmups": rounds.warmups, "first_call_s": rounds.first_call_s}
        for name in ("candidate", "baseline", "baseline_again"):
            run.extra_rows += sample_rows(f"{name}_time", "s", [Sample(value) for value in getattr(rounds, name)])
        for observer in run.observers:
            observer.after_timing(rounds)
        return run.finish()
