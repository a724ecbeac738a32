// A picture of the inside, for people. Reads only.
#include "scheduler/state.h"

#include <algorithm>
#include <ranges>

#include "scheduler/scheduler.h"

namespace tokenspeed {

SchedulerState Scheduler::Inspect() {
  SchedulerState state;
  state.num_parked = std::ssize(parked_);
  FillRequests(state.requests);
  FillGroups(state.groups);
  if (floor_.is_on()) state.model = StateOfModel();
  if (tiers_ == nullptr) return state;
  const PhysicalPool& host = tiers_->host().slots();
  state.host = HostState{.total = host.num_usable(),
                         .used = host.num_usable() - host.num_unpinned(),
                         .cached = host.num_unpinned() - host.num_free(),
                         .free = host.num_free(),
                         .items = tiers_->host().num_present(),
                         .arriving = tiers_->host().num_items() - tiers_->host().num_present()};
  if (config_.store) state.store_records = static_cast<int64_t>(tiers_->store().size());
  state.in_flight = tiers_->InFlight();
  return state;
}

void Scheduler::FillRequests(RequestColumns& columns) {
  std::vector<RequestIndex> order = requests_.Live();
  std::ranges::sort(order, {}, [this](RequestIndex index) { return requests_[index].arrival; });
  columns.blocks.resize(kv_.num_groups());
  std::vector<int32_t> place(requests_.num_rows(), -1);
  for (const RequestIndex index : order) {
    place[index.value] = static_cast<int32_t>(columns.id.size());
    AddRequest(requests_[index], columns);
  }
  // What only queues and lists know.
  for (int32_t position = 0; const Waiting& waiting : queue_.Order([this](const Waiting& w) {
         return int64_t{requests_[w.index].size()} * (8 - w.cached_eighths) / 8;
       })) {
    columns.position[place[waiting.index.value]] = position++;
  }
  for (const Queue* queue : {&queue_, &short_queue_}) {
    if (queue->empty()) continue;
    columns.wait[place[queue->first().value]] = WaitOfFirst(requests_[queue->first()]);
  }
  kv_.accounts().ForEach([&](AccountId account, const Accounts::Account& it) {
    const RequestIndex first = queue_.FirstOf(std::span(&it.tenant, 1));
    if (first.value < 0 || !blocked_[account.value].is_capped) return;
    // Others may have published since: it is looked at again, and mostly finds no more room.
    const bool was_tried = blocked_[account.value].arrival == requests_[first].arrival;
    if (was_tried) columns.wait[place[first.value]] = Wait::kTenantCap;
  });
  for (const Parked& parked : parked_) {
    const int32_t row = place[parked.request.value];
    columns.wait[row] = Wait::kComputing;
    if (requests_[parked.owner].admission == parked.admission) {
      columns.waits_for[row] = requests_[parked.owner].id.value;
    }
  }
}

void Scheduler::AddRequest(Request& request, RequestColumns& columns) const {
  const KvTable* table = request.blocks();
  const auto name = [](const auto& state) { return std::decay_t<decltype(state)>::kName; };
  columns.id.push_back(request.id.value);
  columns.state.push_back(std::visit(name, request.state));
  columns.wait.push_back(WaitOf(request));
  columns.waits_for.push_back(-1);
  columns.position.push_back(-1);
  const auto [arrived, pieces] =
      request.batch.value == 0 ? std::pair(0, 0) : tiers_->Progress(request.batch);
  columns.pieces.push_back(pieces);
  columns.arrived.push_back(arrived);
  columns.priority.push_back(request.priority);
  columns.slot.push_back(table == nullptr ? -1 : request.slot()->value());
  columns.tenant.push_back(request.tenant);
  columns.session.push_back(request.session);
  columns.prompt.push_back(request.prompt_tokens);
  columns.outputs.push_back(request.num_outputs());
  columns.cached.push_back(request.cached_tokens);
  columns.computed.push_back(request.computed);
  columns.planned.push_back(request.planned);
  for (int32_t group = 0; group < kv_.num_groups(); ++group) {
    columns.blocks[group].push_back(table == nullptr ? 0 : NumBlocks(*table, GroupId(group)));
  }
}

int32_t Scheduler::NumBlocks(const KvTable& table, GroupId group) const {
  const size_t w = kv_.place(group);
  switch (kv_.kind(group)) {
    case GroupKind::kFull:
      return static_cast<int32_t>(table.size());
    case GroupKind::kWindow:
      return w < table.windows.size() ? static_cast<int32_t>(table.windows[w].size()) : 0;
    case GroupKind::kState:
      return table.rows.num_refs();
  }
  return 0;
}

// Why it does not go on, as far as it says itself.
Wait Scheduler::WaitOf(const Request& request) const {
  const auto is = [&]<class S>(fsm::Type<S>) { return std::holds_alternative<S>(request.state); };
  if (is(fsm::Type<Loading>{})) return Wait::kLoading;
  if (is(fsm::Type<Retracting>{})) return Wait::kSaving;
  if (is(fsm::Type<Submitted>{}) || is(fsm::Type<Retracted>{})) return Wait::kQueue;
  const bool is_planned = request.newest_step + 1 == next_step_id_;
  if (!is(fsm::Type<Prefilling>{}) || is_planned || request.to_plan() == 0) return Wait::kNone;
  return step_limit_us_ ? Wait::kLatencyFloor : Wait::kDisplaced;
}

// The first of a queue, by what `plan` asks before it is admitted.
Wait Scheduler::WaitOfFirst(const Request& request) const {
  const size_t limit = std::min(config_.max_running, config_.max_step_tokens);
  if (running_.size() >= limit || slots_.num_free() == 0) return Wait::kSlots;
  if (num_retractions_pending_ > 0 || IsStillBlocked(request)) return Wait::kRoom;
  if (!FloorAdmits(request) || FloorChunk(0, config_.max_step_tokens) == 0) {
    return Wait::kLatencyFloor;
  }
  return Wait::kNextStep;
}

void Scheduler::FillGroups(std::vector<GroupState>& groups) const {
  const PhysicalPool& physical = kv_.physical();
  groups.resize(kv_.num_groups());
  kv_.ForEachPool([&](const BlockPool& pool) {
    for (int32_t k = 0; k < pool.num_groups(); ++k) {
      const GroupId group = pool.group(k);
      const GroupSpec& spec = config_.groups[group.value];
      groups[group.value] = {
          .name = spec.name,
          .kind = spec.kind,
          .packing = spec.packing,
          .held = pool.num_held(),
          .resting = pool.queue().num_resting(),
          .indexed = pool.num_cached(),
          .retained = pool.queue().num_retained(),
          .vacant = physical.num_vacant(group),
          .physical_used = physical.num_pinned(group),
          .physical_cached = physical.num_physical(group) - physical.num_pinned(group)};
    }
  });
  if (tiers_ == nullptr) return;
  for (int32_t group = 0; group < kv_.num_groups(); ++group) {
    groups[group].host = tiers_->host().slots().num_taken(GroupId(group));
  }
  tiers_->ForEachMove([&](GroupId group, bool is_load) {
    ++(is_load ? groups[group.value].loading : groups[group.value].leaving);
  });
}

ModelState Scheduler::StateOfModel() const {
  const StepTime& model = floor_.model();
  StepLoad load{.rows = std::ssize(running_)};
  for (const RequestIndex index : running_) load.context_tokens += requests_[index].size();
  return {.floor_tps = floor_.min_tps(),
          .coefficients = model.Coefficients(),
          .noise_us = model.noise_us(),
          .decode_step_us = model.PredictUs(load),
          .num_observations = model.num_observations(),
          .num_violated = floor_.num_violated(),
          .is_outgrown = has_outgrown_floor_};
}

}  // namespace tokenspeed
