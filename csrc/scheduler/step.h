// Flat results that cross to Python: StepPlan and CommitResult (meaning of each array:
// tokenspeed/contracts/step.py and _core.pyi). They are filled again and again, mostly with as much
// as the last time: columns of rows are resized, not cleared and grown row by row, so that a step
// like the one before clears, grows and allocates nothing.
// Thread: scheduler thread only; Python reads while it holds a plan.
#pragma once

#include <algorithm>
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

  // All but the rows, which ResizeRows starts.
  void Clear() {
    num_decode_rows = 0;
    num_write_rows = 1;
    token_ids.clear();
    admitted.clear();
    block_updates.clear();
    copies.clear();
    tier_rows.Clear();
    state_rows.clear();
  }
  // A row that is new is to be written in every column.
  void ResizeRows(int32_t num_rows) {
    const auto size = static_cast<size_t>(num_rows);
    request_ids.resize(size);
    slots.resize(size);
    query_start.resize(size + 1);
    context_tokens.resize(size);
    output_index.resize(size);
    num_drafts.resize(size);
    requests.resize(size);
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

  // The arrays are as long as the entries only after Finish.
  int32_t num_entries() const { return static_cast<int32_t>(num_entries_); }

  void Clear() {
    num_entries_ = num_values_ = 0;
    reports.clear();
  }
  void Finish() {
    ResizeEntries(num_entries_);
    tokens.resize(num_values_);
  }

  void Add(RequestId id, std::span<const int32_t> accepted, FinishReason reason, int32_t cached,
           int32_t row) {
    if (accepted.size() == 1) return AddOne(id, accepted[0], reason, cached, row);
    AddOne(id, accepted.empty() ? -1 : accepted[0], reason, cached, row);
    num_tokens[num_entries_ - 1] = static_cast<int32_t>(accepted.size());
    if (accepted.empty()) return;
    if (num_values_ + accepted.size() > tokens.size()) tokens.resize(num_values_ + accepted.size());
    for (const int32_t token : accepted.subspan(1)) tokens[num_values_++] = token;
  }
  void AddOne(RequestId id, int32_t token, FinishReason reason, int32_t cached, int32_t row) {
    if (num_entries_ == rows.size()) ResizeEntries(std::max<size_t>(64, 2 * num_entries_));
    if (num_values_ == tokens.size()) tokens.resize(std::max<size_t>(64, 2 * num_values_));
    const size_t entry = num_entries_++;
    request_ids[entry] = id.value;
    tokens[num_values_++] = token;
    num_tokens[entry] = 1;
    finish_reasons[entry] = static_cast<uint8_t>(reason);
    cached_tokens[entry] = cached;
    rows[entry] = row;
  }

 private:
  void ResizeEntries(size_t size) {
    request_ids.resize(size);
    num_tokens.resize(size);
    finish_reasons.resize(size);
    cached_tokens.resize(size);
    rows.resize(size);
  }

  size_t num_entries_ = 0, num_values_ = 0;
};

}  // namespace tokenspeed
