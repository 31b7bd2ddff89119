"""The times of a run that timed code, as its metrics have them: of a round, those of its slowest rank."""

from __future__ import annotations

from deep5.core.errors import UsageError
from deep5.results.ranks_file import sample_files
from deep5.results.result import Result
from deep5.results.samples_file import read_samples

__all__ = ["SIDES", "timed_rounds", "times_code"]

SIDES = ("candidate", "baseline", "baseline_again")
"""What each round times; the last is a second instance of the baseline."""


def times_code(run: Result) -> bool:
    """Whether a run timed two pieces of code against each other."""
    recipe = run.document["recipe"]
    return {"candidate", "baseline"} <= {*recipe["fixed"], *recipe["mutable"]}


def timed_rounds(run: Result) -> dict[str, list[float]]:
    """Seconds of every round, by side; empty for a run that timed no code, or ended before it had times of all ranks.

    Args:
        run: The run.

    Raises:
        UsageError: A file of samples is missing or is not in deep5's format, or the ranks or sides have different
            numbers of rounds.
    """
    if not times_code(run):
        return {}
    files = sample_files(run.folder, run.rank_count)
    if len(files) < run.rank_count and run.status == "success":
        raise UsageError(
            f"{run.folder.name} has samples of {len(files)} of its {run.rank_count} ranks; allowed: of all, since the "
            "slowest counts; remedy: restore the missing files from a copy"
        )
    if len(files) < run.rank_count:
        return {}
    found: dict[str, list[float]] = {}
    for rank, path in files:
        samples = read_samples(path)
        own = {side: [row.value for row in samples.get(f"{side}_time", ())] for side in SIDES}
        counts = {len(values) for values in (*own.values(), *found.values())}
        if len(counts) > 1:
            raise UsageError(
                f"the times in {path.name} of {run.folder.name} are of {min(counts)} to {max(counts)} rounds; allowed: "
                f"as many of each side and rank (this is rank {rank}); remedy: restore the file from a copy"
            )
        found = {side: list(map(max, own[side], found.get(side, own[side]))) for side in SIDES}
    return found if found and found["candidate"] else {}
