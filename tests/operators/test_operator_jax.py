"""Operators on JAX: in Python and in C++, alone, inside what JAX compiles, and as nodes of networks."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import onnx
import pytest

import deep5 as d5
from deep5.core.errors import NetworkError, OperatorError, ShapeError, Unsupported
from deep5.core.events import StepInfo
from deep5.frameworks.jax import ffi
from deep5.networks.onnx_operator import ONNXOperator
from deep5.operators.backward import Backward
from deep5.operators.cpp import CppOperator
from deep5.operators.native import NativeOperator
from deep5.training.rules.sgd import SGD
from memory_cases import Where, addresses

JAX = d5.framework("jax")
DOMAIN = "test.jax"
# Relative: twice what rounding once and computing with a few such numbers costs.
EPS = {"float16": 2e-3, "bfloat16": 2e-2, "float32": 1e-6, "float64": 1e-14}

POWER = """
template <typename T>
struct Power : deep5::Operator {
  int64_t n;
  explicit Power(int64_t n) : n(n) {}
  void forward(deep5::Tensor<const T> x, deep5::Tensor<T> y) {
    if (n == 13) throw std::runtime_error("thirteen [of all] is refused");
    for (int64_t i = 0; i < x.size(); ++i) y[i] = deep5::power(x[i], n);
  }
  void backward(deep5::Tensor<const T> dy, deep5::Tensor<const T> x, deep5::Tensor<const T> y, deep5::Tensor<T> dx) {
    report("backward", 1);
    for (int64_t i = 0; i < x.size(); ++i)
      dx[i] = static_cast<T>(static_cast<T>(n) * deep5::power(x[i], n - 1) * dy[i]);
  }
};"""

# The sum over rows of x[i] * w, how many rows there are beside `first`, and which gradients were asked for.
MIXED = """
template <typename T>
struct Mixed : deep5::Operator {
  void forward(deep5::Tensor<const T> x, deep5::Tensor<const T> w, deep5::Tensor<const int64_t> first,
               deep5::Tensor<T> product, deep5::Tensor<int64_t> rows, deep5::Tensor<T> twice) {
    for (int64_t i = 0; i < x.size(); ++i) product[i] = x[i] * w[i % x.shape(1)];
    rows[0] = x.shape(0) + first[0];
    for (int64_t i = 0; i < w.size(); ++i) twice[i] = w[i] + w[i];
  }
  void backward(deep5::Tensor<const T> dproduct, deep5::Tensor<const T> dtwice, deep5::Tensor<const T> x,
                deep5::Tensor<const T> w, deep5::Tensor<const int64_t> first, deep5::Tensor<const T> product,
                deep5::Tensor<const int64_t> rows, deep5::Tensor<const T> twice, deep5::Tensor<T> dx,
                deep5::Tensor<T> dw) {
    if (dx) {
      report("by x", 1);
      for (int64_t i = 0; i < x.size(); ++i) dx[i] = dproduct[i] * w[i % x.shape(1)];
    }
    if (dw) {
      report("by w", 1);
      for (int64_t j = 0; j < w.size(); ++j) {
        dw[j] = dtwice[j] + dtwice[j];
        for (int64_t i = 0; i < x.shape(0); ++i) dw[j] += dproduct[i * w.size() + j] * x[i * w.size() + j];
      }
    }
  }
};"""


@d5.register_operator("CPow", domain=DOMAIN)
class CPow(CppOperator):
    source, template = POWER, "Power"

    def __init__(self, power: int = 2) -> None:
        super().__init__(power=int(power))

    def specs(self, x: d5.TensorSpec) -> tuple[d5.TensorSpec, ...]:  # type: ignore[override]
        return (x,)


@d5.register_operator("IPow", domain=DOMAIN)
class IPow(d5.Operator):
    def __init__(self, power: int = 2) -> None:
        self.power = int(power)

    def specs(self, x: d5.TensorSpec) -> tuple[d5.TensorSpec, ...]:  # type: ignore[override]
        return (x,)

    def forward(self, *inputs: Any) -> Any:
        if self.power == 13:
            raise ValueError("thirteen is refused")
        return inputs[0] ** self.power

    def backward(self, output_grads: Any, inputs: Any, outputs: Any, needs: Any) -> Any:
        return (self.power * inputs[0] ** (self.power - 1) * output_grads[0],)


@d5.register_operator("CMixed", domain=DOMAIN)
class CMixed(CppOperator):
    source, template = MIXED, "Mixed"

    def specs(self, x: Any, w: Any, first: Any) -> tuple[d5.TensorSpec, ...]:  # type: ignore[override]
        if len(x.shape) != 2 or x.shape[1:] != w.shape:
            raise ShapeError(f"CMixed: got {x} and {w}; allowed: a matrix and a row")
        return x, d5.TensorSpec(shape=(1,), dtype="int64"), w


@d5.register_operator("Mixed", domain=DOMAIN)
class Mixed(d5.Operator):
    """As `CMixed`, in Python."""

    def __init__(self) -> None:
        self.asked: list[tuple[bool, ...]] = []

    specs = CMixed.specs

    def forward(self, *inputs: Any) -> Any:
        (x, w, first), xp = inputs, d5.array_namespace(inputs[0])
        return x * w, xp.zeros(1, dtype=xp.int64) + x.shape[0] + first, w + w

    def backward(self, output_grads: Any, inputs: Any, outputs: Any, needs: Any) -> Any:
        (x, w, _), (product, rows, twice), xp = inputs, output_grads, d5.array_namespace(inputs[0])
        assert rows is None
        self.asked.append(tuple(needs))
        by_w = xp.sum(product * x, axis=0) + 2 * twice
        return product * w if needs[0] else None, by_w if needs[1] else None, None

    def report(self) -> dict[str, float]:
        found = {f"by {name}": float(sum(a[n] for a in self.asked)) for n, name in enumerate("xw")}
        self.asked = []
        return {name: value for name, value in found.items() if value}


POWERS = [IPow, CPow]
MIXES = [Mixed, CMixed]
KINDS: dict[str, Any] = {"IPow": IPow, "CPow": CPow}


def array(shape: tuple[int, ...], dtype: Any = "float64", seed: int = 0) -> np.ndarray:
    """Numbers between 1/2 and 3/2, of both signs."""
    rng = np.random.default_rng(seed)
    return np.asarray((rng.random(shape) + 0.5) * rng.choice([-1, 1], shape)).astype(dtype)


def normal(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return rng.standard_normal(shape)


def wide(value: np.ndarray) -> jax.Array:
    """On JAX with its element type as it is."""
    with jax.enable_x64(True):
        return jnp.array(value)


def close(got: Any, expected: np.ndarray, dtype: str = "float64", factor: float = 1) -> None:
    assert str(got.dtype) == dtype
    np.testing.assert_allclose(np.asarray(got).astype(np.float64), expected, rtol=factor * EPS[dtype])


def finished(executor: Any, *inputs: Any) -> Any:
    """The outputs when they are there: what fails may fail in another thread."""
    outputs = executor.inference(*inputs)
    executor.synchronize()
    return outputs


@pytest.fixture
def _in_64_bits() -> Iterator[None]:
    """For tests whose own code computes in float64 on JAX."""
    with jax.enable_x64(True):
        yield


@pytest.fixture(autouse=True)
def _the_process_keeps_its_setting() -> Iterator[None]:
    before = jax.config.jax_enable_x64
    yield
    assert jax.config.jax_enable_x64 == before


@pytest.mark.parametrize("make", POWERS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("shape", [(3, 2), (), (0, 4), (5,)])
def test_values_and_gradients(make: Any, dtype: str, shape: tuple[int, ...]) -> None:
    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.dtype(dtype)
    x, dy = array(shape, kind), array(shape, kind, 1)
    power = JAX.operator(make(3))
    expected, slope = x.astype(np.float64) ** 3, 3 * x.astype(np.float64) ** 2 * dy.astype(np.float64)
    close(power(wide(x)), expected, dtype)
    close(jax.jit(power)(wide(x)), expected, dtype)

    def pulled(x: Any, dy: Any) -> Any:
        return jax.vjp(power, x)[1](dy)[0]

    # Three roundings more.
    close(pulled(wide(x), wide(dy)), slope, dtype, 2)
    close(jax.jit(pulled)(wide(x), wide(dy)), slope, dtype, 2)


@pytest.mark.parametrize("make", POWERS)
@pytest.mark.parametrize("dtype", ["int32", "int64", "uint8"])
def test_whole_numbers(make: Any, dtype: str) -> None:
    x = np.array([[1, 2, 3]], dtype)
    for function in (JAX.operator(make(3)), jax.jit(JAX.operator(make(3)))):
        got = function(wide(x))
        assert (str(got.dtype), got.tolist()) == (dtype, [[1, 8, 27]])


@pytest.mark.parametrize("make", POWERS)
def test_numpy_arrays_of_any_strides_are_taken_and_copied(make: Any) -> None:
    base, power = array((6, 4)), JAX.operator(make(2))
    for x in (base, base.T, base[::2, ::-1], np.asfortranarray(base), base.astype(">f8"), np.float64(1.5)):
        close(power(x), np.asarray(x, np.float64) ** 2)
    aligned = d5.core.tensors.aligned_empty((1 << 16,), "float64")
    aligned[:] = 2
    got = power(aligned)
    aligned[:] = 3
    assert (np.asarray(got) == 4).all()


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_an_operator_in_cpp_is_given_the_memory_of_jax(wrap: Callable[[Any], Any]) -> None:
    where = wrap(JAX.operator(Where()))
    for elements in (5, 5000):
        x = wide(array((elements,)))
        places = where(x)
        assert addresses(places) == [x.unsafe_buffer_pointer(), places.unsafe_buffer_pointer()]


@pytest.mark.parametrize("make", POWERS)
def test_arrays_of_jax_in_other_layouts(make: Any) -> None:
    x = wide(array((4, 3)))
    function = jax.jit(lambda x: JAX.operator(make(2))(x.T[::2]))
    close(function(x), np.asarray(x).T[::2] ** 2)


def mixed_inputs() -> list[Any]:
    return [wide(array((4, 3))), wide(array((3,), seed=1)), wide(np.array([10]))]


@pytest.mark.usefixtures("_in_64_bits")
@pytest.mark.parametrize("make", MIXES)
@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_several_inputs_and_outputs(make: Any, wrap: Callable[[Any], Any]) -> None:
    operator = make()
    mixed, inputs = wrap(JAX.operator(operator)), mixed_inputs()
    x, w, _ = map(np.asarray, inputs)
    product, rows, twice = mixed(*inputs)
    close(product, x * w)
    close(twice, 2 * w)
    assert (str(rows.dtype), rows.tolist()) == ("int64", [14])

    def loss(x: Any, w: Any, first: Any) -> Any:
        product, _, twice = mixed(x, w, first)
        return product.sum() + (twice * twice).sum()

    operator.report()
    by_x, by_w = wrap(jax.grad(loss, (0, 1)))(*inputs)
    close(by_x, np.broadcast_to(w, x.shape))
    close(by_w, x.sum(0) + 8 * w, factor=10)  # a sum of four terms of both signs
    assert jax.block_until_ready(operator.report()) == {"by x": 1, "by w": 1}


@pytest.mark.usefixtures("_in_64_bits")
@pytest.mark.parametrize("make", MIXES)
def test_only_the_gradients_that_are_needed_are_computed(make: Any) -> None:
    operator, inputs = make(), mixed_inputs()
    mixed = JAX.operator(operator)
    # The other outputs are differentiated by nobody: their gradients are zeros.
    by_w = jax.grad(lambda w: mixed(inputs[0], w, inputs[2])[2].sum())(inputs[1])
    assert by_w.tolist() == [2, 2, 2]
    assert operator.report() == {"by w": 1}
    by_x = jax.jit(jax.grad(lambda x: mixed(x, *inputs[1:])[0].sum()))(inputs[0])
    close(by_x, np.broadcast_to(np.asarray(inputs[1]), by_x.shape))
    assert operator.report() == {"by x": 1}


@pytest.mark.parametrize("make", MIXES)
def test_gradients_by_whole_numbers_have_no_size(make: Any) -> None:
    inputs = mixed_inputs()
    outputs, pull = jax.vjp(JAX.operator(make()), *inputs)
    ones = [jnp.ones_like(outputs[0]), np.zeros((1,), jax.dtypes.float0), jnp.ones_like(outputs[2])]
    with jax.enable_x64(False):
        kinds = [gradient.dtype for gradient in pull(tuple(ones))]
    assert kinds == ["float64", "float64", jax.dtypes.float0]


@pytest.mark.parametrize("make", [lambda: IPow(3), lambda: CPow(3), Mixed, CMixed])
def test_gradients_are_what_differences_say(make: Any) -> None:
    operator = make()
    inputs = mixed_inputs() if "Mixed" in type(operator).__name__ else [wide(array((3, 2)))]
    executor = JAX.operator_executor(operator)
    outputs = executor.inference(*inputs)
    grads = [wide(array(value.shape, seed=5 + at)) for at, value in enumerate(outputs)]
    _, found = executor.inference_and_backprop(inputs, grads)
    for at, gradient in enumerate(found):
        if gradient is None:
            assert str(inputs[at].dtype) == "int64"
            continue
        direction, ends = array(inputs[at].shape, seed=9), []
        for sign in (1, -1):
            moved = [wide(np.asarray(x) + sign * 1e-6 * direction) if n == at else x for n, x in enumerate(inputs)]
            made = executor.inference(*moved)
            ends.append(
                sum(
                    float((np.asarray(y) * np.asarray(g)).sum())
                    for y, g in zip(made, grads, strict=True)
                    if str(y.dtype) == "float64"
                )
            )
        # Central differences of step 1e-6 in float64 keep nine digits; cancellation may cost two.
        expected = float((np.asarray(gradient) * direction).sum())
        assert (ends[0] - ends[1]) / 2e-6 == pytest.approx(expected, rel=1e-7, abs=1e-8)


@pytest.mark.usefixtures("_in_64_bits")
def test_a_second_derivative() -> None:
    x = wide(np.array([2.0, -3.0]))
    second = jax.grad(lambda x: jax.grad(lambda x: JAX.operator(IPow(3))(x).sum())(x).sum())
    assert second(x).tolist() == [12, -18]
    with pytest.raises(Unsupported, match=r"CPow\.backward has no gradient of its own; allowed: a first derivative"):
        jax.grad(lambda x: jax.grad(lambda x: JAX.operator(CPow(3))(x).sum())(x).sum())(x)


@pytest.mark.parametrize("make", POWERS)
def test_derivatives_forward_are_refused_with_the_reason(make: Any) -> None:
    run, x = JAX.operator(make()), jnp.ones(3)
    for call in (
        lambda: jax.jvp(run, (x,), (x,)),
        lambda: jax.jacfwd(run)(x),
        lambda: jax.hessian(lambda x: run(x).sum())(x),
    ):
        with pytest.raises(Unsupported, match=r"Pow has a backward of its own, .* in reverse alone; .*jax\.jacrev"):
            call()
    with pytest.raises(TypeError):  # one that is not about this
        run(x, nobody=x)


@pytest.mark.usefixtures("_in_64_bits")
@pytest.mark.parametrize("make", POWERS)
def test_vmap_is_a_call_an_element(make: Any) -> None:
    x = wide(array((5, 3)))
    close(jax.vmap(JAX.operator(make(3)))(x), np.asarray(x) ** 3)
    slopes = jax.vmap(jax.grad(lambda row: JAX.operator(make(3))(row).sum()))(x)
    close(slopes, 3 * np.asarray(x) ** 2, factor=2)


def test_xla_calls_the_kernel_itself() -> None:
    x = jnp.ones((2, 3))
    power = JAX.operator(CPow(3))
    text = jax.jit(jax.grad(lambda x: power(x).sum())).lower(x).as_text()
    assert text.count(f"custom_call @{ffi.TARGET}") == 2
    assert "callback" not in text
    executor = d5.framework("jax").executor(powers("CPow", "loss"))
    feed, _ = executor._feed(batch())
    with jax.enable_x64(True):
        text = executor._evaluate.lower(executor._values, executor._buffers, feed).as_text()
    assert f"custom_call @{ffi.TARGET}" in text
    assert "callback" not in text


# --- what breaks the contract ---


class Broken(IPow):
    """A Square whose parts are replaced."""


def broken(**parts: Any) -> d5.Operator:
    made: d5.Operator = type("Broken", (IPow,), parts)(2)
    return made


@pytest.mark.parametrize(
    ("parts", "kind", "told"),
    [
        ({"forward": lambda s, x: (x, x)}, OperatorError, r"Broken\.forward returned 2 outputs; allowed: 1"),
        ({"forward": lambda s, x: x[:1]}, OperatorError, r"forward: output 0: got shape \(1,\), expected float32\[2\]"),
        ({"forward": lambda s, x: x.astype("float16")}, OperatorError, r"output 0: got dtype float16, expected float"),
        ({"forward": lambda s, x: 3.0}, OperatorError, r"returned 3\.0 as output 0; allowed: an array of JAX"),
        ({"forward": lambda s, x: np.ones(2, "f")}, OperatorError, "as output 0; allowed: an array of JAX, as its"),
        ({"forward": lambda s, x: x.nonsense}, OperatorError, r"Broken\.forward raised AttributeError"),
        ({"specs": lambda s, x: [x]}, OperatorError, r"Broken\.specs returned \["),
        ({"backward": lambda s, g, i, o, n: ()}, OperatorError, "backward returned 0 gradients; allowed: one an input"),
        ({"backward": lambda s, g, i, o, n: (None,)}, OperatorError, "returned None as the gradient by input 0"),
        ({"backward": lambda s, g, i, o, n: (g[0][:1],)}, OperatorError, r"got float32\[1\], expected float32\[2\]"),
        ({"backward": lambda s, g, i, o, n: (np.ones(2, "f"),)}, OperatorError, "the gradient by input 0; allowed: an"),
        ({"backward": lambda s, g, i, o, n: 1 / 0}, OperatorError, r"Broken\.backward raised ZeroDivisionError"),
    ],
)
@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_a_broken_contract_is_named(parts: Any, kind: Any, told: str, wrap: Any) -> None:
    with pytest.raises(kind, match=told):
        wrap(jax.grad(lambda x: JAX.operator(broken(**parts))(x).sum()))(jnp.ones(2))
    executor = JAX.operator_executor(broken(**parts))
    with pytest.raises(kind, match=told):
        executor.inference_and_backprop([jnp.ones(2)], [jnp.ones(2)])


def test_code_that_looks_at_values() -> None:
    operator = broken(forward=lambda self, x: x if x[0] > 0 else -x)
    assert JAX.operator(operator)(jnp.ones(2)).tolist() == [1, 1]
    with pytest.raises(Unsupported, match=r"Broken\.forward cannot be traced by JAX .*outside of jax\.jit"):
        jax.jit(JAX.operator(operator))(jnp.ones(2))
    operator = broken(forward=lambda self, x: jnp.asarray(np.square(x)))
    with pytest.raises(Unsupported, match=r"cannot be traced by JAX \(TracerArrayConversionError\)"):
        jax.jit(JAX.operator(operator))(jnp.ones(2))


@pytest.mark.parametrize("make", [*POWERS, Mixed, CMixed])
def test_wrong_inputs_are_refused(make: Any) -> None:
    function = JAX.operator(make())
    with pytest.raises(ShapeError, match="got list as input 0; allowed: an array of JAX or NumPy"):
        function([1.0])
    with pytest.raises(ShapeError, match="got 4 inputs; allowed: "):
        function(*[jnp.ones(2)] * 4)
    with pytest.raises(ShapeError, match="input 0: got an array of object, which JAX cannot take"):
        function(np.array([{}]))
    with pytest.raises(ShapeError, match="got str as value 0, which JAX cannot take"):
        JAX.operator_executor(make()).arrays("text")
    with pytest.raises(ShapeError, match="got ndarray as input 0; allowed: an array of JAX; remedy: executor"):
        JAX.operator_executor(make()).inference(np.ones(2))


def test_what_cpp_does_not_take() -> None:
    with pytest.raises(ShapeError, match="got an input of complex64; allowed: float32"):
        JAX.operator(CPow(2))(jnp.ones(2, jnp.complex64))
    with pytest.raises(ShapeError, match="CMixed: got float64"):
        JAX.operator(CMixed())(wide(array((2, 3))), wide(array((2,))), wide(np.array([1])))

    class Undone(CPow):
        source, template = POWER.replace("backward", "forgotten"), "Power"

    assert JAX.operator(Undone(2))(jnp.ones(2)).tolist() == [1, 1]
    with pytest.raises(Unsupported, match=r"Undone has no backward in C\+\+"):
        jax.grad(lambda x: JAX.operator(Undone(2))(x).sum())(jnp.ones(2))
    with pytest.raises(Unsupported, match=r"Undone has no backward in C\+\+"):
        JAX.operator_executor(Undone(2)).inference_and_backprop([jnp.ones(2)], [jnp.ones(2)])


def test_an_exception_of_cpp_arrives_with_its_message() -> None:
    told = r"^CPow failed: thirteen \[of all\] is refused$"
    with pytest.raises(OperatorError, match=told):
        jax.block_until_ready(JAX.operator(CPow(13))(jnp.ones(2)))
    executor = JAX.operator_executor(CPow(13))
    for _ in range(2):
        with pytest.raises(OperatorError, match=told):
            finished(executor, *executor.arrays(array((2,), "float32")))
    # In a function that the user compiled, it is JAX's error that holds the message.
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"thirteen \[of all\] is refused"):
        jax.block_until_ready(jax.jit(lambda x: JAX.operator(CPow(13))(x) + 1)(jnp.ones(2)))


# --- the lives of kernels ---


def test_a_kernel_lives_as_long_as_what_calls_it() -> None:
    x = jnp.arange(4.0)

    def compiled() -> Any:
        return jax.jit(JAX.operator(CPow(3)))

    lowered = jax.jit(JAX.operator(CPow(4))).lower(x)
    ready = jax.jit(JAX.operator(CPow(5))).lower(x).compile()
    function = compiled()
    function(x)
    for power in range(2, 6):  # others, which may get the memory of what is gone
        JAX.operator(CPow(power))(x)
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
    function = jax.jit(jax.grad(lambda x: JAX.operator(CPow(3))(x).sum()))
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
    ready = jax.jit(JAX.operator(CPow(3))).lower(jnp.ones(2)).compile()
    executable = ready.runtime_executable()
    del ready
    jax.clear_caches()
    gc.collect()
    assert ffi.entered() == before + 1
    del executable
    gc.collect()
    assert ffi.entered() == before


def test_threads_call_one_kernel_at_once() -> None:
    function = jax.jit(JAX.operator(CPow(3)))
    inputs = [wide(array((1000,), seed=seed)) for seed in range(4)]
    jax.block_until_ready(function(inputs[0]))
    wrong: list[int] = []

    def work(at: int) -> None:
        expected = np.asarray(inputs[at]) ** 3
        for _ in range(200):
            # deep5::power and NumPy's power may differ in the last digit.
            if not np.allclose(np.asarray(function(inputs[at])), expected, rtol=1e-14, atol=0):
                wrong.append(at)

    threads = [threading.Thread(target=work, args=(at,)) for at in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


# --- other kinds, and the executor ---


def test_a_function_of_jax() -> None:
    operator = NativeOperator(jnp.matmul, framework="jax", precision="highest")
    a, b = array((3, 4)), array((4, 2), seed=1)
    # Sums of four products.
    close(JAX.operator(operator)(wide(a), wide(b)), a @ b, factor=50)
    executor = JAX.operator_executor(operator)
    inputs, dy = executor.arrays(a, b), array((3, 2), seed=2)
    (got,), (by_a, by_b) = executor.inference_and_backprop(inputs, executor.arrays(dy))
    close(got, a @ b, factor=50)
    close(by_a, dy @ b.T, factor=50)
    close(by_b, a.T @ dy, factor=50)
    said = NativeOperator(jnp.sin, framework="jax", specs=lambda x: (d5.TensorSpec(shape=(9,), dtype=x.dtype),))
    with pytest.raises(OperatorError, match=r"sin\.forward: output 0: got shape \(2,\), expected float32\[9\]"):
        JAX.operator(said)(jnp.ones(2))
    with pytest.raises(OperatorError, match="matmul failed on JAX: TypeError"):
        executor.inference(jnp.ones((2, 3)), jnp.ones((2, 3)))


def test_functions_of_other_frameworks_are_refused() -> None:
    foreign = NativeOperator(len, framework="pytorch")
    for make in (JAX.operator, JAX.operator_executor, lambda op: JAX.operator(Backward(op, (True,), (True,)))):
        with pytest.raises(Unsupported, match=r"len is a function of pytorch, .*; remedy: d5\.framework\('pytorch'\)"):
            make(foreign)


def test_compiled_operators_stay_on_the_host() -> None:
    with pytest.raises(
        Unsupported, match="CPow is compiled, and deep5 hands CUDA kernels to no JAX; allowed: the host"
    ):
        JAX.operator_executor(CPow(2), device="cuda")
    with pytest.raises(Unsupported, match="CPow is compiled, and deep5 hands CUDA kernels to no JAX"):
        JAX.executor(powers("CPow", "loss"), device="cuda")


def test_an_operator_of_onnx() -> None:
    operator = ONNXOperator("Conv", pads=[1, 1, 1, 1])
    x, w = array((2, 3, 5, 5)), array((4, 3, 3, 3), seed=1)
    executor = JAX.operator_executor(operator)
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))
    expected = np.einsum("nchwij,ocij->nohw", windows, w)
    dy = array(expected.shape, seed=2)
    (got,), (_, by_w) = executor.inference_and_backprop(executor.arrays(x, w), executor.arrays(dy))
    # Sums of 27 and of 50 products of both signs.
    np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(by_w, np.einsum("nchwij,nohw->ocij", windows, dy), rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(JAX.operator(operator)(wide(x), wide(w)), expected, rtol=1e-12, atol=1e-13)
    first, second = JAX.operator(ONNXOperator("Split", outputs=2, num_outputs=2))(jnp.arange(4))
    assert (first.tolist(), second.tolist()) == ([0, 1], [2, 3])
    with pytest.raises(NetworkError):
        executor.inference(jnp.ones((2, 3)), jnp.ones((2, 3)))


@pytest.mark.parametrize("make", MIXES)
def test_the_executor(make: Any) -> None:
    operator = make()
    executor = JAX.operator_executor(operator)
    assert isinstance(executor, d5.OperatorExecutor)
    x, w = array((4, 3)), array((3,), seed=1)
    inputs = executor.arrays(x[::-1], w, np.array([1]))
    assert [str(value.dtype) for value in inputs] == ["float64", "float64", "int64"]
    outputs = executor.inference(*inputs)
    close(outputs[0], x[::-1] * w)
    operator.report()
    grads = [*executor.arrays(np.ones((4, 3))), None, *executor.arrays(np.zeros(3))]
    outputs, found = executor.inference_and_backprop(inputs, grads, needs=(False, True, False))
    executor.synchronize()
    assert (found[0], found[2]) == (None, None)
    close(found[1], x.sum(0), factor=10)  # four terms of both signs
    assert operator.report() == {"by w": 1}
    assert executor.inference_and_backprop(inputs, grads, needs=(False,) * 3)[1] == (None,) * 3
    settings = executor.settings()
    assert settings["framework"] == "jax"
    assert settings["device"] == "cpu"
    assert settings["threads"] >= 1
    told = [
        (grads[:2], None, "got 2 output_grads; allowed: one an output, 3"),
        (
            [None, None, None],
            None,
            r"the gradient by output 0: got no array of the framework's, expected float64\[4, 3\]",
        ),
        ([grads[2], None, grads[2]], None, r"the gradient by output 0: got float64\[3\], expected float64\[4, 3\]"),
        (grads, (True,), "got 1 needs; allowed: one an input, 3"),
        (grads, (True, True, True), "a gradient is asked for by input 2, which is int64"),
    ]
    for given, needs, text in told:
        with pytest.raises(ShapeError, match=text):
            executor.inference_and_backprop(inputs, given, needs=needs)


# --- networks ---


def powers(kind: str, *outputs: str) -> d5.Network:
    """loss = mean((x w)^3 c), the power by an operator of this name or by nodes of ONNX's."""
    build = d5.NetworkBuilder("powers")
    x = build.input("x", ("N", 4))
    product = build.op("MatMul", x, build.parameter("w", (4, 3)))
    if kind == "Mul":
        powered = build.op("Mul", build.op("Mul", product, product), product)
    else:
        powered = build.op(kind, product, domain=DOMAIN, power=3)
    found = {"powered": powered, "loss": build.op("ReduceMean", powered, keepdims=0)}
    return build.network({name: found[name] for name in outputs})


