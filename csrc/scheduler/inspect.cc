#include <algorithm>

#include "base/check.h"
#include "scheduler/scheduler.h"

namespace tokenspeed {

std::map<std::string, int64_t> Scheduler::Stats() const {
  const auto count = [this]<class S>(fsm::Type<S>) -> int64_t {
    return num_in_state_[State(S{}).index()];
  };
  const PhysicalPool& physical = kv_.pool().physical();
  const SessionTotals all = sessions_.all();
  std::map<std::string, int64_t> stats = {
      {"waiting", count(fsm::Type<Submitted>{})},
      {"prefilling", count(fsm::Type<Prefilling>{})},
      {"decoding", count(fsm::Type<Decoding>{})},
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
      {"retractions", num_retractions_},
      {"evictions", kv_.num_evictions()},
      {"submitted", num_submitted_},
      {"finished", num_finished_},
      {"parked", static_cast<int64_t>(parked_.size())},
      {"sessions", static_cast<int64_t>(sessions_.size())},
      {"drafted", num_drafted_},
      {"accepted", num_accepted_},
      {"tps_floor_violated", floor_.num_violated()},
  };
  for (size_t end = 0; end < kMatchEnds.size(); ++end) {
    stats[std::string("match_") + kMatchEnds[end]] = num_match_ends_[end];
  }
  return stats;
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
    view.blocks.resize(kv_.pool().num_groups());
    if (const BlockTable* blocks = request.blocks(); blocks != nullptr) {
      view.slot = request.slot()->value();
      for (size_t group = 0; group < view.blocks.size(); ++group) {
        for (size_t i = 0; i < blocks->size(); ++i) {
          const GroupId id(static_cast<int32_t>(group));
          view.blocks[group].push_back(kv_.pool().block(blocks->set(i), id).value);
        }
      }
    }
    views.push_back(std::move(view));
  }
  std::ranges::sort(views, {}, &RequestView::id);
  return views;
}

std::vector<PhysicalView> Scheduler::PhysicalBlocks() const {
  const BlockPool& pool = kv_.pool();
  std::vector<PhysicalView> views(pool.physical().num_physical());
  for (int32_t id = 0; id < static_cast<int32_t>(views.size()); ++id) {
    views[id] = {.id = id, .group = pool.physical().group_of(PhysicalId(id)), .refs = 0};
  }
  for (int32_t set = 1; set <= pool.max_sets(); ++set) {
    const int32_t refs = pool.refs(SetId(set));
    for (int32_t group = 0; refs > 0 && group < pool.num_groups(); ++group) {
      const GroupId id(group);
      views[pool.block(SetId(set), id).value / pool.physical().packing(id)].refs += refs;
    }
  }
  return views;
}

void Scheduler::CheckInvariants() {
  kv_.CheckInvariants();
  int64_t num_refs = 0;
  std::vector<bool> is_slot_taken(slots_.num_slots(), false);
  std::array<int32_t, std::variant_size_v<State>> in_state{};
  size_t num_queued = 0, num_with_deadline = 0;
  int32_t num_slots = 0, num_pending = 0;
  for (const RequestIndex index : requests_.Live()) {
    Request& request = requests_[index];
    const BlockTable* blocks = request.blocks();
    ++in_state[request.state.index()];
    num_pending += request.retract_pending;
    const bool is_draining = std::holds_alternative<Draining>(request.state);
    num_with_deadline += request.next_deadline_us() > 0 && !is_draining;
    TS_CHECK(!std::holds_alternative<Finished>(request.state), "a finished request is retired");
    TS_CHECK(is_draining <= (request.uncommitted_rows > 0), "a draining request has rows");
    int32_t num_rows = 0;
    for (const Uncommitted& step : uncommitted_) {
      num_rows += static_cast<int32_t>(std::ranges::count(step.plan->requests, index));
    }
    TS_CHECK(num_rows == request.uncommitted_rows, "uncommitted rows are counted");
    const bool is_running = std::ranges::count(running_, index) == 1;
    TS_CHECK(is_running == (blocks != nullptr && !is_draining), "running requests are listed");
    TS_CHECK(is_running == (request.admission != 0), "exactly the running are admitted");
    if (blocks == nullptr) {
      ++num_queued;
      const bool is_parked = std::ranges::count(parked_, index, &Parked::request) == 1;
      TS_CHECK(queue_.Contains(index) != is_parked, "a request without blocks waits once");
      TS_CHECK(short_queue_.Contains(index) == (request.is_short && !is_parked),
               "short ones that wait are in the short queue");
      continue;
    }
    num_refs += static_cast<int64_t>(blocks->size());
    const int32_t slot = request.slot()->value();
    TS_CHECK(slot >= 0 && !is_slot_taken[slot], "a slot has one owner");
    is_slot_taken[slot] = true;
    ++num_slots;
    TS_CHECK(request.computed <= request.planned, "what is computed was planned");
    TS_CHECK(BlocksFor(request.planned) <= blocks->size(), "planned tokens have blocks");
  }
  for (const Uncommitted& step : uncommitted_) {
    num_refs += static_cast<int64_t>(step.copy_sources.size());
  }
  TS_CHECK(num_refs == kv_.pool().num_refs(), "every block reference has an owner");
  TS_CHECK(num_queued == queue_.size() + parked_.size(), "the queue has no strangers");
  queue_.CheckInvariants();
  short_queue_.CheckInvariants();
  sessions_.CheckInvariants();
  TS_CHECK(num_with_deadline == deadlines_.size(), "live deadlines are listed");
  TS_CHECK(num_slots + slots_.num_free() == slots_.num_slots(), "slots add up");
  TS_CHECK(in_state == num_in_state_, "states are counted");
  TS_CHECK(num_pending == num_retractions_pending_, "pending retractions are counted");
}

}  // namespace tokenspeed
