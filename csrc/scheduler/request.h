// One request: what the caller asked for, its tokens, its state, and how far it is.
// Thread: scheduler thread only.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "fsm/states.h"
#include "kv/chain_keys.h"
#include "kv/prefix_index.h"
#include "kv/tiers.h"
#include "scheduler/step_line.h"
#include "scheduler/truth.h"

namespace tokenspeed {

// step_line.h has how far it is, and the few settings that every step reads.
struct Request : StepLine {
  State state;
  std::vector<int32_t> drafts;    // proposed for its next decode row
  std::vector<int32_t> stop_ids;  // sorted
  // Where state is worth keeping, increasing, 0 ends it: reuse points on the share grain, or where
  // a repeat of the prompt starts and the prompt's end. A chain keeps the first one as a branch.
  std::array<int32_t, 3> points{};
  ChainKeys keys;  // of full blocks; covers at least the known tokens that may be matched

  // What was asked beside.
  int32_t priority = 0;
  bool match_prefix = true;
  bool is_open_ended = false;  // may have as many outputs as fit
  bool is_short = false;       // waits in the short queue too
  int64_t arrival = 0;         // counts submits
  int64_t since_us = 0;
  int32_t given_outputs = 0;  // generated before (resume)
  NodeId root;
  std::string salt;
  int64_t session = 0;
  int64_t root_session = 0;
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

  // Drafts that its next decode row may have; none goes beyond the last output.
  int32_t num_drafts() const {
    if (max_drafts == 0) return 0;
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

  void SetStopIds(std::span<const int32_t> ids) {
    stop_ids.assign(ids.begin(), ids.end());
    std::ranges::sort(stop_ids);
    for (const int32_t id : ids) stop_bits |= StopBit(id);
  }
  bool IsStop(int32_t token) const {
    return (stop_bits & StopBit(token)) != 0 && std::ranges::binary_search(stop_ids, token);
  }

  // Who keeps its blocks: higher priority, then smaller victim key, then earlier arrival.
  std::tuple<int64_t, int64_t, int64_t> Rank() const {
    return {-int64_t{priority}, victim_key, arrival};
  }
  // Who makes progress whatever happens: the oldest of the highest priority.
  std::pair<int64_t, int64_t> Seniority() const { return {-int64_t{priority}, arrival}; }

  // What its line says of its state. REQUIRES: called whenever the state has changed.
  void NoteState() {
    const SlotRef* held = slot();
    slot_id = held == nullptr ? -1 : held->value();
    is_decoding = std::holds_alternative<Decoding>(state);
  }

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
  static uint64_t StopBit(int32_t token) { return uint64_t{1} << (token & 63); }
  template <class S>
  static constexpr bool fsm_has_slot = requires(S state) { state.slot; };
};

}  // namespace tokenspeed
