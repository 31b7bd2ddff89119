// A matrix that many small products have in common, copied once into panels of vectors.
//
// `Product` copies its matrices in each call. For a recurrent layer that would copy the weights of the state in every
// step, which takes as long as the product with a small batch. Here they are copied once for all steps: what a
// persistent kernel does with the registers of a GPU (Diamos et al., Persistent RNNs, ICML 2016, section 4), this does
// with the caches of a processor core.
#ifndef DEEP5_ZOO_RESIDENT_H
#define DEEP5_ZOO_RESIDENT_H

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "product.h"
#include "vector_math.h"
#include "workspace.h"

namespace zoo {

// Memory that begins at a vector's boundary and is not set to zeros when it is made.
template <typename T>
class Aligned {
 public:
  explicit Aligned(int64_t size) : memory_(size + kBytes / int64_t(sizeof(T))) {
    begin_ = reinterpret_cast<T *>((reinterpret_cast<uintptr_t>(memory_.data()) + kBytes - 1) / kBytes * kBytes);
  }
  T *data() const { return begin_; }

 private:
  Memory<T> memory_;
  T *begin_;
};

// G matrices of the same height k and width n, side by side: the gates of a recurrent layer. A block holds the same
// kColumns columns of all of them.
template <typename T, int G>
class Resident {
 public:
  using Vector = typename Lanes<T>::Vector;
  static constexpr int64_t kColumns = Product<T>::kColumns;

  Resident(int64_t k, int64_t n, Matrix<const T> b)
      : k_(k), blocks_((n + kColumns - 1) / kColumns), panels_(blocks_ * G * k * kColumns) {
#pragma omp parallel for schedule(static)
    for (int64_t block = 0; block < blocks_; ++block) {
      int64_t first = block * kColumns, wide = std::min(kColumns, n - first);
      for (int g = 0; g < G; ++g) pack({b.at(0, g * n + first), b.row, b.column}, wide, panel(block, g));
    }
  }

  int64_t blocks() const { return blocks_; }

  // sums[g][r][q] = the product of row r of `a` and column q of the block in matrix g, for 1 to kRows rows. Each is
  // summed up in the order of k whatever the number of rows is.
  void multiply(int64_t block, const T *a, int64_t a_row, int64_t rows, T *sums) const {
    choose<kRows>(block, a, a_row, rows, sums);
  }

 private:
  T *panel(int64_t block, int g) const { return panels_.data() + (block * G + g) * k_ * kColumns; }

  void pack(Matrix<const T> b, int64_t wide, T *to) const {
    constexpr int64_t kDeep = 16;  // neighbours in memory where the matrix is transposed
    if (wide < kColumns) std::fill(to, to + k_ * kColumns, T(0));
    for (int64_t p = 0; p < k_; p += kDeep) {
      for (int64_t q = 0; q < wide; ++q) {
        for (int64_t d = p; d < std::min(k_, p + kDeep); ++d) to[d * kColumns + q] = *b.at(d, q);
      }
    }
  }

  template <int R>
  void choose(int64_t block, const T *a, int64_t a_row, int64_t rows, T *sums) const {
    if constexpr (R > 1) {
      if (rows < R) return choose<R - 1>(block, a, a_row, rows, sums);
    }
    // Few rows leave registers for all matrices at once: enough sums that do not wait for each other.
    constexpr int kAtOnce = R * G <= kRows ? G : 1;
    for (int g = 0; g < G; g += kAtOnce) {
      tile<R, kAtOnce>(panel(block, g), a, a_row, sums + g * kRows * kColumns);
    }
  }

  template <int R, int P>
  void tile(const T *right, const T *a, int64_t a_row, T *sums) const {
    Vector sum[P][R][kVectors] = {};
    for (int64_t p = 0; p < k_; ++p, right += kColumns) {
#pragma GCC unroll 4
      for (int g = 0; g < P; ++g) {
        auto row = reinterpret_cast<const Vector *>(right + g * k_ * kColumns);
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
          for (int v = 0; v < kVectors; ++v) sum[g][r][v] += a[r * a_row + p] * row[v];
        }
      }
    }
#pragma GCC unroll 4
    for (int g = 0; g < P; ++g) {
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) std::memcpy(sums + (g * kRows + r) * kColumns, sum[g][r], sizeof sum[g][r]);
    }
  }

  int64_t k_, blocks_;
  Aligned<T> panels_;
};

}  // namespace zoo

#endif