def batch() -> dict[str, np.ndarray]:
    return {"x": array((5, 4), "float32", 7)}


@pytest.mark.parametrize("kind", ["IPow", "CPow"])
def test_a_network_trains_as_one_of_products(kind: str) -> None:
    found: dict[str, list[np.ndarray]] = {}
    for each in (kind, "Mul"):
        executor = JAX.executor(powers(each, "powered", "loss"), seed=1)
        start = executor.network.initial("w")
        step = executor.train_step(SGD(0.1))
        outputs = [step(batch(), StepInfo(batch_size=5, step=number)) for number in range(3)]
        executor.synchronize()
        executor.inference_and_backprop(batch())
        found[each] = [
            *(np.asarray(made["loss"]) for made in outputs),
            *map(np.asarray, (executor.parameters()["w"], executor.gradients()["w"])),
        ]
        assert np.abs(found[each][3] - start).max() > 1e-3, "it must learn something"
    for got, expected in zip(found[kind], found["Mul"], strict=True):
        # Cubes and their slopes are rounded in another order, in float32.
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["IPow", "CPow"])
def test_a_backward_node_runs(kind: str) -> None:
    node, value = onnx.helper.make_node, onnx.helper.make_tensor_value_info
    said = {"domain": DOMAIN, "power": 3}
    slope = node(f"{kind}.backward", ["dy", "x", "y"], ["dx"], **said, deep5_needs=[1], deep5_floating=[1])
    fed = [value(name, 1, ["N", 4]) for name in ("x", "dy")]
    graph = onnx.helper.make_graph([node(kind, ["x"], ["y"], **said), slope], "slope", fed, [value("dx", 1, ["N", 4])])
    opsets = [onnx.helper.make_opsetid("", 21), onnx.helper.make_opsetid(DOMAIN, 1)]
    network = d5.Network.from_onnx(onnx.helper.make_model(graph, opset_imports=opsets))
    given = {"x": array((5, 4), "float32"), "dy": array((5, 4), "float32", 1)}
    got = JAX.executor(network).inference(given)["dx"]
    close(got, 3 * given["x"].astype("f8") ** 2 * given["dy"], "float32")
    backward = Backward(KINDS[kind](3), (True,), (True,))
    close(JAX.operator(backward)(given["dy"], given["x"], given["x"] ** 3), np.asarray(got, "f8"), "float32")


