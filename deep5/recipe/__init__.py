"""Recipes: read from a file, validated, and hashed, with their names resolved."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deep5.recipe.recipe import Recipe as Recipe
    from deep5.recipe.recipe import load_recipe as load_recipe

_HOME = {
    "Recipe": "recipe",
    "load_recipe": "recipe",
}
__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'deep5.recipe' has no attribute {name!r}; it has {', '.join(_HOME)}")
    return getattr(import_module(f"deep5.recipe.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
