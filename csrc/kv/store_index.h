// Which records the store behind the host tier is known to keep: a flat open-addressing set of
// keys. Told by acknowledged puts and by the store itself; a key that proves wrong is erased.
// O(1) per call; 16 bytes a slot, at most half full.
// Thread: scheduler thread only.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/check.h"
#include "base/hash.h"

namespace tokenspeed {

class StoreIndex {
 public:
  StoreIndex() : slots_(64) {}

  bool Contains(const Hash128& key) const { return slots_[Find(key)] != kEmpty; }

  // The all-zero key means an empty slot and is never kept: what has it is computed again.
  void Insert(const Hash128& key) {
    if (key == kEmpty || Contains(key)) return;
    if (++num_keys_ * 2 > slots_.size()) Double();
    slots_[Find(key)] = key;
  }

  void Erase(const Hash128& key) {
    size_t hole = Find(key);
    if (slots_[hole] == kEmpty) return;
    --num_keys_;
    // Later keys of the run move up, unless that would put them before their first place.
    for (size_t i = Next(hole); slots_[i] != kEmpty; i = Next(i)) {
      if (((i - First(slots_[i])) & Mask()) < ((i - hole) & Mask())) continue;
      slots_[hole] = slots_[i];
      hole = i;
    }
    slots_[hole] = kEmpty;
  }

  size_t size() const { return num_keys_; }

  void CheckInvariants() const {
    size_t num_keys = 0;
    for (const Hash128& key : slots_) {
      if (key == kEmpty) continue;
      ++num_keys;
      TS_CHECK(slots_[Find(key)] == key, "a stored key is found");
    }
    TS_CHECK(num_keys == num_keys_, "stored keys are counted");
  }

 private:
  static constexpr Hash128 kEmpty{};

  size_t Mask() const { return slots_.size() - 1; }
  size_t First(const Hash128& key) const { return key.lo & Mask(); }
  size_t Next(size_t i) const { return (i + 1) & Mask(); }
  // Returns the slot of the key, or the empty one where it would go.
  size_t Find(const Hash128& key) const {
    size_t i = First(key);
    while (slots_[i] != kEmpty && slots_[i] != key) i = Next(i);
    return i;
  }
  void Double() {
    std::vector<Hash128> old(slots_.size() * 2);
    old.swap(slots_);
    for (const Hash128& key : old) {
      if (key != kEmpty) slots_[Find(key)] = key;
    }
  }

  std::vector<Hash128> slots_;
  size_t num_keys_ = 0;
};

}  // namespace tokenspeed
