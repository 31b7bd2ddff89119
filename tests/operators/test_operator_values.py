"""Operators on every back-end, outside networks: values, gradients, element types and which gradients are computed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from backend_operators import PyPow, draw, mixed, mixed_values, power
from backends import BACKENDS, COMPUTING, ENGINES, EPS, Backend, dtype_of, many, parametrized
from deep5.core.errors import Unsupported

KINDS = pytest.mark.parametrize("kind", ["Py", "Cpp"])
HOW = pytest.mark.parametrize("how", ["eager", "traced"])
DOUBLE = (*COMPUTING, "reference", "onnxruntime")


def wrapped(backend: Backend, how: str, function: Any) -> Any:
    return backend.traced(function) if how == "traced" else function


def close(backend: Backend, got: Any, want: Any, dtype: str = "float64", factor: float = 1) -> None:
    assert backend.dtype(got) == dtype
    # Below the smallest normal number units no longer shrink with the value.
    np.testing.assert_allclose(backend.numpy(got).astype("f8"), want, rtol=factor * EPS[dtype], atol=1e-300)


def cases() -> list[Any]:
    """All element types of all back-ends; one per back-end and kind runs daily."""
    return [
        pytest.param(backend, kind, dtype, id=f"{name}-{kind}-{dtype}", marks=[pytest.mark.daily] if not number else [])
        for name, backend in BACKENDS.items()
        if name in (*COMPUTING, *ENGINES)
        for kind in ("Py", "Cpp")
        for number, dtype in enumerate(reversed(backend.floats if kind == "Cpp" else backend.python_floats))
    ]


@pytest.mark.parametrize(("backend", "kind", "dtype"), cases())
def test_values_and_gradients_are_those_of_the_formula(backend: Backend, kind: str, dtype: str) -> None:
    native, executor = backend.framework.operator(power(kind)), backend.framework.operator_executor(power(kind))
    for shape in ((3, 2), (), (5,)) if backend.name == "openvino" else ((3, 2), (), (0, 4), (5,)):
        x, dy = draw(*shape, dtype=dtype_of(dtype)), draw(*shape, dtype=dtype_of(dtype), seed=1)
        want, slope = x.astype("f8") ** 3, 3 * x.astype("f8") ** 2 * dy.astype("f8")
        given, upstream = executor.arrays(x, dy)
        (y,) = executor.inference(given)
        close(backend, y, want, dtype, 2)
        (y,), (dx,) = executor.inference_and_backprop((given,), (upstream,))
        close(backend, y, want, dtype, 2)
        close(backend, dx, slope, dtype, 3)  # three more roundings
        assert dx.shape == y.shape == given.shape
        close(backend, native(given), want, dtype, 2)
        if backend.name in COMPUTING:
            for how in ("eager", "traced"):
                run = wrapped(backend, how, native)
                (y,), (dx,) = backend.pulled(run, [backend.native(x)], [backend.native(dy)])
                close(backend, y, want, dtype, 2)
                close(backend, dx, slope, dtype, 3)
    executor.synchronize()


@KINDS
@parametrized(*COMPUTING, *ENGINES, daily=True)
def test_one_operator_takes_several_element_types_one_after_the_other(backend: Backend, kind: str) -> None:
    """Integers too; cached results of one type are not reused for another."""
    native, executor = backend.framework.operator(power(kind)), backend.framework.operator_executor(power(kind))
    floats = backend.floats if kind == "Cpp" else backend.python_floats
    whole: tuple[str, ...] = ("int64", "int32", *(("uint8",) if backend.name in ("jax", "reference") else ()))
    if (backend.name, kind) == ("openvino", "Py"):
        whole = ()  # as a network, whose integers are 32-bit in OpenVINO
    for dtype in (floats[-1], *whole, floats[0], floats[-1], *whole[:1]):
        x = np.array([[1, 3, 2]]).astype(dtype_of(dtype))
        for y in (native(backend.native(x)), executor.inference(*executor.arrays(x))[0]):
            assert (backend.dtype(y), backend.numpy(y).tolist()) == (dtype, [[1, 27, 8]])


def check_mixed(backend: Backend, outputs: Any, values: list[np.ndarray], dtype: str) -> None:
    (product, rows, twice), (x, w, _) = outputs, values
    close(backend, product, x * w, dtype)
    close(backend, twice, 2 * w, dtype)
    assert (backend.dtype(rows), backend.numpy(rows).tolist()) == ("int64", [14])


@HOW
@KINDS
@parametrized(*COMPUTING, daily=True)
def test_several_inputs_and_outputs(backend: Backend, kind: str, how: str) -> None:
    operator, values = mixed(kind), mixed_values()
    inputs, native = [backend.native(value) for value in values], backend.framework.operator(operator)
    run, (x, w, _) = wrapped(backend, how, native), values
    check_mixed(backend, run(*inputs), values, "float64")
    dproduct, dtwice = draw(4, 3, dtype="f8", seed=2), draw(3, dtype="f8", seed=3)
    operator.report()
    outputs, gradients = backend.pulled(run, inputs, [backend.native(dproduct), None, backend.native(dtwice)])
    check_mixed(backend, outputs, values, "float64")
    close(backend, gradients[0], dproduct * w)
    close(backend, gradients[1], (dproduct * x).sum(0) + 2 * dtwice, factor=50)  # five terms of both signs
    assert gradients[2] is None
    backend.finished(lambda: gradients)
    assert operator.report().items() >= {"by x": 1, "by w": 1}.items()


@KINDS
@parametrized(*COMPUTING, "pytorch:compiled", *ENGINES, daily=True, slow=("pytorch:compiled",))
def test_an_executor_computes_the_gradients_that_are_needed(backend: Backend, kind: str) -> None:
    dtype = backend.floats[-1]
    operator, values = mixed(kind), mixed_values(dtype)
    executor = backend.framework.operator_executor(operator)
    assert executor.operator is operator
    inputs, (x, w, _) = executor.arrays(*values), values
    check_mixed(backend, executor.inference(*inputs), values, dtype)
    dproduct, dtwice = executor.arrays(draw(4, 3, dtype=dtype, seed=2), draw(3, dtype=dtype, seed=3))
    slope = backend.numpy(dproduct) * w, (backend.numpy(dproduct) * x).sum(0) + 2 * backend.numpy(dtwice)
    # Engines run a Python operator's code as an ONNX network, which reports nothing.
    reports = kind == "Cpp" or backend.name not in ("onnxruntime", "openvino")
    seen: set[Any] = set()
    asked = (None, (False, True, False), (True, False, False), (False, True, False), (False,) * 3)
    for needs in asked[: 2 if backend.name == "pytorch:compiled" else 5]:
        wanted = (True, True, False) if needs is None else needs
        executor.synchronize()
        operator.report()
        outputs, found = executor.inference_and_backprop(inputs, (dproduct, None, dtwice), needs=needs)
        executor.synchronize()
        check_mixed(backend, outputs, values, dtype)
        assert [gradient is not None for gradient in found] == list(wanted)
        for gradient, want, needed in zip(found, slope, wanted[:2], strict=False):
            if needed:
                close(backend, gradient, want, dtype, 100)  # five terms of both signs
        expected = {f"by {name}": 1.0 for name, needed in zip("xw", wanted[:2], strict=True) if needed}
        # A traced operator in Python is called once.
        if reports and (kind == "Cpp" or wanted not in seen):
            said = operator.report()
            assert {name: said[name] for name in said if name.startswith("by")} == expected
        seen.add(wanted)


@KINDS
@parametrized(*DOUBLE)
@pytest.mark.daily
def test_gradients_are_those_of_differences(backend: Backend, kind: str) -> None:
    for operator, values in ((power(kind), [draw(3, 2, dtype="f8")]), (mixed(kind), mixed_values())):
        executor = backend.framework.operator_executor(operator)
        outputs = executor.inference(*executor.arrays(*values))
        grads = [draw(*value.shape, dtype="f8", seed=5 + at) for at, value in enumerate(outputs)]
        real = [backend.dtype(value) == "float64" for value in outputs]
        given = [executor.arrays(grad)[0] if each else None for grad, each in zip(grads, real, strict=True)]
        _, found = executor.inference_and_backprop(executor.arrays(*values), given)
        for at, gradient in enumerate(found):
            if gradient is None:
                assert values[at].dtype == np.int64
                continue
            direction, ends = draw(*values[at].shape, dtype="f8", seed=9), []
            for sign in (1, -1):
                moved = [value + sign * 1e-6 * direction if n == at else value for n, value in enumerate(values)]
                made = executor.inference(*executor.arrays(*moved))
                pairs = zip(made, grads, real, strict=True)
                ends.append(sum(float((backend.numpy(y) * g).sum()) for y, g, each in pairs if each))
            # Central differences of step 1e-6 in float64 keep nine digits; cancellation may cost two.
            slope = float((backend.numpy(gradient) * direction).sum())
            assert (ends[0] - ends[1]) / 2e-6 == pytest.approx(slope, rel=1e-7, abs=1e-8)


@KINDS
@parametrized(*COMPUTING, daily=True)
def test_only_the_gradients_that_are_needed_are_computed(backend: Backend, kind: str) -> None:
    """By the framework's own differentiation: of one input, and with unused outputs, whose gradient is zero."""
    operator = mixed(kind)
    native, (x, w, first) = backend.framework.operator(operator), map(backend.native, mixed_values())
    ones, names = (backend.native(np.ones((4, 3))), backend.native(np.ones(3))), ("by x", "by w")
    for place, (run, value) in enumerate(
        ((lambda x: native(x, w, first)[0], x), (lambda w: native(x, w, first)[2], w)),
    ):
        for how in ("eager", "traced"):
            differentiated = wrapped(backend, how, lambda value, one, run=run: backend.pulled(run, [value], [one])[1])
            operator.report()
            (gradient,) = differentiated(value, ones[place])
            close(backend, gradient, 2 if place else np.broadcast_to(backend.numpy(w), (4, 3)))
            backend.finished(lambda gradient=gradient: gradient)
            found = operator.report().keys()
            # TensorFlow reports unwatched inputs only for its own operations, and only while it traces.
            exact = backend.name != "tensorflow" or (kind, how) == ("Cpp", "traced")
            assert found == {names[place]} if exact else found >= {names[place]}


