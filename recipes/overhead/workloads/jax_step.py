"""The hand-written training step on JAX: one compiled function with an optimizer of Optax, its state donated."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import deep5 as d5
from deep5.recipes.overhead.workloads.workload import Workload, workload, written_for

__all__ = ["optimizer", "prepared", "training_step"]

Work = Callable[[], object]
Tree = Any


def prepared(own: Workload, recipe: str) -> tuple[Any, Tree, list[dict[str, Any]]]:
    """The hand-written model, the network's initial weights in its layouts, and the batches.

    Args:
        own: The workload.
        recipe: Name of its recipe.
    """
    import jax

    model = written_for("jax", recipe)(**own.model_kwargs)
    values = model.values_of({name: own.network.initial(name) for name in own.network.parameter_specs})
    feeds = [{name: _narrow(batch[name]) for name in model.inputs} for batch in own.feeds]
    return model, jax.device_put({name: np.ascontiguousarray(value) for name, value in values.items()}), feeds


def _narrow(array: np.ndarray) -> np.ndarray:
    """JAX's integers have 32 bits, unless it is set otherwise."""
    return array.astype(np.int32) if array.dtype == np.int64 else array


def optimizer(rule: d5.UpdateRule) -> Any:
    """Optax's optimizer with the constants of an update rule: Adam, or Adam with decoupled decay."""
    import optax

    given = {"b1": rule.beta1, "b2": rule.beta2, "eps": rule.epsilon}  # type: ignore[attr-defined]
    if isinstance(rule, d5.AdamW):
        return optax.adamw(rule.lr, weight_decay=rule.weight_decay, **given)
    return optax.adam(rule.lr, **given)  # type: ignore[attr-defined]


def step_of(model: Any, rule: d5.UpdateRule) -> tuple[Callable[..., Any], Callable[[Tree, int], Tree]]:
    """The compiled step, and a function that makes its state from parameters and a seed.

    The state is parameters, running statistics, the optimizer's state and a random key; a step takes it with a batch,
    and returns it with the loss.
    """
    import jax
    import optax

    update = optimizer(rule)

    @partial(jax.jit, donate_argnums=0)
    def step(state: Tree, batch: Any) -> Any:
        parameters, statistics, moments, key = state
        key, own = jax.random.split(key)
        of_loss = jax.value_and_grad(model.loss, has_aux=True)
        (loss, statistics), gradients = of_loss(parameters, statistics, own, **batch)
        changes, moments = update.update(gradients, moments, parameters)
        return (optax.apply_updates(parameters, changes), statistics, moments, key), loss

    def initial(parameters: Tree, seed: int) -> Tree:
        statistics = jax.device_put(model.statistics(parameters))
        return parameters, statistics, update.init(parameters), jax.random.key(seed)

    return step, initial


def training_step(*, steps: int, seed: int, threads: int, recipe: str, size: str = "full") -> Work:
    """Whole training steps; a call returns the last loss. Arguments as in `workload.training_step`."""
    d5.framework("jax").set_threads(threads)
    import jax

    own = workload(recipe, size=size, seed=seed)
    model, parameters, feeds = prepared(own, recipe)
    step, initial = step_of(model, own.rule)
    kept = [initial(parameters, seed)]

    def work() -> Any:
        state = kept[0]
        for index in range(steps):
            state, loss = step(state, feeds[index % len(feeds)])
        kept[0] = jax.block_until_ready(state)
        return loss

    return work
