// Arguments that are integer arrays: any object with a buffer of the right type (an ndarray, an
// array.array), read in place for the length of the call.
// Thread: interpreter lock held.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>
#include <utility>

namespace tokenspeed {

// A held buffer of contiguous T with at most MaxDims dimensions; empty for None where it may be.
template <class T, int MaxDims, bool MayBeNone>
class BufferOf {
 public:
  BufferOf() = default;
  BufferOf(BufferOf&& other) noexcept : buffer_(std::exchange(other.buffer_, Py_buffer{})) {}
  BufferOf& operator=(BufferOf&& other) noexcept {
    std::swap(buffer_, other.buffer_);
    return *this;
  }
  ~BufferOf() {
    if (buffer_.obj != nullptr) PyBuffer_Release(&buffer_);
  }

  // Returns: false, without a Python error, when the object is of another kind.
  bool Open(PyObject* object) {
    if (MayBeNone && object == Py_None) return true;
    if (PyObject_GetBuffer(object, &buffer_, PyBUF_FORMAT | PyBUF_C_CONTIGUOUS) != 0) {
      PyErr_Clear();
      buffer_ = Py_buffer{};
      return false;
    }
    return buffer_.itemsize == sizeof(T) && buffer_.ndim >= 1 && buffer_.ndim <= MaxDims &&
           std::strchr(kFormats, buffer_.format[std::strlen(buffer_.format) - 1]) != nullptr;
  }

  std::span<const T> span() const {
    return {static_cast<const T*>(buffer_.buf), static_cast<size_t>(buffer_.len) / sizeof(T)};
  }

 private:
  static constexpr const char* kFormats = std::is_same_v<T, bool> ? "?" : "il";
  Py_buffer buffer_{};
};

using Ids = BufferOf<int32_t, 1, false>;
using IdRows = BufferOf<int32_t, 2, false>;
using MaybeIds = BufferOf<int32_t, 1, true>;
using MaybeFlags = BufferOf<bool, 1, true>;

}  // namespace tokenspeed

namespace nanobind::detail {

template <class T, int MaxDims, bool MayBeNone>
struct type_caster<tokenspeed::BufferOf<T, MaxDims, MayBeNone>> {
  using Array = std::conditional_t<MaxDims == 1, ndarray<const T, ndim<1>, c_contig, device::cpu>,
                                   ndarray<const T, c_contig, device::cpu>>;
  using Held = tokenspeed::BufferOf<T, MaxDims, MayBeNone>;
  NB_TYPE_CASTER(Held, make_caster<Array>::Name)
  bool from_python(handle source, uint8_t, cleanup_list*) noexcept {
    return value.Open(source.ptr());
  }
};

}  // namespace nanobind::detail
