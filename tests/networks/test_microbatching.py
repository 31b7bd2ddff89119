"""Micro-batches: plans are optimal, and the divided network is the same function."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import deep5 as d5
from deep5.core.errors import NetworkError, UsageError
from deep5.networks import NetworkBuilder, alexnet, he_normal, zeros
from deep5.networks.microbatching.plan import Cost, Division, divide, divisions, share
from deep5.networks.microbatching.transform import micro_batched
from deep5.networks.transforms.convolution_algorithms import CONVOLUTIONS, convolutions_by
from deep5.networks.transforms.equivalence import check_transformation


def costs_of(seed: int, batch: int) -> dict[int, Cost]:
    draw = np.random.default_rng(seed)
    return {
        size: Cost(seconds=float(draw.uniform(0.5, 1.5) * size**0.8), workspace_bytes=int(draw.integers(1, 100) * size))
        for size in range(1, batch + 1)
        if size == batch or draw.random() < 0.7
    }


def compositions(total: int, sizes: list[int]) -> Iterator[tuple[int, ...]]:
    if total == 0:
        yield ()
    for size in sizes:
        if size <= total:
            for rest in compositions(total - size, [other for other in sizes if other <= size]):
                yield (size, *rest)


@pytest.mark.parametrize("sizes", ["undivided", "powers", "any"])
@pytest.mark.parametrize("seed", range(8))
def test_no_other_division_is_faster(seed: int, sizes: str) -> None:
    costs = costs_of(seed, 8)
    allowed = [
        size for size in costs if sizes == "any" or (size == 8 if sizes == "undivided" else size in (1, 2, 4, 8))
    ]
    for limit in (None, *sorted({cost.workspace_bytes for cost in costs.values()})):
        every = [
            parts
            for parts in compositions(8, sorted(allowed, reverse=True))
            if limit is None or all(costs[size].workspace_bytes <= limit for size in parts)
        ]
        if not every:
            with pytest.raises(UsageError, match="cannot be divided"):
                divide(costs, 8, limit, sizes)
            continue
        found = divide(costs, 8, limit, sizes)
        assert sum(found.parts) == 8
        assert found.seconds == pytest.approx(min(sum(costs[size].seconds for size in parts) for parts in every))
        assert found.workspace_bytes == max(costs[size].workspace_bytes for size in found.parts)


def test_the_least_limit_that_can_be_met_is_told() -> None:
    costs = {1: Cost(seconds=1.0, workspace_bytes=30), 4: Cost(seconds=2.0, workspace_bytes=100)}
    with pytest.raises(UsageError, match="more than 20 bytes of workspace; allowed: at least 30"):
        divide(costs, 4, 20)
    assert divide(costs, 4, 30).parts == (1, 1, 1, 1)
    with pytest.raises(UsageError, match="into sizes \\[4\\]; remedy: measure more sizes"):
        divide({4: costs[4]}, 6)
    with pytest.raises(UsageError, match="unknown sizes 'all'; allowed: undivided, powers, any"):
        divide(costs, 4, sizes="all")


@pytest.mark.parametrize("seed", range(6))
def test_the_choice_for_all_layers_is_the_best(seed: int) -> None:
    layers = {f"layer{index}": divisions(costs_of(10 * seed + index, 6), 6) for index in range(4)}
    for choices in layers.values():
        assert all(
            a.workspace_bytes < b.workspace_bytes and a.seconds > b.seconds for a, b in itertools.pairwise(choices)
        )
    least = sum(choices[0].workspace_bytes for choices in layers.values())
    most = sum(choices[-1].workspace_bytes for choices in layers.values())
    for limit in np.linspace(least, most, 7).astype(int):
        best = min(
            sum(each.seconds for each in picked)
            for picked in itertools.product(*layers.values())
            if sum(each.workspace_bytes for each in picked) <= limit
        )
        found = share(layers, int(limit))
        assert list(found) == list(layers)
        assert sum(each.workspace_bytes for each in found.values()) <= limit
        assert sum(each.seconds for each in found.values()) == pytest.approx(best, rel=1e-9)
    with pytest.raises(UsageError, match=f"the limit of {least - 1} bytes for all 4 layers cannot be met; .*{least}"):
        share(layers, least - 1)


def test_choices_of_very_different_sizes() -> None:
    """A limit of gigabytes and layers of a few bytes: the solver's tolerance does not hide a byte too many."""
    big = [
        Division(parts=(2,), seconds=1.0, workspace_bytes=1 << 32),
        Division(parts=(1, 1), seconds=2.0, workspace_bytes=1 << 31),
    ]
    small = [
        Division(parts=(1, 1), seconds=0.5, workspace_bytes=1),
        Division(parts=(2,), seconds=1e-3, workspace_bytes=1 << 20),
    ]
    found = share({"big": big, "small": small}, (1 << 32) + (1 << 20) - 1)
    assert sum(each.workspace_bytes for each in found.values()) <= (1 << 32) + (1 << 20) - 1
    # The fastest of all that respect the limit.
    assert sum(each.seconds for each in found.values()) == 1.5


def network(dtype: str = "float64") -> d5.Network:
    build = NetworkBuilder("convolved", dtype=dtype, seed=0)
    x, label = build.input("input", ("N", 3, 8, 8)), build.input("label", ("N",), "int64")
    for index, (into, out) in enumerate(((3, 4), (4, 5))):
        weight = build.parameter(f"w{index}", (out, into, 3, 3), he_normal)
        bias = build.parameter(f"b{index}", (out,), zeros)
        x = build.op("Relu", build.op("Conv", x, weight, bias, kernel_shape=[3, 3], pads=[1] * 4))
    x = build.op("Flatten", build.op("GlobalAveragePool", x), axis=1)
    return build.network({"logits": x, "loss": build.op("SoftmaxCrossEntropyLoss", x, label)})


