"""The page of environment variables, from `deep5.core.variables`, and those of make and the tests."""

from __future__ import annotations

import re
from collections.abc import Mapping

from deep5.core.variables import VARIABLES, Variable
from deep5.measuring.environment import RECORDED_NAMES, RECORDED_PREFIXES
from tables import code, require, table, with_code

HEAD = """\
# Environment variables

These are the variables that deep5 reads, or sets for libraries and other processes. A recipe's own keys and the options
of a command take precedence over variables. Libraries have further variables, which deep5 leaves as they are.

{recorded}
"""
TESTS: Mapping[str, str] = {
    "PYTHON": "The interpreter that `make` builds `.venv` with: a variable of make, `make test PYTHON=python3.12`.",
    "HASHES": "`HASHES=1`: `make venv` installs only files whose SHA-256 is in `constraints.txt`.",
    "WORKERS": "Number of processes that share the tests; 0: one process.",
    "JOBS": "Number of processes that share the drawn cases of `make validate`.",
    "PART": "The folder of tests that `make test-all` runs.",
    "PIP_EXTRA_INDEX_URL": "Read by pip: a further index of packages, such as PyTorch's of wheels without CUDA.",
    "DEEP5_REQUIRE": "Names of back-ends, `browser`, `slurm` or `gpu`, separated by commas: if one is missing, the "
    "tests fail instead of skipping what needs it.",
    "TUTORIALS": "Names of the tutorials that `make test` executes; `make docs` and `make test-all` execute all.",
    "DEEP5_TUTORIALS": "`kept`: a build of the site executes no tutorial, and shows without output what has none.",
    "DEEP5_FRESH": "Any value but the empty one: the tests reuse nothing that earlier test runs made.",
}
"""Meanings of the variables of make and the tests; tests/project/test_reference_pages.py compares them with both."""


def pages(variables: Mapping[str, Mapping[str, Variable]] = VARIABLES) -> dict[str, str]:
    """The page.

    Args:
        variables: The variables by topic and name.

    Raises:
        PluginError: A variable without a meaning.
    """
    parts = [HEAD.format(recorded=_recorded())]
    for topic, known in variables.items():
        require(
            "environment variables", [(name, about.meaning) for name, about in known.items()], "deep5.core.variables"
        )
        parts.append(f"## {topic}\n")
        parts += [_entry(name, about) for name, about in known.items()]
    rows = [(code(name), meaning) for name, meaning in TESTS.items()]
    parts.append(f"## Make and the tests\n\n{table(('variable', 'meaning'), rows)}\n")
    return {"reference/environment.md": "\n".join(parts)}


def _entry(name: str, about: Variable) -> str:
    """A variable as an entry of a list of definitions."""
    more = [f"Unset: {with_code(about.unset)}."] if about.unset else []
    more += [f"Set by {about.set_by}."] if about.set_by else []
    tail = f"\n\n    {' '.join(more)}" if more else ""
    return f"{code(name)} {{ #{re.sub(r'[^a-z0-9_]', '', name.lower())} }}\n:   {with_code(about.meaning)}{tail}\n"


def _recorded() -> str:
    """A paragraph on the variables that results record."""
    prefixes = ", ".join(code(f"{prefix}_…") for prefix in RECORDED_PREFIXES)
    named = ", ".join(code(name) for name in RECORDED_NAMES)
    return (
        "Every result records the variables that may change how frameworks compute: those that begin with "
        f"{prefixes}; and {named}. Its hash of the environment includes them, except `DEEP5_CACHE`. Names that contain "
        "`TOKEN`, `SECRET`, `PASSW`, `CREDENTIAL` or `_KEY`, and Terraform's, are left out; so are those that deep5 or "
        "a library sets itself."
    )
