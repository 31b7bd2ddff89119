// By the convolution theorem: a product at each frequency of the transformed images and kernels (Mathieu, Henaff and
// LeCun, Fast Training of Convolutional Networks through FFTs, ICLR 2014, arXiv:1312.5851).
//
// Transforms are of radix 2, of extents that are powers of two; two channels of one image are the real and the
// imaginary part of one complex one, and half of the frequencies is kept, the other half being its conjugate. Forward
// transforms leave frequencies in the order of reversed bits and backward ones take them so: nothing is put in order.
#include "convolution.h"

namespace zoo {

inline int64_t power_of_two(int64_t least) {
  int64_t extent = 1;
  while (extent < least) extent *= 2;
  return extent;
}

// The transform of one axis: an extent, its factors, and where each frequency's negative is.
template <typename S>
struct Axis {
  int64_t extent;
  std::vector<S> cosine, sine;
  std::vector<int64_t> mirror, kept;  // kept: the places of frequencies 0 ... extent / 2

  explicit Axis(int64_t length) : extent(length), mirror(length) {
    const double circle = 6.283185307179586476925286766559;
    for (int64_t j = 0; j < extent / 2; ++j) {
      cosine.push_back(static_cast<S>(std::cos(circle * j / extent)));
      sine.push_back(static_cast<S>(std::sin(circle * j / extent)));
    }
    std::vector<int64_t> place(extent, 0);
    for (int64_t frequency = 0; frequency < extent; ++frequency) {
      for (int64_t bit = 1; bit < extent; bit *= 2) place[frequency] = place[frequency] * 2 + ((frequency & bit) != 0);
    }
    for (int64_t frequency = 0; frequency < extent; ++frequency) {
      mirror[place[frequency]] = place[(extent - frequency) % extent];
    }
    kept.assign(place.begin(), place.begin() + extent / 2 + 1);
  }
};

// kLanes complex numbers side by side: every operation is one on vectors.
template <typename S>
struct Lanes {
  static constexpr int64_t kLanes = kBytes / int64_t(sizeof(S));
  typedef S Vector __attribute__((vector_size(kBytes)));
  Vector re, im;
};

// In place, order of reversed bits behind it. Returns how many complex multiplications that took a lane.
template <typename S>
int64_t transform(const Axis<S> &axis, Lanes<S> *x) {
  int64_t count = 0;
  for (int64_t half = axis.extent / 2; half >= 1; half /= 2) {
    int64_t step = axis.extent / (2 * half);
    for (int64_t start = 0; start < axis.extent; start += 2 * half) {
      for (int64_t j = 0; j < half; ++j) {
        Lanes<S> a = x[start + j], b = x[start + j + half], d{a.re - b.re, a.im - b.im};
        x[start + j] = {a.re + b.re, a.im + b.im};
        if (j == 0) {
          x[start + half] = d;
        } else {
          S cosine = axis.cosine[j * step], sine = axis.sine[j * step];
          x[start + j + half] = {d.re * cosine + d.im * sine, d.im * cosine - d.re * sine};
        }
      }
      count += half - 1;
    }
  }
  return count;
}

// The inverse but for the division by the extent; takes the order of reversed bits.
template <typename S>
int64_t transform_back(const Axis<S> &axis, Lanes<S> *x) {
  int64_t count = 0;
  for (int64_t half = 1; half < axis.extent; half *= 2) {
    int64_t step = axis.extent / (2 * half);
    for (int64_t start = 0; start < axis.extent; start += 2 * half) {
      for (int64_t j = 0; j < half; ++j) {
        Lanes<S> a = x[start + j], b = x[start + j + half];
        if (j > 0) {
          S cosine = axis.cosine[j * step], sine = axis.sine[j * step];
          b = {b.re * cosine - b.im * sine, b.im * cosine + b.re * sine};
        }
        x[start + j] = {a.re + b.re, a.im + b.im};
        x[start + j + half] = {a.re - b.re, a.im - b.im};
      }
      count += half - 1;
    }
  }
  return count;
}

}  // namespace zoo

template <typename T>
class ConvFFT : public deep5::Operator {
 public:
  explicit ConvFFT(std::vector<int64_t> pads) : pads_(pads) {}

  void forward(deep5::Tensor<const T> x, deep5::Tensor<const T> weight, deep5::Tensor<T> y) {
    zoo::convolve<T>(*this, zoo::Problem(x, weight, y, {1, 1}, pads_), x, weight, y);
  }

  void backward(deep5::Tensor<const T> dy, deep5::Tensor<const T> x, deep5::Tensor<const T> weight,
                deep5::Tensor<const T> y, deep5::Tensor<T> dx, deep5::Tensor<T> dw) {
    zoo::adjoint<T>(*this, zoo::Problem(x, weight, y, {1, 1}, pads_), dy, x, weight, dx, dw);
  }

