// Decides what the next step computes: which requests run, which tokens, into which blocks.
// Owns every request, the cache and the slots. Reads no clock and no entropy: the same calls give
// the same plans, bit for bit.
//
//   submit -> queue -> plan: decodes, chunks, admissions -> (execution) -> commit -> tokens
//
// Up to depth + 1 plans are uncommitted at a time; a lookahead row counts its tokens ahead.
// A failed call leaves the scheduler as it was.
// Thread: one thread per Scheduler.
#pragma once

#include <algorithm>
#include <array>
#include <bitset>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/errors.h"
#include "base/slot_pool.h"
#include "fsm/apply.h"
#include "kv/events.h"
#include "kv/flat_kv.h"
#include "kv/reload.h"
#include "kv/tier_writer.h"
#include "kv/tiers.h"
#include "scheduler/config.h"
#include "scheduler/floor.h"
#include "scheduler/queue.h"
#include "scheduler/record.h"
#include "scheduler/request_table.h"
#include "scheduler/sessions.h"
#include "scheduler/state.h"
#include "scheduler/step.h"
#include "scheduler/submission.h"

namespace tokenspeed {

// One request and one physical block with every block id, for tests and explanation.
struct RequestView {
  RequestId id;
  std::string state;
  int32_t priority = 0;
  int32_t slot = -1;
  int32_t computed_tokens = 0;
  std::vector<std::vector<int32_t>> blocks;  // [group][index]
};
struct PhysicalView {
  int32_t id = 0;
  int32_t group = -1;
  int32_t refs = 0;
};

// What the release of a session freed.
struct Released {
  int64_t tokens = 0;                // cached tokens that left the device
  std::vector<int64_t> blocks;       // [group] logical blocks of the device
  std::vector<int64_t> host_blocks;  // [group] of the host tier
};

// What a step brought: flat, row by row.
struct StepOutcome {
  std::span<const int32_t> tokens;    // one per row, or W per row when `accepted` is given
  std::span<const int32_t> accepted;  // empty or one per row
  std::span<const bool> failed;       // empty or one per row
};

// What a tenant with figures has, in sets and requests.
struct TenantUsage {
  int64_t tenant = 0;
  TenantLimits limits;
  int64_t held = 0, cached = 0;
  int64_t running = 0, waiting = 0;
};

class Scheduler {
 public:
  explicit Scheduler(const SchedulerConfig& config);
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  // Throws RequestError or CapacityError; see _core.pyi.
  void Submit(const Submission& submission, int64_t now_us);

  // `submission.prompt` is what follows the session's last ended turn.
  void SubmitTurn(const Submission& submission, const TurnBase& base, int64_t now_us);
  // Returns: what SubmitTurn may build on, nullopt for nothing.
  std::optional<TurnBase> SessionBase(int64_t session) const;

  // Returns: false when the id is not known or has ended.
  bool AbortRequest(RequestId id, int64_t now_us);
  bool StopRequest(RequestId id, int64_t now_us);
  bool Rekey(RequestId id, int64_t gap_us, int64_t victim_key);

  // Forgets a session, and drops what its last turn left in the cache and nobody else's has: on the
  // device and in the host tier. Returns: nullopt if it is not known. Throws RequestError while a
  // request of it lives.
  std::optional<Released> Release(int64_t session, int64_t now_us);
  // Gives a tenant other figures from now on, or none. Returns: requests that can never fit now,
  // which have ended. Throws std::invalid_argument.
  std::vector<RequestId> SetTenantLimits(int64_t tenant, const std::optional<TenantLimits>& limits,
                                         int64_t now_us);
  // Blocks of block_tokens tokens that fit.
  int64_t NumSets() const { return kv_.sets().max_items(); }
  // What each tenant with figures has. O(tenants + requests).
  std::vector<TenantUsage> Tenants();

  // Throws std::invalid_argument.
  void Propose(RequestId id, std::span<const int32_t> drafts);

