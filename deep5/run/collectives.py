"""Workload of a recipe of collectives: ranks time every algorithm at every size and check each result."""

from __future__ import annotations

import json
import platform
from functools import partial
from typing import TYPE_CHECKING, Any

from deep5.bench.collective.recipe import check_collectives, collective_plan
from deep5.core.communicator import Communicator, SingleRank
from deep5.core.errors import MissingDependency
from deep5.core.metric import Sample
from deep5.distributed.launch.launcher import launched
from deep5.distributed.texts import gather_texts
from deep5.run.rank_files import name_folder, write_ranks
from deep5.run.rank_record import RankRecord
from deep5.run.record import CLOCK, RunRecord
from deep5.run.workload import Options, Timed

if TYPE_CHECKING:
    from deep5.bench.collective.measure import CollectiveTimes
    from deep5.bench.collective.plan import CollectivePlan
    from deep5.bench.collective.summary import CollectiveSummary
    from deep5.results.result import Result
    from deep5.results.samples_file import SampleRow

__all__ = ["Collectives"]


class Collectives(Timed):
    """All algorithms of a collective at all sizes, timed in alternation."""

    compared = ()
    compares = "collectives, every algorithm in turn"

    def check(self) -> list[str]:
        """Check that the plan is valid."""
        return [*check_collectives(self.plan()), *self._ranks_note()]

    def check_shares(self) -> None:
        """Check that the plan, which all ranks share, is valid."""
        self.plan()

    def plan(self) -> CollectivePlan:
        """The plan that the recipe requests.

        Raises:
            RecipeError: A value cannot be read.
        """
        parts = self.experiment.parts
        return collective_plan(self.experiment.values.__getitem__, lambda key: parts[key].where)

    def time(self, options: Options, communicator: Communicator | None) -> Result | None:
        """Time the plan.

        The time of a call is that of the slowest rank. The first rank writes the result. samples.csv holds its own
        times and the samples that the model is fitted to; further files hold the times of the other ranks.
        """
        from deep5.bench.collective.measure import measure_collectives

        communicator = SingleRank() if communicator is None else communicator
        plan = self.plan()
        if communicator.rank:
            path = name_folder(communicator, None)
            other = RankRecord(self.experiment, path, path.name)
            with other.guarded():
                times = measure_collectives(communicator, plan)
                gather_texts(communicator, platform.node())
                write_ranks(communicator, _own_rows(times, communicator.rank), _about(plan), other)
            return None
        run = self._record(plan, options, communicator.size)
        name_folder(communicator, run.folder.path)
        with run.guarded():
            times = measure_collectives(communicator, plan)
            _warn(run, gather_texts(communicator, platform.node()), times)
            run.extra_rows += [*_own_rows(times, 0), *_machine_rows(times)]
            for name, content in write_ranks(communicator, [], _about(plan), run).items():
                run.folder.write_file(name, content)
            summary = _write(run, times)
            result = run.finish()
        if not options.quiet:
            from deep5.bench.collective.report import collective_table
            from deep5.core.terminal import printed

            print(printed(partial(collective_table, summary)))  # noqa: T201 - the output of the recipe
        return result

    def _record(self, plan: CollectivePlan, options: Options, ranks: int) -> RunRecord:
        return RunRecord(
            self.experiment,
            options.out,
            level=3,
            numerics={"dtype": plan.dtype},
            threads={"asked": None, "framework": None},
            measurement={
                "mode": "quick",
                "clock": CLOCK,
                "scope": "whole calls after a barrier, their buffers filled before it; the slowest rank's",
                "loops": 1,
                "processes": 1,
                "order": "all algorithms in a new random order every two rounds, turned in the second; size after size",
                "cache_state": "warm",
                "warmups": plan.warm_up,
            },
            seeds={"run": self.experiment.values["seed"]},
            ranks=ranks,
        )


def _warn(run: RunRecord, hosts: list[str], times: CollectiveTimes) -> None:
    """Warn if ranks share processors (known only on the first rank's machine), or if other programs used them."""
    from deep5.bench.collective.ranks import crowded, disturbed

    run.warn(*crowded(hosts.count(hosts[0])), *disturbed(times))


def _write(run: RunRecord, times: CollectiveTimes) -> CollectiveSummary:
    """Write and plot the measurements, and pass them to the metrics."""
    from deep5.bench.collective.record import COLLECTIVE, collective_document, collective_pictures
    from deep5.bench.collective.summary import summarise_collectives

    summary = summarise_collectives(times)
    started = launched()
    document = collective_document(times, summary, "threads" if started is None else started.by)
    run.warn(*(f"wrong: {sentence}" for sentence in summary.wrong))
    run.folder.write_file(COLLECTIVE, json.dumps(document, indent=2, allow_nan=False) + "\n")
    try:
        for name, content in collective_pictures(summary, document).items():
            run.folder.write_file(name, content)
    except MissingDependency as error:
        run.warn(f"no collective.svg was drawn: {error}")
    for observer in run.observers:
        observer.after_collectives(times, summary)
    return summary


def _own_rows(times: CollectiveTimes, rank: int) -> list[SampleRow]:
    """A rank's own times: one row `ring/1024` per call."""
    return [
        row for each in times.measured for row in _rows(f"{each.algorithm}/{each.size_bytes}", each.own_seconds[rank])
    ]


def _machine_rows(times: CollectiveTimes) -> list[SampleRow]:
    """`message/1024` and `addition/1024`: the samples that the model is fitted to."""
    series = {"message": times.message_s, "addition": times.addition_s}
    return [
        row
        for what, sizes in series.items()
        for size, values in sizes.items()
        for row in _rows(f"{what}/{size}", values)
    ]


def _rows(name: str, seconds: Any) -> list[SampleRow]:
    from deep5.results.samples_file import sample_rows

    return sample_rows(name, "s", [Sample(value) for value in seconds])


def _about(plan: CollectivePlan) -> dict[str, Any]:
    calls = plan.warm_up + plan.rounds
    return {"steps": calls * len(plan.algorithms) * len(plan.sizes_bytes), "threads": None}
