"""Gradients of convolutions with long kernels: the same numbers as with one slice per position, in far fewer nodes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

import deep5 as d5
from deep5.networks.gradients import long_windows
from deep5.networks.gradients.build import gradient_network

# Sizes of the input, of the kernel, strides, pads, groups, channels, outputs.
CASES = {
    "one axis": ((40,), (9,), (1,), (0, 0), 1, 2, 4),
    "a power of two": ((50,), (8,), (8,), (0, 3), 1, 1, 3),
    "a stride": ((40,), (9,), (2,), (3, 1), 1, 2, 4),
    "groups": ((41,), (10,), (4,), (0, 2), 2, 2, 4),
    "a stride above the kernel": ((37,), (7,), (9,), (0, 0), 1, 2, 3),
    "the last of two axes": ((6, 40), (3, 9), (2, 3), (1, 2, 0, 4), 2, 4, 4),
    "the first of two axes": ((40, 6), (9, 1), (3, 2), (0, 0, 0, 0), 1, 2, 2),
    "three axes": ((6, 7, 30), (2, 1, 11), (1, 2, 5), (0, 1, 0, 1, 0, 3), 1, 2, 2),
    "each channel alone": ((33,), (5,), (1,), (2, 2), 4, 4, 4),
}


def convolution(
    space: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    pads: Sequence[int],
    group: int,
    channels: int,
    outputs: int,
) -> d5.Network:
    build = d5.NetworkBuilder("convolution")
    x = build.input("x", ("N", channels, *space))
    w = build.parameter("w", (outputs, channels // group, *kernel))
    y = build.op("Conv", x, w, strides=list(strides), pads=list(pads), group=group)
    return build.network({"loss": build.op("ReduceSum", build.op("Mul", y, y), keepdims=0)})


def gradient(network: d5.Network, x: np.ndarray) -> np.ndarray:
    executor = d5.framework("reference").executor(network)
    executor.inference_and_backprop({"x": x})
    return np.array(executor.gradients()["w"])


@pytest.mark.parametrize("name", CASES)
def test_both_ways_give_the_same_gradient(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    network = convolution(*CASES[name])
    space, channels = CASES[name][0], CASES[name][5]
    x = np.random.default_rng(0).standard_normal((3, channels, *space)).astype(np.float32)
    expected = gradient(network, x)
    monkeypatch.setattr(long_windows, "_MOST_SLICES", 4)
    found = gradient(network, x)
    # The same products of the same columns.
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("stride", [1, 2, 16, 256])
def test_nodes_grow_with_the_logarithm_of_the_kernel(stride: int) -> None:
    made = gradient_network(convolution((1, 5000), (1, 256), (1, stride), (0, 0, 0, 0), 1, 1, 36))
    assert len(made.nodes) < 90
