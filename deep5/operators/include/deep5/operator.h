// deep5's header for operators in C++: a class template, its tensors, and counters.
//
//   #include <deep5/operator.h>
//
//   template <typename T>
//   class IPow : public deep5::Operator {
//    public:
//     explicit IPow(int64_t power) : power_(power) {}
//     void forward(deep5::Tensor<const T> x, deep5::Tensor<T> y) {
//   #pragma omp parallel for
//       for (int64_t i = 0; i < x.size(); ++i) y[i] = deep5::power(x[i], power_);
//     }
//     void backward(deep5::Tensor<const T> dy, deep5::Tensor<const T> x, deep5::Tensor<const T> y,
//                   deep5::Tensor<T> dx) { ... }
//    private:
//     int64_t power_;
//   };
//
// forward takes the inputs, then the outputs. backward takes the gradients by the floating-point outputs, the inputs,
// the outputs, then the gradients by the floating-point inputs, to be written; one that nobody wants has no memory
// and is false. A Tensor is C-contiguous. An input declared as Strided has strides of its own, and lies where it lay
// on NumPy and PyTorch. Attributes are the constructor's arguments: numbers (int64_t, double, ...), bool, std::string,
// and std::vector of numbers; one that the argument's type does not hold is refused. Both functions may be const,
// noexcept and inherited.
// An exception becomes an error in Python; none may leave an OpenMP region.
#ifndef DEEP5_OPERATOR_H
#define DEEP5_OPERATOR_H

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#if defined(_OPENMP)
#include <omp.h>
#endif

#include "deep5/kernel.h"

#if defined(__CUDACC__)
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#endif

namespace deep5 {

#if defined(__CUDACC__)
using float16 = __half;
using bfloat16 = __nv_bfloat16;
#else
#if defined(__FLT16_MAX__)
using float16 = _Float16;
#endif
// Stored in 16 bits, computed with in 32: every operation rounds to nearest, ties to even.
class bfloat16 {
 public:
  bfloat16() = default;
  bfloat16(float value) {  // NOLINT: meant to convert
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    if ((bits & 0x7fffffffu) > 0x7f800000u) {
      bits_ = static_cast<uint16_t>((bits >> 16) | 0x40u);
    } else {
      bits_ = static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
    }
  }
  operator float() const {
    uint32_t bits = static_cast<uint32_t>(bits_) << 16;
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
  }
  bfloat16 &operator+=(float other) { return *this = *this + other; }
  bfloat16 &operator-=(float other) { return *this = *this - other; }
  bfloat16 &operator*=(float other) { return *this = *this * other; }
  bfloat16 &operator/=(float other) { return *this = *this / other; }

 private:
  uint16_t bits_;
};
#endif

template <typename T>
struct code {
  static_assert(sizeof(T) == 0, "deep5: a tensor holds elements of a type that there is none of in Python");
};
#define DEEP5_CODE(type, number)         \
  template <>                            \
  struct code<type> {                    \
    static constexpr int32_t value = number; \
  }
DEEP5_CODE(float, DEEP5_FLOAT32);
DEEP5_CODE(uint8_t, DEEP5_UINT8);
DEEP5_CODE(int8_t, DEEP5_INT8);
DEEP5_CODE(uint16_t, DEEP5_UINT16);
DEEP5_CODE(int16_t, DEEP5_INT16);
DEEP5_CODE(int32_t, DEEP5_INT32);
DEEP5_CODE(int64_t, DEEP5_INT64);
DEEP5_CODE(bool, DEEP5_BOOL);
#if defined(__FLT16_MAX__) || defined(__CUDACC__)
DEEP5_CODE(float16, DEEP5_FLOAT16);
#endif
DEEP5_CODE(double, DEEP5_FLOAT64);
DEEP5_CODE(uint32_t, DEEP5_UINT32);
DEEP5_CODE(uint64_t, DEEP5_UINT64);
DEEP5_CODE(bfloat16, DEEP5_BFLOAT16);
#undef DEEP5_CODE

// What checks compile with, for a process of their own: an index outside of a tensor ends it, and says which.
#if defined(DEEP5_BOUNDS)
[[noreturn]] inline void outside(const std::string &what, const deep5_tensor &given) {
  std::string shape;
  for (int axis = 0; axis < given.rank; ++axis) shape += (axis ? ", " : "") + std::to_string(given.shape[axis]);
  std::fprintf(stderr, "%s a tensor of the shape [%s]\n", what.c_str(), shape.c_str());
  std::fflush(stderr);
  std::_Exit(DEEP5_BOUNDS);
}
inline void check_axis(int64_t axis, const deep5_tensor &given) {
  if (axis < -given.rank || axis >= given.rank) outside("axis " + std::to_string(axis) + " of", given);
}
inline void check_memory(const deep5_tensor &given) {
  for (int axis = 0; axis < given.rank; ++axis) {
    if (given.shape[axis] == 0) return;  // nothing is kept for no elements
  }
  if (!given.data) outside("the gradient by an input that needs none, which is false (`if (dx)`), as", given);
}
inline void check_index(int64_t index, int64_t size, const deep5_tensor &given) {
  if (given.data && index >= 0 && index < size) return;
  check_memory(given);
  outside("element [" + std::to_string(index) + "] of", given);
}
template <typename... Indices>
void check_indices(const deep5_tensor &given, Indices... indices) {
  int axis = 0;
  bool inside = given.data && sizeof...(indices) == static_cast<size_t>(given.rank);
  ((inside = inside && static_cast<int64_t>(indices) >= 0 && static_cast<int64_t>(indices) < given.shape[axis++]), ...);
  if (inside) return;
  check_memory(given);
  std::string place;
  ((place += (place.empty() ? "" : ", ") + std::to_string(indices)), ...);
  outside("element (" + place + ") of", given);
}
#define DEEP5_CHECKED(CHECK) CHECK
#else
#define DEEP5_CHECKED(CHECK)
#endif

// What Tensor and Strided share.
template <typename T>
class View {
 public:
  explicit View(const deep5_tensor &given) : data_(static_cast<T *>(given.data)), given_(&given) {
    for (int axis = 0; axis < given.rank; ++axis) size_ *= given.shape[axis];
  }
  T *data() const { return data_; }
  int rank() const { return given_->rank; }
  int64_t shape(int axis) const {
    DEEP5_CHECKED(check_axis(axis, *given_);)
    return given_->shape[axis < 0 ? axis + given_->rank : axis];
  }
  const int64_t *shape() const { return given_->shape; }
  int64_t size() const { return size_; }
  // Whether it has memory: the gradient by an input that nobody wants has none.
  explicit operator bool() const { return data_ != nullptr || size_ == 0; }

