// FlatKv, where room comes from: which class gives way, and what it drops.
#include <bit>
#include <limits>

#include "base/check.h"
#include "kv/flat_kv.h"

namespace tokenspeed {

// Sees to it that `pool` can acquire one thing of those in `rest`, and counts it off. While
// physical blocks are scarce a group fills its pinned ones first, dropping what is only cached
// there: as CanHold counted, so that what is still to come fits too.
void FlatKv::MakeRoom(BlockPool& pool, KvNeed& rest, AccountId account) {
  (&pool == &sets_ ? rest.sets : &pool == &rows_ ? rest.rows : WindowNeed(pool, rest)) -= 1;
  if (!accounts().empty()) return MakeRoomFor(account);
  if (!physical_.is_plain()) {
    int64_t num_more = 0;
    std::array<int64_t, kMaxGroups> blocks;
    NeedsByGroup(rest, blocks);
    for (int32_t group = 0; group < num_groups(); ++group) num_more += blocks[group];
    if (num_more > 0 && physical_.num_unpinned() < num_more + pool.num_groups()) UseSpare(pool);
  }
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

// Memory is what it costs to evict a long chain: its next victim is mostly the parent of the last
// one, so what an eviction will read is asked for some blocks ahead of it.
void FlatKv::LookAhead(int32_t& ahead, AccountId account) {
  constexpr int kBlocksAhead = 4;
  int num_steps = 1;
  if (ahead == 0) {
    ahead = accounts().empty() ? sets_.Coldest() : ColdestFor(account);
    num_steps = kBlocksAhead;
  }
  for (; ahead != 0 && num_steps > 0; --num_steps) {
    const NodeId parent = index_.parent(SetId(ahead));
    ahead = std::max(0, parent.value);
    if (ahead == 0) return;
    sets_.PrefetchItem(ahead);
    index_.PrefetchErase(SetId(ahead));
    evicted_.Prefetch(index_.key(parent));
    index_.PrefetchParent(SetId(ahead));
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

// Frees a physical block of the class: of the unpinned ones with fewest residents, the one that
// costs least; a set takes those after it along. Nothing retained goes this way. Evicting
// the coldest one by one instead would leave holes everywhere before a physical block is empty.
void FlatKv::TakePhysicalFrom(BlockPool& pool) {
  constexpr int kMaxCandidates = 8;
  Residents best;
  size_t num_best = 0;
  int32_t least = std::numeric_limits<int32_t>::max();
  for (int32_t k = 0; k < pool.num_groups(); ++k) {
    const GroupId group = pool.group(k);
    if (physical_.packing(group) == 1) return EvictColdest(pool);  // that frees one
    physical_.LeastResident(group, kMaxCandidates, [&](PhysicalId id) {
      Residents items;
      const size_t count = ResidentsOf(pool, group, id, items);
      const int32_t cost = CostOf(pool, id, std::span(items).first(count));
      if (cost < least) {
        least = cost;
        best = items;
        num_best = count;
      }
      return false;
    });
  }
  if (num_best == 0) return EvictColdest(pool);
  for (size_t i = 0; i < num_best; ++i) {
    if (pool.is_cached(best[i])) EvictWhole(pool, best[i]);  // else it followed one before
  }
}

// Returns how many things live in a physical block and have to be named to drop them all: of sets
// those that do not follow another one there. 0 when one of them is retained.
size_t FlatKv::ResidentsOf(const BlockPool& pool, GroupId group, PhysicalId id,
                           Residents& items) const {
  const int32_t packing = physical_.packing(group);
  size_t count = 0;
  for (uint64_t mask = physical_.used_mask(id); mask != 0; mask &= mask - 1) {
    const BlockId block(id.value * packing + std::countr_zero(mask));
    const int32_t item = physical_.owner(group, block);
    if (pool.queue().is_retained(item, now_us_)) return 0;
    const NodeId parent = &pool == &sets_ ? index_.parent(SetId(item)) : NodeId();
    const bool follows =
        parent.value > 0 &&
        physical_.physical_of(group, pool.block(parent.value, pool.place(group))) == id;
    if (!follows) items[count++] = item;
  }
  return count;
}

// Things that would go; those that live elsewhere count twice, as they leave holes there.
int32_t FlatKv::CostOf(const BlockPool& pool, PhysicalId id, std::span<const int32_t> items) const {
  constexpr int32_t kMaxSubtree = 64;
  if (items.empty()) return std::numeric_limits<int32_t>::max();
  if (&pool != &sets_) return static_cast<int32_t>(items.size());
  int32_t cost = 0;
  for (const int32_t item : items) cost += index_.SubtreeSize(SetId(item), kMaxSubtree);
  return 2 * cost - physical_.num_residents(id);
}

// A set goes after all that follow it.
void FlatKv::EvictWhole(BlockPool& pool, int32_t item) {
  if (&pool == &sets_) {
    while (index_.num_children(SetId(item)) > 0) {
      SetId leaf = index_.DeepestFirst(SetId(item));
      while (leaf.value != item && index_.num_children(leaf) == 0) {
        const SetId parent(index_.parent(leaf).value);
        EvictItem(pool, leaf.value);
        leaf = parent;
      }
    }
  }
  EvictItem(pool, item);
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
    if (index_.IsFull(set)) evicted_.Add(index_.key(NodeId::Of(set)));
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
