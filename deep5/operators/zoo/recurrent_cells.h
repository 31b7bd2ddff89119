// The elementwise part of recurrent cells, on vectors of units: ONNX's RNN, LSTM and GRU, with gates in ONNX's order.
//
// `output` takes the sums of each gate, over the input and over the state, and the old state; it returns the new state,
// and replaces the memory of an LSTM. `adjoint` takes the same sums, the old state, the old and the new memory and the
// gradient by the new state; it writes the gradients by both sums, and returns what the gradient by the old state gets
// directly. Slopes are computed from the sums, not from the gates: those of a gate near 1 have no digits left.
#ifndef DEEP5_ZOO_RECURRENT_CELLS_H
#define DEEP5_ZOO_RECURRENT_CELLS_H

#include "vector_math.h"

namespace zoo {

template <typename T, bool Rectified>
struct VanillaCell {
  using Vector = typename Lanes<T>::Vector;
  static constexpr int kGates = 1;
  static constexpr bool kMemory = false;   // a second state
  static constexpr bool kSeparate = false;  // whether the sums over input and state differ in their gradients

  static Vector output(const Vector *in, const Vector *state, Vector, Vector &) {
    Vector sum = in[0] + state[0];
    return Rectified ? (sum < 0 ? Vector{} : sum) : Lanes<T>::tangent(sum).value;
  }
  static Vector adjoint(const Vector *in, const Vector *state, Vector, Vector, Vector, Vector dh, Vector &, Vector *din,
                        Vector *) {
    Vector sum = in[0] + state[0];
    din[0] = Rectified ? (sum > 0 ? dh : Vector{}) : dh * Lanes<T>::tangent(sum).slope;
    return Vector{};
  }
};

// i, o, f, c: c' = f c + i g, h' = o tanh(c').
template <typename T>
struct LongShortCell {
  using Vector = typename Lanes<T>::Vector;
  static constexpr int kGates = 4;
  static constexpr bool kMemory = true, kSeparate = false;

  struct Gates {
    typename Lanes<T>::Bent i, o, f, g;
    Gates(const Vector *in, const Vector *state)
        : i(Lanes<T>::logistic(in[0] + state[0])), o(Lanes<T>::logistic(in[1] + state[1])),
          f(Lanes<T>::logistic(in[2] + state[2])), g(Lanes<T>::tangent(in[3] + state[3])) {}
  };
  static Vector output(const Vector *in, const Vector *state, Vector, Vector &memory) {
    Gates gates(in, state);
    memory = gates.f.value * memory + gates.i.value * gates.g.value;
    return gates.o.value * Lanes<T>::tangent(memory).value;
  }
  // `dmemory`: the gradient by the new memory from later steps; becomes that by the old one.
  static Vector adjoint(const Vector *in, const Vector *state, Vector, Vector before, Vector memory, Vector dh,
                        Vector &dmemory, Vector *din, Vector *) {
    Gates gates(in, state);
    auto bent = Lanes<T>::tangent(memory);
    Vector all = dmemory + dh * gates.o.value * bent.slope;
    din[0] = all * gates.g.value * gates.i.slope;
    din[1] = dh * bent.value * gates.o.slope;
    din[2] = all * before * gates.f.slope;
    din[3] = all * gates.i.value * gates.g.slope;
    dmemory = all * gates.f.value;
    return Vector{};
  }
};

// z, r, n, with r multiplying the product with the state (linear_before_reset): h' = (1 - z) n + z h.
template <typename T>
struct GatedCell {
  using Vector = typename Lanes<T>::Vector;
  static constexpr int kGates = 3;
  static constexpr bool kMemory = false, kSeparate = true;

  struct Gates {
    typename Lanes<T>::Bent z, r, n;
    Gates(const Vector *in, const Vector *state)
        : z(Lanes<T>::logistic(in[0] + state[0])), r(Lanes<T>::logistic(in[1] + state[1])),
          n(Lanes<T>::tangent(in[2] + r.value * state[2])) {}
  };
  static Vector output(const Vector *in, const Vector *state, Vector before, Vector &) {
    Gates gates(in, state);
    return gates.z.rest * gates.n.value + gates.z.value * before;
  }
  static Vector adjoint(const Vector *in, const Vector *state, Vector before, Vector, Vector, Vector dh, Vector &,
                        Vector *din, Vector *dstate) {
    Gates gates(in, state);
    din[0] = dstate[0] = dh * (before - gates.n.value) * gates.z.slope;
    din[2] = dh * gates.z.rest * gates.n.slope;
    din[1] = dstate[1] = din[2] * state[2] * gates.r.slope;
    dstate[2] = din[2] * gates.r.value;
    return dh * gates.z.value;
  }
};

}  // namespace zoo

#endif
