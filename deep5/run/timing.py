"""A recipe that times code to a result: a candidate against a baseline, in turn, by one process or by ranks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from deep5.core.communicator import Communicator
from deep5.core.metric import Sample
from deep5.measuring.timing import Rounds, of_slowest, time_rounds
from deep5.recipe.components import make_candidate
from deep5.recipe.recipe import Recipe
from deep5.run.rank_record import RankRecord
from deep5.run.record import CLOCK, RunRecord, thread_pools

if TYPE_CHECKING:
    from deep5.results.result import Result
    from deep5.results.samples_file import SampleRow

__all__ = ["time_code"]

_SIDES = ("candidate", "baseline", "baseline_again")


def time_code(recipe: Recipe, out: str | Path, communicator: Communicator | None = None) -> Result | None:
    """Time as a recipe says; arguments and errors as for `deep5.run.execute.execute` and `execute_as_rank`.

    Of several ranks each makes both sides, and a round's time is that of the slowest rank. The first one writes; its
    samples hold its own times, those of the others are in files beside.

    Returns:
        The result; None on a rank other than the first.
    """
    from deep5.run.rank_files import name_folder, write_ranks

    size = 1 if communicator is None else communicator.size
    sides = [make_candidate(recipe, key, communicator) for key in ("candidate", "baseline", "baseline")]
    if communicator is not None and communicator.rank:
        path = name_folder(communicator, None)
        other = RankRecord(recipe, path, path.name)
        with other.guarded():
            own = _time(recipe, sides, communicator)
            of_slowest(own, communicator)
            write_ranks(communicator, _rows(own), _about(recipe), other)
        return None
    lockstep = "" if size == 1 else f"; {size} ranks in lockstep, a round's time that of the slowest of them"
    run = RunRecord(
        recipe,
        out,
        level=2 if size == 1 else 3,
        threads={"asked": recipe.value("threads"), "framework": None, "pools": thread_pools()},
        measurement={
            "mode": "quick",
            "clock": CLOCK,
            "scope": f"whole calls of {recipe.value('steps')} steps",
            "loops": recipe.value("steps"),
            "processes": 1,
            "order": f"candidate, baseline and a second baseline in a new random order each round{lockstep}",
            "cache_state": "warm",
        },
        seeds={"run": recipe.value("seed")},
        ranks=size,
    )
    if communicator is not None:
        name_folder(communicator, run.folder.path)
    with run.guarded():
        own = rounds = _time(recipe, sides, communicator)
        run.extra_rows += _rows(own)
        if communicator is not None:
            rounds = of_slowest(own, communicator)
            for name, content in write_ranks(communicator, [], _about(recipe), run).items():
                run.folder.write_file(name, content)
        run.document["measurement"] |= {"warmups": rounds.warmups, "first_call_s": rounds.first_call_s}
        for side, told in rounds.told.items():
            if "report" in told:
                run.folder.write_file(f"{side}.txt", f"{told['report']}\n")
        for observer in run.observers:
            observer.after_timing(rounds)
        return run.finish()


def _time(recipe: Recipe, sides: list[Any], communicator: Communicator | None) -> Rounds:
    numbers = {key: recipe.value(key) for key in ("rounds", "steps", "seed")}
    return time_rounds(*sides, **numbers, communicator=communicator)


def _rows(rounds: Rounds) -> list[SampleRow]:
    from deep5.results.samples_file import sample_rows

    rows: list[SampleRow] = []
    for name in _SIDES:
        rows += sample_rows(f"{name}_time", "s", [Sample(value) for value in getattr(rounds, name)])
    return rows


def _about(recipe: Recipe) -> dict[str, Any]:
    return {"steps": recipe.value("rounds") * recipe.value("steps"), "threads": recipe.value("threads")}
