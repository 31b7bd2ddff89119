// A recurrent layer over all its steps in one call, with the weights of the state copied once.
//
// The sums over the input are one product for all steps, before the first. Then each thread owns some units: in each
// step it multiplies the whole last state with its own weights, applies the cell, and writes its part of the new state;
// threads meet once a step. So its weights stay in the caches of its core (Diamos et al., Persistent RNNs, ICML 2016,
// section 4, where they stay in the registers of a GPU's multiprocessor and the grid meets once a step).
#include <deep5/operator.h>

#include <stdexcept>
#include <string>

#include "convolution.h"
#include "recurrent_cells.h"
#include "resident.h"

namespace zoo {

struct Sizes {
  int64_t steps, batch, features, hidden;
  int64_t rows() const { return steps * batch; }
};

template <typename S, typename Cell>
class Layer {
 public:
  static constexpr int G = Cell::kGates;

  // b: the biases of the sums over the input, then over the state, of all gates.
  Layer(Sizes sizes, const S *x, const S *w, const S *r, const S *b)
      : s_(sizes), width_(G * sizes.hidden), x_(x), w_(w), r_(r),
        blocks_((sizes.hidden + kColumns - 1) / kColumns), bias_(2 * blocks_ * G * kColumns) {
    for (int64_t part = 0; part < 2; ++part) {
      for (int64_t block = 0; block < blocks_; ++block) {
        for (int g = 0; g < G; ++g) {
          S *to = bias_.data() + ((part * blocks_ + block) * G + g) * kColumns;
          load(b + part * width_ + g * s_.hidden, block, to);
        }
      }
    }
  }

  void forward(S *y) {
    Memory<S> sums(s_.rows() * width_), memory(Cell::kMemory ? s_.batch * s_.hidden : 0), zeros(s_.batch * s_.hidden);
    std::fill(zeros.data(), zeros.data() + s_.batch * s_.hidden, S(0));
    if (Cell::kMemory) std::fill(memory.data(), memory.data() + s_.batch * s_.hidden, S(0));
    multiply<S>(s_.rows(), width_, s_.features, {x_, s_.features, 1}, {w_, 1, s_.features}, sums.data());
    Resident<S, G> state(s_.hidden, s_.hidden, {r_, 1, s_.hidden});
#pragma omp parallel
    for (int64_t t = 0; t < s_.steps; ++t) {
      const S *before = t ? y + (t - 1) * s_.batch * s_.hidden : zeros.data();
#pragma omp for schedule(static)
      for (int64_t block = 0; block < blocks_; ++block) {
        alignas(kBytes) S products[G * kRows * kColumns];
        for (int64_t n = 0; n < s_.batch; n += some()) {
          int64_t rows = std::min(some(), s_.batch - n);
          state.multiply(block, before + n * s_.hidden, s_.hidden, rows, products);
          for (int64_t i = 0; i < rows; ++i) {
            step(t, n + i, block, sums.data(), products + i * kColumns, before, memory.data(), y);
          }
        }
      }
    }
  }

  // Gradients by the layer's inputs; null where nobody wants one.
  struct Gradients {
    S *x, *w, *r, *b;
  };

  void backward(const S *dy, const S *y, const Gradients &to) {
    int64_t own = s_.rows() * width_, all = s_.rows() * s_.hidden, later = std::max<int64_t>(s_.rows() - s_.batch, 0);
    // The sums of the gates, which become the gradients by them: those over input and state are one where the gradients
    // do not differ.
    Memory<S> inputs(own), states(Cell::kSeparate ? own : 0), memory(Cell::kMemory ? all : 0);
    S *over_state = Cell::kSeparate ? states.data() : inputs.data();
    multiply<S>(s_.rows(), width_, s_.features, {x_, s_.features, 1}, {w_, 1, s_.features}, inputs.data());
    // The states are known: the sums over them need no order of steps.
    if (Cell::kSeparate) std::fill(over_state, over_state + std::min(s_.batch * width_, own), S(0));
    multiply<S>(later, width_, s_.hidden, {y, s_.hidden, 1}, {r_, 1, s_.hidden}, over_state + (own - later * width_),
                !Cell::kSeparate);
    replay(inputs.data(), over_state, memory.data());
    through_time(dy, inputs.data(), over_state, y, memory.data());
    const S *din = inputs.data(), *dstate = over_state;
    if (to.x) multiply<S>(s_.rows(), s_.features, width_, {din, width_, 1}, {w_, s_.features, 1}, to.x);
    if (to.w) multiply<S>(width_, s_.features, s_.rows(), {din, 1, width_}, {x_, s_.features, 1}, to.w);
    if (to.r) {
      multiply<S>(width_, s_.hidden, later, {dstate + (own - later * width_), 1, width_}, {y, s_.hidden, 1}, to.r);
    }
    if (to.b) {
      std::fill(to.b, to.b + 2 * width_, S(0));
#pragma omp parallel for schedule(static)
      for (int64_t at = 0; at < 2 * width_; at += kColumns) {
        for (int64_t row = 0; row < s_.rows(); ++row) {
          for (int64_t q = at; q < std::min(at + kColumns, 2 * width_); ++q) {
            to.b[q] += q < width_ ? din[row * width_ + q] : dstate[row * width_ + q - width_];
          }
        }
      }
    }
  }

