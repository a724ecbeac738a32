#include <algorithm>

#include "base/check.h"
#include "scheduler/move.h"

namespace tokenspeed {

std::shared_ptr<const StepPlan> Scheduler::Plan(int64_t now_us) {
  auto buffer = std::make_shared<StepPlan>();
  return Plan(now_us, buffer) ? buffer : nullptr;
}

bool Scheduler::Plan(int64_t now_us, std::shared_ptr<StepPlan> buffer) {
  Expire(now_us);
  if (uncommitted_.size() > static_cast<size_t>(config_.depth)) return false;
  step_.plan = std::move(buffer);
  step_.plan->Clear();
  has_retracted_in_step_ = false;
  int32_t budget = config_.max_step_tokens;
  ReserveDecodes(budget);
  ReserveChunks(budget);
  EmitReserved();
  AdmitFromQueue(budget);
  if (step_.plan->num_rows() == 0) {
    TS_CHECK(!uncommitted_.empty() || requests_.size() == 0, "a waiting request makes progress");
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
    const int32_t num_query = ShrinkToFit(request, std::min(budget, request.to_plan()));
    if (!ReserveBlocks(index, request.planned + num_query)) continue;
    request.step_query = num_query;
    budget -= num_query;
  }
}

// Returns the largest chunk up to `num_query` that fits without a retraction, at least one token.
int32_t Scheduler::ShrinkToFit(Request& request, int32_t num_query) const {
  const auto held = static_cast<int64_t>(request.blocks()->size());
  const int64_t wanted = static_cast<int64_t>(BlocksFor(request.planned + num_query)) - held;
  if (wanted <= 0 || kv_.CanHold(wanted)) return num_query;
  const int64_t room = (held + kv_.MaxHold(wanted)) * config_.block_tokens - request.planned;
  return static_cast<int32_t>(std::max<int64_t>(1, room));
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
    TS_CHECK(!uncommitted_.empty(), "an accepted request has room when it is alone");
    return false;  // an ended request still drains
  }
  const auto rank = [this](RequestIndex index) { return requests_[index].Rank(); };
  const RequestIndex victim = *std::ranges::max_element(running_, {}, rank);
  if (requests_[victim].uncommitted_rows > 0) {
    requests_[victim].retract_pending = true;
    ++num_retractions_pending_;
    return false;
  }
  RetractNow(victim);
  has_retracted_in_step_ = true;
  return true;
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
  request.step_query = 0;
  request.planned += num_query;
  ++request.uncommitted_rows;
  request.ahead += samples;
  if (samples && std::holds_alternative<Prefilling>(request.state)) Move(request, LastChunk{});
}

// Tells the executor the table entries that it does not have yet.
void Scheduler::EmitTable(Request& request) {
  const BlockTable& blocks = *request.blocks();
  const auto num_blocks = static_cast<int32_t>(blocks.size());
  if (request.sent_blocks == num_blocks) return;
  const int32_t slot = request.slot()->value();
  for (int32_t group = 0; group < kv_.pool().num_groups(); ++group) {
    for (int32_t i = request.sent_blocks; i < num_blocks; ++i) {
      const BlockId block = kv_.pool().block(blocks.set(i), GroupId(group));
      step_.plan->block_updates.push_back({slot, group, i, block.value});
    }
  }
  request.sent_blocks = num_blocks;
}

void Scheduler::EmitReplacements() {
  for (const auto& [index, admission, position] : replacements_) {
    Request& request = requests_[index];
    if (request.admission != admission) continue;  // retracted, or ended and the row reused
    const SetId set = request.blocks()->set(position);
    for (int32_t group = 0; group < kv_.pool().num_groups(); ++group) {
      const BlockId block = kv_.pool().block(set, GroupId(group));
      step_.plan->block_updates.push_back({request.slot()->value(), group, position, block.value});
    }
  }
  replacements_.clear();
}

}  // namespace tokenspeed
