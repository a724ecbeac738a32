// FlatKV, tenants with figures of their own: what each may take, and from whom.
#include "base/check.h"
#include "kv/flat_kv.h"

namespace tokenspeed {

bool FlatKv::IsCapped(const KvNeed& need, AccountId account) const {
  const Accounts::Account& own = accounts()[account];
  return own.held + need.sets > own.limits.cap;
}

int64_t FlatKv::MissingSets(const KvNeed& need, AccountId account) const {
  int64_t missing = sets_.num_held() + need.sets - sets_.max_items();
  if (!accounts().empty()) {
    const Accounts::Account& own = accounts()[account];
    missing =
        std::max(missing + accounts().KeptFrom(account), own.held + need.sets - own.limits.cap);
  }
  return std::max<int64_t>(0, missing);
}

int64_t FlatKv::MaxSets(AccountId account) const {
  const int64_t beside_floors = sets_.max_items() - accounts().FloorsBeside(account);
  return std::min(beside_floors, accounts()[account].limits.cap);
}

// All groups are full ones: a set that is free finds room.
void FlatKv::MakeRoomFor(AccountId account) {
  const Accounts::Account& own = accounts()[account];
  while (own.is_above_cap(1)) {
    const int32_t coldest = sets_.Coldest(account);
    TS_CHECK(coldest != 0, "who stays below his cap by eviction has something to evict");
    EvictItem(sets_, coldest);
  }
  while (!sets_.CanAcquire()) {
    const int32_t coldest = ColdestFor(account);
    TS_CHECK(coldest != 0, "room that was promised can be evicted");
    EvictItem(sets_, coldest);
  }
}

// Returns the coldest of what `account` may evict, 0 for none: its own only when nobody else gives
// while it is not beyond its floor.
int32_t FlatKv::ColdestFor(AccountId account) {
  int32_t best = 0;
  int64_t best_score = 0;
  const auto consider = [&](AccountId giver) {
    const int32_t coldest = sets_.Coldest(giver);
    if (coldest == 0) return;
    const int64_t score = sets_.Score(coldest);
    if (best != 0 && score <= best_score) return;
    best = coldest;
    best_score = score;
  };
  const Accounts::Account& own = accounts()[account];
  const bool is_last = account.value != 0 && own.taken <= own.limits.floor;
  if (!is_last) consider(account);
  if (account.value != 0) consider(AccountId());
  accounts().ForEach([&](AccountId other, const Accounts::Account& it) {
    if (other != account && it.spare() > 0) consider(other);
  });
  if (best == 0 && is_last) consider(account);
  return best;
}

void FlatKv::SetLimits(int64_t tenant, const std::optional<TenantLimits>& limits,
                       std::span<const SetId> held) {
  Accounts& accounts = sets_.accounts();
  const AccountId before = accounts.Find(tenant);
  const bool is_open = before.value != 0;
  AccountId after = before;
  if (limits && !is_open) after = accounts.Open(tenant);
  if (!limits) after = AccountId();
  if (after != before) {
    std::vector<int32_t> items;
    for (const SetId set : index_.SetsOf(tenant)) items.push_back(set.value);
    for (const SetId set : held) items.push_back(set.value);
    std::ranges::sort(items);
    const auto repeated = std::ranges::unique(items);
    items.erase(repeated.begin(), repeated.end());
    sets_.MoveTo(after, items);
    index_.SetAccount(tenant, after);
  }
  if (limits) accounts[after].limits = *limits;
  if (is_open && !limits) accounts.Close(before);
  TrimToCaps();
}

void FlatKv::TrimToCaps() {
  accounts().ForEach([this](AccountId account, const Accounts::Account& it) {
    while (it.is_above_cap() && it.cached() > 0) EvictItem(sets_, sets_.Coldest(account));
  });
}

}  // namespace tokenspeed
