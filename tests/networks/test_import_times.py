"""A network of 1000 nodes is read and made runnable in 2 seconds on each framework, in addition to its import."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

import deep5 as d5
import import_times
from deep5.core.errors import MissingDependency

GOAL_S = 2.0


@pytest.mark.daily
@pytest.mark.parametrize("framework", ["jax", "onnxruntime", "pytorch", "reference", "tensorflow"])
def test_a_thousand_nodes_are_read_and_run(framework: str, tmp_path: Path) -> None:
    try:
        d5.framework(framework)
    except MissingDependency as error:
        pytest.skip(str(error))
    path = tmp_path / "thousand.onnx"
    import_times.write_network(path)
    found = import_times.measured(framework, path, call=False)
    assert found["nodes"] == import_times.NODES
    assert found["import_s"] > 0
    assert found["executor_s"] > 0


def test_the_network_has_a_thousand_nodes_and_they_stay(tmp_path: Path) -> None:
    path = tmp_path / "thousand.onnx"
    import_times.write_network(path)
    assert len(onnx.load(path).graph.node) == import_times.NODES
    assert len(d5.Network.from_onnx(path).nodes) == import_times.NODES
