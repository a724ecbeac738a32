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

// Frees the unpinned physical block with fewest residents of those that can be freed without
// dropping what the order of eviction protects. Where none is near, the coldest thing of the class
// goes, and the next call looks again.
void FlatKv::TakePhysicalFrom(BlockPool& pool) {
  constexpr int kMaxCandidates = 16;
  GroupId best_group;
  PhysicalId best;
  for (int32_t k = 0; k < pool.num_groups(); ++k) {
    const GroupId group = pool.group(k);
    if (physical_.packing(group) == 1) continue;  // its coldest thing is as good
    const PhysicalId id = physical_.LeastResident(
        group, kMaxCandidates, [&](PhysicalId at) { return IsFreeable(pool, group, at); });
    if (id.value == 0) continue;
    if (best.value != 0 && physical_.num_residents(id) >= physical_.num_residents(best)) continue;
    best_group = group;
    best = id;
  }
  if (best.value == 0) return EvictColdest(pool);
  Residents residents;
  for (const int32_t item : ResidentsOf(best_group, best, residents, &pool == &sets_)) {
    EvictItem(pool, item);
  }
}

// Says whether no resident is retained or has children that live elsewhere.
bool FlatKv::IsFreeable(const BlockPool& pool, GroupId group, PhysicalId id) const {
  Residents residents;
  const auto items = ResidentsOf(group, id, residents, &pool == &sets_);
  return !items.empty() && std::ranges::none_of(items, [&](int32_t item) {
    return pool.queue().is_retained(item, now_us_);
  });
}

// Returns the owners of what lives in a physical block; sets in an order in which each comes after
// its children, none when children are missing.
std::span<const int32_t> FlatKv::ResidentsOf(GroupId group, PhysicalId id, Residents& residents,
                                             bool are_sets) const {
  const int32_t packing = physical_.packing(group);
  size_t count = 0;
  for (uint64_t mask = physical_.used_mask(id); mask != 0; mask &= mask - 1) {
    const BlockId block(id.value * packing + std::countr_zero(mask));
    residents[count++] = physical_.owner(group, block);
  }
  const auto items = std::span(residents).first(count);
  return are_sets && !SortLeavesFirst(items) ? items.first(0) : items;
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
    if (index_.IsFull(set)) {
      const Hash128 key = index_.key(NodeId::Of(set));
      evicted_.Add(key);
      if (config_.events) events_.Removed(KvMedium::kDevice, key);
    }
    index_.Remove(set);
  } else if (&pool == &rows_) {
    ++num_snapshot_evictions_;
    index_.DetachSnapshot(RowId(item));
  } else {
    ++num_window_evictions_;
    index_.DetachWindow(WindowNumber(pool), WindowId(item));
  }
}

}  // namespace tokenspeed
