// By the minimal filtering algorithms F(2x2, 3x3) and F(4x4, 3x3): Lavin and Gray, Fast Algorithms for Convolutional
// Neural Networks, arXiv:1509.09308, sections 4.1 to 4.3. An output tile of m x m takes an input tile of
// (m + 2) x (m + 2) and as many multiplications for each pair of channels: Y = A' [(G g G') . (B' d B)] A.
#include "convolution.h"

namespace zoo {

template <int M>
struct Filtering;

template <>
struct Filtering<2> {
  static constexpr double data[4][4] = {{1, 0, -1, 0}, {0, 1, 1, 0}, {0, -1, 1, 0}, {0, 1, 0, -1}};
  static constexpr double kernel[4][3] = {{1, 0, 0}, {0.5, 0.5, 0.5}, {0.5, -0.5, 0.5}, {0, 0, 1}};
  static constexpr double inverse[2][4] = {{1, 1, 1, 0}, {0, 1, -1, -1}};
};

template <>
struct Filtering<4> {
  static constexpr double data[6][6] = {{4, 0, -5, 0, 1, 0},  {0, -4, -4, 1, 1, 0}, {0, 4, -4, -1, 1, 0},
                                        {0, -2, -1, 2, 1, 0}, {0, 2, -1, -2, 1, 0}, {0, 4, 0, -5, 0, 1}};
  static constexpr double kernel[6][3] = {{1. / 4, 0, 0},
                                          {-1. / 6, -1. / 6, -1. / 6},
                                          {-1. / 6, 1. / 6, -1. / 6},
                                          {1. / 24, 1. / 12, 1. / 6},
                                          {1. / 24, -1. / 12, 1. / 6},
                                          {0, 0, 1}};
  static constexpr double inverse[4][6] = {
      {1, 1, 1, 1, 1, 0}, {0, 1, -1, 2, -2, 0}, {0, 1, 1, 4, 4, 0}, {0, 1, -1, 8, -8, 1}};
};

// The three matrices as types, so that their elements are known where they multiply.
template <int M>
struct Data {
  static constexpr int rows = M + 2, columns = M + 2;
  static constexpr double at(int i, int j) { return Filtering<M>::data[i][j]; }
};
template <int M>
struct Kernel {
  static constexpr int rows = M + 2, columns = 3;
  static constexpr double at(int i, int j) { return Filtering<M>::kernel[i][j]; }
};
template <int M>
struct Inverse {
  static constexpr int rows = M, columns = M + 2;
  static constexpr double at(int i, int j) { return Filtering<M>::inverse[i][j]; }
};

// Elements that take a multiplication: neither 0 nor 1 nor -1.
template <typename Q>
constexpr int64_t factors() {
  int64_t count = 0;
  for (int i = 0; i < Q::rows; ++i) {
    for (int j = 0; j < Q::columns; ++j) {
      double value = Q::at(i, j);
      count += value != 0 && value != 1 && value != -1;
    }
  }
  return count;
}

template <typename S>
struct Vectors {
  typedef S Vector __attribute__((vector_size(kBytes)));
  static constexpr int64_t kLanes = kBytes / int64_t(sizeof(S));
};

template <typename Q, int I, int J, typename S, typename V>
inline __attribute__((always_inline)) void add(V &sum, const V &value) {
  constexpr double factor = Q::at(I, J);
  if constexpr (factor == 1) {
    sum += value;
  } else if constexpr (factor == -1) {
    sum -= value;
  } else if constexpr (factor != 0) {
    sum += static_cast<S>(factor) * value;
  }
}

template <typename Q, int I, typename S, typename V, int... J>
inline __attribute__((always_inline)) V dot(const V *x, int64_t step, std::integer_sequence<int, J...>) {
  V sum = {};
  (add<Q, I, J, S>(sum, x[J * step]), ...);
  return sum;
}

// y = Q x, of columns of vectors.
template <typename Q, typename S, typename V, int... I>
inline __attribute__((always_inline)) void multiply(const V *x, int64_t x_step, V *y, int64_t y_step,
                                                    std::integer_sequence<int, I...>) {
  ((y[I * y_step] = dot<Q, I, S>(x, x_step, std::make_integer_sequence<int, Q::columns>{})), ...);
}

// Q x Q', where x has as many rows and columns as Q has columns. Returns the multiplications a lane.
template <typename Q, typename S, typename V>
int64_t both_sides(const V *x, V *y) {
  V half[Q::rows * Q::columns];
  auto rows = std::make_integer_sequence<int, Q::rows>{};
  for (int j = 0; j < Q::columns; ++j) multiply<Q, S>(x + j, Q::columns, half + j, Q::columns, rows);
  for (int i = 0; i < Q::rows; ++i) multiply<Q, S>(half + i * Q::columns, 1, y + i * Q::rows, 1, rows);
  return factors<Q>() * (Q::columns + Q::rows);
}

}  // namespace zoo

template <typename T>
class ConvWinograd : public deep5::Operator {
 public:
  ConvWinograd(std::vector<int64_t> pads, int64_t tile) : pads_(pads), tile_(tile) {
    if (tile != 2 && tile != 4) throw std::invalid_argument("a tile is of 2 x 2 or 4 x 4");
  }

  void forward(deep5::Tensor<const T> x, deep5::Tensor<const T> weight, deep5::Tensor<T> y) {
    zoo::convolve<T>(*this, problem(x, weight, y), x, weight, y);
  }

  void backward(deep5::Tensor<const T> dy, deep5::Tensor<const T> x, deep5::Tensor<const T> weight,
                deep5::Tensor<const T> y, deep5::Tensor<T> dx, deep5::Tensor<T> dw) {
    zoo::adjoint<T>(*this, problem(x, weight, y), dy, x, weight, dx, dw);
  }

