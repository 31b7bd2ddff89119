"""TensorFlow's import and first look for devices without its start-up reports, and with everything else it says."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["without_reports"]

# Levels I and W of the log, and what belongs to such a line; E and F are errors.
_REPORT = re.compile(
    r"[IW]\d{4} \d\d:\d\d:.*|WARNING: All log messages before absl::InitializeLog\(\) .*|To enable the following .*"
)
# An error only where there is a graphics processor, which then has a file of its own.
_NO_PROCESSOR = re.compile(r"E\d{4} \d\d:\d\d:.*failed call to cuInit.*")


@contextmanager
def without_reports() -> Iterator[None]:
    """Hold standard error back while the block runs, then let through all lines that are no reports or warnings.

    That CUDA does not start on a machine without a graphics processor is a report, too.

    TF_CPP_MIN_LOG_LEVEL does not silence what is said before the log is set up; a process that crashes inside the block
    loses what it said.
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
    """Whether the system has a graphics processor that CUDA would run on, working or not."""
    return Path("/proc/driver/nvidia").exists() or Path("/dev/dxg").exists() or any(Path("/dev").glob("nvidia[0-9]*"))
