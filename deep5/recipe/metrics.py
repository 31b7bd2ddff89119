"""METRICS: pairs of metric and goal, read and validated before anything runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from deep5.core.errors import MissingDependency, RecipeError, UsageError, contained, described
from deep5.core.metric import Goal, Metric, parse_goal
from deep5.core.plugins import load
from deep5.recipe.lines import RecipeLines

__all__ = ["read_metrics"]

_SHAPE = "allowed: a list of pairs (metric, goal), such as [(d5.TestAccuracy(), 97)]"


def read_metrics(metrics: Any, lines: RecipeLines, *place: str | int) -> tuple[tuple[Metric, Goal | None], ...]:
    """Read METRICS; the list is not changed.

    Args:
        metrics: Pairs; a metric is an object, a class or a registered name.
        lines: Positions in the recipe's file.
        place: Place of this list.

    Raises:
        RecipeError: Not a list, a metric that cannot be created or occurs twice, or a malformed goal.
    """
    if not isinstance(metrics, (list, tuple)):
        raise RecipeError(f"{lines.at(*place)}METRICS is {metrics!r}; {_SHAPE}")
    found: list[tuple[Metric, Goal | None]] = []
    for index, entry in enumerate(metrics):
        at = lines.at(*place, index)
        if not isinstance(entry, (list, tuple)) or len(entry) != 2:
            raise RecipeError(f"{at}METRICS holds {entry!r}; {_SHAPE}")
        metric = _metric(entry[0], at)
        if any(metric == other for other, _ in found):
            raise RecipeError(f"{at}METRICS holds {metric!r} twice; allowed: once; remedy: keep one of its goals")
        try:
            found.append((metric, parse_goal(metric, entry[1])))
        except UsageError as error:
            raise RecipeError(f"{at}{error}") from error
    return tuple(found)


def _metric(given: Any, at: str) -> Metric:
    if isinstance(given, str) and ".py:" in given:
        file, _, name = given.rpartition(":")
        raise RecipeError(
            f"{at}METRICS holds {given!r} as a metric; allowed: a metric's name, class or object; remedy: "
            f"from {Path(file).stem} import {name}, and {name}() in the place of the string"
        )
    try:
        made = load("metrics", given) if isinstance(given, str) else given
        if isinstance(made, type) and issubclass(made, Metric):
            with contained():
                made = made()
    except MissingDependency as error:
        raise MissingDependency(f"{at}{error}") from error
    except UsageError as error:
        raise RecipeError(f"{at}{error}") from error
    except Exception as error:
        raise RecipeError(
            f"{at}the metric {given!r} cannot be created: {described(error)}; remedy: give it as an object, with its "
            "arguments"
        ) from error
    if not isinstance(made, Metric):
        raise RecipeError(f"{at}METRICS holds {given!r} as a metric; allowed: a metric's name, class or object")
    lacking = [name for name in ("name", "unit", "direction") if not isinstance(getattr(made, name, None), str)]
    if lacking or made.direction not in ("higher", "lower"):
        raise RecipeError(
            f"{at}the metric {type(made).__name__} has no valid {lacking[0] if lacking else 'direction'}; "
            "allowed: class attributes name, unit (strings) and direction ('higher' or 'lower')"
        )
    return made
