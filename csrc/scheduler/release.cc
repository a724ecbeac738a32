// A session is over: what its last turn alone left in the cache goes.
//
//   path of the session   |-----|-----|-----|-----|--        (full blocks and a tail)
//   others' common part   |-----------------|                (the longest of any session or
//   request) goes, from its end                      |-----|--        up to what others hang on, or
//   hold
//
// O(sessions + live requests + blocks of the path + items of the host tier); nothing is kept for it
// while requests run.
#include <algorithm>
#include <ranges>

#include "base/errors.h"
#include "scheduler/scheduler.h"

namespace tokenspeed {
namespace {

// First tokens that two sequences of one namespace share. Keys are found equal by bisection: where
// one is, all before it are.
size_t CommonTokens(const Sequence& a, const Sequence& b, size_t block_tokens) {
  if (a.keys.root() != b.keys.root()) return 0;
  size_t low = 0, high = std::min({a.keys.size(), b.keys.size(), a.tokens.size() / block_tokens,
                                   b.tokens.size() / block_tokens});
  while (low < high) {
    const size_t middle = (low + high + 1) / 2;
    if (a.keys[middle - 1] == b.keys[middle - 1]) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  const size_t known = low * block_tokens;
  return known + CommonPrefix(a.tokens.subspan(known), b.tokens.subspan(known));
}

}  // namespace

std::optional<Released> Scheduler::Release(int64_t session, int64_t now_us) {
  record_.Release(session, now_us);
  SetNow(now_us);
  if (session == 0) return std::nullopt;
  if (const int32_t num_live = NumLive(session); num_live > 0) {
    throw RequestError("the release is refused: session " + std::to_string(session) + " has " +
                           std::to_string(num_live) + (num_live == 1 ? " request" : " requests") +
                           " that did not end; allowed: none; abort them, or wait for their ends",
                       "session_busy");
  }
  std::optional<Sessions::Left> left = sessions_.Release(session);
  if (!left) return std::nullopt;
  const auto num_groups = static_cast<size_t>(kv_.num_groups());
  Released released{.tokens = 0,
                    .blocks = std::vector<int64_t>(num_groups, 0),
                    .host_blocks = std::vector<int64_t>(num_groups, 0)};
  if (config_.prefix_cache && !left->chain.tokens.empty()) {
    const NodeId root = kv_.AcquireRoot(left->salt, left->tenant);
    DropOwn({left->chain.tokens, left->chain.keys}, root, released);
    kv_.ReleaseRoot(root);
  }
  blocked_ = {};  // a tenant's floor may have let go of room
  ++num_released_;
  released_tokens_ += released.tokens;
  return released;
}

int32_t Scheduler::NumLive(int64_t session) const {
  const auto live = requests_.Live();
  return static_cast<int32_t>(std::ranges::count_if(
      live, [&](RequestIndex index) { return requests_[index].session == session; }));
}

// Calls visit(sequence) for what any session's last turn left and for what any live request asks
// for. Neither has its last token: that is computed with what follows.
template <class Visit>
void Scheduler::ForEachSequence(const Visit& visit) const {
  const auto tell = [&visit](std::span<const int32_t> tokens, const ChainKeys& keys) {
    if (!tokens.empty()) visit(Sequence{tokens.first(tokens.size() - 1), keys});
  };
  sessions_.ForEach([&](const Chain& chain) { tell(chain.tokens, chain.keys); });
  for (const RequestIndex index : requests_.Live()) {
    tell(requests_[index].tokens, requests_[index].keys);
  }
}

void Scheduler::DropOwn(const Sequence& own, NodeId root, Released& released) {
  const auto block_tokens = static_cast<size_t>(config_.block_tokens);
  size_t common = 0;
  ForEachSequence([&](const Sequence& other) {
    // Who differs before that has less in common.
    const size_t known = std::min(common / block_tokens, other.keys.size());
    if (known > 0 && other.keys[known - 1] != own.keys[known - 1]) return;
    common = std::max(common, CommonTokens(own, other, block_tokens));
  });
  for (const PathNode& node : std::views::reverse(kv_.Path(root, own.tokens, own.keys))) {
    const auto size = static_cast<size_t>(kv_.index().num_tokens(node.set));
    if (node.begin + size <= common || !kv_.IsAlone(node.set)) continue;
    const size_t num_shared = common > node.begin ? common - node.begin : 0;
    released.tokens += kv_.Release(node.set, static_cast<int32_t>(num_shared), released.blocks);
  }
  if (tiers_ != nullptr) tiers_->Drop(own.tokens, own.keys, common, released.host_blocks);
}

}  // namespace tokenspeed
