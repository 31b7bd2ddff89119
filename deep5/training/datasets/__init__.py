"""Data sets, one a file. Names load when they are first used."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deep5.training.datasets.cifar import cifar10 as cifar10
    from deep5.training.datasets.digits import digits as digits
    from deep5.training.datasets.synthetic import synthetic as synthetic

_HOME = {
    "cifar10": "deep5.training.datasets.cifar",
    "digits": "deep5.training.datasets.digits",
    "synthetic": "deep5.training.datasets.synthetic",
}
__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'deep5.training.datasets' has no attribute {name!r}; it has {', '.join(_HOME)}")
    return getattr(import_module(_HOME[name]), name)
