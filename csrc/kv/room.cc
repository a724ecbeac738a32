// FlatKv, where room comes from: which class gives way, and what it drops.
#include <bit>

#include "base/check.h"
#include "kv/flat_kv.h"

namespace tokenspeed {

// Sees to it that `pool` can acquire one thing of those in `rest`, and counts it off. While
// physical blocks are scarce a group fills its pinned ones first, dropping what is only cached
// there: as CanHold counted, so that what is still to come fits too.
void FlatKv::MakeRoom(BlockPool& pool, KvNeed& rest) {
  int64_t num_more = 0;
  (&pool == &sets_ ? rest.sets : &pool == &rows_ ? rest.rows : WindowNeed(pool, rest)) -= 1;
  std::array<int64_t, kMaxGroups> blocks;
  NeedsByGroup(rest, blocks);
  for (int32_t group = 0; group < num_groups(); ++group) num_more += blocks[group];
  if (num_more > 0 && physical_.num_unpinned() < num_more + pool.num_groups()) UseSpare(pool);
  while (!pool.CanAcquire()) {
    BlockPool* victim = pool.has_free_item() ? ColdestClass(pool) : &pool;
    TS_CHECK(victim != nullptr, "room that was promised can be made");
    if (victim == &pool) {
      EvictColdest(pool);
    } else {
      TakePhysicalFrom(*victim);
    }
  }
}

int32_t FlatKv::WindowNumber(const BlockPool& pool) const {
  int32_t w = 0;
  while (windows_[w].get() != &pool) ++w;
  return w;
}

void FlatKv::UseSpare(BlockPool& pool) {
  for (int32_t k = 0; k < pool.num_groups(); ++k) {
    const GroupId group = pool.group(k);
    while (physical_.num_spare(group) > 0 && !physical_.HasPinnedRoom(group)) EvictColdest(pool);
  }
}

// Returns the class whose coldest thing is coldest, of those that can give room to `pool`: itself
// when equal, then window groups, rows, sets.
BlockPool* FlatKv::ColdestClass(BlockPool& pool) {
  BlockPool* best = nullptr;
  int64_t best_score = 0;
  const auto consider = [&](BlockPool& candidate) {
    if (candidate.queue().num_resting() == 0) return;
    if (&candidate != &pool && !CanGivePhysical(candidate)) return;
    const int64_t score = candidate.ColdestScore();
    if (best != nullptr && score <= best_score) return;
    best = &candidate;
    best_score = score;
  };
  consider(pool);
  for (const auto& window : windows_) consider(*window);
  consider(rows_);
  consider(sets_);
  return best;
}

bool FlatKv::CanGivePhysical(const BlockPool& pool) const {
  for (int32_t k = 0; k < pool.num_groups(); ++k) {
    if (physical_.LeastResident(pool.group(k)).value != 0) return true;
  }
  return false;
}

// Frees the unpinned physical block with fewest residents; or, where that would drop what the order
// of eviction protects, the coldest thing of the class: then the next call looks again.
void FlatKv::TakePhysicalFrom(BlockPool& pool) {
  GroupId best_group;
  PhysicalId best;
  int32_t fewest = 0;
  for (int32_t k = 0; k < pool.num_groups(); ++k) {
    const PhysicalId id = physical_.LeastResident(pool.group(k));
    if (id.value == 0) continue;
    const int32_t residents = physical_.num_residents(id);
    if (best.value != 0 && residents >= fewest) continue;
    best_group = pool.group(k);
    best = id;
    fewest = residents;
  }
  const bool is_surplus = pool.ColdestScore() == EvictionQueue::kSurplusScore;
  const bool has_choice = physical_.packing(best_group) > 1;
  if (is_surplus || !has_choice || !DropResidents(pool, best_group, best)) EvictColdest(pool);
}

// Drops all residents of a physical block, unless one of them is retained or has children that do
// not live here. Returns: whether it did.
bool FlatKv::DropResidents(BlockPool& pool, GroupId group, PhysicalId id) {
  std::array<int32_t, PhysicalPool::kMaxPacking> residents;
  const int32_t packing = physical_.packing(group);
  size_t count = 0;
  for (uint64_t mask = physical_.used_mask(id); mask != 0; mask &= mask - 1) {
    const BlockId block(id.value * packing + std::countr_zero(mask));
    residents[count++] = physical_.owner(group, block);
    if (pool.queue().is_retained(residents[count - 1], now_us_)) return false;
  }
  const auto mine = std::span(residents).first(count);
  if (&pool == &sets_ && !SortLeavesFirst(mine)) return false;
  for (const int32_t item : mine) EvictItem(pool, item);
  return true;
}

// Puts sets into an order in which each comes after its children. Returns: false when children are
// missing.
bool FlatKv::SortLeavesFirst(std::span<int32_t> sets) const {
  std::array<int32_t, PhysicalPool::kMaxPacking> num_children{};
  for (size_t i = 0; i < sets.size(); ++i) num_children[i] = index_.num_children(SetId(sets[i]));
  for (size_t next = 0; next < sets.size(); ++next) {
    size_t leaf = next;
    while (leaf < sets.size() && num_children[leaf] > 0) ++leaf;
    if (leaf == sets.size()) return false;
    std::swap(sets[next], sets[leaf]);
    std::swap(num_children[next], num_children[leaf]);
    const NodeId parent = index_.parent(SetId(sets[next]));
    for (size_t i = next + 1; i < sets.size(); ++i) num_children[i] -= sets[i] == parent.value;
  }
  return true;
}

void FlatKv::EvictColdest(BlockPool& pool) {
  const int32_t coldest = pool.Coldest();
  TS_CHECK(coldest != 0, "room that was promised can be evicted");
  EvictItem(pool, coldest);
}

void FlatKv::EvictItem(BlockPool& pool, int32_t item) {
  if (&pool == &sets_) {
    const SetId set(item);
    ++num_evictions_;
    if (watcher_ != nullptr) watcher_->SetGoes(set);
    if (index_.IsFull(set)) {
      const Hash128 key = index_.key(NodeId::Of(set));
      evicted_.Add(key);
      if (config_.events) events_.Removed(KvMedium::kDevice, key);
    }
    index_.Remove(set);
  } else if (&pool == &rows_) {
    ++num_snapshot_evictions_;
    if (watcher_ != nullptr) watcher_->SnapshotGoes(RowId(item));
    index_.DetachSnapshot(RowId(item));
  } else {
    ++num_window_evictions_;
    if (watcher_ != nullptr) watcher_->WindowGoes(WindowNumber(pool), WindowId(item));
    index_.DetachWindow(WindowNumber(pool), WindowId(item));
  }
}

}  // namespace tokenspeed
