#include <algorithm>

#include "base/check.h"
#include "scheduler/move.h"

namespace tokenspeed {

// In the queue's order: when the first does not fit now, nobody behind it is admitted. Only one
// that waits for a block that is being computed anyway lets others pass.
void Scheduler::AdmitFromQueue(int32_t& budget) {
  while (CanAdmit(budget) && !queue_.empty()) {
    if (TryAdmit(queue_.first(), budget) == Admission::kBlocked) return;
  }
}

void Scheduler::AdmitShort(int32_t& budget) {
  while (CanAdmit(budget) && !short_queue_.empty() && MayPass(short_queue_.first())) {
    if (TryAdmit(short_queue_.first(), budget) == Admission::kBlocked) return;
  }
}

// A short request may go before a long one that runs, or that waits for nothing but its chunk.
bool Scheduler::MayPass(RequestIndex index) const {
  const int32_t priority = requests_[index].priority;
  const auto is_above = [this, priority](RequestIndex other) {
    const Request& request = requests_[other];
    return std::holds_alternative<Prefilling>(request.state) && request.priority > priority;
  };
  if (std::ranges::any_of(running_, is_above)) return false;
  const RequestIndex first = queue_.first();
  if (index == first) return true;
  return requests_[first].priority <= priority && slots_.num_free() > 1 &&
         !IsStillBlocked(requests_[first]);
}

bool Scheduler::CanAdmit(int32_t budget) const {
  // Room that a retraction made is for those who needed it.
  if (num_retractions_pending_ > 0) return false;
  if (has_retracted_in_step_ && step_.plan->num_rows() > 0) return false;
  // Each running request gets at least one token of every step.
  const size_t limit = std::min(config_.max_running, config_.max_step_tokens);
  return budget > 0 && running_.size() < limit && slots_.num_free() > 0;
}

Scheduler::Admission Scheduler::TryAdmit(RequestIndex index, int32_t& budget) {
  Request& request = requests_[index];
  const bool is_alone = running_.empty() && uncommitted_.empty();
  if (FloorChunk(0, budget) == 0) return Admission::kBlocked;
  if (!is_alone && (!FloorAdmits(request) || IsStillBlocked(request))) return Admission::kBlocked;
  PrefixMatch match = MatchFor(request);
  if (is_alone) {
    MakeFitAlone(request, match);
  } else {
    const size_t num_shared = match.blocks.size();
    const RequestIndex owner = OwnerOfNextBlock(request, num_shared);
    if (owner.value >= 0) {
      match = PrefixMatch{};
      Park(index, owner, num_shared);
      return Admission::kPassed;
    }
    if (!FitsBesideOthers(request, match)) {
      Block(request, std::move(match));
      return Admission::kBlocked;
    }
  }
  const MatchEvidence evidence = EvidenceOf(request, match);
  const size_t num_shared = match.blocks.size();
  const int32_t matched =
      static_cast<int32_t>(num_shared) * config_.block_tokens + match.tail_tokens;
  const int32_t num_query = FloorChunk(matched, std::min(budget, request.size() - matched));
  if (num_query == 0) return Admission::kBlocked;
  const bool has_room = kv_.Grow(match.blocks, BlocksFor(matched + num_query));
  TS_CHECK(has_room, "an admitted request has room for its first chunk");
  if (match.tail_tokens > 0) EmitCopies(match, match.blocks.set(num_shared));
  request.published_blocks = static_cast<int32_t>(num_shared);
  Enter(index, std::move(match.blocks), matched, evidence);
  EmitRow(index, num_query);
  budget -= num_query;
  return Admission::kAdmitted;
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

// Work of a tenant; both queues know of it.
void Scheduler::Charge(const Request& request, int32_t num_tokens) {
  queue_.Charge(request.tenant, num_tokens, true);
  short_queue_.Charge(request.tenant, num_tokens, true);
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

// Estimates what is cached from the keys alone: an index of prefixes holds a block only with all
// before it, so the number of known ones is found by bisection.
void Scheduler::Enqueue(RequestIndex index) {
  Request& request = requests_[index];
  size_t low = 0, high = 0;
  if (config_.prefix_cache) request.keys.Extend(request.tokens);
  if (MayMatch(request)) high = Matchable(request).size() / config_.block_tokens;
  while (low < high) {
    const size_t middle = (low + high + 1) / 2;
    if (kv_.MayHave(request.keys[middle - 1])) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  const auto cached = static_cast<int64_t>(low) * config_.block_tokens;
  const Waiting waiting{.index = index,
                        .tenant = request.tenant,
                        .priority = request.priority,
                        .since_us = request.since_us,
                        .queue_key = request.queue_key,
                        .cached_eighths = static_cast<int32_t>(cached * 8 / request.size()),
                        .arrival = request.arrival};
  queue_.Push(waiting);
  request.is_short = request.size() - cached <= ShortTokens();
  if (request.is_short) short_queue_.Push(waiting);
}

bool Scheduler::MayMatch(const Request& request) const {
  return config_.prefix_cache && request.match_prefix;
}

// At least the last token is always computed: its logits are needed.
std::span<const int32_t> Scheduler::Matchable(const Request& request) const {
  return std::span(request.tokens).first(request.tokens.size() - 1);
}

PrefixMatch Scheduler::MatchFor(const Request& request) {
  if (!MayMatch(request)) return {};
  return kv_.Match(request.root, Matchable(request), request.keys);
}

// Room comes from releases, or from others publishing the next block of the head's prompt.
bool Scheduler::IsStillBlocked(const Request& request) const {
  if (blocked_.arrival != request.arrival) return false;
  if (blocked_.num_releases != kv_.pool().num_releases()) return false;
  if (!MayMatch(request)) return true;
  const size_t block_tokens = config_.block_tokens, first = blocked_.num_shared * block_tokens;
  const std::span<const int32_t> tokens = Matchable(request);
  return tokens.size() < first + block_tokens ||
         !kv_.Continues(blocked_.parent, request.keys[blocked_.num_shared],
                        tokens.subspan(first, block_tokens));
}

void Scheduler::Block(const Request& request, PrefixMatch match) {
  const size_t num_shared = match.blocks.size();
  const NodeId end = num_shared == 0 ? request.root : NodeId::Of(match.blocks.set(num_shared - 1));
  match = PrefixMatch{};  // letting go counts as a release, so it comes first
  blocked_ = {request.arrival, kv_.pool().num_releases(), end, num_shared};
}

// Not only the first chunk: a request that could not go on would be retracted soon.
bool Scheduler::FitsBesideOthers(const Request& request, const PrefixMatch& match) const {
  const size_t num_blocks = BlocksFor(int64_t{request.size()} + 1);
  return kv_.CanHold(static_cast<int64_t>(num_blocks - match.blocks.size()));
}

// Nothing else holds blocks, so the request fits (submit saw to it, and packing never gets in the
// way: see PhysicalPool), unless the tail that it would copy takes the last block.
void Scheduler::MakeFitAlone(const Request& request, PrefixMatch& match) const {
  const size_t num_blocks = BlocksFor(int64_t{request.prompt_tokens} + request.max_outputs);
  const auto num_missing = static_cast<int64_t>(num_blocks - match.blocks.size());
  if (kv_.CanHold(num_missing)) return;
  match.tail.Reset();
  match.tail_tokens = 0;
  TS_CHECK(kv_.CanHold(num_missing), "an accepted request fits when it is alone");
}

// Copy on write: the first part of another sequence's block goes into a fresh one.
void Scheduler::EmitCopies(PrefixMatch& match, SetId target) {
  for (int32_t group = 0; group < kv_.pool().num_groups(); ++group) {
    step_.plan->copies.push_back({group, kv_.pool().block(match.tail.set(), GroupId(group)).value,
                                  kv_.pool().block(target, GroupId(group)).value,
                                  match.tail_tokens});
  }
  step_.copy_sources.push_back(std::move(match.tail));
}

// What the cache and those who run say about the end of a match.
MatchEvidence Scheduler::EvidenceOf(const Request& request, const PrefixMatch& match) const {
  const auto num_blocks = static_cast<int32_t>(match.blocks.size());
  const int32_t matched = num_blocks * config_.block_tokens + match.tail_tokens;
  MatchEvidence evidence{.may_match = MayMatch(request),
                         .has_other_content = match.tail_tokens > 0,
                         .matched = matched,
                         .known = matched,
                         .matchable = static_cast<int32_t>(Matchable(request).size()),
                         .previous = request.previous};
  for (const GroupSpec& group : config_.groups) {
    evidence.grain = std::max(evidence.grain, group.share_tokens);
  }
  for (const Computing& computing : computing_) {
    if (evidence.matchable - matched < config_.block_tokens) break;
    evidence.is_computed |=
        IsComputing(computing, num_blocks) &&
        requests_[computing.request].keys[num_blocks] == request.keys[num_blocks];
  }
  return evidence;
}

// The truth of a request is that of its first admission, when nothing of it is in the cache yet.
void Scheduler::NoteMatch(Request& request, const MatchEvidence& evidence) {
  if (request.cached_tokens >= 0) return;
  Truth& truth = request.truth;
  request.cached_tokens = truth.cached = std::min(evidence.matched, request.prompt_tokens);
  truth.created = request.prompt_tokens - truth.cached - truth.recomputed;
  std::tie(truth.end, truth.position) = Explain(evidence);
  ++num_match_ends_[static_cast<size_t>(truth.end)];
  sessions_.Count(request.session, {.turns = 1,
                                    .prompt = request.prompt_tokens,
                                    .cached = truth.cached,
                                    .created = truth.created,
                                    .recomputed = truth.recomputed});
}

void Scheduler::Enter(RequestIndex index, BlockTable blocks, int32_t matched,
                      const MatchEvidence& evidence) {
  Request& request = requests_[index];
  NoteMatch(request, evidence);
  request.computed = request.planned = matched;
  request.admission = ++num_admissions_;
  Dequeue(index);
  if (request.queue_deadline_us > 0) {
    deadlines_.erase({request.next_deadline_us(), index.value});
    request.queue_deadline_us = 0;
    if (request.deadline_us > 0) deadlines_.emplace(request.deadline_us, index.value);
  }
  queue_leaves_us_[num_queue_leaves_++ % std::ssize(queue_leaves_us_)] = now_us_;
  Charge(request, request.size() - matched);
  Move(request, Admit{*slots_.Acquire(), std::move(blocks)});
  running_.push_back(index);
  computing_.push_back({index, request.admission, request.keys.size()});
  step_.plan->admitted.push_back({step_.plan->num_rows(), request.slot()->value()});
}

}  // namespace tokenspeed
