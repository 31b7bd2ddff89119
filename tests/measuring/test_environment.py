"""The record of machine, software and source: complete, in JSON's types, without heavy imports or secrets."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import jsonschema
import numpy as np
import psutil
import pytest

import deep5
from deep5.core.plugins import registered
from deep5.measuring import environment
from deep5.results.schema import schema

SCHEMA = schema()


def validate(value: object, rule: dict[str, object]) -> None:
    jsonschema.Draft202012Validator({**rule, "$defs": SCHEMA["$defs"]}).validate(value)


@pytest.fixture(scope="module")
def system() -> dict[str, object]:
    return environment.describe_system()


def test_the_system_is_the_one_that_runs_this_test(system: dict[str, object]) -> None:
    validate(system, SCHEMA["$defs"]["system"])
    json.dumps(system, allow_nan=False)
    assert system["cpu"]["model"]
    assert system["cpu"]["logical_cores"] == os.cpu_count()
    assert system["memory_bytes"]["total"] == psutil.virtual_memory().total
    assert set(system["affinity"]) == os.sched_getaffinity(0)
    assert len(system["load_average"]) == 3


def test_the_model_of_the_processor_is_looked_up_once(system: dict[str, object], monkeypatch) -> None:
    import cpuinfo

    def again() -> None:
        raise RuntimeError("looked up a second time")

    monkeypatch.setattr(cpuinfo, "get_cpu_info", again)
    assert environment.describe_system()["cpu"]["model"] == system["cpu"]["model"]


def test_the_processor_is_the_one_that_py_cpuinfo_reads(system: dict[str, object], monkeypatch) -> None:
    import cpuinfo

    found = cpuinfo.get_cpu_info()
    assert (system["cpu"]["model"], system["cpu"]["vendor"]) == (found["brand_raw"], found.get("vendor_id_raw"))
    monkeypatch.setattr(environment, "_listed_cpu", lambda: (None, None))
    assert environment._cpu.__wrapped__() == environment._cpu()


def test_the_software_is_what_is_installed(monkeypatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    monkeypatch.setenv("XLA_FLAGS", "--xla_x")
    monkeypatch.setenv("DEEP5_SOMETHING", "1")
    monkeypatch.setenv("DEEP5_TOKEN", "secret")
    monkeypatch.setenv("TF_VAR_password", "secret")
    monkeypatch.setenv("TORCH_API_KEY", "secret")
    monkeypatch.setenv("HOME_OF_NOBODY", "1")
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "7")
    monkeypatch.setenv("KMP_INIT_AT_FORK", "FALSE")
    monkeypatch.setenv("CUDA_MODULE_LOADING", "LAZY")
    software = environment.describe_software()
    validate(software, SCHEMA["properties"]["software"])
    assert software["python"] == sys.version.split()[0]
    assert software["deep5"] == deep5.__version__
    assert software["packages"]["numpy"] == np.__version__
    assert software["packages"]["scipy"] == metadata.version("scipy")
    variables = software["environment_variables"]
    assert (variables["OMP_NUM_THREADS"], variables["XLA_FLAGS"], variables["DEEP5_SOMETHING"]) == ("2", "--xla_x", "1")
    assert "HOME_OF_NOBODY" not in variables
    # Variables that libraries set when they load; otherwise runs of two frameworks would have two environments.
    assert not variables.keys() & {"TF_CPP_MIN_LOG_LEVEL", "KMP_INIT_AT_FORK", "CUDA_MODULE_LOADING"}
    monkeypatch.setenv("CUDA_MODULE_LOADING", "EAGER")  # set by a user
    assert environment.describe_software()["environment_variables"]["CUDA_MODULE_LOADING"] == "EAGER"
    assert "secret" not in json.dumps(software)


def test_the_versions_of_every_framework_are_listed() -> None:
    packages = environment.describe_software()["packages"]
    for name, point in registered("frameworks").items():
        for package in point.load().requires:
            assert package in environment.PACKAGES, name
            with contextlib.suppress(metadata.PackageNotFoundError):
                assert packages[package] == metadata.version(package)


@pytest.mark.parametrize(
    ("variables", "own", "threads"),
    [
        ({"OMP_NUM_THREADS": "3"}, "MKL_NUM_THREADS", 3),
        ({"OMP_NUM_THREADS": "3,2"}, "MKL_NUM_THREADS", 3),
        ({"OMP_NUM_THREADS": "3", "PJRT_NPROC": "2"}, "MKL_NUM_THREADS", 3),
        ({"OMP_NUM_THREADS": "3", "PJRT_NPROC": "2"}, "PJRT_NPROC", None),
        ({"TF_NUM_INTRAOP_THREADS": "2"}, "TF_NUM_INTRAOP_THREADS", None),
        ({"OMP_NUM_THREADS": "0"}, "", "cores"),
        ({"OMP_NUM_THREADS": "many"}, "MINE", "cores"),
        ({}, "OPENBLAS_NUM_THREADS", "cores"),
    ],
)
def test_default_threads(variables: dict[str, str], own: str, threads: object, monkeypatch) -> None:
    for name in ("OMP_NUM_THREADS", own):
        if name:
            monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    if threads == "cores":
        threads = min(psutil.cpu_count(logical=False), len(os.sched_getaffinity(0)))
    assert environment.default_threads(own) == threads


def test_frameworks_name_the_variable_that_they_take_their_threads_from() -> None:
    found = {name: point.load().thread_variable for name, point in registered("frameworks").items()}
    assert found["jax"] == "PJRT_NPROC"
    assert found["pytorch"] == "MKL_NUM_THREADS"
    assert found["tensorflow"] == "TF_NUM_INTRAOP_THREADS"
    assert found["onnxruntime"] == found["openvino"] == ""


def test_the_package_list_hash_changes_with_any_package(monkeypatch) -> None:
    monkeypatch.setattr(environment, "_distributions", lambda: [("B.b", "2"), ("a", "1"), ("a", "0")])
    software = environment.describe_software()
    assert software["package_list_hash"] == hashlib.sha256(b"a==0\na==1\nb-b==2").hexdigest()
    assert software["package_count"] == 3
    monkeypatch.setattr(environment, "_distributions", lambda: [("numpy", "1"), ("numpy", "0")])
    assert environment.describe_software()["packages"] == {"numpy": "1"}, (
        "the first on the path is the one that imports"
    )


def test_what_setuptools_brings_along_is_no_package_of_this_environment() -> None:
    """Compiling with PyTorch imports setuptools; two processes of one run would have two environments."""
    before = "from deep5.measuring.environment import describe_software; import json; first = describe_software()"
    after = "print(json.dumps([first, describe_software(), len(sys.path) > known]))"
    program = f"{before}\nimport sys\nknown = len(sys.path)\nimport setuptools\n{after}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    first, second, longer = json.loads(done.stdout)
    assert longer  # setuptools has put its own packages on the path
    assert first == second


def test_the_hash_holds_what_lasts_and_leaves_out_what_passes(system: dict[str, object]) -> None:
    software = environment.describe_software()
    before = environment.environment_hash(system, software)
    passing = {
        **system,
        "host": "elsewhere",
        "load_average": [9.0, 9.0, 9.0],
        "cpu": {**system["cpu"], "clock_mhz": 1.0},
        "memory_bytes": {**system["memory_bytes"], "available": 1},
    }
    assert environment.environment_hash(passing, {**software, "commit": None}) == before
    lasting = [
        ({**system, "cpu": {**system["cpu"], "model": "another"}}, software),
        ({**system, "affinity": [0, 1, 2, 3, 4]}, software),
        ({**system, "accelerators": [{"name": "one", "driver": "1"}]}, software),
        (system, {**software, "package_list_hash": "0" * 64}),
        (system, {**software, "environment_variables": {"OMP_NUM_THREADS": "77"}}),
    ]
    assert len({before, *(environment.environment_hash(*pair) for pair in lasting)}) == len(lasting) + 1


def fake(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def test_accelerators_are_read_from_nvidia_smi(tmp_path, monkeypatch) -> None:
    line = "0, NVIDIA H100 80GB HBM3, GPU-1234, 550.54.15, 81559, 1980, 1980, 31, 69.52"
    fake(tmp_path, "nvidia-smi", f"echo '{line}'\necho '{line.replace('69.52', '[N/A]')}'")
    monkeypatch.setenv("PATH", str(tmp_path))
    devices, error = environment._accelerators()
    assert error is None
    assert devices[0] == {
        "index": 0,
        "name": "NVIDIA H100 80GB HBM3",
        "uuid": "GPU-1234",
        "driver": "550.54.15",
        "memory_mib": 81559,
        "clock_mhz": 1980,
        "clock_max_mhz": 1980,
        "temperature_c": 31,
        "power_w": 69.52,
    }
    assert devices[1]["power_w"] is None


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo 'cannot talk to the driver' >&2; exit 9", "nvidia-smi returned 9: cannot talk to the driver"),
        ("echo what", "expected 9 cells"),
    ],
)
def test_a_broken_nvidia_smi_is_told_and_not_passed_over(tmp_path, monkeypatch, script: str, reason: str) -> None:
    fake(tmp_path, "nvidia-smi", script)
    monkeypatch.setenv("PATH", str(tmp_path))
    devices, error = environment._accelerators()
    assert devices == []
    assert reason in error


def test_no_nvidia_smi_is_no_error(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert environment._accelerators() == ([], None)


def test_a_command_that_hangs_is_given_up(tmp_path) -> None:
    fake(tmp_path, "hang", "exec sleep 30")
    # 0.3 s: long enough to start a shell, short enough not to slow the suite down.
    assert environment._run([str(tmp_path / "hang")], timeout_s=0.3) == (None, "hang did not answer within 0.3 s")


def git(folder: Path, *words: str) -> None:
    names = ["-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", "-C", str(folder), *names, *words], check=True, capture_output=True)  # noqa: S607


def test_the_commit_is_that_of_the_tree_that_tracks_the_package(tmp_path) -> None:
    package = tmp_path / "deep5"
    package.mkdir()
    (package / "__init__.py").write_text("")
    assert environment._commit(package) is None, "no work tree"
    git(tmp_path, "init", "-q")
    (tmp_path / "other").write_text("")
    git(tmp_path, "add", "other")
    git(tmp_path, "commit", "-qm", "first")
    assert environment._commit(package) is None, "somebody else's work tree, in which the package merely lies"
    git(tmp_path, "add", "deep5")
    git(tmp_path, "commit", "-qm", "second")
    clean = environment._commit(package)
    assert len(clean["id"]) == 40
    assert clean["dirty"] is False
    (package / "new.py").write_text("")
    assert environment._commit(package) == {"id": clean["id"], "dirty": True}


def test_info_names_the_blas_that_numpy_uses() -> None:
    found = environment.info()
    json.dumps(found, allow_nan=False)
    assert found["deep5"]["version"] == deep5.__version__
    assert any(pool["user_api"] == "blas" and pool["num_threads"] >= 1 for pool in found["blas"])
    assert found["environment_hash"] == environment.environment_hash(found["system"], found["software"])


def test_describing_the_software_imports_none_of_it() -> None:
    code = (
        "import sys; from deep5.measuring import environment\n"
        "heavy = {'numpy', 'scipy', 'torch', 'tensorflow', 'jax', 'onnx', 'onnxruntime', 'psutil', 'cpuinfo'}\n"
        "environment.describe_software(); print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"