  // At each frequency the complex Y = X conj(W), with n x c times c x k, is one real product:
  // [Re Y; Im Y] = [Re X, Im X; Im X, -Re X] [Re W; Im W].
  template <typename S>
  void compute(const zoo::Problem &p, const S *x, const S *weight, S *y) {
    Plane<S> plane(extent(p.h, p.top, p.oh, p.r), extent(p.w, p.left, p.ow, p.s));
    int64_t frequencies = plane.frequencies(), left = 4 * p.n * p.c, right = 2 * p.c * p.k, made = 2 * p.n * p.k;
    zoo::Memory<S> xs(frequencies * left), ws(frequencies * right), ys(frequencies * made);
    zoo::Memory<zoo::Lanes<S>> work(zoo::threads() * plane.room());
    int64_t count = 0;
    // Of channels of one image or kernel, so that what is wrong in one does not reach another.
    int64_t c_pairs = (p.c + 1) / 2, k_pairs = (p.k + 1) / 2;
    count += plane.forward(p.n * c_pairs, work.data(), [&](int64_t pair) {
      int64_t one = pair / c_pairs * p.c + pair % c_pairs * 2;
      return Pair{one, pair % c_pairs * 2 + 1 < p.c ? one + 1 : -1};
    }, [&](int64_t image) {
      return Image<const S>{x + image * p.h * p.w, p.h, p.w, p.top, p.left};
    }, [&](int64_t image) { return image / p.c * 2 * p.c + image % p.c; },
    [&](int64_t frequency, int64_t place, S re, S im) {
      S *to = xs.data() + frequency * left + place;
      to[0] = re, to[p.c] = im, to[left / 2] = im, to[left / 2 + p.c] = -re;
    });
    count += plane.forward(c_pairs * p.k, work.data(), [&](int64_t pair) {
      int64_t one = pair / p.k * 2 * p.k + pair % p.k;
      return Pair{one, pair / p.k * 2 + 1 < p.c ? one + p.k : -1};
    }, [&](int64_t image) {
      return Image<const S>{weight + (image % p.k * p.c + image / p.k) * p.r * p.s, p.r, p.s, 0, 0};
    }, [&](int64_t image) { return image; },
    [&](int64_t frequency, int64_t place, S re, S im) {
      S *to = ws.data() + frequency * right + place;
      to[0] = re, to[p.c * p.k] = im;
    });
    zoo::Products<S> products(2 * p.n, p.k, 2 * p.c);
#pragma omp parallel for schedule(static)
    for (int64_t frequency = 0; frequency < frequencies; ++frequency) {
      products.own()(2 * p.n, p.k, 2 * p.c, {xs.data() + frequency * left, 2 * p.c, 1},
                     {ws.data() + frequency * right, p.k, 1}, ys.data() + frequency * made, p.k, false);
    }
    count += plane.backward(p.n * k_pairs, work.data(), [&](int64_t pair) {
      int64_t one = pair / k_pairs * p.k + pair % k_pairs * 2;
      return Pair{one, pair % k_pairs * 2 + 1 < p.k ? one + 1 : -1};
    }, [&](int64_t image) {
      return Image<S>{y + image * p.positions(), p.oh, p.ow, 0, 0};
    }, [&](int64_t frequency, int64_t image) { return ys.data() + frequency * made + image; }, made / 2);
    report("multiplications", products.multiplications());
    report("multiplications by filling", products.filling());
    report("multiplications of transforms", 4.0 * double(count));
  }

 private:
  // Zeros before the image serve as zeros behind it too, as what is transformed has no ends.
  static int64_t extent(int64_t size, int64_t before, int64_t positions, int64_t kernel) {
    return zoo::power_of_two(std::max({size + before, positions + kernel - 1 - before, positions, kernel}));
  }

  template <typename S>
  struct Image {
    S *data;
    int64_t height, width, top, left;
  };

  // Numbers of the images that are the real and the imaginary part; -1 for none.
  struct Pair {
    int64_t one, two;
  };

  template <typename S>
  class Plane {
   public:
    Plane(int64_t height, int64_t width) : y_(height), x_(width) {}
    int64_t frequencies() const { return y_.extent * int64_t(x_.kept.size()); }
    // Of a thread: the plane, and a column of it.
    int64_t room() const { return y_.extent * x_.extent + y_.extent; }

