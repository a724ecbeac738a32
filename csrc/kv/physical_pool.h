// Level one of FlatKV: physical blocks, and the logical blocks packed inside them. A physical block
// belongs to one group while anything lives in it and returns to all groups when it is empty.
// Knows nothing about prefixes, requests, sharing or bytes.
//
// A group takes a new physical block only when all that it has are full, so it never has more than
// ceil(n / packing), n being the most logical blocks that were ever taken at once. As n of every
// group fit together then, a sequence that fits the empty pool fits whenever all else can be
// dropped, however scattered its blocks lie.
// Thread: scheduler thread only.
#pragma once

#include <cstdint>
#include <vector>

#include "base/ids.h"

namespace tokenspeed {

class PhysicalPool {
 public:
  static constexpr int32_t kMaxPacking = 64;

  // REQUIRES: num_physical_blocks >= 2; each packing in [1, kMaxPacking].
  PhysicalPool(std::vector<int32_t> packing, int32_t num_physical_blocks);

  // Says whether one logical block of every group can be acquired right now.
  bool CanAcquireOneEach() const;

  // Says whether `num_blocks` logical blocks of every group fit once all unpinned ones are dropped.
  bool CanHold(int64_t num_blocks) const;

  // Returns an unused logical block, pinned. REQUIRES: CanAcquireOneEach() or a known free slot.
  BlockId Acquire(GroupId group);
  // REQUIRES: acquired and not pinned.
  void Release(GroupId group, BlockId block);

  // A pinned block is held by a request; an unpinned one is only cached.
  void Pin(GroupId group, BlockId block);
  void Unpin(GroupId group, BlockId block);

  int32_t num_groups() const { return static_cast<int32_t>(packing_.size()); }
  int32_t packing(GroupId group) const { return packing_[group.value]; }
  int32_t num_physical() const { return static_cast<int32_t>(blocks_.size()); }
  int32_t num_usable() const { return num_physical() - 1; }
  int32_t num_free() const { return static_cast<int32_t>(free_.size()); }
  int32_t num_unpinned() const { return num_unpinned_; }  // empty, or holding cached blocks only

  // Group that occupies a physical block, -1 for none; and the logical blocks in it (for tests).
  int32_t group_of(PhysicalId id) const { return blocks_[id.value].group; }
  uint64_t used_mask(PhysicalId id) const { return blocks_[id.value].used; }
  int32_t pinned_in(PhysicalId id) const { return blocks_[id.value].pinned; }

  // Recounts lists and counters. Throws std::logic_error.
  void CheckInvariants() const;

 private:
  struct Physical {
    uint64_t used = 0;  // bit i: logical block i is taken
    int32_t group = -1;
    int32_t pinned = 0;
    int32_t previous = 0, next = 0;  // list of the group's blocks with room; 0 ends it
  };

  void LinkRoomy(int32_t id);
  void UnlinkRoomy(int32_t id);
  uint64_t FullMask(int32_t group) const;
  Physical& Of(GroupId group, BlockId block) {
    return blocks_[block.value / packing_[group.value]];
  }

  std::vector<int32_t> packing_;
  std::vector<Physical> blocks_;
  std::vector<int32_t> free_;        // LIFO; lowest ids first on a fresh pool
  std::vector<int32_t> roomy_head_;  // per group: first block with room, 0 for none
  std::vector<int64_t> spare_;       // per group: unpinned room inside blocks that have a pin
  int32_t num_unpinned_;
};

}  // namespace tokenspeed
