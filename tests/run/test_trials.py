"""Trials: runs, ranks, studies and comparisons that are killed, stopped or run out of disk lose nothing.

`python tests/support/trials.py 0 499` makes 500 of them.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import trial_making
import trials
import twins
from deep5.recipe.recipe import load_recipe
from deep5.run.execute import execute
from trial_faults import KILL, STOP, STOP_AND_KILL, Attempt
from trial_making import Lost, Making, Trial, Twin, content
from trial_setups import COMPARISON, RANKS, RUN, SETUPS, STUDY
from trials import TRIALS, drawn

PROGRAM = Path(trials.__file__)


def made(first: int, last: int, out: Path) -> str:
    """The output of the program, which makes these trials."""
    command = [sys.executable, str(PROGRAM), str(first), str(last), "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=850, check=False)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    return done.stdout


@pytest.mark.daily
def test_drawn_trials_lose_nothing(tmp_path: Path) -> None:
    """A run and two ranks that are killed, and a run on a disk that becomes full."""
    said = made(0, 2, tmp_path)
    assert said.splitlines()[-1] in ("0 of 3 lost", "0 of 2 lost")
    assert said.count("status -9") >= 2
    assert "a disk of 8 KiB: status " in said or "neither root nor a user namespace" in said


@pytest.mark.slow
@pytest.mark.parametrize("first", [*range(3, 23, 4), 25, 35, 65, 75])
def test_more_drawn_trials_lose_nothing(first: int, tmp_path: Path) -> None:
    last = first if first > 22 else first + 3
    assert made(first, last, tmp_path).splitlines()[-1].startswith("0 of ")


def test_trials_are_drawn_by_their_number() -> None:
    drawn_ones = [drawn(number) for number in range(TRIALS)]
    assert drawn_ones == [drawn(number) for number in range(TRIALS)]
    assert {trial.setup.name for trial in drawn_ones} == {setup.name for setup in SETUPS}
    kinds = Counter((trial.setup.kind, trial.family) for trial in drawn_ones)
    for kind in (RUN, RANKS, STUDY, COMPARISON):
        least = 1 if kind == COMPARISON else 3
        assert all(kinds[kind, family] >= least for family in (KILL, "full disk")), kinds
    for family in (KILL, STOP, STOP_AND_KILL, "full disk"):
        assert sum(count for (_, each), count in kinds.items() if each == family) >= 50, kinds
    assert any(trial.disk and trial.disk.files for trial in drawn_ones)
    assert any(trial.disk and trial.disk.scratch for trial in drawn_ones)


# An event that forgets how far it came: a resumed run stops later than its twin.
FORGETS = """
import sys
sys.path[:0] = [sys.argv[1]]
from dataclasses import replace
from pathlib import Path
import trial_making
import trials
import twins
from trial_faults import COMMAND, KILL, POINT, Fault
from trial_setups import SETUPS
from trial_making import Lost, Trial
from trials import Trials, prepare

prepare()
setup = SETUPS[0]
lines = ("self.steps = getattr(self, 'steps', 0) + 1", "if self.steps == 50:", "    raise d5.StopTraining('enough')")
code = "\\n        ".join(lines)
recipe = setup.recipe.replace("time.sleep(0.003)", code)
assert recipe != setup.recipe
fault = Fault(when=POINT, at=0.6, whom=COMMAND, how=KILL)
for source in (setup.recipe, recipe):
    trial = Trial(number=0, setup=replace(setup, name=str(len(source)), recipe=source), shares=(fault,))
    try:
        print(Trials(Path(sys.argv[2])).make(trial))
    except Lost as lost:
        print("LOST", lost)
