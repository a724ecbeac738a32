#include "scheduler/sessions.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace tokenspeed {

uint64_t DigestOf(const Chain& chain, size_t num_tokens, size_t block_tokens) {
  const size_t num_blocks = num_tokens / block_tokens;
  std::vector<int32_t> rest(chain.tokens.begin() + static_cast<int64_t>(num_blocks * block_tokens),
                            chain.tokens.begin() + static_cast<int64_t>(num_tokens));
  rest.resize(block_tokens, -1);
  rest.resize(block_tokens + 16, static_cast<int32_t>(num_tokens));
  return HashBlock(chain.keys.parent(num_blocks), rest).lo;
}

size_t CommonPrefix(std::span<const int32_t> a, std::span<const int32_t> b) {
  constexpr size_t kStride = 1024;  // memcmp is several times faster than a search by element
  const size_t limit = std::min(a.size(), b.size());
  size_t i = 0;
  while (i + kStride <= limit && std::memcmp(&a[i], &b[i], kStride * sizeof(int32_t)) == 0) {
    i += kStride;
  }
  while (i < limit && a[i] == b[i]) ++i;
  return i;
}

std::optional<TurnBase> Sessions::Base(int64_t session) const {
  const auto found = sessions_.find(session);
  if (found == sessions_.end() || found->second.chain.tokens.empty()) return std::nullopt;
  return found->second.base;
}

bool Sessions::Has(int64_t session, const TurnBase& base) const {
  const auto found = sessions_.find(session);
  if (found == sessions_.end()) return false;
  const Chain& chain = found->second.chain;
  const auto num_tokens = static_cast<size_t>(std::max(base.tokens, 0));
  return num_tokens > 0 && num_tokens <= chain.tokens.size() &&
         DigestOf(chain, num_tokens, block_tokens_) == base.digest;
}

Chain Sessions::Take(int64_t session, size_t num_tokens, const ChainKeys& fresh) {
  Session& found = Touch(session);
  num_bytes_ -= BytesOf(found.chain);
  Chain chain = std::exchange(found.chain, Chain{});
  chain.tokens.resize(num_tokens);
  if (chain.keys.root() == fresh.root()) {
    const size_t num_blocks = num_tokens / block_tokens_;
    chain.keys.Truncate(num_blocks);
    chain.sets.resize(std::min(chain.sets.size(), num_blocks));
  } else {
    chain.keys = fresh;
    chain.sets.clear();
  }
  return chain;
}

std::span<const int32_t> Sessions::Tokens(int64_t session) const {
  const auto found = sessions_.find(session);
  if (found == sessions_.end()) return {};
  return found->second.chain.tokens;
}

std::optional<TurnScope> Sessions::Previous(int64_t session) const {
  const auto found = sessions_.find(session);
  if (found == sessions_.end() || !found->second.base) return std::nullopt;
  return TurnScope{found->second.salt, found->second.tenant};
}

void Sessions::Keep(int64_t session, Chain chain, std::string salt, int64_t tenant) {
  if (session == 0 || BytesOf(chain) > max_bytes_) return;
  chain.keys.Extend(chain.tokens);
  Session& kept = Touch(session);
  num_bytes_ -= BytesOf(kept.chain);
  kept.chain = std::move(chain);
  kept.salt = std::move(salt);
  kept.tenant = tenant;
  const size_t num_tokens = kept.chain.tokens.size();
  kept.base = {static_cast<int32_t>(num_tokens), DigestOf(kept.chain, num_tokens, block_tokens_)};
  num_bytes_ += BytesOf(kept.chain);
  Trim(session);
}

std::optional<Sessions::Left> Sessions::Release(int64_t session) {
  const auto found = sessions_.find(session);
  if (found == sessions_.end()) return std::nullopt;
  num_bytes_ -= BytesOf(found->second.chain);
  Left left{std::exchange(found->second.chain, Chain{}), std::move(found->second.salt),
            found->second.tenant};
  Forget(session);
  return left;
}

void Sessions::Count(int64_t session, const SessionTotals& totals) {
  all_.Add(totals);
  if (session == 0) {
    others_.Add(totals);
    return;
  }
  Touch(session).totals.Add(totals);
  Trim(session);
}

SessionTotals Sessions::totals(int64_t session) const {
  if (session == 0) return others_;
  const auto found = sessions_.find(session);
  return found == sessions_.end() ? SessionTotals{} : found->second.totals;
}

Sessions::Session& Sessions::Touch(int64_t session) {
  const auto [found, is_new] = sessions_.try_emplace(session);
  if (is_new) {
    by_use_.push_front(session);
    found->second.place = by_use_.begin();
  } else {
    by_use_.splice(by_use_.begin(), by_use_, found->second.place);
  }
  return found->second;
}

void Sessions::Trim(int64_t kept) {
  while (by_use_.back() != kept &&
         (std::ssize(sessions_) > max_sessions_ || num_bytes_ > max_bytes_)) {
    Forget(by_use_.back());
  }
}

void Sessions::Forget(int64_t session) {
  const auto found = sessions_.find(session);
  others_.Add(found->second.totals);
  num_bytes_ -= BytesOf(found->second.chain);
  by_use_.erase(found->second.place);
  sessions_.erase(found);
}

void Sessions::CheckInvariants() const {
  int64_t num_bytes = 0;
  SessionTotals sum = others_;
  for (const int64_t id : by_use_) {
    const Session& session = sessions_.at(id);
    num_bytes += BytesOf(session.chain);
    sum.Add(session.totals);
  }
  TS_CHECK(by_use_.size() == sessions_.size(), "every session has a place");
  TS_CHECK(num_bytes == num_bytes_, "bytes of sessions are counted");
  TS_CHECK(sum == all_, "sessions add up to all");
}

}  // namespace tokenspeed
