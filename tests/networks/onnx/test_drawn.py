"""Drawn cases of every operator in every opset from 7 on: plain ONNX Runtime, ONNX's reference and a third decide.

ONNX Runtime runs the original file, before any conversion: importing changes nothing.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import deep5 as d5
from deep5.networks.gradients import vjp_network
from drawn import claimed, main
from drawn_answers import OPERATORS, Case, case_named, opsets
from drawn_bounds import apart
from drawn_gradients import gradient_outcome
from drawn_rules import RULES, Rule
from drawn_runs import outcome, truth
from opset_draws import DRAWS
from original import compared, declared, graph_model

# Versions that neither ONNX Runtime 1.31 nor ONNX's reference nor a third runs.
UNANSWERED = {("MaxRoiPool", 22), ("Multinomial", 22), ("SwiGLU", 28)}
# What deep5 refuses, as a part of the message: statistics of empty batches; a dropout in a branch; coordinates of
# Resize that later opsets cannot express.
REFUSED = {
    "BatchNormalization": "nothing to train on",
    "Dropout": "(Dropout) inside it: the reference has no kernel for Dropout",
    "Resize": "of opset 11 or 12 has tf_half_pixel_for_nn",
}
PAIRS = 568
CASES = 300
"""Cases of each operator and opset in the long run; the daily sample has two."""


def checked(case: Case) -> str:
    """Who answered; fails at a disagreement that no rule explains."""
    right = truth(case)
    assert not right.open, f"{case.name}: {right.open}"
    found = outcome(case, "reference", right)
    if found.kind == "refused":
        assert REFUSED.get(case.operator, "not refused") in found.reason, f"{case.name}: {found.reason}"
    else:
        assert found.kind in ("agreed", "unanswered"), f"{case.name}: {found.reason} ({right.who})"
    return right.who


def differentiated(case: Case) -> str:
    found = gradient_outcome(case)
    assert found.kind != "wrong", f"{case.name}: {found.reason}"
    return found.kind


def test_every_operator_is_drawn() -> None:
    assert set(DRAWS) == set(OPERATORS)
    assert sum(len(opsets(operator)) for operator in OPERATORS) == PAIRS


@pytest.mark.daily
@pytest.mark.parametrize("part", range(8))
def test_a_sample_of_each_version(part: int) -> None:
    answers = Counter[str]()
    for operator in OPERATORS[part::8]:
        for opset in opsets(operator):
            for number in (0, 1 + (7 * opset) % (CASES - 1)):
                answers[checked(Case(operator=operator, opset=opset, number=number))] += 1
    assert answers["both"] > 2 * (answers["onnx.reference"] + answers["onnxruntime"]), answers


@pytest.mark.daily
@pytest.mark.parametrize("part", range(4))
def test_gradients_of_a_sample(part: int) -> None:
    kinds = Counter(
        differentiated(Case(operator=operator, opset=opsets(operator)[-1], number=number))
        for operator in OPERATORS[part::4]
        for number in (0, 4)
    )
    assert kinds["agreed"] > kinds["refused"], kinds


@pytest.mark.slow
@pytest.mark.parametrize("operator", OPERATORS)
def test_many_cases_of_each_version(operator: str) -> None:
    for opset in opsets(operator):
        cases = [Case(operator=operator, opset=opset, number=number) for number in range(CASES)]
        answers = Counter(map(checked, cases))
        assert (answers["neither"] == CASES) == ((operator, opset) in UNANSWERED), (opset, answers)


@pytest.mark.slow
@pytest.mark.parametrize("operator", OPERATORS)
def test_gradients_of_many_cases(operator: str) -> None:
    for opset in opsets(operator):
        for number in range(CASES // 3):
            differentiated(Case(operator=operator, opset=opset, number=number))


def test_a_case_is_made_again_from_its_name() -> None:
    first, second = (case_named("Resize-19-7") for _ in range(2))
    assert first.model.SerializeToString() == second.model.SerializeToString()
    assert all(np.array_equal(first.fed[name], second.fed[name]) for name in first.fed)


def test_rules_are_few_and_complete() -> None:
    assert len(RULES) <= 40
    assert len({rule.name for rule in RULES}) == len(RULES)
    for rule in RULES:
        assert all((rule.says, rule.source, rule.third)), rule.name
        assert rule.operators <= set(OPERATORS), rule.name


@pytest.mark.parametrize("rule", RULES, ids=[rule.name for rule in RULES])
def test_a_rule_quotes_the_specification(rule: Rule) -> None:
    text = ""
    for source in rule.source.split(", "):
        operator, version = source.rsplit("-", 1)
        schema = onnx.defs.get_schema(operator, int(version), "")
        described = [each.description for each in (*schema.attributes.values(), *schema.inputs, *schema.outputs)]
        kinds = [kind for constraint in schema.type_constraints for kind in constraint.allowed_type_strs]
        text += " ".join(" ".join(part.split()) for part in [schema.doc, *described, *kinds])
    for quoted in rule.says.split(" … "):
        assert quoted in text


def test_a_wrong_result_is_caught() -> None:
    """It is wrong by 1e-5, where float32 rounds to 1e-7."""
    case = Case(operator="Sigmoid", opset=13, number=0)
    right = truth(case)
    assert right.outputs is not None
    assert outcome(case, "reference", right).kind == "agreed"
    wrong: Any = [value * np.asarray(1 + 1e-5, value.dtype) + np.asarray(1e-5, value.dtype) for value in right.outputs]
    assert apart(case, right.outputs, wrong) is not None


def test_one_case_is_printed(capsys: pytest.CaptureFixture[str], tmp_path: Any) -> None:
    main(["--case", "Hardmax-7-2", "--backends", "reference,gradients", "--out", str(tmp_path)])
    said = capsys.readouterr().out
    assert "input 0: float32" in said
    assert "a matrix that begins at the axis" in said
    assert "reference: Outcome(kind='agreed'" in said


def test_several_jobs_give_the_results_of_one(tmp_path: Path) -> None:
    wanted = ["--operator", "Hardmax", "--operator", "Shrink", "--cases", "2"]
    lines = []
    for jobs in ("1", "2"):
        out = tmp_path / jobs
        with pytest.raises(SystemExit) as ended:
            main([*wanted, "--jobs", jobs, "--out", str(out)])
        assert ended.value.code == 0
        assert [each.name for each in out.iterdir()] == ["reference-0.jsonl"]
        found = [json.loads(line) for line in (out / "reference-0.jsonl").read_text().splitlines()]
        lines.append(
            sorted(({**line, "seconds": 0} for line in found), key=lambda line: [line["operator"], line["opset"]])
        )
    assert lines[0] == lines[1]
    assert [(line["operator"], line["opset"]) for line in lines[0]] == [
        *(("Hardmax", opset) for opset in (7, 11, 13)),
        ("Shrink", 9),
    ]
    assert {"numpy", "onnx", "onnxruntime"} <= set(lines[0][0]["versions"])


def test_a_job_takes_up_what_its_last_process_left(tmp_path: Path) -> None:
    """A process that ends leaves its claim: the next one of the same job has it, and no other job."""
    claim = tmp_path / "reference-0-Shrink-9"
    assert [claimed(claim, job) for job in (1, 0, 1)] == [True, False, True]


def test_the_gradient_of_a_signal_of_unknown_last_dimension() -> None:
    """Whether it is real or complex only a run shows: the gradient has its shape."""
    node = onnx.helper.make_node("DFT", ["x", "", "axis"], ["y"])
    real = onnx.TensorProto.DOUBLE
    values = [onnx.helper.make_tensor_value_info(name, real, ["N", "T", "C"]) for name in ("x", "y")]
    axis = onnx.numpy_helper.from_array(np.array(1), "axis")
    graph = onnx.helper.make_graph([node], "g", values[:1], values[1:], [axis])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 20)], ir_version=8)
    executor = d5.framework("reference").executor(vjp_network(d5.Network.from_onnx(model), ["x"]))
    for parts in (1, 2):
        x, seed = np.ones((2, 3, parts)), np.ones((2, 3, 2))
        gradient = executor.inference({"x": x, "seed:y": seed})["grad:x"]
        assert np.shape(gradient) == x.shape
        # The sum of cos and -sin over all frequencies is 3 for the first element and 0 for the others.
        np.testing.assert_allclose(np.asarray(gradient)[:, :, 0], [[3, 0, 0]] * 2, atol=1e-12)


@pytest.mark.parametrize("framework", ["reference", "pytorch", "jax", "tensorflow"])
def test_a_cropped_resize_by_scales_has_the_size_that_onnx_infers(framework: str) -> None:
    scales, roi = np.array([1, 1, 2, 2], np.float32), np.array([0, 0, 0.25, 0, 1, 1, 0.75, 0.5], np.float32)
    settings = {"coordinate_transformation_mode": "tf_crop_and_resize", "mode": "linear"}
    node = onnx.helper.make_node("Resize", ["x", "roi", "scales"], ["y"], **settings)
    x = np.arange(24, dtype=np.float32).reshape(1, 1, 4, 6)
    made = graph_model(
        [node], [declared("x", x.shape)], [declared("y", (1, 1, 8, 12))], {"roi": roi, "scales": scales}, opset=19
    )
    compared(d5.Network.from_onnx(made), made, framework, {"x": x})
