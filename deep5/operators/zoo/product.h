// A matrix product of our own, blocked for registers and caches; it knows nothing of deep5 and of threads.
//
// Blocks of both matrices are copied into panels, filled up with zeros, and multiplied by a kernel that keeps its part
// of the result in registers (Goto and van de Geijn, Anatomy of High-Performance Matrix Multiplication, TOMS 34(3),
// 2008).
#ifndef DEEP5_ZOO_PRODUCT_H
#define DEEP5_ZOO_PRODUCT_H

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>

#include "workspace.h"

namespace zoo {

#if defined(__AVX512F__)
constexpr int kBytes = 64, kRows = 12, kVectors = 2;  // 24 of 32 registers hold the result
#elif defined(__AVX__)
constexpr int kBytes = 32, kRows = 6, kVectors = 2;  // 12 of 16
#else
constexpr int kBytes = 16, kRows = 4, kVectors = 2;
#endif

// A matrix by its first element and the distances, in elements, of its rows and columns.
template <typename T>
struct Matrix {
  T *data;
  int64_t row, column;
  T *at(int64_t i, int64_t j) const { return data + i * row + j * column; }
};

// Panels of both matrices. One a thread; it keeps its memory from product to product.
template <typename T>
class Product {
 public:
  static constexpr int64_t kColumns = kVectors * kBytes / int64_t(sizeof(T));
  // A panel of the left matrix fits the second-level cache, one of kColumns columns of the right one the first.
  static constexpr int64_t kDeep = 256, kHigh = kRows * 16, kWide = kColumns * 64;

  // Makes room for products of at most these extents, which then ask for no memory.
  void reserve(int64_t m, int64_t n, int64_t k) {
    int64_t deep = std::min(k, kDeep), high = up(std::min(m, kHigh), kRows), wide = up(std::min(n, kWide), kColumns);
    left_.reserve(high * deep);
    right_.reserve(wide * deep);
  }

  // c = a b, or c += a b; a is m x k, b k x n, c m x n with neighbouring columns.
  void operator()(int64_t m, int64_t n, int64_t k, Matrix<const T> a, Matrix<const T> b, T *c, int64_t c_row,
                  bool add) {
    if (!add) {
      for (int64_t i = 0; i < m; ++i) std::fill(c + i * c_row, c + i * c_row + n, T(0));
    }
    if (m == 0 || n == 0 || k == 0) return;
    reserve(m, n, k);
    for (int64_t j = 0; j < n; j += kWide) {
      int64_t columns = std::min(kWide, n - j);
      for (int64_t p = 0; p < k; p += kDeep) {
        int64_t depth = std::min(kDeep, k - p);
        pack_right(depth, columns, {b.at(p, j), b.row, b.column});
        for (int64_t i = 0; i < m; i += kHigh) {
          int64_t rows = std::min(kHigh, m - i);
          pack_left(rows, depth, {a.at(i, p), a.row, a.column});
          block(rows, columns, depth, c + i * c_row + j, c_row);
        }
      }
    }
  }

  // Multiplications of the products since they were last taken, and those by the zeros that fill panels up.
  double multiplications = 0, filling = 0;

 private:
  typedef T Vector __attribute__((vector_size(kBytes)));
  static constexpr int64_t kLanes = kBytes / int64_t(sizeof(T));

  static int64_t up(int64_t size, int64_t step) { return (size + step - 1) / step * step; }

  // Memory that begins at a vector's boundary and is not set to zeros when it is made.
  struct Panel {
    std::unique_ptr<Memory<T>> memory;
    T *begin = nullptr;
    int64_t size = 0;
    void reserve(int64_t wanted) {
      if (wanted <= size) return;
      memory.reset();
      memory.reset(new Memory<T>(wanted + kLanes));
      begin = reinterpret_cast<T *>((reinterpret_cast<uintptr_t>(memory->data()) + kBytes - 1) / kBytes * kBytes);
      size = wanted;
    }
  };

  void pack_left(int64_t rows, int64_t depth, Matrix<const T> a) {
    T *to = left_.begin;
    for (int64_t i = 0; i < rows; i += kRows, to += kRows * depth) {
      int64_t high = std::min<int64_t>(kRows, rows - i);
      if (high < kRows) std::fill(to, to + kRows * depth, T(0));
      for (int64_t r = 0; r < high; ++r) {
        const T *from = a.at(i + r, 0);
        for (int64_t p = 0; p < depth; ++p) to[p * kRows + r] = from[p * a.column];
      }
    }
  }

  void pack_right(int64_t depth, int64_t columns, Matrix<const T> b) {
    T *to = right_.begin;
    for (int64_t j = 0; j < columns; j += kColumns, to += kColumns * depth) {
      int64_t wide = std::min(kColumns, columns - j);
      if (wide < kColumns) std::fill(to, to + kColumns * depth, T(0));
      for (int64_t p = 0; p < depth; ++p) {
        const T *from = b.at(p, j);
        T *row = to + p * kColumns;
        if (b.column == 1) {
          std::copy(from, from + wide, row);
        } else {
          for (int64_t q = 0; q < wide; ++q) row[q] = from[q * b.column];
        }
      }
    }
  }

  void block(int64_t rows, int64_t columns, int64_t depth, T *c, int64_t c_row) {
    for (int64_t j = 0; j < columns; j += kColumns) {
      const T *right = right_.begin + j * depth;
      int64_t wide = std::min(kColumns, columns - j);
      for (int64_t i = 0; i < rows; i += kRows) {
        const T *left = left_.begin + i * depth;
        int64_t high = std::min<int64_t>(kRows, rows - i);
        tile(depth, left, right, c + i * c_row + j, c_row, high, wide);
        multiplications += double(high * wide * depth);
        filling += double((kRows * kColumns - high * wide) * depth);
      }
    }
  }

  static void tile(int64_t depth, const T *left, const T *right, T *c, int64_t c_row, int64_t high, int64_t wide) {
    Vector sum[kRows][kVectors] = {};
    for (int64_t p = 0; p < depth; ++p, left += kRows, right += kColumns) {
      auto row = reinterpret_cast<const Vector *>(right);
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) sum[r][v] += left[r] * row[v];
      }
    }
    if (high == kRows && wide == kColumns) {
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) {
          Vector old;
          std::memcpy(&old, c + r * c_row + v * kLanes, kBytes);
          old += sum[r][v];
          std::memcpy(c + r * c_row + v * kLanes, &old, kBytes);
        }
      }
      return;
    }
    T edge[kRows * kColumns];
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) std::memcpy(edge + r * kColumns, sum[r], sizeof sum[r]);
    for (int64_t r = 0; r < high; ++r) {
      for (int64_t q = 0; q < wide; ++q) c[r * c_row + q] += edge[r * kColumns + q];
    }
  }

  Panel left_, right_;
};

}  // namespace zoo

#endif
