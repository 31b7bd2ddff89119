"""Search spaces: how they are written, what is refused, and which settings they give."""

import json
import math

import numpy as np
import pytest

from deep5.core.errors import UsageError
from deep5.search.space import KINDS, Space, parse_parameter, read_space

SPACE = {
    "optimizer_kwargs.momentum": "uniform(0.5, 0.99) if optimizer in (momentum, nesterov)",
    "optimizer": "choice(adam, momentum, nesterov)",
    "optimizer_kwargs.lr": "log(1e-4, 1e-1)",
    "batch_size": "logint(16, 128, 4)",
    "epochs": "int(1, 3)",
    "clip_norm": "choice(None, 1.0) if epochs=3",
}


def test_parameters_come_after_the_ones_they_depend_on():
    order = list(Space.of(SPACE).parameters)
    assert order.index("optimizer") < order.index("optimizer_kwargs.momentum")
    assert order.index("epochs") < order.index("clip_norm")
    assert Space.of(Space.of(SPACE).texts()) == Space.of(SPACE)


@pytest.mark.parametrize("seed", range(20))
def test_every_draw_is_within_its_range_and_has_what_applies(seed):
    space, draws = Space.of(SPACE), np.random.default_rng(seed)
    settings = space.chosen({key: draws.random() for key in SPACE})
    space.check(json.loads(json.dumps(settings)))
    assert ("optimizer_kwargs.momentum" in settings) == (settings["optimizer"] != "adam")
    assert ("clip_norm" in settings) == (settings["epochs"] == 3)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("uniform(0, 1, 5)", (0, 0.25, 0.5, 0.75, 1)),
        ("log(1e-4, 1e-1, 4)", (1e-4, 1e-3, 1e-2, 1e-1)),
        ("int(1, 9, 3)", (1, 5, 9)),
        ("logint(16, 128, 4)", (16, 32, 64, 128)),
        ("choice((3, 3), 'a, b', None, True, 1)", ([3, 3], "a, b", None, True, 1)),
        ("choice(adam, momentum)", ("adam", "momentum")),
    ],
)
def test_listed_values(text, values):
    own = parse_parameter("key", text)
    assert own.values == values
    assert own.steps == len(values)
    assert [own.number(value) for value in values] == list(range(len(values)))
    assert [own.at((place + 0.5) / len(values)) for place in range(len(values))] == list(values)


@pytest.mark.parametrize(("text", "least", "most"), [("int(1, 4)", 1, 4), ("logint(1, 1000)", 1, 1000)])
def test_integers_reach_both_ends(text, least, most):
    own = parse_parameter("key", text)
    assert (own.at(0.0), own.at(math.nextafter(1, 0)), own.at(1.0)) == (least, most, most)
    assert all(isinstance(own.at(place / 50), int) for place in range(50))


def test_integers_are_equally_frequent_and_logarithms_evenly_spread():
    places = (np.arange(4000) + 0.5) / 4000
    counts = np.unique([parse_parameter("key", "int(1, 4)").at(place) for place in places], return_counts=True)[1]
    assert counts.tolist() == [1000] * 4
    rates = np.array([parse_parameter("key", "log(1e-4, 1)").at(place) for place in places])
    assert [int((rates < bound).sum()) for bound in (1e-3, 1e-2, 1e-1)] == [1000, 2000, 3000]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("uniform(1, 1)", "empty range"),
        ("uniform(2, 1)", "empty range"),
        ("log(1e-4, inf)", "infinite range"),
        ("uniform(-1e999, 1)", "infinite range"),
        ("uniform(nan, 1)", "infinite range"),
        ("log(0, 1)", "bounds above 0"),
        ("log(-1, 1)", "bounds above 0"),
        ("int(1, 2.5)", "integers up to"),
        ("int(0, 1e300)", "integers up to"),
        ("int(0, 100000000000000000000)", "integers up to"),
        ("int(1, 3, 9)", "fewer than 9 values"),
        ("uniform(0, 1, 1)", "2 to 10000 values"),
        ("uniform(0, 1, 2.5)", "2 to 10000 values"),
        ("uniform(0)", r"uniform\(least, greatest\)"),
        ("uniform(0, True)", r"uniform\(least, greatest\)"),
        ("uniform(a, b)", r"uniform\(least, greatest\)"),
        ("choice()", "choices, each once"),
        ("choice(a, a)", "choices, each once"),
        ("choice({1, 2})", "finite numbers, strings"),
        ("chioce(a, b)", "did you mean 'choice'"),
        ("log(1e-4, 1e-1", "cannot be read"),
        ("1e-4", "cannot be read"),
        ("", "cannot be read"),
        ("log(1e-4, 1) if x", "the condition 'x' cannot be read"),
        ("log(1e-4, 1) if x in ()", "cannot be read"),
        ("log(1e-4, 1) if x==1", "cannot be read"),
        ("__import__('os').system('true')", "not a kind of range"),
    ],
)
def test_what_is_refused(text, message):
    with pytest.raises(UsageError, match=message) as error:
        Space.of({"key": text, "x": "choice(1, 2)"})
    assert "allowed" in str(error.value)


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ({}, "without parameters"),
        ({"a": "int(1, 2) if b=1"}, "depends on 'b'; allowed: a parameter whose values can be counted"),
        ({"a": "int(1, 2) if b=1", "b": "uniform(0, 1)"}, "values can be counted"),
        ({"a": "int(1, 2) if b=3", "b": "int(1, 2)"}, "b is 3; allowed"),
        ({"a": "int(1, 2) if a=1"}, "depend on each other"),
        ({"a": "int(1, 2) if b=1", "b": "int(1, 2) if a=1", "c": "int(1, 2)"}, "conditions of a, b depend"),
        ({"a": 3}, "allowed: a string such as"),
    ],
)
def test_spaces_that_are_refused(texts, message):
    with pytest.raises(UsageError, match=message):
        Space.of(texts)


