"""Functions of the frameworks as operators, on every back-end that runs them; and operators called from threads."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import deep5 as d5
from backend_operators import CppPow, draw
from backends import COMPUTING, ENGINES, Backend, parametrized
from deep5.core.errors import OperatorError, ShapeError, Unsupported
from deep5.operators.native import NativeOperator


def function(backend: Backend, name: str) -> Any:
    """A function of the framework."""
    if backend.name == "jax":
        import jax.numpy as module
    elif backend.name.startswith("pytorch"):
        import torch as module
    elif backend.name.startswith("tensorflow"):
        import tensorflow as module
    else:
        import numpy as module
    return getattr(module, name)


@parametrized(*COMPUTING, "pytorch:compiled", "tensorflow:xla", "reference", slow=("pytorch:compiled",))
def test_a_function_of_the_framework(backend: Backend) -> None:
    options = {"jax": {"precision": "highest"}, "tensorflow": {"transpose_a": False}}.get(backend.name, {})
    framework = backend.name.partition(":")[0]
    operator = NativeOperator(function(backend, "matmul"), framework=framework, **options)
    a, b, dy = draw(3, 4, dtype="f8"), draw(4, 2, dtype="f8", seed=1), draw(3, 2, dtype="f8", seed=2)
    native, executor = backend.framework.operator(operator), backend.framework.operator_executor(operator)
    inputs = executor.arrays(a, b)
    # Sums of four products.
    close = {"rtol": 1e-12, "atol": 1e-13}
    for y in (native(*map(backend.native, (a, b))), executor.inference(*inputs)[0]):
        np.testing.assert_allclose(backend.numpy(y), a @ b, **close)
    settings = executor.settings()
    assert {"framework", "version", "device", "threads", "tf32", "deterministic"} <= settings.keys()
    assert (settings["framework"], settings["device"]) == (framework, "cpu")
    assert (settings["threads"] >= 1, str(executor.device)) == (True, "cpu")
    if framework == "tensorflow":
        assert settings["xla"] == (backend.name == "tensorflow:xla")
    if backend.name == "reference":
        with pytest.raises(Unsupported, match="NumPy does not differentiate"):
            executor.inference_and_backprop(inputs, executor.arrays(dy))
        return
    (y,), (by_a, by_b) = executor.inference_and_backprop(inputs, executor.arrays(dy))
    for got, want in ((y, a @ b), (by_a, dy @ b.T), (by_b, a.T @ dy)):
        np.testing.assert_allclose(backend.numpy(got), want, **close)
    _, (none, only) = executor.inference_and_backprop(inputs, executor.arrays(dy), needs=[False, True])
    assert none is None
    np.testing.assert_allclose(backend.numpy(only), a.T @ dy, **close)
    executor.synchronize()
    message = r"matmul failed on (JAX|torch|tensorflow)|torch cannot compile this operator"
    with pytest.raises((OperatorError, Unsupported), match=message):
        executor.inference(*executor.arrays(np.ones((2, 3)), np.ones((2, 3))))


@parametrized(*COMPUTING, "reference")
def test_a_function_is_held_to_what_it_says(backend: Backend) -> None:
    name = "square" if backend.name == "tensorflow" else "sin"
    x = np.ones(3, "float32")

    def wrong(x: Any) -> tuple[d5.TensorSpec, ...]:
        return (d5.TensorSpec(shape=(9,), dtype=x.dtype),)

    said = NativeOperator(function(backend, name), framework=backend.name, specs=wrong)
    native, executor = backend.framework.operator(said), backend.framework.operator_executor(said)
    for call in (lambda: native(backend.native(x)), lambda: executor.inference(*executor.arrays(x))):
        with pytest.raises(OperatorError, match=rf"{name}\.forward: output 0: got .*3.*, expected float32\[9\]"):
            call()
    two = NativeOperator(function(backend, name), framework=backend.name, specs=lambda x: (x, x))
    with pytest.raises(OperatorError, match=rf"{name}\.forward returned 1 outputs; allowed: 2"):
        backend.framework.operator(two)(backend.native(x))


def test_a_function_of_torch_without_a_gradient_is_refused() -> None:
    import torch

    bare = NativeOperator(torch.nn.functional.gelu, framework="pytorch")
    assert d5.framework("pytorch").operator(bare) is torch.nn.functional.gelu
    constant = d5.framework("pytorch").operator_executor(NativeOperator(torch.argmax, framework="pytorch"))
    with pytest.raises(Unsupported, match=r"argmax has no gradient on torch"):
        constant.inference_and_backprop((torch.ones(3),), (None,))


@parametrized(*COMPUTING, *ENGINES)
def test_operators_of_onnx_have_the_outputs_that_are_asked_for(backend: Backend) -> None:
    make = backend.framework.operator
    first, second = make(d5.ONNXOperator("Split", outputs=2, num_outputs=2))(backend.native(draw(4)))
    np.testing.assert_array_equal(np.concatenate([backend.numpy(first), backend.numpy(second)]), draw(4))
    unit = np.eye(2, dtype="float32")
    product = make(d5.ONNXOperator("MatMul"))
    np.testing.assert_array_equal(backend.numpy(product(backend.native(unit), backend.native(unit))), unit)
    with pytest.raises(d5.Deep5Error):
        product(*map(backend.native, (np.ones((2, 3), "f4"), np.ones((2, 3), "f4"))))
    loss = backend.framework.operator_executor(d5.ONNXOperator("SoftmaxCrossEntropyLoss"))
    if backend.name in ENGINES:
        with pytest.raises(OperatorError, match="got the label 7; allowed: 0 to 3"):
            loss.inference(draw(3, 4), np.array([0, 7, 1]))
    if backend.name == "pytorch":
        with pytest.raises(ShapeError, match=r"MatMul: got ndarray as input 0"):
            product(unit, unit)


@parametrized(*COMPUTING, *ENGINES)
def test_several_threads_call_operators_at_once(backend: Backend) -> None:
    """One shared operator, and one per thread with another attribute, created at the same time."""
    together = backend.framework.operator(CppPow(2))
    traced, wrong = backend.traced(together), []

    def work(seed: int) -> None:
        try:
            own = backend.framework.operator_executor(CppPow(seed))
            for size in (*[14, 20, 33] * 5, 21):
                x = draw(size, dtype="float32", seed=seed)
                for run, power in ((together, 2), (traced, 2)):
                    np.testing.assert_allclose(backend.numpy(run(backend.native(x))), x**power, rtol=1e-6)
                (y,) = own.inference(*own.arrays(x))
                np.testing.assert_allclose(backend.numpy(y), x**seed, rtol=1e-5)
        except BaseException as error:  # a thread cannot raise it in its parent
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in (2, 3, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not wrong
    assert not any(thread.is_alive() for thread in threads)
