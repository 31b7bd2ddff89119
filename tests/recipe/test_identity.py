"""The hash of a recipe with the user's own code: other code or content has another hash, and the same has one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import deep5 as d5
from deep5.core.compiler import compiler
from deep5.core.errors import RecipeError
from deep5.core.own_files import is_users
from deep5.core.python_source import syntax_hash
from deep5.recipe.recipe import Recipe, load_recipe

OWN = """
import json
import os
import threading
from pathlib import Path

import numpy as np

import deep5 as d5
{top}

def own(seed=0):
    {first}
    return d5.networks.mlp(features=4, hidden={hidden}, classes=3, seed=seed)
{more}
FIXED = {{"model": own, "dataset": "synthetic", "dataset_kwargs": {{"shape": (4,), "classes": 3}}, "epochs": 1 {fixed}}}
MUTABLE = {{"batch_size": 16, "framework": "reference" {mutable}}}
METRICS = [("test_accuracy", {goal})]
{end}
"""
SGD = ', "optimizer": "sgd", "optimizer_kwargs": {"lr": 0.1}'
RULE = """
class Rule(d5.UpdateRule):
    hyper = ("lr",)
    def __init__(self, lr=0.1): self.lr = lr
    def update_rule(self, grad, param, state): return param - self.lr * {factor} * grad, state
