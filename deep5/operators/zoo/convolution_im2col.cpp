// Patches of the image as the columns of a matrix, which the weights multiply from the left.
//
// The matrix is made a block of columns at a time, of a size that caches hold; or, as published, all of it before the
// product: R S times the input.
#include "convolution.h"

template <typename T>
class ConvIm2Col : public deep5::Operator {
 public:
  ConvIm2Col(std::vector<int64_t> strides, std::vector<int64_t> pads, bool whole)
      : strides_(strides), pads_(pads), whole_(whole) {}

  void forward(deep5::Tensor<const T> x, deep5::Tensor<const T> weight, deep5::Tensor<T> y) {
    zoo::convolve<T>(*this, zoo::Problem(x, weight, y, strides_, pads_), x, weight, y);
  }

  void backward(deep5::Tensor<const T> dy, deep5::Tensor<const T> x, deep5::Tensor<const T> weight,
                deep5::Tensor<const T> y, deep5::Tensor<T> dx, deep5::Tensor<T> dw) {
    zoo::adjoint<T>(*this, zoo::Problem(x, weight, y, strides_, pads_), dy, x, weight, dx, dw);
  }

  template <typename S>
  void compute(const zoo::Problem &p, const S *x, const S *weight, S *y) {
    int64_t depth = p.c * p.r * p.s, blocks = (p.positions() + zoo::kPositions - 1) / zoo::kPositions;
    int64_t image = depth * p.positions(), channel = p.r * p.s * p.positions();
    zoo::Memory<S> columns(whole_ ? p.n * image : zoo::threads() * depth * zoo::kPositions);
    zoo::Products<S> products(p.k, zoo::kPositions, depth);
    if (whole_) {
#pragma omp parallel for schedule(static)
      for (int64_t task = 0; task < p.n * p.c; ++task) {
        int64_t n = task / p.c, c = task % p.c;
        zoo::patches(p, x + n * p.c * p.h * p.w, c, 1, 0, p.positions(), columns.data() + n * image + c * channel);
      }
    }
#pragma omp parallel for schedule(static)
    for (int64_t task = 0; task < p.n * blocks; ++task) {
      int64_t n = task / blocks, first = task % blocks * zoo::kPositions;
      int64_t count = std::min(zoo::kPositions, p.positions() - first), row = p.positions();
      S *own = columns.data() + n * image + first;
      if (!whole_) {
        own = columns.data() + zoo::thread() * depth * zoo::kPositions, row = count;
        zoo::patches(p, x + n * p.c * p.h * p.w, 0, p.c, first, count, own);
      }
      products.own()(p.k, count, depth, {weight, depth, 1}, {own, row, 1}, y + n * p.k * p.positions() + first,
                     p.positions(), false);
    }
    report("multiplications", products.multiplications());
    report("multiplications by filling", products.filling());
  }

 private:
  std::vector<int64_t> strides_, pads_;
  bool whole_;
};
