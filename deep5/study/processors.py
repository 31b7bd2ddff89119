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
        processors: Number of processors that each run is pinned to, for all its ranks together.
        notes: Candidates with more ranks than processors, one sentence per number of ranks.
    """

    threads: int
    processors: int
    notes: tuple[str, ...]


def share_processors(recipes: Mapping[str, Recipe]) -> Shares:
    """Divide the processors of this process among ranks.

    Every rank gets the threads that it would get with the largest number of ranks, so that candidates differ only in
    the number of ranks. Every run may use as many processors as the run with the most ranks and threads requires;
    otherwise their times would not be comparable. If there are fewer processors, ranks share them.

    Args:
        recipes: By candidate, its recipe.

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
    ours = default_threads("", ranks=max(ranks.values())) or 1
    threads = {name: int(recipe.value("threads") or ours) for name, recipe in recipes.items()}
    most = max(threads.values())
    here = len(processors(max(most, *(ranks[name] * threads[name] for name in recipes))))
    if most > here:
        raise UsageError(f"{most} threads; allowed: at most {here}, the processors of this process")
    crowded: dict[int, list[str]] = {}
    for name, count in ranks.items():
        if count > 1 and count * threads[name] > here:
            crowded.setdefault(count, []).append(name)
    notes = [
        f"{', '.join(names)}: {count} ranks share {counted(here, 'processor')}, so their times say nothing about a "
        "scheme"
        for count, names in crowded.items()
    ]
    return Shares(threads=most, processors=here, notes=tuple(notes))
