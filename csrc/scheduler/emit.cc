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
  for (const RequestIndex index : running_) {
    const int32_t num_query = requests_[index].step_query;
    if (num_query == 0) continue;
    CountLoad(requests_[index], num_query);
    EmitRow(index, num_query);
  }
  step_.plan->num_decode_rows = step_.plan->num_rows();
}

void Scheduler::EmitChunks() {
  for (const RequestIndex index : running_) {
    if (requests_[index].step_query > 0) EmitRow(index, requests_[index].step_query);
  }
}

void Scheduler::EmitRow(RequestIndex index, int32_t num_query) {
  Request& request = requests_[index];
  StepPlan& plan = *step_.plan;
  const int32_t num_drafts = request.step_drafts, start = request.step_start();
  const int32_t num_new = num_query - request.to_replay;
  const bool samples = num_new - num_drafts == request.to_plan();
  if (!request.is_announced) plan.admitted.push_back({plan.num_rows(), request.slot()->value()});
  request.is_announced = true;
  plan.requests.push_back(index);
  plan.request_ids.push_back(request.id.value);
  plan.slots.push_back(request.slot()->value());
  plan.context_tokens.push_back(start);
  plan.output_index.push_back(samples ? request.num_outputs() + request.ahead : -1);
  // Beyond drafts on the device the place of a row is an upper bound: none of its tokens is known.
  const int32_t num_known = std::clamp(request.size() - start, 0, num_query - num_drafts);
  const int32_t* first = request.tokens.data() + start;
  if (num_known > 0) plan.token_ids.insert(plan.token_ids.end(), first, first + num_known);
  if (num_known < num_query - num_drafts) plan.token_ids.push_back(kTokenFromDevice);
  if (num_drafts > 0) EmitDrafts(request);
  plan.num_drafts.push_back(num_drafts);
  plan.query_start.push_back(plan.num_tokens());
  EmitTable(request);
  EmitStateRows(request, num_query);
  request.step_query = request.step_drafts = 0;
  request.newest_step = next_step_id_;
  request.planned += num_new;
  request.to_replay = is_replay_ ? num_drafts : 0;
  ++request.uncommitted_rows;
  request.drafts_in_flight += num_drafts;
  request.ahead += samples ? 1 + num_drafts : 0;
  if (samples && std::holds_alternative<Prefilling>(request.state)) Move(request, LastChunk{});
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
  if (std::holds_alternative<Decoding>(request.state)) {
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
  if (request.sent_blocks >= num_blocks) return;
  if (kv_.num_groups() > 1) {
    for (; request.sent_blocks < num_blocks; ++request.sent_blocks) {
      EmitEntries(request, request.sent_blocks);
    }
    return;
  }
  // A model of one group, which is a full one: the entries of a long table in one go.
  const int32_t slot = request.slot()->value(), first = request.sent_blocks;
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
  const int32_t slot = request.slot()->value();
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
