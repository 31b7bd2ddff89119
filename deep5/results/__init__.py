"""Results on disk, as tables, and as MLPerf events; `load` reads all under a root, other names are in the modules."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deep5.results.frame import load as load

__all__ = ["load"]

if not TYPE_CHECKING:  # a type checker reports a name that is missing

    def __getattr__(name: str) -> Any:
        if name != "load":
            raise AttributeError(f"module 'deep5.results' has no attribute {name!r}")
        value = import_module("deep5.results.frame").load
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted(__all__)
