// The exponential, the logistic function and the hyperbolic tangent of a vector of numbers, without branches.
//
// The standard library's functions take one number each, and cost more than the products of a small recurrent layer.
#ifndef DEEP5_ZOO_VECTOR_MATH_H
#define DEEP5_ZOO_VECTOR_MATH_H

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "product.h"

namespace zoo {

template <typename T>
struct Lanes {
  static_assert(std::is_same_v<T, float> || std::is_same_v<T, double>);
  static constexpr bool kDouble = std::is_same_v<T, double>;
  static constexpr int64_t kCount = kBytes / int64_t(sizeof(T));
  using Whole = std::conditional_t<kDouble, uint64_t, uint32_t>;
  typedef T Vector __attribute__((vector_size(kBytes)));
  typedef Whole Bits __attribute__((vector_size(kBytes)));

  static Vector absolute(Vector x) { return x < 0 ? -x : x; }
  // NaN stays.
  static Vector at_most(Vector x, T limit) { return x > limit ? Vector{} + limit : x; }

  // exp(x) = power (1 + share), for x from -708 (float: -87) to 0: x = n ln 2 + r with |r| <= ln 2 / 2, and the Taylor
  // series of exp(r) - 1, whose first term left out is at most 2^-57 (float: 2^-27) of the sum.
  static void exponential(Vector x, Vector &power, Vector &share) {
    constexpr int kDegree = kDouble ? 13 : 7, kMantissa = kDouble ? 52 : 23;
    constexpr Whole kBias = kDouble ? 1023 : 127;
    // Added, it leaves the nearest whole number in the last bits.
    const T shift = kDouble ? T(6755399441055744.0) : T(12582912.0);
    // ln 2 in two parts; the first has few digits, so that its products with n are exact.
    const T high = kDouble ? T(0x1.62e42fefa38p-1) : T(0x1.62ep-1);
    const T low = kDouble ? T(0x1.ef35793c7673p-45) : T(0x1.0bfbe8e7bcd5fp-15);
    Vector moved = x * T(1.4426950408889634) + shift, n = moved - shift;
    Vector r = (x - n * high) - n * low;
    Bits bits;
    std::memcpy(&bits, &moved, sizeof bits);
    Whole zero;
    std::memcpy(&zero, &shift, sizeof zero);
    bits = (bits - zero + kBias) << kMantissa;
    std::memcpy(&power, &bits, sizeof power);
    Vector sum = Vector{} + kInverse[kDegree];
#pragma GCC unroll 16
    for (int k = kDegree - 1; k >= 1; --k) sum = sum * r + kInverse[k];
    share = sum * r;
  }

  // A function of x: its value, 1 - value, and its slope, each with a relative error of a few units in the last place
  // also where the value rounds to 1.
  struct Bent {
    Vector value, rest, slope;
  };

  // Arguments below -708 (float: -87) count as that.
  static Bent logistic(Vector x) {
    Vector power, share;
    exponential(-at_most(absolute(x), kFar), power, share);
    Vector e = power + power * share, below = T(1) / (T(1) + e), small = e * below;
    return {x < 0 ? small : below, x < 0 ? below : small, small * below};
  }

  // Through exp(-2 |x|) - 1, which has no cancellation near zero. `rest` is 1 - |value|.
  static Bent tangent(Vector x) {
    Vector power, share;
    exponential(T(-2) * at_most(absolute(x), kFar / 2), power, share);
    Vector e = power + power * share, less = power * share + (power - T(1)), below = T(1) / (T(1) + e);
    Vector found = -less / (T(2) + less), rest = 2 * e * below;
    return {x < 0 ? -found : found, rest, 2 * rest * below};
  }

 private:
  static constexpr T kFar = kDouble ? T(708) : T(87);
  static constexpr T kInverse[14] = {1,
                                     1,
                                     T(1.0 / 2),
                                     T(1.0 / 6),
                                     T(1.0 / 24),
                                     T(1.0 / 120),
                                     T(1.0 / 720),
                                     T(1.0 / 5040),
                                     T(1.0 / 40320),
                                     T(1.0 / 362880),
                                     T(1.0 / 3628800),
                                     T(1.0 / 39916800),
                                     T(1.0 / 479001600),
                                     T(1.0 / 6227020800.0)};
};

}  // namespace zoo

#endif
