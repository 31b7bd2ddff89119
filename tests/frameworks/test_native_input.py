"""`from_module`, `from_keras` and `from_jax`: inputs that they refuse, and memory that they hold."""

from __future__ import annotations

import gc
import os
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - torch's own name for it

import deep5 as d5
from deep5.core.errors import NetworkError, ShapeError, Unsupported, UsageError
from deep5.core.tensors import TensorSpec
from deep5.frameworks.pytorch import from_module

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")

INPUTS = {"input": TensorSpec(shape=("N", 4)), "label": TensorSpec(shape=("N",), dtype="int64")}
APART = {**INPUTS, "label": TensorSpec(shape=("M",), dtype="int64")}

Maker = Callable[..., Any]


def feed(count: int = 6, labels: int | None = None) -> dict[str, np.ndarray]:
    return {"input": np.ones((count, 4), np.float32), "label": np.zeros(labels or count, np.int64)}


def torch_made(**options: Any) -> Any:
    arguments = {"module": nn.Linear(4, 3), "loss": F.cross_entropy, "inputs": INPUTS, **options}
    return from_module(arguments.pop("module"), arguments.pop("loss"), **arguments)


def keras() -> Any:
    pytest.importorskip("tensorflow")
    d5.framework("tensorflow")
    return pytest.importorskip("keras")


def keras_made(**options: Any) -> Any:
    own = keras()
    from deep5.frameworks.tensorflow.native import from_keras

    model = own.Sequential([own.Input((4,)), own.layers.Dense(3)], name="dense")
    loss = own.losses.SparseCategoricalCrossentropy(from_logits=True)
    arguments = {"module": model, "loss": loss, "inputs": INPUTS, **options}
    return from_keras(arguments.pop("module"), arguments.pop("loss"), **arguments)


def apply(parameters: Any, inputs: Any) -> dict[str, Any]:
    import jax

    logits = inputs["input"] @ parameters["w"]
    return {"logits": logits, "loss": -(jax.nn.one_hot(inputs["label"], 3) * jax.nn.log_softmax(logits)).sum(1).mean()}


def jax_made(**options: Any) -> Any:
    pytest.importorskip("jax")
    from deep5.frameworks.jax.native import from_jax

    arguments = {"apply": apply, "parameters": {"w": np.ones((4, 3), np.float32)}, "inputs": INPUTS, **options}
    return from_jax(arguments.pop("apply"), arguments.pop("parameters"), **arguments)


ALL = pytest.mark.parametrize("made", [torch_made, keras_made, jax_made], ids=["torch", "keras", "jax"])
WITH_LOSS = pytest.mark.parametrize("made", [torch_made, keras_made], ids=["torch", "keras"])


# Malformed arguments

WRONG: list[tuple[Any, str]] = [
    ((None, 4), r"got \(None, 4\); allowed: a TensorSpec; remedy: TensorSpec\(shape=\('N', 4\)\)$"),
    ([8, 4], r"got \[8, 4\]; allowed: a TensorSpec; remedy: TensorSpec\(shape=\(8, 4\)\)$"),
    (4, r"got 4; allowed: a TensorSpec; remedy: TensorSpec\(shape=\('N', 4\)\)$"),
    (None, r"got None; allowed: a TensorSpec; remedy: TensorSpec\(shape=\('N',\)\)$"),
    ("float32", r"got 'float32'; allowed: a TensorSpec; remedy: TensorSpec\(shape=\('N',\)\)$"),
    (np.zeros((2, 4)), r"got ndarray; .*remedy: TensorSpec\(shape=\(2, 4\), dtype='float64'\)$"),
    (torch.zeros(2, 4), r"got Tensor; .*remedy: TensorSpec\(shape=\(2, 4\), dtype='float32'\)$"),
    (TensorSpec(shape=(None, 4)), r"shape \(None, 4\); .*remedy: TensorSpec\(shape=\('N', 4\), dtype='float32'\)$"),  # type: ignore[arg-type]
    (TensorSpec(shape=("N", -1)), r"shape \('N', -1\); .*remedy: TensorSpec\(shape=\('N', 'N1'\), dtype='float32'\)$"),
    (TensorSpec(shape=["N", 4]), r"shape \['N', 4\]; .*remedy: TensorSpec\(shape=\('N', 4\), dtype='float32'\)$"),  # type: ignore[arg-type]
    (
        TensorSpec(shape=("N",), dtype="float"),
        r"dtype 'float'; .*remedy: TensorSpec\(shape=\('N',\), dtype='float64'\)",
    ),
    (TensorSpec(shape=(), dtype=np.int8), r"dtype <class .*; .*remedy: TensorSpec\(shape=\(\), dtype='int8'\)$"),  # type: ignore[arg-type]
    (TensorSpec(shape=(), dtype="words"), r"dtype 'words'; allowed: NumPy's name of a number, such as 'float32'"),
    (TensorSpec(shape=(), dtype="object"), r"dtype 'object'; allowed: NumPy's name of a number, such as 'float32'"),
]


