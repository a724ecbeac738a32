// Flat results that cross to Python: StepPlan and CommitResult (meaning of each array:
// tokenspeed/contracts/step.py and _core.pyi). Buffers keep their capacity when they are reused.
// Thread: scheduler thread only; Python reads while it holds a plan.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "base/ids.h"

namespace tokenspeed {

inline constexpr int32_t kTokenFromDevice = -1;

enum class FinishReason : uint8_t { kNone, kStop, kLength, kAbort, kTimeout, kError };
inline constexpr std::array<const char*, 6> kFinishReasons = {"",      "stop",    "length",
                                                              "abort", "timeout", "error"};

struct StepPlan {
  int64_t step_id = 0;
  int32_t num_decode_rows = 0;
  std::vector<int64_t> request_ids;
  std::vector<int32_t> slots;
  std::vector<int32_t> query_start;
  std::vector<int32_t> context_tokens;
  std::vector<int32_t> output_index;
  std::vector<int32_t> token_ids;
  std::vector<std::array<int32_t, 2>> admitted;       // row, slot
  std::vector<std::array<int32_t, 4>> block_updates;  // slot, group, index, block
  std::vector<std::array<int32_t, 4>> copies;         // group, source, target, tokens
  std::vector<std::array<int32_t, 6>> transfers;      // id, direction, group, block, slot, range
  std::vector<std::array<int32_t, 4>> store_moves;    // id, direction, group, slot
  std::vector<std::array<uint8_t, 16>> store_keys;    // of each store move
  std::vector<int32_t> store_tokens;                  // [store move][block_tokens], -1 pads
  int32_t block_tokens = 0;

  std::vector<RequestIndex> requests;  // not for Python: whose rows these are

  int32_t num_rows() const { return static_cast<int32_t>(slots.size()); }
  int32_t num_tokens() const { return static_cast<int32_t>(token_ids.size()); }

  void Clear() {
    num_decode_rows = 0;
    request_ids.clear();
    slots.clear();
    query_start.assign(1, 0);
    context_tokens.clear();
    output_index.clear();
    token_ids.clear();
    admitted.clear();
    block_updates.clear();
    copies.clear();
    transfers.clear();
    store_moves.clear();
    store_keys.clear();
    store_tokens.clear();
    requests.clear();
  }
};

struct CommitResult {
  std::vector<int64_t> request_ids;
  std::vector<int32_t> tokens;
  std::vector<uint8_t> finish_reasons;
  std::vector<int32_t> cached_tokens;
  std::vector<int32_t> rows;

  void Reserve(size_t num_entries) {
    request_ids.reserve(num_entries);
    tokens.reserve(num_entries);
    finish_reasons.reserve(num_entries);
    cached_tokens.reserve(num_entries);
    rows.reserve(num_entries);
  }

  void Add(RequestId id, int32_t token, FinishReason reason, int32_t cached, int32_t row) {
    request_ids.push_back(id.value);
    tokens.push_back(token);
    finish_reasons.push_back(static_cast<uint8_t>(reason));
    cached_tokens.push_back(cached);
    rows.push_back(row);
  }
};

}  // namespace tokenspeed
