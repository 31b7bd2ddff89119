// The blocked matrix product as an operator; rows of the result are shared between threads.
#include "convolution.h"

template <typename T>
class MatMulBlocked : public deep5::Operator {
 public:
  void forward(deep5::Tensor<const T> a, deep5::Tensor<const T> b, deep5::Tensor<T> c) {
    int64_t m = a.shape(0), k = a.shape(1), n = b.shape(1);
    check(a, b, c);
    zoo::Widened<T> left(a), right(b);
    zoo::Narrowed<T> made(c);
    double count = run(m, n, k, {left.data(), k, 1}, {right.data(), n, 1}, made.data());
    made.write();
    report("multiplications", count);
  }

  void backward(deep5::Tensor<const T> dc, deep5::Tensor<const T> a, deep5::Tensor<const T> b, deep5::Tensor<const T> c,
                deep5::Tensor<T> da, deep5::Tensor<T> db) {
    int64_t m = a.shape(0), k = a.shape(1), n = b.shape(1);
    check(a, b, c);
    zoo::Widened<T> grad(dc);
    double count = 0;
    if (da) {
      zoo::Widened<T> right(b);
      zoo::Narrowed<T> made(da);
      count += run(m, k, n, {grad.data(), n, 1}, {right.data(), 1, n}, made.data());
      made.write();
    }
    if (db) {
      zoo::Widened<T> left(a);
      zoo::Narrowed<T> made(db);
      count += run(k, n, m, {left.data(), 1, k}, {grad.data(), n, 1}, made.data());
      made.write();
    }
    report("multiplications backward", count);
  }

 private:
  using S = zoo::Wide<T>;

  template <typename A, typename B, typename C>
  static void check(const A &a, const B &b, const C &c) {
    if (a.shape(1) != b.shape(0) || c.shape(0) != a.shape(0) || c.shape(1) != b.shape(1)) {
      throw std::invalid_argument("the extents of the matrices do not fit");
    }
  }

  // Each thread takes a block of columns where there are few rows, else one of rows.
  static double run(int64_t m, int64_t n, int64_t k, zoo::Matrix<const S> a, zoo::Matrix<const S> b, S *c) {
    int64_t parts = zoo::threads();
    bool by_rows = m >= n;
    int64_t step = ((by_rows ? m : n) + parts - 1) / parts, unit = by_rows ? zoo::kRows : zoo::Product<S>::kColumns;
    step = std::max<int64_t>((step + unit - 1) / unit * unit, unit);
    zoo::Products<S> products(by_rows ? std::min(m, step) : m, by_rows ? n : std::min(n, step), k);
#pragma omp parallel for schedule(static)
    for (int64_t first = 0; first < (by_rows ? m : n); first += step) {
      int64_t rows = by_rows ? std::min(step, m - first) : m, columns = by_rows ? n : std::min(step, n - first);
      int64_t i = by_rows ? first : 0, j = by_rows ? 0 : first;
      products.own()(rows, columns, k, {a.at(i, 0), a.row, a.column}, {b.at(0, j), b.row, b.column}, c + i * n + j, n,
                     false);
    }
    return products.multiplications();
  }
};
