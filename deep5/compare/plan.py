"""The candidates of a comparison, which combine a recipe with frameworks and settings, and how to compare them."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from deep5.compare.candidate import MODES, Candidate, Plan, check_plain, content_hash, settings_of
from deep5.compare.processes import check_limits
from deep5.core.errors import UsageError
from deep5.core.plugins import load, mode_fault, owner_of
from deep5.measuring.pinning import processors
from deep5.measuring.scheme import CURRENT, Scheme
from deep5.recipe.experiment import Experiment, recipe_parts
from deep5.recipe.keys import base
from deep5.recipe.own_network import IDENTITY_SEED, is_own_network, made_network
from deep5.recipe.recipe import FULL, Recipe, load_recipe
from deep5.recipe.register import check_reachable
from deep5.run.choice import workload_of
from deep5.run.workload import Workload

__all__ = ["candidates_of", "kind_of", "make_plan"]

_LEAST_STEPS = 2
# Keys that the comparison sets itself, and the option of each.
_OWN = {
    "framework": "--frameworks",
    "frameworks": "--frameworks",
    "executor": "--frameworks",
    "threads": "--threads",
    "rigorous": "--rigorous",
    "processes": "--processes",
}
# Parts of a recipe without effect on the timed code: candidates are timed in one process, without ranks.
_WITHOUT_EFFECT = {
    "training": {
        "epochs", "validation_sampler", "test_transforms", "events", "ranks", "launcher", "scheme", "compression",
    },
    "inference": {
        "epochs", "validation_sampler", "test_transforms", "events", "ranks", "launcher", "scheme", "compression",
        "optimizer", "schedules", "parameter_groups",
        "gradient_modifier", "clip_norm", "clip_value", "weight_decay", "coupled_weight_decay",
        "loss_scale",
        "master_weights", "accumulate", "prefetch",
    },
    "operators": {"cold", "bare", "pictures", "box"},
}  # fmt: skip


def kind_of(workload: Workload, requested: str | None) -> str:
    """The subject of a recipe's comparison.

    Raises:
        UsageError: The recipe does not support this kind.
    """
    name, allowed = workload.experiment.name, workload.compared
    if not allowed:
        raise UsageError(
            f"{name} itself times {workload.compares}; allowed: a recipe that trains a network, or one of operators; "
            "remedy: deep5 run"
        )
    kind = requested or allowed[0]
    if kind not in allowed:
        raise UsageError(f"got {kind!r} as the subject of a comparison of {name}; allowed: {', '.join(allowed)}")
    return kind


def candidates_of(
    frameworks: Sequence[str], variations: Mapping[str, Sequence[Any]], settings: Mapping[str, Any]
) -> list[Candidate]:
    """Every framework with every combination of varied values.

    Args:
        frameworks: Names, modes included.
        variations: By key of the recipe, its values.
        settings: Settings of all candidates.
    """
    made = []
    for values in itertools.product(*variations.values()):
        varied = dict(zip(variations, values, strict=True))
        reported = ", ".join(f"{key}={value}" for key, value in varied.items())
        for name in frameworks:
            parts = [name] if len(frameworks) > 1 or not reported else []
            label = ", ".join([*parts, *([reported] if reported else [])])
            made.append(Candidate(label=label, framework=name, settings={**settings, **varied}))
    return made


def make_plan(
    recipe: str,
    *,
    frameworks: Sequence[str] = (),
    vary: Mapping[str, Sequence[Any]] | None = None,
    settings: Mapping[str, Any] | None = None,
    candidates: Sequence[Candidate] = (),
    size: str = FULL,
    kind: str | None = None,
    rigorous: bool = False,
    baseline: str | None = None,
    threads: int | None = None,
    seed: int | None = None,
    steps: int = 100,
    most: int | None = None,
    time_limit_s: float = 600.0,
    memory_limit_bytes: int | None = None,
    scheme: Scheme = CURRENT,
) -> tuple[Plan, dict[str, Recipe]]:
    """Check everything that can be checked before a process is started.

    Args:
        recipe: A registered name, or the path of a Python file.
        frameworks: Names, modes included; none: the recipe's own.
        vary: By key of the recipe, the values to combine into candidates.
        settings: Settings of all candidates.
        candidates: Candidates of a resumed comparison, in place of the three above.
        size: Size of the recipe.
        kind: One of `KINDS`; None: depends on the recipe.
        rigorous: Ten to thirty processes per candidate instead of two.
        baseline: Label of a candidate; None: the first.
        threads: Threads within an operator; None: the recipe's, or one per physical core.
        seed: Seed of the order of the processes; None: random.
        steps: Steps of the proof.
        most: Maximum number of processes per candidate; None: 30, or 2 in the quick mode.
        time_limit_s: Time limit of one process.
        memory_limit_bytes: Memory limit of one process; None: nine tenths of the memory that is free now.
        scheme: Rules of a resumed comparison.

    Returns:
        The plan, and the recipe as each candidate runs it, by label.

    Raises:
        UsageError: Candidates that cannot be compared, with the reason.
    """
    from deep5.measuring.environment import default_threads

    # Before a model is created or exported, which may take a minute.
    _check_counts(threads, steps, rigorous, most, scheme)
    memory_limit_bytes = check_limits(time_limit_s, memory_limit_bytes)
    loaded = load_recipe(recipe).at_size(size)
    workload = workload_of(Experiment.of(loaded))
    kind = kind_of(workload, kind)
    _check_names(frameworks)
    names = _with_export(list(frameworks) or workload.frameworks(), loaded)
    for key, values in (vary or {}).items():
        if not values:
            raise UsageError(f"--vary {key} has no value; allowed: at least one")
    for key in vary or {}:
        if key in (settings or {}):
            raise UsageError(f"{key!r} is set and varied; allowed: one of them")
    made = list(candidates) or candidates_of(names, vary or {}, settings or {})
    for key in {key: None for candidate in made for key in candidate.settings}:
        if key.partition(".")[0] not in loaded.fixed:  # fixed keys are rejected as fixed
            _check_effect(kind, key)
    if len(made) < 2:
        raise UsageError(
            f"one candidate, {made[0].label}; allowed: at least two; remedy: --frameworks pytorch,jax, or --vary "
            "optimizer=adam,momentum"
        )
    labels = [candidate.label for candidate in made]
    if len(set(labels)) < len(labels) or not all(label.isprintable() for label in labels):
        raise UsageError(f"candidates named {labels!r:.200}; allowed: distinct, printable names")
    if baseline is not None and baseline not in labels:
        raise UsageError(f"the baseline {baseline!r} is not a candidate; allowed: {'; '.join(labels)}")
    recipes, contents = {}, {}
    for candidate in made:
        recipes[candidate.label] = loaded.with_settings(settings_of(candidate, kind))
        check_reachable(recipes[candidate.label])
        contents[candidate.label] = content_hash(recipes[candidate.label])  # content that cannot be hashed is rejected
        check_plain(candidate.settings, f"the settings of {candidate.label}")
        _check_provable(candidate, recipes[candidate.label], kind)
    fixed = loaded.fixed.get("threads")
    if threads is not None and fixed not in (None, threads):
        raise UsageError(
            f"--threads {threads}, but {loaded.name} fixes threads={fixed}; allowed: that, or no --threads"
        )
    requested = threads or recipes[labels[0]].value("threads") or default_threads("") or 1
    _check_processors(requested)
    return Plan(
        recipe=recipe if loaded.path is None or recipe == loaded.name else str(loaded.path.resolve()),
        size=size,
        kind=kind,
        mode=MODES[rigorous],
        candidates=tuple(made),
        baseline=baseline or labels[0],
        threads=requested,
        seed=secrets.randbits(31) if seed is None else seed,
        steps=steps,
        most=most or (scheme.looks[-1] if rigorous else scheme.quick_rounds),
        time_limit_s=time_limit_s,
        memory_limit_bytes=memory_limit_bytes,
        scheme=scheme,
        contents=contents,
    ), recipes


def _check_counts(threads: int | None, steps: int, rigorous: bool, most: int | None, scheme: Scheme) -> None:
    """Reject numbers that no comparison takes, whatever its recipe."""
    if threads is not None and threads < 1:
        raise UsageError(f"{threads} threads; allowed: at least 1")
    if threads is not None:
        _check_processors(threads)
    if steps < _LEAST_STEPS:
        raise UsageError(f"{steps} steps of the proof; allowed: at least {_LEAST_STEPS}")
    if rigorous and most is not None and most not in scheme.looks:
        allowed = ", ".join(map(str, scheme.looks))
        raise UsageError(f"--processes {most} with --rigorous; allowed: {allowed}, after which verdicts are computed")
    if not rigorous and most not in (None, scheme.quick_rounds):
        raise UsageError(f"--processes {most} without --rigorous; allowed: {scheme.quick_rounds}; remedy: --rigorous")


def _check_processors(threads: int) -> None:
    here = len(processors(threads))
    if threads > here:
        raise UsageError(f"{threads} threads; allowed: at most {here}, the processors of this process")


def _with_export(names: Sequence[str], recipe: Recipe) -> list[str]:
    """The frameworks; the own one of a library's model takes part twice: with the model as it is, and its export."""
    if "model" not in recipe.kind.keys or not is_own_network(recipe.value("model")):
        return list(names)
    made, _ = made_network(recipe_parts(recipe)["model"], IDENTITY_SEED)
    owner = owner_of(made)
    if owner is None or owner not in names or f"{owner}:exported" in names:
        return list(names)
    place = list(names).index(owner) + 1
    return [*names[:place], f"{owner}:exported", *names[place:]]


