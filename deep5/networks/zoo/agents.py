"""Networks of agents: scores of actions from an observation, with the losses of policy gradients and Q-learning."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from deep5.core.arguments import is_finite
from deep5.core.errors import UsageError, brief
from deep5.networks.zoo.parts import check_arguments, linear

if TYPE_CHECKING:
    from deep5.networks.edit.builder import NetworkBuilder
    from deep5.networks.network import Network

__all__ = ["policy_network", "q_network"]


def policy_network(
    *,
    features: int = 4,
    hidden: Sequence[int] = (64,),
    actions: int = 2,
    dtype: str = "float32",
    seed: int = 0,
) -> Network:
    """A multilayer perceptron that gives logits of actions, with the loss of REINFORCE.

    Args:
        features: Numbers of an observation.
        hidden: Units of each hidden layer, with tanh.
        actions: Number of actions.
        dtype: Element type of parameters, observations and targets.
        seed: Seed of the initial weights, as in `mlp`.

    Returns:
        Inputs `input` (N, features), `action` (N) int64 and `target` (N), the return or advantage of the step; outputs
        `action_logits` (N, actions) and the scalar `loss`, the mean of -target * log softmax(action_logits)[action].

    Raises:
        UsageError: An unknown dtype, or a size that is not an integer of at least 1.

    References:
        Williams, Simple statistical gradient-following algorithms for connectionist reinforcement learning, Machine
        Learning 8, 1992.

    >>> import deep5 as d5
    >>> network = d5.networks.policy_network()
    >>> {name: str(spec) for name, spec in network.inputs.items()}
    {'input': 'float32[N, 4]', 'action': 'int64[N]', 'target': 'float32[N]'}
    >>> {name: str(spec) for name, spec in network.outputs.items()}
    {'action_logits': 'float32[N, 2]', 'loss': 'float32[]'}
    """
    build, scores, action, target = _scores("policy_network", "Tanh", features, hidden, actions, dtype, seed)
    cost = build.op("SoftmaxCrossEntropyLoss", scores, action, reduction="none")
    loss = build.op("ReduceMean", build.op("Mul", cost, target), keepdims=0)
    return build.network({"action_logits": scores, "loss": loss})


def q_network(
    *,
    features: int = 4,
    hidden: Sequence[int] = (128, 128),
    actions: int = 2,
    activation: str = "Relu",
    scale: Sequence[float] | None = None,
    dtype: str = "float32",
    seed: int = 0,
) -> Network:
    """A multilayer perceptron that gives values of actions, with the loss of deep Q-learning.

    Args:
        features: Numbers of an observation.
        hidden: Units of each hidden layer.
        actions: Number of actions.
        activation: Of the hidden layers, "Relu" or "Tanh". The values that a network with tanh gives for observations
            unlike all that it has seen are bounded, and those of a network with ReLU are not.
        scale: A factor for each number of an observation, so that all vary alike; None: 1.
        dtype: Element type of parameters, observations and targets.
        seed: Seed of the initial weights, as in `mlp`.

    Returns:
        Inputs `input` (N, features), `action` (N) int64 and `target` (N), the desired value; outputs `action_values`
        (N, actions) and the scalar `loss`: the mean over the samples of d² / 2 where the difference d of value and
        target is at most 1, otherwise |d| - 1/2 (the Huber loss).

    Raises:
        UsageError: An unknown dtype or activation, a size that is not an integer of at least 1, or a scale that is not
            one finite number for each feature.

    References:
        Mnih et al., Human-level control through deep reinforcement learning, Nature 518, 2015, section Methods.

    >>> import deep5 as d5
    >>> network = d5.networks.q_network()
    >>> str(network.outputs["action_values"]), str(network.outputs["loss"])
    ('float32[N, 2]', 'float32[]')
    """
    import numpy as np

    if activation not in ("Relu", "Tanh"):
        raise UsageError(f"q_network with activation {brief(activation)}; allowed: 'Relu', 'Tanh'")
    build, scores, action, target = _scores("q_network", activation, features, hidden, actions, dtype, seed, scale)
    second = build.constant("axis", np.array([1]))
    chosen = build.op("GatherElements", scores, build.op("Unsqueeze", action, second), axis=1)
    difference = build.op("Abs", build.op("Sub", build.op("Squeeze", chosen, second), target))
    # With c = min(|d|, 1): c * (|d| - c / 2) is d² / 2 up to 1, and |d| - 1/2 beyond.
    clipped = build.op("Min", difference, build.scalar(1.0))
    cost = build.op("Mul", clipped, build.op("Sub", difference, build.op("Mul", clipped, build.scalar(0.5))))
    return build.network({"action_values": scores, "loss": build.op("ReduceMean", cost, keepdims=0)})


def _scores(
    name: str,
    activation: str,
    features: int,
    hidden: Sequence[int],
    actions: int,
    dtype: str,
    seed: int,
    scale: Sequence[float] | None = None,
) -> tuple[NetworkBuilder, Any, Any, Any]:
    """The layers, and the inputs `action` and `target`."""
    import numpy as np
    import onnx_ir as ir

    from deep5.networks.edit.builder import NetworkBuilder, he_normal

    units = {f"hidden {number}": size for number, size in enumerate(hidden)}
    check_arguments(dtype, "cross_entropy", features=features, actions=actions, **units)
    build = NetworkBuilder(name, dtype=dtype, seed=seed)
    x: Any = build.input("input", ("N", features))
    action, target = build.input("action", ("N",), "int64"), build.input("target", ("N",))
    if scale is not None:
        factors = ir.tensor(np.array(_checked_scale(name, scale, features), build.dtype))
        # A node, since an initial value of more than one number would be trained.
        x = build.op("Mul", x, build.op("Constant", value=factors))
    sizes = (features, *hidden)
    for number, (into, out) in enumerate(itertools.pairwise(sizes), start=1):
        x = build.op(activation, linear(build, x, f"fc{number}", (out, into), he_normal))
    return build, linear(build, x, f"fc{len(sizes)}", (actions, sizes[-1]), he_normal), action, target


def _checked_scale(name: str, scale: Sequence[float], features: int) -> list[float]:
    given = list(scale) if isinstance(scale, (list, tuple)) else []
    if len(given) != features or not all(is_finite(each) for each in given):
        raise UsageError(f"{name} with scale={brief(scale)}; allowed: a finite number for each of {features} features")
    return [float(each) for each in given]
