"""The baselines on JAX: idiomatic networks, loss and Adam, a whole step in one `jax.jit`.

Each function takes the arguments of its counterpart in `by_deep5`, and does the same steps on the same batches; from
the same weights it computes the same numbers, as the tests check. Images and weights are channels-last: the fastest
layout of XLA on the CPU, and that of JAX's libraries.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

import deep5 as d5
from deep5.core.errors import UsageError
from deep5.core.seeds import generator
from deep5.recipes.overhead.by_deep5 import HORIZON, JUDGED, RATE, batches, labelled_digits
from deep5.recipes.overhead.rules import DECAY, PENALTY, twin_of

__all__ = ["inference", "training_run", "training_step"]

Work = Callable[[], object]
Tree = Any


def _draw(seed: int) -> Callable[..., Any]:
    """Returns a function that draws weights of a shape, normal with variance 1 / fan-in."""
    draw = generator(seed, "overhead", "weights")

    def weight(*shape: int) -> Any:
        return (draw.standard_normal(shape) / np.sqrt(np.prod(shape[:-1]))).astype(np.float32)

    return weight


def _conv(x: Any, kernel: Any, stride: int = 1, padding: int = 0) -> Any:
    from jax import lax

    around = [(padding, padding)] * 2
    return lax.conv_general_dilated(x, kernel, (stride, stride), around, dimension_numbers=("NHWC", "HWIO", "NHWC"))


def _cross_entropy(logits: Any, labels: Any) -> Any:
    import jax
    import jax.numpy as jnp

    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], axis=1))


class _LeNet:
    """LeNet-5 with tanh and average pooling."""

    def init(self, seed: int) -> tuple[Tree, Tree]:
        draw, parameters = _draw(seed), {}
        for name, shape in (("conv1", (5, 5, 1, 6)), ("conv2", (5, 5, 6, 16))):
            parameters[name] = {"kernel": draw(*shape), "bias": np.zeros(shape[-1], np.float32)}
        for name, sizes in (("fc1", (400, 120)), ("fc2", (120, 84)), ("fc3", (84, 10))):
            parameters[name] = {"kernel": draw(*sizes), "bias": np.zeros(sizes[1], np.float32)}
        return parameters, {}

    def apply(self, parameters: Tree, statistics: Tree, images: Any, training: bool) -> tuple[Any, Tree]:
        import jax.numpy as jnp

        def pool(x: Any) -> Any:
            count, height, width, channels = x.shape
            return x.reshape(count, height // 2, 2, width // 2, 2, channels).mean((2, 4))

        x = jnp.transpose(images, (0, 2, 3, 1))
        x = pool(jnp.tanh(_conv(x, parameters["conv1"]["kernel"], padding=2) + parameters["conv1"]["bias"]))
        x = pool(jnp.tanh(_conv(x, parameters["conv2"]["kernel"]) + parameters["conv2"]["bias"]))
        x = x.reshape(x.shape[0], -1)
        for name in ("fc1", "fc2", "fc3"):
            x = x @ parameters[name]["kernel"] + parameters[name]["bias"]
            x = x if name == "fc3" else jnp.tanh(x)
        return x, statistics


class _ResNet18:
    """The ResNet-18 for 32 x 32 images, with batch normalization."""

    def init(self, seed: int) -> tuple[Tree, Tree]:
        draw = _draw(seed)
        parameters: dict[str, Any] = {}
        statistics: dict[str, Any] = {}

        def conv_bn(name: str, size: int, into: int, out: int) -> None:
            parameters[name] = {
                "kernel": draw(size, size, into, out),
                "scale": np.ones(out, np.float32),
                "bias": np.zeros(out, np.float32),
            }
            statistics[name] = {"mean": np.zeros(out, np.float32), "variance": np.ones(out, np.float32)}

        conv_bn("first", 3, 3, 64)
        into = 64
        for stage, out in enumerate((64, 128, 256, 512)):
            for block in range(2):
                conv_bn(f"{stage}.{block}.1", 3, into, out)
                conv_bn(f"{stage}.{block}.2", 3, out, out)
                if into != out:
                    conv_bn(f"{stage}.{block}.shortcut", 1, into, out)
                into = out
        parameters["fc"] = {"kernel": draw(512, 10), "bias": np.zeros(10, np.float32)}
        return parameters, statistics

    def apply(self, parameters: Tree, statistics: Tree, images: Any, training: bool) -> tuple[Any, Tree]:
        import jax
        import jax.numpy as jnp
        from jax import lax

        new = {}

        def conv_bn(x: Any, name: str, stride: int = 1, padding: int = 1) -> Any:
            own, old = parameters[name], statistics[name]
            x = _conv(x, own["kernel"], stride, padding)
            if training:
                mean, variance = jnp.mean(x, (0, 1, 2)), jnp.var(x, (0, 1, 2))
                new[name] = {
                    "mean": 0.9 * old["mean"] + 0.1 * mean,
                    "variance": 0.9 * old["variance"] + 0.1 * variance,
                }
            else:
                mean, variance = old["mean"], old["variance"]
            return (x - mean) * (own["scale"] * lax.rsqrt(variance + 1e-5)) + own["bias"]

        x = jax.nn.relu(conv_bn(jnp.transpose(images, (0, 2, 3, 1)), "first"))
        for stage in range(4):
            for block in range(2):
                name, stride = f"{stage}.{block}", 2 if stage and block == 0 else 1
                y = conv_bn(jax.nn.relu(conv_bn(x, f"{name}.1", stride)), f"{name}.2")
                shortcut = f"{name}.shortcut"
                x = conv_bn(x, shortcut, stride, 0) if shortcut in parameters else x
                x = jax.nn.relu(y + x)
        return jnp.mean(x, (1, 2)) @ parameters["fc"]["kernel"] + parameters["fc"]["bias"], new


class _Transformer:
    """Two pre-norm blocks of width 128 with four heads over 32 tokens, as in `d5.networks.transformer`."""

    width, heads, length = 128, 4, 32

    def init(self, seed: int) -> tuple[Tree, Tree]:
        draw, width = _draw(seed), self.width

        def dense(into: int, out: int) -> Tree:
            return {"kernel": draw(into, out), "bias": np.zeros(out, np.float32)}

        def norm() -> Tree:
            return {"scale": np.ones(width, np.float32), "bias": np.zeros(width, np.float32)}

        parameters: Tree = {"words": draw(1000, width), "places": draw(self.length, width)}
        for block in range(2):
            parameters[f"block{block}"] = {
                "norm1": norm(),
                "qkv": dense(width, 3 * width),
                "out": dense(width, width),
                "norm2": norm(),
                "into": dense(width, 4 * width),
                "back": dense(4 * width, width),
            }
        return {**parameters, "norm": norm(), "head": dense(width, 10)}, {}

    def apply(self, parameters: Tree, statistics: Tree, tokens: Any, training: bool) -> tuple[Any, Tree]:
        import jax
        import jax.numpy as jnp

        def norm(x: Any, p: Tree) -> Any:
            mean = x.mean(-1, keepdims=True)
            variance = jnp.square(x - mean).mean(-1, keepdims=True)
            return (x - mean) * jax.lax.rsqrt(variance + 1e-5) * p["scale"] + p["bias"]

        def dense(x: Any, p: Tree) -> Any:
            # One matrix product: XLA takes longer for several axes of rows.
            y = x.reshape(-1, x.shape[-1]) @ p["kernel"]
            return y.reshape(*x.shape[:-1], y.shape[1]) + p["bias"]

        def split(x: Any) -> Any:
            return x.reshape(-1, self.length, self.heads, self.width // self.heads).transpose(0, 2, 1, 3)

        x = parameters["words"][tokens] + parameters["places"]
        for block in range(2):
            p = parameters[f"block{block}"]
            q, k, v = (split(part) for part in jnp.split(dense(norm(x, p["norm1"]), p["qkv"]), 3, axis=-1))
            weights = jax.nn.softmax(q @ k.swapaxes(-1, -2) * (self.width // self.heads) ** -0.5)
            y = (weights @ v).transpose(0, 2, 1, 3).reshape(-1, self.length, self.width)
            x = x + dense(y, p["out"])
            x = x + dense(jax.nn.gelu(dense(norm(x, p["norm2"]), p["into"]), approximate=False), p["back"])
        return dense(norm(x, parameters["norm"]).mean(1), parameters["head"]), statistics


_NETWORKS: dict[str, Any] = {"lenet": _LeNet, "resnet18_small": _ResNet18, "transformer": _Transformer}


def _adam(parameters: Tree, state: Tree, gradients: Tree) -> tuple[Tree, Tree]:
    import jax
    import jax.numpy as jnp

    count = state["count"] + 1
    first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state["first"], gradients)
    second = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, state["second"], gradients)
    rate = 0.001 / (1 - 0.9**count)
    root = jnp.sqrt(1 - 0.999**count)
    parameters = jax.tree.map(lambda p, m, v: p - rate * m / (jnp.sqrt(v) / root + 1e-8), parameters, first, second)
    return parameters, {"count": count, "first": first, "second": second}


def _prepared(
    network: Callable[..., d5.Network],
    network_kwargs: Mapping[str, Any] | None,
    batch_size: int,
    threads: int,
    seed: int,
) -> tuple[Any, list[tuple[Any, Any]], Tree, Tree]:
    import jax

    d5.framework("jax").set_threads(threads)
    feeds = [
        (batch["input"], batch["label"].astype(np.int32))
        for batch in batches(network(**(network_kwargs or {}), seed=seed), batch_size, seed)
    ]
    model = _NETWORKS[network.__name__]()
    return model, feeds, *jax.device_put(model.init(seed))


def _optimizer(rule: str | None, variant: str) -> Any:
    """Optax's optimizer for deep5's name, or None."""
    if rule is None:
        return None
    import jax
    import optax

    twin = twin_of("jax", rule)
    if variant != "groups":
        return twin.native(optax, twin.hyper)
    if rule != "adamw":
        raise UsageError(f"groups with {rule!r:.60} of Optax; allowed: 'adamw', which takes a mask")
    named = {"b1": twin.hyper["beta1"], "b2": twin.hyper["beta2"], "eps": twin.hyper["epsilon"]}
    return optax.adamw(
        twin.hyper["lr"],
        **named,
        weight_decay=DECAY,
        mask=lambda tree: jax.tree.map(lambda value: value.ndim > 1, tree),
    )


def training_step(
    *,
    steps: int,
    seed: int,
    threads: int,
    network: Callable[..., d5.Network],
    batch_size: int,
    network_kwargs: Mapping[str, Any] | None = None,
    rule: str | None = None,
    variant: str = "plain",
) -> Work:
    """Whole training steps with Adam in one compiled function, its state donated; a call returns loss and logits.

    Args:
        steps: Steps per call.
        seed: Seed of weights and batches.
        threads: Threads of JAX.
        network: The network of `deep5.networks` to match, at its default sizes.
        batch_size: Samples per batch.
        network_kwargs: Arguments of `network`.
        rule: deep5's name of another optimizer of Optax.
        variant: As in `rules.step`: biases without weight decay, or gradients plus a multiple of their parameters.
    """
    import jax
    import jax.numpy as jnp

    model, feeds, parameters, statistics = _prepared(network, network_kwargs, batch_size, threads, seed)

    def loss_of(parameters: Tree, statistics: Tree, images: Any, labels: Any) -> Any:
        logits, new = model.apply(parameters, statistics, images, True)
        return _cross_entropy(logits, labels), (logits, new)

    @partial(jax.jit, donate_argnums=(0, 1, 2))
    def step(parameters: Tree, statistics: Tree, state: Tree, images: Any, labels: Any) -> Any:
        grads_of = jax.value_and_grad(loss_of, has_aux=True)
        (loss, (logits, statistics)), gradients = grads_of(parameters, statistics, images, labels)
        if variant == "modifier":
            gradients = jax.tree.map(lambda gradient, value: gradient + PENALTY * value, gradients, parameters)
        if optimizer is None:
            parameters, state = _adam(parameters, state, gradients)
        else:
            changes, state = optimizer.update(gradients, state, parameters)
            parameters = jax.tree.map(lambda value, change: value + change, parameters, changes)
        return parameters, statistics, state, loss, logits

    optimizer, state = _optimizer(rule, variant), {}
    if optimizer is None:
        state = {name: jax.tree.map(jnp.zeros_like, parameters) for name in ("first", "second")}
        state["count"] = jnp.zeros((), jnp.int32)
    else:
        state = optimizer.init(parameters)
    values = [parameters, statistics, state]

    def work() -> tuple[Any, Any]:
        parameters, statistics, state = values
        for index in range(steps):
            images, labels = feeds[index % len(feeds)]
            parameters, statistics, state, loss, logits = step(parameters, statistics, state, images, labels)
        jax.block_until_ready((parameters, loss))
        values[:] = parameters, statistics, state
        return loss, logits

    return work


def inference(
    *,
    steps: int,
    seed: int,
    threads: int,
    network: Callable[..., d5.Network],
    batch_size: int,
    network_kwargs: Mapping[str, Any] | None = None,
) -> Work:
    """Loss and logits in evaluation mode, compiled; a call returns the last."""
    import jax

    model, feeds, parameters, statistics = _prepared(network, network_kwargs, batch_size, threads, seed)

    @jax.jit  # type: ignore[untyped-decorator]  # jax is not type-checked
    def evaluate(parameters: Tree, statistics: Tree, images: Any, labels: Any) -> Any:
        logits, _ = model.apply(parameters, statistics, images, False)
        return _cross_entropy(logits, labels), logits

    def work() -> Any:
        for index in range(steps):
            results = evaluate(parameters, statistics, *feeds[index % len(feeds)])
        return jax.block_until_ready(results)

    return work


def training_run(*, steps: int, seed: int, threads: int, batch_size: int) -> Work:
    """An epoch of LeNet on the digits: one `jax.jit` per step, Optax's Adam and cosine schedule, an evaluation.

    NumPy gathers the batches, which takes no longer than indexing inside the step. Arguments and results are those of
    `by_deep5.training_run`.
    """
    d5.framework("jax").set_threads(threads)
    import jax
    import jax.numpy as jnp
    import optax

    model = _LeNet()
    parameters, statistics = jax.device_put(model.init(seed))
    (images, labels), (judged, truth) = (
        (part["input"], part["label"].astype(np.int32)) for part in labelled_digits(steps, batch_size)
    )
    optimizer = optax.adam(optax.cosine_decay_schedule(RATE, HORIZON))

    def loss_of(parameters: Tree, x: Any, y: Any) -> Any:
        logits, _ = model.apply(parameters, statistics, x, True)
        return _cross_entropy(logits, y)

    @partial(jax.jit, donate_argnums=(0, 1))
    def step(parameters: Tree, state: Tree, x: Any, y: Any) -> Any:
        loss, gradients = jax.value_and_grad(loss_of)(parameters, x, y)
        changes, state = optimizer.update(gradients, state, parameters)
        return optax.apply_updates(parameters, changes), state, loss

    @jax.jit  # type: ignore[untyped-decorator]  # jax is not type-checked
    def evaluate(parameters: Tree, x: Any, y: Any) -> Any:
        logits, _ = model.apply(parameters, statistics, x, False)
        return jnp.sum(jnp.argmax(logits, 1) == y), _cross_entropy(logits, y)

    values = [parameters, optimizer.init(parameters)]
    draw = np.random.default_rng(seed)

    def work() -> tuple[float, float]:
        parameters, state = values
        order = draw.permutation(len(labels))
        for first in range(0, len(order), batch_size):
            indices = order[first : first + batch_size]
            parameters, state, _ = step(parameters, state, images[indices], labels[indices])
        right = total = 0.0
        for first in range(0, len(truth), JUDGED):
            y = truth[first : first + JUDGED]
            hits, loss = evaluate(parameters, judged[first : first + JUDGED], y)
            right, total = right + float(hits), total + float(loss) * len(y)
        values[:] = parameters, state
        return 100.0 * right / len(truth), total / len(truth)

    return work
