// The sum over input channels and places in the kernel, as it is defined; zeros of the padding are left out.
//
// Output channels lie side by side in vectors, and some neighbouring positions are computed together, so that their
// sums stay in registers and each weight that is read is used for all of them.
#include "convolution.h"

template <typename T>
class ConvDirect : public deep5::Operator {
 public:
  ConvDirect(std::vector<int64_t> strides, std::vector<int64_t> pads) : strides_(strides), pads_(pads) {}

  void forward(deep5::Tensor<const T> x, deep5::Tensor<const T> weight, deep5::Tensor<T> y) {
    zoo::convolve<T>(*this, zoo::Problem(x, weight, y, strides_, pads_), x, weight, y);
  }

  void backward(deep5::Tensor<const T> dy, deep5::Tensor<const T> x, deep5::Tensor<const T> weight,
                deep5::Tensor<const T> y, deep5::Tensor<T> dx, deep5::Tensor<T> dw) {
    zoo::adjoint<T>(*this, zoo::Problem(x, weight, y, strides_, pads_), dy, x, weight, dx, dw);
  }

  template <typename S>
  void compute(const zoo::Problem &p, const S *x, const S *weight, S *y) {
    p.k > zoo::kBytes / int64_t(sizeof(S)) ? by_blocks<zoo::kVectors>(p, x, weight, y) : by_blocks<1>(p, x, weight, y);
  }

 private:
  template <typename S>
  struct Lanes {
    typedef S Vector __attribute__((vector_size(zoo::kBytes)));
    static constexpr int64_t count = zoo::kBytes / int64_t(sizeof(S));
  };

  // V vectors of output channels at a time.
  template <int V, typename S>
  void by_blocks(const zoo::Problem &p, const S *x, const S *weight, S *y) {
    using Vector = typename Lanes<S>::Vector;
    constexpr int64_t kWide = V * Lanes<S>::count;
    int64_t blocks = (p.k + kWide - 1) / kWide, taps = p.c * p.r * p.s, done = 0, filled = 0;
    zoo::Memory<Vector> packed(blocks * taps * V);
    for (int64_t k = 0; k < blocks * kWide; ++k) {
      for (int64_t tap = 0; tap < taps; ++tap) {
        packed.data()[(k / kWide * taps + tap) * V + k % kWide / Lanes<S>::count][k % Lanes<S>::count] =
            k < p.k ? weight[k * taps + tap] : S(0);
      }
    }
    // From the first to behind the last position whose patch lies within the width of the image.
    int64_t first = std::min((p.left + p.right - 1) / p.right, p.ow);
    int64_t room = p.w + p.left - p.s, last = room < 0 ? first : std::clamp(room / p.right + 1, first, p.ow);
#pragma omp parallel for schedule(static) reduction(+ : done, filled)
    for (int64_t task = 0; task < p.n * blocks * p.oh; ++task) {
      int64_t oy = task % p.oh, block = task / p.oh % blocks, n = task / p.oh / blocks, k = block * kWide, count = 0;
      const S *image = x + n * p.c * p.h * p.w;
      const Vector *by = packed.data() + block * taps * V;
      int64_t channels = std::min(kWide, p.k - k), ox = 0;
      S *to = y + (n * p.k + k) * p.positions() + oy * p.ow;
      for (; ox < first; ++ox) count += positions<1, V>(p, image, by, oy, ox, channels, to);
      for (; ox + kMany <= last; ox += kMany) count += positions<kMany, V>(p, image, by, oy, ox, channels, to);
      for (; ox + kFew <= last; ox += kFew) count += positions<kFew, V>(p, image, by, oy, ox, channels, to);
      for (; ox < p.ow; ++ox) count += positions<1, V>(p, image, by, oy, ox, channels, to);
      done += count * channels, filled += count * (kWide - channels);
    }
    report("multiplications", double(done));
    report("multiplications by filling", double(filled));
  }

  static constexpr int kMany = zoo::kRows, kFew = std::max(1, zoo::kRows / 3);

  // Q positions from ox on; one alone may have a patch that is cut. Returns how many elements of patches met a weight.
  template <int Q, int V, typename S, typename Vector>
  static int64_t positions(const zoo::Problem &p, const S *image, const Vector *by, int64_t oy, int64_t ox,
                           int64_t channels, S *to) {
    int64_t top = oy * p.down - p.top, left = ox * p.right - p.left, count = 0;
    int64_t i0 = std::max<int64_t>(0, -top), i1 = std::min(p.r, p.h - top), j0 = 0, j1 = p.s;
    if (Q == 1) j0 = std::max<int64_t>(0, -left), j1 = std::min(p.s, p.w - left);
    Vector sum[Q][V] = {};
    for (int64_t c = 0; c < p.c; ++c) {
      for (int64_t i = i0; i < i1; ++i) {
        int64_t at = (c * p.h + top + i) * p.w + left;
        const Vector *row = by + (c * p.r + i) * p.s * V;
        for (int64_t j = j0; j < j1; ++j) {
#pragma GCC unroll 16
          for (int q = 0; q < Q; ++q) {
            S value = image[at + q * p.right + j];
#pragma GCC unroll 4
            for (int v = 0; v < V; ++v) sum[q][v] += value * row[j * V + v];
          }
          count += Q;
        }
      }
    }
    for (int64_t k = 0; k < channels; ++k) {
      for (int q = 0; q < Q; ++q) to[k * p.positions() + ox + q] = sum[q][k / Lanes<S>::count][k % Lanes<S>::count];
    }
    return count;
  }

  std::vector<int64_t> strides_, pads_;
};
