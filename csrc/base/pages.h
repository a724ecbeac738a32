// Vectors for tables that are large and read all over the place: what fills a huge page asks the
// system for huge pages, so that a step that touches a table for the first time in a while pays for
// cache misses only, not for walks of the page table, and a long prompt for few page faults. What a
// long prompt gave back is kept for the next one: to clear new pages takes as long as to fill them.
// There are few tables and many prompts, so a table (TableVector) gets a huge page from an eighth
// of one on: what it does not fill is the price for walks that a process pays anew whenever
// somebody in it has unmapped memory. Thread: any.
#pragma once

#include <algorithm>
#include <cstddef>
#include <new>
#include <vector>

namespace tokenspeed {

inline constexpr size_t kHugePage = size_t{2} << 20;
// Pages that were given back and wait for the next who asks for as many, of the whole process.
inline constexpr size_t kMaxKeptBytes = size_t{32} << 20;

// Memory that begins at a huge page, and gives it back. What is in it is undefined.
// REQUIRES: num_bytes >= kHugePage, the same in both.
void* TakePages(size_t num_bytes);
void GivePages(void* memory, size_t num_bytes) noexcept;
size_t NumKeptBytes();

// Asks for whole huge pages from kFromBytes on.
template <class T, size_t kFromBytes = kHugePage>
struct PageAllocator {
  using value_type = T;
  template <class U>
  struct rebind {  // NOLINT: the standard's name
    using other = PageAllocator<U, kFromBytes>;
  };
  static constexpr std::align_val_t kAlignment{alignof(std::max_align_t) * 4};

  PageAllocator() = default;
  template <class U>
  PageAllocator(const PageAllocator<U, kFromBytes>&) {}  // NOLINT: allocators convert

  T* allocate(size_t count) {
    const size_t num_bytes = count * sizeof(T);
    if (num_bytes >= kFromBytes) {
      return static_cast<T*>(TakePages(std::max(num_bytes, kHugePage)));
    }
    return static_cast<T*>(::operator new(num_bytes, kAlignment));
  }
  void deallocate(T* memory, size_t count) {
    const size_t num_bytes = count * sizeof(T);
    if (num_bytes >= kFromBytes) return GivePages(memory, std::max(num_bytes, kHugePage));
    ::operator delete(memory, kAlignment);
  }
  bool operator==(const PageAllocator&) const = default;
};

template <class T>
using PagedVector = std::vector<T, PageAllocator<T>>;
template <class T>
using TableVector = std::vector<T, PageAllocator<T, kHugePage / 8>>;

}  // namespace tokenspeed
