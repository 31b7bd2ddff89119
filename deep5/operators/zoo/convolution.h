// What the convolutions share: the problem, patches of an image as columns, the gradients, and narrow element types.
#ifndef DEEP5_ZOO_CONVOLUTION_H
#define DEEP5_ZOO_CONVOLUTION_H

#include <deep5/operator.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <vector>

#include "product.h"
#include "workspace.h"

namespace zoo {

inline int threads() {
#if defined(_OPENMP)
  return omp_get_max_threads();
#else
  return 1;
#endif
}

inline int thread() {
#if defined(_OPENMP)
  return omp_get_thread_num();
#else
  return 0;
#endif
}

// Products of all threads of a call.
template <typename S>
class Products {
 public:
  // Of at most these extents: memory cannot be asked for where threads run, since an exception may not leave them.
  Products(int64_t m, int64_t n, int64_t k) : each_(static_cast<size_t>(threads())) {
    for (auto &product : each_) product.reserve(m, n, k);
  }
  Product<S> &own() { return each_[static_cast<size_t>(thread())]; }
  double multiplications() const {
    double sum = 0;
    for (auto &product : each_) sum += product.multiplications;
    return sum;
  }
  double filling() const {
    double sum = 0;
    for (auto &product : each_) sum += product.filling;
    return sum;
  }

 private:
  std::vector<Product<S>> each_;
};

// c = a b, or c += a b, by all threads; the number of multiplications. Each thread takes a block of columns where there
// are few rows, else one of rows, so that the sums of an element do not depend on the number of threads.
template <typename S>
double multiply(int64_t m, int64_t n, int64_t k, Matrix<const S> a, Matrix<const S> b, S *c, bool add = false) {
  int64_t parts = threads();
  bool by_rows = m >= n;
  int64_t step = ((by_rows ? m : n) + parts - 1) / parts, unit = by_rows ? kRows : Product<S>::kColumns;
  step = std::max<int64_t>((step + unit - 1) / unit * unit, unit);
  Products<S> products(by_rows ? std::min(m, step) : m, by_rows ? n : std::min(n, step), k);
#pragma omp parallel for schedule(static)
  for (int64_t first = 0; first < (by_rows ? m : n); first += step) {
    int64_t rows = by_rows ? std::min(step, m - first) : m, columns = by_rows ? n : std::min(step, n - first);
    int64_t i = by_rows ? first : 0, j = by_rows ? 0 : first;
    products.own()(rows, columns, k, {a.at(i, 0), a.row, a.column}, {b.at(0, j), b.row, b.column}, c + i * n + j, n,
                   add);
  }
  return products.multiplications();
}

struct Problem {
  int64_t n, c, h, w;      // the input
  int64_t k, r, s;         // output channels, extents of the kernel
  int64_t oh, ow;          // the output
  int64_t down, right;     // strides
  int64_t top, left;       // zeros before the input; those behind it follow from the output

  // As deep5's side has checked them; checked again, since a wrong extent would leave the memory.
  template <typename X, typename W, typename Y>
  Problem(const X &x, const W &weight, const Y &y, const std::vector<int64_t> &strides,
          const std::vector<int64_t> &pads) {
    if (x.rank() != 4 || weight.rank() != 4 || y.rank() != 4 || strides.size() != 2 || pads.size() != 4) {
      throw std::invalid_argument("a convolution of images has four axes, two strides and four pads");
    }
    n = x.shape(0), c = x.shape(1), h = x.shape(2), w = x.shape(3);
    k = weight.shape(0), r = weight.shape(2), s = weight.shape(3);
    if (r < 1 || s < 1 || strides[0] < 1 || strides[1] < 1 || *std::min_element(pads.begin(), pads.end()) < 0) {
      throw std::invalid_argument("a kernel and strides of at least 1, pads of at least 0");
    }
    down = strides[0], right = strides[1], top = pads[0], left = pads[1];
    oh = (h + top + pads[2] - r) / down + 1, ow = (w + left + pads[3] - s) / right + 1;
    bool fits = weight.shape(1) == c && y.shape(0) == n && y.shape(1) == k && y.shape(2) == oh && y.shape(3) == ow;
    if (!fits || oh < 1 || ow < 1) throw std::invalid_argument("the extents of input, weight and output do not fit");
  }