def test_the_grid_has_every_combination_once_and_only_what_applies():
    grid = Space.of({"a": "choice(x, y)", "b": "int(1, 3) if a=x", "c": "uniform(0, 1, 2)"}).grid
    assert len(grid) == 3 * 2 + 2
    assert len({json.dumps(own, sort_keys=True) for own in grid}) == len(grid)
    assert all(("b" in own) == (own["a"] == "x") for own in grid)
    assert grid[0] == {"a": "x", "b": 1, "c": 0}
    assert grid[1] == {"a": "x", "b": 2, "c": 0}  # b depends on a, and so comes last
    with pytest.raises(UsageError, match=r"remedy: b=uniform\(0, 1, 5\)"):
        _ = Space.of({"a": "int(1, 2)", "b": "uniform(0, 1)"}).grid
    with pytest.raises(UsageError, match="more than 1000000"):
        _ = Space.of({"a": "int(1, 2000)", "b": "int(1, 2000)"}).grid


@pytest.mark.parametrize(
    "settings",
    [
        {"optimizer": "adam"},
        {"optimizer": "sgd", "rate": 0.1},
        {"optimizer": "adam", "rate": 2.0},
        {"optimizer": "adam", "rate": "0.1"},
        {"optimizer": "adam", "rate": True},
        {"optimizer": "adam", "rate": math.nan},
        {"optimizer": "adam", "rate": 0.1, "other": 1},
        {"optimizer": "adam", "rate": 0.1, "momentum": 0.5},
    ],
)
def test_stored_settings_outside_the_space_are_refused(settings):
    space = Space.of(
        {
            "optimizer": "choice(adam, momentum)",
            "rate": "log(1e-3, 1)",
            "momentum": "uniform(0, 1) if optimizer=momentum",
        }
    )
    space.check({"optimizer": "momentum", "rate": 0.1, "momentum": 0.5})
    with pytest.raises(UsageError, match="allowed"):
        space.check(settings)


def test_a_file(tmp_path):
    path = tmp_path / "space.toml"
    path.write_text(
        '# rates\n[parameters]\noptimizer = "choice(adam, momentum)"\n"optimizer_kwargs.lr" = "log(1e-4, 1e-1)"\n'
        'schedules.lr = "uniform(0, 1)"\n'
    )
    assert read_space(path) == {
        "optimizer": "choice(adam, momentum)",
        "optimizer_kwargs.lr": "log(1e-4, 1e-1)",
        "schedules.lr": "uniform(0, 1)",
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"parameters = 1", "one table"),
        (b"", "one table"),
        (b"[parameters]\nlr = 1", "allowed: a string such as"),
        (b"[parameters]\nlr = ", "is not TOML"),
        (b"\xff", "is not TOML"),
        (b"[parameters]\nlr = 'int(1, 2)'\n[more]\nx = 1", "one table"),
        (None, "cannot read the space"),
    ],
)
def test_files_that_are_refused(tmp_path, text, message):
    path = tmp_path / "space.toml"
    if text is not None:
        path.write_bytes(text)
    with pytest.raises(UsageError, match=message):
        read_space(path)


def test_all_kinds_are_documented():
    assert {own.partition("(")[0] for own in SPACE.values()} <= set(KINDS)