  // Fills `buffer`, which nobody else may write until the step is committed.
  // Returns: false when there is nothing to run or depth + 1 plans are out.
  bool Plan(int64_t now_us, std::shared_ptr<StepPlan> buffer);
  // The same with a buffer of its own; nullptr instead of false.
  std::shared_ptr<const StepPlan> Plan(int64_t now_us);

  // Fills `result`. Throws std::invalid_argument.
  void Commit(int64_t step_id, const StepOutcome& outcome, int64_t now_us, CommitResult& result);
  CommitResult Commit(int64_t step_id, std::span<const int32_t> tokens,
                      std::span<const bool> failed, int64_t now_us);

  // Rows of (transfer id, ok). Throws std::invalid_argument.
  void Notify(std::span<const std::array<int32_t, 2>> acks, int64_t now_us);
  // What the store has, at the start and when it drops records.
  void NotifyStore(std::span<const Hash128> keys, bool is_present);

  // Fills `result` with what ended outside commits.
  void TakeEnded(CommitResult& result);
  CommitResult TakeEnded();
  // Returns: the calls since the last time, for Replay; empty unless they are recorded.
  std::string TakeRecord() { return record_.Take(); }
  // Returns: changes of the prefix cache, nullopt for none.
  std::optional<EventBatch> DrainEvents();
  // Cache truth of a session so far; of session 0: whoever has none or was forgotten.
  SessionTotals TotalsOf(int64_t session) const { return sessions_.totals(session); }
  bool HasWork() const;
  int64_t NextDeadlineUs() const;

  std::map<std::string, int64_t> Stats() const;
  // Prompt tokens of live requests that are not in the cache yet. O(requests).
  int64_t QueuedTokens() const;
  // The inside as of the last call. O(requests log requests + transfers), no blocks are walked.
  SchedulerState Inspect();
  std::vector<RequestView> Requests();
  std::vector<PhysicalView> PhysicalBlocks() const;
  void CheckInvariants();
  // For tests.
  const FlatKv& kv() const { return kv_; }

 private:
  // submit.cc
  void CheckSubmission(const Submission& submission, size_t prompt_tokens) const;
  static void CheckReusePoints(const Submission& submission, size_t prompt_tokens);
  CapacityError QueueFull() const;
  int32_t ResolveMaxOutputs(const Submission& submission, int64_t prompt) const;
  int64_t CapacityTokens(AccountId account) const;
  void Accept(const Submission& submission, NodeId root, Chain chain, int32_t max_outputs,
              std::optional<MatchEvidence::Turn> previous, int64_t now_us);
  void ChoosePoints(Request& request) const;

  // turns.cc
  Chain ChainOf(const Submission& submission, NodeId root, size_t common, int32_t max_outputs);
  void Extend(Chain& chain, NodeId root, std::span<const int32_t> more, int32_t max_outputs) const;
  size_t CommonWithPrevious(const Submission& submission) const;
  std::optional<MatchEvidence::Turn> PreviousTurn(const Submission& submission,
                                                  size_t common) const;

  // release.cc
  int32_t NumLive(int64_t session) const;
  template <class Visit>
  void ForEachSequence(const Visit& visit) const;
  void DropOwn(const Sequence& own, NodeId root, Released& released);

  // plan.cc
  bool PlanStep(int64_t now_us, std::shared_ptr<StepPlan> buffer);
  void ReserveDecodes(int32_t& budget);
  int32_t SpareForDrafts(int32_t budget) const;
  void ReserveDrafts(Request& request, int32_t spare);
  int32_t DraftRows(const Request& request) const {
    return request.has_no_drafts ? 0 : DraftRows(request.max_drafts, request.drafts_in_turn);
  }
  int32_t DraftRows(int32_t max_drafts, bool is_in_turn) const;
  bool DraftsInTurn(const Submission& submission) const {
    return submission.max_drafts > 0 && (!submission.device_drafts || is_replay_);
  }
  bool GiveUpDrafts(RequestIndex index);
  void PlanPrefills(int32_t budget);
  void ReserveChunks(int32_t& budget, bool is_short);
  int32_t ShrinkToFit(const Request& request, const KvTable& table, int32_t from,
                      int32_t num_query) const;
  int32_t CutAtPoint(const Request& request, int32_t from, int32_t num_query) const;
  bool ReserveBlocks(RequestIndex index, int32_t num_tokens);
  // Tokens whose blocks the executor knows.
  int32_t SentTokens(const StepLine& line) const { return line.sent_blocks << block_shift_; }
  bool RetractFor(RequestIndex asker, const KvNeed& need);
  bool RetractRunning(RequestIndex victim);
  // Of those that run and `may(index)`: who makes progress whatever happens, and who keeps its
  // blocks least; -1 for none.
  template <class May>
  RequestIndex FirstRunning(const May& may) const;
  template <class May>
  RequestIndex LastRunning(const May& may) const;
  // Requests with no more than this to compute go before longer ones.
  int32_t ShortTokens() const { return 2 * config_.max_step_tokens; }

