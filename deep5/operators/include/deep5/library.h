// What connects a class of deep5/operator.h to Python; operators do not use it.
#ifndef DEEP5_LIBRARY_H
#define DEEP5_LIBRARY_H

#include <cstdint>
#include <exception>
#include <map>
#include <mutex>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "deep5/attribute.h"
#include "deep5/operator.h"

namespace deep5::library {

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
    last_error() = "it threw something that is not a std::exception";
  }
  return 1;
}

// Of the member functions `forward` and `backward`: whether a class has any of the name (which it then shares with
// `Other`, so that nobody knows whose is meant), and whether that is a single one that others may call.
#define DEEP5_FUNCTION(NAME, FUNCTION)                                                                                 \
  struct NAME {                                                                                                        \
    struct Other {                                                                                                     \
      int FUNCTION;                                                                                                    \
    };                                                                                                                 \
    template <typename C>                                                                                              \
    struct Both : C, Other {};                                                                                         \
    template <typename C, typename = void>                                                                             \
    struct is_single : std::false_type {};                                                                             \
    template <typename C>                                                                                              \
    struct is_single<C, std::void_t<decltype(&C::FUNCTION)>> : std::true_type {};                                      \
    template <typename C>                                                                                              \
    static constexpr bool exists() {                                                                                   \
      if constexpr (std::is_final_v<C>) {                                                                              \
        return is_single<C>::value;                                                                                    \
      } else {                                                                                                         \
        return !is_single<Both<C>>::value;                                                                             \
      }                                                                                                                \
    }                                                                                                                  \
    template <typename C>                                                                                              \
    static constexpr bool checked() {                                                                                  \
      if constexpr (is_single<C>::value) {                                                                             \
        static_assert(method<decltype(&C::FUNCTION)>::value,                                                           \
                      "deep5: " #FUNCTION " takes or returns something else than tensors; allowed: a member "          \
                      "function that returns nothing and takes only deep5::Tensor and deep5::Strided");                \
        return method<decltype(&C::FUNCTION)>::value;                                                                  \
      } else {                                                                                                         \
        static_assert(!exists<C>(),                                                                                    \
                      "deep5: " #FUNCTION " is overloaded, a template or not public; allowed: one public function");   \
        return false;                                                                                                  \
      }                                                                                                                \
    }                                                                                                                  \
    template <typename C>                                                                                              \
    static constexpr auto of() {                                                                                       \
      return &C::FUNCTION;                                                                                             \
    }                                                                                                                  \
  }

template <typename T>
struct is_tensor : std::false_type {};
template <typename T>
struct is_tensor<Tensor<T>> : std::true_type {};
template <typename T>
struct is_tensor<Strided<T>> : std::true_type {};

// A tensor that lives as long as the call, as a function takes it: by value or by any reference.
template <typename A>
struct Passed {
  std::decay_t<A> tensor;
  A get() { return static_cast<A &&>(tensor); }
};

// Of the type of a pointer to a member function: whether it takes tensors, which ones, and how it is called.
template <typename M>
struct method : std::false_type {};
template <typename B, typename... A>
struct method<void (B::*)(A...)> : std::bool_constant<(is_tensor<std::decay_t<A>>::value && ...)> {
  // Writes no more codes than there may be tensors, but says how many there are.
  static int32_t describe(int32_t *out) {
    int at = 0;
    for (int32_t each : {0, (code<std::remove_const_t<typename std::decay_t<A>::element>>::value |
                             (std::is_const_v<typename std::decay_t<A>::element> ? 1 << 8 : 0) |
                             (std::decay_t<A>::strided ? 1 << 9 : 0))...}) {
      if (at && at <= DEEP5_MAX_TENSORS) out[at - 1] = each;
      ++at;
    }
    return sizeof...(A);
  }
  template <typename C, typename M>
  static void call(C &self, M function, const deep5_tensor *given) {
    call(self, function, given, std::index_sequence_for<A...>{});
  }
  template <typename C, typename M, size_t... I>
  static void call(C &self, M function, const deep5_tensor *given, std::index_sequence<I...>) {
    (self.*function)(Passed<A>{std::decay_t<A>(given[I])}.get()...);
  }
};
template <typename B, typename... A>
struct method<void (B::*)(A...) const> : method<void (B::*)(A...)> {};
template <typename B, typename... A>
struct method<void (B::*)(A...) noexcept> : method<void (B::*)(A...)> {};
template <typename B, typename... A>
struct method<void (B::*)(A...) const noexcept> : method<void (B::*)(A...)> {};

DEEP5_FUNCTION(Forward, forward);
DEEP5_FUNCTION(Backward, backward);
#undef DEEP5_FUNCTION

struct Access {
  static int take(const Operator &op, const char **names, double *values, int room) {
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

inline deep5_kernel *bind(void *op, int (*call)(void *, const deep5_tensor *), int32_t inputs, int32_t outputs,
                          const int32_t *dtypes, const int32_t *strided, int32_t arguments, const int32_t *places,
                          void *token, Ask ask, const int32_t *threads) {
  auto bound = new Bound();
  bound->kernel.inputs = inputs;
  bound->kernel.outputs = outputs;
  for (int i = 0; i < inputs + outputs; ++i) bound->kernel.dtypes[i] = dtypes[i];
  for (int i = 0; i < inputs; ++i) bound->kernel.strided[i] = strided[i];
  bound->kernel.shapes = bound_shapes;
  bound->kernel.run = bound_run;
  bound->kernel.error = bound_error;
  bound->kernel.threads = threads;
  bound->call = call;
  bound->op = op;
  bound->token = token;
  bound->ask = ask;
  bound->arguments = arguments;
  for (int i = 0; i < arguments; ++i) bound->places[i] = places[i];
  bound->lock = new std::mutex;
  bound->known = new std::vector<std::pair<std::vector<int64_t>, std::vector<int64_t>>>;
  return &bound->kernel;
}

inline void unbind(deep5_kernel *kernel) {
  auto bound = reinterpret_cast<Bound *>(kernel);
  delete bound->lock;
  delete bound->known;
  delete bound;
}

// What a library has of its class, behind pointers whose types Python does not know.
template <typename C>
struct Library {
  static_assert(std::is_convertible_v<C *, Operator *>, "deep5: the class has no public base deep5::Operator");
  static_assert(Forward::exists<C>(), "deep5: the class has no forward");

  template <size_t... I>
  static void *make(const Attribute *given, std::index_sequence<I...>) {
    (void)given;
    void *made = nullptr;
    if constexpr (takes<C, sizeof...(I)>) guarded([&] { made = new C(given[I]...); });
    return made;
  }
  template <typename F>
  static int32_t describe(int32_t *out) {
    if constexpr (F::template checked<C>()) {
      return method<decltype(F::template of<C>())>::describe(out);
    } else {
      return -1;
    }
  }
  template <typename F>
  static int run(void *op, const deep5_tensor *given) {
    if constexpr (F::template checked<C>()) {
      constexpr auto function = F::template of<C>();
      return guarded([&] { method<decltype(F::template of<C>())>::call(*static_cast<C *>(op), function, given); });
    } else {
      return 1;
    }
  }
};

}  // namespace deep5::library

// A library holds one class for one element type, whose constructor takes so many attributes.
#define DEEP5_LIBRARY(CLASS, ATTRIBUTES)                                                                               \
  _Pragma("GCC visibility push(default)") extern "C" {                                                                 \
  int32_t deep5_describe(int direction, int32_t *out) {                                                                \
    return direction == 0 ? deep5::library::Library<CLASS>::describe<deep5::library::Forward>(out)                     \
                          : deep5::library::Library<CLASS>::describe<deep5::library::Backward>(out);                   \
  }                                                                                                                    \
  void *deep5_create(const deep5::library::Attribute *given) {                                                         \
    return deep5::library::Library<CLASS>::make(given, std::make_index_sequence<ATTRIBUTES>{});                        \
  }                                                                                                                    \
  void deep5_destroy(void *op) { delete static_cast<CLASS *>(op); }                                                    \
  const char *deep5_error() { return deep5::library::last_error().c_str(); }                                           \
  int deep5_report(void *op, const char **names, double *values, int room) {                                           \
    return deep5::library::Access::take(*static_cast<CLASS *>(op), names, values, room);                               \
  }                                                                                                                    \
  deep5_kernel *deep5_bind(void *op, int direction, int32_t inputs, int32_t outputs, const int32_t *dtypes,            \
                           const int32_t *strided, int32_t arguments, const int32_t *places, void *token,              \
                           deep5::library::Ask ask, const int32_t *threads) {                                          \
    auto call = direction == 0 ? deep5::library::Library<CLASS>::run<deep5::library::Forward>                          \
                               : deep5::library::Library<CLASS>::run<deep5::library::Backward>;                        \
    return deep5::library::bind(op, call, inputs, outputs, dtypes, strided, arguments, places, token, ask, threads);   \
  }                                                                                                                    \
  void deep5_unbind(deep5_kernel *kernel) { deep5::library::unbind(kernel); }                                          \
  }                                                                                                                    \
  _Pragma("GCC visibility pop")

#endif
