#include <algorithm>

#include "base/check.h"
#include "scheduler/move.h"

namespace tokenspeed {
namespace {

constexpr size_t kLinesAhead = 12;  // so many requests before a line is read it is asked for

}  // namespace

std::shared_ptr<const StepPlan> Scheduler::Plan(int64_t now_us) {
  auto buffer = std::make_shared<StepPlan>();
  return Plan(now_us, buffer) ? buffer : nullptr;
}

bool Scheduler::Plan(int64_t now_us, std::shared_ptr<StepPlan> buffer) {
  const bool has_work = PlanStep(now_us, buffer);
  record_.Plan(now_us, has_work ? buffer.get() : nullptr);
  return has_work;
}

bool Scheduler::PlanStep(int64_t now_us, std::shared_ptr<StepPlan> buffer) {
  SetNow(now_us);
  SettleTransfers();
  Expire(now_us);
  if (uncommitted_.size() > static_cast<size_t>(config_.depth)) return false;
  step_.plan = std::move(buffer);
  step_.plan->Clear();
  step_.plan->num_state_groups = kv_.num_state_groups();
  has_retracted_in_step_ = false;
  KeepToCaps();
  int32_t budget = config_.max_step_tokens;
  queue_.Advance(now_us_);
  short_queue_.Advance(now_us_);
  ReturnParked();
  load_ = StepLoad{};
  ReserveDecodes(budget);
  EmitDecodes();
  StartFloor();
  PlanPrefills(budget);
  if (tiers_ != nullptr) tiers_->Emit(step_.plan->tier_rows);
  if (step_.plan->num_rows() == 0 && step_.plan->tier_rows.empty()) {
    if (tiers_ != nullptr && tiers_->has_ended()) {  // a load that failed at once queues again
      return PlanStep(now_us, std::exchange(step_.plan, nullptr));
    }
    TS_CHECK(!uncommitted_.empty() || requests_.size() == 0 || HasBatches(),
             "a waiting request makes progress");
    step_.plan.reset();
    return false;
  }
  EmitReplacements();
  if (floor_.is_on()) floor_.Planned(load_, now_us_, HasSamples(*step_.plan));
  step_.plan->step_id = next_step_id_++;
  uncommitted_.push_back(std::move(step_));
  step_ = Uncommitted{};
  return true;
}

// Blocks first, rows later: a victim of the reservations has no row in this step yet.
void Scheduler::ReserveDecodes(int32_t& budget) {
  scan_ = running_;
  int32_t spare = SpareForDrafts(budget);
  for (size_t i = 0; i < scan_.size(); ++i) {
    if (i + kLinesAhead < scan_.size()) requests_.PrefetchLine(scan_[i + kLinesAhead]);
    const RequestIndex index = scan_[i];
    Request& request = requests_[index];
    if (!request.is_decoding) continue;  // or retracted just now
    if (request.retract_pending || !request.can_sample()) continue;
    // Those before it replay nothing in the next step, then it has room.
    if (1 + request.to_replay > budget) continue;
    const bool has_block =
        kv_.num_state_groups() == 0 && request.planned + 1 <= SentTokens(request);
    if (!has_block && !ReserveBlocks(index, request.planned + 1)) continue;
    if (request.max_drafts > 0) ReserveDrafts(request, spare);
    request.step_query = 1 + request.to_replay + request.step_drafts;
    budget -= request.step_query;
    spare -= request.step_drafts;
  }
}

// What everybody who runs leaves of the budget with a row of one token.
int32_t Scheduler::SpareForDrafts(int32_t budget) const {
  if (num_drafting_ == 0) return 0;
  for (const RequestIndex index : running_) budget -= 1 + requests_[index].to_replay;
  return std::max(0, budget);
}

// Nobody is retracted for a draft.
void Scheduler::ReserveDrafts(Request& request, int32_t spare) {
  request.step_drafts = std::min(spare, request.num_drafts());
  if (kv_.num_state_groups() > 0 && !is_replay_) {
    const auto num_rows = static_cast<int32_t>(request.blocks()->rows.size());
    const int32_t num_steps = request.drafts_in_turn ? 1 : config_.depth + 1;
    request.step_drafts = std::clamp(num_rows / num_steps - 1, 0, request.step_drafts);
  }
  if (request.step_drafts > 0 &&
      !kv_.Grow(*request.blocks(), BlocksFor(request.planned + 1 + request.step_drafts),
                AccountOf(request))) {
    request.step_drafts = 0;
  }
}

// Working rows of state that it needs because of its drafts; 0: no more than without.
int32_t Scheduler::DraftRows(int32_t max_drafts, bool is_in_turn) const {
  if (kv_.num_state_groups() == 0 || is_replay_ || max_drafts == 0) return 0;
  if (!is_in_turn) return (config_.depth + 1) * (1 + max_drafts);
  return std::max(config_.depth + 1, 1 + max_drafts);
}

// Little ones first, so that a short turn starts at once beside a long prefill, which is displaced
// for that step; but never for more than max_prefill_steps in a row.
void Scheduler::PlanPrefills(int32_t budget) {
  if (num_in_state_[State(Prefilling{}).index()] == 0) {
    num_displaced_steps_ = 0;
    return AdmitFromQueue(budget);
  }
  const auto is_long = [this](RequestIndex index) {
    const Request& request = requests_[index];
    return std::holds_alternative<Prefilling>(request.state) && request.to_plan() > ShortTokens();
  };
  const bool has_long = std::ranges::any_of(running_, is_long);
  const bool is_displaceable = num_displaced_steps_ < std::max(1, config_.max_prefill_steps);
  ReserveChunks(budget, true);
  if (has_long && !is_displaceable) ReserveChunks(budget, false);
  EmitChunks();
  if (has_long && is_displaceable) {
    AdmitShort(budget);
    const int32_t left = budget;
    ReserveChunks(budget, false);
    EmitChunks();
    num_displaced_steps_ = budget < left ? 0 : num_displaced_steps_ + 1;
  } else {
    num_displaced_steps_ = 0;
  }
  AdmitFromQueue(budget);
}

void Scheduler::ReserveChunks(int32_t& budget, bool is_short) {
  scan_ = running_;
  for (const RequestIndex index : scan_) {
    if (budget == 0) return;
    Request& request = requests_[index];
    if (!std::holds_alternative<Prefilling>(request.state) || request.retract_pending) continue;
    if ((request.to_plan() <= ShortTokens()) != is_short || request.step_query > 0) continue;
    // Admitted in this plan as short, with a first chunk cut at a reuse point: one row is enough.
    if (request.newest_step == next_step_id_) continue;
    int32_t num_query = FloorChunk(request.planned, std::min(budget, request.to_plan()));
    if (num_query == 0) continue;
    num_query = CutAtPoint(request, request.planned, num_query);
    num_query = ShrinkToFit(request, *request.blocks(), request.planned, num_query);
    if (!ReserveBlocks(index, request.planned + num_query)) continue;
    request.step_query = num_query;
    CountLoad(request, num_query);
    budget -= num_query;
  }
}

// Returns the largest chunk up to `num_query` that fits without a retraction, at least one token.
int32_t Scheduler::ShrinkToFit(const Request& request, const KvTable& table, int32_t from,
                               int32_t num_query) const {
  const size_t wanted = BlocksFor(from + num_query);
  if (wanted <= table.size()) return num_query;
  const size_t num_blocks = kv_.MaxBlocks(table, wanted, AccountOf(request));
  const auto room = static_cast<int64_t>(num_blocks) * config_.block_tokens;
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
    KvTable& table = *requests_[index].blocks();
    if (kv_.Grow(table, num_blocks, AccountOf(requests_[index]))) return true;
    if (!RetractFor(index, kv_.Need(table, num_blocks))) return false;
  }
  return false;
}

