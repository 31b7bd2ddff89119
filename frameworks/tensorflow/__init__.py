"""The TensorFlow back-end. Names are imported on first use: importing this module does not import the framework."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deep5.frameworks.tensorflow.framework import TensorFlow as TensorFlow
    from deep5.frameworks.tensorflow.framework import from_model as from_model
    from deep5.frameworks.tensorflow.keras_recorder import KerasRecorder as KerasRecorder
    from deep5.frameworks.tensorflow.native import from_keras as from_keras
    from deep5.frameworks.tensorflow.optimizers import AdaDeltaOptimizer as AdaDeltaOptimizer
    from deep5.frameworks.tensorflow.optimizers import AdaGradOptimizer as AdaGradOptimizer
    from deep5.frameworks.tensorflow.optimizers import AdamOptimizer as AdamOptimizer
    from deep5.frameworks.tensorflow.optimizers import AdamWOptimizer as AdamWOptimizer
    from deep5.frameworks.tensorflow.optimizers import AMSGradOptimizer as AMSGradOptimizer
    from deep5.frameworks.tensorflow.optimizers import GradientDescentOptimizer as GradientDescentOptimizer
    from deep5.frameworks.tensorflow.optimizers import LAMBOptimizer as LAMBOptimizer
    from deep5.frameworks.tensorflow.optimizers import LionOptimizer as LionOptimizer
    from deep5.frameworks.tensorflow.optimizers import MomentumOptimizer as MomentumOptimizer
    from deep5.frameworks.tensorflow.optimizers import NadamOptimizer as NadamOptimizer
    from deep5.frameworks.tensorflow.optimizers import NesterovOptimizer as NesterovOptimizer
    from deep5.frameworks.tensorflow.optimizers import RMSPropOptimizer as RMSPropOptimizer

_HOME = {
    "KerasRecorder": "keras_recorder",
    "TensorFlow": "framework",
    "from_model": "framework",
    "from_keras": "native",
    "AMSGradOptimizer": "optimizers",
    "AdaDeltaOptimizer": "optimizers",
    "AdaGradOptimizer": "optimizers",
    "AdamOptimizer": "optimizers",
    "AdamWOptimizer": "optimizers",
    "GradientDescentOptimizer": "optimizers",
    "LAMBOptimizer": "optimizers",
    "LionOptimizer": "optimizers",
    "MomentumOptimizer": "optimizers",
    "NadamOptimizer": "optimizers",
    "NesterovOptimizer": "optimizers",
    "RMSPropOptimizer": "optimizers",
}
__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        from deep5.core.deep500 import replaced

        there = ", ".join(_HOME)
        raise AttributeError(
            f"module 'deep5.frameworks.tensorflow' has no attribute {name!r}; it has {there}{replaced(name)}"
        )
    return getattr(import_module(f"deep5.frameworks.tensorflow.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
