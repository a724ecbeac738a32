// In which order cached things go. Each thing at rest (a set of full blocks, a window block, a row
// of state) has a key (gap, last use); the victim is the one with the largest
//
//     max(gap - age, 2/3 age)        age = now - last use
//
// gap is how long its owner is expected to stay away (a policy says so), 0 if nobody knows. So
// whoever is expected back last goes first; who is overdue is expected to stay away for two thirds
// of the time it has been away. With gap 0 everywhere this is plain LRU.
//
// gap - age is (last use + gap) - now, the expected return, so the largest score is the larger of
// the last return and the largest age; two orders are enough and nothing moves as time passes:
//   list   things without a gap, by last use: O(1), the plain LRU
//   heaps  things with a gap, once by return and once by last use: O(log n)
// Beside them: `surplus`, things of no expected use at all, which go first; and `retained`, things
// that somebody asked to keep until a given time, which go last. A thing that others hang on (the
// parent of cached blocks) is never a victim: it enters the heaps when its last child went. In the
// list it may wait before that: it was let go after its children, so they come first.
// A victim's parent mostly has the victim's key: it takes its place on top of the heap, at no cost.
//
// A thing belongs to an account; each account has orders of its own, so that its coldest thing is
// found without a look at others'. A list is a ring through a place of its own among the items, so
// who leaves it needs no look at whose it is.
//
// Owns keys and order of one kind of thing, by number from 1. Reads no clock: `now` is set.
// Thread: scheduler thread only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "base/pages.h"

namespace tokenspeed {

class EvictionQueue {
 public:
  explicit EvictionQueue(int32_t max_items);

  // How long a thing at rest is expected to rest, and until when it is kept. Stays until changed.
  void SetGap(int32_t item, int64_t gap_us);
  void Retain(int32_t item, int64_t until_us);  // never shortens
  void SetLeaf(int32_t item, bool is_leaf);     // new items are leaves
  void Forget(int32_t item);  // key of a new item, of no account. REQUIRES: not at rest
  // Whose a new item is. REQUIRES: not at rest.
  void SetAccount(int32_t item, AccountId account) { marks_[item].account = account; }
  // The same for items in any place; each keeps its rank. O(n log n) in the items of both accounts.
  void MoveTo(AccountId account, std::span<const int32_t> items);

  // Nobody holds it from now on. Surplus: it goes before all others.
  void Rest(int32_t item, int64_t now_us, bool is_surplus = false);
  // It is held again, or gone. REQUIRES: at rest.
  void Wake(int32_t item) {
    Mark& mark = marks_[item];
    if (mark.place != Place::kInner) Leave(item);
    mark.place = Place::kAwake;
    --num_resting_;
  }

  // Returns the account's next victim, 0 for none. Takes note of retentions that ended.
  int32_t Coldest(int64_t now_us, AccountId account = {});
  // Returns max(gap - age, 2/3 age) of a victim; above all others for surplus, below for retained.
  int64_t Score(int32_t victim, int64_t now_us) const;
  int64_t ColdestScore(int64_t now_us) { return Score(Coldest(now_us), now_us); }
  static constexpr int64_t kSurplusScore = std::numeric_limits<int64_t>::max();
  static constexpr int64_t kRetainedScore = -1;
  static constexpr int64_t kMaxGapUs = int64_t{1} << 60;  // longer ones are cut

  void Prefetch(int32_t item) const { __builtin_prefetch(&marks_[item], 1); }
  // What Wake writes beside, some calls after Prefetch: the place in the list of who is there.
  void PrefetchLinks(int32_t item) const {
    if (marks_[item].place == Place::kList) __builtin_prefetch(&items_[item], 1);
  }
  AccountId account(int32_t item) const { return marks_[item].account; }
  bool is_resting(int32_t item) const { return marks_[item].place != Place::kAwake; }
  bool is_surplus(int32_t item) const { return marks_[item].place == Place::kSurplus; }
  bool is_retained(int32_t item, int64_t now_us) const {
    return items_[item].retain_until_us > now_us;
  }
  int64_t last_use_us(int32_t item) const { return items_[item].last_use_us; }
  int32_t num_resting() const { return num_resting_; }
  int32_t num_retained() const { return num_retained_; }  // marked and not seen to have ended

  void CheckInvariants() const;

 private:
  enum class Place : uint8_t { kAwake, kList, kSurplus, kInner, kHeaps, kRetained };
  struct alignas(64) Item {
    int64_t gap_us = 0;
    int64_t last_use_us = 0;
    int64_t order = 0;  // counts rests: who came to rest first
    int64_t retain_until_us = 0;
    int32_t colder = 0, hotter = 0;    // of its list's ring
    int32_t heap_index[2] = {-1, -1};  // by return (or by end of retention), by last use
  };
  // Apart from the keys: who holds a long chain again reads nothing else of its inner things.
  struct alignas(4) Mark {
    Place place = Place::kAwake;
    bool is_leaf = true;
    AccountId account;
  };
  enum Order { kByReturn, kByLastUse, kByRetention };
  struct Heap {
    Order order;
    int slot;  // which heap_index is its
    std::vector<int32_t> items;
    bool has_hole = false;  // the top was taken out and nothing has filled its place yet
  };
  struct Orders {
    Heap by_return{kByReturn, 0, {}, false};
    Heap by_last_use{kByLastUse, 1, {}, false};
    Heap by_retention{kByRetention, 0, {}, false};
  };

  // When its owner is expected back, and how long it is expected to stay away once overdue.
  static int64_t ReturnUs(const Item& item) { return item.last_use_us + item.gap_us; }
  static int64_t LateUs(const Item& item, int64_t now_us) {
    return (now_us - item.last_use_us) / 3 * 2;
  }
  bool Precedes(Order order, int32_t a, int32_t b) const;
  void Push(Heap& heap, int32_t item);
  void Erase(Heap& heap, int32_t item);
  void FillHole(Heap& heap);
  int32_t Top(Heap& heap);
  void SiftUp(Heap& heap, size_t index);
  void SiftDown(Heap& heap, size_t index);
  void Put(Heap& heap, size_t index, int32_t item);
  // Places of the rings of an account, behind all items.
  int32_t ListOf(AccountId account) const { return max_items_ + 1 + 2 * account.value; }
  int32_t SurplusOf(AccountId account) const { return ListOf(account) + 1; }
  int32_t ColdestIn(int32_t ring) const {
    const int32_t coldest = items_[ring].hotter;
    return coldest == ring ? 0 : coldest;
  }
  void Link(int32_t ring, int32_t item);
  void Unlink(int32_t item);
  void Merge(int32_t ring, std::vector<int32_t>& items);
  void Enqueue(int32_t item);  // by its key, leaf or not
  void Leave(int32_t item);
  void EndRetentions(Orders& orders, int64_t now_us);
  void CheckHeap(const Heap& heap, AccountId account) const;
  void CheckRing(AccountId account, Place place, int32_t& count) const;

  int32_t max_items_;
  TableVector<Item> items_;  // and the places of the rings
  TableVector<Mark> marks_;
  std::vector<Orders> orders_;  // [account]
  int64_t num_rests_ = 0;
  int32_t num_resting_ = 0;
  int32_t num_retained_ = 0;
};

}  // namespace tokenspeed
