"""The operators of DeepBench as a framework's users write them, beside which deep5's own cost shows.

Each function takes a framework, a problem and its data as NumPy arrays, and gives what is timed: a function that does
the work once, one that waits for it, and one that gives its results as NumPy arrays in ONNX's layout. Data are brought
into the framework's memory and layout beforehand: that is not on the clock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from deep5.errors import Unsupported
from deep5.operators.problems import Problem

__all__ = ["convolution", "product", "recurrent_layer"]

Hand = tuple[Callable[[], Any], Callable[[], object], Callable[[Any], list[Any]]]

# ONNX stacks the gates of an LSTM as i, o, f, c and those of a GRU as z, r, h.
_PYTORCH_GATES = {"RNN": (0,), "LSTM": (0, 2, 3, 1), "GRU": (1, 0, 2)}
_KERAS_GATES = {"RNN": (0,), "LSTM": (0, 2, 3, 1), "GRU": (0, 1, 2)}


def convolution(framework: str, problem: Problem, **data: Any) -> Hand:
    """`torch.nn.functional.conv2d`, `tf.nn.conv2d`, `jax.lax.conv_general_dilated`, a session, windows in NumPy."""
    top, left = problem.attributes["pads"][:2]
    strides = tuple(problem.attributes["strides"])
    if framework == "pytorch":
        from torch.nn import functional

        return _pytorch(lambda x, w: functional.conv2d(x, w, stride=strides, padding=(top, left)), **data)
    if framework == "tensorflow":
        import tensorflow as tf

        pads = [[0, 0], [top, top], [left, left], [0, 0]]
        # Channels last, as TensorFlow's users write it: on the host it has no other convolution.
        return _tensorflow(
            lambda x, w: tf.nn.conv2d(x, w, strides, pads),
            orders=((0, 2, 3, 1), (2, 3, 1, 0)),
            result=(0, 2, 3, 1),
            **data,
        )
    if framework == "jax":
        from jax import lax

        def run(x: Any, w: Any) -> Any:
            return lax.conv_general_dilated(x, w, strides, ((top, top), (left, left)))

        return _jax(run, **data)
    if framework == "onnxruntime":
        return _onnxruntime(problem, **data)

    def windows(x: Any, w: Any) -> Any:
        x = np.pad(x, ((0, 0), (0, 0), (top, top), (left, left)))
        seen = np.lib.stride_tricks.sliding_window_view(x, w.shape[2:], axis=(2, 3))
        seen = seen[:, :, :: strides[0], :: strides[1]]
        return np.tensordot(seen, w, ((1, 4, 5), (1, 2, 3))).transpose(0, 3, 1, 2)

    return _numpy(framework, windows, **data)


def product(framework: str, problem: Problem, **data: Any) -> Hand:
    """`torch.matmul`, `tf.matmul`, `jnp.matmul`, a session, `np.matmul`; transposed operands as views or flags."""
    over_a, over_b = bool(problem.attributes["transA"]), bool(problem.attributes["transB"])

    def views(a: Any, b: Any) -> Any:
        return (a.T if over_a else a) @ (b.T if over_b else b)

    if framework == "pytorch":
        return _pytorch(views, **data)
    if framework == "tensorflow":
        import tensorflow as tf

        return _tensorflow(lambda a, b: tf.matmul(a, b, transpose_a=over_a, transpose_b=over_b), **data)
    if framework == "jax":
        return _jax(views, **data)
    if framework == "onnxruntime":
        return _onnxruntime(problem, **data)
    return _numpy(framework, views, **data)


def recurrent_layer(framework: str, problem: Problem, **data: Any) -> Hand:
    """`torch.nn.LSTM` and its kin, Keras layers, `jax.lax.scan`, a session, a loop in NumPy."""
    if framework == "pytorch":
        return _pytorch_layer(problem, **data)
    if framework == "tensorflow":
        return _keras_layer(problem, **data)
    if framework == "onnxruntime":
        return _onnxruntime(problem, **data)
    cell, states = _CELLS[problem.operator]
    hidden = problem.attributes["hidden_size"]
    if framework == "jax":
        import jax
        from jax import numpy as jnp

        def scan(x: Any, w: Any, r: Any) -> Any:
            def step(state: Any, seen: Any) -> Any:
                state = cell(jnp, state, seen, r[0])
                return state, state[0]

            first = (jnp.zeros((x.shape[1], hidden), x.dtype),) * states
            return jax.lax.scan(step, first, x @ w[0].T)[1]

        return _jax(scan, **data)

    def loop(x: Any, w: Any, r: Any) -> Any:
        state = (np.zeros((x.shape[1], hidden), x.dtype),) * states
        outputs = np.empty((*x.shape[:2], hidden), x.dtype)
        for number, seen in enumerate(x @ w[0].T):
            state = cell(np, state, seen, r[0])
            outputs[number] = state[0]
        return outputs

    return _numpy(framework, loop, **data)


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


def _pytorch(
    run: Callable[..., Any],
    *,
    inputs: Sequence[Any],
    output_grads: Sequence[Any],
    needs: Sequence[bool],
    threads: int,
    device: str,
    back: Callable[[list[Any]], list[Any]] = lambda found: found,
) -> Hand:
    import torch

    torch.set_num_threads(threads)
    values = [torch.from_numpy(value).to(device) for value in inputs]
    wait = torch.cuda.synchronize if device.startswith("cuda") else lambda: None

    def read(found: Any) -> list[Any]:
        return back([value.detach().cpu().numpy() for value in found])

    if not needs:

        def forward() -> Any:
            with torch.inference_mode():
                return (run(*values),)

        return forward, wait, read
    wanted = [value.requires_grad_() for value, needed in zip(values, needs, strict=True) if needed]
    grad = torch.from_numpy(output_grads[0]).to(device)

    def backward() -> Any:
        y = run(*values)
        return y, *torch.autograd.grad(y, wanted, grad.view_as(y))

    return backward, wait, read


def _pytorch_layer(problem: Problem, **data: Any) -> Hand:
    import torch

    device, needs = data["device"], data["needs"]
    x, w, r = data["inputs"]
    gates, hidden = _PYTORCH_GATES[problem.operator], problem.attributes["hidden_size"]
    kinds = {"RNN": torch.nn.RNN, "LSTM": torch.nn.LSTM, "GRU": torch.nn.GRU}
    more = {"nonlinearity": "relu"} if problem.operator == "RNN" else {}
    layer = kinds[problem.operator](x.shape[2], hidden, bias=False, **more).to(device)
    weights = [layer.weight_ih_l0, layer.weight_hh_l0]
    with torch.no_grad():
        for parameter, value in zip(weights, (w, r), strict=True):
            parameter.copy_(torch.from_numpy(_stacked(value[0], gates)))
    wait = torch.cuda.synchronize if device.startswith("cuda") else lambda: None
    torch.set_num_threads(data["threads"])
    values = torch.from_numpy(x).to(device)

    def read(found: Any) -> list[Any]:
        first, *grads = (value.detach().cpu().numpy() for value in found)
        order = np.argsort(gates).tolist()
        return [first, *(_stacked(grad, order) if grad.ndim == 2 else grad for grad in grads)]

    if not needs:

        def forward() -> Any:
            with torch.inference_mode():
                return (layer(values)[0],)

        return forward, wait, read
    wanted = [v for v, needed in zip([values.requires_grad_(), *weights], needs, strict=True) if needed]
    grad = torch.from_numpy(data["output_grads"][0]).to(device)

    def backward() -> Any:
        y = layer(values)[0]
        return y, *torch.autograd.grad(y, wanted, grad.view_as(y))

    return backward, wait, read


def _stacked(matrix: Any, order: Sequence[int]) -> Any:
    """The gates of a weight matrix in another order."""
    parts = np.split(matrix, len(order))
    return np.ascontiguousarray(np.concatenate([parts[number] for number in order]))


def _tensorflow(
    run: Callable[..., Any],
    *,
    inputs: Sequence[Any],
    output_grads: Sequence[Any],
    needs: Sequence[bool],
    threads: int,
    device: str,
    orders: Sequence[tuple[int, ...]] = (),
    result: tuple[int, ...] = (),
) -> Hand:
    """`orders` and `result`: the axes of inputs and output in TensorFlow's layout; empty where it is ONNX's."""
    import tensorflow as tf

    del threads  # the runtime's, fixed when it starts
    with tf.device(_tensorflow_device(device)):
        laid = [np.ascontiguousarray(v.transpose(o)) for v, o in zip(inputs, orders, strict=True)] if orders else inputs
        values = [tf.constant(value) for value in laid]
        grad = tf.constant(output_grads[0].transpose(result) if result else output_grads[0]) if needs else None
    wanted = [number for number, needed in enumerate(needs) if needed]

    @tf.function  # type: ignore[untyped-decorator]  # tensorflow is not followed
    def call(*values: Any) -> Any:
        if not needs:
            return (run(*values),)
        chosen = [values[number] for number in wanted]
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(chosen)
            y = run(*values)
        return y, *tape.gradient(y, chosen, output_gradients=grad)

    def read(found: Any) -> list[Any]:
        axes = [result, *(orders[number] for number in wanted)] if orders else [()] * len(found)
        values = zip((value.numpy() for value in found), axes, strict=True)
        return [value.transpose(np.argsort(order)) if order else value for value, order in values]

    return lambda: call(*values), tf.test.experimental.sync_devices, read


def _tensorflow_device(device: str) -> str:
    return f"GPU:{device.partition(':')[2] or 0}" if device.startswith("cuda") else "CPU:0"


def _keras_layer(
    problem: Problem,
    *,
    inputs: Sequence[Any],
    output_grads: Sequence[Any],
    needs: Sequence[bool],
    threads: int,
    device: str,
) -> Hand:
    import tensorflow as tf

    del threads
    gates, hidden = _KERAS_GATES[problem.operator], problem.attributes["hidden_size"]
    keras = tf.keras.layers
    kinds = {"RNN": keras.SimpleRNN, "LSTM": keras.LSTM, "GRU": keras.GRU}
    settings: dict[str, dict[str, Any]] = {"RNN": {"activation": "relu"}, "GRU": {"reset_after": True}}
    more = settings.get(problem.operator, {})
    x, w, r = inputs
    with tf.device(_tensorflow_device(device)):
        layer = kinds[problem.operator](hidden, return_sequences=True, use_bias=False, **more)
        value = tf.constant(np.ascontiguousarray(x.transpose(1, 0, 2)))  # Keras puts the batch first
        layer.build(value.shape)
        layer.set_weights([_stacked(w[0], gates).T, _stacked(r[0], gates).T])
        grad = tf.constant(output_grads[0][:, 0].transpose(1, 0, 2)) if needs else None
    wanted = [number for number, needed in enumerate(needs) if needed]

    @tf.function  # type: ignore[untyped-decorator]
    def call(value: Any) -> Any:
        if not needs:
            return (layer(value),)
        with tf.GradientTape() as tape:
            tape.watch(value)
            y = layer(value)
        every = [value, *layer.trainable_variables]
        return y, *tape.gradient(y, [every[number] for number in wanted], output_gradients=grad)

    def read(found: Any) -> list[Any]:
        values, back = [value.numpy() for value in found], np.argsort(gates).tolist()
        return [v.transpose(1, 0, 2) if v.ndim == 3 else _stacked(np.ascontiguousarray(v.T), back) for v in values]

    return lambda: call(value), tf.test.experimental.sync_devices, read


def _jax(
    run: Callable[..., Any],
    *,
    inputs: Sequence[Any],
    output_grads: Sequence[Any],
    needs: Sequence[bool],
    threads: int,
    device: str,
) -> Hand:
    import jax

    del threads  # the back-end's, fixed when it starts
    place = jax.devices("gpu" if device.startswith("cuda") else "cpu")[int(device.partition(":")[2] or 0)]
    values = jax.device_put(list(inputs), place)
    last: list[Any] = [None]

    def whole(grads: Sequence[Any], *values: Any) -> Any:
        if not needs:
            return (run(*values),)
        wanted = [number for number, needed in enumerate(needs) if needed]

        def partly(*chosen: Any) -> Any:
            full = list(values)
            for number, value in zip(wanted, chosen, strict=True):
                full[number] = value
            return run(*full)

        y, pull = jax.vjp(partly, *(values[number] for number in wanted))
        return y, *pull(grads[0].reshape(y.shape))

    compiled, grads = jax.jit(whole), jax.device_put([grad for grad in output_grads if grad is not None], place)

    def call() -> Any:
        last[0] = compiled(grads, *values)
        return last[0]

    return call, lambda: jax.block_until_ready(last[0]), lambda found: [np.asarray(value) for value in found]


def _onnxruntime(
    problem: Problem,
    *,
    inputs: Sequence[Any],
    output_grads: Sequence[Any],
    needs: Sequence[bool],
    threads: int,
    device: str,
) -> Hand:
    """A session of one node, on memory that is bound to it once."""
    import onnx
    import onnxruntime as ort

    del output_grads
    if needs:
        raise Unsupported("ONNX Runtime's own sessions compute no gradients")
    if device != "cpu":
        raise Unsupported("the session by hand is written for the host")
    helper = onnx.helper
    names = [f"x{number}" for number in range(len(inputs))]
    specs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
        for name, value in zip(names, inputs, strict=True)
    ]
    node = helper.make_node(problem.operator, names, ["y"], **problem.attributes)
    out = helper.make_tensor_value_info("y", helper.np_dtype_to_tensor_dtype(inputs[0].dtype), None)
    graph = helper.make_graph([node], "by hand", specs, [out])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    held = [ort.OrtValue.ortvalue_from_numpy(value) for value in inputs]
    for name, value in zip(names, held, strict=True):
        binding.bind_ortvalue_input(name, value)
    binding.bind_output("y")

    def call() -> Any:
        session.run_with_iobinding(binding)
        return held  # the binding has its addresses

    return call, lambda: None, lambda _: [value.numpy() for value in binding.get_outputs()]


def _numpy(
    framework: str,
    run: Callable[..., Any],
    *,
    inputs: Sequence[Any],
    output_grads: Sequence[Any],
    needs: Sequence[bool],
    threads: int,
    device: str,
) -> Hand:
    from threadpoolctl import threadpool_limits

    del output_grads
    if framework != "reference":
        raise Unsupported(f"nothing is written by hand for {framework}")
    if needs:
        raise Unsupported("no gradient is written by hand in NumPy")
    if device != "cpu":
        raise Unsupported("NumPy runs on the host")
    threadpool_limits(threads, user_api="blas")
    return lambda: (run(*inputs),), lambda: None, list
