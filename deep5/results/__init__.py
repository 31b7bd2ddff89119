"""Results: on disk, as tables, as MLPerf events; `load` reads all under a root, the rest is in its own modules."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from deep5.results.notebook import load_renderers_by

if TYPE_CHECKING:
    from deep5.results.frame import load as load

__all__ = ["load"]


def _load_renderers() -> None:
    from deep5.results.report import fragment as fragment


# This package is imported before each of its modules, so nobody holds a result whose renderer cannot be found.
load_renderers_by(_load_renderers)


def __getattr__(name: str) -> Any:
    if name != "load":
        raise AttributeError(f"module 'deep5.results' has no attribute {name!r}")
    value = import_module("deep5.results.frame").load
    globals()[name] = value
    return value
