"""`plan_microbatches`: measured divisions of a network's layers under a limit for their workspace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx_ir as ir

from deep5.core import quantities
from deep5.core.arguments import is_whole
from deep5.core.errors import NetworkError, UsageError, brief
from deep5.core.framework import Framework
from deep5.measuring.samples import Interval
from deep5.networks.arguments import check_network, check_seed, framework_of
from deep5.networks.edit.edited import is_list
from deep5.networks.microbatching.apply import MicrobatchPlan, PlannedLayer, in_parts
from deep5.networks.microbatching.costs import MeasuredLayer
from deep5.networks.microbatching.plan import SIZES, Cost, Division, divide, divisions, share
from deep5.networks.network import Network

__all__ = ["plan_microbatches"]

_CONVOLUTIONS = ("Conv", "ConvDirect", "ConvFFT", "ConvIm2Col", "ConvWinograd")


def plan_microbatches(
    network: Network,
    batch: int,
    limit_bytes: int | None = None,
    *,
    framework: str | Framework = "pytorch",
    nodes: Sequence[str] | None = None,
    shared: bool = False,
    sizes: str | Sequence[int] = "powers",
    rounds: int = 5,
    seed: int = 0,
) -> MicrobatchPlan:
    """Measure layers for micro-batches of several sizes and choose the fastest divisions under a limit.

    Each layer is planned by dynamic programming, or all by an integer program if they share the limit. If the undivided
    layer fits the limit, it is divided only if the parts are proved to be faster: in paired rounds, as nodes of one
    network, with the interval of the ratio of both times below 1. Equal layers are measured once.

    Args:
        network: The network; it is not changed.
        batch: Samples of the minibatch.
        limit_bytes: Limit on the workspace; None: no limit.
        framework: The framework that runs it, with its current threads.
        nodes: Names of the layers; None: all convolutions.
        shared: Whether the limit is for the workspaces of all layers together, as when each layer keeps its workspace.
        sizes: Micro-batch sizes: one of `SIZES`, where `"any"` measures every size, or a list of sizes. The undivided
            batch is always included.
        rounds: Samples of a time; there are 2 * rounds + 1 paired rounds.
        seed: Seed of values and of the order of rounds.

    Raises:
        UsageError: A limit that cannot be met, with the smallest possible one; the argument is not a network; or
            another invalid argument.
        NetworkError: An unknown node, no convolution, or unknown dimensions.
        Unsupported: The framework does not run a layer, or its workspace cannot be measured.

    References:
        Oyama, Ben-Nun, Hoefler and Matsuoka, Accelerating deep learning frameworks with micro-batches, CLUSTER 2018.

    >>> import deep5 as d5
    >>> build = d5.NetworkBuilder("filter")
    >>> x, weight = build.input("x", ("N", 8, 32, 32)), build.parameter("weight", (8, 8, 3, 3))
    >>> network = build.network({"y": build.op("Conv", x, weight)})
    >>> plan = d5.networks.plan_microbatches(network, 16, 4 << 20, framework="reference", sizes=[4], rounds=3)
    >>> plan.layers["Conv_1"].division.parts, plan.layers["Conv_1"].reason
    ((4, 4, 4, 4), 'undivided exceeds the limit')
    """
    check_network(network, "plan_microbatches")
    check_seed(seed, "plan_microbatches")
    candidates = _candidates(batch, sizes)
    if limit_bytes is not None and (not is_whole(limit_bytes) or limit_bytes < 0):
        raise UsageError(
            f"plan_microbatches: got limit_bytes={brief(limit_bytes)}; allowed: None, or an integer of at least 0; "
            "remedy: limit_bytes=64 << 20 for 64 MiB"
        )
    if not is_whole(rounds) or rounds < 3:
        raise UsageError(f"plan_microbatches: got rounds={brief(rounds)}; allowed: an integer of at least 3")
    found = framework_of(framework, "plan_microbatches")
    measured: dict[Any, tuple[MeasuredLayer, dict[int, Cost]]] = {}
    layers: dict[str, tuple[MeasuredLayer, dict[int, Cost]]] = {}
    for name in _chosen(network, nodes):
        key = _alike(network, name)
        if key not in measured:
            layer = MeasuredLayer(network, name, found, seed)
            measured[key] = layer, layer.costs(candidates, rounds)
        layers[name] = measured[key]
    costs = {name: own for name, (_, own) in layers.items()}
    chosen = _divided(costs, batch, limit_bytes, shared=shared)
    made = {name: layer for name, (layer, _) in layers.items()}
    planned = _kept(made, costs, chosen, batch, limit_bytes, 2 * rounds + 1, shared=shared)
    threads = next(iter(layers.values()))[0].threads
    return MicrobatchPlan(
        batch=batch, limit_bytes=limit_bytes, shared=shared, framework=found.name, threads=threads, layers=planned
    )


def _divided(
    costs: Mapping[str, Mapping[int, Cost]], batch: int, limit_bytes: int | None, *, shared: bool
) -> dict[str, Division]:
    """The fastest divisions according to the times measured part by part."""
    if limit_bytes is None:
        return {name: divide(own, batch) for name, own in costs.items()}
    fronts = {name: divisions(own, batch) for name, own in costs.items()}
    if shared:
        return share(fronts, limit_bytes)
    least, worst = max((front[0].workspace_bytes, name) for name, front in fronts.items())
    if least > limit_bytes:
        raise UsageError(
            f"the limit of {limit_bytes} bytes of workspace for each of {len(costs)} layers cannot be met; allowed: at "
            f"least {least}, which {worst!r} takes in parts of {in_parts(fronts[worst][0].parts)}"
        )
    return {name: divide(own, batch, limit_bytes) for name, own in costs.items()}


def _kept(
    layers: Mapping[str, MeasuredLayer],
    costs: Mapping[str, Mapping[int, Cost]],
    chosen: Mapping[str, Division],
    batch: int,
    limit_bytes: int | None,
    rounds: int,
    *,
    shared: bool,
) -> dict[str, PlannedLayer]:
    """The divisions to keep: required by the limit, or proved to be faster than the undivided layer."""
    left = {name: division.workspace_bytes for name, division in chosen.items()}
    ratios: dict[tuple[MeasuredLayer, tuple[int, ...]], Interval] = {}
    planned = {}
    for name, division in chosen.items():
        whole = costs[name][batch]
        undivided = Division(parts=(batch,), seconds=whole.seconds, workspace_bytes=whole.workspace_bytes)
        others = sum(left.values()) - left[name] if shared else 0
        ratio, reason, taken = None, "undivided is fastest", division
        if len(division.parts) > 1:
            if limit_bytes is not None and others + whole.workspace_bytes > limit_bytes:
                reason = "undivided exceeds the limit"
            else:
                key = layers[name], division.parts
                ratio = ratios[key] = ratios.get(key) or layers[name].ratio(division.parts, rounds)
                ends = " to ".join(quantities.ratio(end, decimals=2) for end in (ratio.low, ratio.high))
                shown = f"{in_parts(division.parts)} takes {ends} of the time undivided"
                reason = f"faster: {shown}" if ratio.high < 1 else f"not shown to be faster: {shown}"
                taken = division if ratio.high < 1 else undivided
        left[name] = taken.workspace_bytes
        planned[name] = PlannedLayer(division=taken, costs=costs[name], reason=reason, ratio=ratio)
    return planned


def _candidates(batch: int, sizes: str | Sequence[int]) -> list[int]:
    if not is_whole(batch) or batch < 1:
        raise UsageError(f"plan_microbatches: got a batch of {brief(batch)}; allowed: an integer of at least 1")
    if isinstance(sizes, str):
        if sizes not in SIZES:
            raise UsageError(f"unknown sizes {sizes!r}; allowed: {', '.join(SIZES)}, or a list of sizes")
        every = range(1, batch) if sizes != "undivided" else ()
        return [*(size for size in every if sizes == "any" or size & (size - 1) == 0), batch]
    if not is_list(sizes) or not sizes or not all(is_whole(size) and 1 <= size <= batch for size in sizes):
        raise UsageError(
            f"plan_microbatches: got sizes={brief(sizes)}; allowed: integers from 1 to {batch}, at least one, or "
            f"one of {', '.join(SIZES)}"
        )
    return sorted({*map(int, sizes), batch})


def _chosen(network: Network, nodes: Sequence[str] | None) -> list[str]:
    if nodes is None:
        found = [str(node.name) for node in network.nodes if node.op_type in _CONVOLUTIONS]
        if not found:
            raise NetworkError("plan_microbatches: the network has no convolution; remedy: nodes=[…]")
        return found
    if not is_list(nodes) or not nodes or not all(isinstance(name, str) for name in nodes):
        raise UsageError(f"plan_microbatches: got nodes={brief(nodes)}; allowed: a list of names")
    return list(dict.fromkeys(nodes))


def _alike(network: Network, name: str) -> Any:
    """The key of a layer's cost: operator, attributes, dimensions of its inputs, and which inputs need a gradient."""
    node = next((node for node in network.nodes if node.name == name), None)
    if node is None:
        return name
    attributes = tuple(sorted((key, str(each.value)) for key, each in node.attributes.items()))
    inputs = tuple(_described(network, value) for value in node.inputs)
    return node.domain, node.op_type, attributes, inputs


def _described(network: Network, value: ir.Value | None) -> Any:
    if value is None:
        return None
    return str(value.shape), str(value.dtype), value.producer() is None, value.name in network.trained_specs
