#include <algorithm>

#include "base/check.h"
#include "scheduler/scheduler.h"

namespace tokenspeed {

std::map<std::string, int64_t> Scheduler::Stats() const {
  const auto count = [this]<class S>(fsm::Type<S>) -> int64_t {
    return num_in_state_[State(S{}).index()];
  };
  const PhysicalPool& physical = kv_.physical();
  const SessionTotals all = sessions_.all();
  std::map<std::string, int64_t> stats = {
      {"waiting", count(fsm::Type<Submitted>{})},
      {"loading", count(fsm::Type<Loading>{})},
      {"prefilling", count(fsm::Type<Prefilling>{})},
      {"decoding", count(fsm::Type<Decoding>{})},
      {"retracting", count(fsm::Type<Retracting>{})},
      {"retracted", count(fsm::Type<Retracted>{})},
      {"draining", count(fsm::Type<Draining>{})},
      {"blocks_total", physical.num_usable()},
      {"blocks_used", physical.num_usable() - physical.num_unpinned()},
      {"blocks_cached", physical.num_unpinned() - physical.num_free()},
      {"blocks_free", physical.num_free()},
      {"prompt_tokens", all.prompt},
      {"cached_tokens", all.cached},
      {"created_tokens", all.created},
      {"recomputed_tokens", all.recomputed},
      {"output_tokens", output_tokens_},
      {"sessions_released", num_released_},
      {"released_tokens", released_tokens_},
      {"retractions", num_retractions_},
      {"evictions", kv_.num_evictions()},
      {"submitted", num_submitted_},
      {"finished", num_finished_},
      {"loads", num_loaded_},
      {"loads_failed", num_loads_failed_},
      {"loaded_tokens", loaded_tokens_},
      {"saved", num_saved_},
      {"parked", static_cast<int64_t>(parked_.size())},
      {"sessions", static_cast<int64_t>(sessions_.size())},
      {"drafted", num_drafted_},
      {"accepted", num_accepted_},
      {"tps_floor_violated", floor_.num_violated()},
  };
  for (size_t end = 0; end < kMatchEnds.size(); ++end) {
    stats[std::string("match_") + kMatchEnds[end]] = num_match_ends_[end];
  }
  if (tiers_ != nullptr) stats.merge(tiers_->Stats());
  return stats;
}

int64_t Scheduler::QueuedTokens() const {
  int64_t num_tokens = 0;
  for (const RequestIndex index : requests_.Live()) {
    const StepLine& line = requests_[index];
    num_tokens += std::max(0, line.prompt_tokens - line.computed);
  }
  return num_tokens;
}

std::vector<RequestView> Scheduler::Requests() {
  std::vector<RequestView> views;
  for (const RequestIndex index : requests_.Live()) {
    Request& request = requests_[index];
    RequestView view{.id = request.id,
                     .state = std::visit([]<class S>(S&) { return S::kName; }, request.state),
                     .priority = request.priority,
                     .slot = -1,
                     .computed_tokens = request.computed,
                     .blocks = {}};
    view.blocks.resize(kv_.num_groups());
    if (const KvTable* blocks = request.blocks(); blocks != nullptr) {
      view.slot = request.slot()->value();
      for (int32_t group = 0; group < kv_.num_groups(); ++group) {
        view.blocks[group] = BlocksOf(*blocks, GroupId(group));
      }
    }
    views.push_back(std::move(view));
  }
  std::ranges::sort(views, {}, &RequestView::id);
  return views;
}

// Blocks by index, 0 where a window group let one go; working rows of a state group.
std::vector<int32_t> Scheduler::BlocksOf(const KvTable& table, GroupId group) const {
  std::vector<int32_t> blocks;
  if (kv_.kind(group) != GroupKind::kState) {
    for (size_t i = 0; i < table.size(); ++i) blocks.push_back(kv_.block(table, group, i).value);
    return blocks;
  }
  for (int i = 0; i < static_cast<int>(table.rows.size()); ++i) {
    blocks.push_back(kv_.row_block(table.rows.row(i).id(), kv_.place(group)).value);
  }
  return blocks;
}

std::vector<PhysicalView> Scheduler::PhysicalBlocks() const {
  const PhysicalPool& physical = kv_.physical();
  std::vector<PhysicalView> views(physical.num_physical());
  for (int32_t id = 0; id < static_cast<int32_t>(views.size()); ++id) {
    views[id] = {.id = id, .group = physical.group_of(PhysicalId(id)), .refs = 0};
  }
  kv_.ForEachPool([&](const BlockPool& pool) {
    for (int32_t item = 1; item <= pool.max_items(); ++item) {
      for (int32_t k = 0; pool.refs(item) > 0 && k < pool.num_groups(); ++k) {
        const PhysicalId id = physical.physical_of(pool.group(k), pool.block(item, k));
        views[id.value].refs += pool.refs(item);
      }
    }
  });
  return views;
}

void Scheduler::CheckHeld(const Request& request, const KvTable& table) const {
  for (const WindowTable& window : table.windows) {
    TS_CHECK(window.end() == table.size(), "a window table ends with the blocks");
  }
  const int32_t start = std::min(request.computed, request.step_start());
  for (int32_t w = 0; w < static_cast<int32_t>(table.windows.size()); ++w) {
    for (size_t i = 0; i < table.size(); ++i) {
      TS_CHECK(!kv_.IsInWindow(w, i, start) || table.windows[w].Has(i),
               "a window group has what the next step sees");
    }
  }
  if (kv_.num_state_groups() == 0) return;
  TS_CHECK(static_cast<int32_t>(table.rows.size()) ==
               std::max(config_.depth + 1, table.rows.num_wanted()),
           "a running request has its working rows");
  const bool goes_on = request.admission != 0 && request.planned > 0;
  TS_CHECK(!goes_on || table.rows.At(request.step_start()).value != 0,
           "a running request has the state to go on from");
}

void Scheduler::CheckInvariants() {
  kv_.CheckInvariants();
  int64_t num_refs = 0;
  std::vector<bool> is_slot_taken(slots_.num_slots(), false);
  std::array<int32_t, std::variant_size_v<State>> in_state{};
  size_t num_queued = 0, num_with_deadline = 0;
  int32_t num_slots = 0, num_pending = 0, num_drafting = 0;
  size_t num_batches = 0;
  for (const RequestIndex index : requests_.Live()) {
    Request& request = requests_[index];
    const KvTable* blocks = request.blocks();
    ++in_state[request.state.index()];
    num_drafting += request.max_drafts > 0;
    TS_CHECK(request.is_decoding == std::holds_alternative<Decoding>(request.state) &&
                 request.slot_id == (blocks == nullptr ? -1 : request.slot()->value()),
             "a line says what the state is");
    num_pending += request.retract_pending;
    const bool is_draining = std::holds_alternative<Draining>(request.state);
    num_with_deadline += request.next_deadline_us() > 0 && !is_draining;
    TS_CHECK(!std::holds_alternative<Finished>(request.state), "a finished request is retired");
    const bool is_loading = std::holds_alternative<Loading>(request.state);
    const bool is_retracting = std::holds_alternative<Retracting>(request.state);
    const bool has_batch = request.batch.value != 0;
    num_batches += has_batch;
    TS_CHECK(is_draining <= (request.uncommitted_rows > 0 || has_batch),
             "a draining request has rows or transfers");
    TS_CHECK((is_loading || is_retracting) <= has_batch, "who waits for transfers has some");
    TS_CHECK(has_batch <= (is_loading || is_retracting || is_draining), "and nobody else has");
    TS_CHECK(is_loading <= (request.uncommitted_rows == 0), "a loading request has no rows");
    int32_t num_rows = 0;
    for (const Uncommitted& step : uncommitted_) {
      const auto in_plan = std::ranges::count(step.plan->requests, index);
      TS_CHECK(in_plan <= 1, "a plan has one row of a request");
      num_rows += static_cast<int32_t>(in_plan);
    }
    TS_CHECK(num_rows == request.uncommitted_rows, "uncommitted rows are counted");
    const bool is_running = std::ranges::count(running_, index) == 1;
    TS_CHECK(is_running == (blocks != nullptr && !is_draining && !is_retracting),
             "running requests are listed");
    TS_CHECK(is_running == (request.admission != 0), "exactly the running are admitted");
    if (blocks == nullptr) {
      ++num_queued;
      const bool is_parked = std::ranges::count(parked_, index, &Parked::request) == 1;
      TS_CHECK(queue_.Contains(index) != is_parked, "a request without blocks waits once");
      TS_CHECK(short_queue_.Contains(index) == (request.is_short && !is_parked),
               "short ones that wait are in the short queue");
      continue;
    }
    num_refs += blocks->num_refs();
    const int32_t slot = request.slot()->value();
    TS_CHECK(slot >= 0 && !is_slot_taken[slot], "a slot has one owner");
    is_slot_taken[slot] = true;
    ++num_slots;
    TS_CHECK(request.computed <= request.planned, "what is computed was planned");
    TS_CHECK(BlocksFor(request.planned) <= blocks->size(), "planned tokens have blocks");
    TS_CHECK(!request.is_decoding || request.sent_blocks == static_cast<int32_t>(blocks->size()),
             "the executor knows every block of who decodes");
    CheckHeld(request, *blocks);
  }
  for (const Uncommitted& step : uncommitted_) {
    num_refs += static_cast<int64_t>(step.copy_sources.size() + step.copy_windows.size());
  }
  if (tiers_ != nullptr) {
    tiers_->CheckInvariants();
    TS_CHECK(num_batches == tiers_->num_batches() + tiers_->num_ended(), "batches are waited for");
  }
  TS_CHECK(num_refs == kv_.num_refs(), "every block reference has an owner");
  TS_CHECK(num_queued == queue_.size() + parked_.size(), "the queue has no strangers");
  queue_.CheckInvariants();
  short_queue_.CheckInvariants();
  sessions_.CheckInvariants();
  TS_CHECK(num_with_deadline == deadlines_.size(), "live deadlines are listed");
  TS_CHECK(num_slots + slots_.num_free() == slots_.num_slots(), "slots add up");
  TS_CHECK(in_state == num_in_state_, "states are counted");
  TS_CHECK(num_drafting == num_drafting_, "requests that may have drafts are counted");
  TS_CHECK(num_pending == num_retractions_pending_, "pending retractions are counted");
}

}  // namespace tokenspeed
