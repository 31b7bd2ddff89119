"""Analyze networks: layers, operations, memory, layer times, pictures."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deep5.networks.analysis.analysis import Layer as Layer
    from deep5.networks.analysis.analysis import NetworkAnalysis as NetworkAnalysis
    from deep5.networks.analysis.analysis import analyse as analyse

_HOME = {
    "Layer": "analysis",
    "NetworkAnalysis": "analysis",
    "analyse": "analysis",
}
__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'deep5.networks.analysis' has no attribute {name!r}; it has {', '.join(_HOME)}")
    return getattr(import_module(f"deep5.networks.analysis.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
