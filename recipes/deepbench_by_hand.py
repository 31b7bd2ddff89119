"""Hand-written operators of DeepBench, the baseline for the overhead of deep5.

Each function takes a framework, a problem and its data as NumPy arrays. It returns a function that does the work once,
one that waits for it, and one that returns its results as NumPy arrays in ONNX's layout. Data are moved into the
framework's memory and layout beforehand, which is not timed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from deep5.core.errors import Unsupported
from deep5.operators.problem import Problem

__all__ = ["convolution", "product", "recurrent_layer"]

Hand = tuple[Callable[[], Any], Callable[[], object], Callable[[Any], list[Any]]]

# ONNX stacks the gates of an LSTM as i, o, f, c, and those of a GRU as z, r, h.
_PYTORCH_GATES = {"RNN": (0,), "LSTM": (0, 2, 3, 1), "GRU": (1, 0, 2)}
_KERAS_GATES = {"RNN": (0,), "LSTM": (0, 2, 3, 1), "GRU": (0, 1, 2)}


@dataclass(frozen=True, kw_only=True)
class _Data:
    """The arguments of a candidate.

    Attributes:
        inputs: NumPy arrays.
        output_grads: NumPy arrays; empty for the forward pass.
        needs: Which inputs require a gradient; empty for the forward pass.
        threads: Threads within an operator.
        device: "cpu", "cuda" or "cuda:N".
    """

    inputs: Sequence[Any]
    output_grads: Sequence[Any]
    needs: Sequence[bool]
    threads: int
    device: str

    @property
    def wanted(self) -> list[int]:
        """Indices of the inputs that require a gradient."""
        return [number for number, needed in enumerate(self.needs) if needed]

    def forward_on_host(self, name: str) -> None:
        """Reject gradients and other devices on a framework that only runs the forward pass on the host."""
        if self.needs:
            raise Unsupported(f"{name} computes no gradients by itself")
        if self.device != "cpu":
            raise Unsupported(f"the hand-written code for {name} runs only on the host; got the device {self.device}")


def convolution(framework: str, problem: Problem, **data: Any) -> Hand:
    """`torch.nn.functional.conv2d`, `tf.nn.conv2d`, `jax.lax.conv_general_dilated`, a session, windows in NumPy."""
    given = _Data(**data)
    top, left = problem.attributes["pads"][:2]
    strides = tuple(problem.attributes["strides"])
    if framework == "pytorch":
        from torch.nn import functional

        return _pytorch(given, lambda x, w: functional.conv2d(x, w, stride=strides, padding=(top, left)))
    if framework == "tensorflow":
        import tensorflow as tf

        pads = [[0, 0], [top, top], [left, left], [0, 0]]
        # Channels last: on the host TensorFlow has no other convolution.
        orders = ((0, 2, 3, 1), (2, 3, 1, 0), (0, 2, 3, 1))
        return _tensorflow(given, lambda x, w: tf.nn.conv2d(x, w, strides, pads), orders)
    if framework == "jax":
        from jax import lax

        pairs = ((top, top), (left, left))
        return _jax(given, lambda x, w: lax.conv_general_dilated(x, w, strides, pairs))

    def windows(x: Any, w: Any) -> Any:
        x = np.pad(x, ((0, 0), (0, 0), (top, top), (left, left)))
        seen = np.lib.stride_tricks.sliding_window_view(x, w.shape[2:], axis=(2, 3))
        seen = seen[:, :, :: strides[0], :: strides[1]]
        return np.tensordot(seen, w, ((1, 4, 5), (1, 2, 3))).transpose(0, 3, 1, 2)

    return _one_node(framework, problem, given) or _numpy(framework, given, windows)


def product(framework: str, problem: Problem, **data: Any) -> Hand:
    """`torch.matmul`, `tf.matmul`, `jnp.matmul`, a session, `np.matmul`; transposed operands as views or flags."""
    given = _Data(**data)
    over_a, over_b = bool(problem.attributes["transA"]), bool(problem.attributes["transB"])

    def views(a: Any, b: Any) -> Any:
        return (a.T if over_a else a) @ (b.T if over_b else b)

    if framework == "pytorch":
        return _pytorch(given, views)
    if framework == "tensorflow":
        import tensorflow as tf

        return _tensorflow(given, lambda a, b: tf.matmul(a, b, transpose_a=over_a, transpose_b=over_b))
    if framework == "jax":
        return _jax(given, views)
    return _one_node(framework, problem, given) or _numpy(framework, given, views)


def recurrent_layer(framework: str, problem: Problem, **data: Any) -> Hand:
    """`torch.nn.LSTM` and similar modules, Keras layers, `jax.lax.scan`, a session, a loop in NumPy."""
    given = _Data(**data)
    cell, states = _CELLS[problem.operator]
    hidden = problem.attributes["hidden_size"]
    if framework == "pytorch":
        return _pytorch_layer(given, problem)
    if framework == "tensorflow":
        return _keras_layer(given, problem)
    if framework == "jax":
        import jax
        from jax import numpy as jnp

        def scan(x: Any, w: Any, r: Any) -> Any:
            def step(state: Any, seen: Any) -> Any:
                state = cell(jnp, state, seen, r[0])
                return state, state[0]

            first = (jnp.zeros((x.shape[1], hidden), x.dtype),) * states
            return jax.lax.scan(step, first, x @ w[0].T)[1]

        return _jax(given, scan)

    def loop(x: Any, w: Any, r: Any) -> Any:
        state = (np.zeros((x.shape[1], hidden), x.dtype),) * states
        outputs = np.empty((*x.shape[:2], hidden), x.dtype)
        for number, seen in enumerate(x @ w[0].T):
            state = cell(np, state, seen, r[0])
            outputs[number] = state[0]
        return outputs

    return _one_node(framework, problem, given) or _numpy(framework, given, loop)


def _sigmoid(xp: Any, x: Any) -> Any:
    return 1 / (1 + xp.exp(-x))


def _vanilla(xp: Any, state: Any, seen: Any, r: Any) -> Any:
    return (xp.maximum(seen + state[0] @ r.T, 0),)


def _lstm(xp: Any, state: Any, seen: Any, r: Any) -> Any:
    i, o, f, c = xp.split(seen + state[0] @ r.T, 4, axis=1)
    carried = _sigmoid(xp, f) * state[1] + _sigmoid(xp, i) * xp.tanh(c)
    return _sigmoid(xp, o) * xp.tanh(carried), carried


def _gru(xp: Any, state: Any, seen: Any, r: Any) -> Any:
    z, reset, h = zip(xp.split(seen, 3, axis=1), xp.split(state[0] @ r.T, 3, axis=1), strict=True)
    keep = _sigmoid(xp, z[0] + z[1])
    return ((1 - keep) * xp.tanh(h[0] + _sigmoid(xp, reset[0] + reset[1]) * h[1]) + keep * state[0],)


_CELLS: dict[str, tuple[Callable[..., Any], int]] = {"RNN": (_vanilla, 1), "LSTM": (_lstm, 2), "GRU": (_gru, 1)}


def _stacked(matrix: Any, order: Sequence[int]) -> Any:
    """The gates of a weight matrix in another order."""
    parts = np.split(matrix, len(order))
    return np.ascontiguousarray(np.concatenate([parts[number] for number in order]))


def _pytorch(
    given: _Data,
    run: Callable[..., Any],
    weights: Sequence[Any] = (),
    back: Callable[[Any], Any] = lambda value: value,
) -> Hand:
    """`weights`: of a module, replacing the last inputs; `back` converts a result to ONNX's layout."""
    import torch

    torch.set_num_threads(given.threads)
    own = given.inputs[: len(given.inputs) - len(weights)]
    values = [torch.from_numpy(value).to(given.device) for value in own] + list(weights)
    wait = torch.cuda.synchronize if given.device.startswith("cuda") else lambda: None

    def read(found: Any) -> list[Any]:
        return [back(value.detach().cpu().numpy()) for value in found]

    if not given.needs:

        def forward() -> Any:
            with torch.inference_mode():
                return (run(*values),)

        return forward, wait, read
    wanted = [values[number].requires_grad_() for number in given.wanted]
    grad = torch.from_numpy(given.output_grads[0]).to(given.device)

    def backward() -> Any:
        y = run(*values)
        return y, *torch.autograd.grad(y, wanted, grad.view_as(y))

    return backward, wait, read


