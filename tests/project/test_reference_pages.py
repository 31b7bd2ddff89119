"""The generated pages of the reference list everything that the code has, and refuse what has no meaning, by name."""

from __future__ import annotations

import ast
import json
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from mkdocs.exceptions import PluginError

import api_pages
import column_page
import command_page
import deep5
import entry_point_page
import environment_page
import outside_links
import recipe_key_page
import reference_pages
import schema_page
import tables
from command import Command
from deep5.cli.group import CommandGroup
from deep5.core.plugins import KINDS, REGISTERED
from deep5.core.variables import VARIABLES, Variable, known_variable
from deep5.measuring.environment import RECORDED_NAMES
from deep5.recipe.keys import CODE, COLLECTIVES, OPERATORS, RECIPES, SERVING, TRAINING, Key, Kind
from deep5.recipe.recipe import Recipe
from deep5.results.export.tables import RUN_COLUMNS
from deep5.results.long_form import SAMPLE_COLUMNS, SAMPLE_MEANINGS

ROOT = Path(__file__).parents[2]
PAGES = reference_pages.pages(ROOT)


def page(name: str) -> str:
    return PAGES[f"reference/{name}.md"]


# Recipe keys


@pytest.mark.parametrize("kind", RECIPES, ids=lambda kind: kind.name)
def test_every_key_of_a_recipe_has_a_meaning_on_the_page(kind: Kind) -> None:
    for name, key in kind.keys.items():
        assert key.meaning.endswith(".")
        assert f"`{name}` {{ #{kind.name}-{name} }}\n:   {tables.with_code(key.meaning)}\n" in page("recipe_keys")


def test_a_key_without_a_meaning_is_refused_by_name() -> None:
    planted = Kind(name="code", keys={**CODE.keys, "planted": Key(meaning=" ")})
    with pytest.raises(PluginError, match=r"keys of code without a meaning: planted; .*remedy: deep5\.recipe\.keys"):
        recipe_key_page.pages([planted])


def test_a_key_without_an_example_is_refused_by_name() -> None:
    planted = Kind(name="code", keys={**CODE.keys, "planted": Key(meaning="Planted.")})
    with pytest.raises(PluginError, match=r"keys of code without an example: planted; remedy"):
        recipe_key_page.pages([planted])


LEAST: dict[str, dict[str, Any]] = {
    TRAINING.name: {
        "model": "lenet",
        "dataset": "digits",
        "epochs": 1,
        "batch_size": 32,
        "framework": "reference",
        "optimizer": "sgd",
    },
    CODE.name: {"candidate": "own.py:fast", "baseline": "own.py:slow"},
    OPERATORS.name: {"operator": "MatMul", "shapes": ((2, 2), (2, 2))},
    COLLECTIVES.name: {"collective": "all_reduce"},
    SERVING.name: {
        "scenario": "server",
        "queries": 1,
        "rate": 10,
        "model": "lenet",
        "dataset": "digits",
        "framework": "reference",
    },
}


@pytest.mark.parametrize(("kind", "key"), [(kind, key) for kind in RECIPES for key in kind.keys])
def test_the_example_of_a_key_is_accepted(kind: Kind, key: str) -> None:
    def is_bias(name: str) -> bool:
        return name.endswith("bias")

    value = eval(recipe_key_page.EXAMPLES[kind.name][key], {"d5": deep5, "is_bias": is_bias})  # noqa: S307
    parts = {**LEAST[kind.name], key: value}
    if key == "executor":
        del parts["framework"]
    assert value != kind.keys[key].default, "an example shows another value than the default"
    Recipe.make({}, parts, [])


# Commands


def documented() -> set[str]:
    """The commands in the documents, which tests/project/test_docs.py runs."""
    found = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
    blocks = [body for each in found for body in re.findall(r"^```sh\n(.*?)^```", each.read_text(), re.M | re.S)]
    return {line.partition("  #")[0].strip() for body in blocks for line in body.splitlines()}


RUN_HERE = {
    "deep5 check recipe digits_lenet",
    "deep5 list keys",
    "deep5 results list results --sort recipe",
    "deep5 results unpack digits.zip",
}


def test_every_command_and_option_is_on_the_page() -> None:
    found = dict(command_page.commands())
    assert len(found) > 30
    for name, context in found.items():
        section = re.split(r"^#+ ", page("commands").partition(f"# deep5 {name}\n")[2], maxsplit=1, flags=re.M)[0]
        for param in context.command.params:
            if isinstance(param, click.Option):
                assert all(f"{option}" in section for option in (*param.opts, *param.secondary_opts)), (
                    name,
                    param.name,
                )
        if not isinstance(context.command, click.Group):
            assert command_page.EXAMPLES[name] in section


def test_every_example_of_a_command_is_run() -> None:
    examples = set(command_page.EXAMPLES.values())
    assert examples - documented() == RUN_HERE
    assert all(line.startswith(f"deep5 {name}") for name, line in command_page.EXAMPLES.items())


