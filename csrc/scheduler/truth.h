// Cache truth: how much of a request's prompt came from the cache, and why not more.
// Thread: any.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>

#include "scheduler/step.h"

namespace tokenspeed {

// The prompt, in three parts that add up to it, and where its match ended.
struct Truth {
  int32_t cached = 0;
  int32_t created = 0;
  int32_t recomputed = 0;  // had been cached and was evicted
  int32_t position = 0;
  MatchEnd end = MatchEnd::kComplete;
};

// What is known at the first admission. Positions are in tokens.
struct MatchEvidence {
  bool may_match = true;
  bool is_evicted = false;         // the block after the match was evicted
  bool has_no_state = false;       // blocks go on, but no snapshot lies further on
  bool is_computed = false;        // a running request computes the block after the match
  bool has_other_content = false;  // other tokens are cached after `known`
  int32_t matched = 0;
  int32_t known = 0;      // how far these tokens are known at all, tails included
  int32_t matchable = 0;  // all but the last token
  int32_t grain = 1;      // matches end at multiples of it inside a block
  // The session's turn before, if any. What it held is compared within its namespace only: a turn
  // of another salt or tenant says that it was there, and nothing of its content.
  struct Turn {
    int32_t common = 0;  // first tokens shared with it; 0 when it is in another namespace
    bool is_same_salt = true;
    bool is_same_tenant = true;
  };
  std::optional<Turn> previous = {};
};

// Returns why the match ended, and at which position. The surest cause first.
std::pair<MatchEnd, int32_t> Explain(const MatchEvidence& evidence);

}  // namespace tokenspeed