"""
Files = dict[str, str | bytes | None]


def own(**parts: str) -> str:
    names = ("top", "more", "fixed", "goal", "end")
    given = {"first": "pass", "hidden": "8", "mutable": SGD, **dict.fromkeys(names, ""), "goal": "None", **parts}
    return OWN.format(**given)


def rule(factor: str, **parts: str) -> str:
    """A recipe whose fixed part has a rule, which no network shows."""
    return own(fixed=', "optimizer": Rule', mutable="", more=RULE.format(factor=factor), **parts)


def write(folder: Path, files: Files) -> Path:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if content is None:
            path.unlink()
        elif isinstance(content, bytes):
            path.write_bytes(content)
        else:
            path.write_text(content)
    return folder / "own.py"


def hash_of(path: Path) -> str:
    return load_recipe(path).fixed_hash()


def hash_elsewhere(path: Path, **more: Any) -> str:
    """In a new process."""
    code = "import sys; from deep5.recipe.recipe import load_recipe; print(load_recipe(sys.argv[1]).fixed_hash())"
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True, **more)
    return done.stdout.strip()


def npz(value: float) -> bytes:
    from io import BytesIO

    content = BytesIO()
    np.savez(content, width=np.array(value))
    return content.getvalue()


def onnx(seed: int) -> bytes:
    content: bytes = d5.networks.mlp(features=4, hidden=8, classes=3, seed=seed).to_onnx().SerializeToString()
    return content


BESIDE = "Path(__file__).parent"
# Each: the files of a recipe, and those that are changed.
DIFFERENT: dict[str, tuple[Files, Files]] = {
    "a helper": (
        {"own.py": rule("F", top="from helpers import F"), "helpers.py": "F = 1\n"},
        {"helpers.py": "F = 2\n"},
    ),
    "a helper by its module": (
        {"own.py": rule("helpers.F", top="import helpers"), "helpers.py": "F = 1\n"},
        {"helpers.py": "F = 2\n"},
    ),
    "a helper's helper": (
        {
            "own.py": rule("F", top="from helpers import F"),
            "helpers.py": "from deeper import F\n",
            "deeper.py": "F = 1\n",
        },
        {"deeper.py": "F = 2\n"},
    ),
    "a star": ({"own.py": rule("F", top="from helpers import *"), "helpers.py": "F = 1\n"}, {"helpers.py": "F = 2\n"}),
    "a package's relative import": (
        {
            "own.py": rule("F", top="from pack.use import F"),
            "pack/__init__.py": "",
            "pack/use.py": "from .inner import value as F\n",
            "pack/inner.py": "value = 1\n",
        },
        {"pack/inner.py": "value = 2\n"},
    ),
    "a package's own file": (
        {"own.py": rule("F", top="from pack.use import F"), "pack/__init__.py": "A = 1\n", "pack/use.py": "F = 1\n"},
        {"pack/__init__.py": "A = 2\n"},
    ),
    "a module in a folder without __init__": (
        {"own.py": rule("F", top="from space.use import F"), "space/use.py": "F = 1\n"},
        {"space/use.py": "F = 2\n"},
    ),
    "an import in a function": (
        {"own.py": own(first="from lazy import W", hidden="8 + 0 * W"), "lazy.py": "W = 1\n"},
        {"lazy.py": "W = 2\n"},
    ),
    "an import by a string": (
        {
            "own.py": rule("F", top="import importlib\nF = importlib.import_module('helpers').F"),
            "helpers.py": "F = 1\n",
        },
        {"helpers.py": "F = 2\n"},
    ),
    "an import by a computed string": (
        {
            "own.py": own(
                top="import importlib", first="w = importlib.import_module('la' + str('zy')).W", hidden="8 + 0 * w"
            ),
            "lazy.py": "W = 1\n",
        },
        {"lazy.py": "W = 2\n"},
    ),
    "a file read at the top": (
        {
            "own.py": rule("CFG['f']", top=f"CFG = json.loads(({BESIDE} / 'cfg.json').read_text())"),
            "cfg.json": '{"f": 1}',
        },
        {"cfg.json": '{"f": 2}'},
    ),
    "a file read in a helper": (
        {
            "own.py": rule("F", top="from helpers import F"),
            "helpers.py": f"from pathlib import Path\nF = float(({BESIDE} / 'f.txt').read_text())\n",
            "f.txt": "1",
        },
        {"f.txt": "2"},
    ),
    "a file read by a helper's function": (
        {
            "own.py": rule("F", top=f"from helpers import read\nF = read({BESIDE} / 'f.txt')"),
            "helpers.py": "def read(path): return float(path.read_text())\n",
            "f.txt": "1",
        },
        {"f.txt": "2"},
    ),
    "an array": (
        {"own.py": own(first=f"w = np.load({BESIDE} / 'w.npz')['width']", hidden="8 + 0 * int(w)"), "w.npz": npz(1)},
        {"w.npz": npz(2)},
    ),
    "a network file": (
        {"own.py": own(first=f"return d5.Network.from_onnx({BESIDE} / 'n.onnx')"), "n.onnx": onnx(0)},
        {"n.onnx": onnx(1)},
    ),
    "a width": ({"own.py": own(hidden="8")}, {"own.py": own(hidden="9")}),
    "a variable": ({"own.py": own(top="W = 8", hidden="W")}, {"own.py": own(top="W = 9", hidden="W")}),
    "a variable that is changed": (
        {"own.py": rule("P['f']", top="P = {'f': 1}\nP['f'] = 2")},
        {"own.py": rule("P['f']", top="P = {'f': 1}\nP['f'] = 3")},
    ),
    "a variable that a method changes": (
        {"own.py": rule("P['f']", top="P = {'f': 1}\nP.update(f=2)")},
        {"own.py": rule("P['f']", top="P = {'f': 1}\nP.update(f=3)")},
    ),
    "a variable that a function changes": (
        {"own.py": rule("F", top="F = 1\ndef change(x):\n    global F\n    F = x\nchange(2)")},
        {"own.py": rule("F", top="F = 1\ndef change(x):\n    global F\n    F = x\nchange(3)")},
    ),
    "a helper that is changed": (
        {"own.py": rule("helpers.F", top="import helpers\nhelpers.F = 2"), "helpers.py": "F = 1\n"},
        {"own.py": rule("helpers.F", top="import helpers\nhelpers.F = 3")},
    ),
    "a variable after the parts": (
        {"own.py": rule("F", end="F = 1")},
        {"own.py": rule("F", end="F = 2")},
    ),
    "a variable by its name": (
        {"own.py": rule("globals()['F']", top="F = 1")},
        {"own.py": rule("globals()['F']", top="F = 2")},
    ),
    "a default": ({"own.py": rule("1", top="W = 8")}, {"own.py": rule("1 + 0", top="W = 8")}),
    "a base class": (
        {"own.py": rule("self.f", top="class Base:\n    f = 1", end="").replace("Rule(d5", "Rule(Base, d5")},
        {"own.py": rule("self.f", top="class Base:\n    f = 2", end="").replace("Rule(d5", "Rule(Base, d5")},
    ),
    "a decorator": (
        {
            "own.py": rule("1", top="def marked(c):\n    c.mark = 1\n    return c").replace(
                "class Rule", "@marked\nclass Rule"
            )
        },
        {
            "own.py": rule("1", top="def marked(c):\n    c.mark = 2\n    return c").replace(
                "class Rule", "@marked\nclass Rule"
            )
        },
    ),
    "a function in a function": (
        {
            "own.py": own(
                fixed="",
                end="def make(n):\n    def inner(seed=0): return own(seed)\n    return inner\nFIXED['model'] = make(1)",
            ).replace("return own(seed)", "return n and own(seed)")
        },
        {
            "own.py": own(
                fixed="",
                end="def make(n):\n    def inner(seed=0): return own(seed)\n    return inner\nFIXED['model'] = make(2)",
            ).replace("return own(seed)", "return n and own(seed)")
        },
    ),
    "a function with arguments": (
        {
            "own.py": own(
                top="import functools",
                end="def wide(n, seed=0): return own(seed)\nFIXED['model'] = functools.partial(wide, 1)",
            )
        },
        {
            "own.py": own(
                top="import functools",
                end="def wide(n, seed=0): return own(seed)\nFIXED['model'] = functools.partial(wide, 2)",
            )
        },
    ),
    "a file's component": (
        {
            "own.py": own(fixed=', "optimizer": "parts.py:Rule"', mutable=""),
            "parts.py": "import deep5 as d5\n" + RULE.format(factor="1"),
        },
        {"parts.py": "import deep5 as d5\n" + RULE.format(factor="2")},
    ),
    "a file's component's helper": (
        {
            "own.py": own(fixed=', "optimizer": "sub/parts.py:Rule"', mutable=""),
            "sub/parts.py": "import deep5 as d5\nfrom inner import F\n" + RULE.format(factor="F"),
            "sub/inner.py": "F = 1\n",
        },
        {"sub/inner.py": "F = 2\n"},
    ),
    "a file that a file's component reads": (
        {
            "own.py": own(fixed=', "optimizer": "parts.py:Rule"', mutable=""),
            "parts.py": f"import deep5 as d5\nfrom pathlib import Path\nF = float(({BESIDE} / 'f.txt').read_text())\n"
            + RULE.format(factor="F"),
            "f.txt": "1",
        },
        {"f.txt": "2"},
    ),
    "a function of deep5 that reads a file": (
        {
            "own.py": own(end="FIXED['model'] = d5.Network.from_onnx\nFIXED['model_args'] = ('n.onnx',)"),
            "n.onnx": onnx(0),
        },
        {"n.onnx": onnx(1)},
    ),
    "a file that a rule reads when it is created": (
        {
            "own.py": rule("self.f").replace(
                "self.lr = lr", "self.lr, self.f = lr, float((Path(__file__).parent / 'f.txt').read_text())"
            ),
            "f.txt": "1",
        },
        {"f.txt": "2"},
    ),
    "an array that a function captures": (
        {
            "own.py": own(
                end="def make(w):\n    def inner(seed=0): return w is not None and own(seed)\n    return inner\n"
                "FIXED['model'] = make(np.ones(2))"
            )
        },
        {
            "own.py": own(
                end="def make(w):\n    def inner(seed=0): return w is not None and own(seed)\n    return inner\n"
                "FIXED['model'] = make(np.zeros(2))"
            )
        },
    ),
    "an import for its effect": (
        {"own.py": rule("1", top="import patches"), "patches.py": "import math\nmath.two = 1\n"},
        {"patches.py": "import math\nmath.two = 2\n"},
    ),
}
# Modules that only an update rule imports, by a string: the factor of the rule, and statements before it.
NAMED = {
    "another name of the function": ("load('helpers').F", "from importlib import import_module as load"),
    "a variable with the function": ("load('helpers').F", "import importlib\nload = importlib.import_module"),
    "another name of the module": ("il.import_module('helpers').F", "import importlib as il"),
    "a keyword": ("importlib.import_module(name='helpers').F", "import importlib"),
    "a built-in function": ("__import__('helpers').F", ""),
    "a variable with the string": ("importlib.import_module(NAME).F", "import importlib\nNAME = 'helpers'"),
    "a table": ("importlib.import_module(TABLE['f']).F", "import importlib\nTABLE = {'f': 'helpers'}"),
    "a sum of strings": ("importlib.import_module('help' + 'ers').F", "import importlib"),
    "partial": (
        "load().F",
        "import importlib, functools\nload = functools.partial(importlib.import_module, 'helpers')",
    ),
    "map": ("list(map(importlib.import_module, ['helpers']))[0].F", "import importlib"),
    "getattr": ("getattr(importlib, 'import_module')('helpers').F", "import importlib"),
    "a default": ("(lambda load=importlib.import_module: load('helpers'))().F", "import importlib"),
    "runpy": ("runpy.run_module('helpers')['F']", "import runpy"),
    "pkgutil": ("pkgutil.resolve_name('helpers:F')", "import pkgutil"),
}
DIFFERENT |= {
    f"an import in a rule: {name}": (
        {"own.py": rule(factor, top=top), "helpers.py": "F = 1\n"},
        {"helpers.py": "F = 2\n"},
    )
    for name, (factor, top) in NAMED.items()
}
# The same in a package.
RELATIVE = {
    "by the package": "importlib.import_module('.inner', __package__).F",
    "by keywords": "importlib.import_module(name='.inner', package=__package__).F",
    "by a specification": "importlib.import_module('.inner', __spec__.parent).F",
    "by a formatted string": "importlib.import_module(f'{__package__}.inner').F",
    "by a level": "__import__('inner', globals(), None, ['F'], 1).F",
    "by a list": "__import__('pack', fromlist=['inner']).inner.F",
}
DIFFERENT |= {
    f"a relative import in a rule: {name}": (
        {
            "own.py": own(top="from pack.rules import Rule", fixed=', "optimizer": Rule', mutable=""),
            "pack/__init__.py": "",
            "pack/rules.py": "import importlib\nimport deep5 as d5\n" + RULE.format(factor=factor),
            "pack/inner.py": "F = 1\n",
        },
        {"pack/inner.py": "F = 2\n"},
    )
    for name, factor in RELATIVE.items()
}
LOADER = (
    "import importlib.machinery, importlib.util, os\n"
    "place = os.path.join(os.path.dirname(__file__), 'lib', 'h.inc')\n"
    "loader = importlib.machinery.SourceFileLoader('hh', place)\n"
    "hh = importlib.util.module_from_spec(importlib.util.spec_from_file_location('hh', place, loader=loader))\n"
    "loader.exec_module(hh)\n"
)
OPENAT = (
    "def read():\n"
    "    folder = os.open(Path(__file__).parent / 'data', os.O_RDONLY)\n"
    "    file = os.open('f.txt', os.O_RDONLY, dir_fd=folder)\n"
    "    return float(os.read(file, 9)), os.close(file), os.close(folder)\n"
)
IN_INIT = ("self.lr = lr", "self.lr, self.f = lr, float({read})")


def reading(read: str, top: str = "") -> str:
    """A recipe whose rule reads a file when it is created."""
    return rule("self.f", top=top).replace(IN_INIT[0], IN_INIT[1].format(read=read))


SELECT = "select f from t"


def database(value: int) -> bytes:
    import sqlite3

    with sqlite3.connect(":memory:") as made:
        made.execute("create table t (f real)")
        made.execute("insert into t values (?)", [value])
        made.commit()
        return made.serialize()


OPERATOR = """
import deep5 as d5
@d5.register_operator("Scale", domain="org.identity")
class Scale(d5.CppOperator):
    source = "cpp/scale.cpp"
    def specs(self, x): return (x,)