  // emit.cc
  void EmitDecodes();
  void EmitChunks();
  void EmitChunk(RequestIndex index);
  void EmitRow(RequestIndex index, Request& request, int32_t row);
  void EmitTokens(const Request& request, int32_t start, int32_t count);
  void EmitDrafts(Request& request);
  void CountLoad(const Request& request, int32_t num_query);
  void EmitTable(Request& request);
  void EmitEntries(Request& request, int32_t position);
  void EmitStateRows(Request& request, int32_t num_query);
  void EmitReplacements();

  // pace.cc
  static bool HasSamples(const StepPlan& plan);
  void StartFloor();
  int32_t FloorChunk(int32_t context, int32_t most) const;
  bool FloorAdmits(const Request& request) const;

  // waiting.cc
  // A running request and the full blocks of the tokens that it came with.
  struct Computing {
    RequestIndex request;
    int64_t admission;
    size_t num_blocks;
  };
  size_t EstimateCached(const Request& request) const;
  void Enqueue(RequestIndex index);
  bool MayPass(RequestIndex index, RequestIndex first) const;
  RequestIndex OwnerOfNextBlock(const Request& request, size_t num_shared) const;
  bool IsComputing(const Computing& computing, size_t block) const;
  void Park(RequestIndex index, RequestIndex owner, size_t block);
  void ReturnParked();
  void Charge(const Request& request, int32_t num_tokens, bool is_served);

  // admission.cc
  enum class Admission { kAdmitted, kPassed, kNoRoom, kBlocked };
  // Who of a queue may still be tried in a plan.
  struct Passing {
    std::bitset<kMaxAccounts> barred;  // accounts whose first has no room
    bool is_in_floors = false;         // others only as far as they stay within their floors
  };
  void AdmitFromQueue(int32_t& budget);
  void AdmitShort(int32_t& budget);
  bool CanAdmit(int32_t budget) const;
  bool TryNext(RequestIndex index, int32_t& budget, Passing& passing);
  Admission TryAdmit(RequestIndex index, int32_t& budget, bool is_in_floors);
  bool MayMatch(const Request& request) const;
  std::span<const int32_t> Matchable(const Request& request) const;
  PrefixMatch MatchFor(const Request& request);
  bool IsStillBlocked(const Request& request, bool is_in_floors = false) const;
  bool FitsBesideOthers(const Request& request, PrefixMatch& match, bool is_in_floors) const;
  void MakeFitAlone(Request& request, PrefixMatch& match) const;
  void EmitCopies(PrefixMatch& match);
  void StartRunning(RequestIndex index, int32_t matched);
  void Enter(RequestIndex index, PrefixMatch match, const MatchEvidence& evidence);

  // limits.cc
  AccountId AccountOf(const Request& request) const { return kv_.account(request.root); }
  void CheckLimits(int64_t tenant, const TenantLimits& limits) const;
  std::vector<RequestId> EndMisfits();
  bool ShortenToFit(Request& request, int64_t fits) const;
  std::string RoomOf(AccountId account) const;
  void KeepToCaps();
  bool RetractIn(AccountId account);
  bool GivesRoom(const Request& giver, const Request& asker, const KvNeed& need) const;
  RequestIndex NextOf(const Queue& queue, const Passing& passing) const;
  bool LetOthersPass(RequestIndex index, Passing& passing);
  int64_t BeyondFloors(AccountId but) const;