@parametrized(*COMPUTING)
def test_a_second_derivative_in_python_is_right_and_in_cpp_refused(backend: Backend) -> None:
    x, one = backend.native(np.array([2.0, -3.0])), backend.native(np.ones(2))

    def second(kind: str) -> Any:
        native = backend.framework.operator(power(kind))
        if backend.name == "jax":
            import jax

            with jax.enable_x64(True):
                return jax.grad(lambda x: jax.grad(lambda x: native(x).sum())(x).sum())(x)
        if backend.name == "pytorch":
            import torch

            leaf = x.clone().requires_grad_()
            (first,) = torch.autograd.grad(native(leaf), leaf, one, create_graph=True)
            return torch.autograd.grad(first, leaf, one)[0]
        import tensorflow as tf

        def run(x: Any) -> Any:
            return tf.gradients(tf.gradients(native(x), x)[0], x)[0]

        return backend.traced(run)(x)

    assert backend.numpy(second("Py")).tolist() == [12, -18]
    message = (
        r"CppPow(\.backward has no second derivative| in C\+\+ has no second derivative; remedy: an operator in Py)"
    )
    with pytest.raises(Unsupported, match=message):
        second("Cpp")


@parametrized(*COMPUTING)
def test_an_operator_takes_part_in_a_larger_computation(backend: Backend) -> None:
    square, x = backend.framework.operator(PyPow(2)), draw(4, dtype="f8")
    compiled = backend.framework.operator(power("Cpp", 2))
    for run in (lambda x: square(square(x)), lambda x: compiled(compiled(x)), lambda x: square(compiled(x))):
        _, (dx,) = backend.pulled(run, [backend.native(x)], [backend.native(np.ones(4))])
        close(backend, many(dx)[0], 4 * x**3, factor=2)
