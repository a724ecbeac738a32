// Whose the sets of the cache are, as far as somebody has figures of his own: tenants with a floor
// or a cap, each an account from 1 on. Account 0 is everybody else.
//
//   floor   sets that others never evict from an account, once it has them
//   cap     sets that it has at most, held and cached together
//
//   taken   |== held ==|~~~~~~~ cached ~~~~~~~|           of one account
//   floor   ..............|                               cached ones before the mark stay
//                          ^ others may evict what is cached beyond it
//
// An account may take what is free, what it has cached itself, and what others have cached beyond
// their floors. So when it is alone with a request, it gets all but the floors of the others:
// that, and its cap, bounds what may be asked for (FlatKv::MaxSets).
//
// Counts for accounts from 1 on only: who has no figures costs nothing. O(accounts) per question.
// Thread: scheduler thread only.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <unordered_map>

#include "base/ids.h"

namespace tokenspeed {

struct TenantLimits {
  int64_t floor = 0;  // sets
  int64_t cap = std::numeric_limits<int32_t>::max();
  bool operator==(const TenantLimits&) const = default;
};

class Accounts {
 public:
  struct Account {
    int64_t tenant = 0;
    bool is_open = false;
    TenantLimits limits;
    int64_t taken = 0;
    int64_t held = 0;

    int64_t cached() const { return taken - held; }
    // Cached sets that others may evict, and those that they may not.
    int64_t spare() const { return std::clamp<int64_t>(taken - limits.floor, 0, cached()); }
    int64_t kept() const { return cached() - spare(); }
    bool holds_beyond_floor() const { return held > limits.floor; }
    // With so many sets more.
    bool is_above_cap(int64_t num_more = 0) const { return taken + num_more > limits.cap; }
  };

  bool empty() const { return of_tenant_.empty(); }
  bool is_full() const { return of_tenant_.size() + 1 >= kMaxAccounts; }
  size_t size() const { return of_tenant_.size(); }

  AccountId Find(int64_t tenant) const {
    if (of_tenant_.empty()) return {};
    const auto found = of_tenant_.find(tenant);
    return found == of_tenant_.end() ? AccountId() : found->second;
  }
  // REQUIRES: the tenant has none; not is_full().
  AccountId Open(int64_t tenant) {
    const auto is_free = [](const Account& account) { return !account.is_open; };
    const auto free = std::find_if(accounts_.begin() + 1, accounts_.end(), is_free);
    *free = {.tenant = tenant, .is_open = true, .limits = {}};
    const AccountId account(static_cast<uint8_t>(free - accounts_.begin()));
    of_tenant_.emplace(tenant, account);
    return account;
  }
  // REQUIRES: nothing is taken.
  void Close(AccountId account) {
    of_tenant_.erase((*this)[account].tenant);
    (*this)[account] = {};
  }

  Account& operator[](AccountId account) { return accounts_[account.value]; }
  const Account& operator[](AccountId account) const { return accounts_[account.value]; }

  // Calls visit(AccountId, Account) for each open account, in order.
  template <class Visit>
  void ForEach(const Visit& visit) const {
    size_t left = of_tenant_.size();
    for (size_t i = 1; left > 0; ++i) {
      if (!accounts_[i].is_open) continue;
      --left;
      visit(AccountId(static_cast<uint8_t>(i)), accounts_[i]);
    }
  }
  // Floors of all accounts but one.
  int64_t FloorsBeside(AccountId account) const {
    int64_t sum = 0;
    ForEach([&](AccountId other, const Account& it) {
      if (other != account) sum += it.limits.floor;
    });
    return sum;
  }
  // Cached sets that `account` may not evict.
  int64_t KeptFrom(AccountId account) const {
    int64_t sum = 0;
    ForEach([&](AccountId other, const Account& it) {
      if (other != account) sum += it.kept();
    });
    return sum;
  }

 private:
  std::array<Account, kMaxAccounts> accounts_;
  std::unordered_map<int64_t, AccountId> of_tenant_;  // looked up only
};

}  // namespace tokenspeed
