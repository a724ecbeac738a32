#include <algorithm>

#include "base/check.h"
#include "scheduler/move.h"

namespace tokenspeed {

std::shared_ptr<const StepPlan> Scheduler::Plan(int64_t now_us) {
  auto buffer = std::make_shared<StepPlan>();
  return Plan(now_us, buffer) ? buffer : nullptr;
}

bool Scheduler::Plan(int64_t now_us, std::shared_ptr<StepPlan> buffer) {
  kv_.SetNow(now_us);
  SettleTransfers();
  Expire(now_us);
  if (uncommitted_.size() > static_cast<size_t>(config_.depth)) return false;
  step_.plan = std::move(buffer);
  step_.plan->Clear();
  step_.plan->num_state_groups = kv_.num_state_groups();
  has_retracted_in_step_ = false;
  int32_t budget = config_.max_step_tokens;
  ReserveDecodes(budget);
  ReserveChunks(budget);
  EmitReserved();
  AdmitFromQueue(budget);
  if (tiers_ != nullptr) tiers_->Emit(step_.plan->tier_rows);
  if (step_.plan->num_rows() == 0 && step_.plan->tier_rows.empty()) {
    if (tiers_ != nullptr && tiers_->has_ended()) {  // a load that failed at once queues again
      return Plan(now_us, std::exchange(step_.plan, nullptr));
    }
    TS_CHECK(!uncommitted_.empty() || requests_.size() == 0 || HasBatches(),
             "a waiting request makes progress");
    step_.plan.reset();
    return false;
  }
  EmitReplacements();
  step_.plan->step_id = next_step_id_++;
  uncommitted_.push_back(std::move(step_));
  step_ = Uncommitted{};
  return true;
}

// Blocks first, rows later: a victim of the reservations has no row in this step yet.
void Scheduler::ReserveDecodes(int32_t& budget) {
  scan_ = running_;
  for (const RequestIndex index : scan_) {
    Request& request = requests_[index];
    if (!std::holds_alternative<Decoding>(request.state)) continue;  // or retracted just now
    if (request.retract_pending || !request.can_sample()) continue;
    if (!ReserveBlocks(index, request.planned + 1)) continue;
    request.step_query = 1;
    --budget;
  }
}

void Scheduler::ReserveChunks(int32_t& budget) {
  scan_ = running_;
  for (const RequestIndex index : scan_) {
    if (budget == 0) return;
    Request& request = requests_[index];
    if (!std::holds_alternative<Prefilling>(request.state) || request.retract_pending) continue;
    int32_t num_query = std::min(budget, request.to_plan());
    num_query = CutAtPoint(request, request.planned, num_query);
    num_query = ShrinkToFit(*request.blocks(), request.planned, num_query);
    if (!ReserveBlocks(index, request.planned + num_query)) continue;
    request.step_query = num_query;
    budget -= num_query;
  }
}

// Returns the largest chunk up to `num_query` that fits without a retraction, at least one token.
int32_t Scheduler::ShrinkToFit(const KvTable& table, int32_t from, int32_t num_query) const {
  const size_t wanted = BlocksFor(from + num_query);
  if (wanted <= table.size()) return num_query;
  const auto room = static_cast<int64_t>(kv_.MaxBlocks(table, wanted)) * config_.block_tokens;
  return static_cast<int32_t>(std::clamp<int64_t>(room - from, 1, num_query));
}

// The state is kept where a chunk ends, so one ends at each point worth keeping.
int32_t Scheduler::CutAtPoint(const Request& request, int32_t from, int32_t num_query) const {
  const int32_t point = kv_.num_state_groups() == 0 ? 0 : request.PointAfter(from);
  return point == 0 ? num_query : std::min(num_query, point - from);
}

// Returns: false when the request has to wait for a commit, or was retracted itself.
bool Scheduler::ReserveBlocks(RequestIndex index, int32_t num_tokens) {
  const size_t num_blocks = BlocksFor(num_tokens);
  while (requests_[index].admission != 0) {
    if (kv_.Grow(*requests_[index].blocks(), num_blocks)) return true;
    if (!RetractLast()) return false;
  }
  return false;
}

// Takes blocks from the running request that ranks last; the first is never a victim while others
// run. A victim with uncommitted rows gives its blocks at their commit.
// Returns: true when a request was retracted now.
bool Scheduler::RetractLast() {
  if (num_retractions_pending_ > 0) return false;
  if (running_.size() == 1) {
    TS_CHECK(!uncommitted_.empty() || HasBatches(),
             "an accepted request has room when it is alone");
    return false;  // an ended request still drains, or a victim's blocks are on their way
  }
  const auto rank = [this](RequestIndex index) { return requests_[index].Rank(); };
  const RequestIndex victim = *std::ranges::max_element(running_, {}, rank);
  if (requests_[victim].uncommitted_rows > 0 || requests_[victim].batch.value != 0) {
    requests_[victim].retract_pending = true;
    ++num_retractions_pending_;
    return false;
  }
  RetractNow(victim);
  has_retracted_in_step_ = true;
  return !requests_[victim].retract_pending;  // or when its blocks have been copied
}

void Scheduler::EmitReserved() {
  for (const RequestIndex index : running_) {
    const Request& request = requests_[index];
    if (request.step_query > 0 && std::holds_alternative<Decoding>(request.state)) {
      EmitRow(index, 1);
    }
  }
  step_.plan->num_decode_rows = step_.plan->num_rows();
  for (const RequestIndex index : running_) {
    if (requests_[index].step_query > 0) EmitRow(index, requests_[index].step_query);
  }
}

void Scheduler::EmitRow(RequestIndex index, int32_t num_query) {
  Request& request = requests_[index];
  StepPlan& plan = *step_.plan;
  const bool samples = num_query == request.to_plan();
  if (!request.is_announced) plan.admitted.push_back({plan.num_rows(), request.slot()->value()});
  request.is_announced = true;
  plan.requests.push_back(index);
  plan.request_ids.push_back(request.id.value);
  plan.slots.push_back(request.slot()->value());
  plan.context_tokens.push_back(request.planned);
  plan.output_index.push_back(samples ? request.num_outputs() + request.ahead : -1);
  const int32_t num_known = std::min(num_query, request.size() - request.planned);
  const auto first = request.tokens.begin() + request.planned;
  plan.token_ids.insert(plan.token_ids.end(), first, first + num_known);
  if (num_known < num_query) plan.token_ids.push_back(kTokenFromDevice);
  plan.query_start.push_back(plan.num_tokens());
  EmitTable(request);
  EmitStateRows(request, num_query);
  request.step_query = 0;
  request.planned += num_query;
  ++request.uncommitted_rows;
  request.ahead += samples;
  if (samples && std::holds_alternative<Prefilling>(request.state)) Move(request, LastChunk{});
}

// Tells the executor the table entries that it does not have yet.
void Scheduler::EmitTable(Request& request) {
  const auto num_blocks = static_cast<int32_t>(request.blocks()->size());
  for (; request.sent_blocks < num_blocks; ++request.sent_blocks) {
    EmitEntries(request, request.sent_blocks);
  }
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

// The step starts from the state at its first position and leaves the one after its last.
void Scheduler::EmitStateRows(Request& request, int32_t num_query) {
  const int32_t num_groups = kv_.num_state_groups();
  if (num_groups == 0) return;
  StateRows& rows = request.blocks()->rows;
  const RowId source = rows.At(request.planned);
  TS_CHECK(source.value != 0 || request.planned == 0, "a sequence goes on from a state");
  const RowId target = rows.Write(request.planned, request.planned + num_query);
  for (int32_t k = 0; k < num_groups; ++k) {
    step_.plan->state_rows.push_back(source.value == 0 ? -1 : kv_.row_block(source, k).value);
    step_.plan->state_rows.push_back(kv_.row_block(target, k).value);
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
