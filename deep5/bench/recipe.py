"""Convert a recipe of operators (level 0) to a plan, and check it without running it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import ceil, floor, log10
from pathlib import Path
from typing import Any

from deep5.bench.plan import Plan, remarks, workloads
from deep5.core.errors import Deep5Error, MissingDependency, RecipeError
from deep5.recipe.part import Part, Parts, is_factory

__all__ = ["check_operators", "plan_of"]

# Keyword arguments of the function under `bare`.
_GIVEN = ("inputs", "output_grads", "needs", "threads", "device")


def plan_of(parts: Parts) -> Plan:
    """The plan of a level-0 recipe, in JSON types.

    Args:
        parts: The recipe's parts, by key.

    Raises:
        RecipeError: `bare` is not a function that another process can find.
    """
    values = {key: part.value for key, part in parts.items()}
    operator = parts["operator"]
    return Plan(
        operator=operator.value if operator.value is None else _absolute(operator.value, operator.folder),
        problems=values["problems"],
        uses=_names(values["uses"]),
        shapes=tuple(tuple(shape) for shape in values["shapes"]),
        attributes=values["attributes"],
        dtype=_dtype(values["dtype"]),
        bounds=None if values["bounds"] is None else tuple(values["bounds"]),
        frameworks=_names(values["frameworks"]),
        bare=_bare(parts["bare"]),
        backward=values["backward"],
        cold=values["cold"],
        mode="rigorous" if values["rigorous"] else "quick",
        processes=values["processes"],
        rounds=values["rounds"],
        threads=values["threads"],
        device=str(values["device"]),
        seed=values["seed"],
        limit_gflop=values["limit_gflop"],
        take=values["take"],
        keep=values["box"],
        folder=_folder(parts["frameworks"]),
    )


def _dtype(value: str | Sequence[str]) -> str | tuple[str, ...]:
    return value if isinstance(value, str) else tuple(value) if len(value) > 1 else value[0]


def _names(value: str | Sequence[str]) -> tuple[str, ...]:
    return tuple(value.split(",") if isinstance(value, str) else value)


def _folder(part: Part) -> str | None:
    """The folder of frameworks in files, as a name keeps the form in which it is written; None: there are none."""
    of_files = any(".py:" in name for name in _names(part.value))
    return str(Path(part.folder or "").resolve()) if of_files else None


def _absolute(text: str, folder: Path | None) -> str:
    """`FILE.py:NAME` with the absolute path, since another process may have another working directory."""
    if ".py:" not in text:
        return text
    file, _, name = text.rpartition(":")
    return f"{Path(folder or '', file).resolve()}:{name}"


def _bare(part: Part) -> str | None:
    value = part.value
    if value is None or isinstance(value, str):
        return None if value is None else _absolute(value, part.folder)
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", "")
    if not is_factory(value) or not module or not name.isidentifier():
        raise part.not_a(value, "a function at the top level of a module, or FILE.py:NAME")
    # A recipe's file runs as a module with a special name, which no other process knows.
    own = part.file is not None and module.startswith(("deep5_recipe_", "__main__"))
    return f"{Path(str(part.file)).resolve()}:{name}" if own else f"{module}:{name}"


def check_operators(parts: Parts) -> list[str]:
    """Check whether a level-0 recipe can run: its problems, its operator, its function for the bare frameworks.

    Args:
        parts: The recipe's parts, by key.

    Returns:
        What would be run, and how much would be left out.

    Raises:
        RecipeError: A part does not exist or does not fit.
    """
    plan, bare, notes = plan_of(parts), parts["bare"], []
    if plan.bare is not None:
        bare.check(bare.component(), None, None, **dict.fromkeys(_GIVEN))
    try:
        works, left_out = workloads(plan)
    except MissingDependency:
        raise
    except Deep5Error as error:
        raise RecipeError(f"{parts['operator'].where}{error}") from error
    if not works:
        raise RecipeError(f"{parts['limit_gflop'].where}no problem is left to run; {_least(plan, left_out)}")
    _check_box(parts["box"], plan)
    notes.append(f"{len(works)} of {len(works) + len(left_out)} problems and directions would be run")
    return notes + remarks(plan, works, left_out)


def _least(plan: Plan, left_out: list[dict[str, Any]]) -> str:
    """Why nothing is left, and the smallest limit that would leave something."""
    all_works, _ = workloads(replace(plan, limit_gflop=None, take=None))
    works = [work.flops for work in all_works if work.flops is not None]
    if plan.limit_gflop is None or not works:
        return f"the first of {len(left_out)} reasons: {left_out[0]['reason']}"
    least = ceil(min(works) / 1e9 * (digits := 10.0 ** (2 - floor(log10(min(works) / 1e9))))) / digits
    return f"got limit_gflop={plan.limit_gflop:g}; allowed: at least {least:.3g}, the work of the smallest problem"


def _check_box(part: Part, plan: Plan) -> None:
    from deep5.operators.problems import problem_set

    box = part.value
    if box is None or plan.problems is None:
        return
    # Looks in all uses: if a setting leaves the problem out, this is reported when the charts are drawn.
    names = [problem.name for problem in problem_set(plan.problems, (), plan.peak_dtype)]
    if box not in names:
        raise RecipeError(f"{part.where}'box' is {box!r}; allowed: one of {names[0]} … {names[-1]}")
