"""The declaration of a study: what can be checked before a process is started."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deep5.compare.candidate import check_plain, content_hash
from deep5.compare.processes import check_limits
from deep5.compare.studied import chosen, load_study, target_of
from deep5.core.canonical import canonical, canonical_hash
from deep5.core.errors import UsageError
from deep5.engines.make import LOCAL
from deep5.measuring.environment import describe_software, environment_hash
from deep5.recipe.recipe import Recipe
from deep5.recipe.register import check_reachable
from deep5.results.time_to_target import Target
from deep5.study.processors import Shares, share_processors

__all__ = ["Plan", "declare"]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A study as declared; `contents` holds a hash of the content of each candidate and seed.

    Runs with other contents, or from another environment (machine and software) or commit of deep5, do not belong to
    the same study.
    """

    recipe: Recipe
    name_or_path: str
    size: str
    varied: Mapping[str, Mapping[str, Any]] | None
    settings: Mapping[str, Mapping[str, Any]]
    common: Mapping[str, Any]
    seeds: Sequence[int]
    target: Target | None
    notes: Sequence[str]
    contents: Mapping[tuple[str, int], str]
    fixed_hash: str
    environment: str
    commit: Mapping[str, Any] | None
    shares: Shares
    time_limit_s: float
    memory_limit_bytes: int | None
    engine: str
    workers: int

    @property
    def timed(self) -> bool:
        """Whether durations compare: runs follow each other, on one machine."""
        return self.workers == 1

    def all_settings(self) -> dict[str, Any]:
        """By candidate, all its settings, in JSON types."""
        return {name: canonical({**self.common, **own}, strict=False) for name, own in self.settings.items()}

    def provenance(self) -> dict[str, Any]:
        """Hashes of the runs' contents and of their environment; the commit of deep5 in a checkout."""
        contents = canonical_hash([self.contents[key] for key in sorted(self.contents)])
        return {"contents": contents, "environment": self.environment, "commit": self.commit}


def declare(
    name_or_path: str | Path,
    varied: Mapping[str, Mapping[str, Any]] | None,
    size: str,
    only: str | Sequence[str] | None,
    seeds: Sequence[int],
    common: Mapping[str, Any],
    requested: Target | None,
    time_limit_s: float,
    memory_limit_bytes: int | None,
    engine: str,
    workers: int,
) -> Plan:
    """Check everything that can be checked before a process is started; arguments and errors as of `run_study`."""
    recipe, candidates = load_study(name_or_path, size, varied)
    settings = chosen(candidates, only)
    if not settings or not seeds or len(set(seeds)) != len(seeds):
        raise UsageError(f"a study of {list(settings)} with the seeds {list(seeds)}; allowed: at least one each, once")
    for name, own in settings.items():
        if both := sorted(set(own) & set(common)):
            raise UsageError(f"{both[0]!r} is set for all and by the candidate {name!r}; allowed: one of them")
    check_plain([varied or {}, common], "the settings")
    check_limits(time_limit_s, memory_limit_bytes)
    if isinstance(workers, bool) or not isinstance(workers, int) or workers < 1:
        raise UsageError(f"workers is {workers!r:.40}; allowed: an integer of at least 1")
    made = {
        (name, seed): recipe.with_settings({**common, **own, "seed": seed})
        for name, own in settings.items()
        for seed in seeds
    }
    for each in made.values():
        check_reachable(each)
    contents = {key: content_hash(own) for key, own in made.items()}  # contents that cannot be hashed are rejected
    firsts = {name: made[name, seeds[0]] for name in settings}
    shares = share_processors(firsts, together=workers == 1, here=engine.partition(":")[0] == LOCAL)
    together = min(workers, len(made))
    target, reported = target_of(recipe, requested)
    software = describe_software()
    return Plan(
        recipe=recipe,
        name_or_path=recipe.name if name_or_path == recipe.name else str(Path(name_or_path).resolve()),
        size=size,
        varied=varied,
        settings=settings,
        common=common,
        seeds=seeds,
        target=target,
        notes=[*reported, *shares.notes, *_concurrent(together)],
        contents=contents,
        # Arguments of a model in place of a recipe are common settings.
        fixed_hash=recipe.with_settings(common).fixed_hash(),
        environment=environment_hash(software=software),
        commit=software["commit"],
        shares=shares,
        time_limit_s=time_limit_s,
        memory_limit_bytes=memory_limit_bytes,
        engine=engine,
        workers=workers,
    )


def _concurrent(workers: int) -> list[str]:
    if workers == 1:
        return []
    return [f"{workers} runs at the same time, or on several machines: no times are stated; remedy: --workers 1"]
