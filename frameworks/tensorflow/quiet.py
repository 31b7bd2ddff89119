"""Imports TensorFlow and queries its devices without its start-up reports, but with all its other output."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["without_reports"]

# Levels I and W of the log, and the parts of such a line; E and F are errors.
_REPORT = re.compile(
    r"[IW]\d{4} \d\d:\d\d:.*|WARNING: All log messages before absl::InitializeLog\(\) .*|To enable the following .*"
)
# An error only if the machine has a GPU, which then has a device file.
_NO_PROCESSOR = re.compile(r"E\d{4} \d\d:\d\d:.*failed call to cuInit.*")


@contextmanager
def without_reports() -> Iterator[None]:
    """Buffer stderr while the block runs, then write all lines except info messages and warnings.

    A CUDA start-up failure on a machine without a GPU counts as an info message.

    TF_CPP_MIN_LOG_LEVEL does not silence output before the log is set up; a process that crashes inside the block loses
    its output.
    """
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
