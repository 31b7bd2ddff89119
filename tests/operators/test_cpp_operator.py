"""Operators in C++: compiled on first use, on NumPy's memory without copies; errors in the user's terms."""

from __future__ import annotations

import gc
import os
import pickle
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import deep5 as d5
from deep5.core import compiler
from deep5.core.arguments import THREADS
from deep5.core.errors import OperatorError, ShapeError, Unsupported, UsageError
from deep5.operators.backward import Backward

RNG = np.random.default_rng(5)

IPOW = """
template <typename T>
class IPow : public deep5::Operator {
 public:
  explicit IPow(int64_t power) : power_(power) {}
  void forward(deep5::Tensor<const T> x, deep5::Tensor<T> y) {
    report("elements", static_cast<double>(x.size()));
#pragma omp parallel for
    for (int64_t i = 0; i < x.size(); ++i) y[i] = deep5::power(x[i], power_);
  }
  void backward(deep5::Tensor<const T> dy, deep5::Tensor<const T> x, deep5::Tensor<const T> y, deep5::Tensor<T> dx) {
    for (int64_t i = 0; i < x.size(); ++i) dx[i] = dy[i] * T(power_) * deep5::power(x[i], power_ - 1);
  }

 private:
  int64_t power_;
};
"""


class IPow(d5.CppOperator):
    source = IPOW

    def __init__(self, power: int) -> None:
        super().__init__(power=power)

    def specs(self, *inputs: d5.TensorSpec) -> tuple[d5.TensorSpec, ...]:
        return inputs


class Several(d5.CppOperator):
    """Rows of x taken by index and scaled by w; and the number of times each row was taken."""

    source = """
    template <typename T>
    struct Several : deep5::Operator {
      void forward(deep5::Strided<const T> x, deep5::Tensor<const int64_t> rows, deep5::Tensor<const T> w,
                   deep5::Tensor<T> y, deep5::Tensor<int32_t> count) {
        for (auto& each : count) each = 0;
        for (int64_t i = 0; i < rows.size(); ++i) {
          ++count[rows[i]];
          for (int64_t j = 0; j < x.shape(1); ++j) y(i, j) = x(rows[i], j) * w[j];
        }
      }
      void backward(deep5::Tensor<const T> dy, deep5::Strided<const T> x, deep5::Tensor<const int64_t> rows,
                    deep5::Tensor<const T> w, deep5::Tensor<const T> y, deep5::Tensor<const int32_t> count,
                    deep5::Tensor<T> dx, deep5::Tensor<T> dw) {
        if (dx) for (auto& each : dx) each = 0;
        if (dw) for (auto& each : dw) each = 0;
        for (int64_t i = 0; i < rows.size(); ++i)
          for (int64_t j = 0; j < x.shape(1); ++j) {
            if (dx) dx(rows[i], j) += dy(i, j) * w[j];
            if (dw) dw[j] += dy(i, j) * x(rows[i], j);
          }
      }
    };"""

    def specs(self, *inputs: d5.TensorSpec) -> tuple[d5.TensorSpec, ...]:
        x, rows, _ = inputs
        return (
            d5.TensorSpec(shape=(rows.shape[0], x.shape[1]), dtype=x.dtype),
            d5.TensorSpec(shape=(x.shape[0],), dtype="int32"),
        )


def made(text: str, specs: Any = lambda self, *inputs: inputs, **attributes: Any) -> d5.CppOperator:
    """An operator with this source, whose class is called Made."""
    kind = type("Made", (d5.CppOperator,), {"source": text + "\n", "specs": specs})
    return kind(**attributes)


FLOATS = ["float32", "float64", "float16", ml_dtypes.bfloat16]


@pytest.mark.parametrize("dtype", [*FLOATS, "int32", "int64", "uint8"])
def test_every_element_type_is_computed_with_as_it_is(dtype: Any) -> None:
    x = np.arange(6).reshape(2, 3).astype(dtype)
    y = IPow(3).forward(x)
    assert y.dtype == x.dtype
    assert y.shape == (2, 3)
    # Cubes of small integers are exact in every type except bfloat16, which represents 125 exactly, too.
    assert y.tolist() == (np.arange(6).reshape(2, 3) ** 3).tolist()


def test_float64_is_not_computed_in_float32() -> None:
    x = RNG.standard_normal(1000)
    # Repeated squaring of three factors: two roundings.
    np.testing.assert_allclose(IPow(3).forward(x), x**3, rtol=4e-16)


def _unaligned(x: np.ndarray) -> np.ndarray:
    raw = np.empty(x.nbytes + 1, np.uint8)
    view: np.ndarray = raw[1:].view(x.dtype).reshape(x.shape)
    view[...] = x
    assert not view.flags.aligned
    return view


def _read_only(x: np.ndarray) -> np.ndarray:
    x = x.copy()
    x.flags.writeable = False
    return x


