// Writes the rows of a plan: tokens, block-table entries and state rows of who takes part.
#include <algorithm>

#include "base/check.h"
#include "scheduler/move.h"

namespace tokenspeed {

void Scheduler::EmitDecodes() {
  for (const RequestIndex index : running_) {
    if (kv_.num_state_groups() == 0 || is_replay_) break;
    int32_t& most = step_.plan->num_write_rows;
    most = std::max(most, 1 + requests_[index].step_drafts);
  }
  int32_t num_rows = 0;
  for (const RequestIndex index : running_) num_rows += requests_[index].step_query > 0;
  step_.plan->ResizeRows(num_rows);
  for (int32_t row = 0; const RequestIndex index : running_) {
    Request& request = requests_[index];
    if (request.step_query == 0) continue;
    CountLoad(request, request.step_query);
    EmitRow(index, request, row++);
  }
  step_.plan->num_decode_rows = num_rows;
}

void Scheduler::EmitChunks() {
  for (const RequestIndex index : running_) {
    if (requests_[index].step_query > 0) EmitChunk(index);
  }
}

void Scheduler::EmitChunk(RequestIndex index) {
  const int32_t row = step_.plan->num_rows();
  step_.plan->ResizeRows(row + 1);
  EmitRow(index, requests_[index], row);
}

// Of a decode row to which nothing happens it reads the line only (step_line.h).
void Scheduler::EmitRow(RequestIndex index, Request& request, int32_t row) {
  StepPlan& plan = *step_.plan;
  const int32_t num_query = request.step_query, num_drafts = request.step_drafts;
  const int32_t start = request.step_start(), num_new = num_query - request.to_replay;
  const bool samples = num_new - num_drafts == request.to_plan();
  plan.requests[row] = index;
  plan.request_ids[row] = request.id.value;
  plan.slots[row] = request.slot_id;
  plan.context_tokens[row] = start;
  plan.output_index[row] = samples ? request.num_outputs() + request.ahead : -1;
  plan.num_drafts[row] = num_drafts;
  EmitTokens(request, start, num_query - num_drafts);
  if (num_drafts > 0) EmitDrafts(request);
  plan.query_start[row + 1] = plan.num_tokens();
  if (!request.is_announced) plan.admitted.push_back({row, request.slot_id});
  request.is_announced = true;
  if (request.planned + num_new > SentTokens(request)) EmitTable(request);
  if (kv_.num_state_groups() > 0) EmitStateRows(request, num_query);
  request.step_query = request.step_drafts = 0;
  request.newest_step = next_step_id_;
  request.planned += num_new;
  request.to_replay = is_replay_ ? num_drafts : 0;
  ++request.uncommitted_rows;
  request.drafts_in_flight += num_drafts;
  if (!samples) return;
  request.ahead += 1 + num_drafts;
  if (!request.is_decoding) Move(request, LastChunk{});
}

// Beyond drafts on the device the place of a row is an upper bound: none of its tokens is known.
void Scheduler::EmitTokens(const Request& request, int32_t start, int32_t count) {
  std::vector<int32_t>& tokens = step_.plan->token_ids;
  const int32_t num_known = std::clamp(request.size() - start, 0, count);
  const int32_t* first = request.tokens.data() + start;
  if (num_known == 1) {
    tokens.push_back(*first);
  } else {
    tokens.insert(tokens.end(), first, first + num_known);
  }
  if (num_known < count) tokens.push_back(kTokenFromDevice);
}

void Scheduler::EmitDrafts(Request& request) {
  std::vector<int32_t>& tokens = step_.plan->token_ids;
  if (request.device_drafts) {
    tokens.insert(tokens.end(), request.step_drafts, kTokenFromDevice);
  } else {
    tokens.insert(tokens.end(), request.drafts.begin(),
                  request.drafts.begin() + request.step_drafts);
  }
  request.drafts.clear();
}

// What the step's duration is predicted from; rows count when their tokens are chosen.
void Scheduler::CountLoad(const Request& request, int32_t num_query) {
  if (!floor_.is_on()) return;
  ++load_.rows;
  if (request.is_decoding) {
    load_.context_tokens += request.planned;
    return;
  }
  load_.prefill_tokens += num_query;
  load_.prefill_work += num_query * (request.planned + num_query / 2.0);
}

// Tells the executor the table entries that it does not have yet.
void Scheduler::EmitTable(Request& request) {
  const KvTable& table = *request.blocks();
  const auto num_blocks = static_cast<int32_t>(table.size());
  if (kv_.num_groups() > 1) {
    for (; request.sent_blocks < num_blocks; ++request.sent_blocks) {
      EmitEntries(request, request.sent_blocks);
    }
    return;
  }
  // A model of one group, which is a full one: the entries of a long table in one go.
  const int32_t slot = request.slot_id, first = request.sent_blocks;
  auto& updates = step_.plan->block_updates;
  const size_t end = updates.size() + static_cast<size_t>(num_blocks - first);
  if (end > updates.capacity()) updates.reserve(end + end / 2);
  updates.resize(end);
  std::array<int32_t, 4>* entry = updates.data() + end - (num_blocks - first);
  for (int32_t i = first; i < num_blocks; ++i) {
    *entry++ = {slot, 0, i, kv_.sets().block(table.blocks.set(i), 0).value};
  }
  request.sent_blocks = num_blocks;
}

// Entries of one block in all groups that have it: a window group only while it is seen.
void Scheduler::EmitEntries(Request& request, int32_t position) {
  const int32_t slot = request.slot_id;
  for (int32_t group = 0; group < kv_.num_groups(); ++group) {
    if (kv_.kind(GroupId(group)) == GroupKind::kState) continue;
    const BlockId block = kv_.block(*request.blocks(), GroupId(group), position);
    if (block.value != 0) step_.plan->block_updates.push_back({slot, group, position, block.value});
  }
}

// The step starts from the state at its first position and leaves the one before its drafts and, if
// groups have rows per position, the one after each of them.
void Scheduler::EmitStateRows(Request& request, int32_t num_query) {
  const int32_t num_groups = kv_.num_state_groups();
  if (num_groups == 0) return;
  StateRows& rows = request.blocks()->rows;
  const int32_t start = request.step_start();
  const RowId source = rows.At(start);
  TS_CHECK(source.value != 0 || start == 0, "a sequence goes on from a state");
  const int32_t num_writes = is_replay_ ? 1 : 1 + request.step_drafts;
  const int32_t first_end = start + num_query - request.step_drafts;
  targets_.clear();
  for (int32_t i = 0; i < num_writes; ++i) {
    targets_.push_back(rows.Write(start, request.computed, first_end + i));
  }
  targets_.resize(step_.plan->num_write_rows);
  for (int32_t k = 0; k < num_groups; ++k) {
    const auto emit = [&](RowId row) {
      step_.plan->state_rows.push_back(row.value == 0 ? -1 : kv_.row_block(row, k).value);
    };
    emit(source);
    for (const RowId target : targets_) emit(target);
  }
}

void Scheduler::EmitReplacements() {
  for (const auto& [index, admission, position] : replacements_) {
    Request& request = requests_[index];
    if (request.admission != admission) continue;  // retracted, or ended and the row reused
    EmitEntries(request, position);
  }
  replacements_.clear();
}

}  // namespace tokenspeed
