"""The JAX back-end. Names are imported on first use: importing this module does not import the framework."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deep5.frameworks.jax.framework import JAX as JAX
    from deep5.frameworks.jax.framework import from_model as from_model
    from deep5.frameworks.jax.native import from_jax as from_jax
    from deep5.frameworks.jax.optimizers import AdaDeltaOptimizer as AdaDeltaOptimizer
    from deep5.frameworks.jax.optimizers import AdaGradOptimizer as AdaGradOptimizer
    from deep5.frameworks.jax.optimizers import AdamOptimizer as AdamOptimizer
    from deep5.frameworks.jax.optimizers import AdamWOptimizer as AdamWOptimizer
    from deep5.frameworks.jax.optimizers import AMSGradOptimizer as AMSGradOptimizer
    from deep5.frameworks.jax.optimizers import GradientDescentOptimizer as GradientDescentOptimizer
    from deep5.frameworks.jax.optimizers import LAMBOptimizer as LAMBOptimizer
    from deep5.frameworks.jax.optimizers import LARSOptimizer as LARSOptimizer
    from deep5.frameworks.jax.optimizers import LBFGSOptimizer as LBFGSOptimizer
    from deep5.frameworks.jax.optimizers import LionOptimizer as LionOptimizer
    from deep5.frameworks.jax.optimizers import MomentumOptimizer as MomentumOptimizer
    from deep5.frameworks.jax.optimizers import NadamOptimizer as NadamOptimizer
    from deep5.frameworks.jax.optimizers import NesterovOptimizer as NesterovOptimizer
    from deep5.frameworks.jax.optimizers import RMSPropOptimizer as RMSPropOptimizer
    from deep5.frameworks.jax.recording import recorded_step as recorded_step

_HOME = {
    "recorded_step": "recording",
    "JAX": "framework",
    "from_jax": "native",
    "from_model": "framework",
    "AMSGradOptimizer": "optimizers",
    "AdaDeltaOptimizer": "optimizers",
    "AdaGradOptimizer": "optimizers",
    "AdamOptimizer": "optimizers",
    "AdamWOptimizer": "optimizers",
    "GradientDescentOptimizer": "optimizers",
    "LAMBOptimizer": "optimizers",
    "LARSOptimizer": "optimizers",
    "LBFGSOptimizer": "optimizers",
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
        raise AttributeError(f"module 'deep5.frameworks.jax' has no attribute {name!r}; it has {there}{replaced(name)}")
    return getattr(import_module(f"deep5.frameworks.jax.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
