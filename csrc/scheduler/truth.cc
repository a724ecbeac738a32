#include "scheduler/truth.h"

#include <algorithm>
#include <utility>

namespace tokenspeed {

std::pair<MatchEnd, int32_t> Explain(const MatchEvidence& evidence) {
  const int32_t matched = evidence.matched;
  if (!evidence.may_match) return {MatchEnd::kDisabled, 0};
  if (evidence.matchable - matched < evidence.grain || evidence.known >= evidence.matchable) {
    if (!evidence.has_no_state) return {MatchEnd::kComplete, matched};
  }
  if (evidence.has_no_state) return {MatchEnd::kNoSnapshot, matched};
  if (evidence.is_computed) return {MatchEnd::kComputing, matched};
  if (evidence.is_evicted) return {MatchEnd::kEvicted, matched};
  if (evidence.previous) {
    const MatchEvidence::Turn& turn = *evidence.previous;
    if (!turn.is_same_tenant) return {MatchEnd::kTenantOrAdapter, matched};
    if (!turn.is_same_salt) return {MatchEnd::kSalt, matched};
    const bool had_more = turn.common > std::max(matched, evidence.known);
    if (had_more) return {MatchEnd::kNeverStored, matched};
    if (turn.common >= matched && turn.common < evidence.matchable) {
      return {MatchEnd::kContent, std::max(turn.common, evidence.known)};
    }
  }
  if (evidence.has_other_content) return {MatchEnd::kContent, std::max(matched, evidence.known)};
  return {MatchEnd::kNeverStored, matched};
}

}  // namespace tokenspeed
