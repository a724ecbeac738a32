// Flat results that cross to Python: StepPlan and CommitResult (meaning of each array:
// tokenspeed/contracts/step.py and _core.pyi). Buffers keep their capacity when they are reused.
// Thread: scheduler thread only; Python reads while it holds a plan.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "base/ids.h"
#include "kv/tier_rows.h"

namespace tokenspeed {

inline constexpr int32_t kTokenFromDevice = -1;

enum class FinishReason : uint8_t { kNone, kStop, kLength, kAbort, kTimeout, kError };
inline constexpr std::array<const char*, 6> kFinishReasons = {"",      "stop",    "length",
                                                              "abort", "timeout", "error"};

// Where a request's match ended and why.
enum class MatchEnd : uint8_t {
  kComplete,
  kContent,
  kEvicted,
  kNeverStored,
  kSalt,
  kTenantOrAdapter,
  kNoSnapshot,
  kComputing,
  kDisabled
};
inline constexpr std::array<const char*, 9> kMatchEnds = {
    "complete",          "content",     "evicted",   "never_stored", "salt",
    "tenant_or_adapter", "no_snapshot", "computing", "disabled"};

struct StepPlan {
  int64_t step_id = 0;
  int32_t num_decode_rows = 0;
  std::vector<int64_t> request_ids;
  std::vector<int32_t> slots;
  std::vector<int32_t> query_start;
  std::vector<int32_t> context_tokens;
  std::vector<int32_t> output_index;
  std::vector<int32_t> num_drafts;  // the last of each row's query tokens
  std::vector<int32_t> token_ids;
  std::vector<std::array<int32_t, 2>> admitted;       // row, slot
  std::vector<std::array<int32_t, 4>> block_updates;  // slot, group, index, block
  std::vector<std::array<int32_t, 4>> copies;         // group, source, target, tokens
  TierRows tier_rows;                                 // moves between the tiers

  // (R, S, 1 + W): per state group the row that is read (-1: zeros), then those that are written
  // (-1: none), the first with the state before the row's drafts.
  std::vector<int32_t> state_rows;
  int32_t num_state_groups = 0, num_write_rows = 1;

  std::vector<RequestIndex> requests;  // not for Python: whose rows these are

  int32_t num_rows() const { return static_cast<int32_t>(slots.size()); }
  int32_t num_tokens() const { return static_cast<int32_t>(token_ids.size()); }

  void Clear() {
    num_decode_rows = 0;
    num_write_rows = 1;
    request_ids.clear();
    slots.clear();
    query_start.assign(1, 0);
    context_tokens.clear();
    output_index.clear();
    token_ids.clear();
    admitted.clear();
    block_updates.clear();
    copies.clear();
    tier_rows.Clear();
    state_rows.clear();
    requests.clear();
    num_drafts.clear();
  }
};

struct CommitResult {
  std::vector<int64_t> request_ids;
  std::vector<int32_t> tokens;      // max(1, num_tokens) of each entry, one after the other
  std::vector<int32_t> num_tokens;  // 0: the entry's one token is -1
  std::vector<uint8_t> finish_reasons;
  std::vector<int32_t> cached_tokens;
  std::vector<int32_t> rows;
  // entry, cached, created, recomputed after eviction, where the match ended, MatchEnd
  std::vector<std::array<int32_t, 6>> reports;

  void Clear() {
    request_ids.clear();
    tokens.clear();
    num_tokens.clear();
    finish_reasons.clear();
    cached_tokens.clear();
    rows.clear();
    reports.clear();
  }

  void Add(RequestId id, std::span<const int32_t> accepted, FinishReason reason, int32_t cached,
           int32_t row) {
    request_ids.push_back(id.value);
    if (accepted.empty()) tokens.push_back(-1);
    tokens.insert(tokens.end(), accepted.begin(), accepted.end());
    num_tokens.push_back(static_cast<int32_t>(accepted.size()));
    finish_reasons.push_back(static_cast<uint8_t>(reason));
    cached_tokens.push_back(cached);
    rows.push_back(row);
  }
};

}  // namespace tokenspeed