 private:
  using Vector = typename Lanes<S>::Vector;
  static constexpr int64_t kColumns = Product<S>::kColumns, kLanes = Lanes<S>::kCount;

  // Samples at once: as equal parts of the batch as possible, of at most kRows.
  int64_t some() const {
    int64_t parts = std::max<int64_t>((s_.batch + kRows - 1) / kRows, 1);
    return std::max<int64_t>((s_.batch + parts - 1) / parts, 1);
  }

  int64_t wide(int64_t block) const { return std::min(kColumns, s_.hidden - block * kColumns); }
  // A block of a row of units; zeros after the last unit.
  void load(const S *row, int64_t block, S *to) const {
    if (wide(block) < kColumns) std::fill(to, to + kColumns, S(0));
    std::copy(row + block * kColumns, row + block * kColumns + wide(block), to);
  }
  void store(const S *from, int64_t block, S *row) const { std::copy(from, from + wide(block), row + block * kColumns); }

  static Vector vector(const S *from) {
    Vector found;
    std::memcpy(&found, from, sizeof found);
    return found;
  }
  static void write(Vector value, S *to) { std::memcpy(to, &value, sizeof value); }

  // What a block of units of one sample has at hand.
  struct Block {
    alignas(kBytes) S in[G][kColumns], state[G][kColumns], before[kColumns], memory[kColumns], kept[kColumns],
        dh[kColumns], dmemory[kColumns], out[kColumns];
  };

  // Sums of the gates with their biases; `products` has the sums over the state, with `next` elements from gate to gate.
  void sum_up(int64_t row, int64_t block, const S *sums, const S *products, int64_t next, Block &own) const {
    for (int g = 0; g < G; ++g) {
      load(sums + row * width_ + g * s_.hidden, block, own.in[g]);
      const S *bias = bias_.data() + (block * G + g) * kColumns, *other = bias + blocks_ * G * kColumns;
      for (int64_t q = 0; q < kColumns; ++q) {
        own.in[g][q] += bias[q];
        own.state[g][q] = (products ? products[g * next + q] : S(0)) + other[q];
      }
    }
  }

  static void output(Block &own) {
    for (int64_t q = 0; q < kColumns; q += kLanes) {
      Vector in[G], state[G], memory = vector(own.memory + q);
      for (int g = 0; g < G; ++g) in[g] = vector(own.in[g] + q), state[g] = vector(own.state[g] + q);
      write(Cell::output(in, state, vector(own.before + q), memory), own.out + q);
      write(memory, own.memory + q);
    }
  }

  void step(int64_t t, int64_t n, int64_t block, const S *sums, const S *products, const S *before, S *memory,
            S *y) const {
    Block own;
    sum_up(t * s_.batch + n, block, sums, products, kRows * kColumns, own);
    load(before + n * s_.hidden, block, own.before);
    if (Cell::kMemory) load(memory + n * s_.hidden, block, own.memory);
    output(own);
    if (Cell::kMemory) store(own.memory, block, memory + n * s_.hidden);
    store(own.out, block, y + (t * s_.batch + n) * s_.hidden);
  }