@ALL
def test_inputs_that_are_no_specifications(made: Maker) -> None:
    for given, message in WRONG:
        with pytest.raises(UsageError, match=f"^the input 'input': got .*{message.removeprefix('got ')}") as caught:
            made(inputs={**INPUTS, "input": given})
        assert "\n" not in str(caught.value)
    for inputs in (None, list(INPUTS.values()), {}, {1: INPUTS["input"]}, {"": INPUTS["input"]}, "input"):
        with pytest.raises(
            UsageError, match=r"as inputs; allowed: a dict of TensorSpec by name; remedy: inputs={\"input"
        ):
            made(inputs=inputs)


@ALL
def test_seeds_that_are_none(made: Maker) -> None:
    for seed in ("1", 1.0, None, True):
        with pytest.raises(UsageError, match=r"got .* as seed; allowed: an integer; remedy: seed=0"):
            made(seed=seed)
    assert made(seed=np.int64(3)).seed == 3


@WITH_LOSS
def test_outputs_that_are_not_two_names(made: Maker) -> None:
    for outputs in (None, "ab", ("loss",), ("a", "b", "c"), ("loss", "loss"), ("logits", 1), 5, ("", "loss")):
        with pytest.raises(UsageError, match=r"got the outputs .*; allowed: two outputs by different names, the mod"):
            made(outputs=outputs)


def test_outputs_of_jax_that_are_no_dict() -> None:
    with pytest.raises(
        UsageError, match=r"got \('logits', 'loss'\) as outputs; allowed: None, or a dict of TensorSpec"
    ):
        jax_made(outputs=("logits", "loss"))


@pytest.mark.parametrize("parameters", [{}, [], None, {"a": {}, "b": []}])
def test_parameters_without_an_array(parameters: Any) -> None:
    with pytest.raises(UsageError, match="got parameters without any array; allowed: a tree of floating-point arrays"):
        jax_made(parameters=parameters)


@pytest.mark.parametrize("leaf", ["text", object(), len, np.array(["a"]), 2**80], ids=lambda leaf: type(leaf).__name__)
def test_leaves_that_are_no_arrays(leaf: Any) -> None:
    with pytest.raises(Unsupported, match=r"the leaf 'deep/w' is .*; allowed: arrays of numbers"):
        jax_made(parameters={"deep": {"w": leaf}})


# Code that does not run


@WITH_LOSS
def test_losses_that_cannot_be_minimised(made: Maker) -> None:
    def rows(one: Any, other: Any) -> Any:
        return (one if len(one.shape) == 2 else other)[:, 0]

    with pytest.raises(
        UsageError, match=r"the loss .*rows gives float32\[N\]; expected a floating-point scalar.*its mean"
    ):
        made(loss=rows)
    with pytest.raises(UsageError, match=r"the loss .* gives int64\[\]; expected a floating-point scalar"):
        made(loss=lambda one, other: (one if len(one.shape) == 1 else other)[0])
    with pytest.raises(UsageError, match=r"the loss .* gives a float; allowed: one tensor; remedy: a function around"):
        made(loss=lambda one, other: 0.5)
    with pytest.raises(UsageError, match=r"got .*None; allowed: a .* and a function"):
        made(loss=None)