@pytest.mark.parametrize("framework", ["reference", "pytorch", "jax", "tensorflow"])
def test_outputs_and_gradients_are_the_same(framework: str) -> None:
    pytest.importorskip({"pytorch": "torch", "reference": "numpy"}.get(framework, framework))
    plain = network()
    divided = micro_batched(plain, {"Conv_1": [3, 2, 1], "Conv_2": [4, 2]})
    assert sum(node.op_type == "Conv" for node in divided.nodes) == 5
    assert divided.parameter_specs == plain.parameter_specs
    assert divided.inputs["input"].shape == (6, 3, 8, 8)
    draw = np.random.default_rng(0)
    feed = {"input": draw.standard_normal((6, 3, 8, 8)), "label": draw.integers(0, 5, 6)}
    results = []
    for each in (plain, divided):
        executor = d5.framework(framework).executor(each)
        outputs = executor.inference_and_backprop(feed)
        found = {**outputs, **executor.gradients()}
        results.append({name: np.array(d5.to_numpy(value)) for name, value in found.items()})
    for name, value in results[0].items():
        # Sums over the batch in float64, in another order.
        np.testing.assert_allclose(results[1][name], value, rtol=1e-11, atol=1e-13, err_msg=name)


def test_one_part_is_left_whole() -> None:
    made = alexnet(width=4, image=63)
    divided = micro_batched(made, {"Conv_1": [4], "Conv_2": [2, 2]})
    assert sum(node.op_type == "Conv" for node in divided.nodes) == 6
    assert "Conv_1" in {node.name for node in divided.nodes}


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ({"Conv_1": [3, 2], "Conv_2": [3]}, "got parts of [3, 5] samples in all; allowed: one sum for all nodes"),
        ({}, "got {} as the plan; allowed: by each node's name, the sizes of its parts; remedy: {'Conv_1': [16, 16]}"),
        (["Conv_1"], "got ['Conv_1'] as the plan; allowed: by each node's name, the sizes of its parts; remedy: {"),
        (None, "got None as the plan; allowed: by each node's name"),
        ({"Conv_9": [3, 2]}, "no node 'Conv_9' in the network; allowed: Conv_1, Relu_1"),
        ({3: [3, 2]}, "no node 3 in the network; allowed: Conv_1, Relu_1"),
        ({"SoftmaxCrossEntropyLoss_1": [3, 2]}, "is not known to compute each sample by itself; allowed: AveragePool"),
        ({"Conv_1": [3, 0]}, "got a part of 0 for 'Conv_1'; allowed: an integer of at least 1"),
        ({"Conv_1": [1.5, 2.5]}, "got a part of 1.5 for 'Conv_1'; allowed: an integer of at least 1"),
        ({"Conv_1": "32"}, "got '32' for 'Conv_1'; allowed: a list of sizes"),
    ],
)
def test_refusals(plan: Any, message: str) -> None:
    with pytest.raises(NetworkError, match=re.escape(message)):
        micro_batched(network(), plan)


def test_no_network_and_no_list_of_operators() -> None:
    with pytest.raises(UsageError, match="micro_batched: got 'lenet' as the network; allowed: a Network"):
        micro_batched("lenet", {"Conv_1": [1]})  # type: ignore[arg-type]
    for own in ("deep5.ConvFFT", 3, [3]):
        with pytest.raises(
            NetworkError, match=re.escape(f"got own={own!r}; allowed: a list of operators; remedy: own=")
        ):
            micro_batched(network(), {"Conv_1": [2, 1]}, own=own)  # type: ignore[arg-type]


@pytest.mark.parametrize("algorithm", CONVOLUTIONS)
def test_deep5s_convolutions_are_known_to_compute_each_sample_by_itself(algorithm: str) -> None:
    plain = convolutions_by(network(), algorithm)
    made = check_transformation(lambda given: micro_batched(given, {"Conv_1": [2, 1], "Conv_2": [1, 2]}), plain)
    assert [node.op_type for node in made.nodes].count(CONVOLUTIONS[algorithm][0]) == 4


@d5.register_operator("Halved", domain="microbatching_test")
class Halved(d5.CppOperator):
    """A user's operator that computes each sample separately."""

    source = """
    template <typename T>
    struct Halved : deep5::Operator {
      void forward(deep5::Tensor<const T> x, deep5::Tensor<T> y) {
        for (int64_t i = 0; i < y.size(); ++i) y[i] = x[i] / 2;
      }
      void backward(deep5::Tensor<const T> dy, deep5::Tensor<const T> x, deep5::Tensor<const T> y,
                    deep5::Tensor<T> dx) {
        for (int64_t i = 0; i < dx.size(); ++i) dx[i] = dy[i] / 2;
      }
    };"""

    def specs(self, *inputs: d5.TensorSpec) -> tuple[d5.TensorSpec, ...]:
        return (inputs[0],)


def test_a_users_operator_has_to_be_named() -> None:
    made = network().replace_node("Relu_1", "Halved", domain="microbatching_test")
    with pytest.raises(NetworkError, match=r"own=; remedy: own=\['microbatching_test.Halved'\], if it does"):
        micro_batched(made, {"Relu_1": [2, 1]})
    check_transformation(
        lambda given: micro_batched(given, {"Relu_1": [2, 1]}, own=["microbatching_test.Halved"]), made
    )
