"""Assignment of processors to the runs of a study whose candidates request ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from deep5.core.errors import UsageError
from deep5.core.terminal import counted
from deep5.measuring.environment import default_threads
from deep5.measuring.pinning import processors
from deep5.recipe.recipe import Recipe

__all__ = ["Shares", "share_processors"]


@dataclass(frozen=True, kw_only=True)
class Shares:
    """Resources of each run of a study, the same for all candidates.

    Attributes:
        threads: Threads within an operator, for each rank whose recipe does not set them.
        processors: By candidate, the number of processors that its runs are pinned to, for all ranks together.
        notes: Candidates with more ranks than processors, one sentence per number of ranks.
    """

    threads: int
    processors: Mapping[str, int]
    notes: tuple[str, ...]

    @property
    def most(self) -> int:
        """Most processors of a run."""
        return max(self.processors.values())


def share_processors(recipes: Mapping[str, Recipe], *, together: bool = True, here: bool = True) -> Shares:
    """Divide processors among ranks.

    Every rank gets the threads that it would get with the largest number of ranks, so that candidates differ only in
    the number of ranks. Every run may use as many processors as the run with the most ranks and threads requires;
    otherwise their times would not be comparable. If there are fewer processors, ranks share them.

    Args:
        recipes: By candidate, its recipe.
        together: Whether times are compared; otherwise a run has the processors that its own ranks and threads require.
        here: Whether runs have the processors of this process; otherwise, a rank whose recipe does not set its threads
            has one.

    Raises:
        UsageError: A candidate requests more threads per rank than there are processors; or a candidate requests ranks
            although this process is itself one of several ranks.
    """
    from deep5.distributed.launch.launcher import launched

    ranks = {name: recipe.ranks or 1 for name, recipe in recipes.items()}
    if any(recipe.ranks is not None for recipe in recipes.values()) and (found := launched()) is not None:
        raise UsageError(
            f"{found.by} started this process as rank {found.rank} of {found.size}; allowed: deep5 study by itself, "
            "which starts the ranks of its runs; remedy: the recipe's 'launcher'"
        )
    ours = (default_threads("", ranks=max(ranks.values())) or 1) if here and together else 1
    threads = {name: int(recipe.value("threads") or ours) for name, recipe in recipes.items()}
    most = max(threads.values())
    needed = {name: ranks[name] * threads[name] for name in recipes}
    count = max(needed.values())
    if here:
        count = len(processors(count))
        if most > count:
            raise UsageError(f"{most} threads; allowed: at most {count}, the processors of this process")
    crowded: dict[int, list[str]] = {}
    for name, own in ranks.items():
        if own > 1 and needed[name] > count:
            crowded.setdefault(own, []).append(name)
    notes = [
        f"{', '.join(names)}: {own} ranks share {counted(count, 'processor')}, so their times say nothing about a "
        "scheme"
        for own, names in crowded.items()
    ]
    each = {name: count if together else min(count, own) for name, own in needed.items()}
    return Shares(threads=most, processors=each, notes=tuple(notes))
