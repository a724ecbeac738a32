// Vectors for tables that are large and read all over the place: what fills a huge page asks the
// system for huge pages, so that a step that touches a table for the first time in a while pays for
// cache misses only, not for walks of the page table, and a long prompt for few page faults.
// Thread: any.
#pragma once

#include <cstddef>
#include <new>
#include <vector>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace tokenspeed {

template <class T>
struct PageAllocator {
  using value_type = T;
  static constexpr size_t kHugePage = size_t{2} << 20;

  PageAllocator() = default;
  template <class U>
  PageAllocator(const PageAllocator<U>&) {}  // NOLINT: allocators convert

  static std::align_val_t Alignment(size_t count) {
    return std::align_val_t{count * sizeof(T) < kHugePage ? alignof(std::max_align_t) * 4
                                                          : kHugePage};
  }
  T* allocate(size_t count) {
    void* memory = ::operator new(count * sizeof(T), Alignment(count));
#if defined(__linux__)
    // Whole huge pages only; a refusal leaves ordinary ones, which are as right.
    const size_t num_bytes = count * sizeof(T) / kHugePage * kHugePage;
    if (num_bytes > 0) madvise(memory, num_bytes, MADV_HUGEPAGE);
#endif
    return static_cast<T*>(memory);
  }
  void deallocate(T* memory, size_t count) { ::operator delete(memory, Alignment(count)); }
  bool operator==(const PageAllocator&) const = default;
};

template <class T>
using PagedVector = std::vector<T, PageAllocator<T>>;

}  // namespace tokenspeed