"""
SCALES = own(top="from ops import Scale", first="return scaled(seed)").replace(
    "def own",
    """
def scaled(seed):
    build = d5.NetworkBuilder("scaled", dtype="float32", seed=seed)
    x, label = build.input("input", ("N", 4)), build.input("label", ("N",), "int64")
    x = build.op("Scale", x, domain="org.identity")
    x = build.op("Gemm", x, build.parameter("w1", (3, 4)), transB=1)
    return build.network({"logits": x, "loss": build.op("SoftmaxCrossEntropyLoss", x, label, reduction="mean")})

def own""",
)
CPP: Files = {
    "own.py": SCALES,
    "ops.py": OPERATOR,
    "cpp/scale.cpp": '#include <deep5/operator.h>\n#include <vector>\n#  include \\\n "f.h"\n',
    "cpp/f.h": '#define TABLE "table.inc"\n#include TABLE\n#include <deeper/g.h>\n',
    "cpp/table.inc": "1\n",
    "cpp/deeper/g.h": '#include "h.h"\n#include "f.h"\n',
    "cpp/deeper/h.h": "#define FACTOR 1\n",
}
DIFFERENT |= {
    f"a file of an operator: {name}": (CPP, {name: "// another\n"})
    for name in ("cpp/scale.cpp", "cpp/f.h", "cpp/table.inc", "cpp/deeper/g.h", "cpp/deeper/h.h")
}
DIFFERENT |= {
    "a header of an operator in the recipe's file": (
        {
            **CPP,
            "own.py": SCALES.replace("from ops import Scale", OPERATOR)
            .replace("build =", "build = Scale and")
            .replace("org.identity", "org.identity.own"),
        },
        {"cpp/deeper/h.h": "#define FACTOR 2\n"},
    ),
    "a header of an operator's text": (
        {
            "own.py": SCALES,
            "ops.py": OPERATOR.replace("import", "from pathlib import Path\nimport", 1).replace(
                '"cpp/scale.cpp"', "f'#include \"{Path(__file__).parent}/f.h\"\\nstruct Scale;'"
            ),
            "f.h": "1\n",
        },
        {"f.h": "2\n"},
    ),
    "a source by another suffix": (
        {
            "own.py": own(fixed=', "optimizer": "rules.py:Rule"', mutable=""),
            "rules.py": "import deep5 as d5\nfrom base import hh\n" + RULE.format(factor="hh.F"),
            "base.py": LOADER,
            "lib/h.inc": "F = 1\n",
        },
        {"lib/h.inc": "F = 2\n"},
    ),
    "a file that a package provides": (
        {
            "own.py": own(top="from pack.rules import Rule", fixed=', "optimizer": Rule', mutable=""),
            "pack/__init__.py": "",
            "pack/rules.py": "import pkgutil\nimport deep5 as d5\n"
            + RULE.format(factor="self.f").replace(
                *(IN_INIT[0], IN_INIT[1].format(read="pkgutil.get_data('pack', 'f.txt')"))
            ),
            "pack/f.txt": "1",
        },
        {"pack/f.txt": "2"},
    ),
    "a resource of a package": (
        {
            "own.py": reading(
                "importlib.resources.files('pack').joinpath('f.txt').read_text()", "import importlib.resources"
            ),
            "pack/__init__.py": "",
            "pack/f.txt": "1",
        },
        {"pack/f.txt": "2"},
    ),
    "a line of a file": (
        {"own.py": reading(f"linecache.getline(str({BESIDE} / 'f.txt'), 1)", "import linecache"), "f.txt": "1\n"},
        {"f.txt": "2\n"},
    ),
    "a line of a program": (
        {"own.py": reading(f"linecache.getline(str({BESIDE} / 'f.py'), 1)[4:]", "import linecache"), "f.py": "F = 1\n"},
        {"f.py": "F = 2\n"},
    ),
    "a file from an open folder": (
        {"own.py": reading("read()[0]", OPENAT), "data/f.txt": "1"},
        {"data/f.txt": "2"},
    ),
    "a file from an open folder, beside one of its name": (
        {"own.py": reading("read()[0]", OPENAT), "data/f.txt": "1", "f.txt": "3"},
        {"data/f.txt": "2"},
    ),
    "a program that is run": (
        {"own.py": reading(f"runpy.run_path(str({BESIDE} / 'f.txt'))['F']", "import runpy"), "f.txt": "F = 1\n"},
        {"f.txt": "F = 2\n"},
    ),
    "a program that is executed": (
        {"own.py": rule("F", top=f"exec(({BESIDE} / 'f.txt').read_text())"), "f.txt": "F = 1\n"},
        {"f.txt": "F = 2\n"},
    ),
    "a database": (
        {
            "own.py": reading(
                f"sqlite3.connect({BESIDE} / 'f.db').execute('{SELECT}').fetchone()[0]", "import sqlite3"
            ),
            "f.db": database(1),
        },
        {"f.db": database(2)},
    ),
    "a file that an import by a computed string reads": (
        {
            "own.py": own(
                top="import importlib", first="w = importlib.import_module('la' + str('zy')).W", hidden="8 + 0 * w"
            ),
            "lazy.py": f"from pathlib import Path\nW = int(({BESIDE} / 'w.txt').read_text())\n",
            "w.txt": "1",
        },
        {"w.txt": "2"},
    ),
}
HOLDERS = """
import torch

