// What a match says about the cache, counted once per request.
#include <algorithm>
#include <tuple>

#include "scheduler/scheduler.h"

namespace tokenspeed {

// What the cache and those who run say about the end of a match.
MatchEvidence Scheduler::EvidenceOf(const Request& request, const PrefixMatch& match) const {
  MatchEvidence evidence{
      .may_match = MayMatch(request),
      .is_evicted = match.limit == MatchLimit::kEvicted || match.limit == MatchLimit::kWindow,
      .has_no_state = match.limit == MatchLimit::kSnapshot,
      .has_other_content = match.chain_tokens % config_.block_tokens != 0,
      .matched = match.num_tokens,
      .known = match.chain_tokens,
      .matchable = static_cast<int32_t>(Matchable(request).size()),
      .grain = kv_.share_tokens(),
      .previous = request.previous};
  const auto next = static_cast<size_t>(match.chain_tokens >> block_shift_);
  if (!evidence.may_match || next >= Matchable(request).size() / config_.block_tokens) {
    return evidence;
  }
  for (const Computing& computing : computing_) {
    evidence.is_computed |= IsComputing(computing, next) &&
                            requests_[computing.request].keys[next] == request.keys[next];
  }
  return evidence;
}

// The truth of a request is that of its first admission, when nothing of it is in the cache yet.
void Scheduler::NoteMatch(Request& request, const MatchEvidence& evidence) {
  if (request.cached_tokens >= 0) return;
  Truth& truth = request.truth;
  request.cached_tokens = truth.cached = std::min(evidence.matched, request.prompt_tokens);
  // Blocks that were cached once; the one in which the match ended counts from there.
  for (size_t i = truth.cached >> block_shift_; i < request.keys.size(); ++i) {
    if (!kv_.evicted().Contains(request.keys[i])) continue;
    const int32_t first = static_cast<int32_t>(i) * config_.block_tokens;
    const int32_t end = std::min(first + config_.block_tokens, request.prompt_tokens);
    truth.recomputed += std::max(0, end - std::max(first, truth.cached));
  }
  truth.created = request.prompt_tokens - truth.cached - truth.recomputed;
  std::tie(truth.end, truth.position) = Explain(evidence);
  ++num_match_ends_[static_cast<size_t>(truth.end)];
  sessions_.Count(request.session, {.turns = 1,
                                    .prompt = request.prompt_tokens,
                                    .cached = truth.cached,
                                    .created = truth.created,
                                    .recomputed = truth.recomputed});
}

}  // namespace tokenspeed
