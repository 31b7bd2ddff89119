"""What mypy knows of `Network`: each edit returns a `Network`. Type-checked by `make lint`, never run."""

from __future__ import annotations

from typing import assert_type

import numpy as np

from deep5.core.executors import GraphExecutor
from deep5.core.network_spec import NetworkSpec
from deep5.networks.native import NativeNetwork
from deep5.networks.network import Network


def edits(network: Network, value: np.ndarray) -> None:
    assert_type(Network.from_onnx("network.onnx"), Network)
    assert_type(network.freeze("conv1.*"), Network)
    assert_type(network.unfreeze(), Network)
    assert_type(network.with_values({"w": value}), Network)
    assert_type(network.with_outputs(["logits"]), Network)
    assert_type(network.with_weights("weights.safetensors"), Network)
    assert_type(network.add_parameter("w", value), Network)
    assert_type(network.add_node("Relu", ["x"]), Network)
    assert_type(network.remove_node("Relu_1", bypass="x"), Network)
    assert_type(network.add_edge("x", "Relu_1"), Network)
    assert_type(network.remove_edge("Conv_1", 2), Network)
    assert_type(network.replace_node("Relu_1", "Gelu"), Network)
    assert_type(network.rename("x", "y"), Network)
    assert_type(network.add_loss(), Network)
    assert_type(network.subnetwork(["x"], ["y"]), Network)


def specs(network: Network, native: NativeNetwork, executor: GraphExecutor) -> None:
    known: list[NetworkSpec] = [network, native]
    assert_type(executor.network, NetworkSpec)
    assert_type(known[0].with_values({}), NetworkSpec)
