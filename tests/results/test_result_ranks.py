"""Results of several ranks, read back in full: each rank's record, its samples, in tables, listings and the report."""

from __future__ import annotations

import csv
import io
import json
import shutil
import struct
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyarrow import parquet

import deep5 as d5
import report_cases as cases
from command import Command
from deep5.cli.export import export
from deep5.core.errors import UsageError
from deep5.distributed.communicators.threads import run_in_threads
from deep5.recipe.recipe import load_recipe
from deep5.results.ranks_file import read_ranks, sample_files
from deep5.results.report.collect import collect
from deep5.results.report.page import report_page
from deep5.results.result import Result, load
from deep5.results.samples_file import SampleRow, samples_text
from deep5.run.execute import execute, execute_as_rank

RECIPE = """
import deep5 as d5

FIXED = {"model": "lenet", "dataset": "digits", "dataset_kwargs": {"limit": 64}, "epochs": 2, "scheme": "all_reduce"}
MUTABLE = {"batch_size": 16, "optimizer": "sgd", "optimizer_kwargs": {"lr": 0.05}, "framework": "reference", "seed": 0}
METRICS = [(d5.TestAccuracy(), None), (d5.TrainingLoss(), None), (d5.StepLatency(), None)]
"""


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the results of one recipe: `one` from one process, `two` from two ranks in threads."""
    root = tmp_path_factory.mktemp("ranks")
    (root / "small.py").write_text(RECIPE)
    recipe = load_recipe(root / "small.py")
    execute(recipe, out=root / "made", quiet=True).folder.rename(root / "one")
    (root / "made").rmdir()
    by_ranks(root, "two", 2)
    return root


def by_ranks(root: Path, name: str, ranks: int) -> None:
    """Run the recipe with ranks in threads; the result is root / name."""
    recipe, out = load_recipe(root / "small.py"), root / f"made-{ranks}"
    run_in_threads(ranks, lambda own: execute_as_rank(recipe, own, out=out, quiet=True), timeout_s=120)
    (made,) = out.iterdir()
    made.rename(root / name)
    out.rmdir()


@pytest.fixture
def two(both: Path, tmp_path: Path) -> Path:
    """A copy of the result of two ranks."""
    return Path(shutil.copytree(both / "two", tmp_path / "two"))


def changed(folder: Path, **changes: Any) -> Result:
    document = json.loads((folder / "result.json").read_text())
    (folder / "result.json").write_text(json.dumps({**document, **changes}))
    return load(folder)


def losses(result: Result, rank: int) -> list[float]:
    return [row.value for row in result.samples(rank=rank)["training_loss"]]


# Read back -----------------------------------------------------------------------------------------------------------


def test_a_result_offers_what_each_rank_was_and_its_samples(both: Path) -> None:
    one, two = load(both / "one"), load(both / "two")
    assert (one.rank_count, one.ranks(), two.rank_count) == (1, (), 2)
    told = two.ranks()
    # An epoch has the 64 samples in 4 batches of all ranks.
    assert [(row.rank, row.steps, row.communicator, row.launcher) for row in told] == [
        (0, 8, "ThreadCommunicator", None),
        (1, 8, "ThreadCommunicator", None),
    ]
    assert all(row.sent_bytes > 0 and row.messages > 0 and row.waited_s > 0 and row.host for row in told)
    assert two.samples() == two.samples(rank=0)
    # Each learns from its own half of a batch.
    assert len(losses(two, 0)) == len(losses(two, 1)) == 8
    assert losses(two, 0) != losses(two, 1)
    for rank in (-1, 2, True, "1"):
        with pytest.raises(UsageError, match=r"samples of rank .*; allowed: a rank of the run, from 0 to 1"):
            two.samples(rank=rank)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"samples of rank 1; allowed: .* from 0 to 0"):
        one.samples(rank=1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "ranks.json is not as deep5 writes it"),
        ('{"rank": 0}', "ranks.json is not as deep5 writes it"),
        ("[1, 2]", "ranks.json is not as deep5 writes it"),
        ("[{}]", "ranks.json is not as deep5 writes it"),
        ("swapped", "ranks.json is not as deep5 writes it; allowed: one entry per rank, in their order"),
        ("negative", "ranks.json is not as deep5 writes it"),
        ("alone", "has 1 ranks in its ranks.json; allowed: 2, as its result.json says"),
        ("[", "ranks.json is truncated or not JSON"),
    ],
)
def test_a_file_of_ranks_that_is_none_is_refused(text: str, message: str, two: Path) -> None:
    path = two / "ranks.json"
    told = json.loads(path.read_text())
    made = {"swapped": told[::-1], "negative": [{**told[0], "steps": -1}, told[1]], "alone": told[:1]}
    path.write_text(json.dumps(made[text]) if text in made else text)
    with pytest.raises(UsageError, match=message):
        load(two).ranks()


def test_what_other_ranks_left_before_is_of_none(two: Path) -> None:
    for name in ("samples-rank-2.csv", "samples-rank-01.csv", "samples-rank-x.csv", "samples-rank-0.csv"):
        shutil.copy(two / "samples.csv", two / name)
    assert sample_files(two, 2) == [(0, two / "samples.csv"), (1, two / "samples-rank-1.csv")]
    # A result may claim any number of ranks; only existing files count.
    assert [rank for rank, _ in sample_files(two, 10**100)] == [0, 1, 2]
    assert changed(two, ranks=1).ranks() == ()


def test_a_run_that_ended_before_has_no_ranks_to_read(two: Path) -> None:
    (two / "ranks.json").unlink()
    assert load(two).ranks() == read_ranks(two) == ()
    (two / "samples-rank-1.csv").unlink()
    assert load(two).samples(rank=1) == {}


# Tables --------------------------------------------------------------------------------------------------------------


def bits(values: Any) -> list[bytes]:
    return [struct.pack("<d", float(value)) for value in values]


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_tables_give_back_the_samples_of_every_rank_to_the_bit(form: str, both: Path, tmp_path: Path) -> None:
    done = export([both], form, tmp_path / f"all.{form}")
    assert done.left_out == []
    (path,) = done.paths
    found: list[Any] = (
        list(csv.DictReader(io.StringIO(path.read_text(), newline="")))
        if form == "csv"
        else parquet.read_table(path).to_pylist()
    )
    rows = 0
    for name, ranks in (("one", 1), ("two", 2)):
        result = load(both / name)
        of_run = [row for row in found if row["run_id"] == result.document["run_id"]]
        assert {int(row["ranks"]) for row in of_run} == {ranks}
        for rank in range(ranks):
            own = [row for row in of_run if int(row["rank"]) == rank]
            kept = [row for samples in result.samples(rank=rank).values() for row in samples]
            # The file stores them metric by metric, and reading keeps this order.
            assert bits(row["value"] for row in own) == bits(row.value for row in kept)
            assert [(row["metric"], int(row["index"])) for row in own] == [(row.metric, row.index) for row in kept]
            assert [str(row["step"]) for row in own] == [str(row.step) for row in kept]
            rows += len(own)
    assert rows == len(found)


def test_odd_values_of_another_rank_are_the_same_after_an_export(two: Path, tmp_path: Path) -> None:
    values = [0.1 + 0.2, 5e-324, -0.0, float("inf"), float("-inf"), 1 / 3, 1.7976931348623157e308]
    rows = [SampleRow(metric="odd", index=i, value=value, unit="%") for i, value in enumerate(values)]
    (two / "samples-rank-1.csv").write_text(samples_text(rows))
    for form, read in (("csv", pd.read_csv), ("parquet", pd.read_parquet)):
        (path,) = export([two], form, tmp_path / f"odd.{form}").paths
        frame = read(path)
        assert bits(frame[frame["rank"] == 1]["value"]) == bits(values)


def test_ranks_whose_samples_are_gone_are_told(two: Path, tmp_path: Path) -> None:
    (two / "samples-rank-1.csv").unlink()
    done = export([two], "csv", tmp_path / "out.csv")
    assert done.left_out == [f"rank 1 of {two} without samples; rank 0 is exported"]
    assert set(pd.read_csv(tmp_path / "out.csv")["rank"]) == {0}
    shutil.copy(two / "samples.csv", two / "samples-rank-4.csv")
    changed(two, ranks=1_000_000)
    (told,) = export([two], "csv", tmp_path / "out.csv").left_out
    assert told == (f"ranks 1, 2, 3, 5, 6 and 999993 more of {two} without samples; the other 2 ranks are exported")


def test_what_fits_into_memory_counts_the_samples_of_all_ranks(
    two: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from deep5.cli import export as export_command

    sizes = [(two / name).stat().st_size for name in ("samples.csv", "samples-rank-1.csv")]
    monkeypatch.setattr(export_command, "_SAMPLES_BYTES", sum(sizes) - 1)
    with pytest.raises(UsageError, match=f"{sum(sizes)} bytes of samples do not fit"):
        export([two], "csv", tmp_path / "out.csv")


def test_a_table_of_samples_has_those_of_all_ranks(both: Path, two: Path) -> None:
    frame = d5.results.load(both, samples=True)
    by_rank = frame[(frame["ranks"] == 2) & (frame["metric"] == "training_loss")].groupby("rank")["value"].apply(list)
    assert list(by_rank.index) == [0, 1]
    assert [by_rank[rank] for rank in (0, 1)] == [losses(load(both / "two"), rank) for rank in (0, 1)]
    (two / "samples-rank-1.csv").write_text("metric\n")
    with pytest.raises(UsageError, match=r"samples-rank-1\.csv begins with"):
        d5.results.load(two, samples=True)


# Listings and the report ---------------------------------------------------------------------------------------------


def test_a_listing_says_how_many_ranks_a_run_had(both: Path, deep5: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    frame = d5.results.load(both).set_index("folder")
    assert frame["ranks"].to_dict() == {"one": 1, "two": 2}
    assert [row.folder for row in d5.results.load(both, where={"ranks": 2}).itertuples()] == ["two"]
    narrow = deep5("results", str(both)).out
    assert narrow.count("2 ranks") == 1
    monkeypatch.setenv("COLUMNS", "200")
    header, *rows, _more = [line.split() for line in deep5("results", str(both)).out.splitlines() if line.strip(" ─")]
    # A date contains a space.
    assert {row[2]: row[header.index("ranks") + 1] for row in rows} == {"one": "1", "two": "2"}
    assert "ranks" not in deep5("results", str(both / "one")).out


def test_the_report_shows_the_ranks_of_a_run(both: Path) -> None:
    rank = load(both / "two").ranks()[1]
    page = report_page(collect([both]))
    assert "Ranks of two" in page
    assert "Ranks of one" not in page
    assert f"2 ranks on 1 host ({rank.host}), started by nothing: threads of one process, over ThreadC" in page
    assert f'data-sort="{float(rank.sent_bytes)!r}"' in page
    wall_s = load(both / "two").document["resources"]["wall_time_s"]
    assert f'data-sort="{rank.waited_s / wall_s!r}"' in page


def test_runs_of_other_numbers_of_ranks_are_told_apart(two: Path) -> None:
    (two.parent / "small.py").write_text(RECIPE)
    by_ranks(two.parent, "three", 3)
    page = report_page(collect([two.parent]))
    # They have two curves, not one with a band over two seeds.
    assert all(f"reference, ranks {ranks}, seed 0" in page for ranks in (2, 3))
    assert "3 ranks on 1 host" in page


def test_the_report_of_one_process_says_nothing_of_ranks(both: Path) -> None:
    page = report_page(collect([both / "one"]))
    assert "Ranks of" not in page
    assert "ranks</th>" not in page.replace("</span>", "")


def test_the_report_of_a_run_that_ended_says_why_there_are_no_ranks(two: Path) -> None:
    (two / "ranks.json").unlink()
    page = report_page(collect([two]))
    assert "2 ranks; the run ended before they combined their records." in page
    (two / "ranks.json").write_text("[]")
    page = report_page(collect([two]))
    assert "the ranks cannot be shown" in page
    assert "Metrics" in page


def test_hostile_names_of_hosts_run_nothing(two: Path) -> None:
    told = json.loads((two / "ranks.json").read_text())
    for entry in told:
        entry |= {"host": cases.HOSTILE, "launcher": cases.HOSTILE, "warnings": [cases.HOSTILE]}
    (two / "ranks.json").write_text(json.dumps(told))
    page = report_page(collect([two]))
    assert cases.HOSTILE not in page


def test_a_notebook_shows_the_ranks(both: Path) -> None:
    assert "Ranks of two" in load(both / "two")._repr_html_()
    assert "Ranks of" not in load(both / "one")._repr_html_()
