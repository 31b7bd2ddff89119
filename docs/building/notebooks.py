"""Tutorials: scripts that are executed as notebooks, and shown with what they printed and drew.

Each `docs/tutorials/NAME.py` is a notebook in jupytext's percent format. It is executed once for each content: of the
script, of deep5 and of the versions of the packages. `python docs/building/notebooks.py [NAME ...]` executes it, too.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import jupytext
import nbformat
from filelock import FileLock
from mkdocs.exceptions import PluginError
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from nbconvert.filters.ansi import strip_ansi

from drawn_charts import inlined

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "docs" / "tutorials"
THEME = ROOT / "docs" / "building" / "tutorial_theme.py"
# Next to what the tests keep.
KEPT = Path(sys.prefix) / "deep5-tutorials"
PACKAGES = ("altair", "jax", "keras", "numpy", "onnx", "onnxruntime", "pandas", "tensorflow", "torch")
CODE = ("deep5", "frameworks", "metrics", "recipes")
# A tutorial takes two minutes at most on an idle machine.
CELL_LIMIT_S, TUTORIAL_LIMIT_S = 600, 1800


def names() -> list[str]:
    """The names of all tutorials, sorted."""
    return sorted(path.stem for path in SOURCES.glob("*.py"))


@functools.cache
def _code_hash() -> str:
    """Hash of the sources of deep5."""
    found = hashlib.sha256()
    for folder in CODE:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in {".py", ".c", ".cpp", ".h", ".json", ".csv"} and "__pycache__" not in path.parts:
                found.update(f"{path.relative_to(ROOT)}\0".encode() + path.read_bytes())
    return found.hexdigest()


def versions() -> dict[str, str]:
    """The version of Python and of each package that tutorials use."""
    return {
        "Python": ".".join(map(str, sys.version_info[:3])),
        **{name: importlib.metadata.version(name) for name in PACKAGES},
    }


def executed(name: str) -> nbformat.NotebookNode:
    """The notebook of a tutorial with the outputs of its cells, executed unless this content was executed before.

    Raises:
        PluginError: A cell fails, or takes longer than ten minutes.
    """
    source, kept = SOURCES / f"{name}.py", _kept(name)
    KEPT.mkdir(parents=True, exist_ok=True)
    # Tests and builds at the same time execute it once.
    with FileLock(KEPT / f"{name}.lock", timeout=TUTORIAL_LIMIT_S):
        if not kept.is_file():
            # In a process without other event loops.
            done = subprocess.run(
                [sys.executable, __file__, "--execute", str(source), str(kept)],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=TUTORIAL_LIMIT_S,
                check=False,
            )
            if done.returncode != 0:
                raise PluginError(
                    f"the tutorial docs/tutorials/{name}.py fails: {strip_ansi(done.stdout or done.stderr).strip()}; "
                    f"remedy: correct it and run 'python docs/building/notebooks.py {name}'"
                )
            for former in KEPT.glob(f"{name}-*.ipynb"):
                if former != kept:
                    former.unlink(missing_ok=True)
    return nbformat.read(kept, as_version=4)


def shown(name: str) -> nbformat.NotebookNode:
    """What a build shows: the executed notebook; with `DEEP5_TUTORIALS=kept`, none is executed for it."""
    if os.environ.get("DEEP5_TUTORIALS") == "kept" and not _kept(name).is_file():
        return jupytext.reads((SOURCES / f"{name}.py").read_text(encoding="utf-8"), fmt="py:percent")
    return executed(name)


def _kept(name: str) -> Path:
    """Where the executed notebook of a tutorial is kept: under a hash of all that determines it."""
    parts = [path.read_text(encoding="utf-8") for path in (SOURCES / f"{name}.py", THEME)]
    content = "\0".join([*parts, _code_hash(), repr(versions())])
    return KEPT / f"{name}-{hashlib.sha256(content.encode()).hexdigest()[:20]}.ipynb"


def execute(source: Path, target: Path) -> None:
    """Runs the cells of a tutorial in an empty folder and writes the notebook, or prints the error of a cell."""
    notebook = jupytext.reads(source.read_text(encoding="utf-8"), fmt="py:percent")
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    notebook.cells.insert(0, nbformat.v4.new_code_cell(THEME.read_text(encoding="utf-8")))
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="deep5-tutorial-") as folder:
        where = {"metadata": {"path": folder}}
        client = NotebookClient(notebook, timeout=CELL_LIMIT_S, kernel_name="python3", resources=where)
        try:
            client.execute()
        except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
            sys.stdout.write(str(error))
            raise SystemExit(1) from None
    del notebook.cells[0]
    notebook.metadata["deep5"] = {
        "seconds": round(time.perf_counter() - begin, 1),
        "date": time.strftime("%Y-%m-%d"),
        "cores": len(os.sched_getaffinity(0)),
        "versions": versions(),
    }
    part = target.with_suffix(f".{os.getpid()}")
    nbformat.write(notebook, part)
    part.replace(target)


def markdown(name: str) -> str:
    """A tutorial as a page, with a link to its notebook."""
    notebook = shown(name)
    title, *cells = notebook.cells
    parts = [
        title.source,
        f"[Download this notebook]({name}.ipynb){{ .md-button download }}",
        *(part for cell in cells for part in _parts(cell)),
        _execution(notebook),
    ]
    return "\n\n".join(parts) + "\n"


def _execution(notebook: nbformat.NotebookNode) -> str:
    """When and with what a notebook was executed."""
    made = notebook.metadata.get("deep5")
    if made is None:
        return "*Not executed for this build.*"
    packages = ", ".join(f"{package} {version}" for package, version in made["versions"].items())
    return (
        f"*Executed on {made['date']} in {made['seconds']:.0f} s on {made['cores']} cores of a shared machine, with "
        f"{packages}.*"
    )


def _parts(cell: Any) -> list[str]:
    """The Markdown of one cell and of its outputs."""
    if cell.cell_type != "code":
        return [cell.source]
    return [f"```python\n{cell.source}\n```", *(text for output in cell.outputs if (text := _shown(output)))]


def _shown(output: Any) -> str:
    """The Markdown of one output of a cell: charts and tables as HTML, everything else as plain text."""
    if output.output_type == "stream":
        return _printed(output.text)
    if output.output_type == "error":
        return _printed("\n".join(output.traceback))
    data = output.data
    if "image/svg+xml" in data:
        return _html(inlined(data["image/svg+xml"], "Output of the cell above"), "picture")
    if "image/png" in data:
        return _html(f'<img alt="Output of the cell above" src="data:image/png;base64,{data["image/png"]}">', "picture")
    if "text/html" in data:
        # pandas adds a style and a class to its tables; the site has its own style.
        table = re.sub(r"<style.*?</style>", "", data["text/html"], flags=re.DOTALL)
        return _html(re.sub(r'<table[^>]*class="dataframe"[^>]*>', "<table>", table), "output")
    if "text/markdown" in data:
        return str(data["text/markdown"])
    return _printed(data["text/plain"])


def _html(html: str, kind: str) -> str:
    """A block of HTML; a blank line would end it."""
    dense = re.sub(r"\n\s*\n", "\n", html.strip())
    return f'<div class="{kind}">{dense}</div>'


def _printed(printed: str) -> str:
    """Output as a block, without colors and the lines that a progress bar has overwritten."""
    lines = [line.rsplit("\r", 1)[-1] for line in strip_ansi(printed).rstrip().replace("\r\n", "\n").split("\n")]
    plain = "\n".join(lines).strip("\n")
    return f"````{{.text .output}}\n{plain}\n````" if plain else ""


def pages() -> dict[str, str]:
    """Path and content of each tutorial's page and notebook."""
    made: dict[str, str] = {}
    for name in names():
        made[f"tutorials/{name}.md"] = markdown(name)
        made[f"tutorials/{name}.ipynb"] = nbformat.writes(shown(name))
    return made


def main(words: list[str]) -> None:
    """Executes the named tutorials, or all, and prints the seconds that each took."""
    if words[:1] == ["--execute"]:
        execute(Path(words[1]), Path(words[2]))
        return
    for chosen in words or names():
        seconds = executed(chosen).metadata["deep5"]["seconds"]
        sys.stdout.write(f"{chosen}: {seconds} s\n")


if __name__ == "__main__":
    main(sys.argv[1:])
