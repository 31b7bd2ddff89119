"""DeepBench's problems against their tables, their work against hand-computed sums, and the hand-written operators."""

from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from deep5.bench.plan import Plan, workload_of, workloads
from deep5.core.errors import ShapeError, UnknownName, UsageError
from deep5.core.tensors import TensorSpec
from deep5.networks.onnx_operator import ONNXOperator
from deep5.operators import problems
from deep5.operators.problem import Direction
from deep5.operators.problems import PROBLEM_SETS, TABLES, problem_rows, problem_set
from deep5.operators.work import backward_bytes, backward_flops, bytes_of, flops, misfit, moved_bytes
from deep5.recipes import deepbench_by_hand as by_hand

FOLDER = Path(problems.__file__).parent / "deepbench"
# Counted in DeepBench's own headers: rows per use of each table.
COUNTS = {
    "conv": {"training": 94, "inference_server": 107, "inference_device": 17},
    "gemm": {"training": 160, "inference_server": 75, "inference_device": 13},
    "rnn": {"training": 53, "inference_server": 69, "inference_device": 3},
}
SETS = sorted(name for name in PROBLEM_SETS if name.startswith("deepbench."))


def spec(*shape: int, dtype: str = "float32") -> TensorSpec:
    return TensorSpec(shape=shape, dtype=dtype)


@pytest.mark.parametrize("table", TABLES)
def test_every_row_of_a_table_is_read(table: str) -> None:
    with (FOLDER / f"{table}.csv").open(newline="", encoding="utf-8") as file:
        raw = list(csv.DictReader(file))
    rows = problem_rows(table)
    assert [{key: str(value).lower() for key, value in row.items()} for row in rows] == raw
    assert len(rows) == {"conv": 218, "gemm": 248, "rnn": 125, "sparse_gemm": 32, "all_reduce": 7}[table]


@pytest.mark.parametrize("name", SETS)
def test_every_row_is_a_problem_and_training_rows_have_gradients(name: str) -> None:
    made, table = problem_set(name), name.removeprefix("deepbench.")
    assert Counter(problem.use for problem in made) == COUNTS[table]
    assert [dict(problem.sizes) for problem in made] == problem_rows(table)
    assert len({problem.name for problem in made}) == len(made)
    for problem in made:
        trained = problem.use == "training" and table != "gemm"  # GEMM's transposed rows are its gradients
        more = {"conv": 2, "rnn": 1, "gemm": 0}[table]
        assert len(problem.directions) == 1 + more * trained
        assert problem.directions[0] == Direction()


def test_uses_choose_and_an_unknown_one_is_told() -> None:
    assert len(problem_set("deepbench.conv", ("training", "inference_device"))) == 94 + 17
    with pytest.raises(UnknownName, match=r"unknown use of a problem 'trainign'; allowed: .*did you mean 'training'"):
        problem_set("deepbench.conv", ("trainign",))
    with pytest.raises(UnknownName, match=r"unknown problem set 'deepbench.cnov'.*did you mean 'deepbench.conv'"):
        problem_set("deepbench.cnov")
    with pytest.raises(UsageError, match=r"'deepbench\.all_reduce' are only a table"):
        problem_set("deepbench.all_reduce")
    with pytest.raises(UnknownName, match="table of DeepBench 'fft'"):
        problem_rows("fft")


