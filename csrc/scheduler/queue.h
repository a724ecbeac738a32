// Who runs next. Two levels: tenants, and the waiting requests of each.
//
//   between tenants   class, queue key of the first request, least work served, cached share,
//   arrival within a tenant   class, queue key, cached share, arrival
//
// A class is a priority plus the whole ageing periods that somebody was passed over: within a
// tenant the time since the request came, between tenants the time since the tenant was served (or
// came). So nobody waits for ever, and a tenant that floods the queue does not push out one that
// asks little: its requests grow old against each other only.
//
// A tenant that comes back starts with the work of the least served one that waits: rest is no
// credit. Classes change at known times (a heap of promotions); nothing is sorted again per step.
// O(log n) per push, removal, promotion and charge. Order never depends on addresses or hashing.
// Thread: scheduler thread only.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
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
  int32_t priority = 0;
  int64_t since_us = 0;
  int64_t queue_key = 0;
  int32_t cached_eighths = 0;  // of the prompt, 0 to 8
  int64_t arrival = 0;         // unique
};

class Queue {
 public:
  explicit Queue(int64_t ageing_us) : ageing_us_(ageing_us) {}

  // Time of the calls that follow; never goes back. Promotes whoever is due.
  void Advance(int64_t now_us);

  void Push(const Waiting& waiting);
  void Remove(RequestIndex index);
  bool Contains(RequestIndex index) const { return waiting_.contains(index.value); }

  // Returns who runs next. REQUIRES: not empty.
  RequestIndex first() const { return tenants_.at(order_.begin()->tenant).order.begin()->index; }
  // Returns the first of the tenants that `skips(tenant)` leaves, -1 for none. O(tenants skipped).
  template <class Skips>
  RequestIndex FirstBut(const Skips& skips) const {
    for (const TenantKey& key : order_) {
      if (!skips(key.tenant)) return tenants_.at(key.tenant).order.begin()->index;
    }
    return RequestIndex(-1);
  }
  // Returns the first of these tenants, -1 for none. O(tenants given).
  RequestIndex FirstOf(std::span<const int64_t> tenants) const;
  bool empty() const { return order_.empty(); }
  size_t size() const { return waiting_.size(); }

  // Returns who waits, in the order in which they run if nobody comes or goes, each charged
  // `work(waiting)`. O(n log n), on a copy.
  template <class Work>
  std::vector<Waiting> Order(const Work& work) const;

  // Counts work for a tenant that waits or waited. Serving also says that it is not passed over
  // now.
  void Charge(int64_t tenant, int64_t tokens, bool is_served);

  void CheckInvariants() const;

 private:
  static constexpr size_t kMaxTenants = 4096;  // beyond, those that do not wait are forgotten

  struct Key {
    int64_t negative_class = 0;
    int64_t queue_key = 0;
    int32_t negative_cached = 0;
    int64_t arrival = 0;
    RequestIndex index;
    auto operator<=>(const Key&) const = default;
  };
  struct TenantKey {
    int64_t negative_class = 0;
    int64_t queue_key = 0;
    int64_t served = 0;
    int32_t negative_cached = 0;
    int64_t arrival = 0;
    int64_t tenant = 0;
    auto operator<=>(const TenantKey&) const = default;
  };
  struct Entry {
    Waiting waiting;
    Key key;
    int64_t promotion_us = 0;
  };
  struct Tenant {
    std::set<Key> order;                    // its waiting requests
    std::map<int32_t, int32_t> priorities;  // priority -> how many wait
    TenantKey key;                          // valid while order is not empty
    int64_t served = 0;
    int64_t served_us = 0;  // last time, or when it came
    int64_t promotion_us = 0;
  };
  using Due = std::pair<int64_t, int64_t>;  // time, request row or tenant

  int64_t Class(int32_t priority, int64_t since_us) const {
    return priority + (now_us_ - since_us) / ageing_us_;
  }
  int64_t NextPromotion(int64_t since_us) const {
    return since_us + ((now_us_ - since_us) / ageing_us_ + 1) * ageing_us_;
  }
  void ForgetIdleTenants();
  void Link(Entry& entry);
  void Unlink(Entry& entry);
  void LinkTenant(int64_t id, Tenant& tenant);
  void UnlinkTenant(int64_t id, Tenant& tenant);

  int64_t ageing_us_;
  int64_t now_us_ = 0;
  std::unordered_map<int32_t, Entry> waiting_;   // looked up only
  std::unordered_map<int64_t, Tenant> tenants_;  // looked up only; those that ever waited
  std::set<TenantKey> order_;                    // tenants with somebody waiting
  std::multiset<int64_t> served_of_waiting_;
  std::set<Due> promotions_, tenant_promotions_;
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
    rest.Charge(waiting.tenant, work(waiting), true);
  }
  return order;
}

}  // namespace tokenspeed