def _check_effect(kind: str, key: str) -> None:
    """Reject a setting without effect: two candidates with the same code would appear as different ones."""
    name = base(key.partition(".")[0])
    if name in _OWN:
        raise UsageError(f"--set or --vary has {key!r}; allowed: {_OWN[name]}, which sets it")
    if name in _WITHOUT_EFFECT[kind]:
        raise UsageError(f"--set or --vary has {key!r}, which does not affect a comparison of {kind}")


def _check_provable(candidate: Candidate, recipe: Recipe, kind: str) -> None:
    """Reject settings that the proof does not cover: the timed code must be the code proved equivalent."""
    if kind == "operators":
        return
    refused = {
        "precision": recipe.value("precision") not in (None, "float32"),
        "accumulate": kind == "training" and recipe.value("accumulate") != 1,
        "batch_size": callable(recipe.value("batch_size")) or isinstance(recipe.value("batch_size"), str),
    }
    for key, odd in refused.items():
        if odd:
            raise UsageError(
                f"{candidate.label} has {key}={recipe.value(key)!r:.60}; allowed: float32, no accumulation, and "
                "batches of one size, which the proof covers"
            )


def _check_names(frameworks: Sequence[str]) -> None:
    """Reject misspelled names before the candidates are counted."""
    for name in frameworks:
        if ".py:" in name:
            continue
        load("frameworks", name.partition(":")[0])
        if ":" in name and (fault := mode_fault(name)) is not None:
            raise UsageError(fault)
    if len(set(frameworks)) < len(frameworks):
        raise UsageError(f"--frameworks {','.join(frameworks)} names a framework twice; allowed: each once")
