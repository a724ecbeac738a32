// Who runs next. Three levels: tenants, the root sessions of each, and the waiting requests of
// each.
//
//   tenants, and roots of one    class, queue key of the first request, least work served, cached
//                                share and arrival of the first request
//   requests of one root         class, queue key, cached share, arrival
//
// A class is a priority plus the whole ageing periods that somebody was passed over: of a request
// the time since it came, of a tenant or a root the time since it was served (or came). So nobody
// waits for ever, and a tenant that floods the queue does not push out one that asks little: its
// requests grow old against each other only. Within a tenant the same holds for a root session, an
// agent with all its sub-agents. Requests without a root are one root's.
//
// Rest is no credit: who comes back starts with the work of the least served one that waits, or, if
// nobody does, of the one that was served last. So it costs little to forget who does not wait.
// Classes change at known times (a heap of promotions); nothing is sorted again per step.
// O(log n) per push, removal, promotion and charge. Order never depends on addresses or hashing.
// Thread: scheduler thread only.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <set>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/ids.h"

namespace tokenspeed {

struct Waiting {
  RequestIndex index = {};
  int64_t tenant = 0;
  int64_t root = 0;  // session that all of its family descend from; 0: none
  int32_t priority = 0;
  int64_t since_us = 0;
  int64_t queue_key = 0;
  int32_t cached_eighths = 0;  // of the prompt, 0 to 8
  int64_t arrival = 0;         // unique
};

class Queue {
 public:
  explicit Queue(int64_t ageing_us) : ageing_us_(ageing_us), groups_(1) {}

  // Time of the calls that follow; never goes back. Promotes whoever is due.
  void Advance(int64_t now_us);

  void Push(const Waiting& waiting);
  void Remove(RequestIndex index);
  bool Contains(RequestIndex index) const { return waiting_.contains(index.value); }

  // Returns who runs next. REQUIRES: not empty.
  RequestIndex first() const { return FirstIn(groups_[groups_[kAll].order.begin()->member]); }
  // Returns the first of the tenants that `skips(tenant)` leaves, -1 for none. O(tenants skipped).
  template <class Skips>
  RequestIndex FirstBut(const Skips& skips) const {
    for (const Key& key : groups_[kAll].order) {
      const Group& tenant = groups_[key.member];
      if (!skips(tenant.name)) return FirstIn(tenant);
    }
    return RequestIndex(-1);
  }
  // Returns the first of these tenants, -1 for none. O(tenants given).
  RequestIndex FirstOf(std::span<const int64_t> tenants) const;
  bool empty() const { return waiting_.empty(); }
  size_t size() const { return waiting_.size(); }

  // Returns who waits, in the order in which they run if nobody comes or goes, each charged
  // `work(waiting)`. O(n log n), on a copy.
  template <class Work>
  std::vector<Waiting> Order(const Work& work) const;

  // Counts work for a tenant that waits or waited, and for its root. Serving also says that they
  // are not passed over now.
  void Charge(int64_t tenant, int64_t root, int64_t tokens, bool is_served);

  // Tenants and roots that are remembered.
  size_t num_groups() const { return group_of_.size(); }

  void CheckInvariants() const;

 private:
  static constexpr size_t kMaxGroups = 8192;  // beyond, those that do not wait are forgotten
  static constexpr int32_t kAll = 0;          // the group of all tenants

  // Place of a member in its group.
  struct Key {
    int64_t negative_class = 0;
    int64_t queue_key = 0;
    int64_t served = 0;  // of requests 0
    int32_t negative_cached = 0;
    int64_t arrival = 0;  // of the first request: unique
    int32_t member = 0;   // a group, or a request's row
    auto operator<=>(const Key&) const = default;
  };
  struct Entry {
    Waiting waiting;
    int32_t root = 0;  // group
    Key key;
    int64_t promotion_us = 0;
  };
  using Count = std::pair<int32_t, int32_t>;  // priority, how many wait with it
  // All tenants, a tenant, or a root: what waits in it, and its own place in the group above.
  struct Group {
    int32_t parent = kAll;
    int64_t name = 0;
    std::set<Key> order;
    std::vector<Count> priorities;             // increasing
    std::multiset<int64_t> served_of_members;  // that wait
    int64_t last_served = 0;                   // the most that a member had when its turn came
    int32_t num_members = 0;                   // that are remembered

    int64_t served = 0;      // work
    int64_t served_us = 0;   // last time, or when it came
    bool is_placed = false;  // in the group above, by:
    Key key;
    int64_t promotion_us = 0;
  };
  using Name = std::pair<int32_t, int64_t>;  // group above, tenant or root
  struct NameHash {
    size_t operator()(const Name& name) const {
      return std::hash<int64_t>()(name.second ^ (int64_t{name.first} << 32));
    }
  };
  using Due = std::pair<int64_t, int32_t>;  // time, request row or group

  int64_t Class(int32_t priority, int64_t since_us) const {
    return priority + (now_us_ - since_us) / ageing_us_;
  }
  int64_t NextPromotion(int64_t since_us) const {
    return since_us + ((now_us_ - since_us) / ageing_us_ + 1) * ageing_us_;
  }
  // First request of a tenant. REQUIRES: somebody waits in it.
  RequestIndex FirstIn(const Group& tenant) const {
    return RequestIndex(groups_[tenant.order.begin()->member].order.begin()->member);
  }
  int32_t FindOrAdd(int32_t parent, int64_t name);
  void ForgetIdle();
  void Forget(int32_t id);
  void Enter(int32_t id, const Waiting& waiting);
  void Leave(int32_t id, int32_t priority);
  void Link(Entry& entry);
  void Unlink(Entry& entry);
  void Place(int32_t id);
  void LinkGroup(int32_t id);
  void UnlinkGroup(int32_t id);
  Key KeyOf(int32_t id) const;

  int64_t ageing_us_;
  int64_t now_us_ = 0;
  std::unordered_map<int32_t, Entry> waiting_;  // by row; looked up only
  std::vector<Group> groups_;
  std::vector<int32_t> free_groups_;
  std::unordered_map<Name, int32_t, NameHash> group_of_;  // likewise
  size_t max_groups_ = kMaxGroups;
  std::set<Due> promotions_, group_promotions_;
};

template <class Work>
std::vector<Waiting> Queue::Order(const Work& work) const {
  Queue rest = *this;
  std::vector<Waiting> order;
  order.reserve(size());
  while (!rest.empty()) {
    const Waiting waiting = rest.waiting_.at(rest.first().value).waiting;
    order.push_back(waiting);
    rest.Remove(waiting.index);
    rest.Charge(waiting.tenant, waiting.root, work(waiting), true);
  }
  return order;
}

}  // namespace tokenspeed
