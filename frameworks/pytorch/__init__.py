"""The PyTorch back-end. Names load lazily: importing this package does not import torch."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deep5.frameworks.pytorch.framework import PyTorch as PyTorch
    from deep5.frameworks.pytorch.framework import from_model as from_model
    from deep5.frameworks.pytorch.lightning_recorder import LightningRecorder as LightningRecorder
    from deep5.frameworks.pytorch.native import from_module as from_module
    from deep5.frameworks.pytorch.optimizers import AdaDeltaOptimizer as AdaDeltaOptimizer
    from deep5.frameworks.pytorch.optimizers import AdaGradOptimizer as AdaGradOptimizer
    from deep5.frameworks.pytorch.optimizers import AdamOptimizer as AdamOptimizer
    from deep5.frameworks.pytorch.optimizers import AdamWOptimizer as AdamWOptimizer
    from deep5.frameworks.pytorch.optimizers import AMSGradOptimizer as AMSGradOptimizer
    from deep5.frameworks.pytorch.optimizers import AveragedSGDOptimizer as AveragedSGDOptimizer
    from deep5.frameworks.pytorch.optimizers import GradientDescentOptimizer as GradientDescentOptimizer
    from deep5.frameworks.pytorch.optimizers import LBFGSOptimizer as LBFGSOptimizer
    from deep5.frameworks.pytorch.optimizers import MomentumOptimizer as MomentumOptimizer
    from deep5.frameworks.pytorch.optimizers import NadamOptimizer as NadamOptimizer
    from deep5.frameworks.pytorch.optimizers import NesterovOptimizer as NesterovOptimizer
    from deep5.frameworks.pytorch.optimizers import RMSPropOptimizer as RMSPropOptimizer
    from deep5.frameworks.pytorch.transformers_recorder import TransformersRecorder as TransformersRecorder

_HOME = {
    "TransformersRecorder": "transformers_recorder",
    "LightningRecorder": "lightning_recorder",
    "PyTorch": "framework",
    "from_model": "framework",
    "from_module": "native",
    "AMSGradOptimizer": "optimizers",
    "AdaDeltaOptimizer": "optimizers",
    "AdaGradOptimizer": "optimizers",
    "AdamOptimizer": "optimizers",
    "AdamWOptimizer": "optimizers",
    "AveragedSGDOptimizer": "optimizers",
    "GradientDescentOptimizer": "optimizers",
    "LBFGSOptimizer": "optimizers",
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
            f"module 'deep5.frameworks.pytorch' has no attribute {name!r}; it has {there}{replaced(name)}"
        )
    return getattr(import_module(f"deep5.frameworks.pytorch.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
