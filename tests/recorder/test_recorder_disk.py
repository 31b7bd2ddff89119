"""A disk that is really full while a loop is recorded."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from deep5.audit.folders import audit
from deep5.results.result import load

# Saves at every opportunity; the disk is filled after the first epoch, and may be emptied after the recording.
_PROGRAM = """
import errno, os, sys
import deep5 as d5
from deep5.recorder import outcome

outcome._INTERVAL_NS = outcome._MULTIPLE = 0
disk, empties = sys.argv[1], sys.argv[2] == "empties"
weights = 0.0
with d5.record("full", {"training_loss": "< 5"}, out=disk, quiet=True) as run:
    for epoch in range(3):
        if epoch == 1:
            with open(f"{disk}/rest", "wb", buffering=0) as rest:
                try:
                    while True:
                        rest.write(bytes(4096))
                except OSError as error:
                    assert error.errno == errno.ENOSPC
        with run.epoch():
            for _ in range(50):
                with run.step(batch_size=2), run.region("forward"):
                    weights += 1.0
                    run.log(loss=1.0)
assert weights == 150.0
print("trained", flush=True)
if empties:
    os.unlink(f"{disk}/rest")
    assert run.result.accepted, run.result
else:
    try:
        run.result
    except d5.errors.OutputError as error:
        print(error)
"""


@pytest.mark.parametrize("after", ["empties", "stays"])
def test_a_disk_that_is_really_full_harms_no_loop(after: str, tmp_path: Path) -> None:
    unshare, disk, kept = shutil.which("unshare") or "", tmp_path / "disk", tmp_path / "kept"
    for folder in (disk, kept):
        folder.mkdir()
    space = [unshare, "-rm", "sh", "-c"]
    mount = f'mount -t tmpfs -o size=400k none "{disk}"'
    if not unshare or subprocess.run([*space, mount], capture_output=True, timeout=60, check=False).returncode:
        pytest.skip("this machine mounts nothing")
    script = f'{mount} && "$0" -c "$1" "{disk}" {after}; status=$?; cp -a "{disk}/." "{kept}"; exit $status'
    done = subprocess.run(
        [*space, script, sys.executable, _PROGRAM],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("trained\n")
    assert "Traceback" not in done.stderr
    assert done.stderr.count("No space left on device") == 2  # of the first save, and of the result
    assert done.stderr.count("the loop continues, and its samples stay in memory") == 1
    assert done.stderr.count("the samples are still in memory: run.result writes them") == 1
    (folder,) = (path for path in kept.iterdir() if path.is_dir())
    result = load(folder)
    assert result.status == ("success" if after == "empties" else "aborted")
    # Of the first epoch at least: it was saved while there was space.
    assert len(result.samples()["time[step]"]) == (150 if after == "empties" else 50)
    if after == "stays":
        assert "No space left on device" in done.stdout
    assert audit([folder]), audit([folder]).findings
