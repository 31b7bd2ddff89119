"""docs/explanation/not_supported.md names each module that raises Unsupported, and agrees with the back-ends."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import onnx_ir as ir
import pytest

import deep5

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "explanation" / "not_supported.md").read_text()
OPERATORS = (ROOT / "docs" / "reference" / "onnx_operators.md").read_text()
ELSEWHERE = {
    "frameworks/jax/failures.py": "repeats a refusal by operator_check.py that JAX's exception holds",
}
"""Modules whose refusals repeat those of other modules, with the reason; none of them needs a row."""

KINDS = {
    "bool, float16, bfloat16, float32, float64, integers of 8 to 64 bits": (
        "BOOL FLOAT16 BFLOAT16 FLOAT DOUBLE INT8 INT16 INT32 INT64 UINT8 UINT16 UINT32 UINT64"
    ),
    "float8 (E4M3FN, E4M3FNUZ, E5M2, E5M2FNUZ)": "FLOAT8E4M3FN FLOAT8E4M3FNUZ FLOAT8E5M2 FLOAT8E5M2FNUZ",
    "integers of 2 and 4 bits, float4 (E2M1), float8 (E8M0)": "INT2 INT4 UINT2 UINT4 FLOAT4E2M1 FLOAT8E8M0",
    "strings": "STRING",
}
"""Rows of the table of element types, and the types that each stands for."""


def raising() -> set[str]:
    """Modules of the product that make an `Unsupported`, as paths in the repository."""
    found = set()
    for folder in ("deep5", "frameworks", "metrics", "recipes"):
        for path in (ROOT / folder).rglob("*.py"):
            name = path.relative_to(ROOT).as_posix()
            # With its links, deep5/ holds the other folders once more.
            if re.match(r"deep5/(frameworks|metrics|recipes)/", name):
                continue
            calls = (node.func for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call))
            if any(isinstance(called, ast.Name) and called.id == "Unsupported" for called in calls):
                found.add(name)
    return found


def rows(page: str) -> list[list[str]]:
    """The cells of each row of the tables of a page."""
    lines = (line.strip() for line in page.splitlines())
    return [[cell.strip() for cell in line[1:-1].split(" | ")] for line in lines if line.startswith("| ")]


def test_each_module_that_refuses_something_is_on_the_page() -> None:
    named = {
        name
        for row in rows(PAGE)
        for name in re.findall(r"`((?:deep5|frameworks|metrics|recipes)/[\w/]+\.py)`", row[-1])
    }
    missing = sorted(raising() - named - ELSEWHERE.keys())
    assert not missing, (
        f"{missing} raise Unsupported; remedy: say in docs/explanation/not_supported.md what they refuse"
    )
    stale = sorted(named - raising())
    assert not stale, f"docs/explanation/not_supported.md names {stale}, which raise no Unsupported"


def test_a_module_that_is_not_on_the_page_is_found() -> None:
    assert "deep5/core/framework.py" in raising()
    assert "deep5/core/errors.py" not in raising()


@pytest.mark.parametrize("backend", ["pytorch", "tensorflow", "jax"])
def test_operators_without_a_form_are_those_of_the_table(backend: str) -> None:
    (head,) = (row for row in rows(OPERATORS) if row[:2] == ["operator", "reference"])
    place = head.index(backend)
    operators = [row for row in rows(OPERATORS) if len(row) == len(head) and re.fullmatch(r"\w+-\d+", row[0])]
    assert len(operators) > 190
    without = [row[0].partition("-")[0] for row in operators if row[place].startswith("-")]
    (listed,) = (row[1] for row in rows(PAGE) if row[0] == f"`{backend}`" and "ImageDecoder" in row[1])
    assert listed.split(", ") == without


def test_operators_without_a_gradient_are_those_of_the_table() -> None:
    reasons: dict[str, list[str]] = {}
    for row in rows(OPERATORS):
        if len(row) > 6 and row[6].startswith("refused: "):
            reasons.setdefault(row[6].removeprefix("refused: "), []).append(row[0].partition("-")[0])
    assert len(reasons) > 3
    page = rows(PAGE)
    for reason, operators in reasons.items():
        assert [", ".join(operators), reason] in page


def node(operator: str, kind: str) -> ir.Node:
    """A node of one element type."""
    dtype = ir.DataType[kind]
    values = [
        ir.Value(name=name, type=ir.TensorType(dtype), shape=ir.Shape([2, 3])) for name in ("first", "second", "result")
    ]
    inputs = values[: 2 if operator == "Add" else 1]
    return ir.Node("", operator, inputs, outputs=values[2:], name="node", version=20)


@pytest.mark.parametrize("backend", ["reference", "pytorch", "tensorflow", "jax"])
@pytest.mark.parametrize("row", KINDS)
def test_element_types_are_those_of_the_table(backend: str, row: str) -> None:
    (head,) = (cells for cells in rows(PAGE) if cells[:2] == ["element types", "`reference`"])
    (cells,) = (cells for cells in rows(PAGE) if cells[0] == row)
    framework = deep5.framework(backend)
    moves, computes = (
        {bool(framework.supports(node(operator, kind))) for kind in KINDS[row].split()}
        for operator in ("Identity", "Add")
    )
    found = "computes" if computes == {True} else "moves" if moves == {True} else "-"
    assert moves | computes != {True, False} or found == "moves"
    # The reference runs any operator on any array; ONNX defines no sum of strings.
    if (backend, row) == ("reference", "strings"):
        found = "moves"
    assert cells[head.index(f"`{backend}`")] == found
