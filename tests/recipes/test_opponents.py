"""The hand-written opponents of the executors, one per framework, compute what deep5's executor computes."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import pytest

import deep5 as d5
from deep5.core.tensors import array_namespace
from deep5.recipe.recipe import load_recipe
from deep5.recipe.registered import recipe_names
from deep5.recipes.overhead import by_deep5, jax_by_hand, onnxruntime_by_hand, pytorch_by_hand, tensorflow_by_hand

# Four samples: each opponent takes their number only from its input's shape; the recipes' own sizes, 1, 8 and 64, are
# those of `test_sizes_of_the_recipes`.
SEED, BATCH, STEPS = 3, 4, 4
HAND: dict[str, Any] = {"pytorch": pytorch_by_hand, "tensorflow": tensorflow_by_hand, "jax": jax_by_hand}
NETWORKS: dict[str, Callable[..., d5.Network]] = {
    **{name: getattr(d5.networks, name) for name in ("mlp", "lenet", "resnet18_small", "transformer")},
    "small_gpt": by_deep5.small_gpt,
}
# The parameters of torch's encoder layer, in its order, under the network's names.
_TORCH_LAYER = (
    *("attention.qkv.weight", "attention.qkv.bias", "attention.out.weight", "attention.out.bias"),
    *("feed_forward.in.weight", "feed_forward.in.bias", "feed_forward.out.weight", "feed_forward.out.bias"),
    *("attention.norm.scale", "attention.norm.bias", "feed_forward.norm.scale", "feed_forward.norm.bias"),
)


def torch_weights(name: str) -> Iterator[tuple[str, np.ndarray]]:
    """The opponent's initial weights for the same seed, in the network's names and shapes."""
    import torch

    torch.manual_seed(SEED)
    model = pytorch_by_hand._MODULES[name]()
    values = {key: value.detach().numpy() for key, value in model.named_parameters()}
    names: list[str] = list(NETWORKS[name]().parameter_specs)
    if name == "transformer":
        places, words = values.pop("places"), values.pop("words.weight")
        values = {"words": words, "places": places[0], **values}
        layers = [f"block{block}.{part}" for block in range(2) for part in _TORCH_LAYER]
        names = [*names[:2], *layers, *names[-4:]]
    for key, value in zip(names, values.values(), strict=True):
        # A product from the left in the network, from the right in torch's module.
        yield key, value.T if key.startswith("block") else value


def tensorflow_weights(name: str) -> Iterator[tuple[str, np.ndarray]]:
    layers = tensorflow_by_hand._Layers(SEED)
    tensorflow_by_hand._NETWORKS[name](layers)
    blocks = itertools.groupby(
        NETWORKS[name]().parameter_specs, key=lambda key: re.split(r"\.(?:conv|shortcut)", key)[0]
    )
    # The opponent makes a block's shortcut before the block.
    names = [key for _, block in blocks for key in sorted(block, key=lambda key: ".shortcut." not in key)]
    yield from channels_first(name, names, [variable.numpy() for variable in layers.trained])


def jax_weights(name: str) -> Iterator[tuple[str, np.ndarray]]:
    def leaves(tree: Any) -> Iterator[np.ndarray]:
        for value in tree.values():  # in source order, which jax.tree would sort
            yield from leaves(value) if isinstance(value, dict) else [value]

    parameters, _ = jax_by_hand._NETWORKS[name]().init(SEED)
    yield from channels_first(name, NETWORKS[name]().parameter_specs, leaves(parameters))


def channels_first(name: str, names: Iterable[str], values: Iterable[np.ndarray]) -> Iterator[tuple[str, np.ndarray]]:
    """Weights with their channels last, and products from the left, as in the network."""
    for key, value in zip(names, values, strict=True):
        if value.ndim == 4:
            yield key, value.transpose(3, 2, 0, 1)
        elif (name, key) == ("lenet", "fc1.weight"):  # its rows are pixels of an image
            yield key, value.reshape(5, 5, 16, 120).transpose(3, 2, 0, 1).reshape(120, 400)
        else:
            yield key, value.T if key.startswith(("fc", "classifier")) else value


WEIGHTS = {"pytorch": torch_weights, "tensorflow": tensorflow_weights, "jax": jax_weights}


def executor_at(framework: str, name: str) -> Any:
    """deep5's executor with the opponent's initial weights."""
    executor = d5.framework("pytorch").executor(NETWORKS[name]())
    weights = dict(WEIGHTS[framework](name))
    assert {key: value.shape for key, value in weights.items()} == {
        key: spec.shape for key, spec in executor.network.parameter_specs.items()
    }
    executor.load_state_dict({**executor.state_dict(), **weights})
    return executor


def opponent(framework: str, name: str, job: str, size: int = BATCH) -> Callable[[], tuple[Any, Any]]:
    threads = d5.framework(framework).executor(d5.networks.mlp(features=2, hidden=2)).settings()["threads"]
    make = getattr(HAND[framework], job)
    work: Callable[[], tuple[Any, Any]] = make(
        steps=1, seed=SEED, threads=threads, network=NETWORKS[name], batch_size=size
    )
    return work


class KerasAdam(d5.Adam):
    """Adam as in Keras: epsilon is added to a root that is not corrected for bias."""

    def update_rule(self, grad: Any, param: Any, state: Any) -> Any:
        xp = array_namespace(param)
        m = self.beta1 * state["m"] + (1 - self.beta1) * grad
        v = self.beta2 * state["v"] + (1 - self.beta2) * grad * grad
        step = self.lr / self.correction1 * xp.sqrt(self.correction2)
        return param - step * m / (xp.sqrt(v) + self.epsilon), {"m": m, "v": v}


def check(got: tuple[Any, Any], want: Any, tolerance: float, what: str) -> None:
    """Loss and logits, to a tolerance that is a share of the largest logit."""
    loss, logits = (np.asarray(value.detach() if hasattr(value, "detach") else value) for value in got)
    wanted = {name: np.asarray(want[name].detach()) for name in ("loss", "logits")}
    allowed = tolerance * np.abs(wanted["logits"]).max()
    assert (loss.shape, logits.shape) == ((), wanted["logits"].shape), what
    np.testing.assert_allclose(logits, wanted["logits"], rtol=0, atol=allowed, err_msg=f"{what}: logits")
    np.testing.assert_allclose(loss, wanted["loss"], rtol=0, atol=allowed, err_msg=f"{what}: loss")


def compare(framework: str, name: str) -> None:
    """Inference, then steps of Adam on one batch: loss and logits of each against deep5's on PyTorch."""
    executor = executor_at(framework, name)
    (batch, *_) = by_deep5.batches(executor.network, BATCH, SEED)
    # float32 sums of some hundred terms, up to eighteen of them in a row
    check(opponent(framework, name, "inference")(), executor.inference(batch), 1e-5, "inference")
    step = executor.train_step((KerasAdam if framework == "tensorflow" else d5.Adam)(lr=0.001))
    work = opponent(framework, name, "training_step")
    for index in range(STEPS):
        # Adam divides a gradient by its own size: where that is only rounding, two correct steps may be opposite.
        tolerance = 1e-5 if index == 0 else {"resnet18_small": 5e-3}.get(name, 2e-5)
        check(work(), step(batch, d5.StepInfo(step=index, batch_size=BATCH)), tolerance, f"step {index}")


