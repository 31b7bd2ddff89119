"""How each operator of ONNX runs and is differentiated: this script writes docs/reference/onnx_operators.md.

Run `python tests/support/operator_table.py` after an operator or a rule was added; a test fails until then.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from pathlib import Path

import onnx

import gradient_drawn_layers
from conformance import cases, excluded, model_of
from deep5.frameworks.jax.operators import OPERATORS as JAX
from deep5.frameworks.jax.table import OVERRIDES as JAX_OVERRIDES
from deep5.frameworks.pytorch.operators import OPERATORS as PYTORCH
from deep5.frameworks.pytorch.table import OVERRIDES as PYTORCH_OVERRIDES
from deep5.frameworks.reference.operators import OPERATORS as REFERENCE
from deep5.frameworks.tensorflow.operators import OPERATORS as TENSORFLOW
from deep5.frameworks.tensorflow.table import OVERRIDES as TENSORFLOW_OVERRIDES
from deep5.networks.constants import FLOATS
from deep5.networks.gradients.rules import CONSTANT, REFUSED, RULES
from deep5.networks.kernels.operators import COMPOSITES, LISTS
from deep5.networks.transforms.unrolling import RECURRENT
from gradient_drawn import CASES
from gradient_layers import LAYERS
from gradient_table import ELEMENTS
from nested_operators import NESTED

__all__ = ["PAGE", "differentiated", "operators", "page"]

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "onnx_operators.md"
TABLES = {"reference": REFERENCE, "onnxruntime": None, "pytorch": PYTORCH, "tensorflow": TENSORFLOW, "jax": JAX}
OVERRIDES = {"pytorch": PYTORCH_OVERRIDES, "tensorflow": TENSORFLOW_OVERRIDES, "jax": JAX_OVERRIDES}
"""By back-end that shares the composites, the operators that it writes itself, and why."""
assert gradient_drawn_layers.windows  # it adds its operators to CASES

FORMS = {"Dropout"}
"""Operators that `evaluation_form` and `training_form` remove from a network before a back-end sees it."""
REAL = {f"tensor({kind.name.lower()})" for kind in FLOATS}

_HEAD = """# Operators of ONNX

This page lists every operator of the ONNX domain in its newest version, {count} of them: how back-ends run it, and what
its gradient is on a back-end without automatic differentiation (`reference`, `onnxruntime`, `openvino`; PyTorch,
TensorFlow and JAX differentiate what they run). `python tests/support/operator_table.py` writes the page.

- forward, one column per back-end: *native*, functions of this back-end; *composite*, the function in
  `deep5/networks/kernels` that PyTorch, TensorFlow and JAX share; *override*, the back-end's own function instead of
  that one, for the reason in the last table; *body*, the body of ONNX's function or a layer's cells; *form*, deep5
  rewrites it in other operators when it prepares inference and training; `-`, none of these; ONNX Runtime decides node
  by node. The fraction is the number of cases of ONNX's test suite (node tests of only
  this operator) that pass there; no fraction, or *no case*: the suite has none. `framework.supports(node)` says which
  attributes and element types the back-end accepts.
- backward: *rule*, the operator's own backward pass; *body*, that of the operators in its body; *constant*, the
  gradient stops or is zero, because the outputs are integers or do not vary; *refused*, with the reason.
- tested: *table*, against the gradients of three frameworks, row by row; *drawn*, at nodes drawn from the schema,
  against central differences, and against the gradients of PyTorch, JAX and TensorFlow if they have the operator;
  *graphs*, in the same way, in networks in which only a run determines the branch or the number of steps.

| operator | reference | onnxruntime | pytorch | tensorflow | jax | backward | tested |
|---|---|---|---|---|---|---|---|
"""

_OVERRIDES = """
Overrides. A number of times is the time of the composite over that of the override, forward, then forward and backward,
at an input of this shape, in alternation and the least of nine rounds, on one processor core.

| operator | back-end | why |
|---|---|---|
"""


@functools.cache
def operators() -> dict[str, onnx.defs.OpSchema]:
    """The newest version of each operator that is not deprecated."""
    names = sorted({schema.name for schema in onnx.defs.get_all_schemas_with_history() if schema.domain == ""})
    found = {name: onnx.defs.get_schema(name) for name in names}
    return {name: schema for name, schema in found.items() if not schema.deprecated}


def is_function(op: str) -> bool:
    schema = operators()[op]
    return schema.has_function or schema.has_context_dependent_function


def discrete(op: str) -> bool:
    """Whether there is nothing to differentiate by, or nothing to differentiate."""
    schema = operators()[op]
    sides = (schema.inputs, schema.outputs)
    return any(not any(REAL & set(each.types) or "seq" in str(each.types) for each in side) for side in sides)


def differentiated(op: str) -> str:
    """`"rule"`, `"body"`, `"constant"` or `"refused: …"`.

    Raises:
        LookupError: The gradient of the operator is not defined anywhere.
    """
    if op in RULES:
        return "rule"
    if op in REFUSED:
        return f"refused: {REFUSED[op]}"
    if op in CONSTANT or discrete(op):
        return "constant"
    if op in {*CASES, *NESTED} and (is_function(op) or op in RECURRENT):
        return "body"
    raise LookupError(f"{op}: neither a rule, nor a body that is tested, nor a reason")


@functools.cache
def suite() -> dict[str, list[str]]:
    """By operator, the cases of ONNX's node tests that consist of this operator."""
    found = defaultdict(list)
    for name, case in cases("node").items():
        nodes = model_of(case).graph.node
        if len(nodes) == 1 and nodes[0].domain == "":
            found[nodes[0].op_type].append(name)
    return found


def written(framework: str, op: str) -> str:
    """How a back-end that has an operator in its table computes it."""
    if framework not in OVERRIDES or op not in {**COMPOSITES, **LISTS}:
        return "native"
    return "override" if op in OVERRIDES[framework] else "composite"


def forward(framework: str, op: str) -> str:
    table, left = TABLES[framework], excluded(framework).get("node", {})
    other = "form" if op in FORMS else "body" if is_function(op) or op in RECURRENT else "-"
    how = [] if table is None else [written(framework, op) if op in table else other]
    own = suite().get(op, ())
    counted = [f"{sum(name not in left for name in own)}/{len(own)}"] if own else []
    return " ".join(how + counted) or "no case"


def tested(op: str) -> str:
    found = (["table"] if op in ELEMENTS or op in LAYERS else []) + (["drawn"] if op in CASES else [])
    found += ["graphs"] if op in NESTED else []
    return ", ".join(found) or "-"


def page() -> str:
    lines = []
    for op, schema in operators().items():
        runs = [forward(framework, op) for framework in TABLES]
        lines.append(f"| {op}-{schema.since_version} | {' | '.join(runs)} | {differentiated(op)} | {tested(op)} |")
    return _HEAD.format(count=len(lines)) + "\n".join(lines) + "\n" + overrides()


def overrides() -> str:
    """The overrides of all back-ends with their reasons."""
    rows = [(op, framework, why) for framework, own in OVERRIDES.items() for op, why in own.items()]
    return _OVERRIDES + "".join(f"| {op} | {framework} | {why} |\n" for op, framework, why in sorted(rows))


if __name__ == "__main__":
    PAGE.write_text(page())
