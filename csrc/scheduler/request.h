// One request: what the caller asked for, its tokens, its state, and how far it is.
//
//   tokens [0, prompt)[prompt, size)          prompt, committed outputs
//          [0, computed)                      in the cache, committed
//          [computed, planned)                written by uncommitted steps
//          [planned, size + ahead)            to be planned; the last `ahead` are still sampled
//
// Thread: scheduler thread only.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "fsm/states.h"
#include "kv/chain_keys.h"
#include "kv/prefix_index.h"
#include "kv/tiers.h"

namespace tokenspeed {

struct Request {
  // What was asked.
  RequestId id;
  int32_t priority = 0;
  int64_t arrival = 0;  // counts submits; orders the queue within a priority
  int32_t prompt_tokens = 0;
  int32_t max_outputs = 0;  // resolved: context and pool limits applied
  int32_t min_outputs = 0;
  int64_t deadline_us = 0;
  bool match_prefix = true;
  int64_t session = 0;
  int64_t tenant = 0;
  std::array<int32_t, 3> reuse_points{};  // 0 ends it
  int64_t gap_us = 0;
  int64_t queue_key = 0;
  int64_t victim_key = 0;
  int64_t retain_us = 0;
  int64_t max_queue_us = 0;
  int32_t max_drafts = 0;
  bool device_drafts = false;
  NodeId root;
  // Where state is worth keeping, increasing, 0 ends it: reuse points on the share grain, or the
  // end of the prompt.
  std::array<int32_t, 3> points{};
  std::vector<int32_t> stop_ids;  // sorted

  std::vector<int32_t> tokens;
  ChainKeys keys;  // of the full blocks of `tokens`, as far as they were needed
  State state;

  // How far it is.
  int32_t computed = 0;
  int32_t planned = 0;
  int32_t ahead = 0;  // sampled tokens that are not committed
  int32_t uncommitted_rows = 0;
  int32_t step_query = 0;   // query tokens reserved in the plan being made
  int32_t sent_blocks = 0;  // block-table entries that the executor has
  int32_t published_blocks = 0;
  SnapshotId snapshot;               // newest of its chain
  BatchId batch;                     // transfers that it waits for
  int32_t load_tokens = 0;           // where it starts when they have arrived
  std::vector<int32_t> load_pieces;  // block index of each piece
  int32_t num_loads = 0;             // ever
  bool is_announced = false;         // the executor knows that it has its slot
  int64_t admission = 0;             // counts admissions of all requests; 0: not running
  int32_t cached_tokens = -1;        // matched at the first admission
  bool cached_reported = false;
  bool is_private = false;       // a block's key was taken: the rest of the chain is not published
  bool is_poisoned = false;      // a row failed: nothing it wrote since is published
  bool retract_pending = false;  // retracted at the commit of its uncommitted rows

  int32_t size() const { return static_cast<int32_t>(tokens.size()); }
  int32_t num_outputs() const { return size() - prompt_tokens; }
  int32_t to_plan() const { return size() + ahead - planned; }

  // Says whether a row that samples may be planned: the length is known ahead, stop ids are not.
  bool can_sample() const { return num_outputs() + ahead < max_outputs; }

  // Returns the first of `points` after `position`, 0 for none.
  int32_t PointAfter(int32_t position) const {
    for (const int32_t point : points) {
      if (point > position) return point;
    }
    return 0;
  }

  bool IsStop(int32_t token) const {
    return std::binary_search(stop_ids.begin(), stop_ids.end(), token);
  }

  // Before whom in the queue: higher priority, then earlier arrival.
  std::pair<int64_t, int64_t> Rank() const { return {-int64_t{priority}, arrival}; }

  SlotRef* slot() {
    return std::visit(
        []<class S>(S& state) -> SlotRef* {
          if constexpr (fsm_has_slot<S>) return &state.slot;
          return nullptr;
        },
        state);
  }
  KvTable* blocks() {
    return std::visit(
        []<class S>(S& state) -> KvTable* {
          if constexpr (fsm_has_slot<S>) return &state.blocks;
          return nullptr;
        },
        state);
  }

 private:
  template <class S>
  static constexpr bool fsm_has_slot = requires(S state) { state.slot; };
};

}  // namespace tokenspeed
