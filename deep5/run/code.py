"""Workload of a recipe that times code: a candidate and a baseline in alternation, in one process or by ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from deep5.core.communicator import Communicator, SingleRank
from deep5.core.errors import RecipeError
from deep5.core.metric import Sample
from deep5.core.progress import Reporter, Steps, silenced
from deep5.measuring.timing import Rounds, of_slowest, time_rounds
from deep5.recipe.part import Parts, is_factory, taken
from deep5.run.rank_record import RankRecord
from deep5.run.record import CLOCK, RunRecord
from deep5.run.workload import Options, Timed

if TYPE_CHECKING:
    from deep5.results.result import Result
    from deep5.results.samples_file import SampleRow

__all__ = ["Code", "make_candidate"]

_SIDES = ("candidate", "baseline", "baseline_again")
# Arguments passed to a side that has parameters with these names.
_GIVEN = ("steps", "seed", "threads", "communicator")


class Code(Timed):
    """Two functions timed against each other."""

    compared = ()
    compares = "two pieces of code against each other"

    def check(self) -> list[str]:
        """Check that both sides accept their arguments, without calling them."""
        self._check_sides(ranks=self.experiment.ranks is not None)
        return self._ranks_note()

    def check_shares(self) -> None:
        """Check that at least one side accepts the ranks' communicator."""
        self._check_sides(ranks=True)

    def _check_sides(self, *, ranks: bool) -> None:
        """Check that both sides accept their arguments, without calling them.

        Args:
            ranks: Whether it runs as ranks.

        Raises:
            RecipeError: A side does not; or it runs as ranks and neither side accepts a communicator.
        """
        experiment = self.experiment
        names: list[str] = []
        for part in (experiment.parts[key] for key in ("candidate", "baseline")):
            made = part.component()
            given = dict.fromkeys(_GIVEN)
            part.check(made, **given)
            names += taken(made, given)
        if ranks and "communicator" not in names:
            raise RecipeError(
                f"{experiment.parts['ranks'].where}{experiment.name} times code for ranks, and neither candidate nor "
                "baseline takes them; allowed: a parameter called 'communicator' of one of them; remedy: that, or one "
                "process without ranks"
            )

    def time(self, options: Options, communicator: Communicator | None) -> Result | None:
        """Time both sides and a second instance of the baseline.

        With several ranks, each rank creates both sides, and a round's time is that of the slowest rank. The first rank
        writes the result; its samples file holds its own times, and further files hold those of the other ranks.
        """
        from deep5.run.rank_files import name_folder, write_ranks

        experiment, values = self.experiment, self.experiment.values
        size = 1 if communicator is None else communicator.size
        sides = [make_candidate(experiment.parts, key, communicator) for key in ("candidate", "baseline", "baseline")]
        about = {"steps": values["rounds"] * values["steps"], "threads": values["threads"]}
        if communicator is not None and communicator.rank:
            path = name_folder(communicator, None)
            other = RankRecord(experiment, path, path.name)
            with other.guarded():
                own = _time(values, sides, communicator)
                of_slowest(own, communicator)
                write_ranks(communicator, _rows(own), about, other)
            return None
        run = self._record(options, size)
        if communicator is not None:
            name_folder(communicator, run.folder.path)
        with run.guarded():
            own = rounds = _time(values, sides, communicator)
            run.extra_rows += _rows(own)
            if communicator is not None:
                rounds = of_slowest(own, communicator)
                for name, content in write_ranks(communicator, [], about, run).items():
                    run.folder.write_file(name, content)
            run.document["measurement"] |= {"warmups": rounds.warmups, "first_call_s": rounds.first_call_s}
            # Code that reads files reports whether they were in the page cache.
            run.document["measurement"]["cache_state"] = rounds.reported["candidate"].get("cache_state", "warm")
            for side, reported in rounds.reported.items():
                if "report" in reported:
                    run.folder.write_file(f"{side}.txt", f"{reported['report']}\n")
            for observer in run.observers:
                observer.after_timing(rounds)
            return run.finish()

    def _record(self, options: Options, size: int) -> RunRecord:
        values = self.experiment.values
        lockstep = "" if size == 1 else f"; {size} ranks in lockstep, a round's time that of the slowest of them"
        return RunRecord(
            self.experiment,
            options.out,
            level=2 if size == 1 else 3,
            threads={"asked": values["threads"], "framework": None},
            measurement={
                "mode": "quick",
                "clock": CLOCK,
                "scope": f"whole calls of {values['steps']} steps",
                "loops": values["steps"],
                "processes": 1,
                "order": f"candidate, baseline and a second baseline in a new random order each round{lockstep}",
                "cache_state": "warm",
            },
            seeds={"run": values["seed"]},
            ranks=size,
        )


def make_candidate(parts: Parts, key: str, communicator: Communicator | None = None) -> Any:
    """One side of a recipe that times code: `candidate` or `baseline` called with its arguments.

    Args:
        parts: Parts of a recipe that times code, by key.
        key: Key of the side.
        communicator: Communicator of all ranks that create it, for a side that has a parameter of that name; None: a
            communicator of one rank.

    Raises:
        RecipeError: It is not a function, or its result is not callable.
    """
    part, allowed = parts[key], "a function that gives a function of no arguments"
    made = part.component()
    if not is_factory(made):
        raise part.not_a(made, allowed)
    given = {name: parts[name].value for name in ("steps", "seed", "threads")}
    workload = part.make(made, **given, communicator=SingleRank() if communicator is None else communicator)
    if not callable(workload):
        raise part.not_a(workload, allowed)
    return workload


def _time(values: Mapping[str, Any], sides: list[Any], communicator: Communicator | None) -> Rounds:
    numbers = {key: values[key] for key in ("rounds", "steps", "seed")}
    with silenced(communicator is not None and communicator.rank > 0), Reporter() as tell:
        steps = Steps(values["rounds"], tell)

        def finished(_: int) -> None:
            steps.advance()
            steps.say("timing rounds")

        return time_rounds(*sides, **numbers, communicator=communicator, on_round=finished)


def _rows(rounds: Rounds) -> list[SampleRow]:
    from deep5.results.samples_file import sample_rows

    rows: list[SampleRow] = []
    for name in _SIDES:
        rows += sample_rows(f"{name}_time", "s", [Sample(value) for value in getattr(rounds, name)])
    return rows
