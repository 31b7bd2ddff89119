"""Nodes that an engine computes otherwise than ONNX: its back-end is right, or refuses them by name."""

from __future__ import annotations

import pytest

from drawn_runs import outcome, truth
from wrong_cases import WRONG


@pytest.mark.parametrize("framework", ["onnxruntime", "openvino"])
@pytest.mark.parametrize("name", WRONG)
def test_it_is_right_or_refused(name: str, framework: str) -> None:
    case, refused = WRONG[name]
    right = truth(case)
    assert right.outputs is not None
    assert not right.open, right.open
    assert outcome(case, "reference", right).kind == "agreed"
    found = outcome(case, framework, right)
    if framework in refused:
        assert found.kind == "refused", found
        assert refused[framework] in found.reason
    else:
        assert found.kind == "agreed", found