def _pytorch_layer(given: _Data, problem: Problem) -> Hand:
    import torch

    x, w, r = given.inputs
    gates, hidden = _PYTORCH_GATES[problem.operator], problem.attributes["hidden_size"]
    kinds = {"RNN": torch.nn.RNN, "LSTM": torch.nn.LSTM, "GRU": torch.nn.GRU}
    more = {"nonlinearity": "relu"} if problem.operator == "RNN" else {}
    layer = kinds[problem.operator](x.shape[2], hidden, bias=False, **more).to(given.device)
    weights, order = [layer.weight_ih_l0, layer.weight_hh_l0], np.argsort(gates).tolist()
    with torch.no_grad():
        for parameter, value in zip(weights, (w, r), strict=True):
            parameter.copy_(torch.from_numpy(_stacked(value[0], gates)))
    return _pytorch(
        given,
        lambda x, w, r: layer(x)[0],
        weights,
        lambda value: _stacked(value, order) if value.ndim == 2 else value,
    )


def _tensorflow(given: _Data, run: Callable[..., Any], orders: Sequence[tuple[int, ...]] = ()) -> Hand:
    """`orders`: the axes of inputs and output in TensorFlow's layout; empty if it is ONNX's."""
    import tensorflow as tf

    wanted, arrays = given.wanted, [*given.inputs, *given.output_grads[:1]]
    if orders:
        arrays = [value.transpose(order) for value, order in zip(arrays, orders, strict=False)]
    with tf.device(_tensorflow_device(given.device)):
        values = [tf.constant(np.ascontiguousarray(value)) for value in arrays]
    values, grad = values[: len(given.inputs)], values[-1]

    def backward(*values: Any) -> Any:
        chosen = [values[number] for number in wanted]
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(chosen)
            y = run(*values)
        return y, *tape.gradient(y, chosen, output_gradients=grad)

    # A single operation is faster outside a function; a tape is faster in a function that is traced once.
    call = tf.function(backward).get_concrete_function(*values) if given.needs else lambda *values: (run(*values),)

    def read(found: Any) -> list[Any]:
        arrays = [value.numpy() for value in found]
        if not orders:
            return arrays
        axes = [orders[-1], *(orders[number] for number in wanted)]
        return [array.transpose(np.argsort(order)) for array, order in zip(arrays, axes, strict=True)]

    return lambda: call(*values), tf.test.experimental.sync_devices, read


