"""Importing TensorFlow without its start-up reports, and with everything else that it says."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["without_reports"]

# Levels I and W of the log, and what belongs to such a line; E and F are errors.
_REPORT = re.compile(
    r"[IW]\d{4} \d\d:\d\d:.*|WARNING: All log messages before absl::InitializeLog\(\) .*|To enable the following .*"
)


@contextmanager
def without_reports() -> Iterator[None]:
    """Hold standard error back while the block runs, then let through all lines that are no reports or warnings.

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
                if not _REPORT.match(line.decode(errors="replace")):
                    os.write(2, line)
