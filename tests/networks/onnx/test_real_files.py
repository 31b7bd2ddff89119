"""`tests/real_files.py` on a small wheel that the tests write: list, cache, trials and page. Nothing is downloaded."""

from __future__ import annotations

import hashlib
import json
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import deep5 as d5
import real_run
import real_trials
from deep5.core.errors import UsageError
from original import declared, graph_model
from real_exports import EXPORTS
from real_page import counted, page
from real_trials import original, trial, with_loss
from real_wheels import File, Wheel, cached, delete_unlisted, read_list, unpack

DRAW = np.random.default_rng(0)
WEIGHTS = {"w": DRAW.standard_normal((4, 3)).astype(np.float32), "b": DRAW.standard_normal(3).astype(np.float32)}


def small() -> onnx.ModelProto:
    nodes = [helper.make_node("Gemm", ["x", "w", "b"], ["h"]), helper.make_node("Tanh", ["h"], ["y"])]
    outputs = [declared("y", ["n", 3]), declared("best", ["n", 1], onnx.TensorProto.INT64)]
    nodes.append(helper.make_node("ArgMax", ["y"], ["best"], axis=1))
    return graph_model(nodes, [declared("x", ["n", 4])], outputs, WEIGHTS)


@pytest.fixture
def listed(tmp_path: Path) -> tuple[Wheel, Path]:
    """An entry of the list, and its wheel outside the cache."""
    path = tmp_path / "index" / "little-1.0-py3-none-any.whl"
    path.parent.mkdir()
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("little/model.onnx", small().SerializeToString())
    wheel = Wheel(
        package="little",
        version="1.0",
        wheel=path.name,
        sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
        size_bytes=path.stat().st_size,
        license="MIT",
        topic="nothing",
        files=(File(path="little/model.onnx", sizes={"n": 2}),),
    )
    return wheel, path


def bring(path: Path) -> Any:
    return lambda wheel, folder: (folder / wheel.wheel).write_bytes(path.read_bytes())


# The cache


def test_a_wheel_is_downloaded_once_and_again_when_it_is_damaged(listed: tuple[Wheel, Path], tmp_path: Path) -> None:
    wheel, path = listed
    folder = tmp_path / "cache"
    assert cached(wheel, folder, bring(path)).read_bytes() == path.read_bytes()
    assert cached(wheel, folder, lambda *_: pytest.fail("it is there")) == folder / wheel.wheel
    (folder / wheel.wheel).write_bytes(b"damaged")
    assert cached(wheel, folder, bring(path)).read_bytes() == path.read_bytes()


def test_another_content_is_refused_and_not_kept(listed: tuple[Wheel, Path], tmp_path: Path) -> None:
    wheel, path = listed
    other = bytearray(path.read_bytes())
    other[-1] ^= 1
    path.write_bytes(other)
    with pytest.raises(UsageError, match=f"expected {wheel.size_bytes} bytes with the SHA-256 {wheel.sha256}"):
        cached(wheel, tmp_path / "cache", bring(path))
    path.write_bytes(b"short")
    with pytest.raises(UsageError, match="got 5 bytes"):
        cached(wheel, tmp_path / "cache", bring(path))
    assert list((tmp_path / "cache").iterdir()) == []


def test_another_platforms_wheel_is_refused(listed: tuple[Wheel, Path], tmp_path: Path) -> None:
    wheel, _ = listed
    with pytest.raises(UsageError, match=r"pip brought other.whl; expected little-1.0-py3-none-any.whl"):
        cached(wheel, tmp_path / "cache", lambda _, folder: (folder / "other.whl").write_bytes(b""))


def test_what_is_no_longer_listed_is_deleted(listed: tuple[Wheel, Path], tmp_path: Path) -> None:
    wheel, path = listed
    folder = tmp_path / "cache"
    cached(wheel, folder, bring(path))
    (folder / "older-0.9-py3-none-any.whl").write_bytes(b"")
    assert delete_unlisted([wheel], folder) == [folder / "older-0.9-py3-none-any.whl"]
    assert [each.name for each in folder.iterdir()] == [wheel.wheel]


def test_a_wheel_without_a_listed_file(listed: tuple[Wheel, Path], tmp_path: Path) -> None:
    wheel, path = listed
    with pytest.raises(UsageError, match=r"contains no other\.onnx"):
        unpack(path, wheel, File(path="other.onnx"), tmp_path / "a.onnx")