@pytest.mark.parametrize("kind", ["Mixed", "CMixed"])
def test_several_outputs_of_a_node(kind: str) -> None:
    build = d5.NetworkBuilder("mixed")
    x = build.input("x", ("N", 4))
    w = build.parameter("w", (4,), normal)
    first = build.constant("first", np.array([3]))
    product, rows, twice = build.op(kind, x, w, first, domain=DOMAIN, outputs=3)
    loss = build.op("Add", build.op("ReduceMean", product, keepdims=0), build.op("ReduceMean", twice, keepdims=0))
    executor = JAX.executor(build.network({"rows": rows, "loss": loss}))
    outputs = executor.inference_and_backprop(batch(), wrt=["w", "x"])
    x, w = batch()["x"], executor.network.initial("w")
    assert outputs["rows"].tolist() == [8]
    # Sums of at most twenty numbers in float32.
    np.testing.assert_allclose(outputs["loss"], (x * w).mean() + 2 * w.mean(), rtol=1e-5)
    np.testing.assert_allclose(executor.gradients()["w"], x.sum(0) / 20 + 0.5, rtol=1e-5)
    np.testing.assert_allclose(executor.gradients()["x"], np.broadcast_to(w / 20, (5, 4)), rtol=1e-5)


def test_a_failure_within_a_network_is_named() -> None:
    build = d5.NetworkBuilder("fails")
    made = build.op("CPow", build.input("x", ("N", 4)), domain=DOMAIN, power=13)
    executor = JAX.executor(build.network({"y": made}))
    with pytest.raises(OperatorError, match=r"^CPow failed: thirteen \[of all\] is refused$"):
        finished(executor, batch())


