"""Dropout masks that JAX draws in a compiled step: the bits that the host draws for every other back-end."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

import deep5 as d5
from deep5.frameworks.jax.masks import StepMasks
from deep5.networks import NetworkBuilder
from deep5.networks.masks import dropout_mask
from deep5.networks.run_modes import Mask, training_form

DTYPES = ("float16", "bfloat16", "float32", "float64")
SHAPES: tuple[tuple[int | str, ...], ...] = ((), (1,), ("N",), ("N", 3), (64,), (65,), (7, 33, "M"), ("N", 0))


def network() -> Any:
    """Its masks are replaced; its inputs have the dimensions N and M."""
    build = NetworkBuilder("drops")
    x, y = build.input("x", ("N", "M")), build.input("y", ("M", 2))
    dropped = build.op("Dropout", x, build.constant("ratio", np.array(0.5, np.float32)))
    return build.network({"z": build.op("MatMul", dropped, y)})


@pytest.mark.parametrize("traced", [True, False])
@pytest.mark.parametrize("ratio", [0.3, 0.5, 1e-3, 0.999])
def test_the_masks_have_the_bits_of_the_host(ratio: float, traced: bool) -> None:
    masks = tuple(
        Mask(f"{number}/{dtype}", shape, ratio, dtype, f"node{number}")
        for number, shape in enumerate(SHAPES)
        for dtype in DTYPES
    )
    drawing = StepMasks(training_form(network()))
    drawing._masks = masks
    info = d5.StepInfo(step=2**32 + 9, seed=2**40 + 5, batch_size=4)
    x, y = np.ones((4, 5), np.float32), np.ones((5, 2), np.float32)
    with jax.enable_x64(True):
        given = jax.jit(drawing.given) if traced else drawing.given
        found = given([x, y, drawing.numbers(info), np.uint32(7)])
    assert (found[0].shape, found[1].shape, int(found[-1])) == (x.shape, y.shape, 7)
    for mask, got in zip(masks, found[2:-1], strict=True):
        shape = tuple({"N": 4, "M": 5}.get(each, each) for each in mask.shape)
        want = dropout_mask(shape, ratio=ratio, seed=info.seed, step=info.step, node=mask.node, dtype=mask.dtype)
        assert (got.shape, got.dtype) == (want.shape, want.dtype)
        np.testing.assert_array_equal(np.asarray(got), want)


def test_another_step_or_seed_compiles_nothing() -> None:
    executor = d5.framework("jax").executor(network())
    feed = {
        "x": np.ones((4, 5), np.float32),
        "y": np.float32([[1, 0], [2, 0], [4, 0], [8, 0], [16, 0]]),
    }  # every mask has another result
    drawn = set()
    for step, seed in ((0, 0), (1, 0), (2**33, 0), (0, 1)):
        found = np.asarray(executor.inference(feed, training=True, info=d5.StepInfo(step=step, seed=seed))["z"])
        drawn.add(found.tobytes())
    assert len(drawn) == 4
    assert executor._train._cache_size() == 1
