"""Running recipes: training, operators, code, and collectives; checked, run, and resumed."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deep5.run.execute import execute_as_rank as execute_as_rank
    from deep5.run.program import run_recipe as run_recipe

_HOME = {
    "execute_as_rank": "execute",
    "run_recipe": "program",
}
__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'deep5.run' has no attribute {name!r}; it has {', '.join(_HOME)}")
    return getattr(import_module(f"deep5.run.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
