#include <algorithm>

#include "base/check.h"
#include "scheduler/move.h"

namespace tokenspeed {

// In the queue's order: when the first does not fit now, nobody behind it is admitted but those of
// tenants whom that leaves their room (LetOthersPass). One that waits for a block that is being
// computed anyway lets others pass.
void Scheduler::AdmitFromQueue(int32_t& budget) {
  Passing passing;
  while (CanAdmit(budget)) {
    const RequestIndex next = NextOf(queue_, passing);
    if (next.value < 0 || !TryNext(next, budget, passing)) return;
  }
}

void Scheduler::AdmitShort(int32_t& budget) {
  Passing passing;
  RequestIndex first = NextOf(queue_, passing);
  while (first.value >= 0 && IsStillBlocked(requests_[first])) {
    if (!LetOthersPass(first, passing)) return;
    first = NextOf(queue_, passing);
  }
  while (CanAdmit(budget)) {
    const RequestIndex next = NextOf(short_queue_, passing);
    first = NextOf(queue_, passing);
    if (next.value < 0 || !MayPass(next, first) || !TryNext(next, budget, passing)) return;
  }
}

// Returns: whether somebody else may be tried.
bool Scheduler::TryNext(RequestIndex index, int32_t& budget, Passing& passing) {
  switch (TryAdmit(index, budget, passing.is_in_floors)) {
    case Admission::kAdmitted:
    case Admission::kPassed:
      return true;
    case Admission::kNoRoom:
      return LetOthersPass(index, passing);
    case Admission::kBlocked:
      return false;
  }
  return false;
}

bool Scheduler::CanAdmit(int32_t budget) const {
  // Room that a retraction made is for those who needed it.
  if (num_retractions_pending_ > 0) return false;
  if (has_retracted_in_step_ && step_.plan->num_rows() > 0) return false;
  // Each running request gets at least one token of every step.
  const size_t limit = std::min(config_.max_running, config_.max_step_tokens);
  return budget > 0 && running_.size() < limit && slots_.num_free() > 0;
}

Scheduler::Admission Scheduler::TryAdmit(RequestIndex index, int32_t& budget, bool is_in_floors) {
  Request& request = requests_[index];
  const bool is_alone = running_.empty() && uncommitted_.empty() && !HasBatches();
  if (FloorChunk(0, budget) == 0) return Admission::kBlocked;
  if (!is_alone && !FloorAdmits(request)) return Admission::kBlocked;
  if (!is_alone && IsStillBlocked(request, is_in_floors)) return Admission::kNoRoom;
  PrefixMatch match = MatchFor(request);
  if (is_alone) {
    MakeFitAlone(request, match);
  } else {
    const auto num_known = static_cast<size_t>(match.chain_tokens >> block_shift_);
    const RequestIndex owner = OwnerOfNextBlock(request, num_known);
    if (owner.value >= 0) {
      match = PrefixMatch{};
      Park(index, owner, num_known);
      return Admission::kPassed;
    }
    if (!FitsBesideOthers(request, match, is_in_floors)) {
      const AccountId account = AccountOf(request);
      const KvNeed need = kv_.NeedToRun(match.table, BlocksFor(int64_t{request.size()} + 1));
      Blocked blocked{.arrival = request.arrival,
                      .num_missing = kv_.MissingSets(need, account),
                      .is_capped = kv_.IsCapped(need, account),
                      .is_in_floors = is_in_floors};
      match = PrefixMatch{};  // letting go counts as a release, so it comes first
      blocked.num_releases = kv_.num_releases();
      blocked.num_publications = kv_.num_publications();
      blocked_[account.value] = blocked;
      return Admission::kNoRoom;
    }
  }
  if (TryLoad(index, match, is_alone)) return Admission::kAdmitted;
  int32_t num_query =
      FloorChunk(match.num_tokens, std::min(budget, request.size() - match.num_tokens));
  if (num_query == 0) return Admission::kBlocked;
  num_query = CutAtPoint(request, match.num_tokens, num_query);
  num_query = ShrinkToFit(request, match.table, match.num_tokens, num_query);
  const bool has_room =
      kv_.Grow(match.table, BlocksFor(match.num_tokens + num_query), AccountOf(request));
  TS_CHECK(has_room, "an admitted request has room for its first chunk");
  if (match.tail_tokens > 0) EmitCopies(match);
  const MatchEvidence evidence = EvidenceOf(request, match);
  Enter(index, std::move(match), evidence);
  CountLoad(request, num_query);
  request.step_query = num_query;
  EmitChunk(index);
  budget -= num_query;
  return Admission::kAdmitted;
}

bool Scheduler::MayMatch(const Request& request) const {
  return config_.prefix_cache && request.match_prefix;
}

// At least the last token is always computed: its logits are needed.
std::span<const int32_t> Scheduler::Matchable(const Request& request) const {
  return std::span(request.tokens).first(request.tokens.size() - 1);
}

PrefixMatch Scheduler::MatchFor(const Request& request) {
  PrefixMatch match;
  if (MayMatch(request)) {
    match = kv_.Match(request.root, Matchable(request), request.keys, request.known);
  }
  match.table.rows.Want(DraftRows(request));
  return match;
}

// Room comes from releases, or from others publishing what its prompt needs.
bool Scheduler::IsStillBlocked(const Request& request, bool is_in_floors) const {
  const Blocked& blocked = blocked_[AccountOf(request).value];
  return blocked.arrival == request.arrival && blocked.num_releases == kv_.num_releases() &&
         blocked.is_in_floors <= is_in_floors &&
         (!MayMatch(request) || blocked.num_publications == kv_.num_publications());
}

// Not only the first chunk: a request that could not go on would be retracted soon. A tenant's last
// room is not waited for because of a tail: others may run for ever beside it.
bool Scheduler::FitsBesideOthers(const Request& request, PrefixMatch& match,
                                 bool is_in_floors) const {
  const AccountId account = AccountOf(request);
  const Accounts::Account& own = kv_.accounts()[account];
  const auto fits = [&] {
    const KvNeed need = kv_.NeedToRun(match.table, BlocksFor(int64_t{request.size()} + 1));
    const bool stays = !is_in_floors || own.held + need.sets <= own.limits.floor;
    return stays && kv_.CanHold(need, account);
  };
  if (fits()) return true;
  if (kv_.accounts().empty() || match.tail_tokens == 0) return false;
  match.DropTail();
  return fits();
}

// Nothing else holds blocks, so the request fits (submit saw to it), unless its drafts, or what it
// would copy or read first, take the last room.
void Scheduler::MakeFitAlone(Request& request, PrefixMatch& match) const {
  const size_t num_blocks = BlocksFor(int64_t{request.prompt_tokens} + request.max_outputs);
  const auto fits = [&] {
    return kv_.CanHold(kv_.NeedToRun(match.table, num_blocks), AccountOf(request));
  };
  if (fits()) return;
  request.has_no_drafts = true;
  match.table.rows.Want(0);
  if (fits()) return;
  match = PrefixMatch{};
  TS_CHECK(fits(), "an accepted request fits when it is alone");
}

// Copy on write: the first part of another sequence's block goes into a fresh one.
void Scheduler::EmitCopies(PrefixMatch& match) {
  const size_t index = static_cast<size_t>(match.num_tokens) >> block_shift_;
  for (int32_t group = 0; group < kv_.num_groups(); ++group) {
    const GroupId id(group);
    if (kv_.kind(id) == GroupKind::kState) continue;
    const BlockId source =
        kv_.kind(id) == GroupKind::kFull
            ? kv_.set_block(match.tail.id(), id)
            : kv_.window_block(kv_.place(id), match.window_tails[kv_.place(id)].id());
    step_.plan->copies.push_back(
        {group, source.value, kv_.block(match.table, id, index).value, match.tail_tokens});
  }
  step_.copy_sources.push_back(std::move(match.tail));
  for (WindowRef& tail : match.window_tails) step_.copy_windows.push_back(std::move(tail));
}

// It leaves the queue and takes its place among those who run.
void Scheduler::StartRunning(RequestIndex index, int32_t matched) {
  Request& request = requests_[index];
  request.admission = ++num_admissions_;
  request.is_announced = false;
  Dequeue(index);
  if (request.queue_deadline_us > 0) {
    deadlines_.erase({request.next_deadline_us(), index.value});
    request.queue_deadline_us = 0;
    if (request.deadline_us > 0) deadlines_.emplace(request.deadline_us, index.value);
  }
  queue_leaves_us_[num_queue_leaves_++ % std::ssize(queue_leaves_us_)] = now_us_;
  Charge(request, request.size() - matched, true);
  running_.push_back(index);
  computing_.push_back({index, request.admission, request.keys.size()});
}

void Scheduler::Enter(RequestIndex index, PrefixMatch match, const MatchEvidence& evidence) {
  Request& request = requests_[index];
  const int32_t matched = match.num_tokens;
  NoteMatch(request, evidence);
  request.computed = request.planned = matched;
  request.published_blocks = matched >> block_shift_;
  request.snapshot = match.snapshot;
  // Who goes on from another session's state forks its chain: both may come back to it.
  const bool is_fork = request.previous ? request.previous->common < matched : request.session != 0;
  if (is_fork && match.snapshot) kv_.MarkBranch(match.snapshot);
  StartRunning(index, matched);
  Move(request, Admit{*slots_.Acquire(), std::move(match.table)});
  for (int32_t i = 0; writer_ != nullptr && i < request.published_blocks; ++i) {
    writer_->SetReused(request.blocks()->blocks.set(i));
  }
}

}  // namespace tokenspeed
