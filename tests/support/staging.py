"""The checks of tools that read files and not installations, in the folder of links that `setup.py` makes.

`deep5.frameworks`, `deep5.metrics` and `deep5.recipes` live next to `deep5/`, where mypy and import-linter would miss
them. `python tests/support/staging.py types imports` brings `.staging` up to date and runs both over it.
"""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

_SETUP = runpy.run_path(str(Path(__file__).resolve().parents[2] / "setup.py"))
ROOMS, stage = _SETUP["ROOMS"], _SETUP["stage"]


def check_types(root: Path) -> subprocess.CompletedProcess[str]:
    """Run mypy, strict as in pyproject.toml, over the staged package and the modules of `tests/typed`."""
    typed = [part for path in sorted((root / "tests" / "typed").glob("*.py")) for part in ("-m", path.stem)]
    return _run(root, "-m", "mypy", "--config-file", str(root / "pyproject.toml"), "-p", "deep5", *typed)


def check_imports(root: Path) -> subprocess.CompletedProcess[str]:
    """Run import-linter, with the contracts in pyproject.toml, over the staged package."""
    # Its folder has deep5's own contract type.
    found = f"import sys; sys.path.append({str(Path(__file__).parent)!r})"
    program = f"{found}; from importlinter.cli import lint_imports_command; sys.exit(lint_imports_command())"
    return _run(root, "-c", program, "--config", str(root / "pyproject.toml"), "--no-cache")


def _run(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    # In the staging folder, so that the search for `deep5` finds it before the repository.
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=stage(root), capture_output=True, text=True, timeout=600, check=False)


CHECKS = {"types": check_types, "imports": check_imports}


def main(names: list[str]) -> int:
    """Run the named checks over this repository and print their output; returns 1 if one fails."""
    failed = False
    for name in names:
        result = CHECKS[name](Path(__file__).resolve().parents[2])
        sys.stdout.write(result.stdout)
        sys.stderr.write(result.stderr)
        failed = failed or result.returncode != 0
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
