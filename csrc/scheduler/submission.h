// What a caller asks for. Spans are read during the call only.
// Thread: any.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "base/ids.h"

namespace tokenspeed {

struct Submission {
  RequestId id = {};
  std::span<const int32_t> prompt = {};
  std::span<const int32_t> outputs = {};
  int32_t max_new_tokens = 0;
  int32_t min_new_tokens = 0;
  std::span<const int32_t> stop_ids = {};
  int32_t priority = 0;
  std::string salt = {};
  bool match_prefix = true;
  int64_t deadline_us = 0;

  int64_t session = 0;  // 0: none
  int64_t root = 0;     // session that all of its family descend from; 0: none
  int64_t tenant = 0;
  std::span<const int32_t> reuse_points = {};  // at most 3, increasing
  int64_t gap_us = 0;      // expected time to the session's next turn; 0: unknown
  int64_t queue_key = 0;   // smaller goes first within a class
  int64_t victim_key = 0;  // larger is retracted first within a priority
  int64_t retain_us = 0;
  int64_t max_queue_us = 0;  // 0: the configured limit
  int32_t max_drafts = 0;
  bool device_drafts = false;
};

// A turn given as what is new after the session's last ended turn.
struct TurnBase {
  int32_t tokens = 0;
  uint64_t digest = 0;
};

}  // namespace tokenspeed
