"""Plans of measured layers: they respect their limits, stay whole where parts are no faster, and train the same."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import deep5 as d5
from deep5.core.errors import NetworkError, Unsupported, UsageError
from deep5.measuring.samples import Interval
from deep5.measuring.timing import time_rounds
from deep5.networks import NetworkBuilder, alexnet, he_normal, mlp, resnet
from deep5.networks.microbatching import planner
from deep5.networks.microbatching.costs import MeasuredLayer
from deep5.networks.microbatching.memory import resident_workspaces
from deep5.networks.microbatching.plan import Cost
from deep5.networks.microbatching.planner import plan_microbatches
from deep5.networks.transforms.convolution_algorithms import convolutions_by
from deep5.networks.transforms.equivalence import check_transformation
from deep5.recipe.recipe import load_recipe
from deep5.recipes.microbatching import measured
from deep5.run.execute import execute


@pytest.fixture(params=["pytorch", "onnxruntime"])
def engine(request: pytest.FixtureRequest) -> Iterator[d5.Framework]:
    """A framework on one thread; the previous number is restored at the end."""
    pytest.importorskip({"pytorch": "torch"}.get(request.param, request.param))
    found = d5.framework(request.param)
    before = found.executor(mlp(features=2, hidden=2, classes=2)).settings()["threads"]
    found.set_threads(1)
    yield found
    found.set_threads(before)


class Known:
    """A layer with known costs: time from its constant and its samples, workspace from its samples."""

    measured: ClassVar[list[str]] = []
    start_s, sample_bytes, times = 1.0, 10, 2.0
    threads = 1

    def __init__(self, network: d5.Network, name: str, framework: Any, seed: int) -> None:
        self.name = name
        self.measured.append(name)

    def costs(self, sizes: Sequence[int], rounds: int) -> dict[int, Cost]:
        return {size: Cost(seconds=self.start_s + size, workspace_bytes=self.sample_bytes * size) for size in sizes}

    def ratio(self, parts: Sequence[int], rounds: int) -> Interval:
        return Interval(low=self.times - 0.1, high=self.times, confidence=0.95)


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> type[Known]:
    kind = type("Known", (Known,), {"measured": []})
    monkeypatch.setattr(planner, "MeasuredLayer", kind)
    return kind


def convolutions() -> d5.Network:
    """Three, of which the last two are equal."""
    build = NetworkBuilder("convolutions", seed=0)
    x, label = build.input("input", ("N", 3, 8, 8)), build.input("label", ("N",), "int64")
    for index, into in enumerate((3, 4, 4)):
        weight = build.parameter(f"w{index}", (4, into, 3, 3), he_normal)
        x = build.op("Tanh", build.op("Conv", x, weight, pads=[1] * 4))
    x = build.op("Flatten", build.op("GlobalAveragePool", x), axis=1)
    return build.network({"logits": x, "loss": build.op("SoftmaxCrossEntropyLoss", x, label)})


def test_a_limit_divides_as_little_as_it_must(known: type[Known]) -> None:
    plan = plan_microbatches(convolutions(), 12, 50)
    assert plan.parts == dict.fromkeys(["Conv_1", "Conv_2", "Conv_3"], (4, 4, 4))
    assert known.measured == ["Conv_1", "Conv_2"], "layers that are alike are measured once"
    assert (plan.workspace_bytes, plan.undivided_workspace_bytes) == (40, 120)
    assert (plan.seconds, plan.undivided_seconds) == (3 * 15, 3 * 13)
    assert not plan.whole
    assert sorted(plan.layers["Conv_1"].costs) == [1, 2, 4, 8, 12]
    assert plan_microbatches(convolutions(), 12, 50, sizes=[2, 5]).parts["Conv_1"] == (5, 5, 2)
    assert plan_microbatches(convolutions(), 12, 60, sizes="any").parts["Conv_1"] == (6, 6)


def test_a_shared_limit_is_for_the_sum(known: type[Known]) -> None:
    plan = plan_microbatches(convolutions(), 12, 330, shared=True)
    assert sorted(plan.parts.values()) == [(8, 4), (12,), (12,)]
    assert plan.workspace_bytes == 320
    assert plan.undivided_workspace_bytes == 360
    assert "limit for all layers together: 0.32 KiB" in str(plan)
    assert str(plan).endswith("sum 0.31 KiB  sum 0.35 KiB")
    with pytest.raises(UsageError, match="the limit of 29 bytes for all 3 layers cannot be met; allowed: at least 30"):
        plan_microbatches(convolutions(), 12, 29, shared=True)


def test_the_least_limit_that_can_be_met_is_told(known: type[Known]) -> None:
    message = (
        "the limit of 19 bytes of workspace for each of 3 layers cannot be met; allowed: at least 20, which 'Conv_3' "
        "takes in parts of 6 x 2"
    )
    with pytest.raises(UsageError, match=re.escape(message)):
        plan_microbatches(convolutions(), 12, 19, sizes=[2, 4])
    with pytest.raises(UsageError, match="allowed: at least 120, which 'Conv_3' takes in parts of 12"):
        plan_microbatches(convolutions(), 12, 119, sizes="undivided")


@pytest.mark.parametrize(("times", "parts"), [(0.9, (1,) * 4), (1.05, (4,))])
def test_parts_that_no_limit_asks_for_have_to_be_proved_faster(
    known: type[Known], times: float, parts: tuple[int, ...]
) -> None:
    """By single times four parts are faster; the total time of the parts is measured."""
    known.start_s, known.times = -0.5, times
    for limit in (None, 1000):
        plan = plan_microbatches(convolutions(), 4, limit)
        assert plan.parts["Conv_2"] == parts
        assert plan.whole == (parts == (4,))
        assert ("do not divide" in str(plan)) == plan.whole
        told = f"faster: 4 x 1 takes {times - 0.1:.2f} to {times:.2f} of the time undivided"
        assert plan.layers["Conv_1"].reason == (told if times < 1 else f"not shown to be {told}")
        assert plan.layers["Conv_1"].ratio == Interval(low=times - 0.1, high=times, confidence=0.95)


def test_the_table(known: type[Known]) -> None:
    known.sample_bytes = 1 << 20
    lines = str(plan_microbatches(convolutions(), 12, 8 << 20, nodes=["Conv_2"])).splitlines()
    assert lines == [
        "batch 12 on pytorch, 1 thread; limit for each layer: 8192.0 KiB",
        "layer   parts  time  undivided  workspace           undivided         why",
        "Conv_2  8 + 4  14 s  13 s       8192.0 KiB          12.0 MiB          undivided exceeds the limit",
        "in all         14 s  13 s       largest 8192.0 KiB  largest 12.0 MiB",
    ]


@pytest.mark.parametrize(
    ("sample_bytes", "limit_bytes", "limit", "undivided"),
    [
        (16_700, 200_000, "195.3 KiB", "195.7 KiB"),
        (16_668, 200_000, "195.31 KiB", "195.33 KiB"),
        (1_000, 11_999, "11.718 KiB", "11.719 KiB"),
        (10 << 20, (120 << 20) - 1, "119.999999 MiB", "120.000000 MiB"),
        # On both sides of where the unit changes.
        ((10 << 20) // 4, (10 << 20) - 1, "10239.999 KiB", "10.000 MiB"),
    ],
)
def test_what_is_not_the_limit_reads_otherwise(
    known: type[Known], sample_bytes: int, limit_bytes: int, limit: str, undivided: str
) -> None:
    known.sample_bytes = sample_bytes
    batch = 4 if sample_bytes == (10 << 20) // 4 else 12
    told = str(plan_microbatches(convolutions(), batch, limit_bytes))
    assert told.splitlines()[0].endswith(f"limit for each layer: {limit}")
    assert f"  {undivided}  " in told.splitlines()[2]
    assert "undivided exceeds the limit" in told


@pytest.mark.parametrize(
    ("kind", "keywords", "message"),
    [
        (UsageError, {"batch": 0}, "got a batch of 0; allowed: an integer of at least 1"),
        (UsageError, {"batch": 2.5}, "got a batch of 2.5; allowed: an integer of at least 1"),
        (UsageError, {"sizes": []}, "got sizes=[]; allowed: integers from 1 to 4, at least one, or one of undiv"),
        (UsageError, {"sizes": 2}, "got sizes=2; allowed: integers from 1 to 4"),
        (UsageError, {"seed": 0.5}, "plan_microbatches: got seed=0.5; allowed: an integer from 0"),
        (UsageError, {"framework": None}, "plan_microbatches: got framework=None; allowed: a name"),
        (UsageError, {"nodes": [["Conv_1"]]}, "got nodes=[['Conv_1']]; allowed: a list of names"),
        (UsageError, {"sizes": "all"}, "unknown sizes 'all'; allowed: undivided, powers, any, or a list of sizes"),
        (UsageError, {"sizes": [0, 2]}, "got sizes=[0, 2]; allowed: integers from 1 to 4"),
        (
            UsageError,
            {"limit_bytes": 0.5},
            "got limit_bytes=0.5; allowed: None, or an integer of at least 0; remedy",
        ),
        (UsageError, {"rounds": 2}, "got rounds=2; allowed: an integer of at least 3"),
        (UsageError, {"nodes": "Conv_1"}, "got nodes='Conv_1'; allowed: a list of names"),
        (NetworkError, {"nodes": ["Conv_9"]}, "no node 'Conv_9' to measure; allowed: Conv_1, Tanh_1"),
    ],
)
def test_refusals(kind: type[Exception], keywords: dict[str, Any], message: str) -> None:
    with pytest.raises(kind, match=re.escape(message)):
        plan_microbatches(convolutions(), **{"batch": 4, "framework": "reference", **keywords})
    with pytest.raises(NetworkError, match="the network has no convolution; remedy: nodes="):
        plan_microbatches(d5.networks.mlp(), 4)
    with pytest.raises(UsageError, match="plan_microbatches: got 'x' as the network; allowed: a Network; remedy"):
        plan_microbatches("x", 4)  # type: ignore[arg-type]


def test_a_plan_is_applied_to_a_network(known: type[Known]) -> None:
    plan = plan_microbatches(convolutions(), 12, 50)
    with pytest.raises(
        UsageError, match=r"MicrobatchPlan\.applied: got None as the network; allowed: a Network; remedy"
    ):
        plan.applied(None)  # type: ignore[arg-type]
    assert sum(node.op_type == "Conv" for node in plan.applied(convolutions()).nodes) == 9


@d5.register_operator("Silent", domain="microbatch_test")
class Silent(d5.CppOperator):
    """An operator that does not report its workspace."""

    source = """
    template <typename T>
    struct Silent : deep5::Operator {
      void forward(deep5::Tensor<const T> x, deep5::Tensor<T> y) { std::copy(x.begin(), x.end(), y.begin()); }
      void backward(deep5::Tensor<const T> dy, deep5::Tensor<const T> x, deep5::Tensor<const T> y,
                    deep5::Tensor<T> dx) {
        std::copy(dy.begin(), dy.end(), dx.begin());
      }
    };"""

    def specs(self, *inputs: d5.TensorSpec) -> tuple[d5.TensorSpec, ...]:
        return (inputs[0],)


def test_an_operator_that_does_not_count_its_workspace_is_refused() -> None:
    made = convolutions().replace_node("Tanh_1", "Silent", domain="microbatch_test")
    with pytest.raises(
        Unsupported, match="node 'Tanh_1': its operator does not say how much workspace it takes; remedy"
    ):
        plan_microbatches(made, 4, framework="reference", nodes=["Tanh_1"])


NETWORKS = {
    "alexnet": (lambda dtype: alexnet(width=8, image=63, classes=5, dtype=dtype), ["Conv_2"]),
    "resnet": (lambda dtype: resnet(depth=8, classes=5, dtype=dtype), ["Conv_2", "Conv_3"]),
}
"""With the layers that are divided: those with the largest workspace."""

# A few SGD steps propagate the rounding errors of gradients summed in another order: 2^-53 and 2^-24, times the
# thousands of terms of a sum.
ENGINES = {"pytorch": ("float64", 1e-11), "onnxruntime": ("float32", 1e-5)}


@pytest.mark.parametrize("algorithm", ["im2col", "fft"])
@pytest.mark.parametrize("name", ["alexnet", pytest.param("resnet", marks=pytest.mark.slow)])
def test_training_under_a_limit_that_plain_execution_exceeds(engine: d5.Framework, name: str, algorithm: str) -> None:
    dtype, tolerance = ENGINES[engine.name]
    make, nodes = NETWORKS[name]
    plain, batch = convolutions_by(make(dtype), algorithm), 12
    # As the operators count it: halfway between the smallest possible and the undivided workspace.
    found = [MeasuredLayer(plain, node, engine).workspaces([1, batch]) for node in nodes]
    limit = (max(each[1] for each in found) + max(each[batch] for each in found)) // 2
    plan = plan_microbatches(plain, batch, limit, framework=engine, nodes=nodes, sizes=[1, 4], rounds=3)
    assert plan.workspace_bytes <= limit < plan.undivided_workspace_bytes
    assert all(len(parts) > 1 for parts in plan.parts.values())
    losses = [trained(engine, each, batch, dtype) for each in (plain, plan.applied(plain))]
    assert losses[1][0] == losses[0][0], "the same bits, before a gradient by weights was added up in another order"
    np.testing.assert_allclose(losses[1], losses[0], rtol=tolerance)
    assert len(set(losses[0])) == len(losses[0]), "it learns"


def trained(engine: d5.Framework, network: d5.Network, batch: int, dtype: str) -> list[float]:
    executor = engine.executor(network, seed=0)
    step, draw = executor.train_step(d5.SGD(lr=0.01)), np.random.default_rng(0)
    extents = network.inputs["input"].shape[1:]
    losses = []
    for index in range(4):
        feed = {
            "input": draw.standard_normal((batch, *extents)).astype(dtype),  # type: ignore[arg-type]
            "label": draw.integers(0, 5, batch),
        }
        losses.append(float(d5.to_numpy(step(feed, d5.StepInfo(step=index, batch_size=batch))["loss"])))
    return losses


def test_algorithm_and_parts_together_are_one_transformation() -> None:
    def transform(given: d5.Network) -> d5.Network:
        made = convolutions_by(given, "fft")
        return plan_microbatches(made, 3, sizes=[1, 2], framework="reference", rounds=3).applied(made)

    made = check_transformation(transform, convolutions())
    assert [node.op_type for node in made.nodes].count("ConvFFT") >= 3


@pytest.mark.slow
def test_workspace_that_nobody_counts_is_read_from_resident_memory() -> None:
    """A local normalization needs squares and sums besides its output; a ReLU needs nothing like that."""
    pytest.importorskip("torch")
    found = {}
    for op_type, attributes in (("Relu", {}), ("LRN", {"size": 3})):
        build = NetworkBuilder("layer")
        y = build.op(op_type, build.input("x0", ("N", 8, 256, 256)), **attributes)
        network = build.network({"y0": y, "loss": build.op("ReduceSumSquare", y, keepdims=0)})
        try:
            found[op_type] = resident_workspaces(network, "pytorch", 1, ["x0"], [2, 16])
        except Unsupported as error:
            pytest.skip(str(error))
    image = 8 * 256 * 256 * 4
    assert found["LRN"][16] - found["Relu"][16] >= 16 * image
    assert found["LRN"][2] < found["LRN"][16] / 4


def test_metrics_of_the_recipes(known: type[Known]) -> None:
    plan = plan_microbatches(convolutions(), 12, 50)
    candidate = {"plan": plan, "losses": [2.0, 1.5], "step_bytes": 3 << 20}
    baseline = {"losses": [2.0, 1.0], "step_bytes": 5 << 20}
    found = {
        metric.name: metric.of(candidate, baseline)
        for metric in (
            measured.Workspace(),
            measured.UndividedWorkspace(),
            measured.StepMemory(),
            measured.UndividedStepMemory(),
            measured.LossDifference(),
        )
    }
    assert found == {
        "workspace": 80.0,
        "undivided_workspace": 240.0,
        "step_memory": 3.0,
        "undivided_step_memory": 5.0,
        "loss_difference": 0.5,
    }
    unlimited = {**candidate, "plan": plan_microbatches(convolutions(), 12)}
    assert measured.Workspace().of(unlimited, baseline) is None
    assert {kind.unit for kind in (measured.Workspace, measured.UndividedWorkspace)} == {"% of the limit"}


def test_what_the_sides_of_a_timing_tell_reaches_the_metrics_and_the_folder(tmp_path: Path) -> None:
    class Told:
        reported: ClassVar[dict[str, Any]] = {"report": "a table", "number": 3}

        def __call__(self) -> None: ...

    rounds = time_rounds(Told(), lambda: None, lambda: None, rounds=1, steps=1)
    assert rounds.reported == {"candidate": Told.reported, "baseline": {}}
    (tmp_path / "sides.py").write_text(
        "import deep5 as d5\n"
        "class Side:\n"
        "    reported = {'report': 'a table'}\n"
        "    def __call__(self): pass\n"
        "def side(*, steps, seed, threads): return Side()\n"
        "FIXED = {'candidate': side, 'baseline': side, 'steps': 1, 'rounds': 6, 'threads': 1}\n"
        "MUTABLE = {'seed': 0}\n"
        "METRICS = [(d5.Slowdown(), None)]\n"
    )
    result = execute(load_recipe(str(tmp_path / "sides.py")), out=tmp_path / "out")
    assert (result.folder / "candidate.txt").read_text() == "a table\n"