    // Transforms images, some pairs side by side; give(frequency, place(image), re, im) takes what comes of each.
    // Returns the complex multiplications.
    template <typename Members, typename Find, typename Place, typename Give>
    int64_t forward(int64_t pairs, zoo::Lanes<S> *memory, Members members, Find find, Place place, Give give) const {
      int64_t count = 0;
#pragma omp parallel for schedule(static) reduction(+ : count)
      for (int64_t first = 0; first < pairs; first += kLanes) {
        int64_t lanes = std::min(kLanes, pairs - first), ops = 0;
        zoo::Lanes<S> *plane = memory + zoo::thread() * room(), *column = plane + y_.extent * x_.extent;
        std::memset(static_cast<void *>(plane), 0, sizeof(zoo::Lanes<S>) * y_.extent * x_.extent);
        int64_t filled = 0, top = 0;
        Pair places[kLanes];
        for (int64_t lane = 0; lane < lanes; ++lane) {
          Pair pair = members(first + lane);
          places[lane] = {place(pair.one), pair.two < 0 ? -1 : place(pair.two)};
          auto one = find(pair.one), two = find(pair.two < 0 ? pair.one : pair.two);
          top = one.top, filled = one.top + one.height;
          for (int64_t i = 0; i < one.height; ++i) {
            zoo::Lanes<S> *row = plane + (i + one.top) * x_.extent + one.left;
            for (int64_t j = 0; j < one.width; ++j) row[j].re[lane] = one.data[i * one.width + j];
            if (pair.two < 0) continue;
            for (int64_t j = 0; j < two.width; ++j) row[j].im[lane] = two.data[i * two.width + j];
          }
        }
        // Rows of zeros stay zeros.
        for (int64_t i = top; i < filled; ++i) ops += zoo::transform(x_, plane + i * x_.extent);
        for (int64_t j = 0; j < x_.extent; ++j) {
          for (int64_t i = 0; i < y_.extent; ++i) column[i] = plane[i * x_.extent + j];
          ops += zoo::transform(y_, column);
          for (int64_t i = 0; i < y_.extent; ++i) plane[i * x_.extent + j] = column[i];
        }
        for (int64_t f = 0; f < frequencies(); ++f) {
          int64_t i = f % y_.extent, j = x_.kept[f / y_.extent];
          const zoo::Lanes<S> &z = plane[i * x_.extent + j], &o = plane[y_.mirror[i] * x_.extent + x_.mirror[j]];
          for (int64_t lane = 0; lane < lanes; ++lane) {
            const S half = S(0.5);
            Pair pair = places[lane];
            give(f, pair.one, half * (z.re[lane] + o.re[lane]), half * (z.im[lane] - o.im[lane]));
            if (pair.two >= 0) give(f, pair.two, half * (z.im[lane] + o.im[lane]), half * (o.re[lane] - z.re[lane]));
          }
        }
        count += ops * lanes;
      }
      return count;
    }

    // The images again; take(frequency, image) finds the real part of each, and `apart` behind it the imaginary one.
    template <typename Members, typename Find, typename Take>
    int64_t backward(int64_t pairs, zoo::Lanes<S> *memory, Members members, Find find, Take take, int64_t apart) const {
      int64_t count = 0;
      const S scale = S(1) / (S(y_.extent) * S(x_.extent));
#pragma omp parallel for schedule(static) reduction(+ : count)
      for (int64_t first = 0; first < pairs; first += kLanes) {
        int64_t lanes = std::min(kLanes, pairs - first), ops = 0;
        zoo::Lanes<S> *plane = memory + zoo::thread() * room(), *column = plane + y_.extent * x_.extent;
        std::memset(static_cast<void *>(plane), 0, sizeof(zoo::Lanes<S>) * y_.extent * x_.extent);
        Pair numbers[kLanes];
        for (int64_t lane = 0; lane < lanes; ++lane) numbers[lane] = members(first + lane);
        for (int64_t f = 0; f < frequencies(); ++f) {
          int64_t i = f % y_.extent, j = x_.kept[f / y_.extent];
          zoo::Lanes<S> &z = plane[i * x_.extent + j], &o = plane[y_.mirror[i] * x_.extent + x_.mirror[j]];
          for (int64_t lane = 0; lane < lanes; ++lane) {
            Pair pair = numbers[lane];
            const S *one = take(f, pair.one), *two = pair.two >= 0 ? take(f, pair.two) : nullptr;
            S a = one[0], b = one[apart], c = two ? two[0] : S(0), d = two ? two[apart] : S(0);
            // The mirrored one first: a frequency that is its own mirror keeps what was computed for it.
            o.re[lane] = a + d, o.im[lane] = c - b;
            z.re[lane] = a - d, z.im[lane] = b + c;
          }
        }
        auto some = find(numbers[0].one);
        for (int64_t j = 0; j < x_.extent; ++j) {
          for (int64_t i = 0; i < y_.extent; ++i) column[i] = plane[i * x_.extent + j];
          ops += zoo::transform_back(y_, column);
          for (int64_t i = 0; i < y_.extent; ++i) plane[i * x_.extent + j] = column[i];
        }
        // Rows that nobody asks for are left.
        for (int64_t i = 0; i < some.height; ++i) ops += zoo::transform_back(x_, plane + i * x_.extent);
        for (int64_t lane = 0; lane < lanes; ++lane) {
          Pair pair = numbers[lane];
          auto one = find(pair.one), two = find(pair.two < 0 ? pair.one : pair.two);
          for (int64_t i = 0; i < one.height; ++i) {
            const zoo::Lanes<S> *row = plane + i * x_.extent;
            for (int64_t j = 0; j < one.width; ++j) one.data[i * one.width + j] = scale * row[j].re[lane];
            if (pair.two < 0) continue;
            for (int64_t j = 0; j < two.width; ++j) two.data[i * two.width + j] = scale * row[j].im[lane];
          }
        }
        count += ops * lanes;
      }
      return count;
    }

   private:
    static constexpr int64_t kLanes = zoo::Lanes<S>::kLanes;
    zoo::Axis<S> y_, x_;
  };

  std::vector<int64_t> pads_;
};
