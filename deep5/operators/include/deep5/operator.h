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
// and is false. A Tensor is C-contiguous. An input declared as Strided has strides of its own and is never copied.
// Attributes are the constructor's arguments: int64_t, double, bool, std::string, std::vector<int64_t>,
// std::vector<double>. An exception becomes an error in Python; none may leave an OpenMP region.
#ifndef DEEP5_OPERATOR_H
#define DEEP5_OPERATOR_H

#include <array>
#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
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
struct code;
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

// What Tensor and Strided share.
template <typename T>
class View {
 public:
  explicit View(const deep5_tensor &given) : data_(static_cast<T *>(given.data)), given_(&given) {
    for (int axis = 0; axis < given.rank; ++axis) size_ *= given.shape[axis];
  }
  T *data() const { return data_; }
  int rank() const { return given_->rank; }
  int64_t shape(int axis) const { return given_->shape[axis < 0 ? axis + given_->rank : axis]; }
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
  T &operator[](int64_t index) const { return this->data_[index]; }
  T *begin() const { return this->data_; }
  T *end() const { return this->data_ + this->size_; }
  template <typename... Indices>
  T &operator()(Indices... indices) const {
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
    if (this->given_->strides) return this->given_->strides[axis];
    int64_t step = 1;
    for (int after = axis + 1; after < this->given_->rank; ++after) step *= this->given_->shape[after];
    return step;
  }
  template <typename... Indices>
  T &operator()(Indices... indices) const {
    int64_t place = 0;
    int axis = 0;
    ((place += stride(axis++) * static_cast<int64_t>(indices)), ...);
    return this->data_[place];
  }
};

// The base of operators.
class Operator {
 public:
  // Adds to the counter of this name; may be called from any thread.
  void report(const char *name, double amount) {
    std::lock_guard<std::mutex> guard(lock_);
    counters_[name] += amount;
  }
  // The device's stream of the call that is running; nullptr on the host.
  static void *&stream() {
    static thread_local void *current = nullptr;
    return current;
  }

