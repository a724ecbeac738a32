// Tenants with a floor and a cap: figures that change while running, who gives way for whom, and
// who may go first when there is no room for the first of the queue.
#include <algorithm>
#include <stdexcept>
#include <string>

#include "scheduler/scheduler.h"

namespace tokenspeed {

std::vector<RequestId> Scheduler::SetTenantLimits(int64_t tenant,
                                                  const std::optional<TenantLimits>& limits,
                                                  int64_t now_us) {
  record_.SetTenantLimits(tenant, limits, now_us);
  SetNow(now_us);
  if (limits) CheckLimits(tenant, *limits);
  std::vector<SetId> held;
  for (const RequestIndex index : requests_.Live()) {
    const KvTable* table = requests_[index].tenant == tenant ? requests_[index].blocks() : nullptr;
    if (table == nullptr) continue;
    const auto sets = table->blocks.sets();
    held.insert(held.end(), sets.begin(), sets.end());
  }
  kv_.SetLimits(tenant, limits, held);
  blocked_.fill({});
  return EndMisfits();
}

void Scheduler::CheckLimits(int64_t tenant, const TenantLimits& limits) const {
  const auto refuse = [tenant](const std::string& rest) {
    throw std::invalid_argument("limits of tenant " + std::to_string(tenant) + ": " + rest);
  };
  if (!kv_.can_limit()) {
    refuse(
        "the model has window or state groups; allowed: full groups only, whose blocks alone are "
        "counted by tenant; serve this model without limits");
  }
  if (limits.floor < 0 || limits.cap < 1 || limits.cap < limits.floor) {
    refuse("floor " + std::to_string(limits.floor) + " and cap " + std::to_string(limits.cap) +
           " blocks; allowed: a floor of 0 or more, a cap of 1 or more and not below the floor; "
           "correct them");
  }
  const AccountId account = kv_.accounts().Find(tenant);
  if (account.value == 0 && kv_.accounts().is_full()) {
    refuse("it would be tenant number " + std::to_string(kMaxAccounts) + " with limits; allowed: " +
           std::to_string(kMaxAccounts - 1) + "; take another tenant's limits away first");
  }
  const int64_t others = kv_.accounts().FloorsBeside(account);
  if (others + limits.floor > kv_.sets().max_items()) {
    refuse("a floor of " + std::to_string(limits.floor) + " blocks, others have " +
           std::to_string(others) + "; allowed: " + std::to_string(kv_.sets().max_items()) +
           " in all, the pool; lower a floor");
  }
}

// Ends requests that could not even run alone any more.
std::vector<RequestId> Scheduler::EndMisfits() {
  std::vector<RequestId> ended;
  for (const RequestIndex index : requests_.Live()) {
    Request& request = requests_[index];
    if (std::holds_alternative<Draining>(request.state)) continue;
    if (ShortenToFit(request, CapacityTokens(AccountOf(request)))) continue;
    ended.push_back(request.id);
    EndOutsideCommit(index, FinishReason::kError);
  }
  return ended;
}

// Whoever asked for as much as fits gets what fits now. Returns: false when that is nothing.
bool Scheduler::ShortenToFit(Request& request, int64_t fits) const {
  const int64_t room = fits - request.prompt_tokens;
  if (request.max_outputs <= room) return true;
  if (!request.is_open_ended || room <= request.num_outputs() + request.ahead) return false;
  request.max_outputs = static_cast<int32_t>(room);
  return true;
}

// The part of a refusal that says what an account may have.
std::string Scheduler::RoomOf(AccountId account) const {
  const int64_t pool = kv_.sets().max_items(), most = kv_.MaxSets(account);
  if (most == pool) return "the pool holds " + std::to_string(pool) + " blocks";
  const bool is_cap = most == kv_.accounts()[account].limits.cap;
  const std::string why =
      is_cap ? "the cap of its tenant"
             : "of " + std::to_string(pool) + " in the pool, those of no other tenant's floor";
  return "it may have " + std::to_string(most) + " blocks (" + why + ")";
}

std::vector<TenantUsage> Scheduler::Tenants() {
  std::vector<TenantUsage> tenants;
  std::array<size_t, kMaxAccounts> place{};
  kv_.accounts().ForEach([&](AccountId account, const Accounts::Account& it) {
    place[account.value] = tenants.size();
    tenants.push_back(
        {.tenant = it.tenant, .limits = it.limits, .held = it.held, .cached = it.cached()});
  });
  for (const RequestIndex index : requests_.Live()) {
    const AccountId account = AccountOf(requests_[index]);
    if (account.value == 0) continue;
    TenantUsage& usage = tenants[place[account.value]];
    ++(requests_[index].admission != 0 ? usage.running : usage.waiting);
  }
  return tenants;
}

// A lowered cap takes hold: what is cached above it goes, then those who run give way, the first of
// the tenant excepted: alone it fits.
void Scheduler::KeepToCaps() {
  if (kv_.accounts().empty()) return;
  kv_.accounts().ForEach([this](AccountId account, const Accounts::Account& it) {
    while (it.held > it.limits.cap && RetractIn(account)) {
    }
  });
  kv_.TrimToCaps();
}

bool Scheduler::RetractIn(AccountId account) {
  if (num_retractions_pending_ > 0) return false;
  const auto is_own = [&](RequestIndex index) { return AccountOf(requests_[index]) == account; };
  const RequestIndex first = FirstRunning(is_own);
  const RequestIndex victim =
      LastRunning([&](RequestIndex index) { return index != first && is_own(index); });
  return victim.value >= 0 && RetractRunning(victim);
}

// Who is at his cap gets room from his own requests only; and who holds no more than his floor
// gives none to others: what he let go would be kept for him.
bool Scheduler::GivesRoom(const Request& giver, const Request& asker, const KvNeed& need) const {
  const AccountId from = AccountOf(giver), to = AccountOf(asker);
  if (from == to) return true;
  if (kv_.IsCapped(need, to)) return false;
  return from.value == 0 || kv_.accounts()[from].holds_beyond_floor();
}

RequestIndex Scheduler::NextOf(const Queue& queue, const Passing& passing) const {
  if (queue.empty()) return RequestIndex(-1);
  const Accounts& accounts = kv_.accounts();
  if (!passing.is_in_floors) {
    if (passing.barred.none()) return queue.first();
    return queue.FirstBut(
        [&](int64_t tenant) { return passing.barred[accounts.Find(tenant).value]; });
  }
  std::vector<int64_t> tenants;
  accounts.ForEach([&](AccountId account, const Accounts::Account& it) {
    if (it.limits.floor > 0 && !passing.barred[account.value]) tenants.push_back(it.tenant);
  });
  return queue.FirstOf(tenants);
}

// The first of a queue has no room. If it is at its tenant's cap, that concerns nobody else. Else
// others may go first as far as they stay within their floors, which it could not have anyway.
//
// Those who went first may need more later. When only what others hold beyond their floors keeps
// the first waiting, whoever goes beyond his floor does not pass it any more: so they come down to
// their floors, and its turn comes.
// Returns: false when nobody may go before it.
bool Scheduler::LetOthersPass(RequestIndex index, Passing& passing) {
  if (kv_.accounts().empty()) return false;
  const AccountId account = AccountOf(requests_[index]);
  const Blocked& blocked = blocked_[account.value];
  passing.barred.set(account.value);
  if (blocked.is_capped || passing.is_in_floors) return true;
  passing.is_in_floors = true;
  const bool is_due = blocked.num_missing <= BeyondFloors(account);
  if (passed_arrival_ != blocked.arrival || !is_due) overshot_.reset();
  passed_arrival_ = blocked.arrival;
  if (!is_due) return true;
  kv_.accounts().ForEach([this](AccountId other, const Accounts::Account& it) {
    if (it.holds_beyond_floor()) overshot_.set(other.value);
  });
  passing.barred |= overshot_;
  return true;
}

// Sets that accounts with a floor hold beyond it.
int64_t Scheduler::BeyondFloors(AccountId but) const {
  int64_t sum = 0;
  kv_.accounts().ForEach([&](AccountId account, const Accounts::Account& it) {
    if (account == but || it.limits.floor == 0) return;
    sum += std::max<int64_t>(0, it.held - it.limits.floor);
  });
  return sum;
}

}  // namespace tokenspeed
