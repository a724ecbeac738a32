// Level two of FlatKV: things that are taken and let go as one, each with one logical block in
// every group of its class. FlatKv has three kinds of class over one PhysicalPool:
//   sets     a logical block in every full group, all for the same block_tokens tokens
//   windows  a logical block of one window group, for the tokens of one set
//   rows     a logical block in every state group: the state at one position
// Counts who holds each; what nobody holds is freed, or, if the prefix index knows it, rests in the
// eviction queue until it is matched again or evicted. This is the one place where a logical block
// is freed: BlockPool::Free, called when the last hold goes or the index forgets.
// A set is of the account that took it until it is freed, and is counted there.
// Owns the reference counts, the queue and the accounts. Every ref points back here, so the pool
// outlives all refs; a pool destroyed with live refs says so on stderr. Thread: scheduler thread
// only.
#pragma once

#include <cstdint>
#include <iterator>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "base/pages.h"
#include "kv/accounts.h"
#include "kv/eviction_queue.h"
#include "kv/physical_pool.h"

namespace tokenspeed {

class BlockPool;

// Move-only, counted hold on one thing of a class. Sharing is explicit; the destructor lets go.
template <class Id>
class Ref {
 public:
  Ref() = default;
  Ref(Ref&& other) noexcept
      : pool_(std::exchange(other.pool_, nullptr)), id_(std::exchange(other.id_, Id())) {}
  Ref& operator=(Ref&& other) noexcept {
    std::swap(pool_, other.pool_);
    std::swap(id_, other.id_);
    return *this;
  }
  ~Ref() { Reset(); }

  // Returns another hold on the same thing. REQUIRES: not empty.
  Ref Share() const;
  inline void Reset() noexcept;
  // Lets go of it as of no more use: cached, it is the first to be evicted.
  inline void ResetAsSurplus() noexcept;

  // Gives the hold to who will let go of it by itself. Returns: the pool.
  BlockPool* Yield() noexcept { return std::exchange(pool_, nullptr); }

  Id id() const { return id_; }
  explicit operator bool() const { return pool_ != nullptr; }

 private:
  friend class BlockPool;
  Ref(BlockPool* pool, Id id) : pool_(pool), id_(id) {}

  BlockPool* pool_ = nullptr;  // not owned; outlives this
  Id id_;
};

using BlockRef = Ref<SetId>;      // class of the full groups
using WindowRef = Ref<WindowId>;  // class of one window group
using RowRef = Ref<RowId>;        // class of the state groups

class BlockPool {
 public:
  // Things of `groups`, at most `max_items` at a time. REQUIRES: `physical` outlives this.
  BlockPool(PhysicalPool& physical, std::vector<GroupId> groups, int32_t max_items);
  ~BlockPool();
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

  bool has_free_item() const { return !free_items_.empty(); }
  int64_t num_free_items() const { return std::ssize(free_items_); }
  // Says whether Acquire would succeed without evicting anything.
  bool CanAcquire() const;
  // Returns a fresh thing that the caller alone holds, its blocks beside those of `near` if there
  // is room. REQUIRES: CanAcquire().
  template <class Id>
  Ref<Id> Acquire(Id near = Id(), AccountId account = {}) {
    const int32_t item = Take(near.value);
    if (account.value != 0) Assign(item, account);
    return Ref<Id>(this, Id(item));
  }
  // Returns a hold on a thing in use or cached.
  template <class Id>
  Ref<Id> Hold(Id id) {
    Keep(id.value);
    return Ref<Id>(this, id);
  }

  // Takes one more hold on each of `items`; each is given back by LetGo.
  void HoldAll(std::span<const SetId> items);
  void LetGo(SetId item) noexcept { Drop(item.value); }

  // A cached thing rests instead of being freed. Clearing the mark of one that nobody holds frees
  // it.
  void SetCached(int32_t item, bool is_cached);

  // Time of what happens from now on: the last use of what is let go.
  void SetNow(int64_t now_us) { now_us_ = now_us; }

  // Returns the cached thing of an account to evict next, 0 for none.
  int32_t Coldest(AccountId account = {}) { return queue_.Coldest(now_us_, account); }
  int64_t ColdestScore() { return queue_.ColdestScore(now_us_); }
  int64_t Score(int32_t victim) const { return queue_.Score(victim, now_us_); }

