#include "base/pages.h"

#include <bit>
#include <mutex>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace tokenspeed {
namespace {

#if defined(__SANITIZE_ADDRESS__)
constexpr bool kKeepsPages = false;  // a use after free has to be seen
#else
constexpr bool kKeepsPages = true;
#endif

struct Area {
  void* memory = nullptr;
  size_t num_bytes = 0;
};

struct KeptPages {
  std::mutex mutex;  // guards all below
  std::vector<Area> areas;
  size_t num_bytes = 0;
};

// Never destroyed: static tables may give back after everything else is gone.
KeptPages& Kept() {
  static KeptPages& kept = *new KeptPages;
  return kept;
}

// Sizes are rounded up to four steps for each power of two, so that the next prompt, which is about
// as long, finds what the last one left. What is not touched takes no memory.
size_t Rounded(size_t num_bytes) {
  const size_t step = std::bit_floor(num_bytes) / 4;
  return (num_bytes + step - 1) / step * step;
}

}  // namespace

void* TakePages(size_t num_bytes) {
  const size_t rounded = Rounded(num_bytes);
  {
    KeptPages& kept = Kept();
    const std::lock_guard lock(kept.mutex);
    for (Area& area : kept.areas) {
      if (area.num_bytes != rounded) continue;
      void* memory = area.memory;
      kept.num_bytes -= rounded;
      area = kept.areas.back();
      kept.areas.pop_back();
      return memory;
    }
  }
  void* memory = ::operator new(rounded, std::align_val_t{kHugePage});
#if defined(__linux__)
  // Whole huge pages of what was asked for only; a refusal leaves ordinary ones, which are as
  // right.
  madvise(memory, num_bytes / kHugePage * kHugePage, MADV_HUGEPAGE);
#endif
  return memory;
}

void GivePages(void* memory, size_t num_bytes) noexcept {
  const size_t rounded = Rounded(num_bytes);
  {
    KeptPages& kept = Kept();
    const std::lock_guard lock(kept.mutex);
    constexpr size_t kMaxAreas = kMaxKeptBytes / kHugePage;
    kept.areas.reserve(kMaxAreas);  // once; a refusal ends the process, as any here would
    if (kKeepsPages && kept.num_bytes + rounded <= kMaxKeptBytes) {
      kept.areas.push_back({memory, rounded});
      kept.num_bytes += rounded;
      return;
    }
  }
  ::operator delete(memory, std::align_val_t{kHugePage});
}

size_t NumKeptBytes() {
  KeptPages& kept = Kept();
  const std::lock_guard lock(kept.mutex);
  return kept.num_bytes;
}

}  // namespace tokenspeed