@WITH_LOSS
def test_losses_that_do_not_run(made: Maker) -> None:
    def broken(one: Any, other: Any) -> Any:
        raise KeyError("no such class\nand more")

    order = (
        r"label int64\[2\], logits float32\[2, 3\]" if made is keras_made else "output float32.2, 3., label int64.2."
    )
    told = (
        rf"the loss .*broken does not run on {order} \(KeyError: no such class\); remedy: look at the order, the shapes"
    )
    with pytest.raises(UsageError, match=told) as caught:
        made(loss=broken)
    assert isinstance(caught.value.__cause__, KeyError)
    with pytest.raises(UsageError, match=r"the loss .*<lambda> does not run on .*\(TypeError: .*takes 1 positional"):
        made(loss=lambda one: one)
    with pytest.raises(UsageError, match=r"the (module Linear|model 'dense') does not run on input float32\[2, 5\] \("):
        made(inputs={**INPUTS, "input": TensorSpec(shape=("N", 5))})
    with pytest.raises(UsageError, match=r"; images of deep5's data sets are \(N, channels, height, width\)$"):
        made(inputs={**INPUTS, "input": TensorSpec(shape=("N", 1, 5, 5))})


def test_a_loss_that_takes_the_label_where_the_output_comes() -> None:
    with pytest.raises(UsageError, match=r"the loss .* does not run on output .*, label .*remedy: look at the order"):
        torch_made(loss=lambda label, logits: F.cross_entropy(logits, label))
    own = keras().losses.SparseCategoricalCrossentropy(from_logits=True)
    with pytest.raises(UsageError, match=r"the loss .* does not run on label .*, logits .*remedy: look at the order"):
        keras_made(loss=lambda logits, label: own(label, logits))


def test_functions_of_jax_that_do_not_run() -> None:
    def broken(parameters: Any, inputs: Any) -> Any:
        raise KeyError("no such layer\nand more")

    with pytest.raises(
        UsageError, match=r"the function .*broken does not run on input .* \(KeyError: no such layer\)"
    ) as e:
        jax_made(apply=broken)
    assert isinstance(e.value.__cause__, KeyError)
    with pytest.raises(
        UsageError, match=r"the function apply does not run on input float32\[8, 5\], label .*TypeError: dot"
    ):
        jax_made(inputs={**INPUTS, "input": TensorSpec(shape=("N", 5))})
    with pytest.raises(UsageError, match=r"got None as apply; allowed: a function of parameters and inputs"):
        jax_made(apply=None)
    for result, told in ((3, "int"), ([1], "list"), (None, "NoneType"), ({1: 2}, "dict")):
        with pytest.raises(UsageError, match=f"apply gave {told}; allowed: a dict of outputs by name"):
            jax_made(apply=lambda parameters, inputs, result=result: result)
    with pytest.raises(UsageError, match=r"apply gave the output 'loss' of type str; allowed: an array"):
        jax_made(apply=lambda parameters, inputs: {"loss": "small"})


class Fussy(nn.Module):
    """Raises an error from a certain call on."""

    def __init__(self, error: Exception, after: int = 0) -> None:
        super().__init__()
        self.linear, self.error, self.left = nn.Linear(4, 3), error, after

    def forward(self, value: Any) -> Any:
        self.left -= 1
        if self.left < 0:
            raise self.error
        return self.linear(value)


