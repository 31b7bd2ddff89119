"""Gradients as networks: the backward pass of any network, written in ONNX operators."""

from deep5.networks.gradients.build import gradient_network, vjp_network

__all__ = ["gradient_network", "vjp_network"]
