"""The two sides of a comparison: the package of a commit, in the layout of an installation."""

from __future__ import annotations

import hashlib
import io
import os
import re
import shutil
import subprocess
import tarfile
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("frameworks", "metrics", "recipes")


@dataclass(frozen=True, kw_only=True)
class Side:
    """One side.

    Attributes:
        label: "base" or "head".
        commit: The commit, abbreviated; with "+" where the working tree differs from it.
        layout: The folder that PYTHONPATH names: it holds `deep5/` and its metadata.
    """

    label: str
    commit: str
    layout: Path

    def environment(self) -> dict[str, str]:
        """The environment of a process of this side: its own package, byte code and kernels, one thread."""
        threads = ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "PJRT_NPROC")
        inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        return {
            **inherited,
            **dict.fromkeys(threads, "1"),
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "PYTHONPATH": os.pathsep.join([str(self.layout), str(ROOT / "tests" / "benchmarks")]),
            "DEEP5_CACHE": str(self.layout / "cache"),
        }


def git(*arguments: str) -> str:
    """The output of git for the repository, without the final newline."""
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()  # noqa: S607


def changed() -> bool:
    """Whether the working tree differs from HEAD."""
    return bool(git("status", "--porcelain"))


def base_commit(given: str = "") -> str:
    """The commit to compare with: the one given, else the merge base with origin/main, else the commit before.

    Where HEAD is that merge base, uncommitted changes are compared with HEAD, and a clean HEAD with its parent.
    """
    if given:
        return git("rev-parse", "--verify", f"{given}^{{commit}}")
    head = git("rev-parse", "HEAD")
    try:
        base = git("merge-base", "HEAD", "origin/main")
    except subprocess.CalledProcessError:
        base = head
    if base != head:
        return base
    return head if changed() else git("rev-parse", "--verify", "HEAD~1")


def head_side(home: Path) -> Side:
    """The working tree."""
    commit = git("rev-parse", "--short=10", "HEAD") + ("+" if changed() else "")
    place = hashlib.sha256(str(ROOT).encode()).hexdigest()[:10]
    return Side(label="head", commit=commit, layout=lay_out(ROOT, home / f"head-{place}"))


def base_side(commit: str, home: Path) -> Side:
    """A commit of this repository, unpacked below `home` once."""
    short = git("rev-parse", "--short=10", commit)
    tree = home / short
    if not tree.is_dir():
        home.mkdir(parents=True, exist_ok=True)
        packed = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True, check=True).stdout  # noqa: S607
        fresh = tree.with_name(f"{short}.new")
        shutil.rmtree(fresh, ignore_errors=True)
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            archive.extractall(fresh, filter="data")
        fresh.rename(tree)
    return Side(label="base", commit=short, layout=lay_out(tree, home / f"{short}-layout"))


def lay_out(tree: Path, layout: Path) -> Path:
    """Link a tree's package into a folder for PYTHONPATH, and write the metadata that registers its entry points."""
    package = layout / "deep5"
    shutil.rmtree(package, ignore_errors=True)
    package.mkdir(parents=True)
    entries = [entry for entry in sorted((tree / "deep5").iterdir()) if entry.name != "__pycache__"]
    for entry in [*entries, *(tree / room for room in ROOMS)]:
        if entry.exists():
            (package / entry.name).symlink_to(entry)
    project = tomllib.loads((tree / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for former in layout.glob("*.dist-info"):
        shutil.rmtree(former)
    version = project.get("version") or _version(tree)
    metadata = layout / f"deep5-{version}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: deep5\nVersion: {version}\n")
    groups = {"console_scripts": project.get("scripts", {}), **project.get("entry-points", {})}
    lines = [
        line
        for group, points in groups.items()
        for line in (f"[{group}]", *(f"{name} = {target}" for name, target in points.items()))
    ]
    registered = tree / "entry_points.txt"
    own = registered.read_text(encoding="utf-8") if registered.is_file() else ""
    (metadata / "entry_points.txt").write_text("\n".join([*lines, own]) + "\n", encoding="utf-8")
    return layout


def _version(tree: Path) -> str:
    """The version that the package states, read without importing it."""
    text = (tree / "deep5" / "core" / "version.py").read_text(encoding="utf-8")
    found = re.search(r'^__version__ = "(.+)"$', text, re.MULTILINE)
    return found[1] if found else "0"
