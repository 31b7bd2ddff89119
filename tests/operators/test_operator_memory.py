"""Operators on every back-end: arrays of any layout are read correctly, without unnecessary copies."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import deep5 as d5
from backend_operators import draw, power
from backends import BACKENDS, COMPUTING, ENGINES, Backend, parametrized
from deep5.core.tensors import aligned_empty
from memory_cases import Where, addresses

KINDS = pytest.mark.parametrize("kind", ["Py", "Cpp"])


def layouts(dtype: str) -> list[np.ndarray]:
    """Memory of every kind, including read-only and non-native byte order."""
    base, raw = draw(6, 4, dtype=dtype), np.zeros(4 * 8 + 1, np.uint8)[1:].view("f4")
    raw[...] = draw(8)
    frozen = base.copy()
    frozen.flags.writeable = False
    turned = [base, base.T, base[::2, ::-1], np.asfortranarray(base), frozen, base[1:, 1:]]
    return [*turned, base.astype(base.dtype.newbyteorder(">")), np.asarray(draw(dtype=dtype)), raw.astype(dtype)[1:]]


@KINDS
@parametrized(*COMPUTING, *ENGINES, daily=True)
def test_arrays_of_any_layout_are_read_right(backend: Backend, kind: str) -> None:
    dtype = backend.floats[-1]
    native, executor = backend.framework.operator(power(kind)), backend.framework.operator_executor(power(kind))
    empty = [] if backend.name == "openvino" else [np.empty((0, 3), dtype)]
    for x in [*layouts(dtype), *empty]:
        want = x.astype(dtype).astype("f8") ** 3
        (given,) = executor.arrays(x)
        found = [executor.inference(given)[0], native(given)]
        # JAX and TensorFlow accept NumPy arrays everywhere; the engines know no others.
        found += (
            [native(x)]
            if backend.name == "jax"
            else [native(np.array(x, dtype, order="C"))]
            if (backend.name == "tensorflow")
            else []
        )
        if backend.name in ENGINES and x.dtype.isnative:
            found += [executor.inference(x)[0]]
        for y in found:
            assert y.shape == x.shape
            np.testing.assert_allclose(backend.numpy(y).astype("f8"), want, rtol=5e-6 if dtype == "float32" else 1e-14)
        _, (dx,) = executor.inference_and_backprop((given,), (given,))
        slope = 3 * x.astype(dtype).astype("f8") ** 3
        np.testing.assert_allclose(backend.numpy(dx).astype("f8"), slope, rtol=5e-6 if dtype == "float32" else 1e-14)


@parametrized(*COMPUTING, *ENGINES)
def test_values_of_every_kind_become_arrays(backend: Backend) -> None:
    executor = backend.framework.operator_executor(power("Py"))
    x = draw(3, 4)
    frozen = x.copy()
    frozen.flags.writeable = False
    wide = [draw(2, dtype="f8"), np.array([1 << 40])] if backend.name in COMPUTING else []
    given = [x, x.T, x[:, ::-1], x.astype(">f4"), backend.native(x), frozen, 3.0, *wide]
    given += [x.astype(ml_dtypes.bfloat16)] if backend.name in COMPUTING else []
    for value, array in zip(given, executor.arrays(*given), strict=True):
        assert isinstance(array, type(backend.native(np.ones(1))))
        expected = backend.numpy(value) if value is given[4] else np.asarray(value)
        assert backend.dtype(array) == expected.dtype.newbyteorder("=").name
        np.testing.assert_array_equal(backend.numpy(array), expected)
    if backend.name in ENGINES:
        assert all(a.flags.c_contiguous and a.flags.aligned and a.dtype.isnative for a in executor.arrays(*given))
    # An array is shared where that is safe; JAX and TensorFlow, which run later, make a copy.
    (array,) = executor.arrays(x)
    assert np.shares_memory(backend.numpy(array), x) == (backend.name not in ("jax", "tensorflow"))


@parametrized("jax", "tensorflow")
def test_an_array_that_its_owner_changes_is_copied(backend: Backend) -> None:
    native = backend.framework.operator(power("Cpp", 2))
    executor = backend.framework.operator_executor(power("Cpp", 2))
    aligned = aligned_empty((1 << 16,), "float64")
    aligned[:] = 2
    found, (array,) = native(aligned), executor.arrays(aligned)
    aligned[:] = 3
    for got in (found, executor.inference(array)[0]):
        assert (backend.numpy(got) == 4).all()


def place(backend: Backend, value: Any) -> int:
    """The address of an array's first element."""
    if backend.name == "jax":
        return int(value.unsafe_buffer_pointer())
    if backend.name == "pytorch":
        return int(value.data_ptr())
    # The buffer of a TensorFlow tensor is its memory; numpy() makes a copy.
    array = np.asarray(memoryview(value)) if backend.name == "tensorflow" else value
    return int(array.ctypes.data)


@pytest.mark.parametrize("how", ["eager", "traced"])
@parametrized("jax", "pytorch", "tensorflow", daily=True)
def test_an_operator_in_cpp_is_given_the_memory_of_the_framework(backend: Backend, how: str) -> None:
    where = backend.framework.operator(Where())
    tracing = BACKENDS["pytorch:compiled"] if backend.name == "pytorch" else backend
    run = tracing.traced(where) if how == "traced" else where
    for elements in (5, 5000):
        x = backend.native(np.ones(elements))
        for given in (x, x[2:]) if backend.name == "pytorch" else (x,):
            places = run(given)
            assert addresses(places) == [place(backend, given), place(backend, places)]


@parametrized(*ENGINES)
def test_an_operator_in_cpp_is_given_the_memory_of_the_engine(backend: Backend) -> None:
    executor = backend.framework.operator_executor(Where())
    for elements in (3, 5000):
        x = np.ones(elements, np.float32)
        executor.inference(x)  # ONNX Runtime copies small arrays that are not passed twice in a row, and small outputs
        (places,) = executor.inference(x)
        written = executor._last._copies[0][1] if backend.name == "onnxruntime" else places
        assert addresses(places) == [x.ctypes.data, written.ctypes.data]


@parametrized(*COMPUTING, "reference")
def test_a_native_function_gets_the_frameworks_own_memory(backend: Backend) -> None:
    """Only the function is timed: no conversion or copy on the way in or out."""
    seen: list[Any] = []

    def twice(x: Any) -> Any:
        seen.append((x, x + x))
        return seen[-1][1]

    executor = backend.framework.operator_executor(d5.NativeOperator(twice, framework=backend.name))
    (x,) = executor.arrays(np.ones((2, 3), np.float32))
    (y,) = executor.inference(x)
    assert type(y) is type(x)
    if backend.name in ("pytorch", "reference"):  # the others trace the function
        assert [place(backend, value) for value in seen[-1]] == [place(backend, x), place(backend, y)]
    np.testing.assert_array_equal(backend.numpy(y), np.full((2, 3), 2))
