#include "scheduler/queue.h"

#include <algorithm>

#include "base/check.h"

namespace tokenspeed {

void Queue::Advance(int64_t now_us) {
  now_us_ = std::max(now_us_, now_us);
  while (!promotions_.empty() && promotions_.begin()->first <= now_us_) {
    Entry& entry = waiting_.at(promotions_.begin()->second);
    Unlink(entry);
    Link(entry);
    Place(entry.root);
  }
  while (!group_promotions_.empty() && group_promotions_.begin()->first <= now_us_) {
    Place(group_promotions_.begin()->second);
  }
}

void Queue::Push(const Waiting& waiting) {
  const auto [found, is_new] = waiting_.try_emplace(waiting.index.value);
  TS_CHECK(is_new, "a request waits once");
  if (group_of_.size() > max_groups_) ForgetIdle();
  Entry& entry = found->second;
  entry.waiting = waiting;
  entry.waiting.since_us = std::min(waiting.since_us, now_us_);
  entry.root = FindOrAdd(FindOrAdd(kAll, waiting.tenant), waiting.root);
  for (int32_t id = entry.root; id != kAll; id = groups_[id].parent) Enter(id, entry.waiting);
  Link(entry);
  Place(entry.root);
}

void Queue::Remove(RequestIndex index) {
  const auto found = waiting_.find(index.value);
  TS_CHECK(found != waiting_.end(), "only a waiting request leaves the queue");
  Entry& entry = found->second;
  const int32_t root = entry.root, priority = entry.waiting.priority;
  Unlink(entry);
  waiting_.erase(found);
  for (int32_t id = root; id != kAll; id = groups_[id].parent) Leave(id, priority);
  Place(root);
}

void Queue::Charge(int64_t tenant, int64_t root, int64_t tokens, bool is_served) {
  const auto found = group_of_.find({kAll, tenant});
  if (found == group_of_.end()) return;
  const auto of_root = group_of_.find({found->second, root});
  const int32_t lowest = of_root == group_of_.end() ? found->second : of_root->second;
  for (int32_t id = lowest; id != kAll; id = groups_[id].parent) {
    Group& group = groups_[id];
    int64_t& last_served = groups_[group.parent].last_served;
    if (is_served) last_served = std::max(last_served, group.served);
    if (is_served) group.served_us = now_us_;
    group.served += tokens;
  }
  Place(lowest);
}

RequestIndex Queue::FirstOf(std::span<const int64_t> tenants) const {
  const Group* best = nullptr;
  for (const int64_t name : tenants) {
    const auto found = group_of_.find({kAll, name});
    if (found == group_of_.end() || !groups_[found->second].is_placed) continue;
    const Group& tenant = groups_[found->second];
    if (best == nullptr || tenant.key < best->key) best = &tenant;
  }
  return best == nullptr ? RequestIndex(-1) : FirstIn(*best);
}

int32_t Queue::FindOrAdd(int32_t parent, int64_t name) {
  const auto [found, is_new] = group_of_.try_emplace({parent, name}, 0);
  if (!is_new) return found->second;
  if (free_groups_.empty()) {
    free_groups_.push_back(static_cast<int32_t>(groups_.size()));
    groups_.emplace_back();
  }
  const int32_t id = found->second = free_groups_.back();
  free_groups_.pop_back();
  groups_[id].parent = parent;
  groups_[id].name = name;
  ++groups_[parent].num_members;
  return id;
}

void Queue::ForgetIdle() {
  std::vector<int32_t> roots, tenants;
  for (const auto& [name, id] : group_of_) {
    if (groups_[id].order.empty()) (name.first == kAll ? tenants : roots).push_back(id);
  }
  for (const int32_t id : roots) Forget(id);
  for (const int32_t id : tenants) Forget(id);
  max_groups_ = std::max(kMaxGroups, 2 * group_of_.size());
}

void Queue::Forget(int32_t id) {
  TS_CHECK(groups_[id].num_members == 0, "who does not wait has nobody who does");
  --groups_[groups_[id].parent].num_members;
  group_of_.erase({groups_[id].parent, groups_[id].name});
  groups_[id] = Group{};
  free_groups_.push_back(id);
}

// One more waits in a group.
void Queue::Enter(int32_t id, const Waiting& waiting) {
  Group& group = groups_[id];
  if (group.order.empty()) {
    const Group& above = groups_[group.parent];
    const auto& others = above.served_of_members;
    group.served_us = waiting.since_us;
    group.served = std::max(group.served, others.empty() ? above.last_served : *others.begin());
  }
  auto& counts = group.priorities;
  const auto place = std::ranges::lower_bound(counts, waiting.priority, {}, &Count::first);
  if (place != counts.end() && place->first == waiting.priority) {
    ++place->second;
  } else {
    counts.insert(place, {waiting.priority, 1});
  }
}

void Queue::Leave(int32_t id, int32_t priority) {
  auto& counts = groups_[id].priorities;
  const auto place = std::ranges::lower_bound(counts, priority, {}, &Count::first);
  if (--place->second == 0) counts.erase(place);
}

void Queue::Link(Entry& entry) {
  const Waiting& waiting = entry.waiting;
  entry.key = {.negative_class = -Class(waiting.priority, waiting.since_us),
               .queue_key = waiting.queue_key,
               .negative_cached = -waiting.cached_eighths,
               .arrival = waiting.arrival,
               .member = waiting.index.value};
  entry.promotion_us = NextPromotion(waiting.since_us);
  groups_[entry.root].order.insert(entry.key);
  promotions_.emplace(entry.promotion_us, waiting.index.value);
}

void Queue::Unlink(Entry& entry) {
  groups_[entry.root].order.erase(entry.key);
  promotions_.erase({entry.promotion_us, entry.waiting.index.value});
}

// Something in a group changed: puts it and those above it where they belong.
void Queue::Place(int32_t id) {
  for (; id != kAll; id = groups_[id].parent) {
    Group& group = groups_[id];
    if (group.order.empty()) {
      if (group.is_placed) UnlinkGroup(id);
      continue;
    }
    const Key key = KeyOf(id);
    const int64_t promotion_us = NextPromotion(group.served_us);
    if (group.is_placed) {
      if (key == group.key && promotion_us == group.promotion_us) continue;
      UnlinkGroup(id);
    }
    group.key = key;
    group.promotion_us = promotion_us;
    LinkGroup(id);
  }
}

// A group's class comes from the highest priority that waits in it, whoever is its first.
Queue::Key Queue::KeyOf(int32_t id) const {
  const Group& group = groups_[id];
  const Key& first = *group.order.begin();
  return {.negative_class = -Class(group.priorities.back().first, group.served_us),
          .queue_key = first.queue_key,
          .served = group.served,
          .negative_cached = first.negative_cached,
          .arrival = first.arrival,
          .member = id};
}

void Queue::LinkGroup(int32_t id) {
  Group& group = groups_[id];
  group.is_placed = true;
  groups_[group.parent].order.insert(group.key);
  groups_[group.parent].served_of_members.insert(group.key.served);
  group_promotions_.emplace(group.promotion_us, id);
}

void Queue::UnlinkGroup(int32_t id) {
  Group& group = groups_[id];
  group.is_placed = false;
  Group& above = groups_[group.parent];
  above.order.erase(group.key);
  above.served_of_members.erase(above.served_of_members.find(group.key.served));
  group_promotions_.erase({group.promotion_us, id});
}

void Queue::CheckInvariants() const {
  size_t num_waiting = 0, num_placed = 0;
  std::vector<size_t> num_linked(groups_.size(), 0);
  std::vector<int32_t> num_members(groups_.size(), 0);
  for (const auto& [row, entry] : waiting_) ++num_linked[entry.root];
  for (const auto& [name, id] : group_of_) {
    const Group& group = groups_[id];
    TS_CHECK(name == Name(group.parent, group.name), "a group is found by its name");
    ++num_members[group.parent];
    TS_CHECK(group.is_placed == !group.order.empty(), "who has somebody waiting has a place");
    if (!group.is_placed) continue;
    ++num_placed;
    ++num_linked[group.parent];
    TS_CHECK(groups_[group.parent].order.contains(group.key), "a place is that of the key");
    TS_CHECK(group.key.arrival == group.order.begin()->arrival, "a group stands for its first");
    if (group.parent == kAll) continue;
    num_waiting += group.order.size();
  }
  for (size_t id = 0; id < groups_.size(); ++id) {
    const Group& group = groups_[id];
    TS_CHECK(group.order.size() == num_linked[id], "every member has one place");
    TS_CHECK(group.num_members == num_members[id], "members are counted");
  }
  TS_CHECK(num_placed == group_promotions_.size(), "only groups with a place grow old");
  TS_CHECK(num_waiting == waiting_.size() && num_waiting == promotions_.size(),
           "every waiting request is one root's");
}

}  // namespace tokenspeed