 protected:
  T *data_;
  const deep5_tensor *given_;
  int64_t size_ = 1;
};

// C-contiguous: x[i] is the i-th element in C order, x(i, j) the one at row i and column j.
template <typename T>
class Tensor : public View<T> {
 public:
  static constexpr bool strided = false;
  using element = T;
  using View<T>::View;
  T &operator[](int64_t index) const {
    DEEP5_CHECKED(check_index(index, this->size_, *this->given_);)
    return this->data_[index];
  }
  T *begin() const { return this->data_; }
  T *end() const { return this->data_ + this->size_; }
  template <typename... Indices>
  T &operator()(Indices... indices) const {
    DEEP5_CHECKED(check_indices(*this->given_, static_cast<int64_t>(indices)...);)
    int64_t place = 0;
    int axis = 0;
    ((place = place * this->given_->shape[axis++] + static_cast<int64_t>(indices)), ...);
    return this->data_[place];
  }
};

// Of any strides: x(i, j) alone.
template <typename T>
class Strided : public View<T> {
 public:
  static constexpr bool strided = true;
  using element = T;
  using View<T>::View;
  // In elements.
  int64_t stride(int axis) const {
    DEEP5_CHECKED(check_axis(axis, *this->given_);)
    if (this->given_->strides) return this->given_->strides[axis];
    int64_t step = 1;
    for (int after = axis + 1; after < this->given_->rank; ++after) step *= this->given_->shape[after];
    return step;
  }
  template <typename... Indices>
  T &operator()(Indices... indices) const {
    DEEP5_CHECKED(check_indices(*this->given_, static_cast<int64_t>(indices)...);)
    int64_t place = 0;
    int axis = 0;
    ((place += stride(axis++) * static_cast<int64_t>(indices)), ...);
    return this->data_[place];
  }
};

namespace library {
struct Access;
}

// The base of operators.
class Operator {
 public:
  // Adds to the counter of this name; may be called from any thread.
  void report(const char *name, double amount) const {
    std::lock_guard<std::mutex> guard(lock_);
    counters_[name] += amount;
  }
  // Of all amounts of this name the counter holds the largest; a name is given to one of both functions.
  void report_largest(const char *name, double amount) const {
    std::lock_guard<std::mutex> guard(lock_);
    auto found = counters_.emplace(name, amount).first;
    if (amount > found->second) found->second = amount;
  }
  // The device's stream of the call that is running; nullptr on the host.
  static void *&stream() {
    static thread_local void *current = nullptr;
    return current;
  }

 private:
  friend struct library::Access;
  mutable std::mutex lock_;
  mutable std::map<std::string, double> counters_;
};

// x to the power of a whole number by repeated squaring: exact where the result is.
template <typename T>
T power(T x, int64_t exponent) {
  bool inverse = exponent < 0;
  uint64_t left = inverse ? 0 - static_cast<uint64_t>(exponent) : static_cast<uint64_t>(exponent);
  T result = T(1), square = x;
  for (; left; left >>= 1) {
    if (left & 1) result = static_cast<T>(result * square);
    if (left > 1) square = static_cast<T>(square * square);
  }
  return inverse ? static_cast<T>(T(1) / result) : result;
}

}  // namespace deep5

#endif