def test_modules_that_raise() -> None:
    told = r"the module Fussy does not run on input float32\[2, 4\] \(KeyError: first\); remedy"
    with pytest.raises(UsageError, match=told) as caught:
        torch_made(module=Fussy(KeyError("first\nsecond")))
    assert isinstance(caught.value.__cause__, KeyError)
    with pytest.raises(UsageError, match=r"the module Fussy does not run on .* \(AssertionError\); remedy"):
        torch_made(module=Fussy(AssertionError()))
    with pytest.raises(Unsupported, match=r"^as it was$"):  # deep5's own errors pass unchanged
        torch_made(module=Fussy(Unsupported("as it was")))
    told = r"the module Fussy does not run on input float32\[6, 4\] \(ValueError: first\); allowed: shapes that fit"
    with pytest.raises(NetworkError, match=told) as later:
        torch_made(module=Fussy(ValueError("first\nsecond"), after=2)).inference(feed())
    assert isinstance(later.value.__cause__, ValueError)
    with pytest.raises(KeyError, match="own"):  # not an error of a framework: the module's author may catch it
        torch_made(module=Fussy(KeyError("own"), after=2)).inference(feed())


def test_element_types_that_torch_has_not() -> None:
    name = np.dtype("longdouble").name
    with pytest.raises(UsageError, match=rf"torch does not run on input {name}\[2, 4\], .* \(TypeError: can't convert"):
        torch_made(inputs={**INPUTS, "input": TensorSpec(shape=("N", 4), dtype=name)})
    with pytest.raises(Unsupported, match=r"'weight' is of float8_e5m2, which NumPy lacks"):
        torch_made(module=nn.Linear(4, 3).to(torch.float8_e5m2))


# Batches that do not fit: faults that the specifications show, and faults that only the code finds


@ALL
def test_batches_that_do_not_fit_the_specifications(made: Maker) -> None:
    run = made()
    step = run.train_step(d5.SGD(lr=0.1))
    calls: list[Callable[[Any], Any]] = [
        run.inference,
        run.inference_and_backprop,
        lambda batch: step(batch, d5.StepInfo(batch_size=6)),
    ]
    for call in calls:
        with pytest.raises(ShapeError, match=r"input 'input': got shape \(6, 5\), expected float32\[N, 4\]"):
            call({**feed(), "input": np.ones((6, 5), np.float32)})
        with pytest.raises(
            ShapeError, match=r"input 'label': got N = 3 in shape \(3,\), expected N = 6 as in input 'inp"
        ):
            call(feed(6, 3))
        with pytest.raises(ShapeError, match=r"missing input 'label'"):
            call({"input": feed()["input"]})


def torch_mean(logits: Any, label: Any) -> Any:
    return logits.mean() if len(label) < 40 else F.cross_entropy(logits, label)


def test_batches_that_only_the_code_finds_wrong() -> None:
    run = torch_made(inputs=APART, loss=torch_mean)
    told = r"the loss torch_mean does not run on logits float32\[6, 3\], label int64\[50\] \(ValueError: Expected input"
    with pytest.raises(NetworkError, match=told):
        run.inference_and_backprop(feed(6, 50))
    run.inference_and_backprop(feed(6, 3))

    def reshaped(parameters: Any, inputs: Any) -> dict[str, Any]:
        return {
            "loss": (inputs["input"].reshape(8, -1) @ parameters["w"][:, 0]).mean()
            if len(inputs["input"]) == 6
            else 0.0
        }

    with pytest.raises(
        NetworkError, match=r"the function .*reshaped does not run on input float32\[6, 4\], .*TypeError: "
    ):
        jax_made(apply=reshaped).inference(feed())


@pytest.mark.parametrize("where", ["model", "loss"])
def test_what_keras_cannot_trace(where: str) -> None:
    import tensorflow as tf

    def loss(label: Any, logits: Any) -> Any:
        return tf.reduce_mean(logits) if tf.reduce_sum(logits) > -1e9 else 0.0

    def branch(value: Any) -> Any:
        return value if tf.reduce_sum(value) > -1e9 else -value

    run = keras_made(loss=loss) if where == "loss" else keras_made(module=subclassed(branch))
    told = rf"the {where} .* does not run on .* \((OperatorNotAllowedInGraphError|TypeError): Using a symbolic"
    with pytest.raises(NetworkError, match=told):
        run.inference(feed())


