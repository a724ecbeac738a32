// Chain keys of blocks that were evicted, for cache truth: says why a prompt was not found.
// Bounded: each key has one place, a newer one takes it. A key that is stored again is forgotten.
// Thread: scheduler thread only.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "base/hash.h"
#include "base/pages.h"

namespace tokenspeed {

class EvictedKeys {
 public:
  // Room for about `num_keys`, 64 to 262,144.
  explicit EvictedKeys(int32_t num_keys)
      : keys_(std::bit_ceil(
            static_cast<size_t>(num_keys<64 ? 64 : num_keys>(1 << 18) ? 1 << 18 : num_keys))) {}

  void Prefetch(const Hash128& key) const { __builtin_prefetch(&keys_[Place(key)], 1); }
  void Add(const Hash128& key) {
    keys_[Place(key)] = key;
    is_empty_ = false;
  }
  void Forget(const Hash128& key) {
    if (Contains(key)) keys_[Place(key)] = Hash128{};
  }
  bool Contains(const Hash128& key) const {
    return !is_empty_ && keys_[Place(key)] == key && key != Hash128{};
  }

 private:
  size_t Place(const Hash128& key) const { return key.lo & (keys_.size() - 1); }

  TableVector<Hash128> keys_;
  bool is_empty_ = true;  // nothing was ever added
};

}  // namespace tokenspeed