  // Adds the biases to the sums of all steps, and computes the memory of all steps.
  void replay(S *inputs, S *over_state, S *memory) const {
#pragma omp parallel for schedule(static)
    for (int64_t block = 0; block < blocks_; ++block) {
      Block own;
      alignas(kBytes) S products[G * kColumns];
      std::fill(own.before, own.before + kColumns, S(0));
      for (int64_t row = 0; row < s_.rows(); ++row) {
        if (Cell::kSeparate) {
          for (int g = 0; g < G; ++g) load(over_state + row * width_ + g * s_.hidden, block, products + g * kColumns);
        }
        sum_up(row, block, inputs, Cell::kSeparate ? products : nullptr, kColumns, own);
        if (!Cell::kSeparate) join(own);
        for (int g = 0; g < G; ++g) {
          store(own.in[g], block, inputs + row * width_ + g * s_.hidden);
          if (Cell::kSeparate) store(own.state[g], block, over_state + row * width_ + g * s_.hidden);
        }
        if (!Cell::kMemory) continue;
        if (row < s_.batch) {
          std::fill(own.memory, own.memory + kColumns, S(0));
        } else {
          load(memory + (row - s_.batch) * s_.hidden, block, own.memory);
        }
        output(own);
        store(own.memory, block, memory + row * s_.hidden);
      }
    }
  }

  // The sums over input and state as one.
  static void join(Block &own) {
    for (int g = 0; g < G; ++g) {
      for (int64_t q = 0; q < kColumns; ++q) own.in[g][q] += own.state[g][q], own.state[g][q] = 0;
    }
  }

  // Replaces the sums by the gradients by them, from the last step to the first.
  void through_time(const S *dy, S *inputs, S *over_state, const S *y, const S *memory) const {
    Resident<S, 1> state(width_, s_.hidden, {r_, s_.hidden, 1});
    int64_t each = s_.batch * s_.hidden;
    Memory<S> direct(each), dmemory(each);
    std::fill(direct.data(), direct.data() + each, S(0));
    std::fill(dmemory.data(), dmemory.data() + each, S(0));
#pragma omp parallel
    for (int64_t t = s_.steps - 1; t >= 0; --t) {
#pragma omp for schedule(static)
      for (int64_t block = 0; block < blocks_; ++block) {
        alignas(kBytes) S products[kRows * kColumns] = {};
        for (int64_t n = 0; n < s_.batch; n += some()) {
          int64_t rows = std::min(some(), s_.batch - n);
          if (t + 1 < s_.steps) {
            state.multiply(block, over_state + ((t + 1) * s_.batch + n) * width_, width_, rows, products);
          }
          for (int64_t i = 0; i < rows; ++i) {
            step_back(t, n + i, block, dy, products + i * kColumns, inputs, over_state, y, memory, direct.data(),
                      dmemory.data());
          }
        }
      }
    }
  }

  void step_back(int64_t t, int64_t n, int64_t block, const S *dy, const S *products, S *inputs, S *over_state,
                 const S *y, const S *memory, S *direct, S *dmemory) const {
    Block own;
    int64_t row = t * s_.batch + n, last = row - s_.batch;
    for (int g = 0; g < G; ++g) {
      load(inputs + row * width_ + g * s_.hidden, block, own.in[g]);
      if (Cell::kSeparate) {
        load(over_state + row * width_ + g * s_.hidden, block, own.state[g]);
      } else {
        std::fill(own.state[g], own.state[g] + kColumns, S(0));
      }
    }
    load(dy + row * s_.hidden, block, own.dh);
    load(direct + n * s_.hidden, block, own.out);
    load(dmemory + n * s_.hidden, block, own.dmemory);
    std::fill(own.before, own.before + kColumns, S(0));
    std::fill(own.kept, own.kept + kColumns, S(0));
    if (t) load(y + last * s_.hidden, block, own.before);
    if (Cell::kMemory) load(memory + row * s_.hidden, block, own.memory);
    if (Cell::kMemory && t) load(memory + last * s_.hidden, block, own.kept);
    for (int64_t q = 0; q < kColumns; q += kLanes) {
      Vector in[G], state[G], din[G], dstate[G], later = vector(own.dmemory + q);
      for (int g = 0; g < G; ++g) in[g] = vector(own.in[g] + q), state[g] = vector(own.state[g] + q);
      Vector dh = vector(own.dh + q) + vector(own.out + q) + vector(products + q);
      write(Cell::adjoint(in, state, vector(own.before + q), vector(own.kept + q), vector(own.memory + q), dh, later,
                          din, dstate),
            own.out + q);
      write(later, own.dmemory + q);
      for (int g = 0; g < G; ++g) {
        write(din[g], own.in[g] + q);
        if (Cell::kSeparate) write(dstate[g], own.state[g] + q);
      }
    }
    store(own.out, block, direct + n * s_.hidden);
    store(own.dmemory, block, dmemory + n * s_.hidden);
    for (int g = 0; g < G; ++g) {
      store(own.in[g], block, inputs + row * width_ + g * s_.hidden);
      if (Cell::kSeparate) store(own.state[g], block, over_state + row * width_ + g * s_.hidden);
    }
  }

