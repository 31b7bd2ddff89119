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
    double count = zoo::multiply<S>(m, n, k, {left.data(), k, 1}, {right.data(), n, 1}, made.data());
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
      count += zoo::multiply<S>(m, k, n, {grad.data(), n, 1}, {right.data(), 1, n}, made.data());
      made.write();
    }
    if (db) {
      zoo::Widened<T> left(a);
      zoo::Narrowed<T> made(db);
      count += zoo::multiply<S>(k, n, m, {left.data(), 1, k}, {grad.data(), n, 1}, made.data());
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
};