 private:
  friend struct Access;
  std::mutex lock_;
  std::map<std::string, double> counters_;
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

// ---------------------------------------------------------------------------------------------------------------------
// What follows connects a class to Python; operators do not use it.

struct Attribute {
  int32_t kind;  // 0 whole number, 1 number, 2 truth value, 3 text, 4 whole numbers, 5 numbers
  int32_t length;
  int64_t whole;
  double number;
  const void *data;
};

template <typename A>
A attribute(const Attribute &given) {
  if constexpr (std::is_same_v<A, std::string>) {
    return std::string(static_cast<const char *>(given.data), given.length);
  } else if constexpr (std::is_same_v<A, std::vector<int64_t>>) {
    auto first = static_cast<const int64_t *>(given.data);
    return A(first, first + given.length);
  } else if constexpr (std::is_same_v<A, std::vector<double>>) {
    auto first = static_cast<const double *>(given.data);
    return A(first, first + given.length);
  } else if constexpr (std::is_same_v<A, double>) {
    return given.number;
  } else {
    return static_cast<A>(given.whole);
  }
}

inline std::string &last_error() {
  static thread_local std::string text;
  return text;
}

template <typename F>
int guarded(F &&call) {
  try {
    call();
    return 0;
  } catch (const std::exception &error) {
    last_error() = error.what();
  } catch (...) {
    last_error() = "it threw something that is no std::exception";
  }
  return 1;
}

template <typename C, typename = void>
struct has_backward : std::false_type {};
template <typename C>
struct has_backward<C, std::void_t<decltype(&C::backward)>> : std::true_type {};

template <typename C, typename R, typename... A>
void describe(R (C::*)(A...), int32_t *out, int32_t *count) {
  static_assert(sizeof...(A) <= DEEP5_MAX_TENSORS, "an operator takes at most 64 tensors");
  *count = sizeof...(A);
  int at = 0;
  ((out[at++] = code<std::remove_const_t<typename std::decay_t<A>::element>>::value |
                (std::is_const_v<typename std::decay_t<A>::element> ? 1 << 8 : 0) |
                (std::decay_t<A>::strided ? 1 << 9 : 0)),
   ...);
}

template <typename C, typename R, typename... A, size_t... I>
void apply(C &self, R (C::*method)(A...), const deep5_tensor *given, std::index_sequence<I...>) {
  (self.*method)(std::decay_t<A>(given[I])...);
}

template <typename C, typename R, typename... A>
void apply(C &self, R (C::*method)(A...), const deep5_tensor *given) {
  apply(self, method, given, std::index_sequence_for<A...>{});
}

struct Access {
  static int take(Operator &op, const char **names, double *values, int room) {
    static thread_local std::map<std::string, double> taken;
    std::lock_guard<std::mutex> guard(op.lock_);
    if (static_cast<int>(op.counters_.size()) > room) return static_cast<int>(op.counters_.size());
    taken.swap(op.counters_);
    op.counters_.clear();
    int at = 0;
    for (auto &entry : taken) names[at] = entry.first.c_str(), values[at++] = entry.second;
    return at;
  }
};

using Ask = int (*)(void *token, const deep5_tensor *inputs, deep5_tensor *outputs);

// An operator in one direction; begins with what shims know of it.
struct Bound {
  deep5_kernel kernel;
  int (*call)(void *op, const deep5_tensor *tensors);
  void *op;
  void *token;
  Ask ask;  // Python's word on the shapes of outputs
  int32_t arguments;
  int32_t places[DEEP5_MAX_TENSORS];  // of the call's arguments: number of the input, then of the outputs; -1: none
  std::mutex *lock;
  std::vector<std::pair<std::vector<int64_t>, std::vector<int64_t>>> *known;  // shapes of inputs, of outputs
};

inline const char *bound_error(deep5_kernel *) { return last_error().c_str(); }

inline int bound_shapes(deep5_kernel *self, const deep5_tensor *inputs, deep5_tensor *outputs) {
  auto bound = reinterpret_cast<Bound *>(self);
  std::vector<int64_t> key;
  for (int i = 0; i < self->inputs; ++i) {
    key.push_back(inputs[i].rank);
    key.insert(key.end(), inputs[i].shape, inputs[i].shape + inputs[i].rank);
  }
  {
    std::lock_guard<std::mutex> guard(*bound->lock);
    for (auto &entry : *bound->known) {
      if (entry.first != key) continue;
      const int64_t *next = entry.second.data();
      for (int i = 0; i < self->outputs; ++i) {
        outputs[i].rank = static_cast<int32_t>(*next++);
        for (int axis = 0; axis < outputs[i].rank; ++axis) const_cast<int64_t *>(outputs[i].shape)[axis] = *next++;
      }
      return 0;
    }
  }
  // Without the lock: Python takes its own.
  if (bound->ask(bound->token, inputs, outputs)) {
    last_error() = "the shapes of the outputs cannot be found";
    return 1;
  }
  std::vector<int64_t> found;
  for (int i = 0; i < self->outputs; ++i) {
    found.push_back(outputs[i].rank);
    found.insert(found.end(), outputs[i].shape, outputs[i].shape + outputs[i].rank);
  }
  std::lock_guard<std::mutex> guard(*bound->lock);
  if (bound->known->size() >= 64) bound->known->clear();
  bound->known->emplace_back(std::move(key), std::move(found));
  return 0;
}

inline int bound_run(deep5_kernel *self, const deep5_tensor *inputs, const deep5_tensor *outputs, void *stream) {
  auto bound = reinterpret_cast<Bound *>(self);
  static const int64_t none[1] = {1};
  deep5_tensor tensors[DEEP5_MAX_TENSORS];
  for (int i = 0; i < bound->arguments; ++i) {
    int place = bound->places[i];
    if (place < 0) {
      tensors[i] = deep5_tensor{nullptr, none, nullptr, 1, 0};
    } else {
      tensors[i] = place < self->inputs ? inputs[place] : outputs[place - self->inputs];
    }
  }
  Operator::stream() = stream;
#if defined(_OPENMP)
  if (self->threads && *self->threads > 0) omp_set_num_threads(*self->threads);
#endif
  int code = bound->call(bound->op, tensors);
#if defined(__CUDACC__)
  if (!code) {
    cudaError_t launched = cudaGetLastError();
    if (launched != cudaSuccess) {
      last_error() = cudaGetErrorString(launched);
      return 1;
    }
  }
#endif
  return code;
}

}  // namespace deep5

