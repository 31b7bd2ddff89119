"""Distinct (caller, callee) pairs of functions in two files of the product, while a recipe runs one training step.

The amount of the product that a reader crosses to follow one run. `python tests/support/call_pairs.py FRAMEWORK` runs
`deep5 run` on a copy of `digits_lenet` with a size of one step and prints the number of pairs; `--list` prints each
pair, `--files` the number of pairs by the caller's and the callee's folder. Calls during the import of a module, by the
module or by what it calls, do not count: they belong to the import and not to the run.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

FOLDERS = ("deep5", "frameworks", "metrics", "recipes")
"""The product's folders, which are siblings."""

ONE_STEP = """
SIZES = {"one_step": {"epochs": 1, "dataset_kwargs": {"limit": 64}}}
"""


@dataclass(frozen=True, order=True)
class Function:
    """A function by its file, relative to the folder above the product's folders, and its qualified name."""

    file: str
    name: str


Pair = tuple[Function, Function]


class Calls:
    """The pairs called so far; watches every thread."""

    def __init__(self, root: Path) -> None:
        self.pairs: set[Pair] = set()
        self._root = f"{root}/"
        self._files: dict[str, str | None] = {}

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Record every call in this thread and in those that start meanwhile."""
        threading.setprofile(self._note)
        sys.setprofile(self._note)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    def _note(self, frame: FrameType, event: str, _: object) -> None:
        caller = frame.f_back
        if event != "call" or caller is None:
            return
        from_file, to_file = caller.f_code.co_filename, frame.f_code.co_filename
        if from_file == to_file:
            return
        from_, to = self._product_file(from_file), self._product_file(to_file)
        if from_ is None or to is None:
            return
        pair = Function(from_, caller.f_code.co_qualname), Function(to, frame.f_code.co_qualname)
        if pair not in self.pairs and not self._is_importing(caller):
            self.pairs.add(pair)

    def _is_importing(self, frame: FrameType | None) -> bool:
        """Whether a module's own code is on the stack above the code that is watched."""
        while frame is not None and frame.f_code is not pairs_of_one_step.__code__:
            if frame.f_code.co_name == "<module>":
                return True
            frame = frame.f_back
        return False

    def _product_file(self, name: str) -> str | None:
        """A file relative to the product's root; None for one outside of the product."""
        if name not in self._files:
            inner = str(Path(name).resolve()).removeprefix(self._root)
            self._files[name] = inner if inner.split("/")[0] in FOLDERS else None
        return self._files[name]


def pairs_of_one_step(framework: str) -> set[Pair]:
    """The pairs of `deep5 run` of one step of `digits_lenet`; a framework's own numerics are loaded before.

    Raises:
        RuntimeError: The run did not take one step, or failed.
    """
    import deep5
    from deep5.__main__ import main

    root = Path(deep5.__file__).resolve().parents[1]
    source = (root / "recipes" / "digits_lenet.py").read_text()
    calls = Calls(root)
    with tempfile.TemporaryDirectory(prefix="deep5-pairs-") as scratch:
        recipe, out = Path(scratch, "digits_lenet.py"), Path(scratch, "results")
        recipe.write_text(source.replace('\nif __name__ == "__main__":', f'{ONE_STEP}\nif __name__ == "__main__":'))
        sys.argv = ["deep5", "run", str(recipe), "--framework", framework, "--size", "one_step", "--out", str(out)]
        with contextlib.redirect_stdout(io.StringIO()), calls.watched(), contextlib.suppress(SystemExit):
            main()
        result = json.loads(next(out.glob("*/result.json")).read_text())
        losses = next(row["samples"] for row in result["metrics"] if row["name"] == "training_loss")
        if result["status"] != "success" or losses != 1:
            raise RuntimeError(f"the run ended as {result['status']} with {losses} losses; allowed: success with 1")
    return calls.pairs


def main(arguments: Sequence[str]) -> int:
    """Print what the options request."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("framework", nargs="?", default="reference")
    parser.add_argument("--list", action="store_true", help="print every pair")
    parser.add_argument("--files", action="store_true", help="print the pairs by folders")
    asked = parser.parse_args(arguments)
    pairs = pairs_of_one_step(asked.framework)
    if asked.list:
        for caller, callee in sorted(pairs):
            sys.stdout.write(f"{caller.file}:{caller.name} -> {callee.file}:{callee.name}\n")
    if asked.files:
        folders = Counter((str(Path(a.file).parent), str(Path(b.file).parent)) for a, b in pairs)
        for (a, b), number in folders.most_common():
            sys.stdout.write(f"{number:5} {a} -> {b}\n")
    sys.stdout.write(f"{len(pairs)} pairs of functions in two files, on {asked.framework}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
