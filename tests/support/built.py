"""Copies of the repository, from which tests build what a user installs, and the commands that do so."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from staging import ROOMS

ROOT = Path(__file__).resolve().parents[2]


def copy_sources(folder: Path) -> Path:
    """Copy the files of which a distribution is built, so that the repository stays as it is; returns `folder`."""
    for name in ("deep5", *ROOMS):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "setup.py", "entry_points.txt", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    return folder


def run(*command: str | Path, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """The ended process of a command, with its output."""
    arguments = [str(word) for word in command]
    return subprocess.run(
        arguments, cwd=cwd, env={**os.environ, **environment}, capture_output=True, text=True, timeout=300, check=False
    )