def subclassed(before: Callable[[Any], Any]) -> Any:
    """A model whose `call` has no `training` argument; the dropout within still receives the mode."""
    own = keras()

    class Own(own.Model):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__(name="own")
            self.dense, self.dropout = own.layers.Dense(3), own.layers.Dropout(0.5)
            self.dense.build((None, 4))
            self.built = True

        def call(self, value: Any) -> Any:
            return self.dropout(self.dense(before(value)))

    return Own()


def test_a_keras_model_that_takes_no_training() -> None:
    model = subclassed(lambda value: value)
    run = keras_made(module=model)
    want = model(feed()["input"], training=False)
    # One product of four terms.
    np.testing.assert_allclose(run.inference(feed())["logits"], want, rtol=1e-6)
    dropped = np.asarray(run.inference(feed(), training=True)["logits"])
    assert (dropped == 0).any()
    np.testing.assert_allclose(dropped, np.where(dropped == 0, 0, 2 * want), rtol=1e-6)


# Memory that is held


WIDE = 1024  # 4 MiB of weights, next to which nothing else counts
BYTES = WIDE * WIDE * 4
WIDE_INPUTS = {"input": TensorSpec(shape=("N", WIDE)), "label": TensorSpec(shape=("N",), dtype="int64")}


@WITH_LOSS
def test_the_weights_of_a_model_are_not_held_twice(made: Maker) -> None:
    if made is torch_made:
        module: Any = nn.Linear(WIDE, WIDE, bias=False)
    else:
        own = keras()
        module = own.Sequential([own.Input((WIDE,)), own.layers.Dense(WIDE, use_bias=False)])
    made()  # imports at first use
    gc.collect()
    tracemalloc.start()
    try:
        run = made(module=module, inputs=WIDE_INPUTS)
        gc.collect()
        held, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < BYTES / 4
    assert most < 4 * BYTES  # while it is hashed
    assert len(run.network.weights_hash()) == 64
    with pytest.raises(
        Unsupported, match=r"is not kept: it would be a second copy.*; remedy: keep executor.state_dict\(\)"
    ):
        run.network.initial(next(iter(run.network.parameter_specs)))
    with pytest.raises(NetworkError, match="no initial value 'x'; allowed: "):
        run.network.initial("x")


def test_the_weights_of_a_function_are_held_once() -> None:
    jax: Any = pytest.importorskip("jax")
    jax_made()
    parameters = {"w": np.zeros((WIDE, WIDE), np.float32)}
    gc.collect()
    before = sum(array.nbytes for array in jax.live_arrays())
    run = jax_made(parameters=parameters, inputs=WIDE_INPUTS, apply=lambda p, i: {"loss": (i["input"] @ p["w"]).mean()})
    gc.collect()
    # Only the live arrays; the caller's tree belongs to the caller.
    assert sum(array.nbytes for array in jax.live_arrays()) - before < 1.25 * BYTES
    assert run.network.weights_hash() == run.network.weights_hash() != jax_made().network.weights_hash()
    with pytest.raises(Unsupported, match=r"'w' of the network .* is not kept: it would be a second copy"):
        run.network.initial("w")


# Native optimizers without a recipe


@pytest.mark.parametrize(("made", "framework"), [(torch_made, "pytorch"), (keras_made, "tensorflow")])
def test_a_native_optimizer_drives_a_native_network(made: Maker, framework: str) -> None:
    run = made()
    optimizer = d5.framework(framework).optimizer("adam")(lr=0.1)
    optimizer.bind(run)
    losses = [float(optimizer.step(feed(), d5.StepInfo(step=step, batch_size=6))["loss"]) for step in range(20)]
    # One class for all samples: on so simple a loss every step goes down.
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < losses[0] / 2
