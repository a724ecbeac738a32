#include "kv/physical_pool.h"

#include <bit>
#include <utility>

#include "base/check.h"

namespace tokenspeed {

PhysicalPool::PhysicalPool(std::vector<int32_t> packing, int32_t num_physical_blocks)
    : groups_(packing.size()),
      blocks_(num_physical_blocks),
      pinned_(num_physical_blocks, 0),
      owners_(packing.size()),
      has_rivals_(packing.size() > 1),
      is_plain_(packing.size() == 1 && packing[0] == 1),
      num_unpinned_(num_physical_blocks - 1) {
  for (size_t group = 0; group < packing.size(); ++group) {
    groups_[group].packing = packing[group];
    groups_[group].full_mask = ~uint64_t{0} >> (64 - packing[group]);
    groups_[group].buckets.resize(packing[group] + 1);
    owners_[group].assign(static_cast<size_t>(num_physical_blocks) * packing[group], 0);
  }
  free_.reserve(num_physical_blocks);
  for (int32_t id = num_physical_blocks - 1; id > 0; --id) free_.push_back(id);
}

bool PhysicalPool::CanHold(std::span<const int64_t> needs) const {
  int64_t num_fresh = 0;
  for (size_t group = 0; group < groups_.size(); ++group) {
    const int64_t missing = needs[group] - groups_[group].spare;
    const int32_t packing = groups_[group].packing;
    if (missing > 0) num_fresh += (missing + packing - 1) / packing;
  }
  return num_fresh <= num_unpinned_;
}

BlockId PhysicalPool::Acquire(GroupId group, int32_t owner, BlockId near) {
  Group& record = groups_[group.value];
  int32_t id = record.packing == 1 ? 0 : WithRoom(group, near);
  if (id == 0) {
    TS_CHECK(!free_.empty(), "a free physical block was promised");
    id = free_.back();
    free_.pop_back();
    blocks_[id].group = group.value;
    ++record.num_physical;
    if (record.packing > 1) LinkRoomy(id);
  }
  Physical& physical = blocks_[id];
  const int bit = std::countr_one(physical.used);
  physical.used |= uint64_t{1} << bit;
  ++record.num_taken;
  if (record.packing > 1 && physical.used == record.full_mask) UnlinkRoomy(id);
  const BlockId block(id * record.packing + bit);
  owners_[group.value][block.value] = owner;
  Pin(group, block);
  return block;
}

// Returns the group's physical block to take from: that of `near` if it can be; 0 for none.
int32_t PhysicalPool::WithRoom(GroupId group, BlockId near) const {
  const int32_t id = IndexOf(group, near);
  const bool is_beside = near.value > 0 && blocks_[id].group == group.value &&
                         blocks_[id].used != FullMask(group.value);
  const Group& record = groups_[group.value];
  return is_beside ? id : record.roomy[record.roomy[1] != 0];
}

void PhysicalPool::Release(GroupId group, BlockId block) {
  Group& record = groups_[group.value];
  const int32_t id = IndexOf(group, block);
  Physical& physical = blocks_[id];
  const bool was_full = physical.used == FullMask(group.value);
  physical.used &= ~(uint64_t{1} << (block.value - id * record.packing));
  --record.num_taken;
  owners_[group.value][block.value] = 0;
  Settle(id, false);
  if (physical.used == 0) {
    if (!was_full) UnlinkRoomy(id);
    physical.group = -1;
    --record.num_physical;
    free_.push_back(id);
  } else if (was_full) {
    LinkRoomy(id);
  }
}

void PhysicalPool::PinFirst(GroupId group, int32_t id) {
  groups_[group.value].spare += groups_[group.value].packing - 1;
  ++groups_[group.value].num_pinned;
  LeaveBucket(id);
  Relink(id);
}

void PhysicalPool::UnpinLast(GroupId group, int32_t id) {
  groups_[group.value].spare -= groups_[group.value].packing - 1;
  --groups_[group.value].num_pinned;
  Settle(id, true);
  Relink(id);
}

int32_t PhysicalPool::num_residents(PhysicalId id) const {
  return std::popcount(blocks_[id.value].used);
}

void PhysicalPool::LinkRoomy(int32_t id) {
  Physical& physical = blocks_[id];
  physical.is_in_pinned_list = pinned_[id] > 0;
  int32_t& head = groups_[physical.group].roomy[physical.is_in_pinned_list];
  physical.previous = 0;
  physical.next = head;
  if (head != 0) blocks_[head].previous = id;
  head = id;
}

void PhysicalPool::UnlinkRoomy(int32_t id) {
  const Physical& physical = blocks_[id];
  const auto [previous, next] = std::pair(physical.previous, physical.next);
  if (previous != 0) {
    blocks_[previous].next = next;
  } else {
    groups_[physical.group].roomy[physical.is_in_pinned_list] = next;
  }
  if (next != 0) blocks_[next].previous = previous;
}

// Its first pin came or its last one went: it changes lists if it has room.
void PhysicalPool::Relink(int32_t id) {
  if (blocks_[id].used == FullMask(blocks_[id].group)) return;
  UnlinkRoomy(id);
  LinkRoomy(id);
}

// What comes to rest is hot; what lost a resident to eviction is as cold as that resident was.
void PhysicalPool::Settle(int32_t id, bool is_hot) {
  if (!has_rivals_) return;
  LeaveBucket(id);
  Physical& physical = blocks_[id];
  if (pinned_[id] > 0 || physical.used == 0) return;
  physical.bucket = num_residents(PhysicalId(id));
  Bucket& bucket = groups_[physical.group].buckets[physical.bucket];
  physical.colder = is_hot ? bucket.hottest : 0;
  physical.hotter = is_hot ? 0 : bucket.coldest;
  (physical.colder != 0 ? blocks_[physical.colder].hotter : bucket.coldest) = id;
  (physical.hotter != 0 ? blocks_[physical.hotter].colder : bucket.hottest) = id;
}

void PhysicalPool::LeaveBucket(int32_t id) {
  Physical& physical = blocks_[id];
  if (physical.bucket == 0) return;
  Bucket& bucket = groups_[physical.group].buckets[physical.bucket];
  (physical.colder != 0 ? blocks_[physical.colder].hotter : bucket.coldest) = physical.hotter;
  (physical.hotter != 0 ? blocks_[physical.hotter].colder : bucket.hottest) = physical.colder;
  physical.bucket = 0;
}

void PhysicalPool::CheckInvariants() const {
  struct Count {
    int64_t spare = 0, taken = 0;
    int32_t roomy = 0, physical = 0, pinned = 0, settled = 0;
  };
  std::vector<Count> counts(groups_.size());
  int32_t num_free = 0, num_unpinned = 0;
  for (int32_t id = 1; id < num_physical(); ++id) {
    const Physical& physical = blocks_[id];
    num_free += physical.group < 0;
    num_unpinned += pinned_[id] == 0;
    TS_CHECK((physical.group < 0) == (physical.used == 0), "an empty physical block has no group");
    TS_CHECK(pinned_[id] <= num_residents(PhysicalId(id)), "pins are on taken blocks");
    TS_CHECK(physical.group >= 0 || physical.bucket == 0, "a free block is in no bucket");
    if (physical.group < 0) continue;
    Count& count = counts[physical.group];
    if (pinned_[id] > 0) count.spare += groups_[physical.group].packing - pinned_[id];
    count.roomy += physical.used != FullMask(physical.group);
    count.taken += num_residents(PhysicalId(id));
    ++count.physical;
    count.pinned += pinned_[id] > 0;
    const bool is_settled = has_rivals_ && pinned_[id] == 0;
    count.settled += is_settled;
    TS_CHECK(physical.bucket == (is_settled ? num_residents(PhysicalId(id)) : 0),
             "unpinned blocks are in the bucket of their residents");
  }
  TS_CHECK(blocks_[0].used == 0 && blocks_[0].group < 0, "the sentinel is never handed out");
  TS_CHECK(num_free == this->num_free(), "the free list holds exactly the empty blocks");
  TS_CHECK(num_unpinned == num_unpinned_, "unpinned physical blocks are counted");
  for (size_t group = 0; group < groups_.size(); ++group) {
    const Group& record = groups_[group];
    const Count& count = counts[group];
    TS_CHECK(count.spare == record.spare, "spare room of pinned physical blocks is counted");
    TS_CHECK(count.taken == record.num_taken && count.physical == record.num_physical,
             "taken blocks are counted");
    TS_CHECK(count.pinned == num_pinned(GroupId(static_cast<int32_t>(group))),
             "pinned physical blocks are counted by group");
    int32_t length = 0;
    for (const bool has_pin : {false, true}) {
      for (int32_t id = record.roomy[has_pin]; id != 0; id = blocks_[id].next) {
        TS_CHECK(blocks_[id].group == static_cast<int32_t>(group), "a roomy list is of one group");
        TS_CHECK((pinned_[id] > 0) == has_pin, "pinned blocks have a roomy list");
        TS_CHECK(++length <= count.roomy, "a roomy list has no strangers");
      }
    }
    TS_CHECK(length == count.roomy, "a roomy list is complete");
    length = 0;
    for (size_t residents = 1; residents < record.buckets.size(); ++residents) {
      for (int32_t id = record.buckets[residents].coldest; id != 0; id = blocks_[id].hotter) {
        TS_CHECK(blocks_[id].bucket == static_cast<int32_t>(residents), "a bucket is of one size");
        TS_CHECK(++length <= count.settled, "a bucket has no strangers");
      }
    }
    TS_CHECK(length == count.settled, "buckets are complete");
  }
}

}  // namespace tokenspeed