  // evidence.cc
  MatchEvidence EvidenceOf(const Request& request, const PrefixMatch& match) const;
  void NoteMatch(Request& request, const MatchEvidence& evidence);

  // commit.cc
  void CheckCommit(int64_t step_id, const StepOutcome& outcome) const;
  void CheckAccepted(const std::string& what, const StepPlan& plan,
                     const StepOutcome& outcome) const;
  void CommitRows(const StepPlan& plan, const StepOutcome& outcome, CommitResult& result);
  bool IsQuiet(const Request& request, int32_t token) const;
  void CommitQuietRow(Request& request, int32_t row, int32_t token, CommitResult& result);
  void CommitRow(const StepPlan& plan, int32_t row, std::span<const int32_t> tokens,
                 bool has_failed, CommitResult& result);
  void RejectDrafts(const StepPlan& plan, int32_t row, int32_t num_rejected, Request& request);
  std::span<const int32_t> Accepted(const StepOutcome& outcome, size_t num_rows, int32_t row) const;
  FinishReason AppendTokens(Request& request, std::span<const int32_t>& tokens);
  FinishReason ReasonAfter(const Request& request, int32_t token) const;

  // publish.cc
  void AdvanceComputed(RequestIndex index, int32_t num_query);
  bool MayPublish(const StepLine& line) const { return config_.prefix_cache && !line.is_private; }
  void Slide(Request& request);
  void PublishFull(RequestIndex index);
  void PublishRest(Request& request);
  SetId PublishTail(Request& request);
  bool PublishState(Request& request, bool is_last);

  // tiering.cc
  static constexpr int32_t kMaxLoads = 4;  // of one request: a store that keeps failing is left
  void StartTiers();
  bool HasTransfers() const;
  bool HasBatches() const;
  bool IsWorth(int64_t num_tokens, size_t num_copies) const;
  bool TryLoad(RequestIndex index, PrefixMatch& match, bool is_alone);
  void BeginLoad(RequestIndex index, const Reload& reload, KvTable table, int32_t position,
                 std::span<const Reload::Piece> pieces);
  BatchId SaveVictim(RequestIndex index);
  void SettleTransfers();
  void EndLoad(RequestIndex index, std::span<const int32_t> failed);
  void EndSave(RequestIndex index);

  // inspect.cc
  std::vector<int32_t> BlocksOf(const KvTable& table, GroupId group) const;
  void CheckHeld(const Request& request, const KvTable& table) const;

  // state.cc
  void FillRequests(RequestColumns& columns);
  void AddRequest(Request& request, RequestColumns& columns) const;
  int32_t NumBlocks(const KvTable& table, GroupId group) const;
  Wait WaitOf(const Request& request) const;
  Wait WaitOfFirst(const Request& request) const;
  void FillGroups(std::vector<GroupState>& groups) const;
  ModelState StateOfModel() const;

  // lifecycle.cc
  void SetNow(int64_t now_us) {
    kv_.SetNow(now_us);
    if (tiers_ != nullptr) tiers_->SetNow(now_us);
  }
  template <class E>
  void Move(Request& request, E event);
  void End(RequestIndex index, FinishReason reason);
  void EndOutsideCommit(RequestIndex index, FinishReason reason);
  bool EndById(RequestId id, FinishReason reason);
  void DrainIfDone(RequestIndex index);
  void Retire(RequestIndex index);
  void RetractNow(RequestIndex index);
  void Restart(RequestIndex index);
  void Dequeue(RequestIndex index);
  void LeaveRunning(RequestIndex index);
  void Expire(int64_t now_us);
  void KeepTurn(Request& request, bool has_rows);
  size_t BlocksFor(int64_t num_tokens) const {
    return static_cast<size_t>((num_tokens + config_.block_tokens - 1) >> block_shift_);
  }