// Takes blocks for `asker` from the running request that ranks last of those that can give it room;
// the first of all is never a victim while others run. A victim with uncommitted rows gives its
// blocks at their commit.
// Returns: true when a request was retracted now.
bool Scheduler::RetractFor(RequestIndex asker, const KvNeed& need) {
  if (num_retractions_pending_ > 0) return false;
  if (running_.size() == 1) {
    if (uncommitted_.empty() && !HasBatches()) return GiveUpDrafts(running_.front());
    return false;  // an ended request still drains, or a victim's blocks are on their way
  }
  const RequestIndex first = FirstRunning([](RequestIndex) { return true; });
  const RequestIndex victim = LastRunning([&](RequestIndex index) {
    return index != first && GivesRoom(requests_[index], requests_[asker], need);
  });
  return victim.value >= 0 && RetractRunning(victim);
}

// Returns: false when its blocks come later, at a commit or when they have been copied.
bool Scheduler::RetractRunning(RequestIndex victim) {
  if (requests_[victim].uncommitted_rows > 0 || requests_[victim].batch.value != 0) {
    requests_[victim].retract_pending = true;
    ++num_retractions_pending_;
    return false;
  }
  RetractNow(victim);
  has_retracted_in_step_ = true;
  return !requests_[victim].retract_pending;
}

// A request that is alone has room without drafts: it starts again from what is cached.
bool Scheduler::GiveUpDrafts(RequestIndex index) {
  Request& request = requests_[index];
  TS_CHECK(request.max_drafts > 0 && !request.has_no_drafts,
           "an accepted request has room when it is alone");
  request.has_no_drafts = true;
  RetractNow(index);
  has_retracted_in_step_ = true;
  return true;
}

}  // namespace tokenspeed
