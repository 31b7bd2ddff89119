"""Damaged and contradictory files of every kind: a `Deep5Error` with what is allowed or a remedy, or a right result."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import damaged_files
import deep5 as d5
import kept
from command import Command
from damaged_files import DAMAGES, KINDS, bytes_damaged, damaged

pytestmark = pytest.mark.usefixtures("warm")

FRAMEWORKS = ["reference", "onnxruntime", "pytorch", "tensorflow", "jax", "openvino"]
# Seconds for all files together: each takes milliseconds, but engines compile.
LIMIT_S = 500

RUN = """
import json, sys, warnings
from pathlib import Path
import numpy as np
import deep5 as d5
from deep5.networks.random_feed import random_feed

warnings.simplefilter("ignore")
framework = d5.framework(sys.argv[1])
for path in map(Path, json.loads(sys.stdin.read())):
    print(path.stem, end=" ", flush=True)
    try:
        network = d5.Network.from_onnx(path)
        extents = {each: 2 for spec in network.inputs.values() for each in spec.shape if isinstance(each, str)}
        feed = random_feed(network, extents)
        found = framework.executor(network).inference(feed)
        outputs = {name: d5.to_numpy(value) for name, value in found.items() if not isinstance(value, list)}
        np.savez(path.with_suffix(".npz"), **{f"in {k}": v for k, v in feed.items()},
                 **{f"out {k}": v for k, v in outputs.items()})
        print(json.dumps(["ran", ""]))
    except d5.Deep5Error as error:
        print(json.dumps(["refused", str(error)]))
    except BaseException as error:
        print(json.dumps(["raw", f"{type(error).__name__}: {error}"[:300]]))
"""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    def make(folder: Path) -> None:
        for kind, build in KINDS.items():
            (folder / f"{kind}.onnx").write_bytes(build().SerializeToString())

    sources = [Path(damaged_files.__file__)]
    return kept.folder("damaged", make, tmp_path_factory.mktemp("damaged"), sources=sources, packages=("onnx", "torch"))


def write(models: Path, folder: Path, seeds: range, kinds: tuple[str, ...] = tuple(KINDS)) -> list[Path]:
    """The damaged files."""
    (folder / "short.bin").write_bytes(b"12")
    found = []
    for kind in kinds:
        data = (models / f"{kind}.onnx").read_bytes()
        files = {f"{kind}-whole": data}
        files |= {f"{kind}-bytes-{seed}": bytes_damaged(data, seed) for seed in range(len(seeds) * 4)}
        for damage in DAMAGES:
            for seed in seeds:
                made = damaged(onnx.ModelProto.FromString(data), damage, seed)
                if made is not None:
                    files[f"{kind}-{damage}-{seed}"] = made.SerializeToString()
        for name, content in files.items():
            found.append(folder / f"{name}.onnx")
            found[-1].write_bytes(content)
    return found


def answers(framework: str, files: list[Path]) -> dict[str, list[str]]:
    done = subprocess.run(
        [sys.executable, "-c", RUN, framework], input=json.dumps(list(map(str, files))), capture_output=True, text=True,
        timeout=LIMIT_S, check=False,
    )  # fmt: skip
    lines = dict(line.split(" ", 1) for line in done.stdout.splitlines() if " " in line)
    assert (done.returncode, len(lines)) == (0, len(files)), done.stdout[-300:] + done.stderr[-2000:]
    return {name: json.loads(answer) for name, answer in lines.items()}


def plain(path: Path, feed: dict[str, np.ndarray]) -> dict[str, Any] | None:
    """What plain ONNX Runtime computes, without its optimizations; None if it refuses the file."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(path, options)
        names = {value.name for value in session.get_inputs()}
        found = session.run(None, {name: value for name, value in feed.items() if name in names})
    except Exception:  # ONNX Runtime raises private classes
        return None
    return dict(zip((value.name for value in session.get_outputs()), found, strict=True))


def check(framework: str, files: list[Path]) -> None:
    found = answers(framework, files)
    assert not {name: said for name, (outcome, said) in found.items() if outcome == "raw"}
    for name, (outcome, said) in found.items():
        if outcome == "refused":
            assert "allowed" in said or "remedy" in said, (name, said)
            assert len(said) < 5000, name
    assert sum(outcome == "ran" for outcome, _ in found.values()) >= len(files) / 20
    compared = 0
    for path in files:
        if not path.with_suffix(".npz").is_file():
            continue
        with np.load(path.with_suffix(".npz")) as held:
            feed = {name.removeprefix("in "): held[name] for name in held if name.startswith("in ")}
            outputs = {name.removeprefix("out "): held[name] for name in held if name.startswith("out ")}
        expected = plain(path, feed)
        compared += expected is not None
        for name, value in (expected or {}).items():
            if isinstance(value, np.ndarray) and name in outputs:
                rough, right = value.dtype == np.float16, value.astype(float)
                # OpenVINO's Relu makes NaN 0, and so does that which TensorFlow fuses with MatMul and Add.
                kept = np.isfinite(right) | (framework not in ("openvino", "tensorflow"))
                if path.stem.startswith("recurrent-numbers_not_finite"):
                    # The product of an initial state of 0 and infinite weights, which ONNX Runtime leaves out.
                    kept = kept & np.isfinite(outputs[name].astype(float))
                np.testing.assert_allclose(
                    outputs[name].astype(float)[kept], right[kept], rtol=1e-2 if rough else 1e-4, atol=1e-3,
                    err_msg=path.stem,
                )  # fmt: skip
    assert compared >= 5


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_sample(framework: str, models: Path, tmp_path: Path) -> None:
    check(framework, write(models, tmp_path, range(1)))


@pytest.mark.slow
@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("first", range(1, 13, 4))
def test_many(framework: str, first: int, models: Path, tmp_path: Path) -> None:
    check(framework, write(models, tmp_path, range(first, first + 4)))


@pytest.mark.parametrize("kind", KINDS)
def test_show_network_answers(kind: str, models: Path, tmp_path: Path, deep5: Command) -> None:
    """Layers, or a message of one line; a traceback is printed for neither."""
    files = write(models, tmp_path, range(1), (kind,))
    shown = 0
    for number, path in enumerate(files):
        answer = deep5("show", "network", str(path), *(["--run"] if number % 3 == 0 else []))
        assert answer.status in (0, 2), (path.stem, answer)
        assert "Traceback" not in answer.err, path.stem
        said = answer.err[answer.err.rfind("deep5: ") :]  # each node that cannot run has its line
        if answer.status:
            assert answer.out == ""
            assert "allowed" in said or "remedy" in said, (path.stem, said)
        shown += answer.status == 0
    assert shown or kind == "zipmap"


def test_each_damage_applies_to_some_kind(models: Path) -> None:
    made = {kind: onnx.load(models / f"{kind}.onnx") for kind in KINDS}
    for damage in DAMAGES:
        found = (damaged(model, damage, 0) for model in made.values())
        assert any(each is not None and each != whole for each, whole in zip(found, made.values(), strict=True)), damage


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "zipmap"])
def test_whole_files_are_read(kind: str, models: Path) -> None:
    assert d5.Network.from_onnx(models / f"{kind}.onnx").outputs
