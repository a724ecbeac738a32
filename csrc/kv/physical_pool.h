// Level one of FlatKV: physical blocks, and the logical blocks packed inside them. A physical block
// belongs to one group while anything lives in it and returns to all groups when it is empty.
// Knows nothing about prefixes, requests, sharing or bytes.
//
// A group takes a new physical block only when all that it has are full, so it never has more than
// ceil(n / packing), n being the most logical blocks that were ever taken at once. FlatKv builds
// its promise of progress on that. It fills physical blocks that hold pinned blocks first. A caller
// names the block that comes before the new one in its sequence: if there is room in the same
// physical block, the two stay together.
//
// Who gives way when another group needs a physical block: each group keeps its unpinned physical
// blocks in buckets by the number of logical blocks that live there, each bucket in the order in
// which they came to rest, so that the one with fewest residents is found in O(packing).
// Thread: scheduler thread only.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/ids.h"
#include "base/pages.h"

namespace tokenspeed {

class PhysicalPool {
 public:
  static constexpr int32_t kMaxPacking = 64;  // and pins are counted in a byte

  // REQUIRES: num_physical_blocks >= 2; each packing in [1, kMaxPacking].
  PhysicalPool(std::vector<int32_t> packing, int32_t num_physical_blocks);
  PhysicalPool(const PhysicalPool&) = delete;
  PhysicalPool& operator=(const PhysicalPool&) = delete;

  // Says whether a logical block of `group` can be acquired right now.
  bool CanAcquire(GroupId group) const { return HasRoom(group) || !free_.empty(); }
  // Says whether there is room in the group's own physical blocks, or in those that have a pin.
  bool HasRoom(GroupId group) const {
    return HasPinnedRoom(group) || groups_[group.value].roomy[0] != 0;
  }
  bool HasPinnedRoom(GroupId group) const { return groups_[group.value].roomy[1] != 0; }
  // Logical blocks that are not pinned, cached ones included, inside physical blocks with a pin.
  int64_t num_spare(GroupId group) const { return groups_[group.value].spare; }

  // Says whether needs[g] more logical blocks of each group g fit once all unpinned ones are
  // dropped. REQUIRES: one need per group.
  bool CanHold(std::span<const int64_t> needs) const;

  // Returns an unused logical block, pinned and owned by `owner`; beside `near` if there is room.
  // REQUIRES: CanAcquire(group).
  BlockId Acquire(GroupId group, int32_t owner, BlockId near = BlockId());
  // REQUIRES: acquired and not pinned.
  void Release(GroupId group, BlockId block);

  // A pinned block is held by a request; an unpinned one is only cached.
  void Pin(GroupId group, BlockId block) {
    const int32_t id = IndexOf(group, block);
    if (pinned_[id]++ == 0) {
      --num_unpinned_;
      if (is_plain_) return;
      PinFirst(group, id);
    } else {
      --groups_[group.value].spare;
    }
  }
  void Unpin(GroupId group, BlockId block) {
    const int32_t id = IndexOf(group, block);
    if (--pinned_[id] == 0) {
      ++num_unpinned_;
      if (is_plain_) return;
      UnpinLast(group, id);
    } else {
      ++groups_[group.value].spare;
    }
  }
  void Prefetch(GroupId group, BlockId block) const {
    const int32_t id = IndexOf(group, block);
    __builtin_prefetch(&pinned_[id], 1);
    if (!is_plain_) __builtin_prefetch(&blocks_[id], 1);
  }

  // Returns the unpinned physical block of `group` that has fewest residents, the one at rest for
  // longest among equals; PhysicalId(0) for none.
  PhysicalId LeastResident(GroupId group) const {
    return LeastResident(group, 1, [](PhysicalId) { return true; });
  }
  // The same, but the first that `accepts` takes of at most `limit`.
  template <class Accepts>
  PhysicalId LeastResident(GroupId group, int limit, const Accepts& accepts) const {
    for (const Bucket& bucket : groups_[group.value].buckets) {
      for (int32_t id = bucket.coldest; id != 0; id = blocks_[id].hotter) {
        if (limit-- == 0) return PhysicalId(0);
        if (accepts(PhysicalId(id))) return PhysicalId(id);
      }
    }
    return PhysicalId(0);
  }
  int32_t num_residents(PhysicalId id) const;

