#include "kv/block_pool.h"

#include <algorithm>
#include <cstdio>

#include "base/check.h"

namespace tokenspeed {

BlockRef BlockRef::Share() const { return pool_->Hold(set_); }

BlockPool::BlockPool(std::vector<int32_t> packing, int32_t num_physical_blocks)
    : physical_(packing, num_physical_blocks), num_groups_(static_cast<int32_t>(packing.size())) {
  const int32_t tightest = *std::min_element(packing.begin(), packing.end());
  const int32_t max_sets = physical_.num_usable() * tightest;
  sets_.resize(max_sets + 1);
  block_ids_.assign(sets_.size() * packing.size(), 0);
  free_sets_.reserve(max_sets);
  for (int32_t set = max_sets; set > 0; --set) free_sets_.push_back(set);
}

BlockPool::~BlockPool() {
  if (num_refs_ != 0) {
    std::fprintf(stderr, "tokenspeed: block pool destroyed with %lld live references\n",
                 static_cast<long long>(num_refs_));
  }
}

std::optional<BlockRef> BlockPool::Acquire() {
  if (!physical_.CanAcquireOneEach()) return std::nullopt;
  TS_CHECK(!free_sets_.empty(), "a set id is free whenever every group has room");
  const int32_t set = free_sets_.back();
  free_sets_.pop_back();
  for (int32_t group = 0; group < num_groups_; ++group) {
    block_ids_[static_cast<size_t>(set) * num_groups_ + group] =
        physical_.Acquire(GroupId(group)).value;
  }
  sets_[set] = {.refs = 1, .is_taken = true};
  ++num_refs_;
  return BlockRef(this, SetId(set));
}

BlockRef BlockPool::Hold(SetId set) {
  Set& record = sets_[set.value];
  TS_CHECK(record.is_taken, "only a set in use or cached can be held");
  if (record.refs++ == 0) {
    Unlink(set.value);
    PinAll(set.value);
  }
  ++num_refs_;
  return BlockRef(this, set);
}

void BlockPool::SetCached(SetId set, bool is_cached) {
  Set& record = sets_[set.value];
  TS_CHECK(record.is_taken && record.is_cached != is_cached, "the cached mark changes");
  record.is_cached = is_cached;
  if (record.refs > 0) return;
  Unlink(set.value);
  Free(set.value);
}

void BlockPool::Drop(SetId set) noexcept {
  Set& record = sets_[set.value];
  --num_refs_;
  if (--record.refs > 0) return;
  ++num_releases_;
  for (int32_t group = 0; group < num_groups_; ++group) {
    physical_.Unpin(GroupId(group), block(set, GroupId(group)));
  }
  if (record.is_cached) {
    LinkHottest(set.value);
  } else {
    Free(set.value);
  }
}

void BlockPool::Free(int32_t set) {
  for (int32_t group = 0; group < num_groups_; ++group) {
    physical_.Release(GroupId(group), block(SetId(set), GroupId(group)));
  }
  sets_[set].is_taken = false;
  free_sets_.push_back(set);  // never reallocates: reserved for all
}

void BlockPool::PinAll(int32_t set) {
  for (int32_t group = 0; group < num_groups_; ++group) {
    physical_.Pin(GroupId(group), block(SetId(set), GroupId(group)));
  }
}

void BlockPool::LinkHottest(int32_t set) {
  sets_[set].colder = hottest_;
  sets_[set].hotter = 0;
  (hottest_ != 0 ? sets_[hottest_].hotter : coldest_) = set;
  hottest_ = set;
}

void BlockPool::Unlink(int32_t set) {
  const auto [colder, hotter] = std::pair(sets_[set].colder, sets_[set].hotter);
  (colder != 0 ? sets_[colder].hotter : coldest_) = hotter;
  (hotter != 0 ? sets_[hotter].colder : hottest_) = colder;
}

void BlockPool::CheckInvariants() const {
  physical_.CheckInvariants();
  int64_t num_refs = 0;
  int32_t num_cold = 0, num_taken = 0, num_pins = 0;
  std::vector<uint64_t> used(static_cast<size_t>(physical_.num_physical()) * num_groups_, 0);
  for (int32_t set = 1; set <= max_sets(); ++set) {
    if (!sets_[set].is_taken) continue;
    ++num_taken;
    num_refs += sets_[set].refs;
    num_pins += sets_[set].refs > 0;
    num_cold += sets_[set].refs == 0;
    TS_CHECK(sets_[set].refs > 0 || sets_[set].is_cached, "a set that nobody holds is cached");
    for (int32_t group = 0; group < num_groups_; ++group) {
      const int32_t id = block(SetId(set), GroupId(group)).value;
      const int32_t packing = physical_.packing(GroupId(group));
      uint64_t& mask = used[static_cast<size_t>(id / packing) * num_groups_ + group];
      const uint64_t bit = uint64_t{1} << (id % packing);
      TS_CHECK((mask & bit) == 0, "a logical block is in one set");
      mask |= bit;
    }
  }
  TS_CHECK(num_refs == num_refs_, "references are counted");
  TS_CHECK(num_taken + static_cast<int32_t>(free_sets_.size()) == max_sets(), "set ids add up");
  int64_t pinned = 0;
  for (int32_t id = 1; id < physical_.num_physical(); ++id) {
    pinned += physical_.pinned_in(PhysicalId(id));
    for (int32_t group = 0; group < num_groups_; ++group) {
      const uint64_t mask = used[static_cast<size_t>(id) * num_groups_ + group];
      const bool is_group = physical_.group_of(PhysicalId(id)) == group;
      TS_CHECK(mask == (is_group ? physical_.used_mask(PhysicalId(id)) : 0),
               "every taken logical block is in a set");
    }
  }
  TS_CHECK(pinned == int64_t{num_pins} * num_groups_, "held sets are pinned once per group");
  int32_t length = 0;
  for (int32_t set = coldest_, colder = 0; set != 0; colder = set, set = sets_[set].hotter) {
    TS_CHECK(sets_[set].colder == colder, "the cold list is linked both ways");
    TS_CHECK(sets_[set].is_taken && sets_[set].refs == 0, "the cold list holds unheld sets only");
    TS_CHECK(++length <= num_cold, "the cold list has no strangers");
  }
  TS_CHECK(length == num_cold, "every unheld set is on the cold list");
}

}  // namespace tokenspeed
