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
  const bool is_alone = running_.empty() && uncommitted_.empty() && !HasBatches();
  if (!is_alone && IsStillBlocked(request)) return false;
  PrefixMatch match = MatchFor(request);
  if (is_alone) {
    MakeFitAlone(request, match);
  } else if (!FitsBesideOthers(request, match)) {
    match = PrefixMatch{};  // letting go counts as a release, so it comes first
    blocked_ = {request.arrival, kv_.num_releases(), kv_.num_publications()};
    return false;
  }
  if (TryLoad(index, match)) return true;
  int32_t num_query = std::min(budget, request.size() - match.num_tokens);
  num_query = CutAtPoint(request, match.num_tokens, num_query);
  num_query = ShrinkToFit(match.table, match.num_tokens, num_query);
  const bool has_room = kv_.Grow(match.table, BlocksFor(match.num_tokens + num_query));
  TS_CHECK(has_room, "an admitted request has room for its first chunk");
  if (match.tail_tokens > 0) EmitCopies(match);
  Enter(index, std::move(match));
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

PrefixMatch Scheduler::MatchFor(Request& request) {
  if (!MayMatch(request)) return {};
  request.keys.Extend(request.tokens);
  return kv_.Match(request.root, Matchable(request), request.keys);
}

// Room comes from releases, or from others publishing what its prompt needs.
bool Scheduler::IsStillBlocked(const Request& request) const {
  return blocked_.arrival == request.arrival && blocked_.num_releases == kv_.num_releases() &&
         (!MayMatch(request) || blocked_.num_publications == kv_.num_publications());
}

// Not only the first chunk: a request that could not go on would be retracted soon.
bool Scheduler::FitsBesideOthers(const Request& request, const PrefixMatch& match) const {
  return kv_.CanHold(kv_.NeedToRun(match.table, BlocksFor(int64_t{request.size()} + 1)));
}

// Nothing else holds blocks, so the request fits (submit saw to it), unless what it would copy or
// read first takes the last room.
void Scheduler::MakeFitAlone(const Request& request, PrefixMatch& match) const {
  const size_t num_blocks = BlocksFor(int64_t{request.prompt_tokens} + request.max_outputs);
  if (kv_.CanHold(kv_.NeedToRun(match.table, num_blocks))) return;
  match = PrefixMatch{};
  TS_CHECK(kv_.CanHold(kv_.NeedToRun(match.table, num_blocks)),
           "an accepted request fits when it is alone");
}

// Copy on write: the first part of another sequence's block goes into a fresh one.
void Scheduler::EmitCopies(PrefixMatch& match) {
  const size_t index = static_cast<size_t>(match.num_tokens) >> block_shift_;
  for (int32_t group = 0; group < kv_.num_groups(); ++group) {
    const GroupId id(group);
    if (kv_.kind(id) == GroupKind::kState) continue;
    const BlockId source =
        kv_.kind(id) == GroupKind::kFull
            ? kv_.set_block(match.tail.id(), id)
            : kv_.window_block(kv_.place(id), match.window_tails[kv_.place(id)].id());
    step_.plan->copies.push_back(
        {group, source.value, kv_.block(match.table, id, index).value, match.tail_tokens});
  }
  step_.copy_sources.push_back(std::move(match.tail));
  for (WindowRef& tail : match.window_tails) step_.copy_windows.push_back(std::move(tail));
}

void Scheduler::Enter(RequestIndex index, PrefixMatch match) {
  Request& request = requests_[index];
  const int32_t matched = match.num_tokens;
  CountCached(request, matched);
  request.computed = request.planned = matched;
  request.published_blocks = matched >> block_shift_;
  request.snapshot = match.snapshot;
  request.admission = ++num_admissions_;
  Dequeue(index);
  Move(request, Admit{*slots_.Acquire(), std::move(match.table)});
  running_.push_back(index);
  request.is_announced = false;
  for (int32_t i = 0; writer_ != nullptr && i < request.published_blocks; ++i) {
    writer_->SetReused(request.blocks()->blocks.set(i));
  }
}

void Scheduler::CountCached(Request& request, int32_t matched) {
  if (request.cached_tokens >= 0) return;
  request.cached_tokens = std::min(matched, request.prompt_tokens);
  prompt_tokens_ += request.prompt_tokens;
  cached_tokens_ += request.cached_tokens;
}

}  // namespace tokenspeed
