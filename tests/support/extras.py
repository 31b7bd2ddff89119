"""Environments that hold what some extras of deep5 install, and no other package of this one."""

from __future__ import annotations

import tomllib
import venv
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]


def environment_of(extras: Iterable[str], folder: Path) -> Path:
    """Make an environment whose packages are links to those of this one; returns its Python.

    Args:
        extras: Names of extras in pyproject.toml.
        folder: Where it is made.
    """
    venv.create(folder, with_pip=False)
    site = next(folder.rglob("site-packages"))
    for name in closure(extras):
        distribution = metadata.distribution(name)
        for first in {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}:
            if not (site / first).exists():
                (site / first).symlink_to(Path(str(distribution.locate_file(first))))
    return folder / "bin" / "python"


def closure(extras: Iterable[str]) -> set[str]:
    """The names of the distributions that `pip install 'deep5[EXTRAS]'` installs, of those that are installed here."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = [*project["dependencies"], *(line for name in extras for line in project["optional-dependencies"][name])]
    found, seen, left = {"deep5"}, set[str](), [(Requirement(line), "") for line in lines]
    while left:
        needed, extra = left.pop()
        name = canonicalize_name(needed.name)
        if needed.marker is not None and not needed.marker.evaluate({"extra": extra}):
            continue
        for chosen in {"", *needed.extras}:
            if (key := f"{name}[{chosen}]") not in seen:
                seen.add(key)
                try:
                    requires = metadata.requires(name) or []
                except metadata.PackageNotFoundError:
                    continue  # such as CUDA, without a GPU
                found.add(name)
                left += [(Requirement(line), chosen) for line in requires]
    return found
