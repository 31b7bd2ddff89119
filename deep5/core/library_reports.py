"""Imports TensorFlow and queries its devices without its start-up reports, but with all its other output.

This module imports no library: a command calls `hide_reports` before it knows which ones it needs.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

__all__ = ["hide_reports", "without_reports"]

# Levels I and W of the log, and the parts of such a line; E and F are errors.
_REPORT = re.compile(
    r"[IW]\d{4} \d\d:\d\d:.*|WARNING: All log messages before absl::InitializeLog\(\) .*|To enable the following .*"
)
# An error only if the machine has a GPU, which then has a device file.
_NO_PROCESSOR = re.compile(r"E\d{4} \d\d:\d\d:.*failed call to cuInit.*")


def hide_reports() -> None:
    """Let TensorFlow log only errors in this process and its children, whatever imports it, such as a user's file.

    A log level that the user has set is kept. JAX reads the same level, and would set a lower one.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    if "tensorflow" not in sys.modules and not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder(MetaPathFinder):
    """Finds TensorFlow as the other finders do, and has it imported without its reports."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != "tensorflow":
            return None
        others = [finder for finder in sys.meta_path if not isinstance(finder, _Finder)]
        spec = next((spec for finder in others if (spec := finder.find_spec(fullname, path, target))), None)
        if spec is not None and spec.loader is not None:
            # Only this instance, which loads only this module: what reads its type or its files sees no difference.
            vars(spec.loader)["exec_module"] = _loaded(spec.loader)
        return spec


def _loaded(loader: Loader) -> Callable[[ModuleType], None]:
    execute = loader.exec_module

    def load(module: ModuleType) -> None:
        with without_reports():
            execute(module)
            if not _has_processor():
                # The first look for one is reported, too.
                module.config.list_physical_devices("GPU")

    return load


@contextmanager
def without_reports() -> Iterator[None]:
    """Buffer stderr while the block runs, then write all lines except info messages and warnings.

    A CUDA start-up failure on a machine without a GPU counts as an info message.

    TF_CPP_MIN_LOG_LEVEL does not silence output before the log is set up; a process that crashes inside the block loses
    its output.
    """
    import tempfile

    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(kept, 2)
            os.close(kept)
            file.seek(0)
            for line in file:
                text = line.decode(errors="replace")
                if not _REPORT.match(text) and not (_NO_PROCESSOR.match(text) and not _has_processor()):
                    os.write(2, line)


def _has_processor() -> bool:
    """Whether the system has a GPU that CUDA would use, working or not."""
    return Path("/proc/driver/nvidia").exists() or Path("/dev/dxg").exists() or any(Path("/dev").glob("nvidia[0-9]*"))