  Sizes s_;
  int64_t width_;
  const S *x_, *w_, *r_;
  int64_t blocks_;
  Aligned<S> bias_;
};

}  // namespace zoo

template <typename T>
class RecurrentPersistent : public deep5::Operator {
 public:
  RecurrentPersistent(std::string cell, std::string activation) : cell_(cell), activation_(activation) {}

  void forward(deep5::Tensor<const T> x, deep5::Tensor<const T> w, deep5::Tensor<const T> r, deep5::Tensor<const T> b,
               deep5::Tensor<T> y) {
    zoo::Workspace::begin();
    zoo::Sizes sizes = fitting(x, w, r, b, y);
    zoo::Widened<T> from(x), input(w), state(r), bias(b);
    zoo::Narrowed<T> to(y);
    with_cell([&](auto cell) {
      zoo::Layer<S, decltype(cell)>(sizes, from.data(), input.data(), state.data(), bias.data()).forward(to.data());
    });
    to.write();
    report("multiplications", double(sizes.rows()) * double(gates() * sizes.hidden * (sizes.features + sizes.hidden)));
    report_largest(zoo::kWorkspace, zoo::Workspace::peak());
  }

  void backward(deep5::Tensor<const T> dy, deep5::Tensor<const T> x, deep5::Tensor<const T> w,
                deep5::Tensor<const T> r, deep5::Tensor<const T> b, deep5::Tensor<const T> y, deep5::Tensor<T> dx,
                deep5::Tensor<T> dw, deep5::Tensor<T> dr, deep5::Tensor<T> db) {
    zoo::Workspace::begin();
    zoo::Sizes sizes = fitting(x, w, r, b, y);
    zoo::Widened<T> grad(dy), from(x), input(w), state(r), bias(b), made(y);
    zoo::Narrowed<T> to_x(dx), to_w(dw), to_r(dr), to_b(db);
    with_cell([&](auto cell) {
      using Layer = zoo::Layer<S, decltype(cell)>;
      Layer(sizes, from.data(), input.data(), state.data(), bias.data())
          .backward(grad.data(), made.data(),
                    {dx ? to_x.data() : nullptr, dw ? to_w.data() : nullptr, dr ? to_r.data() : nullptr,
                     db ? to_b.data() : nullptr});
    });
    if (dx) to_x.write();
    if (dw) to_w.write();
    if (dr) to_r.write();
    if (db) to_b.write();
    report_largest(zoo::kWorkspace, zoo::Workspace::peak());
  }

 private:
  using S = zoo::Wide<T>;

  int64_t gates() const { return cell_ == "LSTM" ? 4 : cell_ == "GRU" ? 3 : 1; }

  template <typename Run>
  void with_cell(Run run) const {
    if (cell_ == "LSTM") return run(zoo::LongShortCell<S>());
    if (cell_ == "GRU") return run(zoo::GatedCell<S>());
    if (activation_ == "Relu") return run(zoo::VanillaCell<S, true>());
    run(zoo::VanillaCell<S, false>());
  }

  // As deep5's side has checked them; checked again, since a wrong extent would leave the memory.
  template <typename Y>
  zoo::Sizes fitting(deep5::Tensor<const T> x, deep5::Tensor<const T> w, deep5::Tensor<const T> r,
                     deep5::Tensor<const T> b, const Y &y) const {
    if (x.rank() != 3 || w.rank() != 3 || r.rank() != 3 || b.rank() != 2 || y.rank() != 4) {
      throw std::invalid_argument("a sequence, both weights, biases and states of 3, 3, 3, 2 and 4 axes");
    }
    zoo::Sizes sizes{x.shape(0), x.shape(1), x.shape(2), r.shape(2)};
    int64_t width = gates() * sizes.hidden;
    bool fits = w.shape(0) == 1 && r.shape(0) == 1 && b.shape(0) == 1 && y.shape(1) == 1 && w.shape(1) == width &&
                w.shape(2) == sizes.features && r.shape(1) == width && b.shape(1) == 2 * width &&
                y.shape(0) == sizes.steps && y.shape(2) == sizes.batch && y.shape(3) == sizes.hidden;
    if (!fits) throw std::invalid_argument("the extents of the sequence, the weights and the states do not fit");
    return sizes;
  }

  std::string cell_, activation_;
};
