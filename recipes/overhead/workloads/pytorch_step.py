"""The hand-written training step on PyTorch: a module, its loss, and a fused optimizer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

import deep5 as d5
from deep5.recipes.overhead.workloads.workload import Workload, workload, written_for

__all__ = ["optimizer", "prepared", "training_step"]

Work = Callable[[], object]


def prepared(own: Workload, recipe: str) -> tuple[Any, Any, list[dict[str, Any]]]:
    """The hand-written module with the network's initial weights, its optimizer, and the batches as tensors.

    Args:
        own: The workload.
        recipe: Name of its recipe.
    """
    import torch

    specs = own.network.parameter_specs
    made = written_for("pytorch", recipe)(**own.model_kwargs)
    made = made.to(getattr(torch, next(iter(specs.values())).dtype))
    initial = {name: own.network.initial(name) for name in specs}
    parameters = dict(made.named_parameters())
    values = made.values_of(initial)
    if parameters.keys() != values.keys():
        raise d5.UsageError(f"the module of {recipe} has other parameters: {sorted(parameters.keys() ^ values.keys())}")
    with torch.no_grad():
        for name, value in values.items():
            parameters[name].copy_(torch.from_numpy(np.ascontiguousarray(value)))
    feeds = [{name: torch.from_numpy(value) for name, value in batch.items()} for batch in own.feeds]
    return made, optimizer(own.rule, made), feeds


def optimizer(rule: d5.UpdateRule, module: Any) -> Any:
    """PyTorch's fused optimizer with the constants of an update rule: Adam, or Adam with decoupled decay."""
    import torch

    given: Mapping[str, Any] = {"lr": rule.lr, "betas": (rule.beta1, rule.beta2), "eps": rule.epsilon, "fused": True}  # type: ignore[attr-defined]
    if isinstance(rule, d5.AdamW):
        return torch.optim.AdamW(module.parameters(), weight_decay=rule.weight_decay, **given)
    return torch.optim.Adam(module.parameters(), **given)


def training_step(*, steps: int, seed: int, threads: int, recipe: str, size: str = "full") -> Work:
    """Whole training steps; a call returns the last loss. Arguments as in `workload.training_step`."""
    import torch

    torch.set_num_threads(threads)
    torch.manual_seed(seed)
    model, update, feeds = prepared(workload(recipe, size=size, seed=seed), recipe)
    model.train()

    def work() -> Any:
        for index in range(steps):
            update.zero_grad()
            loss = model.loss(**feeds[index % len(feeds)])
            loss.backward()
            update.step()
        return loss

    return work