  SchedulerConfig config_;
  int block_shift_;
  bool is_replay_;                      // what state groups do about drafts
  FlatKv kv_;                           // outlives the requests and plans below
  std::unique_ptr<Tiers> tiers_;        // null: only the device
  std::unique_ptr<TierWriter> writer_;  // likewise
  SlotPool slots_;                      // likewise
  RequestTable requests_;
  Record record_;
  Sessions sessions_;
  Queue queue_;        // everybody who waits and is not parked
  Queue short_queue_;  // those of them with little to compute
  Floor floor_;
  StepLoad load_;                        // of the step being planned
  std::optional<double> step_limit_us_;  // what the floor leaves it
  bool has_outgrown_floor_ = false;
  // Requests whose next block a running request is computing.
  struct Parked {
    RequestIndex request;
    RequestIndex owner;
    int64_t admission;  // of the owner
    size_t block;
  };
  std::vector<Parked> parked_;
  std::vector<Computing> computing_;           // some of whose blocks are not published yet
  std::array<int64_t, 32> queue_leaves_us_{};  // ring: when requests left the queue to run
  int64_t num_queue_leaves_ = 0;
  std::vector<RequestIndex> running_;                // in admission order
  std::set<std::pair<int64_t, int32_t>> deadlines_;  // deadline (of ending or starting), table row
  struct Uncommitted {
    std::shared_ptr<StepPlan> plan;
    std::vector<BlockRef> copy_sources;  // held until the commit of the step that reads them
    std::vector<WindowRef> copy_windows;
  };
  std::deque<Uncommitted> uncommitted_;
  Uncommitted step_;                // the step being planned
  std::vector<RowId> targets_;      // rows of state that a row of the plan writes
  std::vector<RequestIndex> scan_;  // running_ as it was when a pass began
  struct Replacement {
    RequestIndex request;
    int64_t admission;
    int32_t index;
  };
  std::vector<Replacement> replacements_;  // table entries the executor has to be told about
  // The first of an account's requests that did not fit, so that a long prompt is not matched in
  // every step.
  struct Blocked {
    int64_t arrival = -1;
    int64_t num_releases = 0;
    int64_t num_publications = 0;
    int64_t num_missing = 0;    // sets
    bool is_capped = false;     // by its own account's cap
    bool is_in_floors = false;  // it was tried within its floor only
  };
  std::array<Blocked, kMaxAccounts> blocked_;
  // Accounts that went beyond their floors while the head of the queue waited for just that room.
  int64_t passed_arrival_ = -1;  // of that head
  std::bitset<kMaxAccounts> overshot_;
  CommitResult ended_;
  std::array<int32_t, std::variant_size_v<State>> num_in_state_{};
  int64_t now_us_ = 0;
  int32_t num_displaced_steps_ = 0;  // in a row in which a long prefill got nothing
  int32_t num_retractions_pending_ = 0;
  int32_t num_drafting_ = 0;  // requests that may have drafts
  bool has_retracted_in_step_ = false;
  int64_t next_step_id_ = 1;
  int64_t num_admissions_ = 0;
  int64_t num_submitted_ = 0, num_finished_ = 0, num_retractions_ = 0;
  int64_t num_loaded_ = 0, num_loads_failed_ = 0, loaded_tokens_ = 0, num_saved_ = 0;
  int64_t num_drafted_ = 0, num_accepted_ = 0;  // draft tokens of committed rows
  int64_t output_tokens_ = 0;
  int64_t num_released_ = 0, released_tokens_ = 0;  // sessions, and what went with them
  std::array<int64_t, kMatchEnds.size()> num_match_ends_{};
};

template <class May>
RequestIndex Scheduler::FirstRunning(const May& may) const {
  RequestIndex first(-1);
  for (const RequestIndex index : running_) {
    if (!may(index)) continue;
    if (first.value < 0 || requests_[index].Seniority() < requests_[first].Seniority()) {
      first = index;
    }
  }
  return first;
}

template <class May>
RequestIndex Scheduler::LastRunning(const May& may) const {
  RequestIndex last(-1);
  for (const RequestIndex index : running_) {
    if (!may(index)) continue;
    if (last.value < 0 || requests_[index].Rank() > requests_[last].Rank()) last = index;
  }
  return last;
}

}  // namespace tokenspeed
