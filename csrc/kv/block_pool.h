// Block sets: one logical block in every group, all for the same block_tokens tokens of a sequence.
// Counts who holds each set; a set that nobody holds is freed, or, if the prefix index knows it,
// waits on the cold list until it is matched again or evicted.
// Owns the reference counts and the cold list. Every BlockRef points back here, so the pool
// outlives all refs; a pool destroyed with live refs says so on stderr.
// Thread: scheduler thread only.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "kv/physical_pool.h"

namespace tokenspeed {

class BlockPool;

// Move-only, counted hold on one block set. Sharing is explicit; the destructor lets go.
class BlockRef {
 public:
  BlockRef() = default;
  BlockRef(BlockRef&& other) noexcept
      : pool_(std::exchange(other.pool_, nullptr)), set_(std::exchange(other.set_, SetId())) {}
  BlockRef& operator=(BlockRef&& other) noexcept {
    std::swap(pool_, other.pool_);
    std::swap(set_, other.set_);
    return *this;
  }
  ~BlockRef() { Reset(); }

  // Returns another hold on the same set. REQUIRES: not empty.
  BlockRef Share() const;
  inline void Reset() noexcept;

  SetId set() const { return set_; }
  explicit operator bool() const { return pool_ != nullptr; }

 private:
  friend class BlockPool;
  BlockRef(BlockPool* pool, SetId set) : pool_(pool), set_(set) {}

  BlockPool* pool_ = nullptr;  // not owned; outlives this
  SetId set_;
};

class BlockPool {
 public:
  BlockPool(std::vector<int32_t> packing, int32_t num_physical_blocks);
  ~BlockPool();
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

  // Returns: a fresh set that the caller alone holds; nullopt when some group has no room, and the
  // pool is then unchanged.
  std::optional<BlockRef> Acquire();

  // Returns a hold on a set that is in use or cached.
  BlockRef Hold(SetId set);

  // A cached set goes to the cold list instead of being freed. Clearing the mark of a set that
  // nobody holds frees it.
  void SetCached(SetId set, bool is_cached);

  // Returns: the cached set that was let go longest ago, SetId(0) for none.
  SetId coldest() const { return SetId(coldest_); }

  bool CanAcquire() const { return physical_.CanAcquireOneEach(); }
  bool CanHold(int64_t num_sets) const { return physical_.CanHold(num_sets); }

  BlockId block(SetId set, GroupId group) const {
    return BlockId(block_ids_[static_cast<size_t>(set.value) * num_groups_ + group.value]);
  }
  int32_t refs(SetId set) const { return sets_[set.value].refs; }
  bool is_cached(SetId set) const { return sets_[set.value].is_cached; }
  SetId hotter(SetId set) const { return SetId(sets_[set.value].hotter); }
  int32_t num_groups() const { return num_groups_; }
  int32_t max_sets() const { return static_cast<int32_t>(sets_.size()) - 1; }
  int64_t num_refs() const { return num_refs_; }
  // Counts sets that nobody held any more, ever: while it stands still, no room has come.
  int64_t num_releases() const { return num_releases_; }
  const PhysicalPool& physical() const { return physical_; }

  void CheckInvariants() const;

 private:
  friend class BlockRef;
  struct Set {
    int32_t refs = 0;
    bool is_cached = false;
    bool is_taken = false;
    int32_t colder = 0, hotter = 0;  // cold list; 0 ends it
  };

  void Drop(SetId set) noexcept;
  void Free(int32_t set);
  void PinAll(int32_t set);
  void LinkHottest(int32_t set);
  void Unlink(int32_t set);

  PhysicalPool physical_;
  int32_t num_groups_;
  std::vector<Set> sets_;
  std::vector<int32_t> block_ids_;  // [set][group]
  std::vector<int32_t> free_sets_;
  int32_t coldest_ = 0, hottest_ = 0;
  int64_t num_refs_ = 0;
  int64_t num_releases_ = 0;
};

inline void BlockRef::Reset() noexcept {
  if (pool_ != nullptr) std::exchange(pool_, nullptr)->Drop(std::exchange(set_, SetId()));
}

// The block sets of one request in sequence order. Lets go of the last first, so that on the cold
// list a child is always evicted before its parent.
class BlockTable {
 public:
  BlockTable() = default;
  BlockTable(BlockTable&&) noexcept = default;
  BlockTable& operator=(BlockTable&& other) noexcept {
    refs_.swap(other.refs_);
    return *this;
  }
  ~BlockTable() { Truncate(0); }

  void Append(BlockRef ref) { refs_.push_back(std::move(ref)); }
  void Replace(size_t index, BlockRef ref) { refs_[index] = std::move(ref); }
  void Truncate(size_t size) {
    while (refs_.size() > size) refs_.pop_back();
  }
  void Reserve(size_t size) { refs_.reserve(size); }
  SetId set(size_t index) const { return refs_[index].set(); }
  size_t size() const { return refs_.size(); }

 private:
  std::vector<BlockRef> refs_;
};

}  // namespace tokenspeed
