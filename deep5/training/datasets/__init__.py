"""Data sets, one a file. Names load when they are first used."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deep5.training.datasets.cifar import cifar10 as cifar10
    from deep5.training.datasets.class_templates import synthetic as synthetic
    from deep5.training.datasets.uci_digits import digits as digits

_HOME = {
    "cifar10": "deep5.training.datasets.cifar",
    "digits": "deep5.training.datasets.uci_digits",
    "synthetic": "deep5.training.datasets.class_templates",
}
__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'deep5.training.datasets' has no attribute {name!r}; it has {', '.join(_HOME)}")
    return getattr(import_module(_HOME[name]), name)
