"""From a clone to a verdict on a user's own module and table, by the commands of the page that a new user follows.

`python tests/support/first_verdict.py` clones this repository into a temporary folder, runs there what the page
`docs/start/first_comparison.md` says, up to the verdict on the module, and prints the seconds of each command. It
installs packages with pip as a user does, in the versions of constraints.txt, and fails when a command fails or the
verdict is another one than "accepted". How long it takes is printed, and no reason to fail: on a busy machine the first
recipe can miss its goal for the time.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter

ROOT = Path(__file__).parents[2]
ACCEPTED = "accepted (closed; success)"
LATE = "  reason: wall_clock_time did not meet its goal\n"
# A slow network delivers PyTorch in some minutes.
LIMIT_S = 1800


def section(page: str, title: str) -> str:
    """What the page says under a title."""
    return page.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def blocks(words: str, kind: str) -> list[str]:
    """The code blocks of a kind, such as "sh"."""
    return re.findall(rf"^```{kind}\n(.*?)^```", words, re.MULTILINE | re.DOTALL)


def commands(page: str) -> tuple[list[str], str, list[str]]:
    """The page's commands before its program, the program `my_net.py`, and the commands up to the verdict."""
    (install,) = blocks(section(page, "Install"), "sh")
    (first,) = blocks(section(page, "Run a recipe"), "sh")
    own = section(page, "Your own module and data")
    table, verdict, _compare = blocks(own, "sh")
    (program,) = blocks(own, "python")
    return [*install.splitlines(), *first.splitlines(), *table.splitlines()], program, verdict.splitlines()


def main() -> int:
    """Follow the page, and report."""
    before, program, uses = commands((ROOT / "docs" / "start" / "first_comparison.md").read_text())
    begin = perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        clone = Path(folder) / "deep5"
        # A user has not activated this environment.
        environ = {name: value for name, value in os.environ.items() if name not in ("VIRTUAL_ENV", "PYTHONPATH")}
        # In this environment's versions: what is newest today may be larger by gigabytes, or broken.
        environ["PIP_CONSTRAINT"] = str(ROOT / ".venv" / "versions.txt")
        environ["PATH"] = os.pathsep.join([str(clone / ".venv" / "bin"), environ["PATH"]])

        def call(line: str, where: Path) -> str:
            mark = perf_counter()
            done = subprocess.run(
                ["/bin/bash", "-ec", line], cwd=where, env=environ, timeout=LIMIT_S, check=False,
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            )  # fmt: skip
            sys.stdout.write(f"{perf_counter() - mark:6.1f} s  {line:.100}\n")
            sys.stdout.flush()
            if done.returncode and LATE not in done.stdout:
                sys.exit(f"exit status {done.returncode}: {line}\n{done.stdout[-4000:]}")
            return done.stdout

        call(f"git clone -q '{ROOT}' '{clone}'", Path(folder))
        for line in before:
            call(line, clone)
        (clone / "my_net.py").write_text(program)
        said = [call(line, clone) for line in uses][-1]
    sys.stdout.write(f"{perf_counter() - begin:6.1f} s  from the clone to the verdict\n")
    if ACCEPTED not in said:
        sys.exit(f"the last command gave no verdict {ACCEPTED!r}:\n{said[-4000:]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
