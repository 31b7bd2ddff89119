"""What a result of a real file depends on: the sources, by content, and the versions of the engines."""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

__all__ = ["COMPUTING", "EXPORTING", "commit", "digest", "versions"]

_ROOT = Path(__file__).parents[2]
EXPORTING = ("tests/support/real_[ekm]*.py", "tests/support/real_sklearn.py", "tests/support/exported_modules.py")
"""The sources that write exported files."""
COMPUTING = (
    "tests/support/real_trials.py",
    "tests/support/real_compared.py",
    "tests/real_files.json",
    *EXPORTING,
    *(f"deep5/{folder}/**/*.py" for folder in ("core", "networks", "operators", "training")),
    *(f"{folder}/**/*.{ending}" for folder in ("deep5/operators", "frameworks") for ending in ("h", "cpp")),
    "frameworks/**/*.py",
)
"""The sources that a result depends on."""
_ENGINES = ("numpy", "onnx", "torch", "onnxruntime", "openvino", "tensorflow", "jax", "keras", "onnxscript")


def versions() -> dict[str, str]:
    """The versions of the installed engines and exporters."""
    found = {}
    for name in _ENGINES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "none"
    return found


def digest(patterns: Iterable[str], more: Mapping[str, str], root: Path = _ROOT) -> str:
    """The SHA-256 of files, by path and content, and of further values.

    Args:
        patterns: The files, relative to the root.
        more: Further values, such as versions.
        root: The folder of the files.
    """
    paths = {path for pattern in patterns for path in root.glob(pattern) if path.is_file()}
    found = hashlib.sha256(repr(sorted(more.items())).encode())
    for path in sorted(paths):
        found.update(f"{path.relative_to(root)}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
    return found.hexdigest()


def commit(root: Path = _ROOT) -> str:
    """The commit that is checked out, with a plus sign if files differ from it; "unknown" without git."""

    def git(*words: str) -> str:
        return subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, check=True).stdout  # noqa: S607

    try:
        changed = git("status", "--porcelain", "--untracked-files=no", "--", "deep5", "frameworks", "tests")
        return git("rev-parse", "--short=9", "HEAD").strip() + ("+" if changed.strip() else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