def _tensorflow_device(device: str) -> str:
    return f"GPU:{device.partition(':')[2] or 0}" if device.startswith("cuda") else "CPU:0"


def _keras_layer(given: _Data, problem: Problem) -> Hand:
    import tensorflow as tf

    gates, hidden = _KERAS_GATES[problem.operator], problem.attributes["hidden_size"]
    keras = tf.keras.layers
    kinds = {"RNN": keras.SimpleRNN, "LSTM": keras.LSTM, "GRU": keras.GRU}
    settings: dict[str, dict[str, Any]] = {"RNN": {"activation": "relu"}, "GRU": {"reset_after": True}}
    more = settings.get(problem.operator, {})
    x, w, r = given.inputs
    with tf.device(_tensorflow_device(given.device)):
        layer = kinds[problem.operator](hidden, return_sequences=True, use_bias=False, **more)
        value = tf.constant(np.ascontiguousarray(x.transpose(1, 0, 2)))  # Keras puts the batch first
        layer.build(value.shape)
        layer.set_weights([_stacked(w[0], gates).T, _stacked(r[0], gates).T])
        grad = tf.constant(given.output_grads[0][:, 0].transpose(1, 0, 2)) if given.needs else None

    def layers(value: Any) -> Any:
        if not given.needs:
            return (layer(value),)
        with tf.GradientTape() as tape:
            tape.watch(value)
            y = layer(value)
        every = [value, *layer.trainable_variables]
        return y, *tape.gradient(y, [every[number] for number in given.wanted], output_gradients=grad)

    call = tf.function(layers).get_concrete_function(value)

    def read(found: Any) -> list[Any]:
        values, back = [value.numpy() for value in found], np.argsort(gates).tolist()
        return [v.transpose(1, 0, 2) if v.ndim == 3 else _stacked(np.ascontiguousarray(v.T), back) for v in values]

    return lambda: call(value), tf.test.experimental.sync_devices, read


