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
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "base/pages.h"
#include "fsm/states.h"
#include "kv/chain_keys.h"
#include "kv/prefix_index.h"
#include "kv/tiers.h"
#include "scheduler/truth.h"

namespace tokenspeed {

struct Request {
  // How far it is, and the few settings that every step reads: together, so that a step of many
  // requests touches few cache lines of each.
  RequestId id;
  PagedVector<int32_t> tokens;
  int32_t computed = 0;
  int32_t planned = 0;
  int32_t ahead = 0;  // tokens that uncommitted rows sample, at most: every draft right
  int32_t uncommitted_rows = 0;
  int32_t step_query = 0;   // query tokens reserved in the plan being made
  int64_t newest_step = 0;  // the last plan that has a row of it
  int32_t step_drafts = 0;  // of them drafts
  // Planned tokens after the newest row of state, which its next row reads again: drafts, if state
  // groups keep the row before them only. At most: as if all of them were right.
  int32_t to_replay = 0;
  int32_t sent_blocks = 0;  // block-table entries that the executor has
  int32_t published_blocks = 0;
  int32_t prompt_tokens = 0;
  int32_t max_outputs = 0;  // resolved: context and pool limits applied
  int32_t min_outputs = 0;
  int32_t max_drafts = 0;
  int64_t admission = 0;  // counts admissions of all requests; 0: not running
  // Where state is worth keeping, increasing, 0 ends it: reuse points on the share grain, or where
  // a repeat of the prompt starts and the prompt's end. A chain keeps the first one as a branch.
  std::array<int32_t, 3> points{};
  bool device_drafts = false;
  bool drafts_in_turn = false;  // a row with drafts is planned when all before it are committed
  bool has_no_drafts = false;   // gave them up for room
  bool is_announced = false;    // the executor knows that it has its slot
  bool cached_reported = false;
  bool is_short = false;         // waits in the short queue too
  bool is_private = false;       // a block's key was taken: the rest of the chain is not published
  bool is_poisoned = false;      // a row failed: nothing it wrote since is published
  bool retract_pending = false;  // retracted at the commit of its uncommitted rows
  State state;
  std::vector<int32_t> drafts;    // proposed for its next decode row
  std::vector<int32_t> stop_ids;  // sorted
  ChainKeys keys;  // of full blocks; covers at least the known tokens that may be matched

  // What was asked beside.
  int32_t priority = 0;
  bool match_prefix = true;
  int64_t arrival = 0;  // counts submits
  int64_t since_us = 0;
  int32_t given_outputs = 0;  // generated before (resume)
  NodeId root;
  std::string salt;
  int64_t session = 0;
  int64_t tenant = 0;
  std::array<int32_t, 3> reuse_points{};  // 0 ends it
  int64_t gap_us = 0;
  int64_t queue_key = 0;
  int64_t victim_key = 0;
  int64_t retain_us = 0;
  int64_t deadline_us = 0;
  int64_t queue_deadline_us = 0;  // 0: none, or it ran already

  // What the cache had, and transfers.
  int32_t cached_tokens = -1;   // matched at the first admission
  std::vector<KnownSet> known;  // sets of its first blocks, noted by the session's turn before
  std::optional<MatchEvidence::Turn> previous;  // the session's turn before
  Truth truth;                                  // of the first admission
  SnapshotId snapshot;                          // newest of its chain
  BatchId batch;                                // transfers that it waits for
  int32_t load_tokens = 0;                      // where it starts when they have arrived
  std::vector<int32_t> load_pieces;             // block index of each piece
  int32_t num_loads = 0;                        // ever

  // Until it runs for the first time it must start before queue_deadline_us too.
  int64_t next_deadline_us() const {
    if (deadline_us == 0 || queue_deadline_us == 0) return std::max(deadline_us, queue_deadline_us);
    return std::min(deadline_us, queue_deadline_us);
  }

  int32_t size() const { return static_cast<int32_t>(tokens.size()); }
  int32_t num_outputs() const { return size() - prompt_tokens; }
  int32_t step_start() const { return planned - to_replay; }  // of its next row
  int32_t to_plan() const { return size() + ahead - planned; }

  // Says whether a row that samples may be planned: the length is known ahead, stop ids are not.
  bool can_sample() const {
    const bool waits = drafts_in_turn && uncommitted_rows > 0;
    return !waits && num_outputs() + ahead < max_outputs;
  }
  // Drafts that its next decode row may have; none goes beyond the last output.
  int32_t num_drafts() const {
    const int32_t wanted = has_no_drafts   ? 0
                           : device_drafts ? max_drafts
                                           : static_cast<int32_t>(drafts.size());
    return std::clamp(max_outputs - num_outputs() - ahead - 1, 0, wanted);
  }

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

  // Who keeps its blocks: higher priority, then smaller victim key, then earlier arrival.
  std::tuple<int64_t, int64_t, int64_t> Rank() const {
    return {-int64_t{priority}, victim_key, arrival};
  }
  // Who makes progress whatever happens: the oldest of the highest priority.
  std::pair<int64_t, int64_t> Seniority() const { return {-int64_t{priority}, arrival}; }

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