class Held:
    def __init__(self, k): self.k = k
    def call(self, x): return x * self.k
class Slots:
    __slots__ = ("k",)
    def __init__(self, k): self.k = k
def times(k):
    def act(x): return x * k
    return act
class Net(torch.nn.Module):
    def __init__(self, k):
        super().__init__()
        self.linear = torch.nn.Linear(4, 3)
        $
def net(): return Net(len(list(Path(__file__).parent.glob("*.mark"))))
"""
# What a module holds follows from a file's name, which is not in the hash.
DIFFERENT |= {
    f"a module of PyTorch with {name}": (
        {"own.py": own(top=HOLDERS.replace("$", text), end="FIXED['model'] = net")},
        {"a.mark": ""},
    )
    for name, text in {
        "a function with a variable": "self.act = times(k)",
        "a function with a default": "self.act = lambda x, k=k: x * k",
        "a method of an object": "self.act = Held(k).call",
        "a hook": "self.register_forward_hook(lambda m, x, y, k=k: y * k)",
        "an object with slots": "self.held = Slots(k)",
        "a range": "self.held = range(k)",
        "a slice": "self.held = slice(k)",
        "a set of tuples": "self.held = {(k, 1)}",
        "a deque": "import collections; self.held = collections.deque([k])",
    }.items()
}
DIFFERENT |= {
    "a module with a name of the standard library": (
        {"own.py": rule("F", top="from this import F"), "this.py": "F = 1\n"},
        {"this.py": "F = 2\n"},
    ),
    "a package with a name of the standard library": (
        {
            "own.py": rule("F", top="from turtledemo.a import F"),
            "turtledemo/__init__.py": "",
            "turtledemo/a.py": "F = 1\n",
        },
        {"turtledemo/a.py": "F = 2\n"},
    ),
    "an import of the file by a computed string": (
        {
            "own.py": rule("m.F", top="import importlib\nm = importlib.import_module('la' + str('ter'))"),
            "later.py": "F = 1\n",
        },
        {"later.py": "F = 2\n"},
    ),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_another_recipe_has_another_hash(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    before, changes = DIFFERENT[name]
    path = write(tmp_path, before)
    first = hash_of(path)
    assert hash_of(path) == first, "the same again"
    write(tmp_path, changes)
    assert hash_of(path) != first


def changed(use: str, text: str, **parts: str) -> tuple[Files, Files]:
    """Two recipes whose rule reads `use`, which the top of the file sets to 2 and to 3, by way of `text`."""
    two, three = ({"own.py": rule(use, top=text, **parts).replace("$", value)} for value in "23")
    return dict(two), dict(three)


# Statements that change what the rule reads without naming it, or in code that is not a plain assignment.
REGISTER = "TABLE = {'f': 1}\ndef register(f):\n    TABLE['f'] = f()\n    return f\n"
MODULE: Files = {"helpers.py": "F = 1\nT = {'f': 1}\ndef put(x):\n    global F\n    F = x\n", "own.py": ""}
PART = "import deep5 as d5\nF = 1\n" + RULE.format(factor="F")
DEFAULT = (
    "def make(x):\n    def modify(name, param, grad, x=x): return grad * x\n    return modify\n"
    "FIXED['gradient_modifier'] = make($)"
)


def made(text: str) -> tuple[Files, Files]:
    """Two recipes whose rule is a class that a function creates for 2 and for 3."""
    end = f"def make(x):\n    {text}\nFIXED['optimizer'] = make($)"
    two, three = ({"own.py": rule("1", end=end).replace("$", value)} for value in "23")
    return dict(two), dict(three)


OPERATOR = (
    "@d5.register_operator('Own', domain='org.example')\nclass Own(d5.Operator):\n    def specs(self, x): return (x,)\n"
    "    def forward(self, x): return x * $\n    def backward(self, dy, x, y, needs): return (dy[0],)\n"
)


CHANGES = {
    "a decorator that registers": changed("TABLE['f']", REGISTER + "@register\ndef f(): return $"),
    "a decorator with arguments": changed(
        "TABLE['f']",
        "TABLE = {}\ndef put(x):\n    def inner(f):\n        TABLE['f'] = x\n        return f\n    return inner\n"
        "@put($)\ndef f(): pass",
    ),
    "a decorator that is a method": changed(
        "R.t['f']",
        "class Table:\n    t = {}\n    def add(self, f):\n        self.t['f'] = f()\n        return f\n"
        "R = Table()\n@R.add\ndef f(): return $",
    ),
    "an operator of a network": changed("1", OPERATOR),
    "a decorated class": changed(
        "TABLE['f'].v", "TABLE = {}\ndef put(c):\n    TABLE['f'] = c\n    return c\n@put\nclass C:\n    v = $"
    ),
    "a base that registers": changed(
        "Base.all[0].v",
        "class Base:\n    all = []\n    def __init_subclass__(cls): Base.all.append(cls)\nclass C(Base):\n    v = $",
    ),
    "a base's base that registers": changed(
        "ALL[0].v",
        "ALL = []\nclass Base:\n    def __init_subclass__(cls): ALL.append(cls)\nclass Mid(Base): v = 0\n"
        "class C(Mid):\n    v = $\nALL.reverse()",
    ),
    "a metaclass": changed(
        "ALL[0].v",
        "ALL = []\nclass Meta(type):\n    def __init__(cls, *a): ALL.append(cls)\nclass C(metaclass=Meta):\n    v = $",
    ),
    "an assigned call": changed("T['f']", "T = {'f': 1}\n_ = T.update(f=$)"),
    "a call in an expression": changed("T['f']", "T = {}\nx = [1, T.setdefault('f', $)]"),
    "a comprehension": changed("T[0]", "T = []\nx = [T.append(each) for each in ($,)]"),
    "an alias": changed("T['f']", "T = {'f': 1}\nOTHER = T\nOTHER['f'] = $"),
    "an alias of a part": changed("T['in']['f']", "T = {'in': {'f': 1}}\nINNER = T['in']\nINNER['f'] = $"),
    "an alias in a list": changed("T['f']", "T = {'f': 1}\nfor each in [T]:\n    each['f'] = $"),
    "an alias by a function": changed("T['f']", "T = {'f': 1}\ndef get(): return T\nOTHER = get()\nOTHER['f'] = $"),
    "a function that is assigned": changed("T['f']", "T = {}\ndef put(x): T['f'] = x\n_ = put($)"),
    "a function that changes its argument": changed("T['f']", "T = {}\ndef put(t): t['f'] = $\n_ = put(T)"),
    "a function that calls another": changed(
        "T['f']", "T = {}\ndef inner(x): T['f'] = x\ndef put(x): inner(x)\n_ = put($)"
    ),
    "a function's local alias": changed("T['f']", "T = {}\ndef put(x):\n    t = T\n    t['f'] = x\n_ = put($)"),
    "a new object": changed("T['f']", "T = {}\nclass Put:\n    def __init__(self, x): T['f'] = x\n_ = Put($)"),
    "a class's body": changed("T['f']", "T = {}\nclass Put:\n    T['f'] = $"),
    "setattr": changed("C.f", "class C: f = 1\n_ = setattr(C, 'f', $)"),
    "exec": changed("F", "F = 1\n_ = exec('F = $')"),
    "the names of the file": changed("F", "F = 1\nglobals()['F'] = $"),
    "the names of the file by vars": changed("F", "F = 1\nvars()['F'] = $"),
    "the names of the file by an alias": changed("F", "F = 1\nnames = vars()\nnames.update(F=$)"),
    "a shuffled list": changed("T[0]", "import random\nT = [1, 2, 3, 4, 5]\n_ = random.Random($).shuffle(T)"),
    "unless it is a program": changed("F", "F = 1\nif __name__ != '__main__':\n    F = $"),
    "a program that sets it": changed("F", "F = 1", end="if __name__ == '__main__':\n    F = $\n    print(F)"),
    "a helper's function": (
        {**MODULE, "own.py": rule("helpers.F", top="import helpers\n_ = helpers.put(2)")},
        {"own.py": rule("helpers.F", top="import helpers\n_ = helpers.put(3)")},
    ),
    "a helper's part": (
        {**MODULE, "own.py": rule("T['f']", top="from helpers import T as t, T\nt['f'] = 2")},
        {"own.py": rule("T['f']", top="from helpers import T as t, T\nt['f'] = 3")},
    ),
    "a module of another package": (
        {"own.py": rule("math.two", top="import math\nm = math\nm.two = 2")},
        {"own.py": rule("math.two", top="import math\nm = math\nm.two = 3")},
    ),
    "the module of a rule": (
        {
            "own.py": own(fixed=', "optimizer": parts.Rule', mutable="", top="import parts\nparts.F = 2"),
            "parts.py": PART,
        },
        {"own.py": own(fixed=', "optimizer": parts.Rule', mutable="", top="import parts\nparts.F = 3")},
    ),
    "the file of a rule": (
        {
            "own.py": own(fixed=', "optimizer": "parts.py:Rule"', mutable="", top="import math\nmath.F = 2"),
            "parts.py": PART,
        },
        {"own.py": own(fixed=', "optimizer": "parts.py:Rule"', mutable="", top="import math\nmath.F = 3")},
    ),
    "a class in a function": made("class Inner(Rule):\n        def f(self): return x\n    return Inner"),
    "a class's attribute in a function": made("class Inner(Rule):\n        f = x\n    return Inner"),
    "a class's default in a function": made("class Inner(Rule):\n        def f(self, y=x): return y\n    return Inner"),
    "a property of a class in a function": made(
        "class Inner(Rule):\n        @property\n        def f(self): return x\n    return Inner"
    ),
    "an object that a class captures": made(
        "class Held: pass\n    held = Held()\n    held.x = x\n    class Inner(Rule):\n"
        "        def f(self): return held.x\n    return Inner"
    ),
    "classes that refer to each other": made(
        "class Inner(Rule):\n        f = x\n        def other(self): return Other\n"
        "    class Other(Rule):\n        def other(self): return Inner\n    return Inner"
    ),
    "a default in a function": (
        {"own.py": own(end=DEFAULT.replace("$", "2"))},
        {"own.py": own(end=DEFAULT.replace("$", "3"))},
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_statement_that_changes_what_is_fixed_counts(name: str, tmp_path: Path) -> None:
    before, changes = CHANGES[name]
    path = write(tmp_path, before)
    first = hash_of(path)
    assert hash_of(path) == first, "the same again"
    write(tmp_path, changes)
    assert hash_of(path) != first


# Each: the files of a recipe, and those that are changed without a change of what the fixed part computes.
COMMENTED = rule("F", top="from helpers import F").replace(
    "def own(seed=0):", '"""Notes."""\n\n\ndef own(\n    seed=0,  # the seed\n):\n    """A network."""\n'
)
SAME: dict[str, tuple[Files, Files]] = {
    "comments": (
        {"own.py": rule("F", top="from helpers import F"), "helpers.py": "F = 1\n"},
        {"own.py": COMMENTED, "helpers.py": '"""Doc."""\n# one\nF = (\n    1\n)\n'},
    ),
    "the mutable part": ({"own.py": rule("1")}, {"own.py": rule("1").replace('"batch_size": 16', '"batch_size": 8')}),
    "the goals": ({"own.py": rule("1")}, {"own.py": rule("1", goal='"> 1 %"')}),
    "code of the mutable part": (
        {"own.py": own(mutable=', "optimizer": Rule', more=RULE.format(factor="1"))},
        {"own.py": own(mutable=', "optimizer": Rule', more=RULE.format(factor="2"))},
    ),
    "a helper of the mutable part": (
        {
            "own.py": own(mutable=', "optimizer": Rule', top="from helpers import F", more=RULE.format(factor="F")),
            "helpers.py": "F = 1\n",
        },
        {"helpers.py": "F = 2\n"},
    ),
    "a file of the mutable part": (
        {
            "own.py": own(top=f"TUNED = json.loads(({BESIDE} / 't.json').read_text())", mutable=SGD + ", **TUNED"),
            "t.json": '{"seed": 1}',
        },
        {"t.json": '{"seed": 2}'},
    ),
    "a change of the mutable part": (
        {"own.py": own(end="MUTABLE['seed'] = 1")},
        {"own.py": own(end="MUTABLE['seed'] = 2")},
    ),
    "a program at the end": (
        {"own.py": own()},
        {"own.py": own(end="if __name__ == '__main__':\n    print(FIXED)")},
    ),
    "output": ({"own.py": own()}, {"own.py": own(end="print('loaded')")}),
    "a local name of a variable": (
        {"own.py": own(top="size = 16", first="size = 8", mutable=SGD + ', "accumulate": size // 16')},
        {"own.py": own(top="size = 32", first="size = 8", mutable=SGD + ', "accumulate": size // 32')},
    ),
    "a table of the mutable part": (
        {"own.py": own(top=REGISTER + "@register\ndef f(): return 2", mutable=SGD + ", 'seed': TABLE['f']")},
        {"own.py": own(top=REGISTER + "@register\ndef f(): return 3", mutable=SGD + ", 'seed': TABLE['f']")},
    ),
    "what is computed from a number that is fixed": (
        {"own.py": own(top="import math\nW = 8\nS = math.ceil(W + 2)", hidden="W", mutable=SGD + ", 'seed': S")},
        {"own.py": own(top="import math\nW = 8\nS = math.ceil(W + 3)", hidden="W", mutable=SGD + ", 'seed': S")},
    ),
    "a helper's object of the mutable part": (
        {
            "own.py": own(top="import helpers\nS = helpers.get(2)", mutable=SGD + ", 'seed': S"),
            "helpers.py": "get = int\n",
        },
        {"own.py": own(top="import helpers\nS = helpers.get(3)", mutable=SGD + ", 'seed': S")},
    ),
    "a program that runs it": (
        {"own.py": own(end="if __name__ == '__main__':\n    found = d5.run_recipe(FIXED, MUTABLE, METRICS, seed=2)")},
        {"own.py": own(end="if __name__ == '__main__':\n    found = d5.run_recipe(FIXED, MUTABLE, METRICS, seed=3)")},
    ),
    "a file beside": ({"own.py": own(), "notes.txt": "1"}, {"notes.txt": "2", "other.py": "1"}),
    "a file that the function writes itself": (
        {
            "own.py": own(
                top="import tempfile",
                first="""with tempfile.TemporaryDirectory(dir=Path(__file__).parent) as place:
        file = Path(place, "n.onnx")
        d5.networks.mlp(features=4, hidden=8, classes=3).save(file)
        return d5.Network.from_onnx(file)""",
            )
        },
        {},
    ),
    "a file of the system": (
        {"own.py": own(first="Path('/etc/hosts').read_text(); Path('/proc/self/stat').read_text()")},
        {},
    ),
    "a file beside an operator": (CPP, {"cpp/other.h": "1\n", "f.h": "2\n"}),
    "a package of others": ({"own.py": own(top="import safetensors.numpy")}, {}),
    "an import of the standard library that nothing uses": (
        {"own.py": rule("1")},
        {"own.py": rule("1", top="import time")},
    ),
    "an import of deep5 that nothing uses": (
        {"own.py": rule("1")},
        {"own.py": rule("1", top="import deep5.core.metric")},
    ),
    "a cache that the function writes once": (
        {
            "own.py": own(
                first="""file = Path(__file__).parent / "w.json"
    if not file.exists():
        file.write_text("8")""",
                hidden="json.loads(file.read_text())",
            )
        },
        {},
    ),
    "a count that the function reads and writes": (
        {
            "own.py": own(
                first="""file = Path(__file__).parent / "n.txt"
    file.write_text(str(int(file.read_text()) + 1) if file.exists() else "0")"""
            )
        },
        {},
    ),
}


@pytest.mark.parametrize("name", SAME)
def test_one_recipe_has_one_hash(name: str, tmp_path: Path) -> None:
    before, changes = SAME[name]
    path = write(tmp_path, before)
    first = hash_of(path)
    assert hash_of(path) == first
    write(tmp_path, changes)
    assert hash_of(path) == first


ALL: Files = {
    "own.py": rule(
        "F * G",
        top="from helpers import F\nimport helpers.more\nG = float((Path(__file__).parent / 'g.txt').read_text())",
        first="import importlib; w = importlib.import_module('la' + str('zy')).W",
        hidden="8 * w",
    ),
    "helpers/__init__.py": "from .more import F\n",
    "helpers/more.py": "from pathlib import Path\nF = float((Path(__file__).parent / 'f.txt').read_text())\n",
    "helpers/f.txt": "1",
    "lazy.py": "W = 1\n",
    "g.txt": "2",
}


def test_the_hash_does_not_depend_on_the_place_the_process_or_what_ran_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "one", ALL)
    first = hash_of(path)
    content = load_recipe(path).content
    assert content is not None
    assert set(content["modules"]) == {"helpers", "helpers.more"}
    assert len(content["files"]) == 2
    shutil.copytree(tmp_path / "one", tmp_path / "two" / "deeper")
    for file in (tmp_path / "two").rglob("*"):
        os.utime(file, (1, 1))
    copied = tmp_path / "two" / "deeper" / "own.py"
    linked = tmp_path / "linked"
    linked.symlink_to(tmp_path / "one")
    assert hash_of(copied) == hash_of(linked / "own.py") == hash_of(path) == first
    monkeypatch.chdir(tmp_path / "one")
    assert hash_of(Path("own.py")) == first
    (tmp_path / "alone").mkdir()
    (tmp_path / "alone" / "other_name.py").symlink_to(path)
    assert hash_elsewhere(copied, cwd=tmp_path) == first
    assert (
        hash_elsewhere(copied, cwd="/", env={**os.environ, "PYTHONHASHSEED": "7", "PYTHONDONTWRITEBYTECODE": "1"})
        == first
    )
    assert hash_elsewhere(copied, cwd="/") == first, "with compiled modules in __pycache__"


HOME, SHM = os.path.realpath(Path.home()), "/dev/shm"  # noqa: S108


@pytest.mark.parametrize(
    ("file", "folder", "counts"),
    [
        (f"{SHM}/work/f.txt", f"{SHM}/work", True),
        (f"{SHM}/data/f.txt", "/home/ada", True),
        ("/run/media/ada/disk/f.txt", "/run/media/ada/disk/recipes", True),
        ("/run/user/1000/f.txt", None, True),
        ("/etc/recipes/data/f.txt", "/etc/recipes", True),
        ("/etc/hosts", "/etc/recipes", False),
        ("/usr/share/zoneinfo/UTC", "/home/ada", False),
        ("/usr/share/recipes/f.txt", "/usr/share/recipes", True),
        ("/etc/hosts", "/", False),
        ("/dev/null", None, False),
        ("/run/lock/f.txt", "/run/user/1000", False),
        (f"{HOME}/.config/f.txt", None, False),
        (f"{HOME}/.config/f.txt", f"{HOME}/.config", True),
        (f"{HOME}/.config/f.txt", "/", False),
        (f"{HOME}/.config/f.txt", HOME, True),
        ("/srv/f.txt", None, True),
    ],
)
def test_whose_a_file_is(file: str, folder: str | None, counts: bool) -> None:
    assert is_users(file, None if folder is None else Path(folder)) is counts


def test_a_file_that_an_installed_package_opens_while_it_is_imported_does_not_count(tmp_path: Path) -> None:
    """It opens it once in a process, and it may be another one on another machine."""
    package: Files = {
        "site-packages/deep5_test_package.py": f"from pathlib import Path\n"
        f"({BESIDE}.parent / 'zone.txt').read_text()\n",
        "zone.txt": "1",
    }
    write(tmp_path / "env", package)
    path = write(tmp_path, {"own.py": rule("1", top="import deep5_test_package as K").replace("pass", "K")})
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(tmp_path / "env/site-packages"), os.environ.get("PYTHONPATH", "")]),
    }
    first = hash_elsewhere(path, env=environment)
    write(tmp_path / "env", {"zone.txt": "2"})
    assert hash_elsewhere(path, env=environment) == first


def test_a_registered_component_of_a_package_that_is_installed_in_place_counts(tmp_path: Path) -> None:
    """By its code, and a network by its weights too."""
    text = own(fixed=', "optimizer": "mine"', mutable="").replace('"model": own', '"model": "mine"')
    network = "import deep5 as d5\ndef net(seed=0): return d5.networks.mlp(features=4, hidden=$, classes=3)\n"
    place = tmp_path / "source"
    write(
        place,
        {
            "own.py": text,
            "mine/__init__.py": "",
            "mine-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n",
            "mine-1.0.dist-info/entry_points.txt": "[deep5.optimizers]\nmine = mine.rule:Rule\n"
            "[deep5.networks]\nmine = mine.net:net\n",
        },
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(place), os.environ.get("PYTHONPATH", "")])}
    found = []
    for factor, hidden in (("1", "8"), ("2", "8"), ("1", "9"), ("1", "8")):
        write(
            place,
            {
                "mine/rule.py": "import deep5 as d5\n" + RULE.format(factor=factor),
                "mine/net.py": network.replace("$", hidden),
            },
        )
        found.append(hash_elsewhere(place / "own.py", env=environment))
    assert found[0] == found[3]
    assert len(set(found)) == 3


def test_a_recipe_in_shared_memory_has_its_files_in_its_hash() -> None:
    if not os.access(SHM, os.W_OK):
        pytest.skip("no /dev/shm")
    before, changes = DIFFERENT["a file read at the top"]
    with tempfile.TemporaryDirectory(dir=SHM, prefix="deep5-") as name:
        path = write(Path(name), before)
        first = hash_of(path)
        write(Path(name), changes)
        assert hash_of(path) != first


def test_a_source_of_another_suffix_counts_in_every_process(tmp_path: Path) -> None:
    """Its compiled file, which the second process finds, does not name it."""
    files = DIFFERENT["a source by another suffix"][0]
    path = write(tmp_path, files)
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    hashes = [hash_elsewhere(path, env=environment) for _ in range(2)]
    assert list((tmp_path / "lib").rglob("*.pyc"))
    assert hashes[0] == hashes[1]


def test_a_library_that_ctypes_loads_counts(tmp_path: Path) -> None:
    if (command := compiler()) is None:
        pytest.skip("no C compiler")
    path = write(tmp_path, {"own.py": reading(f"ctypes.CDLL(str({BESIDE} / 'f.so')).f()", "import ctypes")})
    hashes = []
    for value in (1, 2, 1):
        write(tmp_path, {"f.c": f"int f(void) {{ return {value}; }}\n"})
        subprocess.run([command, "-shared", "-fPIC", "-o", "f.so", "f.c"], cwd=tmp_path, check=True)
        hashes.append(hash_elsewhere(path))
    assert hashes[0] == hashes[2] != hashes[1]


def test_two_recipes_with_helpers_of_one_name_each_get_their_own(tmp_path: Path) -> None:
    paths = [
        write(tmp_path / name, {"own.py": own(top="from helpers import W", hidden="W"), "helpers.py": f"W = {width}\n"})
        for name, width in (("a", 8), ("b", 9))
    ]
    recipes = [load_recipe(path) for path in paths]
    hashes = [recipe.fixed_hash() for recipe in recipes]
    assert hashes[0] != hashes[1] == hash_elsewhere(paths[1])
    assert [recipe.fixed["model"]().parameters()["fc1.weight"].shape[0] for recipe in recipes] == [8, 9]
    assert [hash_of(path) for path in paths] == hashes


def test_a_helper_that_changes_in_one_process_is_loaded_again(tmp_path: Path) -> None:
    files: Files = {"own.py": own(top="from helpers import W", hidden="W"), "helpers.py": "W = 8\n"}
    path = write(tmp_path, files)
    first = hash_of(path)
    write(tmp_path, {"helpers.py": "W = 8 + 1\n"})
    assert load_recipe(path).fixed["model"]().parameters()["fc1.weight"].shape[0] == 9
    assert hash_of(path) != first
    write(tmp_path, files)
    assert hash_of(path) == first


def test_a_thread_that_opens_files_does_not_take_part(tmp_path: Path) -> None:
    waits = "t = threading.Thread(target=(Path(__file__).parent / 'log.txt').read_text); t.start(); t.join()"
    path = write(tmp_path, {"own.py": own(first=waits), "log.txt": "1"})
    first = hash_of(path)
    write(tmp_path, {"log.txt": "2"})
    assert hash_of(path) == first


def test_recipes_of_named_parts_have_the_hash_of_the_first_rule(tmp_path: Path) -> None:
    text = own(end="FIXED['model'] = 'mlp'\nFIXED['model_kwargs'] = {'features': 4, 'hidden': 8, 'classes': 3}")
    recipe = load_recipe(write(tmp_path, {"own.py": text}))
    assert recipe.content is None
    assert recipe.fixed_hash() == recipe.fixed_hash(1)
    assert recipe.document()["hash_version"] == 1
    own_code = load_recipe(write(tmp_path, {"own.py": own()}))
    assert own_code.document()["hash_version"] == 2
    assert own_code.fixed_hash() != own_code.fixed_hash(1)


def test_the_network_takes_part_only_if_the_fixed_part_determines_it(tmp_path: Path) -> None:
    widths = own(
        end="def wide(seed=0, hidden=8): return d5.networks.mlp(features=4, hidden=hidden, classes=3)\n"
        "FIXED['model'] = wide\nMUTABLE['model_kwargs'] = {'hidden': HIDDEN}",
        top="HIDDEN = 8",
    )
    paths = [
        write(tmp_path / str(width), {"own.py": widths.replace("HIDDEN = 8", f"HIDDEN = {width}")}) for width in (8, 9)
    ]
    assert hash_of(paths[0]) == hash_of(paths[1])
    content = load_recipe(paths[0]).content
    assert content is not None
    assert content["network"] is None


def test_a_network_that_cannot_be_created_is_refused_with_its_line(tmp_path: Path) -> None:
    path = write(tmp_path, {"own.py": own(first="raise ValueError('no')")})
    with pytest.raises(RecipeError, match=r"own\.py:\d+: 'model' .*ValueError.*: no"):
        hash_of(path)


def test_code_of_a_session_without_files_is_hashed_with_the_values_that_it_uses(tmp_path: Path) -> None:
    code = """