OPPONENTS = [
    ("pytorch", "mlp"),
    *((framework, name) for framework in HAND for name in ("lenet", "transformer")),
    ("pytorch", "resnet18_small"),
    ("pytorch", "small_gpt"),
    *(pytest.param(framework, "resnet18_small", marks=pytest.mark.slow) for framework in ("tensorflow", "jax")),
]


@pytest.mark.parametrize(("framework", "name"), OPPONENTS)
def test_the_opponent_computes_what_deep5_computes(framework: str, name: str) -> None:
    compare(framework, name)


def test_every_opponent_of_a_recipe_is_here() -> None:
    """All recipes whose opponent is hand-written."""
    found = set()
    for name in recipe_names():
        recipe = load_recipe(name)
        for framework, module in HAND.items():
            if recipe.fixed.get("baseline") in (module.training_step, module.inference):
                found.add((framework, recipe.value("baseline_kwargs")["network"].__name__))
    assert found == {tuple(getattr(case, "values", case)) for case in OPPONENTS}


@pytest.mark.parametrize("size", [1, 8, 64])
@pytest.mark.parametrize("framework", HAND)
def test_sizes_of_the_recipes(framework: str, size: int) -> None:
    executor = executor_at(framework, "lenet")
    (batch, *_) = by_deep5.batches(executor.network, size, SEED)
    check(opponent(framework, "lenet", "inference", size)(), executor.inference(batch), 1e-5, "inference")
    step = executor.train_step((KerasAdam if framework == "tensorflow" else d5.Adam)(lr=0.001))
    info = d5.StepInfo(step=0, batch_size=size)
    check(opponent(framework, "lenet", "training_step", size)(), step(batch, info), 1e-5, "step 0")