def test_a_command_without_help_is_refused_by_name() -> None:
    group = CommandGroup("deep5", commands=[click.Command("planted")])
    with pytest.raises(PluginError, match="commands without a meaning: planted; "):
        command_page.pages(group)


def test_an_option_without_help_is_refused_by_name() -> None:
    command = click.Command("info", params=[click.Option(["--planted"])], help="Planted.")
    with pytest.raises(PluginError, match="options of deep5 info without a meaning: --planted TEXT; "):
        command_page.pages(CommandGroup("deep5", commands=[command]))


# Results


def test_examples_with_results_run(deep5: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ran = deep5("run", "digits_lenet", "--size", "smoke", "--framework", "reference", "--quiet")
    assert ran.status in (0, 1), ran.err
    (folder,) = (tmp_path / "results").iterdir()
    assert deep5("results", "pack", str(folder), "-o", "digits.zip").status == 0
    for line in sorted(RUN_HERE):
        done = deep5(*shlex.split(line)[1:])
        assert done.status == 0, f"{line}: {done.err}"
    exec(column_page.EXAMPLE, {})  # noqa: S102
    assert "digits_lenet" in capsys.readouterr().out


def test_every_column_is_on_the_page() -> None:
    for name in {*column_page.stored_meanings(), *SAMPLE_COLUMNS}:
        assert f"| `{name}` | " in page("result_columns"), name
    assert SAMPLE_COLUMNS.keys() == SAMPLE_MEANINGS.keys()
    assert all(f"`{name}`" in page("result_columns") for name in RUN_COLUMNS)


def test_a_column_without_a_meaning_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(SAMPLE_MEANINGS, "rank")
    with pytest.raises(PluginError, match="columns of samples without a meaning: rank; "):
        column_page.pages()


@pytest.mark.parametrize("document", schema_page.DOCUMENTS)
def test_every_field_of_a_schema_is_on_the_page(document: str) -> None:
    file, _ = schema_page.DOCUMENTS[document]
    schema = json.loads((ROOT / file).read_text())
    section = page("schemas").partition(f"## {document} {{")[2].partition("\n## ")[0]
    definitions = [found for about in schema.get("$defs", {}).values() for found in schema_page.fields(about)]
    for path, _, _ in [*schema_page.fields(schema), *definitions]:
        shown = (path, path.partition(".")[2])  # below its object
        assert any(f"`{name}`" in section for name in shown if name), path


def test_every_published_schema_is_on_the_page() -> None:
    published = {file for file in outside_links.FILES if file.endswith(".json")}
    assert published == {file for file, _ in schema_page.DOCUMENTS.values()}


def test_a_field_without_a_description_is_refused_by_name(tmp_path: Path) -> None:
    for file, _ in schema_page.DOCUMENTS.values():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / file, tmp_path / file)
    planted = tmp_path / "deep5/results/schema.json"
    schema = json.loads(planted.read_text())
    schema["properties"]["recipe"]["properties"]["planted"] = {"type": "string"}
    planted.write_text(json.dumps(schema))
    with pytest.raises(PluginError, match=r"fields of result\.json without a meaning: recipe\.planted; "):
        schema_page.pages(tmp_path)


# Entry points


def test_every_entry_point_is_on_the_page() -> None:
    registered = (ROOT / "entry_points.txt").read_text(encoding="utf-8")
    families = set(re.findall(r"^(\w+) = \S+:FAMILY$", registered, re.MULTILINE))
    assert REGISTERED.keys() == KINDS.keys()
    for group, names in entry_point_page.groups(ROOT).items():
        assert f"Group `{group}`." in page("entry_points")
        for name in names:
            family = group == "deep5.recipes" and name in families
            assert (f"`{name}_" if family else f"`{name}`") in page("entry_points"), name


def test_links_to_the_api_lead_to_a_documented_name() -> None:
    made = api_pages.pages()
    links = re.findall(r"\(api/(\w+)\.md#([\w.]+)\)", page("entry_points"))
    assert len(links) > 100
    for name, anchor in links:
        assert f"::: {anchor}\n" in made[f"reference/api/{name}.md"]


def test_a_group_without_a_meaning_is_refused_by_name() -> None:
    with pytest.raises(PluginError, match="entry point groups without a meaning: samplers; "):
        entry_point_page.pages(ROOT, {**REGISTERED, "samplers": ""})


# Environment variables

NAME = re.compile(r"_?[A-Z][A-Z0-9]*(_[A-Z0-9]+)+_?")
# Names of bytecode, in a module that also follows reads of the environment.
NO_VARIABLES = {"LOAD_ATTR", "LOAD_GLOBAL", "LOAD_METHOD", "LOAD_NAME"}


