"""Level 1: networks, executors, gradients. Names load lazily: importing onnx takes a third of a second.

>>> import numpy as np
>>> import deep5 as d5
>>> network = d5.networks.mlp(features=4, hidden=8, classes=3)
>>> executor = d5.framework("reference").executor(network)
>>> batch = {"input": np.ones((5, 4), np.float32), "label": np.zeros(5, np.int64)}
>>> executor.inference_and_backprop(batch)["logits"].shape
(5, 3)
>>> {name: gradient.shape for name, gradient in executor.gradients().items()}
{'fc1.weight': (8, 4), 'fc1.bias': (8,), 'fc2.weight': (3, 8), 'fc2.bias': (3,)}
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deep5.networks.analysis.analysis import Layer as Layer
    from deep5.networks.analysis.analysis import NetworkAnalysis as NetworkAnalysis
    from deep5.networks.analysis.analysis import analyse as analyse
    from deep5.networks.analysis.layer_summary import LayerTime as LayerTime
    from deep5.networks.analysis.layer_summary import LayerTimes as LayerTimes
    from deep5.networks.analysis.layer_timing import layer_times as layer_times
    from deep5.networks.edit.builder import NetworkBuilder as NetworkBuilder
    from deep5.networks.edit.builder import glorot_uniform as glorot_uniform
    from deep5.networks.edit.builder import he_normal as he_normal
    from deep5.networks.edit.builder import ones as ones
    from deep5.networks.edit.builder import zeros as zeros
    from deep5.networks.microbatching.apply import MicrobatchPlan as MicrobatchPlan
    from deep5.networks.microbatching.planner import plan_microbatches as plan_microbatches
    from deep5.networks.microbatching.transform import micro_batched as micro_batched
    from deep5.networks.network import Network as Network
    from deep5.networks.onnx_interface import onnx_backend as onnx_backend
    from deep5.networks.transforms.adapters import low_rank_adapters as low_rank_adapters
    from deep5.networks.transforms.adapters import merge_adapters as merge_adapters
    from deep5.networks.transforms.convolution_algorithms import convolutions_by as convolutions_by
    from deep5.networks.transforms.convolution_algorithms import unfit_convolutions as unfit_convolutions
    from deep5.networks.transforms.precision import with_precision as with_precision
    from deep5.networks.zoo import alexnet as alexnet
    from deep5.networks.zoo import attention_seq2seq as attention_seq2seq
    from deep5.networks.zoo import autoencoder as autoencoder
    from deep5.networks.zoo import center_net as center_net
    from deep5.networks.zoo import deep_speech as deep_speech
    from deep5.networks.zoo import denoiser as denoiser
    from deep5.networks.zoo import densenet121 as densenet121
    from deep5.networks.zoo import dlrm as dlrm
    from deep5.networks.zoo import gan as gan
    from deep5.networks.zoo import gcn as gcn
    from deep5.networks.zoo import googlenet as googlenet
    from deep5.networks.zoo import gpt as gpt
    from deep5.networks.zoo import gpt_cached as gpt_cached
    from deep5.networks.zoo import inception as inception
    from deep5.networks.zoo import lenet as lenet
    from deep5.networks.zoo import lstm as lstm
    from deep5.networks.zoo import lstm_language_model as lstm_language_model
    from deep5.networks.zoo import mlp as mlp
    from deep5.networks.zoo import mobilenet_v2 as mobilenet_v2
    from deep5.networks.zoo import policy_network as policy_network
    from deep5.networks.zoo import q_network as q_network
    from deep5.networks.zoo import resnet as resnet
    from deep5.networks.zoo import resnet18 as resnet18
    from deep5.networks.zoo import resnet18_small as resnet18_small
    from deep5.networks.zoo import resnet34 as resnet34
    from deep5.networks.zoo import resnet50 as resnet50
    from deep5.networks.zoo import squeezenet as squeezenet
    from deep5.networks.zoo import ssd as ssd
    from deep5.networks.zoo import transformer as transformer
    from deep5.networks.zoo import vgg as vgg
    from deep5.networks.zoo import vit as vit
    from deep5.networks.zoo import wide_resnet as wide_resnet

_HOME = {
    "Layer": "deep5.networks.analysis.analysis",
    "LayerTime": "deep5.networks.analysis.layer_summary",
    "LayerTimes": "deep5.networks.analysis.layer_summary",
    "MicrobatchPlan": "deep5.networks.microbatching.apply",
    "Network": "deep5.networks.network",
    "NetworkAnalysis": "deep5.networks.analysis.analysis",
    "NetworkBuilder": "deep5.networks.edit.builder",
    "alexnet": "deep5.networks.zoo",
    "attention_seq2seq": "deep5.networks.zoo",
    "analyse": "deep5.networks.analysis.analysis",
    "center_net": "deep5.networks.zoo",
    "convolutions_by": "deep5.networks.transforms.convolution_algorithms",
    "autoencoder": "deep5.networks.zoo",
    "deep_speech": "deep5.networks.zoo",
    "denoiser": "deep5.networks.zoo",
    "densenet121": "deep5.networks.zoo",
    "dlrm": "deep5.networks.zoo",
    "gan": "deep5.networks.zoo",
    "gcn": "deep5.networks.zoo",
    "glorot_uniform": "deep5.networks.edit.builder",
    "googlenet": "deep5.networks.zoo",
    "gpt": "deep5.networks.zoo",
    "gpt_cached": "deep5.networks.zoo",
    "he_normal": "deep5.networks.edit.builder",
    "inception": "deep5.networks.zoo",
    "layer_times": "deep5.networks.analysis.layer_timing",
    "lenet": "deep5.networks.zoo",
    "low_rank_adapters": "deep5.networks.transforms.adapters",
    "lstm": "deep5.networks.zoo",
    "lstm_language_model": "deep5.networks.zoo",
    "merge_adapters": "deep5.networks.transforms.adapters",
    "micro_batched": "deep5.networks.microbatching.transform",
    "mlp": "deep5.networks.zoo",
    "mobilenet_v2": "deep5.networks.zoo",
    "ones": "deep5.networks.edit.builder",
    "onnx_backend": "deep5.networks.onnx_interface",
    "plan_microbatches": "deep5.networks.microbatching.planner",
    "policy_network": "deep5.networks.zoo",
    "q_network": "deep5.networks.zoo",
    "resnet": "deep5.networks.zoo",
    "resnet18": "deep5.networks.zoo",
    "resnet18_small": "deep5.networks.zoo",
    "resnet34": "deep5.networks.zoo",
    "resnet50": "deep5.networks.zoo",
    "squeezenet": "deep5.networks.zoo",
    "ssd": "deep5.networks.zoo",
    "transformer": "deep5.networks.zoo",
    "unfit_convolutions": "deep5.networks.transforms.convolution_algorithms",
    "vgg": "deep5.networks.zoo",
    "vit": "deep5.networks.zoo",
    "wide_resnet": "deep5.networks.zoo",
    "with_precision": "deep5.networks.transforms.precision",
    "zeros": "deep5.networks.edit.builder",
}
__all__ = list(_HOME)

if not TYPE_CHECKING:  # a type checker reports a name that is missing

    def __getattr__(name: str) -> Any:
        if name not in _HOME:
            from deep5.core.deep500 import replaced
            from deep5.core.errors import suggestion

            meant = replaced(name) or suggestion(name, _HOME)
            raise AttributeError(f"module 'deep5.networks' has no attribute {name!r}{meant}")
        return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
