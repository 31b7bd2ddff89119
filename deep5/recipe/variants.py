"""The variants of a recipe that its file states: its sizes, and the candidates of a study of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from deep5.core.canonical import check_nesting, copied
from deep5.core.errors import RecipeError, UsageError
from deep5.recipe.lines import RecipeLines

__all__ = ["candidates_of", "sizes_of"]


def sizes_of(sizes: Any, lines: RecipeLines, full: str) -> dict[str, Mapping[str, Any]]:
    """The changes by name of size.

    Args:
        sizes: SIZES, or None.
        lines: The positions of its parts.
        full: The name of the size without changes.

    Raises:
        RecipeError: It is not a dict of changes by name.
    """
    if sizes is None:
        return {}
    if not isinstance(sizes, Mapping):
        raise RecipeError(
            f"{lines.at('SIZES')}SIZES is {sizes!r}; allowed: a dict such as {{'smoke': {{'epochs': 1}}}}"
        )
    for name, changes in sizes.items():
        at = lines.at("SIZES", name if isinstance(name, str) else "")
        if not isinstance(name, str) or not name or name == full:
            raise RecipeError(f"{at}SIZES names the size {name!r}; allowed: a string other than {full!r}")
        if not isinstance(changes, Mapping) or not all(isinstance(key, str) for key in changes):
            raise RecipeError(f"{at}the size {name!r} is {changes!r}; allowed: a dict such as {{'epochs': 1}}")
    return {name: copied(changes) for name, changes in sizes.items()}


def candidates_of(study: Any, lines: RecipeLines, accept: Callable[[Mapping[str, Any]], object]) -> dict[str, Any]:
    """The settings by candidate of a study.

    Args:
        study: STUDY, or settings in its place.
        lines: The positions of its parts.
        accept: Applies settings to the recipe; raises UsageError for those that it does not accept.

    Raises:
        RecipeError: It is not a dict of settings by name, or the recipe does not accept them.
    """
    check_nesting(study, f"{lines.at('STUDY')}STUDY")
    if not isinstance(study, Mapping) or not all(isinstance(own, Mapping) for own in study.values()):
        raise RecipeError(
            f"{lines.at('STUDY')}STUDY is {study!r:.60}; allowed: a dict such as {{'adam': {{'optimizer': 'adam'}}, …}}"
        )
    for name, own in study.items():
        at = lines.at("STUDY", name if isinstance(name, str) else "")
        if not isinstance(name, str) or not name:
            raise RecipeError(f"{at}STUDY names the candidate {name!r:.60}; allowed: a nonempty string")
        for key, value in own.items():
            at = lines.at("STUDY", name, key if isinstance(key, str) else "")
            if not isinstance(key, str):
                raise RecipeError(f"{at}the candidate {name!r} sets {key!r:.60}; allowed: strings as keys")
            if key == "seed":
                raise RecipeError(
                    f"{at}the candidate {name!r} sets 'seed'; allowed: --seeds, which every candidate has"
                )
            check_nesting(value, f"{at}the setting {key!r}")
        try:
            accept(own)
        except UsageError as error:
            key = next((key for key in own if repr(key) in str(error)), "")
            raise RecipeError(f"{lines.at('STUDY', name, key)}the candidate {name!r}: {error}") from error
    return {name: copied(own) for name, own in study.items()}
