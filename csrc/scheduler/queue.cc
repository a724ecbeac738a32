#include "scheduler/queue.h"

#include <algorithm>

#include "base/check.h"

namespace tokenspeed {

void Queue::Advance(int64_t now_us) {
  now_us_ = std::max(now_us_, now_us);
  while (!promotions_.empty() && promotions_.begin()->first <= now_us_) {
    Entry& entry = waiting_.at(static_cast<int32_t>(promotions_.begin()->second));
    Tenant& tenant = tenants_.at(entry.waiting.tenant);
    UnlinkTenant(entry.waiting.tenant, tenant);
    Unlink(entry);
    Link(entry);
    LinkTenant(entry.waiting.tenant, tenant);
  }
  while (!tenant_promotions_.empty() && tenant_promotions_.begin()->first <= now_us_) {
    const int64_t id = tenant_promotions_.begin()->second;
    Tenant& tenant = tenants_.at(id);
    UnlinkTenant(id, tenant);
    LinkTenant(id, tenant);
  }
}

void Queue::Push(const Waiting& waiting) {
  const auto [found, is_new] = waiting_.try_emplace(waiting.index.value);
  TS_CHECK(is_new, "a request waits once");
  Entry& entry = found->second;
  entry.waiting = waiting;
  entry.waiting.since_us = std::min(waiting.since_us, now_us_);
  if (tenants_.size() > kMaxTenants) ForgetIdleTenants();
  Tenant& tenant = tenants_[waiting.tenant];
  if (tenant.order.empty()) {
    tenant.served_us = entry.waiting.since_us;
    if (!served_of_waiting_.empty()) {
      tenant.served = std::max(tenant.served, *served_of_waiting_.begin());
    }
  } else {
    UnlinkTenant(waiting.tenant, tenant);
  }
  ++tenant.priorities[waiting.priority];
  Link(entry);
  LinkTenant(waiting.tenant, tenant);
}

void Queue::Remove(RequestIndex index) {
  const auto found = waiting_.find(index.value);
  TS_CHECK(found != waiting_.end(), "only a waiting request leaves the queue");
  const Waiting waiting = found->second.waiting;
  Tenant& tenant = tenants_.at(waiting.tenant);
  UnlinkTenant(waiting.tenant, tenant);
  Unlink(found->second);
  waiting_.erase(found);
  if (--tenant.priorities[waiting.priority] == 0) tenant.priorities.erase(waiting.priority);
  if (!tenant.order.empty()) LinkTenant(waiting.tenant, tenant);
}

RequestIndex Queue::FirstOf(std::span<const int64_t> tenants) const {
  const Tenant* best = nullptr;
  for (const int64_t id : tenants) {
    const auto found = tenants_.find(id);
    if (found == tenants_.end() || found->second.order.empty()) continue;
    if (best == nullptr || found->second.key < best->key) best = &found->second;
  }
  return best == nullptr ? RequestIndex(-1) : best->order.begin()->index;
}

void Queue::ForgetIdleTenants() {
  std::erase_if(tenants_, [](const auto& item) { return item.second.order.empty(); });
}

void Queue::Charge(int64_t id, int64_t tokens, bool is_served) {
  const auto found = tenants_.find(id);
  if (found == tenants_.end()) return;
  Tenant& tenant = found->second;
  const bool is_waiting = !tenant.order.empty();
  if (is_waiting) UnlinkTenant(id, tenant);
  tenant.served += tokens;
  if (is_served) tenant.served_us = now_us_;
  if (is_waiting) LinkTenant(id, tenant);
}

void Queue::Link(Entry& entry) {
  const Waiting& waiting = entry.waiting;
  entry.key = {-Class(waiting.priority, waiting.since_us), waiting.queue_key,
               -waiting.cached_eighths, waiting.arrival, waiting.index};
  entry.promotion_us = NextPromotion(waiting.since_us);
  tenants_.at(waiting.tenant).order.insert(entry.key);
  promotions_.emplace(entry.promotion_us, waiting.index.value);
}

void Queue::Unlink(Entry& entry) {
  tenants_.at(entry.waiting.tenant).order.erase(entry.key);
  promotions_.erase({entry.promotion_us, entry.waiting.index.value});
}

// A tenant's class comes from the highest priority that waits in it, whoever is its first.
void Queue::LinkTenant(int64_t id, Tenant& tenant) {
  const Key& first = *tenant.order.begin();
  const int32_t priority = tenant.priorities.rbegin()->first;
  tenant.key = {-Class(priority, tenant.served_us),
                first.queue_key,
                tenant.served,
                first.negative_cached,
                first.arrival,
                id};
  tenant.promotion_us = NextPromotion(tenant.served_us);
  order_.insert(tenant.key);
  served_of_waiting_.insert(tenant.served);
  tenant_promotions_.emplace(tenant.promotion_us, id);
}

void Queue::UnlinkTenant(int64_t id, Tenant& tenant) {
  order_.erase(tenant.key);
  served_of_waiting_.erase(served_of_waiting_.find(tenant.key.served));
  tenant_promotions_.erase({tenant.promotion_us, id});
}

void Queue::CheckInvariants() const {
  size_t num_waiting = 0, num_tenants = 0;
  for (const auto& [id, tenant] : tenants_) {
    if (tenant.order.empty()) continue;
    ++num_tenants;
    num_waiting += tenant.order.size();
    TS_CHECK(order_.contains(tenant.key), "a tenant with a waiting request has a place");
    TS_CHECK(tenant.key.arrival == tenant.order.begin()->arrival, "a tenant stands for its first");
  }
  TS_CHECK(num_tenants == order_.size() && num_tenants == served_of_waiting_.size() &&
               num_tenants == tenant_promotions_.size(),
           "only tenants with waiting requests have a place");
  TS_CHECK(num_waiting == waiting_.size() && num_waiting == promotions_.size(),
           "every waiting request is one tenant's");
}

}  // namespace tokenspeed