ONNXRUNTIME = [
    ("lenet", 1),
    ("lenet", 64),
    ("transformer", 8),
    pytest.param("resnet18_small", 8, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("name", "size"), ONNXRUNTIME)
def test_onnxruntimes_opponent_computes_what_deep5_computes(name: str, size: int) -> None:
    """At the recipes' own sizes: apart from a model's bytes the opponent has no code, so only sizes differ."""
    network = NETWORKS[name](seed=SEED)
    for steps in (1, 3):  # the last call's outputs: of the first batch, and of the third
        work = onnxruntime_by_hand.inference(steps=steps, seed=SEED, threads=1, network=NETWORKS[name], batch_size=size)
        got: Any = work()
        batch = by_deep5.batches(network, size, SEED)[steps - 1]
        want = d5.framework("pytorch").executor(network).inference(batch)
        assert [np.shape(value) for value in got] == [np.shape(want[key]) for key in network.outputs]
        allowed = 1e-5 * np.abs(np.asarray(want["logits"])).max()  # float32 sums of some hundred terms
        for key, value in zip(network.outputs, got, strict=True):
            np.testing.assert_allclose(value, np.asarray(want[key]), rtol=0, atol=allowed, err_msg=key)


def test_every_recipe_against_onnxruntimes_opponent_is_here() -> None:
    found = set()
    for name in recipe_names():
        fixed = load_recipe(name).fixed
        if fixed.get("baseline") is onnxruntime_by_hand.inference:
            found.add((fixed["baseline_kwargs"]["network"].__name__, fixed["baseline_kwargs"]["batch_size"]))
    assert found == {tuple(getattr(case, "values", case)) for case in ONNXRUNTIME}


def relu_for_tanh(patch: pytest.MonkeyPatch) -> None:
    right = pytorch_by_hand._MODULES["lenet"]

    def wrong() -> Any:
        from torch import nn

        model = right()
        model[1] = nn.ReLU()
        return model

    patch.setitem(pytorch_by_hand._MODULES, "lenet", wrong)


def another_rate(patch: pytest.MonkeyPatch) -> None:
    from torch.optim import Adam

    patch.setattr("torch.optim.Adam", lambda parameters, lr, fused: Adam(parameters, lr=1.01 * lr, fused=fused))


def another_gelu(patch: pytest.MonkeyPatch) -> None:
    right = pytorch_by_hand._MODULES["transformer"]

    def wrong() -> Any:
        from torch.nn import functional

        model = right()
        for layer in model.layers.layers:
            layer.activation = lambda x: functional.gelu(x, approximate="tanh")
        return model

    patch.setitem(pytorch_by_hand._MODULES, "transformer", wrong)


def statistics_of_evaluation(patch: pytest.MonkeyPatch) -> None:
    right = pytorch_by_hand._MODULES["resnet18_small"]

    def wrong() -> Any:
        model = right()
        model.bn1.train = lambda mode=True: model.bn1
        model.bn1.training = False
        return model

    patch.setitem(pytorch_by_hand._MODULES, "resnet18_small", wrong)


@pytest.mark.parametrize(
    ("plant", "name", "where"),
    [
        (relu_for_tanh, "lenet", "inference: logits"),
        (another_gelu, "transformer", "step 0: logits"),
        (statistics_of_evaluation, "resnet18_small", "step 0: logits"),
        (another_rate, "lenet", "step 1: logits"),
        (another_rate, "transformer", "step 1: logits"),
    ],
)
def test_a_wrong_opponent_is_caught(
    plant: Callable[[pytest.MonkeyPatch], None], name: str, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError, match=where):
        compare("pytorch", name)
