"""Refusals of strings, and of nodes that a table lacks: each names what is allowed and a remedy that works."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from deep5.core.errors import Unsupported
from deep5.core.plugins import framework
from deep5.core.tensors import to_numpy
from deep5.networks import Network
from deep5.networks.nodes import supported

HEAD = '<ir_version: 8, opset_import: ["": 20, "ai.onnx.ml": 3, "com.microsoft": 1]>'
CONCAT = f"{HEAD} g (string[N] x) => (string[N] y) {{ y = StringConcat (x, x) }}"
TOKENS = f"""{HEAD} g (string[N] x) => (int64[2] y) {{
    t = com.microsoft.Tokenizer <mark = 0, separators = [" "], pad_value = "", mincharnum = 1> (x)
    s = Shape (t)  y = Identity (s)
}}"""
ONE_HOT = f"""{HEAD} g (string[N] x) => (float[N, 2] y) {{
    y = ai.onnx.ml.OneHotEncoder <cats_strings = ["a", "b"], zeros = 1> (x)
}}"""
NUMBERS = f"""{HEAD} g (int64[N] x) => (float[N, 2] y) {{
    y = ai.onnx.ml.OneHotEncoder <cats_int64s = [1, 2], zeros = 0> (x)
}}"""
BEFORE = "compute what reads strings before the network, and feed numbers"


def nodes(text: str) -> list[ir.Node]:
    return list(ir.from_proto(onnx.parser.parse_model(text)).graph)


def reason(node: ir.Node, *operators: str) -> str:
    """Why a table of these operators that computes in float32 refuses a node."""
    answer = supported(node, "PyTorch", operators, {}, (ir.DataType.FLOAT,))
    assert not answer.yes
    return answer.reason


def test_a_node_that_a_table_lacks_has_a_remedy_that_takes_its_types() -> None:
    (text,) = nodes(CONCAT)
    (numbers,) = nodes(f"{HEAD} g (float[N, 3, 3] x) => (float[N] y) {{ y = Det (x) }}")
    allowed = "allowed: those in docs/reference/onnx_operators.md; remedy: framework "
    lacks = f"the PyTorch back-end has no such operator; {allowed}"
    assert reason(text) == f"{lacks}'reference'"
    assert reason(numbers) == f"{lacks}'onnxruntime' or 'reference'"


def test_an_element_type_that_a_table_lacks_is_refused_with_those_that_it_has() -> None:
    (text,) = nodes(CONCAT)
    (whole,) = nodes(f"{HEAD} g (int8[N] x) => (int8[N] y) {{ y = Neg (x) }}")
    refused = "the element type STRING of 'x'; allowed: FLOAT; remedy: framework 'reference'"
    assert reason(text, "StringConcat") == refused
    refused = "the element type INT8 of 'x'; allowed: FLOAT; remedy: a Cast in the file, or framework 'onnxruntime' or"
    assert reason(whole, "Neg") == f"{refused} 'reference'"


def test_a_value_without_an_element_type_is_refused_with_a_remedy() -> None:
    _, shape, _ = nodes(TOKENS)
    refused = (
        "the value 't' has no element type; shape inference did not reach it; allowed: types that are declared, or"
    )
    assert reason(shape, "Shape") == f"{refused} that ONNX infers; remedy: {BEFORE}"
    _, shape = nodes(f"{HEAD} g (float[N] x) => (int64[1] y) {{ t = com.microsoft.Gelu (x)  y = Shape (t) }}")
    remedy = "declare it in the file's value_info, or framework 'onnxruntime'"
    assert reason(shape, "Shape") == f"{refused} that ONNX infers; remedy: {remedy}"


def test_remedies_for_strings_do_not_lead_from_one_back_end_to_another_and_back() -> None:
    """ONNX Runtime takes no strings here, and the reference has none of ONNX Runtime's own operators."""
    tokenizer, *_ = nodes(TOKENS)
    (one_hot,) = nodes(ONE_HOT)
    (strict,) = nodes(ONE_HOT.replace("zeros = 1", "zeros = 0"))
    (numbers,) = nodes(NUMBERS)
    reference = framework("reference")
    assert reason(tokenizer).endswith(f"; remedy: {BEFORE}")
    assert reason(one_hot).endswith("; remedy: framework 'reference'")
    assert reference.supports(tokenizer).reason.endswith(f"; remedy: {BEFORE}")
    assert reference.supports(one_hot).yes
    assert reference.supports(strict).reason.endswith("; allowed: 1; remedy: zeros=1 in the file")
    assert reference.supports(numbers).reason.endswith("; remedy: framework 'onnxruntime'")


@pytest.mark.parametrize("text", [CONCAT, ONE_HOT])
def test_the_remedy_of_onnx_runtime_for_strings_works(text: str) -> None:
    network = Network.from_onnx(onnx.parser.parse_model(text))
    with pytest.raises(
        Unsupported, match=r"'x' is string.*; allowed: tensors of numbers; remedy: framework 'reference'"
    ):
        framework("onnxruntime").executor(network)
    made = framework("reference").executor(network).inference({"x": np.array(["a", "b"], object)})
    assert len(to_numpy(made["y"])) == 2


@pytest.mark.parametrize("name", ["onnxruntime", "reference"])
def test_a_network_that_no_back_end_runs_is_refused_with_the_same_remedy(name: str) -> None:
    network = Network.from_onnx(onnx.parser.parse_model(TOKENS))
    with pytest.raises(Unsupported, match=rf"remedy: {BEFORE}"):
        framework(name).executor(network)