import linecache, sys, types
from deep5.recipe.recipe import Recipe
cell = '''
import deep5 as d5
def scaled(x): return {factor} * x
def rule(): return d5.SGD(scaled(W))
'''.replace("{factor}", sys.argv[2])
linecache.cache["<cell>"] = (len(cell), None, cell.splitlines(True), "<cell>")
W = float(sys.argv[1])
exec(compile(cell, "<cell>", "exec"), globals())
del globals()["__file__"]
fixed = {"model": "mlp", "model_kwargs": {"features": 4, "hidden": 8, "classes": 3}, "dataset": "synthetic",
         "dataset_kwargs": {"shape": (4,), "classes": 3}, "epochs": 1, "optimizer": rule}
print(Recipe.make(fixed, {"batch_size": 8, "framework": "reference"}, []).fixed_hash())
"""
    path = tmp_path / "session.py"
    path.write_text(code)

    def hashed(*words: str) -> str:
        done = subprocess.run([sys.executable, str(path), *words], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert hashed("1", "2") == hashed("1", "2")
    assert len({hashed("1", "2"), hashed("3", "2"), hashed("1", "4")}) == 3


def test_syntax_hashes_do_not_depend_on_the_version_of_python() -> None:
    """Computed with Python 3.11; the fields of syntax trees differ between versions."""
    text = "class A[T]: pass" if sys.version_info >= (3, 12) else "class A: pass"
    assert len(syntax_hash(text)) == 64
    known = "def f(x: int = 1, *, y=0) -> str:\n    'Doc.'\n    return f'{x!r:>{y}} {1.5}' + u'ü' + str({**{}, 1: -.0})"
    assert syntax_hash(known) == KNOWN
    assert syntax_hash("x = 1") != syntax_hash("x = True")
    assert syntax_hash("x = 'a'") != syntax_hash("x = b'a'")
    assert syntax_hash("x = ('a' 'b')") == syntax_hash("x = 'ab'")
    assert syntax_hash("not python (") == syntax_hash("not python (")


KNOWN = "da80bdd0860502c6bd37d45917a5f50aa1aa5ce7240d964567d949035b53e26b"


def test_reading_two_recipes_at_once_from_threads_gives_each_its_hash(tmp_path: Path) -> None:
    path = write(tmp_path, ALL)
    first, found = hash_of(path), []
    threads = [threading.Thread(target=lambda: found.append(hash_of(path))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == [first] * 4


def test_a_recipe_made_in_python_is_its_file(tmp_path: Path) -> None:
    made = Recipe.make
    path = write(tmp_path, {"own.py": own()})
    recipe = load_recipe(path)
    assert made(recipe.fixed, recipe.mutable, [("test_accuracy", None)]).fixed_hash() == recipe.fixed_hash()


def test_a_recipe_of_plain_values_installs_no_hook(tmp_path: Path) -> None:
    """The hook is called at every event of the interpreter, also in code that is timed."""
    plain = own(fixed="").replace('"model": own', '"model": "mlp"')
    code = (
        "import sys; from deep5.recipe.recipe import load_recipe; from deep5.recipe import opened_files\n"
        "for name in sys.argv[1:]: load_recipe(name).fixed_hash(); print(len(opened_files._INSTALLED))"
    )
    paths = [write(tmp_path / "a", {"own.py": plain}), write(tmp_path / "b", {"own.py": own()})]
    names = ["digits_lenet", "deepbench_gemm", *map(str, paths)]
    done = subprocess.run([sys.executable, "-c", code, *names], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0", "0", "0", "1"]


def test_an_interrupted_run_does_not_resume_with_another_helper(tmp_path: Path) -> None:
    from deep5.core.errors import CheckpointError
    from deep5.run.execute import execute

    stops = """
class Stop(d5.Event):
    def after_epoch(self, trainer, epoch): raise KeyboardInterrupt
"""
    files: Files = {
        "own.py": rule("F", top="from helpers import F")
        .replace("MUTABLE = {", 'MUTABLE = {"events": [Stop()], ')
        .replace("FIXED =", stops + "\nFIXED ="),
        "helpers.py": "F = 1\n",
    }
    path = write(tmp_path, files)
    with pytest.raises(KeyboardInterrupt):
        execute(load_recipe(path), out=tmp_path / "out", quiet=True)
    [folder] = (tmp_path / "out").iterdir()
    write(tmp_path, {"helpers.py": "F = 2\n"})
    with pytest.raises(CheckpointError, match="has another hash, because these changed: the module helpers; remedy"):
        execute(load_recipe(path), resume=folder, quiet=True)