  // Whose things are; only figures and new accounts are changed through it.
  Accounts& accounts() { return accounts_; }
  const Accounts& accounts() const { return accounts_; }
  AccountId account(int32_t item) const { return items_[item].account; }
  // Gives things in use or cached to another account.
  void MoveTo(AccountId account, std::span<const int32_t> items);
  EvictionQueue& queue() { return queue_; }
  const EvictionQueue& queue() const { return queue_; }

  // Logical block of a thing in the k-th group of the class.
  BlockId block(int32_t item, int32_t k) const {
    return BlockId(block_ids_[static_cast<size_t>(item) * num_groups_ + k]);
  }
  template <class Id>
  BlockId block(Id id, int32_t k) const {
    return block(id.value, k);
  }
  GroupId group(int32_t k) const { return groups_[k]; }
  int32_t place(GroupId group) const {
    int32_t k = 0;
    while (groups_[k] != group) ++k;
    return k;
  }
  int32_t num_groups() const { return num_groups_; }
  int32_t refs(int32_t item) const { return items_[item].refs; }
  int32_t refs(SetId set) const { return refs(set.value); }
  bool is_cached(int32_t item) const { return items_[item].is_cached; }
  bool is_cached(SetId set) const { return is_cached(set.value); }
  bool is_taken(int32_t item) const { return items_[item].is_taken; }
  int32_t max_items() const { return static_cast<int32_t>(items_.size()) - 1; }
  int32_t num_taken() const { return max_items() - static_cast<int32_t>(free_items_.size()); }
  int32_t num_held() const { return num_held_; }      // things that somebody holds
  int32_t num_cached() const { return num_cached_; }  // things that the index knows
  int64_t num_refs() const { return num_refs_; }
  // Counts things that nobody held any more, ever: while it stands still, no room has come.
  int64_t num_releases() const { return num_releases_; }

  // Starts to load what a hold on a thing or an eviction will touch: what is found by the thing's
  // number.
  void PrefetchItem(int32_t item) const {
    __builtin_prefetch(&items_[item], 1);
    __builtin_prefetch(&block_ids_[static_cast<size_t>(item) * num_groups_]);
    queue_.Prefetch(item);
  }

  void CheckInvariants() const;

 private:
  template <class Id>
  friend class Ref;
  struct Item {
    int32_t refs = 0;
    bool is_cached = false;
    bool is_taken = false;
    AccountId account;
  };

  // Some calls after PrefetchItem: its physical blocks.
  void PrefetchBlocks(int32_t item) const {
    queue_.PrefetchLinks(item);
    for (int32_t k = 0; k < num_groups_; ++k) physical_.Prefetch(groups_[k], block(item, k));
  }

  int32_t Take(int32_t near);
  void Keep(int32_t item);
  void Drop(int32_t item, bool is_surplus = false) noexcept;
  void Free(int32_t item);
  void Assign(int32_t item, AccountId account);
  void CheckAccounts() const;

  PhysicalPool& physical_;  // not owned; outlives this
  std::vector<GroupId> groups_;
  int32_t num_groups_;
  TableVector<Item> items_;
  TableVector<int32_t> block_ids_;  // [item][k]
  std::vector<int32_t> free_items_;
  EvictionQueue queue_;
  Accounts accounts_;
  int64_t now_us_ = 0;
  int32_t num_held_ = 0, num_cached_ = 0;
  int64_t num_refs_ = 0;
  int64_t num_releases_ = 0;
};

template <class Id>
Ref<Id> Ref<Id>::Share() const {
  return pool_->Hold(id_);
}
template <class Id>
void Ref<Id>::Reset() noexcept {
  if (pool_ != nullptr) std::exchange(pool_, nullptr)->Drop(std::exchange(id_, Id()).value);
}
template <class Id>
void Ref<Id>::ResetAsSurplus() noexcept {
  if (pool_ != nullptr) std::exchange(pool_, nullptr)->Drop(std::exchange(id_, Id()).value, true);
}

}  // namespace tokenspeed
