// Who waits, and for what: the queues, and requests whose next block somebody computes.
#include <algorithm>

#include "scheduler/scheduler.h"

namespace tokenspeed {

// A short request may go before a long one that runs, or that waits for nothing but its chunk.
bool Scheduler::MayPass(RequestIndex index, RequestIndex first) const {
  const int32_t priority = requests_[index].priority;
  const auto is_above = [this, priority](RequestIndex other) {
    const Request& request = requests_[other];
    return std::holds_alternative<Prefilling>(request.state) && request.priority > priority;
  };
  if (std::ranges::any_of(running_, is_above)) return false;
  if (index == first) return true;
  return requests_[first].priority <= priority && slots_.num_free() > 1 &&
         !IsStillBlocked(requests_[first]);
}

// Returns the running request, of at least this priority, that computes the full block after the
// first `num_shared`; -1 for none.
RequestIndex Scheduler::OwnerOfNextBlock(const Request& request, size_t num_shared) const {
  const RequestIndex none(-1);
  if (!MayMatch(request) || num_shared >= Matchable(request).size() / config_.block_tokens) {
    return none;
  }
  const Hash128& key = request.keys[num_shared];
  for (const Computing& computing : computing_) {
    const RequestIndex index = computing.request;
    const Request& owner = requests_[index];
    if (!IsComputing(computing, num_shared) || owner.keys[num_shared] != key) continue;
    if (owner.priority < request.priority || owner.is_private || owner.is_poisoned ||
        owner.retract_pending) {
      continue;
    }
    return index;
  }
  return none;
}

bool Scheduler::IsComputing(const Computing& computing, size_t block) const {
  const Request& owner = requests_[computing.request];
  return owner.admission == computing.admission && block < computing.num_blocks &&
         static_cast<size_t>(owner.published_blocks) <= block;
}

void Scheduler::Park(RequestIndex index, RequestIndex owner, size_t block) {
  Dequeue(index);
  parked_.push_back({index, owner, requests_[owner].admission, block});
}

// Work of a tenant and a root session; both queues know of it.
void Scheduler::Charge(const Request& request, int32_t num_tokens, bool is_served) {
  queue_.Charge(request.tenant, request.root_session, num_tokens, is_served);
  short_queue_.Charge(request.tenant, request.root_session, num_tokens, is_served);
}

void Scheduler::ReturnParked() {
  std::erase_if(computing_, [this](const Computing& computing) {
    return computing.num_blocks == 0 || !IsComputing(computing, computing.num_blocks - 1);
  });
  std::erase_if(parked_, [this](const Parked& parked) {
    const Request& owner = requests_[parked.owner];
    const bool is_computing = owner.admission == parked.admission && !owner.is_private &&
                              !owner.is_poisoned && !owner.retract_pending &&
                              static_cast<size_t>(owner.published_blocks) <= parked.block;
    if (!is_computing) Enqueue(parked.request);
    return !is_computing;
  });
}

// Estimates how many first blocks are cached from the keys alone: an index of prefixes holds a
// block only with all before it, so they are found by bisection, from the end of what the turn
// before left if that is still there.
size_t Scheduler::EstimateCached(const Request& request) const {
  if (!MayMatch(request)) return 0;
  size_t low = 0, high = Matchable(request).size() / config_.block_tokens;
  const size_t num_known = std::min(request.known.size(), high);
  if (num_known > 0 && kv_.index().IsKnown(request.known[num_known - 1])) {
    low = num_known;
    if (low < high && !kv_.MayHave(request.keys[low])) return low;
  }
  while (low < high) {
    const size_t middle = (low + high + 1) / 2;
    if (kv_.MayHave(request.keys[middle - 1])) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

void Scheduler::Enqueue(RequestIndex index) {
  Request& request = requests_[index];
  if (config_.prefix_cache) request.keys.Extend(request.tokens);
  const auto cached = static_cast<int64_t>(EstimateCached(request)) * config_.block_tokens;
  const Waiting waiting{.index = index,
                        .tenant = request.tenant,
                        .root = request.root_session,
                        .priority = request.priority,
                        .since_us = request.since_us,
                        .queue_key = request.queue_key,
                        .cached_eighths = static_cast<int32_t>(cached * 8 / request.size()),
                        .arrival = request.arrival};
  queue_.Push(waiting);
  request.is_short = request.size() - cached <= ShortTokens();
  if (request.is_short) short_queue_.Push(waiting);
}

}  // namespace tokenspeed