def _jax(given: _Data, run: Callable[..., Any]) -> Hand:
    import jax

    place = jax.devices("gpu" if given.device.startswith("cuda") else "cpu")[int(given.device.partition(":")[2] or 0)]
    values = jax.device_put(list(given.inputs), place)
    grads = jax.device_put([grad for grad in given.output_grads if grad is not None], place)
    last: list[Any] = [None]

    @jax.jit  # type: ignore[untyped-decorator]
    def compiled(grads: Sequence[Any], *values: Any) -> Any:
        if not given.needs:
            return (run(*values),)

        def partly(*chosen: Any) -> Any:
            full = list(values)
            for number, value in zip(given.wanted, chosen, strict=True):
                full[number] = value
            return run(*full)

        y, pull = jax.vjp(partly, *(values[number] for number in given.wanted))
        return y, *pull(grads[0].reshape(y.shape))

    def call() -> Any:
        last[0] = compiled(grads, *values)
        return last[0]

    return call, lambda: jax.block_until_ready(last[0]), lambda found: [np.asarray(value) for value in found]


def _one_node(framework: str, problem: Problem, given: _Data) -> Hand | None:
    """A session of a one-node model on memory bound once; None if the framework does not read ONNX."""
    sessions = {"onnxruntime": _onnxruntime, "openvino": _openvino}
    if framework not in sessions:
        return None
    from onnx import helper

    given.forward_on_host(framework)
    names = [f"x{number}" for number in range(len(given.inputs))]
    kinds = [helper.np_dtype_to_tensor_dtype(value.dtype) for value in given.inputs]
    specs = [
        helper.make_tensor_value_info(name, kind, value.shape)
        for name, kind, value in zip(names, kinds, given.inputs, strict=True)
    ]
    node = helper.make_node(problem.operator, names, ["y"], **problem.attributes)
    graph = helper.make_graph([node], "hand-written", specs, [helper.make_tensor_value_info("y", kinds[0], None)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    return sessions[framework](given, model.SerializeToString())


def _onnxruntime(given: _Data, model: bytes) -> Hand:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = given.threads
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    held = [ort.OrtValue.ortvalue_from_numpy(value) for value in given.inputs]
    for number, value in enumerate(held):
        binding.bind_ortvalue_input(f"x{number}", value)
    binding.bind_output("y")

    def call() -> Any:
        session.run_with_iobinding(binding)
        return held  # the binding has its addresses

    return call, lambda: None, lambda _: [value.numpy() for value in binding.get_outputs()]


def _openvino(given: _Data, model: bytes) -> Hand:
    from deep5.frameworks.openvino.library import openvino as ov  # which does not record its use

    core = ov.Core()
    # The default precision may be bfloat16. Pinned threads keep other frameworks off their cores. One thread is the
    # caller's, if there is no stream to pass the work to.
    settings = {
        "INFERENCE_PRECISION_HINT": "f32",
        "INFERENCE_NUM_THREADS": given.threads,
        "NUM_STREAMS": int(given.threads > 1),
        "ENABLE_CPU_PINNING": False,
    }
    request = core.compile_model(core.read_model(model), "CPU", settings).create_infer_request()
    for number, value in enumerate(given.inputs):
        request.set_input_tensor(number, ov.Tensor(value, shared_memory=True))
    return lambda: request.infer(share_outputs=True), lambda: None, lambda _: [request.get_output_tensor(0).data]


def _numpy(framework: str, given: _Data, run: Callable[..., Any]) -> Hand:
    from threadpoolctl import threadpool_limits

    if framework != "reference":
        raise Unsupported(f"there is no hand-written code for {framework}")
    given.forward_on_host("NumPy")
    threadpool_limits(given.threads, user_api="blas")
    return lambda: (run(*given.inputs),), lambda: None, list
