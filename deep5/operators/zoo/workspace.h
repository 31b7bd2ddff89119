// Temporary memory that an operator asks for while it runs, counted: what a limit on workspace is about.
#ifndef DEEP5_ZOO_WORKSPACE_H
#define DEEP5_ZOO_WORKSPACE_H

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace zoo {

// Bytes that the calls of this thread hold now, and the most that they held since `begin`. Memory is asked for by the
// thread that was called, before it starts others: counting needs no lock.
struct Workspace {
  int64_t held = 0, most = 0;
  static Workspace &own() {
    static thread_local Workspace counted;
    return counted;
  }
  static void begin() { own().most = own().held; }
  static double peak() { return static_cast<double>(own().most); }
  void add(int64_t bytes) {
    held += bytes;
    most = std::max(most, held);
  }
};

// Memory that is not set to zeros when it is made.
template <typename T>
class Memory {
 public:
  explicit Memory(int64_t size) : size_(std::max<int64_t>(size, 1)), data_(new T[static_cast<size_t>(size_)]) {
    Workspace::own().add(bytes());
  }
  ~Memory() {
    delete[] data_;
    Workspace::own().add(-bytes());
  }
  Memory(const Memory &) = delete;
  Memory &operator=(const Memory &) = delete;
  T *data() const { return data_; }

 private:
  int64_t bytes() const { return size_ * static_cast<int64_t>(sizeof(T)); }
  int64_t size_;
  T *data_;
};

}  // namespace zoo

#endif