  int64_t positions() const { return oh * ow; }
};

// Columns first ... first + count of the patches of some channels of an image: a matrix with a row for each channel and
// place in the kernel, and a column for each position of the output.
template <typename S>
void patches(const Problem &p, const S *image, int64_t channel, int64_t channels, int64_t first, int64_t count, S *to) {
  for (int64_t c = channel; c < channel + channels; ++c) {
    for (int64_t i = 0; i < p.r; ++i) {
      for (int64_t j = 0; j < p.s; ++j, to += count) {
        int64_t oy = first / p.ow, ox = first % p.ow;
        for (int64_t done = 0; done < count; ++oy, ox = 0) {
          int64_t length = std::min(p.ow - ox, count - done), y = oy * p.down - p.top + i;
          S *row = to + done;
          done += length;
          if (y < 0 || y >= p.h) {
            std::fill(row, row + length, S(0));
            continue;
          }
          const S *from = image + (c * p.h + y) * p.w;
          int64_t x = ox * p.right - p.left + j;
          for (int64_t q = 0; q < length; ++q, x += p.right) row[q] = x >= 0 && x < p.w ? from[x] : S(0);
        }
      }
    }
  }
}

// The adjoint of `patches`: adds each column where it was taken from.
template <typename S>
void add_patches(const Problem &p, const S *from, int64_t channel, int64_t channels, int64_t first, int64_t count,
                 S *image) {
  for (int64_t c = channel; c < channel + channels; ++c) {
    for (int64_t i = 0; i < p.r; ++i) {
      for (int64_t j = 0; j < p.s; ++j, from += count) {
        int64_t oy = first / p.ow, ox = first % p.ow;
        for (int64_t done = 0; done < count; ++oy, ox = 0) {
          int64_t length = std::min(p.ow - ox, count - done), y = oy * p.down - p.top + i;
          const S *row = from + done;
          done += length;
          if (y < 0 || y >= p.h) continue;
          S *to = image + (c * p.h + y) * p.w;
          int64_t x = ox * p.right - p.left + j;
          for (int64_t q = 0; q < length; ++q, x += p.right) {
            if (x >= 0 && x < p.w) to[x] += row[q];
          }
        }
      }
    }
  }
}

// How many positions of the output a thread takes at a time, and how many channels of the gradients.
constexpr int64_t kPositions = 512;
inline int64_t channels_at_once(const Problem &p) {
  int64_t share = (p.c * p.n + threads() - 1) / threads();
  return std::clamp<int64_t>(std::min(128 / std::max<int64_t>(p.r * p.s, 1), share), 1, std::max<int64_t>(p.c, 1));
}

// dx: the columns of W' dy, each added where its patch was taken from. Each task owns some channels of one image.
template <typename S>
double gradient_by_input(const Problem &p, const S *weight, const S *dy, S *dx) {
  int64_t group = channels_at_once(p), groups = (p.c + group - 1) / group, taps = p.r * p.s, row = p.c * taps;
  Memory<S> columns(threads() * group * taps * kPositions);
  Products<S> products(group * taps, kPositions, p.k);
#pragma omp parallel for schedule(static)
  for (int64_t task = 0; task < p.n * groups; ++task) {
    int64_t n = task / groups, c = task % groups * group, width = std::min(group, p.c - c);
    S *own = columns.data() + thread() * group * taps * kPositions, *image = dx + n * p.c * p.h * p.w;
    std::fill(image + c * p.h * p.w, image + (c + width) * p.h * p.w, S(0));
    for (int64_t first = 0; first < p.positions(); first += kPositions) {
      int64_t count = std::min(kPositions, p.positions() - first);
      products.own()(width * taps, count, p.k, {weight + c * taps, 1, row},
                     {dy + n * p.k * p.positions() + first, p.positions(), 1}, own, count, false);
      add_patches(p, own, c, width, first, count, image);
    }
  }
  return products.multiplications();
}

// dW: dy times the patches, transposed, over all images. Each task owns some channels of the input for all kernels.
template <typename S>
double gradient_by_weight(const Problem &p, const S *x, const S *dy, S *dw) {
  int64_t share = (p.c + threads() - 1) / threads(), taps = p.r * p.s, row = p.c * taps;
  int64_t group = std::max<int64_t>(1, std::min(share, std::max<int64_t>(1, 128 / taps)));
  int64_t groups = (p.c + group - 1) / group;
  Memory<S> columns(threads() * group * taps * kPositions);
  Products<S> products(p.k, group * taps, kPositions);
#pragma omp parallel for schedule(static)
  for (int64_t task = 0; task < groups; ++task) {
    int64_t c = task * group, width = std::min(group, p.c - c);
    S *own = columns.data() + thread() * group * taps * kPositions;
    for (int64_t k = 0; k < p.k; ++k) std::fill(dw + k * row + c * taps, dw + k * row + (c + width) * taps, S(0));
    for (int64_t n = 0; n < p.n; ++n) {
      for (int64_t first = 0; first < p.positions(); first += kPositions) {
        int64_t count = std::min(kPositions, p.positions() - first);
        patches(p, x + n * p.c * p.h * p.w, c, width, first, count, own);
        products.own()(p.k, width * taps, count, {dy + n * p.k * p.positions() + first, p.positions(), 1},
                       {own, 1, count}, dw + c * taps, row, true);
      }
    }
  }
  return products.multiplications();
}

// What is computed with: float for the types of 16 bits.
template <typename T>
using Wide = std::conditional_t<std::is_same_v<T, double>, double, float>;

// A tensor's elements in the type that is computed with: its own memory where that is the same.
template <typename T>
class Widened {
 public:
  using S = Wide<T>;
  explicit Widened(deep5::Tensor<const T> given) : size_(std::is_same_v<T, S> ? 0 : given.size()), memory_(size_) {
    if constexpr (std::is_same_v<T, S>) {
      data_ = given.data();
    } else {
      for (int64_t i = 0; i < size_; ++i) memory_.data()[i] = static_cast<S>(static_cast<float>(given[i]));
      data_ = memory_.data();
    }
  }
  const S *data() const { return data_; }