def test_a_step_that_fails_leaves_the_network_as_it_was() -> None:
    build = d5.NetworkBuilder("fails")
    product = build.op("MatMul", build.input("x", ("N", 4)), build.parameter("w", (4, 3)))
    made = build.op("CPow", product, domain=DOMAIN, power=13)
    executor = JAX.executor(build.network({"loss": build.op("ReduceMean", made, keepdims=0)}))
    before, step = executor.state_dict(), executor.train_step(SGD(0.1))
    for _ in range(2):
        with pytest.raises(OperatorError, match=r"^CPow failed: thirteen \[of all\] is refused$"):
            step(batch(), StepInfo(batch_size=5))
        with pytest.raises(OperatorError, match=r"^CPow failed: thirteen \[of all\] is refused$"):
            executor.inference_and_backprop(batch())
    for name, value in executor.state_dict().items():
        np.testing.assert_array_equal(value, before[name])


def test_an_input_that_is_left_out_is_refused() -> None:
    network = powers("IPow", "loss")
    (node,) = [node for node in network.nodes if node.domain == DOMAIN]
    assert JAX.supports(node)
    node.replace_input_with(0, None)
    assert JAX.supports(node).reason == "the input 0 is left out; allowed: all inputs of a registered operator"


@d5.register_operator("Conv", domain=DOMAIN)
class Conv(Mixed):
    """Called as one of ONNX's is, whose weights and images JAX keeps in another order."""

    specs = staticmethod(lambda x, w: (x,))  # type: ignore[assignment]

    def forward(self, *inputs: Any) -> Any:
        return inputs[0] * inputs[1]

    def backward(self, output_grads: Any, inputs: Any, outputs: Any, needs: Any) -> Any:
        return output_grads[0] * inputs[1], output_grads[0] * inputs[0]