def test_the_list_names_a_dozen_packages_fixed_by_hash() -> None:
    wheels = read_list()
    assert len([wheel for wheel in wheels if wheel.files]) >= 12
    assert all(len(bytes.fromhex(wheel.sha256)) == 32 and wheel.size_bytes and wheel.license for wheel in wheels)
    assert len({wheel.wheel for wheel in wheels}) == len(wheels)
    assert sum(wheel.size_bytes for wheel in wheels) < 1.5e9
    assert all(needs for needs, _ in EXPORTS.values())


# Trials


def silent(doing: str) -> None:
    """Drop a report."""


def ran(path: Path, folder: Path, *back_ends: str) -> dict[str, Any]:
    original(str(path), str(folder), {"n": 2}, {}, silent)
    found = {"original": json.loads((folder / "original.json").read_text())}
    for name in back_ends:
        trial(str(path), str(folder), name, "steps", silent)
        found[name] = json.loads((folder / f"{name}.json").read_text())
    return found


def test_a_file_that_works(listed: tuple[Wheel, Path], tmp_path: Path) -> None:
    wheel, path = listed
    file = tmp_path / "model.onnx"
    unpack(path, wheel, wheel.files[0], file)
    found = ran(file, tmp_path, "reference", "onnxruntime")
    assert found["original"]["operators"] == {"ArgMax": 1, "Gemm": 1, "Tanh": 1}
    assert [found["original"][part] for part in ("import", "inputs", "plain")] == ["works"] * 3
    for name in ("reference", "onnxruntime"):
        assert [found[name][part] for part in ("forward", "backward", "steps")] == ["works"] * 3
        assert found[name]["peak_bytes"] > 0


