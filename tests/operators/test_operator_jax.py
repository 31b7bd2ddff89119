"""Operators on JAX, beyond the suite of all back-ends: its transformations, its types, lifetimes of kernels."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import deep5 as d5
from backend_operators import Broken, CppMixed, CppPow, PyMixed, PyPow, batch, draw, mixed_values, powers
from backends import BACKENDS
from deep5.core.errors import ShapeError, Unsupported
from deep5.frameworks.jax import ffi

BACKEND, JAX = BACKENDS["jax"], d5.framework("jax")
POWERS = pytest.mark.parametrize("make", [PyPow, CppPow])


@pytest.fixture
def _in_64_bits() -> Iterator[None]:
    """For tests that compute in float64 on JAX themselves."""
    with jax.enable_x64(True):
        yield


@pytest.fixture(autouse=True)
def _the_process_keeps_its_setting() -> Iterator[None]:
    before = jax.config.jax_enable_x64
    yield
    assert jax.config.jax_enable_x64 == before


@POWERS
def test_arrays_of_jax_in_other_layouts(make: Any) -> None:
    x = BACKEND.native(draw(4, 3, dtype="f8"))
    function = jax.jit(lambda x: JAX.operator(make(2))(x.T[::2]))
    np.testing.assert_allclose(function(x), np.asarray(x).T[::2] ** 2, rtol=1e-14)


@pytest.mark.parametrize("make", [PyMixed, CppMixed])
def test_gradients_by_integers_have_no_size(make: Any) -> None:
    inputs = [*map(BACKEND.native, mixed_values())]
    outputs, pull = jax.vjp(JAX.operator(make()), *inputs)
    ones = [jnp.ones_like(outputs[0]), np.zeros((1,), jax.dtypes.float0), jnp.ones_like(outputs[2])]
    with jax.enable_x64(False):
        kinds = [gradient.dtype for gradient in pull(tuple(ones))]
    assert kinds == ["float64", "float64", jax.dtypes.float0]


@POWERS
def test_derivatives_forward_are_refused_with_the_reason(make: Any) -> None:
    run, x = JAX.operator(make()), jnp.ones(3)
    for call in (
        lambda: jax.jvp(run, (x,), (x,)),
        lambda: jax.jacfwd(run)(x),
        lambda: jax.hessian(lambda x: run(x).sum())(x),
    ):
        with pytest.raises(Unsupported, match=r"Pow has its own backward, .* only in reverse mode; .*jax\.jacrev"):
            call()
    with pytest.raises(TypeError):  # an unrelated one
        run(x, nobody=x)


@pytest.mark.usefixtures("_in_64_bits")
@POWERS
def test_vmap_is_a_call_an_element(make: Any) -> None:
    x = BACKEND.native(draw(5, 3, dtype="f8"))
    np.testing.assert_allclose(jax.vmap(JAX.operator(make(3)))(x), np.asarray(x) ** 3, rtol=1e-14)
    slopes = jax.vmap(jax.grad(lambda row: JAX.operator(make(3))(row).sum()))(x)
    np.testing.assert_allclose(slopes, 3 * np.asarray(x) ** 2, rtol=1e-14)


def test_xla_calls_the_kernel_itself() -> None:
    x = jnp.ones((2, 3))
    power = JAX.operator(CppPow(3))
    text = jax.jit(jax.grad(lambda x: power(x).sum())).lower(x).as_text()
    assert text.count(f"custom_call @{ffi.TARGET}") == 2
    assert "callback" not in text
    executor = d5.framework("jax").executor(powers("CppPow"))
    feed, _ = executor._feed(batch(5))
    with jax.enable_x64(True):
        text = executor._evaluate.lower(executor._values, executor._buffers, feed).as_text()
    assert f"custom_call @{ffi.TARGET}" in text
    assert "callback" not in text


def test_code_that_looks_at_values() -> None:
    operator = Broken(lambda x: x if x[0] > 0 else -x)
    assert JAX.operator(operator)(jnp.ones(2)).tolist() == [1, 1]
    with pytest.raises(Unsupported, match=r"Broken\.forward cannot be traced by JAX .*outside of jax\.jit"):
        jax.jit(JAX.operator(operator))(jnp.ones(2))
    operator = Broken(lambda x: jnp.asarray(np.square(x)))
    with pytest.raises(Unsupported, match=r"cannot be traced by JAX \(TracerArrayConversionError\)"):
        jax.jit(JAX.operator(operator))(jnp.ones(2))


def test_an_exception_inside_what_the_user_compiled_holds_the_message() -> None:
    run = jax.jit(lambda x: JAX.operator(CppPow(2))(x) + 1)
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"thirteen is \[not\]; taken"):
        jax.block_until_ready(run(jnp.ones(13)))


def test_inputs_that_jax_cannot_take() -> None:
    for make in (PyPow, CppPow):
        with pytest.raises(ShapeError, match="input 0: got an array of object, which JAX cannot take"):
            JAX.operator(make())(np.array([{}]))
        with pytest.raises(ShapeError, match="got ndarray as input 0; allowed: an array of JAX; remedy: executor"):
            JAX.operator_executor(make()).inference(np.ones(2))


def test_a_kernel_lives_as_long_as_what_calls_it() -> None:
    x = jnp.arange(4.0)

    def compiled() -> Any:
        return jax.jit(JAX.operator(CppPow(3)))

    lowered = jax.jit(JAX.operator(CppPow(4))).lower(x)
    ready = jax.jit(JAX.operator(CppPow(5))).lower(x).compile()
    function = compiled()
    function(x)
    for power in range(2, 6):  # others, which may reuse freed memory
        JAX.operator(CppPow(power))(x)
    gc.collect()
    jax.clear_caches()
    gc.collect()
    assert function(x).tolist() == [0, 1, 8, 27]
    assert ready(x).tolist() == [0, 1, 32, 243]
    try:
        assert lowered.compile()(x).tolist() == [0, 1, 16, 81]
    except jax.errors.JaxRuntimeError as error:
        assert "is gone: it was lowered in another process, or" in str(error)  # noqa: PT017 - either is right


def test_kernels_that_nothing_calls_are_let_go() -> None:
    jax.clear_caches()
    gc.collect()
    before = ffi.entered()
    function = jax.jit(jax.grad(lambda x: JAX.operator(CppPow(3))(x).sum()))
    function(jnp.ones(2))
    gc.collect()
    assert ffi.entered() == before + 2
    del function
    jax.clear_caches()
    gc.collect()
    assert ffi.entered() == before


def test_the_executable_alone_keeps_its_kernel() -> None:
    jax.clear_caches()
    gc.collect()
    before = ffi.entered()
    ready = jax.jit(JAX.operator(CppPow(3))).lower(jnp.ones(2)).compile()
    executable = ready.runtime_executable()
    del ready
    jax.clear_caches()
    gc.collect()
    assert ffi.entered() == before + 1
    del executable
    gc.collect()
    assert ffi.entered() == before


def test_compiled_operators_stay_on_the_host() -> None:
    with pytest.raises(
        Unsupported, match="CppPow is compiled, and deep5 does not support CUDA kernels in JAX; allowed: the host"
    ):
        JAX.operator_executor(CppPow(2), device="cuda")
    with pytest.raises(Unsupported, match="CppPow is compiled, and deep5 does not support CUDA kernels in JAX"):
        JAX.executor(powers("CppPow"), device="cuda")


class Peak(d5.Operator):
    """Twice x, and the index of the largest element of each row."""

    def specs(self, *inputs: d5.TensorSpec) -> tuple[d5.TensorSpec, ...]:
        return inputs[0], d5.TensorSpec(shape=inputs[0].shape[:1], dtype="int64")

    def forward(self, *inputs: Any) -> Any:
        return 2 * inputs[0], d5.array_namespace(inputs[0]).argmax(inputs[0], axis=1)

    def backward(self, output_grads: Any, inputs: Any, outputs: Any, needs: Any) -> Any:
        return (2 * output_grads[0],)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_what_jax_types_only_when_it_lowers_has_64_bits_too(dtype: str) -> None:
    executor = JAX.operator_executor(Peak())
    x = draw(3, 4, dtype=dtype)
    outputs, gradients = executor.inference_and_backprop(executor.arrays(x), executor.arrays(np.ones((3, 4), dtype), x))
    for made in (executor.inference(*executor.arrays(x)), outputs):
        assert [value.dtype.name for value in made] == [dtype, "int64"]
        np.testing.assert_array_equal(made[1], x.argmax(1))
    np.testing.assert_array_equal(gradients[0], np.full((3, 4), 2.0))


def test_a_compiled_operator_is_traced_once_a_shape() -> None:
    traced: list[tuple[int, ...]] = []
    call = JAX.operator(CppPow(3))

    def noted(x: Any) -> Any:
        traced.append(x.shape)
        return call(x)

    function = jax.jit(noted)
    for shape in ((1,), (1,), (2,), (1,), (2,)):
        function(jnp.ones(shape))
    assert traced == [(1,), (2,)]