// A library holds one class for one element type. A is the list of the attributes' types.
#define DEEP5_LIBRARY(CLASS, ...)                                                                              \
  namespace deep5_library {                                                                                    \
  using Class = CLASS;                                                                                         \
  using Types = std::tuple<__VA_ARGS__>;                                                                       \
  template <size_t... I>                                                                                       \
  Class *make(const deep5::Attribute *given, std::index_sequence<I...>) {                                      \
    (void)given;                                                                                               \
    return new Class(deep5::attribute<std::tuple_element_t<I, Types>>(given[I])...);                           \
  }                                                                                                            \
  int forward(void *op, const deep5_tensor *given) {                                                           \
    return deep5::guarded([&] { deep5::apply(*static_cast<Class *>(op), &Class::forward, given); });           \
  }                                                                                                            \
  template <typename C>                                                                                        \
  int backward(void *op, const deep5_tensor *given) {                                                          \
    if constexpr (deep5::has_backward<C>::value) {                                                             \
      return deep5::guarded([&] { deep5::apply(*static_cast<C *>(op), &C::backward, given); });                \
    } else {                                                                                                   \
      return 1;                                                                                                \
    }                                                                                                          \
  }                                                                                                            \
  template <typename C>                                                                                        \
  void describe_backward(int32_t *out, int32_t *count) {                                                       \
    if constexpr (deep5::has_backward<C>::value) {                                                             \
      deep5::describe(&C::backward, out, count);                                                               \
    } else {                                                                                                   \
      *count = -1;                                                                                             \
    }                                                                                                          \
  }                                                                                                            \
  }                                                                                                            \
  _Pragma("GCC visibility push(default)") extern "C" {                                                         \
  void deep5_describe(int direction, int32_t *out, int32_t *count) {                                           \
    if (direction == 0) {                                                                                      \
      deep5::describe(&deep5_library::Class::forward, out, count);                                             \
    } else {                                                                                                   \
      deep5_library::describe_backward<deep5_library::Class>(out, count);                                      \
    }                                                                                                          \
  }                                                                                                            \
  void *deep5_create(const deep5::Attribute *given) {                                                          \
    void *made = nullptr;                                                                                      \
    deep5::guarded([&] {                                                                                       \
      made = deep5_library::make(given, std::make_index_sequence<std::tuple_size_v<deep5_library::Types>>{});  \
    });                                                                                                        \
    return made;                                                                                               \
  }                                                                                                            \
  void deep5_destroy(void *op) { delete static_cast<deep5_library::Class *>(op); }                             \
  const char *deep5_error() { return deep5::last_error().c_str(); }                                            \
  int deep5_report(void *op, const char **names, double *values, int room) {                                   \
    return deep5::Access::take(*static_cast<deep5_library::Class *>(op), names, values, room);                 \
  }                                                                                                            \
  deep5_kernel *deep5_bind(void *op, int direction, int32_t inputs, int32_t outputs, const int32_t *dtypes,     \
                           const int32_t *strided, int32_t arguments, const int32_t *places, void *token,      \
                           deep5::Ask ask, const int32_t *threads) {                                           \
    auto bound = new deep5::Bound();                                                                           \
    bound->kernel.inputs = inputs;                                                                             \
    bound->kernel.outputs = outputs;                                                                           \
    for (int i = 0; i < inputs + outputs; ++i) bound->kernel.dtypes[i] = dtypes[i];                            \
    for (int i = 0; i < inputs; ++i) bound->kernel.strided[i] = strided[i];                                    \
    bound->kernel.shapes = deep5::bound_shapes;                                                                \
    bound->kernel.run = deep5::bound_run;                                                                      \
    bound->kernel.error = deep5::bound_error;                                                                  \
    bound->kernel.threads = threads;                                                                           \
    bound->call = direction == 0 ? deep5_library::forward : deep5_library::backward<deep5_library::Class>;     \
    bound->op = op;                                                                                            \
    bound->token = token;                                                                                      \
    bound->ask = ask;                                                                                          \
    bound->arguments = arguments;                                                                              \
    for (int i = 0; i < arguments; ++i) bound->places[i] = places[i];                                          \
    bound->lock = new std::mutex;                                                                              \
    bound->known = new std::vector<std::pair<std::vector<int64_t>, std::vector<int64_t>>>;                     \
    return &bound->kernel;                                                                                     \
  }                                                                                                            \
  void deep5_unbind(deep5_kernel *kernel) {                                                                    \
    auto bound = reinterpret_cast<deep5::Bound *>(kernel);                                                     \
    delete bound->lock;                                                                                        \
    delete bound->known;                                                                                       \
    delete bound;                                                                                              \
  }                                                                                                            \
  }                                                                                                            \
  _Pragma("GCC visibility pop")

#endif