def variables_in(source: str) -> Iterator[str]:
    """The environment variables that a module names: those it reads or sets, and what looks like one beside them."""
    tree = ast.parse(source)
    listed = [node.value for node in tree.body if isinstance(node, ast.Assign) and _targets(node) == ["__all__"]]
    skipped = {leaf for node in listed for leaf in ast.walk(node)}
    uses = "os.environ" in source or "getenv" in source or "environment=" in source
    for node in ast.walk(tree):
        found: list[ast.expr | None] = []
        if isinstance(node, ast.Subscript) and _is_environ(node.value):
            found = [node.slice]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
            if _is_environ(node.func.value) or node.func.attr == "getenv":
                found = [node.args[0]]
        elif isinstance(node, ast.Compare) and any(map(_is_environ, node.comparators)):
            found = [node.left]
        elif isinstance(node, (ast.keyword, ast.Assign)) and any("variable" in name.lower() for name in _targets(node)):
            found = [node.value]
        elif uses and isinstance(node, ast.Constant) and node not in skipped and NAME.fullmatch(str(node.value)):
            found = [node]
        for each in found:
            if isinstance(each, ast.Constant) and isinstance(each.value, str) and each.value not in NO_VARIABLES:
                yield each.value


def _targets(node: ast.Assign | ast.keyword) -> list[str]:
    if isinstance(node, ast.keyword):
        return [node.arg or ""]
    return [target.id for target in node.targets if isinstance(target, ast.Name)]


def _is_environ(node: ast.expr) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "environ"


def sources() -> Iterator[Path]:
    for folder in ("deep5", "frameworks", "metrics", "recipes"):
        yield from (path for path in sorted((ROOT / folder).rglob("*.py")) if path.name != "variables.py")


def unknown_variables(source: str) -> list[str]:
    found = {name for name in variables_in(source) if name and not known_variable(name) and name not in RECORDED_NAMES}
    # A prefix of names, such as SLURM_.
    return sorted(name for name in found if not (name.endswith("_") and known_variable(f"{name}X")))


def test_every_environment_variable_of_the_code_is_on_the_page() -> None:
    unknown = {str(path): names for path in sources() if (names := unknown_variables(path.read_text()))}
    assert unknown == {}, "remedy: deep5/core/variables.py"
    for table in VARIABLES.values():
        for name, about in table.items():
            assert f"`{name}` {{ #" in page("environment")
            assert about.meaning.endswith(".")


def test_every_environment_variable_of_the_table_is_in_the_code() -> None:
    text = "\n".join(path.read_text() for path in sources())
    names = [name.rstrip("*") for table in VARIABLES.values() for name in table]
    assert [name for name in names if f'"{name}' not in text] == []


def test_a_variable_that_is_not_in_the_table_is_found() -> None:
    planted = 'import os\nA = os.environ.get("PLANTED")\nif "B" in os.environ: os.environ["DEEP5_CACHE"] = "x"\n'
    assert unknown_variables(planted) == ["B", "PLANTED"]
    assert unknown_variables('import os\nNAME = "DEEP5_NEW"\nos.environ[NAME]\n') == ["DEEP5_NEW"]


def test_a_variable_without_a_meaning_is_refused_by_name() -> None:
    with pytest.raises(PluginError, match="environment variables without a meaning: PLANTED; "):
        environment_page.pages({"Planted": {"PLANTED": Variable(meaning="")}})


def test_the_variables_of_make_and_the_tests_are_on_the_page() -> None:
    make = (ROOT / "Makefile").read_text()
    support = "\n".join(path.read_text() for path in [ROOT / "tests/conftest.py", *ROOT.glob("tests/support/*.py")])
    for name in environment_page.TESTS:
        assert re.search(rf"\b{name}\b", make + support), name
        assert f"| `{name}` | " in page("environment")
    read = set(re.findall(r'environ(?:\.get\(|\[)"(DEEP5_\w+)"', support)) - {"DEEP5_TEST"}
    chosen = set(re.findall(r"^([A-Z]+) \?=", make, re.M)) - {"TORCH"}
    assert {name for name in read | chosen if not known_variable(name)} <= environment_page.TESTS.keys()


# All pages


def test_the_index_leads_to_every_page_of_the_section() -> None:
    site = (ROOT / "mkdocs.yml").read_text()
    listed = {path for path in re.findall(r"- reference/(\S+\.md)$", site, re.M) if path != "index.md"}
    index = (ROOT / "docs/reference/index.md").read_text()
    assert re.findall(r"\]\((\S+?)\)", index) == list(dict.fromkeys(re.findall(r"\]\((\S+?)\)", index)))
    assert set(re.findall(r"\]\((\S+?)\)", index)) == listed
    assert {name.removeprefix("reference/") for name in PAGES} <= listed


@pytest.mark.parametrize("name", PAGES)
def test_tables_are_whole(name: str) -> None:
    """Each row has as many cells as its head, and no column is empty."""
    for found in re.findall(r"(?:^\|.*\n)+", PAGES[name], re.M):
        plain = re.sub(r"`[^`\n]+`|\\\|", "code", found)
        head, _, *rows = [line.strip().split("|")[1:-1] for line in plain.splitlines()]
        assert rows
        assert {len(row) for row in rows} == {len(head)}, found
        assert all(any(row[column].strip() for row in rows) for column in range(len(head))), head


def test_helpers_of_pages() -> None:
    import doctest

    for module in (column_page, command_page, tables):
        result = doctest.testmod(module)
        assert result.failed == 0
        assert result.attempted
