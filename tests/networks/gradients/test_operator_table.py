"""Every ONNX operator has a gradient or a reason why it has none; the page that lists them is up to date."""

from __future__ import annotations

import re

import pytest

from deep5.networks.gradients.rules import CONSTANT, RULES
from deep5.networks.run_modes import _SPECIAL
from gradient_drawn import CASES
from gradient_layers import LAYERS
from gradient_table import ELEMENTS
from nested_operators import NESTED
from operator_table import FORMS, PAGE, REFUSED, TABLES, differentiated, forward, operators, page


@pytest.mark.parametrize("op", sorted(operators()))
@pytest.mark.daily
def test_every_operator_is_differentiated_or_says_why_not(op: str) -> None:
    assert differentiated(op)


def test_each_operator_has_one_answer() -> None:
    answers = (RULES.keys(), CONSTANT, REFUSED.keys())
    assert sum(map(len, answers)) == len(set().union(*answers))
    assert set().union(*answers) <= operators().keys()


def test_every_rule_is_tested_at_drawn_nodes_or_row_by_row() -> None:
    assert RULES.keys() <= CASES.keys() | ELEMENTS.keys() | LAYERS.keys() | set(NESTED)


def test_the_page_is_up_to_date() -> None:
    """To update it: python tests/support/operator_table.py."""
    assert PAGE.read_text() == page()


@pytest.mark.parametrize("framework", TABLES)
def test_dropout_is_written_out_and_what_has_no_case_says_so(framework: str) -> None:
    own = "" if framework == "onnxruntime" else "form "
    assert re.fullmatch(rf"{own}\d+/\d+", forward(framework, "Dropout"))
    drawn = {"onnxruntime": "no case", "reference": "native"}
    assert forward(framework, "RandomNormal") == drawn.get(framework, "composite")
    assert set(_SPECIAL) >= FORMS
