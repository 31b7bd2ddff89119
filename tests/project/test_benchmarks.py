"""The benchmarks of `make bench`: names, verdicts and files, the packages of both sides, and the page's tables."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import other_tables
import overhead_tables
import pytest
import sides
import verdicts
from measure import Samples
from registry import Benchmark, selected

import daily
from deep5.measuring.samples import ratio_interval

ROOT = Path(__file__).resolve().parents[2]


def benchmark(name: str = "core.one") -> Benchmark:
    return Benchmark(name=name, group="core", setup=lambda folder: lambda: None, unit="call")


def samples(factor: float) -> Samples:
    """Ten rounds of five samples whose noise is one in a hundred."""
    base = [[1e-3 * (1 + 0.01 * ((round_ + turn) % 3)) for turn in range(5)] for round_ in range(10)]
    head = [[seconds * factor * (1 + 0.001 * (number % 2)) for seconds in rounds] for number, rounds in enumerate(base)]
    return Samples(base=base, head=head, first=[True, False] * 5)


@pytest.mark.parametrize(("factor", "word"), [(1.5, "slower"), (0.6, "faster"), (0.9995, "no difference shown")])
def test_a_verdict_is_that_of_the_statistics(factor: float, word: str) -> None:
    found = verdicts.outcome(benchmark(), samples(factor))
    assert found.verdict is not None
    assert found.verdict.word == word
    assert found.verdict.ratio == pytest.approx(factor, rel=0.01)
    assert word in verdicts.line(found)
    assert "1.01 ms -> " in verdicts.line(found)


def test_a_side_without_samples_has_no_verdict() -> None:
    found = verdicts.outcome(benchmark(), Samples(error="base: ImportError: no such name"))
    assert found.verdict is None
    assert "not measured: base: ImportError: no such name" in verdicts.line(found)


def test_a_run_keeps_every_sample(tmp_path: Path) -> None:
    taken = samples(1.5)
    path = tmp_path / "new" / "run.json"
    verdicts.write(path, [verdicts.outcome(benchmark(), taken)], {"core.one": taken}, {"base": "a", "head": "b"})
    document = json.loads(path.read_text())
    assert (document["base"], document["head"]) == ("a", "b")
    assert document["samples"]["core.one"]["head"] == taken.head
    assert document["outcomes"][0]["verdict"]["word"] == "slower"


def test_benchmarks_are_selected_by_parts_of_their_names() -> None:
    quick, full = selected(full=False), selected(full=True)
    assert {each.name for each in quick} < {each.name for each in full}
    assert len({each.name for each in full}) == len(full) > 60
    assert {each.name for each in selected(full=False, only="help, results_of")} == {
        "commands.help",
        "commands.results_of_10000",
    }
    with pytest.raises(ValueError, match="no benchmark is called like nothing; allowed: parts of commands"):
        selected(full=False, only="nothing")


def test_a_side_runs_its_own_package(tmp_path: Path) -> None:
    """Another tree's package is imported, with its entry points, although deep5 is installed."""
    tree = tmp_path / "tree"
    (tree / "deep5").mkdir(parents=True)
    (tree / "recipes").mkdir()
    (tree / "deep5" / "__init__.py").write_text("NAME = 'the other'\n")
    (tree / "pyproject.toml").write_text(
        '[project]\nname = "deep5"\nversion = "9.9"\n[project.entry-points."deep5.metrics"]\nown = "deep5:NAME"\n'
    )
    side = sides.Side(label="base", commit="a", layout=sides.lay_out(tree, tmp_path / "layout"))
    program = (
        "import deep5, importlib.metadata as m; "
        "print(deep5.NAME, m.version('deep5'), [p.name for p in m.entry_points(group='deep5.metrics')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=side.environment(),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout == "the other 9.9 ['own']\n"


def result(
    metric: str, unit: str, value: float, interval: tuple[float, float], *, recipe: Any = None, slower_rank: float = 0
) -> Any:
    """A result of 12 rounds of 10 steps: 2 ms of ours, 4 ms of theirs; a second rank takes that many seconds more."""
    ours, theirs = [0.02 + 1e-4 * number for number in range(12)], [0.04] * 12
    times = {"candidate_time": ours, "baseline_time": theirs, "baseline_again_time": [0.0404] * 12}
    return SimpleNamespace(
        rank_count=2 if slower_rank else 1,
        samples=lambda rank: {
            name: [SimpleNamespace(value=value + rank * slower_rank) for value in values]
            for name, values in times.items()
        },
        verdicts=(SimpleNamespace(name=metric, value=value, interval=interval, unit=unit, passed=True),),
        document={"recipe": recipe or {"name": "overhead_x", "fixed": {"steps": 10}}},
        folder=Path("overhead_x-1"),
    )


PAGE = f"""# Page

| recipe | what | deep5 / PyTorch, a step | ratio | interval | A/A ± | slowdown | goal |
|---|---|---|---|---|---|---|---|
| `overhead_x` | outside | 1 / 2 us | 1 | 1 | 1 | 1 | <= 1 |

{overhead_tables.BEGIN}

| recipe | what | deep5 / PyTorch, a step | ratio | interval | A/A ± | slowdown | goal |
|---|---|---|---|---|---|---|---|
| `overhead_x` | LeNet, batch 64 | 1 / 2 us | 0.5 | 0.4 … 0.6 | 0.1 | 0.5 | <= 1.01 |
| `overhead_y` | the same, batch 1 | 3 / 4 us | 0.75 | 0.7 … 0.8 | 0.1 | 0.8 | <= 1.01 |

{overhead_tables.END}

{overhead_tables.BEGIN}

| rule | deep5 / native, a step | slowdown | <= 1.05 |
|---|---|---|---|
| pytorch adam large | 1 / 2 us | 1 | kept |
| jax sgd | 1 / 2 us | 1 | kept |

{overhead_tables.END}

{overhead_tables.EVERY_RUN}

| recipe | what | overhead or slowdown | interval of difference or ratio | goal |
|---|---|---|---|---|
| `overhead_z` | ranks | 1 us | 1 … 2 us | <= 5 us |

{overhead_tables.END}

{overhead_tables.MEMORY}

| framework | deep5 |
|---|---|
| pytorch | 205 MiB |

{overhead_tables.END}
"""


def changed(page: str) -> list[str]:
    """The lines that differ from `PAGE`, which has as many."""
    return [line for line, before in zip(page.split("\n"), PAGE.split("\n"), strict=True) if line != before]


def test_the_tables_of_the_page_are_written_from_results() -> None:
    found = overhead_tables.figures(result("slowdown", "ratio", 0.525, (0.5, 0.54)))
    assert found.ratio == ratio_interval([0.02 + 1e-4 * number for number in range(12)], [0.04] * 12)
    earlier = overhead_tables.figures(result("slowdown", "ratio", 0.6, (0.5, 0.6)))
    interval = f"{found.ratio.low:.3f} … {found.ratio.high:.3f}"
    assert changed(overhead_tables.write_tables(PAGE, {"overhead_x": [earlier, found]})) == [
        f"| `overhead_x` | LeNet, batch 64 | 2,055 / 4,000 us | 0.514 | {interval} | 0.000 | 0.525 | <= 1.01 |"
    ]


def test_a_row_in_microseconds_has_the_metrics_interval() -> None:
    found = overhead_tables.figures(result("overhead", "us", 1.84, (1.77, 1.84)))
    made = overhead_tables.cells([found])
    assert (made["overhead"], made["interval"]) == ("1.8 us", "1.77 … 1.84 us")


def test_every_run_is_listed_in_a_table_that_says_so() -> None:
    found = [overhead_tables.figures(result("overhead", "us", value, (1.5, value))) for value in (2.84, 3.06)]
    assert changed(overhead_tables.write_tables(PAGE, {"overhead_z": found})) == [
        "| `overhead_z` | ranks | 2.8 us, 3.1 us | 1.50 … 2.84 us, 1.50 … 3.06 us | <= 5 us |"
    ]


def test_a_rule_has_its_row_by_framework_rule_and_size() -> None:
    given = {"rule": "adam", "shapes": "large"}
    recipe = {"name": "overhead_pytorch_rule", "fixed": {"steps": 10}, "mutable": {"candidate_kwargs": given}}
    made = result("slowdown", "ratio", 0.525, (0.5, 0.54), recipe=recipe)
    assert overhead_tables.row_name(made) == "pytorch adam large"
    found = overhead_tables.figures(made)
    assert changed(overhead_tables.write_tables(PAGE, {"pytorch adam large": [found]})) == [
        "| pytorch adam large | 2,055 / 4,000 us | 0.525 | kept |"
    ]
    assert overhead_tables.command("pytorch adam large") == [
        "overhead_pytorch_rule",
        *("--set", "candidate_kwargs.rule=adam", "--set", "candidate_kwargs.shapes=large"),
        *("--set", "baseline_kwargs.rule=adam", "--set", "baseline_kwargs.shapes=large"),
    ]
    assert overhead_tables.command("jax sgd")[1:] == [
        "--set",
        "candidate_kwargs.rule=sgd",
        "--set",
        "baseline_kwargs.rule=sgd",
    ]


def test_of_two_ranks_the_slower_one_counts() -> None:
    found = overhead_tables.figures(result("slowdown", "ratio", 0.525, (0.5, 0.54), slower_rank=0.02))
    assert (found.ours, found.theirs) == (pytest.approx(0.004055), pytest.approx(0.006))


def test_the_table_of_memory_is_replaced_as_a_whole() -> None:
    table = "| framework | deep5 |\n|---|---|\n| pytorch | 206 MiB |\n"
    assert changed(overhead_tables.write_memory(PAGE, table)) == ["| pytorch | 206 MiB |"]
    with pytest.raises(ValueError, match="the page has no table between"):
        overhead_tables.write_memory("# Page\n", table)


def timed(problem: str, direction: str, *, ours: float, bare: float | None) -> list[dict[str, Any]]:
    """Rows of `operators.json` of one size on PyTorch."""
    about = {"problem": problem, "direction": direction, "framework": "pytorch"}
    rows = [{**about, "bare": False, "median_s": ours}]
    return rows if bare is None else [*rows, {**about, "bare": True, "median_s": bare}]


DEEPBENCH = f"""# Page

<!-- figures: deepbench_conv -->

| framework | sizes | forward | interval | median difference | by data | interval |
|---|---:|---:|---|---:|---:|---|
| PyTorch | 1 | 1 | 1 | 1 | 1 | 1 |
| NumPy | 1 | 1 | 1 | 1 | 1 | 1 |

{overhead_tables.END}

| PyTorch | outside |
"""


def test_a_table_of_deepbench_is_written_from_the_times_of_its_sizes() -> None:
    ratios = [
        1.0,
        1.1,
        1.2,
        1.3,
        1.4,
        1.5,
        1.7,
    ]  # seven sizes: their median's interval is from the least to the largest
    rows = [
        row for number, ratio in enumerate(ratios) for row in timed(f"conv-{number}", "forward", ours=ratio, bare=1)
    ]
    rows += [row for number in range(7) for row in timed(str(number), "backward by data", ours=1.0, bare=2.0)]
    rows += timed("8", "forward", ours=5.0, bare=None)
    page = other_tables.write_ratios(DEEPBENCH, "deepbench_conv", other_tables.ratios(rows))
    assert [line for line in page.split("\n") if line not in DEEPBENCH.split("\n")] == [
        "| PyTorch | 7 | 1.300 | 1.000 … 1.700 | 300000 us | 0.500 | 0.500 … 0.500 |",
        "| NumPy |  |  |  |  |  |  |",
    ]
    with pytest.raises(ValueError, match="the page has no table between"):
        other_tables.write_ratios("# Page", "deepbench_conv", {})
    with pytest.raises(ValueError, match="a row 'Torch'; allowed: PyTorch, TensorFlow"):
        other_tables.write_ratios(DEEPBENCH.replace("| PyTorch | 1", "| Torch | 1"), "deepbench_conv", {})


def test_the_other_tables_of_the_page_can_be_written() -> None:
    page = (ROOT / "docs" / "results" / "overhead.md").read_text(encoding="utf-8")
    names = other_tables.table_names(page)
    assert names == ["deepbench_gemm", "deepbench_conv", "deepbench_rnn"]
    frameworks = ("pytorch", "tensorflow", "jax", "onnxruntime", "openvino", "reference")
    directions = ("forward", "backward by data", "backward by weights")
    found = other_tables.ratios(
        [
            {**row, "framework": framework}
            for framework in frameworks
            for direction in directions
            for number in range(6)
            for row in timed(f"size-{number}", direction, ours=7.654, bare=1.0)
        ]
    )
    for name in names:
        assert overhead_tables.command(name) == [name, "--set", "rounds=12"]
        assert other_tables.write_ratios(page, name, found).count("7.654 … 7.654") in (6, 18), name
    seconds = dict.fromkeys(("`deep5 --help`", "`deep5 check digits_lenet`"), 1.2345)
    seconds["`import deep5`, beside Python's own start"] = 0.0044
    written = other_tables.write_commands(page, seconds)
    assert (written.count("1.234 s"), written.count("0.004 s")) == (2, 1)


def test_every_table_of_the_page_can_be_written() -> None:
    """The recipes of its tables exist, and each of their columns except the first ones and the goal is known."""
    page = (ROOT / "docs" / "results" / "overhead.md").read_text(encoding="utf-8")
    names = overhead_tables.rows(page)
    assert len(names) > 100
    begins = sum(
        page.count(begin) for begin in (overhead_tables.BEGIN, overhead_tables.EVERY_RUN, overhead_tables.MEMORY)
    )
    begins += len(other_tables.table_names(page)) + page.count(f"<!-- figures: {other_tables.COMMANDS} -->")
    assert begins == page.count(overhead_tables.END) >= 15
    found = overhead_tables.figures(result("slowdown", "ratio", 0.525, (0.5, 0.54)))
    written = overhead_tables.write_tables(page, {name: [found] for name in names})
    assert written.count("0.525") >= len(names) - 10
    assert overhead_tables.rows(written) == names
    assert overhead_tables.write_tables(page, {}) == page


def test_a_lost_daily_function_is_named() -> None:
    before = [
        "tests/a/test_a.py::test_x[1]",
        "tests/a/test_a.py::test_y",
        "tests/a/test_a.py::TestZ::test_z",
        "3 tests",
    ]
    after = ["tests/b/test_b.py::test_x[2]", "tests/a/test_a.py::TestZ::test_z"]
    assert daily.lost(before, after) == ["tests/a/test_a.py::test_y"]
