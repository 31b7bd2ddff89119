"""Runs of a user's recipe that are repeated and packed, and keys that sign them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

SSH_KEYGEN = shutil.which("ssh-keygen") or "ssh-keygen"
RECIPE = """
import deep5 as d5
from rates import RATE

FIXED = {
    "model": "lenet", "dataset": "digits", "dataset_kwargs": {"limit": 96}, "train_sampler": "shuffle",
    "validation_sampler": "ordered", "epochs": 1,
}
MUTABLE = {
    "batch_size": 32, "framework": "reference", "device": "cpu", "optimizer": "sgd", "optimizer_kwargs": {"lr": RATE},
    "seed": 0,
}
METRICS = [(d5.TestAccuracy(), None), (d5.TrainingLoss(), None), (d5.WallClockTime(), None)]
"""
RATES = """
from pathlib import Path

RATE = float((Path(__file__).parent / "data" / "rate.txt").read_text())
"""


def write_own(folder: Path) -> Path:
    """A recipe of a user's, with a module and a file that the module opens."""
    (folder / "data").mkdir(parents=True)
    (folder / "data" / "rate.txt").write_text("0.05")
    (folder / "rates.py").write_text(RATES)
    path = folder / "own.py"
    path.write_text(RECIPE)
    return path


def newest(folder: Path) -> Path:
    """The latest result in a folder of results."""
    return max((path for path in folder.iterdir() if (path / "result.json").exists()), key=lambda path: path.name)


def new_key(folder: Path, name: str, comment: str = "", passphrase: str = "") -> Path:
    """An SSH key pair in a folder."""
    path = folder / name
    command = [SSH_KEYGEN, "-q", "-t", "ed25519", "-N", passphrase, "-C", comment, "-f", str(path)]
    subprocess.run(command, check=True, timeout=60)
    return path
