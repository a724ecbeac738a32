// What every step reads of a running request: two cache lines that lie side by side, and the end of
// its tokens. A decode row to which nothing happens but its next token touches no more than these:
// not its state, its block table, its keys or what was asked.
//
//   line 0   plan     who it is, where its row goes, how far it is
//   line 1   commit   what its next token may bring about
//
//   tokens [0, prompt)[prompt, size)          prompt, committed outputs
//          [0, computed)                      in the cache, committed
//          [computed, planned)                written by uncommitted steps
//          [planned, size + ahead)            to be planned; the last `ahead` are still sampled
//
// Thread: scheduler thread only.
#pragma once

#include <cstdint>

#include "base/ids.h"
#include "base/pages.h"

namespace tokenspeed {

struct alignas(128) StepLine {
  RequestId id;
  PagedVector<int32_t> tokens;
  int64_t newest_step = 0;  // the last plan that has a row of it
  int32_t planned = 0;
  int32_t ahead = 0;        // tokens that uncommitted rows sample, at most: every draft right
  int32_t slot_id = -1;     // as the state has it, -1 for none; so is is_decoding: Scheduler::Move
  int32_t sent_blocks = 0;  // block-table entries that the executor has; between plans all of them
  int32_t step_query = 0;   // query tokens reserved in the plan being made
  bool is_decoding = false;
  bool is_announced = false;     // the executor knows that it has its slot
  bool retract_pending = false;  // retracted at the commit of its uncommitted rows
  bool drafts_in_turn = false;   // a row with drafts is planned when all before it are committed

  int64_t admission = 0;   // counts admissions of all requests; 0: not running
  uint64_t stop_bits = 0;  // bit t % 64 for each stop id t: most tokens are known to be none
  int32_t computed = 0;
  int32_t published_blocks = 0;
  int32_t prompt_tokens = 0;
  int32_t max_outputs = 0;  // resolved: context and pool limits applied
  int32_t min_outputs = 0;
  int32_t max_drafts = 0;
  int32_t uncommitted_rows = 0;
  int32_t step_drafts = 0;  // of step_query
  // Planned tokens after the newest row of state, which its next row reads again: drafts, if state
  // groups keep the row before them only. At most: as if all of them were right.
  int32_t to_replay = 0;
  int32_t drafts_in_flight = 0;  // drafts of uncommitted rows
  bool device_drafts = false;
  bool is_paused = false;      // its drafter has nothing: rows follow as if it had none
  bool has_no_drafts = false;  // gave them up for room
  bool cached_reported = false;
  bool is_private = false;   // a block's key was taken: the rest of the chain is not published
  bool is_poisoned = false;  // a row failed: nothing it wrote since is published

  int32_t size() const { return static_cast<int32_t>(tokens.size()); }
  int32_t num_outputs() const { return size() - prompt_tokens; }
  int32_t step_start() const { return planned - to_replay; }  // of its next row
  int32_t to_plan() const { return size() + ahead - planned; }

  // Says whether a row that samples may be planned: the length is known ahead, stop ids are not.
  bool can_sample() const {
    const bool may_draft = !is_paused || drafts_in_flight > 0;
    const bool waits = drafts_in_turn && may_draft && uncommitted_rows > 0;
    return !waits && num_outputs() + ahead < max_outputs;
  }
};
static_assert(sizeof(StepLine) == 128, "two cache lines");

}  // namespace tokenspeed
