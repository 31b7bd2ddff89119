"""Graphs with If, Loop and Scan."""

from __future__ import annotations

import numpy as np

HEAD = '<ir_version: 10, opset_import: ["": 21]> '


X = np.array([[1.0, -2.0, 3.0], [0.5, 4.0, -1.0]], np.float32)


GRAPHS = {
    "If, constant": """g (float[2,3] x) => (float[2,3] y) {
        c = Constant<value = bool {1}>() y = If(c) <
        then_branch = t () => (float[2,3] a) { a = Neg(x) }, else_branch = e () => (float[2,3] b) { b = Abs(x) }> }""",
    "If, of an input's own value": """g (float[2,3] x) => (float[2,3] y) {
        c = Constant<value = bool {0}>() y = If(c) <
        then_branch = t () => (float[2,3] a) { a = Neg(x) },
        else_branch = e () => (float[2,3] b) { b = Identity(x) }> }""",
    "Loop": """g (float[2,3] x) => (float[2,3] y, float[4,2,3] all) {
        n = Constant<value = int64 {4}>() c = Constant<value = bool {1}>()
        y, all = Loop(n, c, x) < body = b (int64 i, bool go, float[2,3] s) => (bool on, float[2,3] t, float[2,3] kept) {
            on = Identity(go) f = Cast<to = 1>(i) m = Mul(s, x) t = Add(m, f) kept = Tanh(t) }> }""",
    "Loop of no iterations": """g (float[2,3] x) => (float[2,3] y, float[0,2,3] all) {
        n = Constant<value = int64 {0}>()
        y, all = Loop(n, , x) < body = b (int64 i, bool go, float[2,3] s) => (bool on, float[2,3] t, float[2,3] kept) {
            on = Identity(go) t = Neg(s) kept = Identity(t) }> }""",
    "Loop that does not start": """g (float[2,3] x) => (float[2,3] y) {
        n = Constant<value = int64 {3}>() c = Constant<value = bool {0}>()
        y = Loop(n, c, x) < body = b (int64 i, bool go, float[2,3] s) => (bool on, float[2,3] t) {
            on = Identity(go) t = Neg(s) }> }""",
    "Scan": """g (float[2,3] x) => (float[3] y, float[2,3] all) {
        z = Constant<value = float[3] {0, 0, 0}>()
        y, all = Scan<num_scan_inputs = 1, body = b (float[3] s, float[3] r) => (float[3] t, float[3] kept) {
            u = Add(s, r) t = Sin(u) kept = Mul(t, r) }>(z, x) }""",
    "Scan, of another axis and backwards": """g (float[2,3] x) => (float[2] y, float[2,3] all) {
        z = Constant<value = float[2] {0.5, 1}>()
        y, all = Scan<num_scan_inputs = 1, scan_input_axes = [1], scan_input_directions = [1],
            scan_output_axes = [-1], scan_output_directions = [1],
            body = b (float[2] s, float[2] r) => (float[2] t, float[2] kept) {
            t = Add(s, r) kept = Exp(s) }>(z, x) }""",
    "nested": """g (float[2,3] x) => (float[2,3] y) {
        n = Constant<value = int64 {3}>()
        y = Loop(n, , x) < body = b (int64 i, bool go, float[2,3] s) => (bool on, float[2,3] t) {
            on = Identity(go) two = Constant<value = int64 {2}>()
            t = Loop(two, , s) < body = d (int64 j, bool go2, float[2,3] p) => (bool on2, float[2,3] q) {
                on2 = Identity(go2) k = Add(i, j) f = Cast<to = 1>(k) r = Mul(p, x) q = Sub(r, f) }> }> }""",
}