 private:
  int64_t size_;
  Memory<S> memory_;
  const S *data_;
};

// The same for what is written; it is rounded once, at the end.
template <typename T>
class Narrowed {
 public:
  using S = Wide<T>;
  explicit Narrowed(deep5::Tensor<T> given) : given_(given), memory_(std::is_same_v<T, S> ? 0 : given.size()) {}
  S *data() const {
    if constexpr (std::is_same_v<T, S>) {
      return given_.data();
    } else {
      return memory_.data();
    }
  }
  void write() {
    if constexpr (!std::is_same_v<T, S>) {
      for (int64_t i = 0; i < given_.size(); ++i) given_[i] = static_cast<T>(memory_.data()[i]);
    }
  }

 private:
  deep5::Tensor<T> given_;
  Memory<S> memory_;
};

// The counter that holds the most temporary memory of a call, forward or backward, in bytes.
constexpr const char *kWorkspace = "workspace bytes";

// An algorithm is an operator with `void compute(const Problem &, const S *x, const S *weight, S *y)`.
template <typename T, typename Algorithm>
void convolve(Algorithm &algorithm, const Problem &p, deep5::Tensor<const T> x, deep5::Tensor<const T> weight,
              deep5::Tensor<T> y) {
  Workspace::begin();
  Widened<T> from(x), by(weight);
  Narrowed<T> to(y);
  if (y.size()) algorithm.compute(p, from.data(), by.data(), to.data());
  to.write();
  algorithm.report_largest(kWorkspace, Workspace::peak());
}

// The gradients of all four algorithms, by patches and our own matrix product: they are those of the convolution, which
// is the same for all.
template <typename T>
void adjoint(deep5::Operator &op, const Problem &p, deep5::Tensor<const T> dy, deep5::Tensor<const T> x,
             deep5::Tensor<const T> weight, deep5::Tensor<T> dx, deep5::Tensor<T> dw) {
  using S = Wide<T>;
  Workspace::begin();
  Widened<T> grad(dy);
  double multiplications = 0;
  if (dx) {
    Widened<T> by(weight);
    Narrowed<T> to(dx);
    multiplications += gradient_by_input<S>(p, by.data(), grad.data(), to.data());
    to.write();
  }
  if (dw) {
    Widened<T> from(x);
    Narrowed<T> to(dw);
    multiplications += gradient_by_weight<S>(p, from.data(), grad.data(), to.data());
    to.write();
  }
  op.report("multiplications backward", multiplications);
  op.report_largest(kWorkspace, Workspace::peak());
}

}  // namespace zoo

#endif