def test_wrong_outputs_gradients_and_losses_are_found(
    listed: tuple[Wheel, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel, path = listed
    file = tmp_path / "model.onnx"
    unpack(path, wheel, wheel.files[0], file)
    ran(file, tmp_path, "reference")
    with np.load(tmp_path / real_trials.GRADIENTS) as stored:
        kept = dict(stored)
    np.savez(tmp_path / real_trials.GRADIENTS, **kept | {"of:b": 1.01 * kept["of:b"]})
    trial(str(file), str(tmp_path), "onnxruntime", "steps", silent)
    found = json.loads((tmp_path / "onnxruntime.json").read_text())
    assert found["backward"].startswith("wrong: the gradient of b differs by")
    np.savez(tmp_path / real_trials.GRADIENTS, **kept)
    (tmp_path / "losses.json").write_text("[1, 1, 1]")
    trial(str(file), str(tmp_path), "onnxruntime", "steps", silent)
    assert json.loads((tmp_path / "onnxruntime.json").read_text())["steps"].startswith("wrong: the losses are [")
    with np.load(tmp_path / real_trials.EXPECTED) as stored:
        values = dict(stored)
    np.savez(tmp_path / real_trials.EXPECTED, **values | {"out:y": values["out:y"] + np.float32(1e-3)})
    trial(str(file), str(tmp_path), "onnxruntime", "steps", silent)
    assert json.loads((tmp_path / "onnxruntime.json").read_text())["forward"].startswith("wrong: y differs by 0.001")


def test_a_file_that_cannot_be_read_is_reported(tmp_path: Path) -> None:
    model = small()
    model.graph.node[1].op_type = "Tahn"
    onnx.save(model, tmp_path / "a.onnx")
    found = ran(tmp_path / "a.onnx", tmp_path)
    assert "Tahn" in found["original"]["import"]
    assert "plain" not in found["original"]


def test_the_loss_is_the_mean_of_squares_of_all_float_outputs() -> None:
    network = with_loss(d5.Network.from_onnx(small()), ["y"])
    x = DRAW.standard_normal((2, 4)).astype(np.float32)
    outputs = d5.framework("reference").executor(network).inference({"x": x})
    y = np.tanh(x @ WEIGHTS["w"] + WEIGHTS["b"])
    np.testing.assert_allclose(d5.to_numpy(outputs["loss:all"]), np.mean(y * y), rtol=1e-6)


# The command


@pytest.fixture
def command(listed: tuple[Wheel, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Arguments with which the command runs the small wheel only, from its own cache."""
    wheel, path = listed
    monkeypatch.setenv("DEEP5_CACHE", str(tmp_path / "cache"))
    folder = real_run.wheel_folder()
    folder.mkdir(parents=True)
    (folder / wheel.wheel).write_bytes(path.read_bytes())
    monkeypatch.setattr(real_run, "read_list", lambda: (wheel,))
    monkeypatch.setattr(real_run, "EXPORTS", {})
    return ["--only", "little", "--page", str(tmp_path / "page.md"), "--work", str(tmp_path / "work")]


def test_the_command_writes_the_page(command: list[str], tmp_path: Path) -> None:
    assert real_run.main([*command, "--backends", "reference"]) == 0
    text = (tmp_path / "page.md").read_text()
    assert "| little, model.onnx | nothing | MIT |" in text
    assert "| forward | 1 | 1 (100.0 %) |" in text


def test_a_file_that_ends_the_process_fails_and_the_others_run(command: list[str], tmp_path: Path) -> None:
    folders = [tmp_path / name for name in "abc"]
    for folder in folders:
        folder.mkdir()
    options = real_run.parsed(command, "")
    real_run.run_jobs(ends_at_b, [[str(folder)] for folder in folders], "jax", "", options, {"sources": "1"})
    assert [real_trials.done(folder, "jax").exists() for folder in folders] == [True, False, True]
    (found,) = (json.loads((folder / "jax.json").read_text()) for folder in folders if folder.name == "b")
    assert found == {"sources": "1", "forward": "fails: exited with status 7 in the next file"}


def ends_at_b(jobs: list[list[str]], origin: dict[str, str], report: Any) -> None:
    for (folder,) in jobs:
        report(real_trials.NEXT)
        if folder.endswith("b"):
            os._exit(7)
        real_trials.done(Path(folder), "jax").touch()


def test_the_command_resumes_and_runs_again_when_the_sources_change(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "work" / "little-0"
    assert real_run.main([*command, "--backends", "reference", "--last", "forward"]) == 0
    first = json.loads((place / "reference.json").read_text())
    assert "backward" not in first
    (place / "reference.json").write_text(json.dumps({**first, "forward_s": 12.5}))
    assert real_run.main([*command, "--backends", "reference"]) == 0
    then = json.loads((place / "reference.json").read_text())
    assert then["forward_s"] == 12.5  # only the other parts ran
    assert [then[part] for part in ("backward", "steps")] == ["works"] * 2
    stamp = (place / "reference.json").stat().st_mtime_ns
    assert real_run.main([*command, "--backends", "reference"]) == 0
    assert (place / "reference.json").stat().st_mtime_ns == stamp
    monkeypatch.setattr(real_run, "versions", lambda: {"engine": "another"})
    assert real_run.main([*command, "--backends", "onnxruntime"]) == 0
    assert not (place / "reference.json").exists()
    text = (tmp_path / "page.md").read_text()
    assert "| little, model.onnx | not run | not run | works; " in text
    assert "have not run yet: 5." in " ".join(text.split())


def test_fresh_runs_everything_again(command: list[str], tmp_path: Path) -> None:
    place = tmp_path / "work" / "little-0" / "reference.json"
    for more in ([], ["--fresh"]):
        assert real_run.main([*command, "--backends", "reference", *more]) == 0
        assert "seen" not in place.read_text()
        place.write_text(json.dumps({**json.loads(place.read_text()), "seen": 1}))


# The page


def result(forward: str, operators: dict[str, int], **parts: Any) -> dict[str, Any]:
    known = {"import": "works", "import_s": 0.1, "inputs": "works", "plain": "works", "operators": operators}
    found = {"forward": forward, "forward_s": 0.5, **parts}
    return {"topic": "a topic", "license": "MIT", "original": known, "back_ends": {"jax": found}}


def test_the_page_counts_what_the_element_types_allow() -> None:
    results = {
        "a": result("works", {"Add": 1}, backward="works", gradient_s=0.25, steps="works"),
        "b": result(
            "refused: jax cannot run this network: q (Q): no domain 'com.microsoft' r (R): no",
            {"com.microsoft:QLinearAdd": 1},
        ),
        "c": result("wrong: y differs", {"Add": 1}),
        "e": result('fails: File "/home/me/lib/site-packages/numpy/io.py", line 3', {"Add": 1}),
        "d": {**result("works", {}), "original": {"import": "fails: no", "operators": {}}, "back_ends": {}},
    }
    assert counted(results, ["jax"]) == {"works": 1, "refused": 0, "wrong": 1, "fails": 2, "types": 1, "none": 0}
    text = page(results, ["jax"], {"jax": "0.1"})
    assert "| forward | 4 | 1 (25.0 %) | 0 | 1 | 2 | 1 |" in text
    assert "| a | works; f 0.5, g 0.25 |" in text
    assert "- `refused: no domain 'com.microsoft'`\n  - jax, forward: b\n" in text
    assert '- `fails: File "numpy/io.py", line 3`\n  - jax, forward: e\n' in text
    assert "- `wrong: y differs`\n  - jax, forward: c\n" in text