LAYOUTS = {
    "fortran": np.asfortranarray,
    "transposed": lambda x: np.ascontiguousarray(x.T).T,
    "every second": lambda x: np.repeat(x, 2, axis=1)[:, ::2],
    "backwards": lambda x: np.ascontiguousarray(x[::-1, ::-1])[::-1, ::-1],
    "broadcast": lambda x: np.broadcast_to(x[:1], x.shape),
    "unaligned": _unaligned,
    "read-only": _read_only,
    "axes of one": lambda x: x[np.newaxis][:, :, :, np.newaxis][0, :, :, 0],
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_no_layout_is_misread(layout: str, dtype: Any) -> None:
    x = LAYOUTS[layout](RNG.standard_normal((5, 4)).astype(dtype))
    expected = np.array(x) ** 2
    np.testing.assert_array_equal(IPow(2).forward(x), expected)
    (gradient,) = IPow(2).backward((np.ones((5, 4), dtype),), (x,), (expected,), (True,))
    np.testing.assert_array_equal(gradient, 2 * np.array(x))


def test_the_compiler_is_called_with_the_flags_that_are_promised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, script, told = compiler.compiler(compiler.CPP), tmp_path / "c++", tmp_path / "arguments"
    script.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > "{told}"\nexec "{real}" "$@"\n')
    script.chmod(0o755)
    monkeypatch.setenv("CXX", str(script))
    monkeypatch.setenv("DEEP5_CACHE", str(tmp_path / "cache"))
    np.testing.assert_array_equal(IPow(2).forward(np.array([3.0])), [9])
    given = told.read_text().splitlines()
    assert {"-O3", "-march=native", "-fopenmp"} <= set(given)
    # The compiler uses the last of them.
    assert [flag for flag in given if flag.startswith("-O")] == ["-O3"]


def test_a_contiguous_input_is_not_copied() -> None:
    text = """template <typename T> struct Made : deep5::Operator {
      void forward(deep5::Tensor<const T> x, deep5::Tensor<int64_t> place) {
        place[0] = reinterpret_cast<int64_t>(x.data());
      }
    };"""
    place = made(text, lambda self, x: (d5.TensorSpec(shape=(1,), dtype="int64"),))
    x = RNG.standard_normal((3, 4))
    assert place.forward(x)[0] == x.__array_interface__["data"][0]
    assert place.forward(x.T)[0] != x.__array_interface__["data"][0]


def test_an_input_that_is_declared_strided_is_not_copied_and_not_misread() -> None:
    text = """template <typename T> struct Made : deep5::Operator {
      void forward(deep5::Strided<const T> x, deep5::Tensor<T> y, deep5::Tensor<int64_t> place) {
        for (int64_t i = 0; i < x.shape(0); ++i)
          for (int64_t j = 0; j < x.shape(1); ++j) y(i, j) = x(i, j);
        place[0] = reinterpret_cast<int64_t>(x.data());
        place[1] = x.stride(0);
        place[2] = x.stride(1);
      }
    };"""
    strided = made(text, lambda self, x: (x, d5.TensorSpec(shape=(3,), dtype="int64")))
    x = RNG.standard_normal((6, 8))
    for view in (x, x.T, x[::2, 1::3], x[::-1]):
        y, place = strided.forward(view)
        np.testing.assert_array_equal(y, view)
        assert place.tolist() == [view.__array_interface__["data"][0], *(step // 8 for step in view.strides)]


def test_empty_and_zero_dimensional_arrays() -> None:
    assert IPow(2).forward(np.zeros((0, 3), np.float32)).shape == (0, 3)
    assert IPow(2).forward(np.array(3.0)).item() == 9.0
    assert IPow(2).forward(np.array(3.0)).shape == ()


def test_several_inputs_and_outputs_of_several_element_types() -> None:
    x, w, rows = RNG.standard_normal((4, 3)), RNG.standard_normal(3), np.array([2, 0, 2])
    operator = Several()
    y, count = operator.forward(x.copy(order="F"), rows, w)
    np.testing.assert_array_equal(y, x[rows] * w)
    assert count.tolist() == [1, 0, 2, 0]
    assert count.dtype == np.int32
    dy = RNG.standard_normal(y.shape)
    for needs in ((True, False, True), (True, False, False), (False, False, True)):
        dx, none, dw = operator.backward((dy, None), (x, rows, w), (y, count), needs)
        assert none is None
        assert [dx is not None, dw is not None] == [needs[0], needs[2]]
        if dx is not None:
            expected = np.zeros_like(x)
            np.add.at(expected, rows, dy * w)
            # At most two rows are added: one rounding, in either order.
            np.testing.assert_allclose(dx, expected, rtol=1e-15)
        if dw is not None:
            np.testing.assert_allclose(dw, (dy * x[rows]).sum(0), rtol=1e-14)


def test_attributes_are_the_constructor_s_arguments() -> None:
    text = """template <typename T> struct Made : deep5::Operator {
      std::vector<double> all;
      Made(int64_t a, double b, bool c, std::string d, std::vector<int64_t> e, std::vector<double> f,
           std::vector<int64_t> g) {
        all = {double(a), b, double(c), double(d.size()), double(e.size()), double(e.at(1)), f.at(0), double(g.size())};
        if (d != "two words, µ") throw std::runtime_error(d);
      }
      void forward(deep5::Tensor<const T> x, deep5::Tensor<T> y) {
        for (int64_t i = 0; i < y.size(); ++i) y[i] = all[i];
      }
    };"""
    whole = -(1 << 62)
    operator = made(
        text,
        lambda self, x: (d5.TensorSpec(shape=(8,), dtype="float64"),),
        a=whole,
        b=0.1,
        c=True,
        d="two words, µ",
        e=[3, 4],
        f=np.array([2.5, 1.0]),
        g=(),
    )
    assert operator.forward(np.zeros(1)).tolist() == [float(whole), 0.1, 1.0, 13.0, 2.0, 4.0, 2.5, 0.0]


TAKES_ALL = """template <typename T> struct Made : deep5::Operator {
  std::vector<double> all;
  Made(int64_t a, const double& b, bool c, const std::string& d, std::vector<uint64_t> e, const std::vector<double>& f,
       float g, uint8_t h, T i) {
    all = {double(a), b, double(c), double(d.size()), double(e.at(0)), f.empty() ? 0.0 : f[0], g, double(h), double(i)};
  }
  void forward(deep5::Tensor<const T> x, deep5::Tensor<T> y) {
    for (int64_t i = 0; i < y.size(); ++i) y[i] = all[i];
  }
};"""


def taken(**attributes: Any) -> np.ndarray:
    """The values of its attributes in a constructor with all types, in float64."""
    given = {"a": 1, "b": 1.0, "c": True, "d": "t", "e": [1], "f": [1.0], "g": 1.0, "h": 1, "i": 1.0, **attributes}
    y: np.ndarray = made(TAKES_ALL, lambda self, x: (d5.TensorSpec(shape=(9,), dtype=x.dtype),), **given).forward(
        np.zeros(1)
    )
    return y


def test_an_attribute_arrives_exactly() -> None:
    given = {"a": 1 << 53, "b": 3, "c": 0, "d": "", "e": (7,), "f": [1, 2], "g": 0.1, "h": 255, "i": 0.1}
    assert taken(**given).tolist() == [2.0**53, 3.0, 0.0, 0.0, 7.0, 1.0, float(np.float32(0.1)), 255.0, 0.1]
    assert taken(a=True, f=(), g=np.float64(2), h=np.uint8(3), b=np.array(0.5)).tolist()[5:8] == [0.0, 2.0, 3.0]
    assert taken(b=float("inf"), g=float("-inf")).tolist()[1::5] == [float("inf"), float("-inf")]


@pytest.mark.parametrize(
    ("attribute", "told"),
    [
        ({"a": 2.7}, r"got a=2\.7; allowed: an integer, as its type in C\+\+ says"),
        ({"a": 2.0}, r"got a=2\.0; allowed: an integer"),
        ({"a": "x"}, r"got a='x'; allowed: an integer"),
        ({"a": [1]}, r"got a=\(1,\); allowed: an integer"),
        ({"b": True}, r"got b=True; allowed: a number"),
        ({"b": "1"}, r"got b='1'; allowed: a number"),
        ({"b": (1 << 53) + 1}, r"got b=9007199254740993; allowed: integers that its type in C\+\+ holds exactly"),
        ({"c": 2}, r"got c=2; allowed: a truth value"),
        ({"c": 1.0}, r"got c=1\.0; allowed: a truth value"),
        ({"d": 1}, r"got d=1; allowed: a string"),
        ({"e": [1.5]}, r"got e=\(1\.5,\); allowed: an integer"),
        ({"e": 1}, r"got e=1; allowed: a list of numbers"),
        ({"e": [-1]}, r"got e=\(-1,\); allowed: integers from 0 to 18446744073709551615"),
        ({"f": "ab"}, r"got f='ab'; allowed: a list of numbers"),
        ({"f": [(1 << 53) + 1]}, r".*holds exactly"),
        ({"g": 1e300}, r"got g=1e\+300; allowed: numbers that its type in C\+\+ holds"),
        ({"g": (1 << 24) + 1}, r".*holds exactly"),
        ({"h": 256}, r"got h=256; allowed: integers from 0 to 255"),
        ({"h": -1}, r"got h=-1; allowed: integers from 0 to 255"),
    ],
)
def test_an_attribute_that_its_type_in_cpp_does_not_hold(attribute: dict[str, Any], told: str) -> None:
    with pytest.raises(OperatorError, match=rf"^Made: its C\+\+ constructor failed: {told}"):
        taken(**attribute)


def test_an_attribute_of_the_element_type_is_held_to_it() -> None:
    text = """template <typename T> struct Made : deep5::Operator {
      T factor;
      explicit Made(T factor) : factor(factor) {}
      void forward(deep5::Tensor<const T> x, deep5::Tensor<T> y) { y[0] = factor * x[0]; }
    };"""
    for dtype in (np.float16, ml_dtypes.bfloat16):
        assert made(text, factor=0.5).forward(np.ones(1, dtype))[0] == 0.5
    assert made(text, factor=2).forward(np.ones(1, np.int32))[0] == 2
    with pytest.raises(OperatorError, match=r"got factor=0\.5; allowed: an integer"):
        made(text, factor=0.5).forward(np.ones(1, np.int32))
    with pytest.raises(OperatorError, match=r"got factor=70000\.0; allowed: numbers that its type in C\+\+ holds"):
        made(text, factor=7e4).forward(np.ones(1, np.float16))


@pytest.mark.parametrize("value", [1 << 63, None, {"a": 1}, ["a"], [True], object(), [1 << 63], np.ones((2, 2)), 1j])
def test_an_attribute_that_cpp_cannot_take(value: Any) -> None:
    with pytest.raises(UsageError, match=r"Made: got a=.*; allowed: .*integer"):
        made("", a=value)


def test_an_operator_without_inputs() -> None:
    text = "template <typename T> struct Made : deep5::Operator { void forward(deep5::Tensor<T> y) { y[0] = 3; } };"
    y = made(text, lambda self: (d5.TensorSpec(shape=(1,), dtype="float32"),)).forward()
    assert (y.dtype, y.tolist()) == (np.float32, [3.0])


def test_it_is_compiled_for_this_machine_and_for_right_results() -> None:
    text = """#ifdef __FAST_MATH__
    #define FAST 1
    #else
    #define FAST 0
    #endif
    template <typename T> struct Made : deep5::Operator {
      void forward(deep5::Tensor<const T> x, deep5::Tensor<int64_t> y) {
        y[0] = __OPTIMIZE__;
        y[1] = _OPENMP > 0;
        y[2] = FAST;
    #ifdef __AVX2__
        y[3] = 1;
    #else
        y[3] = 0;
    #endif
      }
    };"""
    told = made(text, lambda self, x: (d5.TensorSpec(shape=(4,), dtype="int64"),)).forward(np.ones(1))
    info = Path("/proc/cpuinfo").read_text(encoding="utf-8") if Path("/proc/cpuinfo").is_file() else ""
    assert told.tolist() == [1, 1, 0, int(" avx2 " in info)]


def test_counters_are_reported_once() -> None:
    operator = IPow(2)
    assert operator.report() == {}
    operator.forward(np.zeros(3))
    operator.forward(np.zeros(4, np.float32))
    assert operator.report() == {"elements": 7.0}
    assert operator.report() == {}


def test_an_exception_arrives_with_its_text() -> None:
    text = """template <typename T> struct Made : deep5::Operator {
      void forward(deep5::Tensor<const T> x, deep5::Tensor<T> y) {
        if (x.size() > 2) throw std::invalid_argument("no more than two");
        if (x.size() > 1) throw 5;
        y[0] = x[0];
      }
    };"""
    operator = made(text)
    assert operator.forward(np.ones(1)) == 1
    with pytest.raises(OperatorError, match="Made failed: no more than two"):
        operator.forward(np.ones(3))
    with pytest.raises(OperatorError, match=r"Made failed: it threw something that is not a std::exception"):
        operator.forward(np.ones(2))
    assert operator.forward(np.ones(1)) == 1


def test_a_constructor_that_throws() -> None:
    text = """template <typename T> struct Made : deep5::Operator {
      explicit Made(int64_t a) { if (a < 0) throw std::runtime_error("a below 0"); }
      void forward(deep5::Tensor<const T> x, deep5::Tensor<T> y) { y[0] = x[0]; }
    };"""
    with pytest.raises(OperatorError, match=r"Made: its C\+\+ constructor failed: a below 0"):
        made(text, a=-1).forward(np.ones(1))


def test_source_that_does_not_compile_shows_the_users_line(tmp_path: Path) -> None:
    with pytest.raises(
        OperatorError, match=r"refused the operator IPow for float32:\n[\s\S]*IPow:4:\d+: error"
    ) as told:
        type("IPow", (IPow,), {"source": "\n\n\nthis is not C++;\n"})(2).forward(np.ones(1, np.float32))
    assert "this" in str(told.value)
    file = tmp_path / "broken.cpp"
    file.write_text("\nsyntax error here\n")
    with pytest.raises(OperatorError, match=r"broken\.cpp:2:\d+: error"):
        type("IPow", (IPow,), {"source": str(file)})(2).forward(np.ones(1, np.float32))


FORWARD = "void forward(deep5::Tensor<const T> x, deep5::Tensor<T> y) { y[0] = x[0]; }"


@pytest.mark.parametrize(
    "text",
    [
        f"template <typename T> struct Mad : deep5::Operator {{ {FORWARD} }};",
        f"using T = double; struct Made : deep5::Operator {{ {FORWARD} }};",
        f"using T = double; template <int n> struct Made : deep5::Operator {{ {FORWARD} }};",
        "\n",
    ],
    ids=["another name", "no template", "template of a number", "empty"],
)
def test_a_source_without_the_template_is_told_in_a_line(text: str) -> None:
    with pytest.raises(
        OperatorError,
        match=r"^Made: its C\+\+ source has no class template 'Made' of one element type; allowed: template "
        r'<typename T> class Made; remedy: .*template = "…"$',
    ):
        made(text).forward(np.ones(1))


def test_a_template_of_another_name_in_a_namespace() -> None:
    text = f"namespace mine {{ template <typename T> struct Operator : deep5::Operator {{ {FORWARD} }}; }}\n"
    kind = type(
        "Made", (d5.CppOperator,), {"source": text, "template": "mine::Operator", "specs": lambda self, x: (x,)}
    )
    assert kind().forward(np.full(1, 3.0)) == 3.0
    source, specs = f"using namespace deep5;\n{IPOW}", lambda self, x: (x,)
    kind = type("Made", (d5.CppOperator,), {"source": source, "template": "IPow", "specs": specs})
    assert kind(power=2).forward(np.full(1, 3.0)) == 9.0


BASE = "template <typename T> struct Made : deep5::Operator"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (f"template <typename T> struct Made {{ {FORWARD} }};", r"the class has no public base deep5::Operator"),
        (f"template <typename T> class Made : deep5::Operator {{ public: {FORWARD} }};", r"no public base"),
        (f"{BASE} {{ }};", "the class has no forward"),
        (
            f"{BASE} {{ {FORWARD} void forward(deep5::Tensor<T> y) {{}} }};",
            r"forward is overloaded, a template or not public; allowed: one public function",
        ),
        (
            f"{BASE} {{ template <typename U> void forward(U x, deep5::Tensor<T> y) {{}} }};",
            "forward is overloaded, a t",
        ),
        (f"{BASE} {{ private: {FORWARD} }};", "forward is overloaded, a template or not public"),
        (f"{BASE} {{ {FORWARD} private: void backward(deep5::Tensor<T> y) {{}} }};", "backward is overloaded, a templ"),
        (
            f"{BASE} {{ void forward(deep5::Tensor<const T> x, int n, deep5::Tensor<T> y) {{}} }};",
            "forward takes or returns something else than tensors; allowed: a member function that returns nothing",
        ),
        (
            f"{BASE} {{ int forward(deep5::Tensor<const T> x, deep5::Tensor<T> y) {{ return 1; }} }};",
            "forward takes or r",
        ),
        (f"{BASE} {{ static {FORWARD} }};", "forward takes or returns something else"),
        (
            f"{BASE} {{ explicit Made(int64_t n) {{}} {FORWARD} }};",
            r"no public constructor, or several, for the 0 attrib",
        ),
        (f"{BASE} {{ private: Made() {{}} public: {FORWARD} }};", r"no public constructor, or several"),
    ],
)
def test_a_class_that_is_no_operator_is_told_in_a_line(text: str, told: str) -> None:
    with pytest.raises(OperatorError, match=rf"^Made: [^\n]*{told}[^\n]*$"):
        made(text).forward(np.ones(1))


def test_constructors_that_two_attributes_do_not_choose_between() -> None:
    text = f"{BASE} {{ Made(int64_t a, double b) {{}} Made(double a, int64_t b) {{}} {FORWARD} }};"
    with pytest.raises(
        OperatorError, match=r"or several, for the 2 attributes \(first, second\); allowed: one of so many"
    ):
        made(text, first=1, second=2).forward(np.ones(1))


def test_functions_may_be_const_and_noexcept_and_take_references() -> None:
    text = """template <typename T> struct Made final : deep5::Operator {
      void forward(const deep5::Tensor<const T>& x, deep5::Strided<const T>&& z, deep5::Tensor<T>& y) const noexcept {
        y[0] = x[0] + z(0);
        report("calls", 1);
      }
      void backward(deep5::Tensor<const T> dy, deep5::Tensor<const T> x, deep5::Tensor<const T> z,
                    deep5::Tensor<const T> y, const deep5::Tensor<T> dx, deep5::Tensor<T> dz) noexcept {
        if (dx) dx[0] = dy[0];
        if (dz) dz[0] = 2 * dy[0];
      }
    };"""
    operator = made(text, lambda self, x, z: (x,))
    one = np.ones(1)
    assert operator.forward(one, one) == 2
    assert operator.report() == {"calls": 1.0}
    assert operator.backward((one,), (one, one), (one,), (True, True))[1] == 2


def test_functions_may_be_inherited_and_virtual() -> None:
    text = """template <typename T> struct Common : deep5::Operator {
      virtual T factor() const = 0;
      void forward(deep5::Tensor<const T> x, deep5::Tensor<T> y) const { y[0] = factor() * x[0]; }
      virtual void backward(deep5::Tensor<const T> dy, deep5::Tensor<const T> x, deep5::Tensor<const T> y,
                            deep5::Tensor<T> dx) { dx[0] = -1; }
    };
    template <typename T> struct Made : Common<T> {
      T factor() const override { return 3; }
      void backward(deep5::Tensor<const T> dy, deep5::Tensor<const T> x, deep5::Tensor<const T> y,
                    deep5::Tensor<T> dx) override { dx[0] = 3 * dy[0]; }
    };"""
    operator, one = made(text), np.ones(1)
    assert operator.forward(one) == 3
    assert operator.differentiable
    assert operator.backward((one,), (one,), (one,), (True,))[0] == 3


def test_a_forward_of_64_tensors_and_no_more() -> None:
    def many(inputs: int, backward: bool) -> d5.CppOperator:
        given = ", ".join(f"deep5::Tensor<const T> x{number}" for number in range(inputs))
        wanted = ", ".join(f"deep5::Tensor<T> dx{number}" for number in range(inputs))
        whole = " + ".join(f"x{number}[0]" for number in range(inputs))
        text = f"void forward({given}, deep5::Tensor<T> y) {{ y[0] = {whole}; }}"
        if backward:
            text += f"void backward(deep5::Tensor<const T> dy, {given}, deep5::Tensor<const T> y, {wanted}) {{}}"
        return made(f"{BASE} {{ {text} }};", lambda self, *inputs: inputs[:1])

    ones = [np.ones(1)] * 64
    assert many(63, backward=False).forward(*ones[:63]) == 63
    with pytest.raises(Unsupported, match=r"^Made: forward takes 65 tensors; allowed: at most 64$"):
        many(64, backward=False).forward(*ones)
    operator = many(32, backward=True)
    assert operator.forward(*ones[:32]) == 32, "a backward that takes too many must not take the forward with it"
    assert operator.differentiable
    with pytest.raises(Unsupported, match=r"^Made: backward takes 66 tensors; allowed: at most 64$"):
        operator.backward(ones[:1], ones[:32], ones[:1], (True,) * 32)


def test_whether_there_is_a_backward_is_what_the_class_says(tmp_path: Path) -> None:
    without = made(f"struct Other {{ void backward() {{}} }};\n{BASE} {{ /* no backward */ Other other; {FORWARD} }};")
    assert not without.differentiable
    backward = (
        "void backward(deep5::Tensor<const T> dy, deep5::Tensor<const T> x, deep5::Tensor<const T> y, "
        "deep5::Tensor<T> dx) { dx[0] = dy[0]; }"
    )
    # No object is made when only the class is inspected: a constructor may fail, or crash.
    throws = 'Made() { throw std::runtime_error("no"); }'
    (tmp_path / "made.h").write_text(f"#include <deep5/operator.h>\n{BASE} {{ {throws} {FORWARD} {backward} }};")
    (tmp_path / "made.cpp").write_text('#include "made.h"\n')
    kind = type("Made", (d5.CppOperator,), {"source": tmp_path / "made.cpp", "specs": lambda self, x: (x,)})
    assert kind().differentiable
    double = made(f'{BASE} {{ static_assert(sizeof(T) == 8, "no"); {FORWARD} {backward} }};')
    assert double.differentiable, "one that is for float64 alone"


def test_a_file_that_is_not_there() -> None:
    for source in ("nowhere.cpp", Path("nowhere.cpp"), "struct IPow"):
        with pytest.raises(
            OperatorError,
            match=r"IPow: the C\+\+ source .*(nowhere\.cpp|struct IPow) cannot be read .*allowed: a file beside the "
            r"class, or the source itself, with its \{ and ;",
        ):
            type("IPow", (IPow,), {"source": source})(2).forward(np.ones(1))


def test_a_source_of_one_line_is_no_path() -> None:
    text = f"template <typename T> struct Made : deep5::Operator {{ {FORWARD} }};"
    assert "\n" not in text
    kind = type("Made", (d5.CppOperator,), {"source": text, "specs": lambda self, x: (x,)})
    assert kind().forward(np.full(1, 3.0)) == 3.0
    assert kind().source_path() is None


def test_a_source_lies_beside_its_class_and_includes_its_neighbours(tmp_path: Path) -> None:
    (tmp_path / "factor.h").write_text("#define FACTOR 2\n")
    (tmp_path / "scale.cpp").write_text(
        '#include "factor.h"\ntemplate <typename T> struct Scale : deep5::Operator {\n'
        "  void forward(deep5::Tensor<const T> x, deep5::Tensor<T> y) { y[0] = FACTOR * x[0]; }\n};\n"
    )
    (tmp_path / "scale.py").write_text(
        "import deep5 as d5\nimport numpy as np\nclass Scale(d5.CppOperator):\n    source = 'scale.cpp'\n"
        "    def specs(self, x): return (x,)\nprint(Scale().forward(np.ones(1))[0])\n"
    )

    def run() -> str:
        done = subprocess.run(
            [sys.executable, "-P", str(tmp_path / "scale.py")],
            capture_output=True,
            text=True,
            cwd="/",
            timeout=60,
            check=True,
        )
        return done.stdout.strip()

    assert run() == "2.0"
    (tmp_path / "factor.h").write_text("#define FACTOR 3\n")
    assert run() == "3.0", "an included file is part of the cache's key"


@pytest.mark.parametrize(
    ("signature", "body", "told"),
    [
        (
            "deep5::Tensor<T> y, deep5::Tensor<const T> x",
            "",
            r"forward takes \(double, const double\); allowed: in",
        ),
        ("deep5::Tensor<const T> x", "", r"forward takes \(const double\); allowed: inputs"),
        (
            "deep5::Tensor<const T> x, deep5::Tensor<const T> z, deep5::Tensor<T> y",
            "",
            r"got inputs of float64; allowed, as its C\+\+ forward takes them: float64, float64",
        ),
        (
            "deep5::Tensor<const T> x, deep5::Tensor<float> y",
            "",
            r"its specs says outputs of float64, the C\+\+ class writes float32",
        ),
    ],
)
def test_a_forward_that_does_not_fit(signature: str, body: str, told: str) -> None:
    text = f"template <typename T> struct Made : deep5::Operator {{ void forward({signature}) {{ {body} }} }};"
    with pytest.raises((OperatorError, ShapeError), match=told):
        made(text).forward(np.ones(1))


def test_a_backward_that_is_missing_or_does_not_fit() -> None:
    forward = "void forward(deep5::Tensor<const T> x, deep5::Tensor<T> y) { y[0] = x[0]; }"
    one = np.ones(1)
    with pytest.raises(OperatorError, match=r"Made has no backward in C\+\+; remedy: write one"):
        made(f"template <typename T> struct Made : deep5::Operator {{ {forward} }};").backward(
            (one,), (one,), (one,), (True,)
        )
    wrong = "void backward(deep5::Tensor<const T> dy, deep5::Tensor<T> dx) { dx[0] = dy[0]; }"
    with pytest.raises(
        OperatorError, match=r"backward takes \(const double, double\); allowed: .*\(const double, const double, const"
    ):
        made(f"template <typename T> struct Made : deep5::Operator {{ {forward} {wrong} }};").backward(
            (one,), (one,), (one,), (True,)
        )


def test_inputs_that_are_none() -> None:
    with pytest.raises(ShapeError, match=r"IPow: got list as input 0; allowed: a NumPy array"):
        IPow(2).forward([1.0, 2.0])
    with pytest.raises(ShapeError, match=r"IPow: got an input of complex128; allowed: float32"):
        IPow(2).forward(np.ones(1, complex))
    with pytest.raises(ShapeError, match="byte order of another machine"):
        IPow(2).forward(np.ones(1, ">f8"))
    with pytest.raises(ShapeError, match=r"rank 17; allowed: at most 16"):
        IPow(2).forward(np.ones((1,) * 17))


def test_what_has_the_shape_of_an_array_is_not_taken_for_one() -> None:
    """Neither before nor after an array of the same shape and element type, for which there is a plan."""
    operator = IPow(2)
    x = np.array([1.0, 2.0])

    class Pretends:
        shape, dtype = x.shape, x.dtype

    for _ in range(2):
        with pytest.raises(ShapeError, match=r"IPow: got a masked array as input 0, whose mask would be lost; remedy"):
            operator.forward(np.ma.masked_array(x, mask=[True, False]))
        with pytest.raises(ShapeError, match=r"IPow: got Pretends as input 0; allowed: a NumPy array"):
            operator.forward(Pretends())
        with pytest.raises(ShapeError, match=r"IPow\.backward: got a masked array as input 1"):
            operator.backward((x,), (np.ma.masked_array(x, mask=[True, False]),), (x,), (True,))
        assert operator.forward(x).tolist() == [1.0, 4.0]
        assert operator.backward((x,), (x,), (x,), (True,))[0].tolist() == [2.0, 8.0]


def test_a_backward_pass_reads_nothing_beyond_what_it_is_given() -> None:
    """The code uses the shape of one array and would read past the end of a shorter one."""
    operator, x = IPow(2), np.arange(8.0)
    wrong: list[tuple[Any, Any, Any, Any, str]] = [
        ([x[:2]], [x], [x], [True], r"IPow: the gradient by output 0: got float64\[2\], expected float64\[8\]"),
        ([x], [x[:2]], [x], [True], r"IPow\.backward: output 0: got float64\[8\], expected float64\[2\]"),
        ([x[:0]], [x], [x[:0]], [True], r"IPow\.backward: output 0: got float64\[0\], expected float64\[8\]"),
        ([x[:, None]], [x], [x], [True], r"got float64\[8, 1\], expected float64\[8\]"),
        ([x.astype(np.float32)], [x], [x], [True], r"got float32\[8\], expected float64\[8\]"),
        ([None], [x], [x], [True], r"the gradient by output 0: got no array"),
        ([x.tolist()], [x], [x], [True], r"got list as input 0"),
        ([], [x], [x], [True], r"got 0 output_grads; allowed: one per output, 1"),
        ([x], [x, x], [x], [True, False], r"got inputs of float64, float64; allowed, as its C\+\+ forward takes them"),
        ([x], [x], [x], [True, True], r"got 2 needs; allowed: one per input, 1"),
        ([x], [x], [x], [], r"got 0 needs; allowed: one per input, 1"),
        ([x[:2]], [x], [x], [False], r"got float64\[2\], expected float64\[8\]"),
    ]
    for _ in range(2):  # before there is a plan for the correct arguments, and after
        for *given, told in wrong:
            with pytest.raises(ShapeError, match=told):
                operator.backward(*given)
        assert operator.backward([x], [x], [x], [True])[0].tolist() == (2 * x * x).tolist()
    assert operator.backward([x], [x], [x], [False]) == (None,)
    assert operator.backward([np.float64(3)], [np.float64(3)], [np.float64(9)], [True]) == (18,)
    rows, w = np.array([1, 1]), np.ones(3)
    y, count = Several().forward(np.ones((4, 3)), rows, w)
    with pytest.raises(ShapeError, match="a gradient is requested by input 1, which is int64"):
        Several().backward((y, None), (np.ones((4, 3)), rows, w), (y, count), (True, True, True))
    with pytest.raises(ShapeError, match=r"Several\.backward: output 1: got int32\[3\], expected int32\[4\]"):
        Several().backward((y, None), (np.ones((4, 3)), rows, w), (y, count[:3]), (True, False, True))


def test_the_kernel_of_a_backward_pass_holds_shapes_against_each_other_too() -> None:
    """Frameworks call it."""
    x, kernel = np.arange(8.0), IPow(2).kernel(("float64",), needs=(True,))
    with pytest.raises(
        ShapeError, match=r"the gradient by floating-point output 0: got float64\[2\], expected float64"
    ):
        kernel(x[:2], x, x)
    with pytest.raises(ShapeError, match=r"IPow\.backward: output 0: got float64\[2\], expected float64\[8\]"):
        kernel(x[:2], x, x[:2])
    with pytest.raises(ShapeError, match=r"IPow\.backward: no input needs a gradient; allowed: at least one"):
        IPow(2).kernel(("float64",), needs=(False,))(x, x, x)
    spec = d5.TensorSpec(shape=(8,), dtype="float64")
    with pytest.raises(ShapeError, match=r"IPow\.backward: got 2 inputs; allowed: 3, the gradients"):
        Backward(IPow(2), (True,), (True,)).specs(spec, spec)
    symbolic = d5.TensorSpec(shape=("N",), dtype="float64")
    assert Backward(IPow(2), (True,), (True,)).specs(spec, symbolic, spec) == (symbolic,)


def test_scalars_and_other_kinds_of_arrays_of_numpy(tmp_path: Path) -> None:
    operator = IPow(2)
    for _ in range(2):
        for scalar in (np.float64(3), np.float32(3), np.float16(3), ml_dtypes.bfloat16(3), np.int32(3), np.array(3.0)):
            y = operator.forward(scalar)
            assert type(y) is np.ndarray
            assert (y.shape, y.dtype, float(y)) == ((), scalar.dtype, 9.0)
    matrix = np.ones((2, 2)).view(np.matrix) * 3
    assert type(operator.forward(matrix)) is np.ndarray
    assert operator.forward(matrix).tolist() == [[9.0, 9.0], [9.0, 9.0]], "of each element, as arrays are"
    on_disk = np.memmap(tmp_path / "x", np.float64, "w+", shape=(2, 2))
    on_disk[...] = 3
    assert operator.forward(on_disk.T).tolist() == [[9.0, 9.0], [9.0, 9.0]]


def test_without_a_compiler_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DEEP5_CACHE", str(tmp_path))
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(OperatorError, match=r"no C\+\+ compiler on this machine; remedy: install g\+\+ or clang\+\+"):
        IPow(2).forward(np.ones(1))


def test_a_library_that_was_tampered_with_is_compiled_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DEEP5_CACHE", str(tmp_path))
    monkeypatch.setattr(compiler, "_LOADED", {})  # as in a new process
    IPow(2).forward(np.ones(1))
    damaged = {}
    for library in tmp_path.glob("kernels/*.so"):
        data = bytearray(library.read_bytes())
        data[len(data) // 2] ^= 1
        library.unlink()
        library.write_bytes(data)
        damaged[library] = bytes(data)
    compiler._LOADED.clear()
    assert IPow(2).forward(np.full(1, 3.0)) == 9.0
    assert damaged
    assert all(library.read_bytes() != data for library, data in damaged.items())


@pytest.mark.parametrize(
    ("script", "match"),
    [
        ("exit 1", r"the compiler .*c\+\+ does not work"),
        ("sleep 60", r"c\+\+ did not finish within 1 s"),
        ("exit 0", "without a library"),
    ],
)
def test_a_compiler_that_does_not_work_is_named_and_not_the_operator(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str, match: str
) -> None:
    monkeypatch.setenv("DEEP5_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(compiler, "_GIVEN_UP", {})
    monkeypatch.setattr(compiler, "_COMPILE_TIMEOUT_S", 1)
    command = tmp_path / "c++"
    command.write_text(f"#!/bin/sh\n{script}\n")
    command.chmod(0o755)
    monkeypatch.setenv("CXX", str(command))
    with pytest.raises(OperatorError, match=rf"{match}[\s\S]*remedy: set CXX to a compiler that works"):
        IPow(2).forward(np.ones(1))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to another user")
def test_a_cache_of_another_user_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DEEP5_CACHE", str(tmp_path))
    (tmp_path / "kernels").mkdir()
    os.chown(tmp_path / "kernels", 65534, 65534)
    with pytest.raises(OperatorError, match=r"kernel cache .* belongs to the user 65534, .*remedy: .* set DEEP5_CACHE"):
        IPow(2).forward(np.ones(1))


def test_two_processes_compile_at_once(tmp_path: Path) -> None:
    (tmp_path / "ipow.py").write_text(
        "import sys, numpy as np\nimport deep5 as d5\nclass IPow(d5.CppOperator):\n"
        f"    source = {IPOW!r}\n    def __init__(self, power): super().__init__(power=power)\n"
        "    def specs(self, x): return (x,)\nsys.stdin.readline()\nprint(IPow(3).forward(np.full(1, 2.0))[0])\n"
    )
    environment = {**os.environ, "DEEP5_CACHE": str(tmp_path / "cache")}
    processes = [
        subprocess.Popen(
            [sys.executable, str(tmp_path / "ipow.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for _ in range(2)
    ]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    assert [process.communicate(timeout=120)[0].strip() for process in processes] == ["8.0", "8.0"]
    left = sorted(path.suffix for path in (tmp_path / "cache" / "kernels").iterdir())
    assert left == [".includes"] * 2 + [".so"] * 2  # the operator, and its wrapper for Python objects


THREADED = """template <typename T> struct Made : deep5::Operator {
  void forward(deep5::Tensor<const T> x, deep5::Tensor<int64_t> threads) {
#pragma omp parallel
    {
#pragma omp single
      threads[0] = omp_get_num_threads();
    }
  }
};"""


def test_the_number_of_threads_is_the_frameworks(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = made(THREADED, lambda self, x: (d5.TensorSpec(shape=(1,), dtype="int64"),))
    before = THREADS[0]
    try:
        for count in (1, 3, 2):
            d5.framework("reference").set_threads(count)
            assert threads.forward(np.ones(1))[0] == count
    finally:
        d5.framework("reference").set_threads(before or 1)
        THREADS[0] = before


def test_a_process_that_has_forked_runs_it_on_threads_of_its_own(tmp_path: Path) -> None:
    """The parent's threads do not exist in it, and OpenMP would wait for them."""
    (tmp_path / "forks.py").write_text(
        "import os, signal, numpy as np\nimport deep5 as d5\nclass Made(d5.CppOperator):\n"
        f"    source = {THREADED!r}\n"
        "    def specs(self, x): return (d5.TensorSpec(shape=(1,), dtype='int64'),)\n"
        "d5.framework('reference').set_threads(3)\noperator = Made()\n"
        "print(operator.forward(np.ones(1))[0], flush=True)\nchild = os.fork()\n"
        "if not child:\n    signal.alarm(20)\n    print(operator.forward(np.ones(1))[0], flush=True)\n    os._exit(0)\n"
        "print(os.waitpid(child, 0)[1], operator.forward(np.ones(1))[0])\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", str(tmp_path / "forks.py")],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.split() == ["3", "3", "0", "3"]


def test_an_operator_goes_to_another_process_as_its_attributes() -> None:
    operator = IPow(3)
    operator.forward(np.ones(2))
    again = pickle.loads(pickle.dumps(operator))  # noqa: S301 - our own
    assert again.attributes == {"power": 3}
    assert again.forward(np.full(2, 2.0)).tolist() == [8.0, 8.0]
    assert operator.report() == {"elements": 2.0}, "it has its own object in C++"


def test_other_threads_run_while_an_operator_computes() -> None:
    text = """#include <chrono>
    #include <thread>
    template <typename T> struct Made : deep5::Operator {
      void forward(deep5::Tensor<const T> x, deep5::Tensor<T> y) {
        std::this_thread::sleep_for(std::chrono::milliseconds(300));
      }
    };"""
    operator = made(text)
    operator.kernel(("float64",))
    done = threading.Event()
    worker = threading.Thread(target=lambda: (operator.forward(np.ones(1)), done.set()))
    worker.start()
    ticks = 0
    while not done.is_set():
        ticks += 1
        time.sleep(0.001)
    worker.join()
    # 300 ms are more than a hundred ticks; with the GIL held there would be one or two.
    assert ticks > 20


def test_many_threads_and_shapes_at_once() -> None:
    operator, wrong = IPow(2), []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(300):
            x = rng.standard_normal(tuple(rng.integers(0, 5, size=rng.integers(0, 4))))
            if not np.array_equal(operator.forward(x), x * x):
                wrong.append(x)

    workers = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong


def test_plans_of_shapes_are_bounded() -> None:
    operator = IPow(2)
    for extent in range(300):
        operator.forward(np.ones(extent))
    assert len(operator._plans) <= 256


def test_the_object_in_cpp_lives_as_long_as_the_operator() -> None:
    text = """#include <cstdlib>
    template <typename T> struct Made : deep5::Operator {
      ~Made() { setenv("DEEP5_TEST_DESTROYED", "1", 1); }
      void forward(deep5::Tensor<const T> x, deep5::Tensor<T> y) { y[0] = x[0]; }
    };"""
    read = "import ctypes"
    program = (
        f"{read}\nimport gc, numpy as np, deep5 as d5\nclass Made(d5.CppOperator):\n    source = {text!r}\n"
        "    def specs(self, x): return (x,)\n"
        "libc = ctypes.CDLL(None); libc.getenv.restype = ctypes.c_char_p\n"
        "op = Made(); op.forward(np.ones(1)); kernel = op.kernel(('float64',))\n"
        "del op; gc.collect(); print(libc.getenv(b'DEEP5_TEST_DESTROYED'))\n"
        "print(kernel(np.ones(1))[0][0]); del kernel; gc.collect(); print(libc.getenv(b'DEEP5_TEST_DESTROYED'))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["None", "1.0", "b'1'"]


def test_the_backward_pass_is_an_operator_too() -> None:
    x, rows, w = RNG.standard_normal((4, 3)), np.array([1, 1]), RNG.standard_normal(3)
    operator = Several()
    y, count = operator.forward(x, rows, w)
    dy = np.ones_like(y)
    backward = Backward(operator, (True, False, True), (True, False))
    specs = [d5.TensorSpec(shape=v.shape, dtype=str(v.dtype)) for v in (dy, x, rows, w, y, count)]
    assert [spec.shape for spec in backward.specs(*specs)] == [(4, 3), (3,)]
    dx, dw = backward.forward(dy, x, rows, w, y, count)
    expected = operator.backward((dy, None), (x, rows, w), (y, count), (True, False, True))
    np.testing.assert_array_equal(dx, expected[0])
    np.testing.assert_array_equal(dw, expected[2])
    kernel = operator.kernel(("float64", "int64", "float64"), needs=(True, False, True))
    assert kernel.dtypes == ("float64", "float64", "int64", "float64", "float64", "int32", "float64", "float64")
    np.testing.assert_array_equal(kernel(dy, x, rows, w, y, count)[1], dw)


CUDA = """
template <typename T>
__global__ void power_kernel(const T* x, T* y, int64_t n, int64_t power) {
  int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x;
  if (i < n) y[i] = x[i];
}
template <typename T>
class IPow : public deep5::Operator {
 public:
  explicit IPow(int64_t power) : power_(power) {}
  void forward(deep5::Tensor<const T> x, deep5::Tensor<T> y) {
    auto queue = static_cast<cudaStream_t>(stream());
    if (x.size()) power_kernel<<<(x.size() + 255) / 256, 256, 0, queue>>>(x.data(), y.data(), x.size(), power_);
  }

 private:
  int64_t power_;
};
"""


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="there is no nvcc on this machine")
def test_a_cuda_source_compiles() -> None:
    operator = type("IPow", (IPow,), {"cuda": CUDA})(2)
    assert operator.kernel(("float32",), device="cuda").dtypes == ("float32", "float32")


def test_a_cuda_source_is_asked_for_and_so_is_nvcc(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Unsupported, match="IPow has no cuda, so it does not run on cuda; allowed: a file or a string"):
        IPow(2).kernel(("float32",), device="cuda")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(OperatorError, match="no CUDA compiler on this machine; remedy: install NVIDIA's CUDA toolkit"):
        type("IPow", (IPow,), {"cuda": CUDA})(2).kernel(("float32",), device="cuda")


def test_garbage_is_collected() -> None:
    gc.collect()
    before = len([each for each in gc.get_objects() if type(each).__name__ == "Kernel"])
    for _ in range(3):
        IPow(2).forward(np.ones(1))
    gc.collect()
    assert len([each for each in gc.get_objects() if type(each).__name__ == "Kernel"]) == before


def test_two_classes_of_one_name_share_nothing() -> None:
    def table(numbers: str) -> d5.CppOperator:
        return made(
            f"""template <typename T> T& cell(int i) {{ static T all[2] = {{{numbers}}}; return all[i]; }}
            template <typename T> struct Made : deep5::Operator {{
              static inline T own[2] = {{{numbers}}};
              void forward(deep5::Tensor<const T> x, deep5::Tensor<T> y) {{ y[0] = x[0] * cell<T>(1) + own[0]; }}
            }};"""
        )

    first, second = table("1, 2"), table("10, 20")
    assert first.forward(np.ones(1)) == 3
    assert second.forward(np.ones(1)) == 30
    assert first.forward(np.ones(1)) == 3


def test_a_source_that_is_edited_is_compiled_anew(tmp_path: Path) -> None:
    file = tmp_path / "edited.cpp"
    kind = type("Made", (d5.CppOperator,), {"source": str(file), "specs": lambda self, x: (x,)})
    for factor in (2, 3):
        file.write_text(
            "template <typename T> struct Made : deep5::Operator {\n  void forward(deep5::Tensor<const T> x, "
            f"deep5::Tensor<T> y) {{ y[0] = {factor} * x[0]; }}\n}};\n"
        )
        assert kind().forward(np.ones(1)) == factor


def test_threads_that_come_at_once_share_one_object() -> None:
    operator = IPow(2)
    start = threading.Barrier(8)

    def work() -> None:
        start.wait()
        operator.forward(np.ones(3))

    workers = [threading.Thread(target=work) for _ in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert operator.report() == {"elements": 24.0}


@pytest.mark.parametrize("extent", [-1, "N", 1.5, None, True])
def test_outputs_whose_extents_are_none(extent: Any) -> None:
    odd = type("IPow", (IPow,), {"specs": lambda self, x: (d5.TensorSpec(shape=(extent,), dtype=x.dtype),)})
    with pytest.raises(OperatorError, match=r"IPow\.specs: output 0 has the dimension .*; allowed: integers"):
        odd(2).forward(np.ones(1))


@pytest.mark.parametrize("extent", [1 << 60, 1 << 46])
def test_outputs_that_no_memory_holds(extent: int) -> None:
    odd = type("IPow", (IPow,), {"specs": lambda self, x: (d5.TensorSpec(shape=(extent,), dtype=x.dtype),)})
    with pytest.raises(OperatorError, match="there is no memory for its outputs"):
        odd(2).forward(np.ones(1))