@pytest.mark.parametrize("name", SETS)
def test_outputs_are_those_that_onnx_infers(name: str) -> None:
    made = problem_set(name)
    for problem in made[:: len(made) // 12]:
        inferred = ONNXOperator(problem.operator, **problem.attributes).specs(*problem.inputs)
        assert inferred == problem.outputs, problem.title


def test_work_of_a_convolution_by_hand() -> None:
    # N=16, C=3, 224x224, 64 filters of 3x3, padded by 1: 16 * 64 * 224 * 224 outputs, each a sum of 27 products.
    (problem,) = (problem for problem in problem_set("deepbench.conv") if problem.name == "conv-24")
    assert problem.title == "N=16 C=3 H=224 W=224 K=64 3x3"
    forward, by_data, by_weights = (workload_of(Plan(), problem, direction) for direction in problem.directions)
    assert forward.flops == 2 * 51_380_224 * 27 == 2_774_532_096
    assert by_data.flops == by_weights.flops == 2 * 2_774_532_096  # a direction includes the forward pass
    x, w, y = 4 * 16 * 3 * 224 * 224, 4 * 64 * 27, 4 * 51_380_224
    assert forward.moved_bytes == x + w + y
    assert by_data.moved_bytes == 2 * (x + w + y) + x
    assert by_weights.moved_bytes == 2 * (x + w + y) + w


@pytest.mark.parametrize(
    ("op_type", "inputs", "outputs", "attributes", "wanted"),
    [
        ("Conv", [(1, 4, 5, 5), (6, 2, 3, 3)], [(1, 6, 3, 3)], {"group": 2}, 2 * 54 * 18),
        ("Conv", [(1, 1, 3, 3), (1, 1, 3, 3), (1,)], [(1, 1, 1, 1)], {}, 2 * 9 + 1),
        ("ConvTranspose", [(1, 2, 3, 3), (2, 4, 3, 3)], [(1, 4, 5, 5)], {}, 2 * 18 * 36),
        ("MatMul", [(7, 2, 3), (3, 4)], [(7, 2, 4)], {}, 2 * 7 * 2 * 3 * 4),
        ("Gemm", [(3, 2), (3, 4)], [(2, 4)], {"transA": 1}, 2 * 2 * 3 * 4),
        ("Gemm", [(2, 3), (3, 4), (4,)], [(2, 4)], {}, 2 * 2 * 3 * 4 + 8),
        ("RNN", [(5, 2, 3), (1, 4, 3), (1, 4, 4)], [(5, 1, 2, 4)], {}, 5 * 2 * 2 * 4 * (3 + 4)),
        ("LSTM", [(5, 2, 3), (1, 16, 3), (1, 16, 4)], [(5, 1, 2, 4)], {}, 4 * 5 * 2 * 2 * 4 * (3 + 4)),
        ("GRU", [(5, 2, 3), (2, 12, 3), (2, 12, 4)], [(5, 2, 2, 4)], {}, 2 * 3 * 5 * 2 * 2 * 4 * (3 + 4)),
        ("Add", [(2, 1), (3,)], [(2, 3)], {}, 6),
        ("ReduceSum", [(2, 3)], [(1, 1)], {}, 6),
        ("Softmax", [(2, 3)], [(2, 3)], {}, None),
    ],
)
def test_operations_by_hand(op_type: str, inputs: Any, outputs: Any, attributes: Any, wanted: int | None) -> None:
    given, made = [spec(*shape) for shape in inputs], [spec(*shape) for shape in outputs]
    assert flops(op_type, given, made, attributes) == wanted

    assert misfit(op_type, given, attributes) is None


@pytest.mark.parametrize(
    ("op_type", "inputs", "attributes", "message"),
    [
        ("Conv", [(1, 4, 5, 5), (6, 4, 3, 3)], {"group": 2}, "got 4 channels and filters over 4 in 2 groups"),
        ("ConvTranspose", [(1, 2, 3, 3), (3, 4, 3, 3)], {}, "allowed: 3 channels"),
        ("LSTM", [(5, 2, 3), (1, 16, 2), (1, 16, 4)], {"hidden_size": 4}, "allowed: 16x3 and 16x4"),
        ("GRU", [(5, 2, 3), (1, 16, 3), (1, 16, 4)], {"hidden_size": 4}, "allowed: 12x3 and 12x4"),
        ("RNN", [(5, 2, 3), (4, 3), (1, 4, 4)], {"hidden_size": 4}, "RNN"),
        ("Conv", [(4,), (4,)], {}, "Conv"),
    ],
)
def test_shapes_that_do_not_go_together_are_refused(op_type: str, inputs: Any, attributes: Any, message: str) -> None:
    asked = Plan(operator=op_type, shapes=tuple(inputs), attributes=attributes)
    with pytest.raises((ShapeError, UsageError), match=message):
        workloads(asked)


def test_operations_of_gradients_by_hand() -> None:
    a, b, y = spec(2, 3), spec(3, 4), spec(2, 4)
    assert backward_flops("MatMul", (a, b), (y,), {}, (True, True)) == 2 * 48
    assert backward_flops("MatMul", (a, b), (y,), {}, (True, False)) == 48
    assert backward_flops("Gemm", (a, b, spec(4)), (y,), {}, (True, True, True)) == 2 * 48 + 8
    x, w, r, out = spec(5, 2, 3), spec(1, 16, 3), spec(1, 16, 4), spec(5, 1, 2, 4)
    # By everything: twice the forward pass; by x only: the products with R (back in time) and with W.
    forward = flops("LSTM", (x, w, r), (out,), {})
    assert forward is not None
    assert backward_flops("LSTM", (x, w, r), (out,), {}, (True, True, True)) == 2 * forward
    assert backward_flops("LSTM", (x, w, r), (out,), {}, (True, False, False)) == forward
    assert backward_flops("Softmax", (a,), (a,), {}, (True,)) is None


def test_bytes_by_hand() -> None:
    a, b, y = spec(2, 3), spec(3, 4, dtype="float64"), spec(2, 4, dtype="bfloat16")
    assert bytes_of((a, b, y)) == 24 + 96 + 16
    assert moved_bytes((a, b), (y,)) == 136
    assert backward_bytes((a, b), (y,), (False, True)) == 136 + 96


def test_what_is_left_out_is_listed_with_its_reason() -> None:
    works, left_out = workloads(Plan(problems="deepbench.conv", backward=True, limit_gflop=1.0, take=3, keep="conv-9"))
    assert len(works) + len(left_out) == 406 == 3 * 94 + 107 + 17
    assert "conv-9" in {work.problem.name for work in works}
    assert len({work.problem.name for work in works}) == 3
    too_large = [entry for entry in left_out if "limit_gflop=1" in entry["reason"]]
    every = [
        workload_of(Plan(), problem, direction)
        for problem in problem_set("deepbench.conv")
        for direction in problem.directions
    ]
    assert len(too_large) == sum((work.flops or 0) > 1e9 for work in every) > 100
    assert all("take=3" in entry["reason"] for entry in left_out if entry not in too_large)


def small(problem_name: str, **sizes: int) -> problems.Problem:
    """A problem like DeepBench's at a size that a test can afford."""
    rows = {
        "conv": {"use": "training", "width": 9, "height": 8, "in_channels": 3, "batch": 2, "out_channels": 4,
                 "kernel_width": 3, "kernel_height": 2, "pad_width": 1, "pad_height": 0, "stride_width": 2,
                 "stride_height": 1},
        "gemm": {"use": "training", "m": 5, "n": 3, "k": 7, "transpose_a": True, "transpose_b": False},
        "rnn": {"use": "training", "hidden": 6, "batch": 2, "timesteps": 4, "cell": "lstm"},
    }  # fmt: skip
    kept = problems.problem_rows
    problems.problem_rows = lambda table: [{**rows[table], **sizes}]  # type: ignore[assignment]
    try:
        return problem_set(f"deepbench.{problem_name}")[0]
    finally:
        problems.problem_rows = kept


HANDS = {"conv": by_hand.convolution, "gemm": by_hand.product, "rnn": by_hand.recurrent_layer}
CASES = [("conv", {}), ("conv", {"stride_height": 2, "pad_height": 1}), ("gemm", {}),
         ("gemm", {"transpose_a": False, "transpose_b": True}), ("rnn", {}), ("rnn", {"cell": "gru"}),
         ("rnn", {"cell": "vanilla"})]  # fmt: skip


def results(framework: str, kind: str, problem: problems.Problem, needs: tuple[bool, ...] = ()) -> list[Any]:
    from deep5.core.errors import Unsupported

    draw = np.random.default_rng(0)
    inputs = tuple(draw.standard_normal(s.shape).astype(np.float32) for s in problem.inputs)
    grads = tuple(draw.standard_normal(s.shape).astype(np.float32) for s in problem.outputs) if needs else ()
    try:
        call, synchronize, read = HANDS[kind](
            framework, problem, inputs=inputs, output_grads=grads, needs=needs, threads=1, device="cpu"
        )
    except Unsupported:
        return []
    outputs = call()
    synchronize()
    return [np.array(value) for value in read(outputs)]


@pytest.mark.parametrize(("kind", "sizes"), CASES, ids=str)
def test_operators_by_hand_agree_with_onnx_runtime_and_with_each_other(kind: str, sizes: dict[str, Any]) -> None:
    problem = small(kind, **sizes)
    (wanted,) = results("onnxruntime", kind, problem)
    assert wanted.shape == problem.outputs[0].shape
    for framework in ("pytorch", "tensorflow", "jax", "openvino", "reference"):
        (value,) = results(framework, kind, problem)
        # Sums of at most 36 products of numbers about 1, in float32; recurrent cells only shrink their state.
        np.testing.assert_allclose(value.reshape(wanted.shape), wanted, rtol=2e-5, atol=2e-5, err_msg=framework)


@pytest.mark.parametrize(("kind", "sizes"), CASES, ids=str)
def test_gradients_by_hand_agree(kind: str, sizes: dict[str, Any]) -> None:
    problem = small(kind, **sizes)
    every = (True,) * len(problem.inputs)
    wanted = results("pytorch", kind, problem, every)
    assert len(wanted) == 1 + len(every)
    for framework in ("tensorflow", "jax"):
        got = results(framework, kind, problem, every)
        for value, expected in zip(got, wanted, strict=True):
            np.testing.assert_allclose(value.ravel(), expected.ravel(), rtol=1e-4, atol=1e-4, err_msg=framework)
    one = (False, True) if kind != "rnn" else (True, False, False)
    for framework in ("pytorch", "tensorflow", "jax"):
        assert len(results(framework, kind, problem, one)) == 2
    for framework in ("onnxruntime", "openvino", "reference"):
        assert results(framework, kind, problem, every) == [], "no gradients by itself, and it says so"
