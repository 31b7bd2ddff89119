"""Add to each version in a constraints file the SHA-256 of every file that pip could install for it.

`python tests/support/hashed.py VERSIONS OUT`: VERSIONS has a line `NAME==VERSION` for each package, OUT is written for
`pip install --require-hashes -r OUT`. The files are those that pip finds for the Pythons and machines that deep5
supports, and what it would build where a package has no wheel. Nothing is installed.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

PYTHONS = ("3.11", "3.12", "3.13")
MACHINES = ("x86_64", "aarch64")
# The oldest and the newest C library of the manylinux tags (PEP 600).
_OLDEST, _NEWEST = 5, 41
_LIMIT_S = 3600
_MISSING = re.compile(r"No matching distribution found for ([A-Za-z0-9._-]+)")


def canonical(name: str) -> str:
    """A package's name as PEP 503 normalizes it.

    >>> canonical("Array_API.strict")
    'array-api-strict'
    """
    return re.sub(r"[-_.]+", "-", name).lower()


def platforms(machine: str) -> list[str]:
    """The platform tags of a machine, as options of pip."""
    tags = [f"manylinux_2_{version}_{machine}" for version in range(_NEWEST, _OLDEST - 1, -1)]
    tags += [f"{old}_{machine}" for old in ("manylinux2014", "manylinux2010", "manylinux1", "linux")]
    return [word for tag in tags for word in ("--platform", tag)]


def reported(requirements: Iterable[str], options: Sequence[str]) -> dict[str, str]:
    """By package, the SHA-256 of the file that pip would install; without those for which it finds none."""
    wanted = list(requirements)
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.json")
        while wanted:
            done = subprocess.run(
                [
                    sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--dry-run", "--no-deps",
                    "--ignore-installed", "--quiet", "--report", str(report), *options, *wanted,
                ],
                capture_output=True, text=True, timeout=_LIMIT_S, check=False,
            )  # fmt: skip
            if done.returncode == 0:
                found = json.loads(report.read_text())["install"]
                return {
                    canonical(each["metadata"]["name"]): each["download_info"]["archive_info"]["hashes"]["sha256"]
                    for each in found
                }
            missing = _MISSING.search(done.stderr)
            if missing is None:
                sys.exit(f"pip failed: {done.stderr[-2000:]}")
            wanted = [each for each in wanted if canonical(each.partition("==")[0]) != canonical(missing[1])]
    return {}


def hashed(requirements: Sequence[str]) -> dict[str, set[str]]:
    """By package, the SHA-256 of every file that pip could install."""
    found: dict[str, set[str]] = defaultdict(set)
    for python in PYTHONS:
        for machine in MACHINES:
            target = ["--target", "nowhere", "--only-binary", ":all:", "--python-version", python, *platforms(machine)]
            for name, digest in reported(requirements, target).items():
                found[name].add(digest)
    # For this machine as pip chooses by itself: its own builds of PyTorch, and what has no wheel.
    for name, digest in reported(requirements, []).items():
        found[name].add(digest)
    return found


def text(requirements: Sequence[str], hashes: dict[str, set[str]]) -> str:
    """The lines of a file for `--require-hashes`.

    >>> print(text(["a==1", "b==2"], {"a": {"2f", "1e"}, "b": {"3d"}}), end="")
    a==1 \\
        --hash=sha256:1e \\
        --hash=sha256:2f
    b==2 \\
        --hash=sha256:3d
    """
    lines = []
    for requirement in requirements:
        own = sorted(hashes[canonical(requirement.partition("==")[0])])
        lines.append(" \\\n    ".join([requirement, *(f"--hash=sha256:{digest}" for digest in own)]) + "\n")
    return "".join(lines)


def main(versions: str, out: str) -> None:
    """Write the file; a package for which pip finds nothing is an error."""
    given = Path(versions).read_text(encoding="utf-8").splitlines()
    head = [line for line in given if line.startswith("#")]
    requirements = [line.strip() for line in given if "==" in line and not line.startswith("#")]
    hashes = hashed(requirements)
    if lost := [each for each in requirements if not hashes.get(canonical(each.partition("==")[0]))]:
        sys.exit(f"pip finds no file of {', '.join(lost)}")
    Path(out).write_text("".join(f"{line}\n" for line in head) + text(requirements, hashes), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
