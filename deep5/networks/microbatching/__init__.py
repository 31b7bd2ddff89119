"""Micro-batches under a memory limit: measure costs, choose a plan, transform the network."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deep5.networks.microbatching.apply import MicrobatchPlan as MicrobatchPlan
    from deep5.networks.microbatching.planner import plan_microbatches as plan_microbatches
    from deep5.networks.microbatching.transform import micro_batched as micro_batched

_HOME = {
    "MicrobatchPlan": "apply",
    "micro_batched": "transform",
    "plan_microbatches": "planner",
}
__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(
            f"module 'deep5.networks.microbatching' has no attribute {name!r}; it has {', '.join(_HOME)}"
        )
    return getattr(import_module(f"deep5.networks.microbatching.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