  template <typename S>
  void compute(const zoo::Problem &p, const S *x, const S *weight, S *y) {
    tile_ == 2 ? by_tiles<2>(p, x, weight, y) : by_tiles<4>(p, x, weight, y);
  }

 private:
  template <typename X, typename W, typename Y>
  zoo::Problem problem(const X &x, const W &weight, const Y &y) const {
    zoo::Problem p(x, weight, y, {1, 1}, pads_);
    if (p.r != 3 || p.s != 3) throw std::invalid_argument("this algorithm is for kernels of 3 x 3");
    return p;
  }

  template <int M, typename S>
  void by_tiles(const zoo::Problem &p, const S *x, const S *weight, S *y) {
    constexpr int kInput = M + 2, kPlaces = kInput * kInput;
    constexpr int64_t kLanes = zoo::Vectors<S>::kLanes;
    using Vector = typename zoo::Vectors<S>::Vector;
    int64_t across = (p.ow + M - 1) / M, tiles = (p.oh + M - 1) / M * across, all = p.n * tiles, pairs = p.k * p.c;
    zoo::Memory<S> kernels(kPlaces * pairs), inputs(kPlaces * p.c * all), outputs(kPlaces * p.k * all);
    int64_t count = 0;

    // Kernels: kPlaces matrices of k x c.
#pragma omp parallel for schedule(static) reduction(+ : count)
    for (int64_t first = 0; first < pairs; first += kLanes) {
      int64_t lanes = std::min(kLanes, pairs - first);
      Vector from[9] = {}, to[kPlaces];
      for (int64_t lane = 0; lane < lanes; ++lane) {
        for (int at = 0; at < 9; ++at) from[at][lane] = weight[(first + lane) * 9 + at];
      }
      count += lanes * zoo::both_sides<zoo::Kernel<M>, S>(from, to);
      for (int at = 0; at < kPlaces; ++at) store(to[at], kernels.data() + at * pairs + first, lanes);
    }

    // Input tiles: kPlaces matrices of c x tiles of all images.
#pragma omp parallel for schedule(static) reduction(+ : count)
    for (int64_t plane = 0; plane < p.n * p.c; ++plane) {
      int64_t n = plane / p.c, c = plane % p.c;
      const S *image = x + plane * p.h * p.w;
      for (int64_t first = 0; first < tiles; first += kLanes) {
        int64_t lanes = std::min(kLanes, tiles - first);
        Vector from[kPlaces] = {}, to[kPlaces];
        for (int64_t lane = 0; lane < lanes; ++lane) {
          int64_t top = (first + lane) / across * M - p.top, left = (first + lane) % across * M - p.left;
          int64_t i0 = std::max<int64_t>(0, -top), i1 = std::min<int64_t>(kInput, p.h - top);
          int64_t j0 = std::max<int64_t>(0, -left), j1 = std::min<int64_t>(kInput, p.w - left);
          for (int64_t i = i0; i < i1; ++i) {
            for (int64_t j = j0; j < j1; ++j) from[i * kInput + j][lane] = image[(top + i) * p.w + left + j];
          }
        }
        count += lanes * zoo::both_sides<zoo::Data<M>, S>(from, to);
        S *made = inputs.data() + c * all + n * tiles + first;
        for (int at = 0; at < kPlaces; ++at) store(to[at], made + at * p.c * all, lanes);
      }
    }

    // At each place of a tile one product of matrices, a block of tiles at a time.
    int64_t blocks = (all + zoo::kPositions - 1) / zoo::kPositions;
    zoo::Products<S> products(p.k, zoo::kPositions, p.c);
#pragma omp parallel for schedule(static)
    for (int64_t task = 0; task < kPlaces * blocks; ++task) {
      int64_t at = task / blocks, first = task % blocks * zoo::kPositions;
      products.own()(p.k, std::min(zoo::kPositions, all - first), p.c, {kernels.data() + at * pairs, p.c, 1},
                     {inputs.data() + at * p.c * all + first, all, 1}, outputs.data() + at * p.k * all + first, all,
                     false);
    }

    // Output tiles, cut at the border.
#pragma omp parallel for schedule(static) reduction(+ : count)
    for (int64_t plane = 0; plane < p.n * p.k; ++plane) {
      int64_t n = plane / p.k, k = plane % p.k;
      S *image = y + plane * p.positions();
      for (int64_t first = 0; first < tiles; first += kLanes) {
        int64_t lanes = std::min(kLanes, tiles - first);
        Vector from[kPlaces] = {}, to[M * M];
        const S *made = outputs.data() + k * all + n * tiles + first;
        for (int at = 0; at < kPlaces; ++at) std::memcpy(&from[at], made + at * p.k * all, lanes * sizeof(S));
        count += lanes * zoo::both_sides<zoo::Inverse<M>, S>(from, to);
        for (int64_t lane = 0; lane < lanes; ++lane) {
          int64_t top = (first + lane) / across * M, left = (first + lane) % across * M;
          int64_t i1 = std::min<int64_t>(M, p.oh - top), j1 = std::min<int64_t>(M, p.ow - left);
          for (int64_t i = 0; i < i1; ++i) {
            for (int64_t j = 0; j < j1; ++j) image[(top + i) * p.ow + left + j] = to[i * M + j][lane];
          }
        }
      }
    }
    report("multiplications", products.multiplications());
    report("multiplications by filling", products.filling());
    report("multiplications of transforms", double(count));
  }

  template <typename Vector, typename S>
  static void store(const Vector &from, S *to, int64_t lanes) {
    std::memcpy(to, &from, lanes * sizeof(S));
  }

  std::vector<int64_t> pads_;
  int64_t tile_;
};