  // Returns who owns a taken logical block.
  int32_t owner(GroupId group, BlockId block) const { return owners_[group.value][block.value]; }

  // One group with one block in each: nothing can lie scattered.
  bool is_plain() const { return is_plain_; }
  int32_t num_groups() const { return static_cast<int32_t>(groups_.size()); }
  int32_t packing(GroupId group) const { return groups_[group.value].packing; }
  int32_t num_physical() const { return static_cast<int32_t>(blocks_.size()); }
  int32_t num_usable() const { return num_physical() - 1; }
  int32_t num_free() const { return static_cast<int32_t>(free_.size()); }
  int32_t num_unpinned() const { return num_unpinned_; }  // empty, or holding cached blocks only

  // Physical blocks that `group` occupies; those of them that somebody holds.
  int32_t num_physical(GroupId group) const { return groups_[group.value].num_physical; }
  int32_t num_pinned(GroupId group) const {
    return is_plain_ ? num_usable() - num_unpinned_ : groups_[group.value].num_pinned;
  }
  // Logical blocks of `group` that are taken; those that lie unused in its physical blocks.
  int64_t num_taken(GroupId group) const { return groups_[group.value].num_taken; }
  int64_t num_vacant(GroupId group) const {
    const Group& record = groups_[group.value];
    return int64_t{record.num_physical} * record.packing - record.num_taken;
  }

  // Group that occupies a physical block, -1 for none; and the logical blocks in it.
  int32_t group_of(PhysicalId id) const { return blocks_[id.value].group; }
  uint64_t used_mask(PhysicalId id) const { return blocks_[id.value].used; }
  int32_t pinned_in(PhysicalId id) const { return pinned_[id.value]; }
  PhysicalId physical_of(GroupId group, BlockId block) const {
    return PhysicalId(IndexOf(group, block));
  }

  // Recounts lists and counters. Throws std::logic_error.
  void CheckInvariants() const;

 private:
  struct Physical {
    uint64_t used = 0;  // bit i: logical block i is taken
    int32_t group = -1;
    int32_t previous = 0, next = 0;  // list of the group's blocks with room; 0 ends it
    bool is_in_pinned_list = false;  // which of the two lists
    int32_t colder = 0, hotter = 0;  // bucket of unpinned blocks with as many residents
    int32_t bucket = 0;              // residents when it was put into a bucket; 0: in none
  };
  struct Bucket {
    int32_t coldest = 0, hottest = 0;
  };
  struct Group {
    int32_t packing = 1;
    uint64_t full_mask = 1;
    int32_t roomy[2] = {0, 0};  // first physical block with room, without and with a pin
    int32_t num_physical = 0;
    int32_t num_pinned = 0;  // of them; not kept while is_plain_
    int64_t num_taken = 0;
    int64_t spare = 0;            // unpinned room inside physical blocks that have a pin
    std::vector<Bucket> buckets;  // [residents], 0 unused
  };

  int32_t WithRoom(GroupId group, BlockId near) const;
  void LinkRoomy(int32_t id);
  void UnlinkRoomy(int32_t id);
  void PinFirst(GroupId group, int32_t id);
  void UnpinLast(GroupId group, int32_t id);
  void Relink(int32_t id);
  void Settle(int32_t id, bool is_hot);  // into the bucket of its residents, or out of all
  void LeaveBucket(int32_t id);
  uint64_t FullMask(int32_t group) const { return groups_[group].full_mask; }
  // A division costs more than the rest of a pin, and most groups have one block in each.
  int32_t IndexOf(GroupId group, BlockId block) const {
    const int32_t packing = groups_[group.value].packing;
    return packing == 1 ? block.value : block.value / packing;
  }

  std::vector<Group> groups_;
  TableVector<Physical> blocks_;
  // Pinned blocks in each: apart, as a long prompt's match writes these and mostly nothing else.
  TableVector<uint8_t> pinned_;
  std::vector<TableVector<int32_t>> owners_;  // [group][logical block]
  std::vector<int32_t> free_;                 // LIFO; lowest ids first on a fresh pool
  bool has_rivals_;                           // more than one group: buckets are kept
  bool is_plain_;                             // one group, one block in each: no lists to keep
  int32_t num_unpinned_;
};

}  // namespace tokenspeed
