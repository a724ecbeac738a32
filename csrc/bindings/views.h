// Read-only numpy views of a plan's or a result's vectors, made once and handed out again.
//
// A View owns one set of vectors and one array per vector; a Ring owns Views and fills one again
// only when nobody outside holds the View or one of its arrays. So an array never changes under
// its reader, and a step in which no size changed makes no Python object at all.
//
//   Ring -> View -> arrays -> capsule -> vectors      (no cycle)
//
// Thread: interpreter lock held.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <utility>
#include <vector>

#include "bindings/bind.h"

namespace tokenspeed {

// What a getter returns; its type in the stub is Array's.
template <class Array>
struct CachedArray {
  nanobind::object object;
};

template <class Data>
class View {
 public:
  View() : data_(std::make_shared<Data>()) {
    auto* owner = new std::shared_ptr<Data>(data_);
    owner_ = nanobind::capsule(
        owner, [](void* p) noexcept { delete static_cast<std::shared_ptr<Data>*>(p); });
  }

  const std::shared_ptr<Data>& data() const { return data_; }

  // Returns array number `which` over (shape[0], ...) values at `values`, which may be reallocated
  // between calls only while IsFree(). `capacity` counts rows.
  template <class Array, size_t N>
  nanobind::object Get(size_t which, const void* values, const size_t (&shape)[N],
                       size_t capacity) {
    if (slots_.size() <= which) slots_.resize(which + 1);
    Slot& slot = slots_[which];
    const size_t width = N == 1 ? 1 : shape[N - 1] * (N == 3 ? shape[1] : 1);
    if (slot.values != values || slot.capacity != capacity || slot.width != width ||
        !slot.whole.is_valid()) {
      size_t whole[N];
      std::copy(shape, shape + N, whole);
      whole[0] = capacity;
      using T = typename Array::Scalar;
      slot = {values, capacity, width, shape[0], {}, {}};
      slot.whole = nanobind::cast(Array(static_cast<const T*>(values), N, whole, owner_));
    } else if (slot.rows == shape[0] && slot.part.is_valid()) {
      return slot.part;
    }
    slot.rows = shape[0];
    slot.part = nanobind::object();
    slot.part = slot.whole[nanobind::slice(static_cast<Py_ssize_t>(shape[0]))];
    return slot.part;
  }

  // Says whether only this view and its Python object (one reference of the ring) are left.
  bool IsFree() const {
    if (data_.use_count() > 2) return false;  // this and the arrays' owner
    for (const Slot& slot : slots_) {
      if (!slot.whole.is_valid()) continue;
      if (Py_REFCNT(slot.whole.ptr()) > (slot.part.is_valid() ? 2 : 1)) return false;
      if (slot.part.is_valid() && Py_REFCNT(slot.part.ptr()) > 1) return false;
    }
    return true;
  }

 private:
  struct Slot {
    const void* values = nullptr;
    size_t capacity = 0, width = 0, rows = 0;
    nanobind::object whole;  // over the vector's capacity
    nanobind::object part;   // its first `rows` rows; holds `whole`
  };

  std::shared_ptr<Data> data_;
  nanobind::object owner_;
  std::vector<Slot> slots_;
};

template <class Data>
class Ring {
 public:
  explicit Ring(size_t size) : size_(size) {}

  // Returns a View that nobody reads; it stays in the ring if there is a place.
  nanobind::object Take() {
    for (const nanobind::object& held : held_) {
      if (Py_REFCNT(held.ptr()) == 1 && nanobind::cast<View<Data>&>(held).IsFree()) return held;
    }
    nanobind::object fresh = nanobind::cast(new View<Data>(), nanobind::rv_policy::take_ownership);
    if (held_.size() < size_) held_.push_back(fresh);
    return fresh;
  }

 private:
  size_t size_;
  std::vector<nanobind::object> held_;
};

}  // namespace tokenspeed

namespace nanobind::detail {

template <class Array>
struct type_caster<tokenspeed::CachedArray<Array>> {
  NB_TYPE_CASTER(tokenspeed::CachedArray<Array>, make_caster<Array>::Name)
  static handle from_cpp(tokenspeed::CachedArray<Array>&& array, rv_policy,
                         cleanup_list*) noexcept {
    return array.object.release();
  }
};

}  // namespace nanobind::detail
