#include "kv/physical_pool.h"

#include <bit>
#include <utility>

#include "base/check.h"

namespace tokenspeed {

PhysicalPool::PhysicalPool(std::vector<int32_t> packing, int32_t num_physical_blocks)
    : packing_(std::move(packing)),
      blocks_(num_physical_blocks),
      roomy_head_(packing_.size(), 0),
      spare_(packing_.size(), 0),
      num_unpinned_(num_physical_blocks - 1) {
  free_.reserve(num_physical_blocks);
  for (int32_t id = num_physical_blocks - 1; id > 0; --id) free_.push_back(id);
}

bool PhysicalPool::CanAcquireOneEach() const {
  size_t num_fresh = 0;
  for (const int32_t head : roomy_head_) num_fresh += head == 0;
  return num_fresh <= free_.size();
}

bool PhysicalPool::CanHold(int64_t num_blocks) const {
  int64_t num_fresh = 0;
  for (size_t group = 0; group < packing_.size(); ++group) {
    const int64_t missing = num_blocks - spare_[group];
    if (missing > 0) num_fresh += (missing + packing_[group] - 1) / packing_[group];
  }
  return num_fresh <= num_unpinned_;
}

BlockId PhysicalPool::Acquire(GroupId group) {
  int32_t id = roomy_head_[group.value];
  if (id == 0) {
    TS_CHECK(!free_.empty(), "a free physical block was promised");
    id = free_.back();
    free_.pop_back();
    blocks_[id].group = group.value;
    LinkRoomy(id);
  }
  Physical& physical = blocks_[id];
  const int bit = std::countr_one(physical.used);
  physical.used |= uint64_t{1} << bit;
  if (physical.used == FullMask(group.value)) UnlinkRoomy(id);
  const BlockId block(id * packing_[group.value] + bit);
  Pin(group, block);
  return block;
}

void PhysicalPool::Release(GroupId group, BlockId block) {
  const int32_t id = block.value / packing_[group.value];
  Physical& physical = blocks_[id];
  const bool was_full = physical.used == FullMask(group.value);
  physical.used &= ~(uint64_t{1} << (block.value % packing_[group.value]));
  if (physical.used == 0) {
    if (!was_full) UnlinkRoomy(id);
    physical.group = -1;
    free_.push_back(id);
  } else if (was_full) {
    LinkRoomy(id);
  }
}

void PhysicalPool::Pin(GroupId group, BlockId block) {
  Physical& physical = Of(group, block);
  if (physical.pinned++ == 0) {
    --num_unpinned_;
    spare_[group.value] += packing_[group.value] - 1;
  } else {
    --spare_[group.value];
  }
}

void PhysicalPool::Unpin(GroupId group, BlockId block) {
  Physical& physical = Of(group, block);
  if (--physical.pinned == 0) {
    ++num_unpinned_;
    spare_[group.value] -= packing_[group.value] - 1;
  } else {
    ++spare_[group.value];
  }
}

void PhysicalPool::LinkRoomy(int32_t id) {
  int32_t& head = roomy_head_[blocks_[id].group];
  blocks_[id].previous = 0;
  blocks_[id].next = head;
  if (head != 0) blocks_[head].previous = id;
  head = id;
}

void PhysicalPool::UnlinkRoomy(int32_t id) {
  const auto [previous, next] = std::pair(blocks_[id].previous, blocks_[id].next);
  if (previous != 0) {
    blocks_[previous].next = next;
  } else {
    roomy_head_[blocks_[id].group] = next;
  }
  if (next != 0) blocks_[next].previous = previous;
}

uint64_t PhysicalPool::FullMask(int32_t group) const {
  return packing_[group] == 64 ? ~uint64_t{0} : (uint64_t{1} << packing_[group]) - 1;
}

void PhysicalPool::CheckInvariants() const {
  std::vector<int64_t> spare(packing_.size(), 0);
  std::vector<int32_t> roomy(packing_.size(), 0);
  int32_t num_free = 0, num_unpinned = 0;
  for (int32_t id = 1; id < num_physical(); ++id) {
    const Physical& physical = blocks_[id];
    num_free += physical.group < 0;
    num_unpinned += physical.pinned == 0;
    TS_CHECK((physical.group < 0) == (physical.used == 0), "an empty physical block has no group");
    TS_CHECK(physical.pinned <= std::popcount(physical.used), "pins are on taken blocks");
    if (physical.group < 0) continue;
    if (physical.pinned > 0) spare[physical.group] += packing_[physical.group] - physical.pinned;
    roomy[physical.group] += physical.used != FullMask(physical.group);
  }
  TS_CHECK(blocks_[0].used == 0 && blocks_[0].group < 0, "the sentinel is never handed out");
  TS_CHECK(num_free == this->num_free(), "the free list holds exactly the empty blocks");
  TS_CHECK(num_unpinned == num_unpinned_, "unpinned physical blocks are counted");
  TS_CHECK(spare == spare_, "spare room of pinned physical blocks is counted");
  for (size_t group = 0; group < packing_.size(); ++group) {
    int32_t length = 0;
    for (int32_t id = roomy_head_[group]; id != 0; id = blocks_[id].next) {
      TS_CHECK(blocks_[id].group == static_cast<int32_t>(group), "a roomy list is of one group");
      TS_CHECK(++length <= roomy[group], "a roomy list has no strangers");
    }
    TS_CHECK(length == roomy[group], "a roomy list is complete");
  }
}

}  // namespace tokenspeed
