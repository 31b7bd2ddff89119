// The arguments of an operator's constructor, as Python gives them.
#ifndef DEEP5_ATTRIBUTE_H
#define DEEP5_ATTRIBUTE_H

#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "deep5/operator.h"

namespace deep5::library {

// Whether a whole number, or a floating-point one, is of this type.
template <typename T>
inline constexpr bool whole = std::is_integral_v<T> && !std::is_same_v<T, bool>;
template <typename T>
inline constexpr bool real = std::is_floating_point_v<T> || std::is_same_v<T, bfloat16>;
#if defined(__FLT16_MAX__) || defined(__CUDACC__)
template <>
inline constexpr bool real<float16> = true;
#endif
template <typename T>
inline constexpr bool number = std::is_same_v<T, bool> || whole<T> || real<T>;
template <typename T>
struct is_attribute : std::bool_constant<number<T> || std::is_same_v<T, std::string>> {};
template <typename T>
struct is_attribute<std::vector<T>> : std::bool_constant<number<T>> {};

// An argument of a constructor, which becomes what the constructor takes, or throws where that does not hold it.
struct Attribute {
  enum Kind : int32_t { WHOLE, NUMBER, TRUTH, TEXT, WHOLES, NUMBERS };
  int32_t kind;
  int32_t length;
  const char *shown;  // "name=value"
  const void *data;   // length elements: int64_t, double or char

  template <typename T, typename = std::enable_if_t<is_attribute<T>::value>>
  operator T() const {  // NOLINT: meant to convert
    if constexpr (number<T>) {
      if (length != 1 || kind > TRUTH) refuse(said<T>());
      return element<T>(0);
    } else if constexpr (std::is_same_v<T, std::string>) {
      if (kind != TEXT) refuse("a string");
      return std::string(static_cast<const char *>(data), length);
    } else {
      using E = typename T::value_type;
      if (kind < WHOLES) refuse("a list of numbers");
      T list;
      for (int32_t i = 0; i < length; ++i) list.push_back(element<E>(i));
      return list;
    }
  }

 private:
  [[noreturn]] void refuse(const std::string &allowed) const {
    throw std::invalid_argument("got " + std::string(shown) + "; allowed: " + allowed);
  }
  template <typename T>
  static const char *said() {
    return std::is_same_v<T, bool> ? "a truth value" : whole<T> ? "an integer" : "a number";
  }
  template <typename T>
  T element(int32_t at) const {
    if (kind == NUMBER || kind == NUMBERS) {
      if constexpr (real<T>) return rounded<T>(static_cast<const double *>(data)[at]);
      refuse(std::string(said<T>()) + ", as its type in C++ says");
    }
    int64_t value = static_cast<const int64_t *>(data)[at];
    if constexpr (std::is_same_v<T, bool>) {
      if (value != 0 && value != 1) refuse(said<T>());
      return value == 1;
    } else if constexpr (whole<T>) {
      T made = static_cast<T>(value);
      if (static_cast<int64_t>(made) != value || (made < T(0)) != (value < 0)) {
        refuse("integers from " + std::to_string(std::numeric_limits<T>::min()) + " to " +
               std::to_string(std::numeric_limits<T>::max()));
      }
      return made;
    } else {
      if (kind == TRUTH) refuse(said<T>());
      T made = rounded<T>(static_cast<double>(value));
      // A long double holds all numbers of 64 bits.
      if (static_cast<long double>(widened(made)) != static_cast<long double>(value)) {
        refuse("integers that its type in C++ holds exactly");
      }
      return made;
    }
  }
  template <typename T>
  static double widened(T value) {
    if constexpr (std::is_same_v<T, double>) {
      return value;
    } else {
      return static_cast<float>(value);
    }
  }
  // As C++ rounds it, but not to infinity.
  template <typename T>
  T rounded(double value) const {
    T made = static_cast<T>(value);
    constexpr double infinity = std::numeric_limits<double>::infinity();
    double back = widened(made);
    if ((back == infinity || back == -infinity) && back != value) refuse("numbers that its type in C++ holds");
    return made;
  }
};

template <size_t>
struct attribute_at {
  using type = const Attribute &;
};
template <typename C, typename I>
struct is_made_of;
template <typename C, size_t... I>
struct is_made_of<C, std::index_sequence<I...>> : std::is_constructible<C, typename attribute_at<I>::type...> {};
// Whether a class has one constructor that takes so many attributes.
template <typename C, size_t N>
inline constexpr bool takes = is_made_of<C, std::make_index_sequence<N>>::value;

}  // namespace deep5::library

#endif