def test_an_operator_that_is_called_as_one_of_onnx() -> None:
    build = d5.NetworkBuilder("same name")
    x = build.input("x", (2, 3, 4, 4))
    w = build.parameter("w", (2, 3, 4, 4), normal)
    made = build.op("Conv", x, w, domain=DOMAIN)
    flat = build.op("Gemm", build.op("Flatten", made), build.parameter("v", (5, 48), normal), transB=1)
    executor = JAX.executor(build.network({"made": made, "flat": flat}))
    given = array((2, 3, 4, 4), "float32")
    outputs = executor.inference({"x": given})
    expected = given * executor.network.initial("w")
    np.testing.assert_array_equal(outputs["made"], expected)
    product = expected.reshape(2, -1) @ executor.network.initial("v").T
    # Sums of 48 products in float32.
    np.testing.assert_allclose(outputs["flat"], product, rtol=1e-4, atol=1e-5)


class Peak(d5.Operator):
    """Twice x, and where the largest of each row is."""

    def specs(self, *inputs: d5.TensorSpec) -> tuple[d5.TensorSpec, ...]:
        return inputs[0], d5.TensorSpec(shape=inputs[0].shape[:1], dtype="int64")

    def forward(self, *inputs: Any) -> Any:
        return 2 * inputs[0], d5.array_namespace(inputs[0]).argmax(inputs[0], axis=1)

    def backward(self, output_grads: Any, inputs: Any, outputs: Any, needs: Any) -> Any:
        return (2 * output_grads[0],)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_what_jax_types_only_when_it_lowers_has_64_bits_too(dtype: str) -> None:
    executor = JAX.operator_executor(Peak())
    x = array((3, 4), dtype)
    outputs, gradients = executor.inference_and_backprop(executor.arrays(x), executor.arrays(np.ones((3, 4), dtype), x))
    for made in (executor.inference(*executor.arrays(x)), outputs):
        assert [value.dtype.name for value in made] == [dtype, "int64"]
        np.testing.assert_array_equal(made[1], x.argmax(1))
    np.testing.assert_array_equal(gradients[0], np.full((3, 4), 2.0))


def test_a_compiled_operator_is_traced_once_a_shape() -> None:
    traced: list[tuple[int, ...]] = []
    call = JAX.operator(CPow(3))

    def noted(x: Any) -> Any:
        traced.append(x.shape)
        return call(x)

    function = jax.jit(noted)
    for shape in ((1,), (1,), (2,), (1,), (2,)):
        function(jnp.ones(shape))
    assert traced == [(1,), (2,)]
