"""Level 1: networks, executors, gradients. Names load when they are first used: onnx takes a third of a second."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deep5.networks.builder import NetworkBuilder as NetworkBuilder
    from deep5.networks.builder import glorot_uniform as glorot_uniform
    from deep5.networks.builder import he_normal as he_normal
    from deep5.networks.builder import ones as ones
    from deep5.networks.builder import zeros as zeros
    from deep5.networks.network import Network as Network
    from deep5.networks.precision import with_precision as with_precision
    from deep5.networks.zoo import inception as inception
    from deep5.networks.zoo import lenet as lenet
    from deep5.networks.zoo import lstm as lstm
    from deep5.networks.zoo import mlp as mlp
    from deep5.networks.zoo import resnet as resnet
    from deep5.networks.zoo import resnet18 as resnet18
    from deep5.networks.zoo import resnet50 as resnet50
    from deep5.networks.zoo import transformer as transformer

_HOME = {
    "Network": "deep5.networks.network",
    "NetworkBuilder": "deep5.networks.builder",
    "glorot_uniform": "deep5.networks.builder",
    "he_normal": "deep5.networks.builder",
    "inception": "deep5.networks.zoo",
    "lenet": "deep5.networks.zoo",
    "lstm": "deep5.networks.zoo",
    "mlp": "deep5.networks.zoo",
    "ones": "deep5.networks.builder",
    "resnet": "deep5.networks.zoo",
    "resnet18": "deep5.networks.zoo",
    "resnet50": "deep5.networks.zoo",
    "transformer": "deep5.networks.zoo",
    "with_precision": "deep5.networks.precision",
    "zeros": "deep5.networks.builder",
}
__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        from deep5.errors import suggestion

        raise AttributeError(f"module 'deep5.networks' has no attribute {name!r}{suggestion(name, _HOME)}")
    return getattr(import_module(_HOME[name]), name)