"""


def test_a_run_that_resumes_to_other_bits_is_lost(tmp_path: Path) -> None:
    command = [sys.executable, "-c", FORGETS, str(PROGRAM.parent), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    honest, forgetful = done.stdout.splitlines()
    assert "status -9" in honest
    assert "LOST" not in honest
    assert forgetful.startswith("LOST")
    assert "differs from its twin in /" in forgetful


@pytest.fixture
def making(tmp_path: Path) -> Any:
    """A trial whose run is finished and right."""
    setup = SETUPS[0]
    making = Making(Trial(number=0, setup=setup, shares=()), None, tmp_path / "place")
    making.begin()
    making.scratch()
    recipe = load_recipe(making.place / "drawn.py")
    folder = execute(recipe, out=making.out, quiet=True).folder
    right = content(setup, folder)
    events = twins.events(folder)
    making.twin = Twin(content=right, events=events, seconds=1.0, changes={}, lines=1, kib=4)
    return making


def _rewritten(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def test_what_a_finished_run_lacks_is_lost(making: Any) -> None:
    assert making._finished(["went"]) == "went"
    folder = making.result()
    assert folder is not None
    kept = shutil.copytree(folder, making.place / "kept")

    def lost(message: str) -> None:
        with pytest.raises(Lost, match=message):
            making._finished(["went"])
        shutil.rmtree(folder)
        shutil.copytree(kept, folder)

    (folder / "weights.safetensors").write_bytes((folder / "weights.safetensors").read_bytes()[:-1] + b"x")
    lost("weights")
    (folder / "weights.safetensors").unlink()
    lost("without weights")
    (folder / "samples.csv").unlink()
    lost("audit accuses")
    _rewritten(folder / "result.json", '"status": "success"', '"status": "unknown"')
    lost("not readable")
    (folder / ".result.json.abcdefgh.tmp").write_text("half")
    lost("temporary files are left: .*abcdefgh")
    _rewritten(folder / "events.mllog", "epoch_stop", "epoch_start")
    lost("audit accuses|the log differs")
    making.twin = Twin(**{**vars(making.twin), "events": []})
    lost("the log differs")
    (making.temporary / "deep5-study-x").mkdir()
    making.twin = Twin(**{**vars(making.twin), "events": twins.events(folder)})
    lost("temporary files are left: live/tmp/deep5-study-x")


def test_how_a_command_may_end(making: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    fault = drawn(0).shares[0]
    ended = {"status": -9, "error": "", "happened": True, "seconds": 1.0, "left": ()}
    assert fault.how == KILL
    making._expect(fault, Attempt(**ended))
    for change in ({"status": 1}, {"status": 3}, {"happened": False}):
        with pytest.raises(Lost):
            making._expect(fault, Attempt(**(ended | change)))
    for change, message in (({"error": "Traceback (most"}, "a traceback"), ({"left": ("7: python",)}, "processes are")):
        monkeypatch.setattr(
            trial_making, "attempt", lambda *_, _change=change, **__: SimpleNamespace(**(ended | _change))
        )
        with pytest.raises(Lost, match=message):
            making.once(None)


def test_points_are_counted_in_all_processes(tmp_path: Path) -> None:
    """Of two processes of one name, the one that makes the change with the drawn number is hit."""
    (tmp_path / "live").mkdir()
    (tmp_path / "counts").mkdir()
    program = "import sys; [open(sys.argv[1] + '/live/' + str(n), 'w').close() for n in range(3)]"
    point = {"who": "child", "number": 5, "what": "kill", "folder": f"{tmp_path}/live/", "counts": f"{tmp_path}/counts"}
    environment = {**os.environ, "PYTHONPATH": str(PROGRAM.with_name("trial_site")), "TRIAL_POINT": json.dumps(point)}
    command = [sys.executable, "-c", program, str(tmp_path)]
    statuses = [subprocess.run(command, env=environment, timeout=60, check=False).returncode for _ in range(3)]
    assert statuses == [0, -9, 0]
    assert (tmp_path / "counts" / "child").stat().st_size == 8
    assert len((tmp_path / "counts" / "pids").read_text().split()) == 3
