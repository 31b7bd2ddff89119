"""The TensorFlow back-end. Names load when they are first used: importing this does not import the framework."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deep5.frameworks.tensorflow.framework import TensorFlow as TensorFlow
    from deep5.frameworks.tensorflow.framework import from_model as from_model
    from deep5.frameworks.tensorflow.native import from_keras as from_keras
    from deep5.frameworks.tensorflow.optimizers import AdamOptimizer as AdamOptimizer
    from deep5.frameworks.tensorflow.optimizers import GradientDescentOptimizer as GradientDescentOptimizer
    from deep5.frameworks.tensorflow.optimizers import MomentumOptimizer as MomentumOptimizer

_HOME = {
    "TensorFlow": "framework",
    "from_model": "framework",
    "from_keras": "native",
    "AdamOptimizer": "optimizers",
    "GradientDescentOptimizer": "optimizers",
    "MomentumOptimizer": "optimizers",
}
__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(
            f"module 'deep5.frameworks.tensorflow' has no attribute {name!r}; it has {', '.join(_HOME)}"
        )
    return getattr(import_module(f"deep5.frameworks.tensorflow.{_HOME[name]}"), name)
