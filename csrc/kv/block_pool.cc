#include "kv/block_pool.h"

#include <cstdio>

#include "base/check.h"

namespace tokenspeed {

BlockPool::BlockPool(PhysicalPool& physical, std::vector<GroupId> groups, int32_t max_items)
    : physical_(physical),
      groups_(std::move(groups)),
      num_groups_(static_cast<int32_t>(groups_.size())),
      items_(max_items + 1),
      block_ids_(items_.size() * groups_.size(), 0),
      queue_(max_items) {
  free_items_.reserve(max_items);
  for (int32_t item = max_items; item > 0; --item) free_items_.push_back(item);
}

BlockPool::~BlockPool() {
  if (num_refs_ != 0) {
    std::fprintf(stderr, "tokenspeed: block pool destroyed with %lld live references\n",
                 static_cast<long long>(num_refs_));
  }
}

bool BlockPool::CanAcquire() const {
  if (free_items_.empty()) return false;
  int32_t num_fresh = 0;
  for (const GroupId group : groups_) num_fresh += !physical_.HasRoom(group);
  return num_fresh <= physical_.num_free();
}

int32_t BlockPool::Take(int32_t near) {
  TS_CHECK(CanAcquire(), "room was made before");
  const int32_t item = free_items_.back();
  free_items_.pop_back();
  for (int32_t k = 0; k < num_groups_; ++k) {
    const BlockId beside = near == 0 ? BlockId() : block(near, k);
    block_ids_[static_cast<size_t>(item) * num_groups_ + k] =
        physical_.Acquire(groups_[k], item, beside).value;
  }
  items_[item] = {.refs = 1, .is_cached = false, .is_taken = true, .account = {}};
  ++num_refs_;
  ++num_held_;
  return item;
}

void BlockPool::Assign(int32_t item, AccountId account) {
  items_[item].account = account;
  queue_.SetAccount(item, account);
  ++accounts_[account].taken;
  ++accounts_[account].held;
}

void BlockPool::MoveTo(AccountId account, std::span<const int32_t> items) {
  for (const int32_t item : items) {
    Item& record = items_[item];
    const int64_t is_held = record.refs > 0;
    const auto count = [&](int64_t sign) {
      if (record.account.value == 0) return;
      accounts_[record.account].taken += sign;
      accounts_[record.account].held += sign * is_held;
    };
    count(-1);
    record.account = account;
    count(1);
  }
  queue_.MoveTo(account, items);
}

void BlockPool::Keep(int32_t item) {
  Item& record = items_[item];
  TS_CHECK(record.is_taken, "only what is in use or cached can be held");
  if (record.refs++ == 0) {
    queue_.Wake(item);
    ++num_held_;
    if (record.account.value != 0) ++accounts_[record.account].held;
    for (int32_t k = 0; k < num_groups_; ++k) physical_.Pin(groups_[k], block(item, k));
  }
  ++num_refs_;
}

// Memory is what this costs: places are asked for ahead of their use.
void BlockPool::HoldAll(std::span<const SetId> items) {
  constexpr size_t kItemsAhead = 24, kBlocksAhead = 12;
  for (size_t i = 0; i < items.size(); ++i) {
    if (i + kItemsAhead < items.size()) PrefetchItem(items[i + kItemsAhead].value);
    if (i + kBlocksAhead < items.size()) PrefetchBlocks(items[i + kBlocksAhead].value);
    Keep(items[i].value);
  }
}

void BlockPool::SetCached(int32_t item, bool is_cached) {
  Item& record = items_[item];
  TS_CHECK(record.is_taken && record.is_cached != is_cached, "the cached mark changes");
  record.is_cached = is_cached;
  num_cached_ += is_cached ? 1 : -1;
  if (record.refs > 0) return;
  queue_.Wake(item);
  Free(item);
}

void BlockPool::Drop(int32_t item, bool is_surplus) noexcept {
  Item& record = items_[item];
  --num_refs_;
  if (--record.refs > 0) return;
  ++num_releases_;
  --num_held_;
  if (record.account.value != 0) --accounts_[record.account].held;
  for (int32_t k = 0; k < num_groups_; ++k) physical_.Unpin(groups_[k], block(item, k));
  if (record.is_cached) {
    queue_.Rest(item, now_us_, is_surplus);
  } else {
    Free(item);
  }
}

void BlockPool::Free(int32_t item) {
  for (int32_t k = 0; k < num_groups_; ++k) physical_.Release(groups_[k], block(item, k));
  items_[item].is_taken = false;
  if (const AccountId account = items_[item].account; account.value != 0) {
    --accounts_[account].taken;
  }
  queue_.Forget(item);
  free_items_.push_back(item);  // never reallocates: reserved for all
}

void BlockPool::CheckInvariants() const {
  queue_.CheckInvariants();
  int64_t num_refs = 0, num_pins = 0;
  int32_t num_taken = 0, num_held = 0, num_cached = 0;
  for (int32_t item = 1; item <= max_items(); ++item) {
    const Item& record = items_[item];
    const bool rests = record.is_taken && record.refs == 0;
    TS_CHECK(queue_.is_resting(item) == rests, "what nobody holds rests");
    if (!record.is_taken) continue;
    ++num_taken;
    num_refs += record.refs;
    num_held += record.refs > 0;
    num_cached += record.is_cached;
    TS_CHECK(record.refs > 0 || record.is_cached, "what nobody holds is cached");
    for (int32_t k = 0; k < num_groups_; ++k) {
      TS_CHECK(physical_.owner(groups_[k], block(item, k)) == item, "a block has one owner");
    }
  }
  TS_CHECK(num_refs == num_refs_, "references are counted");
  TS_CHECK(num_held == num_held_ && num_cached == num_cached_, "held and cached are counted");
  TS_CHECK(num_taken + static_cast<int32_t>(free_items_.size()) == max_items(), "ids add up");
  for (const GroupId group : groups_) {
    TS_CHECK(physical_.num_taken(group) == num_taken, "every taken logical block has an owner");
    num_pins = 0;
    for (int32_t id = 1; id < physical_.num_physical(); ++id) {
      if (physical_.group_of(PhysicalId(id)) != group.value) continue;
      num_pins += physical_.pinned_in(PhysicalId(id));
    }
    TS_CHECK(num_pins == num_held, "held things are pinned once per group");
  }
  CheckAccounts();
}

void BlockPool::CheckAccounts() const {
  std::array<int64_t, kMaxAccounts> taken{}, held{};
  for (int32_t item = 1; item <= max_items(); ++item) {
    const Item& record = items_[item];
    if (!record.is_taken) continue;
    TS_CHECK(queue_.account(item) == record.account, "the queue knows whose a thing is");
    ++taken[record.account.value];
    held[record.account.value] += record.refs > 0;
  }
  int64_t num_others = 0;
  accounts_.ForEach([&](AccountId account, const Accounts::Account& it) {
    TS_CHECK(taken[account.value] == it.taken && held[account.value] == it.held,
             "an account counts what it has");
    num_others += it.taken;
  });
  TS_CHECK(num_others + taken[0] == num_taken(), "everything is of an open account or of nobody");
}

}  // namespace tokenspeed
