"""Checks of `check_executor` at many sizes, at extreme values, in other memory, and in other element types."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from deep5.core.errors import NetworkError, Unsupported
from deep5.core.executors import GraphExecutor
from deep5.core.framework import Framework
from deep5.core.seeds import generator
from deep5.core.tensors import numpy_dtype
from deep5.networks.checks.pair import Feed, Pair
from deep5.networks.checks.problems import drawn, extremes, kinks, layouts, not_finite, of_type, sequences
from deep5.networks.zoo import mlp

__all__ = ["LARGE", "SIZES", "batch_sizes", "check_sizes", "check_types", "check_unknown", "check_values"]

LARGE = 16_385
"""One above 16 KiB of bytes and 16,384 elements, where kernels are cut into blocks."""

SIZES = (1, 2, 3, 64, 17, LARGE)
"""One, an even and an odd number, a multiple of all vectors' lengths, one above the longest of them, and `LARGE`."""

# Where a new size costs no compilation, all small ones, and those around powers of two.
_MORE = (*range(4, 18), 31, 32, 33, 63, 64, 65, 127, 128, 129, 257, 1025, 4097)

# (N, T): one, as many elements in two shapes, equal ones, and as many as `LARGE`.
_PAIRS = ((1, 1), (2, 3), (3, 2), (8, 8), (3, 1821))

_TYPES = ("int32", "int64", "bool", "uint8", "int8", "float16", "bfloat16")


def batch_sizes(executor: GraphExecutor, seed: int) -> tuple[int, ...]:
    """The batch sizes to compute at: `SIZES`, a drawn one, and more where a size costs no compilation."""
    draw = generator(seed, "check_executor", "sizes")
    chosen = (*SIZES, int(draw.integers(4, 65)))
    return tuple(dict.fromkeys(chosen if "whole_step" in executor.capabilities else (*chosen, *_MORE)))


def check_sizes(framework: Framework, pair: Pair, sizes: Sequence[int], seed: int) -> None:
    """Outputs and gradients at each batch size, and again at the first ones after the others."""
    for turn, turns in enumerate((sizes, sizes[2::-1])):
        for size in turns:
            feed = drawn(pair.network, seed, turn, N=size)
            pair.inference(feed, f"of a batch of {size}")
            pair.backprop(feed, f"of a batch of {size}")
    # By an input, too, whose gradient has the batch's shape.
    pair.backprop(drawn(pair.network, seed, N=17), "of a batch of 17 by the input", wrt=["input"])
    narrow = Pair(framework, mlp(features=1, hidden=1, classes=1, dtype=pair.dtype), pair.dtype)
    feed = drawn(narrow.network, seed, N=1)
    narrow.inference(feed, "of a batch of 1, all layers of one element,")
    narrow.backprop(feed, "of a batch of 1, all layers of one element,")


def check_unknown(framework: Framework, dtype: str, seed: int) -> None:
    """Outputs and gradients of a network with two unknown dimensions, in several combinations, twice."""
    pair = Pair(framework, sequences(dtype), dtype)
    for turn, pairs in enumerate((_PAIRS, _PAIRS[1:3])):
        for batch, steps in pairs:
            feed = drawn(pair.network, seed, turn, N=batch, T=steps)
            what = f"of {batch} sequences of {steps} steps"
            pair.inference(feed, what)
            pair.backprop(feed, what)


def check_values(framework: Framework, dtype: str, seed: int) -> None:
    """Outputs and gradients at zeros, ties, and large and small values."""
    pair = Pair(framework, kinks(dtype), dtype)
    for executor in (pair.executor, pair.reference):  # ones: ties remain ties
        executor.load_state_dict({name: np.ones_like(value) for name, value in pair.start.items()})
    plain = drawn(pair.network, seed, N=4)
    for what, values in extremes(plain["input"]):
        feed = {"input": values}
        for given, which in ((plain, "before others"), (feed, what)):  # a result that was kept would be another
            pair.inference(given, which)
            pair.backprop(given, which)
        pair.backprop(feed, f"{what} by the input", wrt=["input"])
    pair.backprop(plain, "after extreme values")


def check_layouts(pair: Pair, feed: Feed) -> None:
    """Outputs and gradients are the same in whatever memory the inputs lie, all of them or one at a time."""
    for what, laid in layouts(feed):
        pair.inference(laid, what)
        pair.backprop(laid, what)
        for name in feed:
            pair.inference({**feed, name: laid[name]}, f"with {name!r} {what}")


def check_types(framework: Framework, main: str, seed: int) -> None:
    """The parameters' element type `main` and others, where the back-end runs them; NaN and infinities of each."""
    for dtype in (main, *_TYPES):
        tolerance = dtype if dtype.startswith(("float", "bfloat")) else "float64"
        networks = [of_type(dtype)]
        if tolerance == dtype != main:
            networks.append(kinks(dtype))
        for network in networks:
            try:
                pair = Pair(framework, network, tolerance)
            except (NetworkError, Unsupported):  # refused when the executor is made, which is an answer
                continue
            for size in (1, 4) if network.parameter_specs else (4,):
                feed = drawn(network, seed, N=size)
                feed = {name: value.astype(numpy_dtype(network.inputs[name].dtype)) for name, value in feed.items()}
                pair.inference(feed, f"of {size} samples")
                if network.parameter_specs:
                    pair.backprop(feed, f"of {size} samples")
                elif tolerance == dtype:  # sums and moves, whose results are defined
                    for what, given in not_finite(feed):
                        pair.inference(given, what)
                        pair.inference(feed, f"after those {what}")
