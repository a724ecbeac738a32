#include <algorithm>

#include "base/check.h"
#include "scheduler/move.h"

namespace tokenspeed {

bool Scheduler::AbortRequest(RequestId id, int64_t now_us) {
  record_.End(id, true, now_us);
  SetNow(now_us);
  return EndById(id, FinishReason::kAbort);
}

bool Scheduler::StopRequest(RequestId id, int64_t now_us) {
  record_.End(id, false, now_us);
  SetNow(now_us);
  return EndById(id, FinishReason::kStop);
}

CommitResult Scheduler::TakeEnded() {
  CommitResult result;
  TakeEnded(result);
  return result;
}

void Scheduler::TakeEnded(CommitResult& result) {
  result.Clear();
  std::swap(result, ended_);
  result.Finish();
}

bool Scheduler::Rekey(RequestId id, int64_t gap_us, int64_t victim_key) {
  record_.Rekey(id, gap_us, victim_key);
  const RequestIndex* index = requests_.Find(id);
  if (index == nullptr || std::holds_alternative<Draining>(requests_[*index].state)) return false;
  requests_[*index].gap_us = gap_us;
  requests_[*index].victim_key = victim_key;
  return true;
}

std::optional<EventBatch> Scheduler::DrainEvents() {
  EventBatch events = kv_.TakeEvents();
  if (events.empty()) return std::nullopt;
  return events;
}

bool Scheduler::HasWork() const {
  return requests_.size() > 0 || !uncommitted_.empty() || (tiers_ != nullptr && tiers_->has_rows());
}

int64_t Scheduler::NextDeadlineUs() const {
  return deadlines_.empty() ? 0 : deadlines_.begin()->first;
}

bool Scheduler::EndById(RequestId id, FinishReason reason) {
  const RequestIndex* index = requests_.Find(id);
  if (index == nullptr || std::holds_alternative<Draining>(requests_[*index].state)) return false;
  EndOutsideCommit(*index, reason);
  return true;
}

void Scheduler::EndOutsideCommit(RequestIndex index, FinishReason reason) {
  ended_.Add(requests_[index].id, {}, reason, -1, -1);
  End(index, reason);
}

void Scheduler::End(RequestIndex index, FinishReason reason) {
  Request& request = requests_[index];
  if (std::holds_alternative<Retracting>(request.state)) {
    request.retract_pending = false;
    --num_retractions_pending_;
  } else if (request.blocks() != nullptr) {
    LeaveRunning(index);
  } else {
    Dequeue(index);
  }
  if (request.next_deadline_us() > 0) deadlines_.erase({request.next_deadline_us(), index.value});
  ++num_finished_;
  const bool is_in_use = request.uncommitted_rows > 0 || request.batch.value != 0;
  if (!is_in_use) PublishRest(request);
  const int32_t num_outputs = request.num_outputs() - request.given_outputs;
  if (num_outputs > 0) {
    sessions_.Count(request.session, {.output = num_outputs});
    Charge(request, num_outputs, false);
  }
  KeepTurn(request, is_in_use);
  if (reason == FinishReason::kAbort) {
    Move(request, Abort{is_in_use});
  } else if (reason == FinishReason::kTimeout) {
    Move(request, Timeout{is_in_use});
  } else {
    Move(request, Finish{is_in_use});
  }
  if (!is_in_use) Retire(index);
}

// A turn that drains still needs its tokens: the session gets a copy then.
void Scheduler::KeepTurn(Request& request, bool is_in_use) {
  if (request.session == 0) return;
  std::vector<KnownSet> known = std::move(request.known);
  if (const KvTable* blocks = request.blocks(); blocks != nullptr && config_.prefix_cache) {
    known = kv_.Note(*blocks, static_cast<size_t>(request.published_blocks));
  }
  if (is_in_use) {
    sessions_.Keep(request.session, {request.tokens, request.keys, std::move(known)}, request.salt,
                   request.tenant);
  } else {
    sessions_.Keep(request.session,
                   {std::move(request.tokens), std::move(request.keys), std::move(known)},
                   std::move(request.salt), request.tenant);
  }
}

void Scheduler::DrainIfDone(RequestIndex index) {
  Request& request = requests_[index];
  if (request.uncommitted_rows > 0 || request.batch.value != 0) return;
  PublishRest(request);
  Move(request, Drained{});
  Retire(index);
}

void Scheduler::Retire(RequestIndex index) {
  Request& request = requests_[index];
  TS_CHECK(std::holds_alternative<Finished>(request.state), "only a finished request is retired");
  --num_in_state_[request.state.index()];
  num_drafting_ -= request.max_drafts > 0;
  kv_.ReleaseRoot(request.root);
  requests_.Erase(index);
}

void Scheduler::RetractNow(RequestIndex index) {
  Request& request = requests_[index];
  TS_CHECK(request.uncommitted_rows == 0, "a request is retracted between its steps");
  LeaveRunning(index);
  PublishRest(request);
  ++num_retractions_;
  request.batch = SaveVictim(index);
  Move(request, Retract{request.batch.value != 0});
  Restart(index);
}

// A request that gave its blocks up starts anew, as soon as they are free.
void Scheduler::Restart(RequestIndex index) {
  Request& request = requests_[index];
  request.computed = request.planned = request.published_blocks = request.sent_blocks = 0;
  request.step_query = request.step_drafts = 0;  // also of the plan being made
  request.to_replay = 0;
  request.is_private = false;
  request.snapshot = {};
  if (request.batch.value == 0) {
    Enqueue(index);
  } else {
    request.retract_pending = true;
    ++num_retractions_pending_;
  }
}

void Scheduler::Dequeue(RequestIndex index) {
  if (queue_.Contains(index)) {
    queue_.Remove(index);
    if (requests_[index].is_short) short_queue_.Remove(index);
  } else {
    std::erase_if(parked_, [index](const Parked& parked) { return parked.request == index; });
  }
}

void Scheduler::LeaveRunning(RequestIndex index) {
  Request& request = requests_[index];
  running_.erase(std::find(running_.begin(), running_.end(), index));
  request.admission = 0;
  if (request.retract_pending) --num_retractions_pending_;
  request.retract_pending = false;
}

void Scheduler::Expire(int64_t now_us) {
  now_us_ = std::max(now_us_, now_us);
  while (!deadlines_.empty() && deadlines_.begin()->first <= now_us) {
    EndOutsideCommit(RequestIndex(deadlines_.begin()->second), FinishReason::kTimeout);
  }
}

}  // namespace tokenspeed
