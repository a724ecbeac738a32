#include <algorithm>

#include "base/check.h"
#include "scheduler/move.h"

namespace tokenspeed {

// Strictly in order: when the head does not fit now, nothing behind it is admitted.
void Scheduler::AdmitFromQueue(int32_t& budget) {
  // Room that a retraction made is for those who needed it.
  if (num_retractions_pending_ > 0) return;
  if (has_retracted_in_step_ && step_.plan->num_rows() > 0) return;
  // Each running request gets at least one token of every step.
  const size_t limit = std::min(config_.max_running, config_.max_step_tokens);
  while (!queue_.empty() && budget > 0 && running_.size() < limit && slots_.num_free() > 0) {
    if (!TryAdmit(RequestIndex(queue_.begin()->second), budget)) return;
  }
}

bool Scheduler::TryAdmit(RequestIndex index, int32_t& budget) {
  Request& request = requests_[index];
  const bool is_alone = running_.empty() && uncommitted_.empty();
  if (!is_alone && IsStillBlocked(request)) return false;
  PrefixMatch match = MatchFor(request);
  if (is_alone) {
    MakeFitAlone(request, match);
  } else if (!FitsBesideOthers(request, match)) {
    Block(request, std::move(match));
    return false;
  }
  const size_t num_shared = match.blocks.size();
  const int32_t matched =
      static_cast<int32_t>(num_shared) * config_.block_tokens + match.tail_tokens;
  const int32_t num_query = std::min(budget, request.size() - matched);
  const bool has_room = kv_.Grow(match.blocks, BlocksFor(matched + num_query));
  TS_CHECK(has_room, "an admitted request has room for its first chunk");
  if (match.tail_tokens > 0) EmitCopies(match, match.blocks.set(num_shared));
  request.published_blocks = static_cast<int32_t>(num_shared);
  Enter(index, std::move(match.blocks), matched);
  EmitRow(index, num_query);
  budget -= num_query;
  return true;
}

bool Scheduler::MayMatch(const Request& request) const {
  return config_.prefix_cache && request.match_prefix;
}

// At least the last token is always computed: its logits are needed.
std::span<const int32_t> Scheduler::Matchable(const Request& request) const {
  return std::span(request.tokens).first(request.tokens.size() - 1);
}

PrefixMatch Scheduler::MatchFor(const Request& request) {
  if (!MayMatch(request)) return {};
  return kv_.Match(request.root, Matchable(request));
}

// Room comes from releases, or from others publishing the next block of the head's prompt.
bool Scheduler::IsStillBlocked(const Request& request) const {
  if (blocked_.arrival != request.arrival) return false;
  if (blocked_.num_releases != kv_.pool().num_releases()) return false;
  const size_t num_shared_tokens = blocked_.num_shared * config_.block_tokens;
  return !MayMatch(request) ||
         !kv_.Continues(blocked_.parent, Matchable(request).subspan(num_shared_tokens));
}

void Scheduler::Block(const Request& request, PrefixMatch match) {
  const size_t num_shared = match.blocks.size();
  const NodeId end = num_shared == 0 ? request.root : NodeId::Of(match.blocks.set(num_shared - 1));
  match = PrefixMatch{};  // letting go counts as a release, so it comes first
  blocked_ = {request.arrival, kv_.pool().num_releases(), end, num_shared};
}

// Not only the first chunk: a request that could not go on would be retracted soon.
bool Scheduler::FitsBesideOthers(const Request& request, const PrefixMatch& match) const {
  const size_t num_blocks = BlocksFor(int64_t{request.size()} + 1);
  return kv_.CanHold(static_cast<int64_t>(num_blocks - match.blocks.size()));
}

// Nothing else holds blocks, so the request fits (submit saw to it, and packing never gets in the
// way: see PhysicalPool), unless the tail that it would copy takes the last block.
void Scheduler::MakeFitAlone(const Request& request, PrefixMatch& match) const {
  const size_t num_blocks = BlocksFor(int64_t{request.prompt_tokens} + request.max_outputs);
  const auto num_missing = static_cast<int64_t>(num_blocks - match.blocks.size());
  if (kv_.CanHold(num_missing)) return;
  match.tail.Reset();
  match.tail_tokens = 0;
  TS_CHECK(kv_.CanHold(num_missing), "an accepted request fits when it is alone");
}

// Copy on write: the first part of another sequence's block goes into a fresh one.
void Scheduler::EmitCopies(PrefixMatch& match, SetId target) {
  for (int32_t group = 0; group < kv_.pool().num_groups(); ++group) {
    step_.plan->copies.push_back({group, kv_.pool().block(match.tail.set(), GroupId(group)).value,
                                  kv_.pool().block(target, GroupId(group)).value,
                                  match.tail_tokens});
  }
  step_.copy_sources.push_back(std::move(match.tail));
}

void Scheduler::Enter(RequestIndex index, BlockTable blocks, int32_t matched) {
  Request& request = requests_[index];
  if (request.cached_tokens < 0) {
    request.cached_tokens = std::min(matched, request.prompt_tokens);
    prompt_tokens_ += request.prompt_tokens;
    cached_tokens_ += request.cached_tokens;
  }
  request.computed = request.planned = matched;
  request.admission = ++num_admissions_;
  Dequeue(index);
  Move(request, Admit{*slots_.Acquire(), std::move(blocks)});
  running_.push_back(index);
  step_.plan->admitted.push_back({step_.plan->num_rows(), request.slot()->value()});
}

}  // namespace tokenspeed
