"""A run in another precision than the network's own starts from the weights that such a run left."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from command import Command

FLOAT64 = ("run", "digits_lenet", "--size", "smoke", "--quiet", "--json", "--set", "precision=float64")


def test_a_float64_run_starts_from_its_own_weights(deep5: Command, tmp_path: Path) -> None:
    first = json.loads(deep5(*FLOAT64).out)
    weights = str(Path(first["folder"]) / "weights.safetensors")
    assert {value.dtype for value in load_file(weights).values()} == {np.dtype(np.float64)}
    again = deep5(*FLOAT64, "--init", weights)
    assert again.err == ""
    second = json.loads(again.out)
    assert second["provenance"]["initial_weights"] == first["provenance"]["trained_weights"]
    assert deep5("check", "digits_lenet", "--quiet", "--set", "precision=float64", "--init", weights) == (0, "", "")


@pytest.mark.parametrize("precision", ["float64", "bfloat16"])
def test_weights_of_the_network_as_it_is_built_still_fit(precision: str, deep5: Command, tmp_path: Path) -> None:
    command = ("run", "digits_lenet", "--size", "smoke", "--quiet", "--json")
    weights = str(Path(json.loads(deep5(*command).out)["folder"]) / "weights.safetensors")
    answer = deep5("check", "digits_lenet", "--quiet", "--set", f"precision={precision}", "--init", weights)
    assert answer == (0, "", "")


def test_what_fits_in_no_precision_is_reported_once(deep5: Command, tmp_path: Path) -> None:
    first = json.loads(deep5(*FLOAT64).out)
    values = load_file(Path(first["folder"]) / "weights.safetensors")
    name = sorted(values)[0]
    values[name] = np.zeros((3, 3))
    save_file(values, tmp_path / "other.safetensors")
    answer = deep5(*FLOAT64, "--init", "other.safetensors")
    assert answer.status == 2
    assert f"do not fit the network: {name!r}: " in answer.err
    assert "float64" in answer.err
    assert len(answer.err) < 400  # only the one that does not fit
