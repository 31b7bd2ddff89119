"""The packages of the distribution, found, and types in an editable installation; the rest is in pyproject.toml.

setuptools installs an editable deep5 as an import hook, because three of its packages are beside `deep5/`. Type
checkers and editors follow paths, not hooks: the editable wheel also puts `.staging` on `sys.path`, a folder of links
with the package in the layout of its imports. Python itself imports the files of the repository, never these links.
"""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import sys
import zipfile
from pathlib import Path

from setuptools import find_namespace_packages, setup
from setuptools.command.editable_wheel import editable_wheel

# Folders beside deep5/ that are its subpackages: the keys of package-dir in pyproject.toml.
ROOMS = ("frameworks", "metrics", "recipes")

# A module beside the installed hook of setuptools. It replaces only what Python finds in this repository: another deep5
# that is earlier on the path stays first. The folder of links is the second part of the package, so that the rooms are
# listed among its modules.
FINDER = '''\
"""Have Python import the files of deep5's repository, not the links to them that type checkers follow."""

import os
import sys
from importlib.machinery import PathFinder
from importlib.util import spec_from_file_location

LINKS = {links!r}
FILES = {files!r}


class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        found = PathFinder.find_spec(name, path) if name in FILES else None
        if found is None or not found.origin or os.path.realpath(found.origin) != FILES[name]:
            return None
        spec = spec_from_file_location(name, FILES[name])
        if name == "deep5":
            spec.submodule_search_locations.append(LINKS)
        return spec


sys.meta_path.insert(0, Finder)
'''


def stage(root: Path) -> Path:
    """Link each entry of `deep5/` and each room in `root/.staging/deep5`; returns `root/.staging`.

    What is already linked stays, so that a process that reads the folder finds it complete.
    """
    package = root / ".staging" / "deep5"
    package.mkdir(parents=True, exist_ok=True)
    entries = [entry for entry in sorted((root / "deep5").iterdir()) if entry.name != "__pycache__"]
    targets = {
        entry.name: Path("..", "..", entry.relative_to(root)) for entry in [*entries, *(root / room for room in ROOMS)]
    }
    for held in package.iterdir():
        if not held.is_symlink() and held.is_dir():
            shutil.rmtree(held)
        elif not held.is_symlink() or held.readlink() != targets.get(held.name):
            held.unlink(missing_ok=True)
    for name, target in targets.items():
        if not (package / name).is_symlink():
            (package / name).symlink_to(target)
    return package.parent


def add_to_wheel(wheel: Path, files: dict[str, bytes]) -> None:
    """Write a wheel again, with more files and their lines in its RECORD."""
    with zipfile.ZipFile(wheel) as built:
        contents = {name: built.read(name) for name in built.namelist()}
    record = next(name for name in contents if name.endswith(".dist-info/RECORD"))
    for name, content in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        contents[record] = f"{name},sha256={digest},{len(content)}\n".encode() + contents[record]
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as written:
        for name, content in {**contents, **files}.items():
            written.writestr(name, content)


class EditableWheel(editable_wheel):
    """The editable wheel of setuptools, and the path to the folder of links; without it where links are refused."""

    def run(self) -> None:
        """Have setuptools build the wheel, and add to it."""
        super().run()
        if self.mode not in {None, "lenient"}:  # the other modes have a folder with every package
            return
        root = Path(__file__).resolve().parent
        try:
            staging = stage(root)
        except OSError as error:
            sys.stderr.write(f"type checkers will not find this editable deep5: {error}\n")
            return
        folders = {"deep5": "deep5", **{f"deep5.{room}": room for room in ROOMS}}
        finder = FINDER.format(
            links=str(staging / "deep5"),
            files={name: str(root / folder / "__init__.py") for name, folder in folders.items()},
        )
        (wheel,) = Path(self.dist_dir).glob("*.whl")
        add_to_wheel(
            wheel,
            {
                "__editable___deep5_links.py": finder.encode(),
                "__editable__.deep5_links.pth": os.fsencode(staging) + b"\nimport __editable___deep5_links\n",
            },
        )


# Not when tests/support/staging.py reads this file for `stage`.
if __name__ == "__main__":
    setup(
        packages=[
            *find_namespace_packages(include=["deep5", "deep5.*"]),
            *(f"deep5.{name}" for room in ROOMS for name in find_namespace_packages(include=[room, f"{room}.*"])),
        ],
        cmdclass={"editable_wheel": EditableWheel},
    )
