"""TensorFlow's start-up reports are hidden in deep5's processes, whoever imports it; its errors are not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

LEVEL = "TF_CPP_MIN_LOG_LEVEL"
NET = """
import os
import keras
import tensorflow as tf

level = os.environ["TF_CPP_MIN_LOG_LEVEL"]
tf.get_logger().error("an error at level " + level)

def net():
    return keras.Sequential([keras.Input((1, 28, 28)), keras.layers.Flatten(), keras.layers.Dense(10)])
"""
# A search for TensorFlow is no import of it.
STARTED = """
import importlib.util, os, sys
from deep5.core.library_reports import hide_reports
hide_reports()
hide_reports()
assert len([finder for finder in sys.meta_path if type(finder).__module__ == hide_reports.__module__]) == 1
importlib.util.find_spec("tensorflow")
assert "tensorflow" not in sys.modules
print(os.environ["TF_CPP_MIN_LOG_LEVEL"])
"""


def python(*words: str, cwd: Path, level: str | None) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != LEVEL}
    environment |= {} if level is None else {LEVEL: level}
    command = [sys.executable, *words]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize(("given", "found"), [(None, "2"), ("0", "0")])
def test_a_level_that_the_user_has_set_is_kept(given: str | None, found: str, tmp_path: Path) -> None:
    done = python("-c", STARTED, cwd=tmp_path, level=given)
    assert (done.stdout, done.stderr) == (f"{found}\n", "")


@pytest.mark.slow
def test_a_file_that_imports_keras_is_checked_without_reports(tmp_path: Path) -> None:
    pytest.importorskip("tensorflow")
    (tmp_path / "nets.py").write_text(NET)
    words = ("-m", "deep5", "check", "nets.py:net", "--set", "dataset=digits", "--framework", "tensorflow")
    done = python(*words, cwd=tmp_path, level=None)
    assert "is a valid recipe" in done.stdout
    assert {line.rpartition("an error")[2] for line in done.stderr.splitlines()} == {" at level 2"}, done.stderr
