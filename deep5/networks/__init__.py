"""Level 1: networks, executors, gradients. Names load when they are first used: onnx takes a third of a second."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deep5.networks.builder import NetworkBuilder as NetworkBuilder
    from deep5.networks.network import Network as Network
    from deep5.networks.zoo import lenet as lenet
    from deep5.networks.zoo import mlp as mlp
    from deep5.networks.zoo import resnet as resnet

_HOME = {
    "Network": "deep5.networks.network",
    "NetworkBuilder": "deep5.networks.builder",
    "lenet": "deep5.networks.zoo",
    "mlp": "deep5.networks.zoo",
    "resnet": "deep5.networks.zoo",
}
__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'deep5.networks' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
