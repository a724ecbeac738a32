// The scheduler's side of the tiers: prompts whose blocks come back from host memory or a store,
// victims whose blocks go there, and what became of either.
#include <algorithm>
#include <limits>

#include "base/check.h"
#include "scheduler/move.h"

namespace tokenspeed {

void Scheduler::StartTiers() {
  if (config_.host_blocks == 0) return;
  TiersConfig config{.packing = {},
                     .num_host_blocks = config_.host_blocks,
                     .block_tokens = config_.block_tokens,
                     .layer_ranges = config_.layer_ranges,
                     .has_store = config_.store};
  for (const GroupSpec& group : config_.groups) config.packing.push_back(group.packing);
  const WritePolicy policy = config_.write_policy == "on_commit"     ? WritePolicy::kOnCommit
                             : config_.write_policy == "on_eviction" ? WritePolicy::kOnEviction
                             : config_.write_policy == "selective"   ? WritePolicy::kSelective
                                                                     : WritePolicy::kNone;
  tiers_ = std::make_unique<Tiers>(config);
  tiers_->SetEvents(kv_.events());
  writer_ = std::make_unique<TierWriter>(kv_, *tiers_, policy, config_.min_reuse);
  kv_.SetWatcher(writer_.get());
}

void Scheduler::Notify(std::span<const std::array<int32_t, 2>> acks, int64_t now_us) {
  record_.Notify(acks, now_us);
  SetNow(now_us);
  if (tiers_ == nullptr) {
    if (acks.empty()) return;
    throw std::invalid_argument(
        "notify: transfers are reported and there are no tiers; allowed: none; set host_blocks");
  }
  tiers_->Acknowledge(acks);
  SettleTransfers();
}

void Scheduler::NotifyStore(std::span<const Hash128> keys, bool is_present) {
  record_.NotifyStore(keys, is_present);
  if (tiers_ == nullptr) return;
  for (const Hash128& key : keys) tiers_->NotifyStore(key, is_present);
}

bool Scheduler::HasTransfers() const {
  return tiers_ != nullptr && (tiers_->has_rows() || !tiers_->is_idle() || HasBatches());
}

// Moves that somebody waits for, and who therefore holds blocks.
bool Scheduler::HasBatches() const {
  return tiers_ != nullptr && (tiers_->num_batches() > 0 || tiers_->has_ended());
}

// A copy is worth it when what it spares takes longer.
bool Scheduler::IsWorth(int64_t num_tokens, size_t num_copies) const {
  return static_cast<double>(num_tokens) >
         config_.copy_cost_tokens * static_cast<double>(num_copies);
}

// Lets a queued request begin with what the tiers have beyond `match`, if that goes further.
// Returns: true when it is Loading now.
bool Scheduler::TryLoad(RequestIndex index, PrefixMatch& match, bool is_alone) {
  Request& request = requests_[index];
  if (tiers_ == nullptr || !MayMatch(request) || request.num_loads >= kMaxLoads) return false;
  Reload reload(kv_, *tiers_, request.root, Matchable(request), request.keys);
  const int32_t position = reload.Find(match.num_tokens);
  if (position == 0) return false;
  std::vector<Reload::Piece> pieces = reload.Missing();
  if (pieces.empty() || !IsWorth(position - match.num_tokens, pieces.size())) return false;
  // What makes room on the device is written to the host, and must not push out what is wanted.
  std::vector<ItemId> guards;
  for (const Reload::Piece& piece : pieces) guards.push_back(tiers_->Guard(piece.content));
  KvTable table;
  table.rows.Want(DraftRows(request));
  pieces = reload.Hold(table);
  // As for a match: who could not go on would be retracted soon, and one that is alone never is.
  const int64_t num_tokens =
      is_alone ? int64_t{request.prompt_tokens} + request.max_outputs : int64_t{request.size()} + 1;
  if (!kv_.CanHold(kv_.NeedToRun(table, BlocksFor(num_tokens)), AccountOf(request))) {
    pieces.clear();
  }
  if (!pieces.empty()) {
    match = PrefixMatch{};
    BeginLoad(index, reload, std::move(table), position, pieces);
  }
  for (const ItemId guard : guards) tiers_->Unguard(guard);
  return !pieces.empty();
}

void Scheduler::BeginLoad(RequestIndex index, const Reload& reload, KvTable table, int32_t position,
                          std::span<const Reload::Piece> pieces) {
  Request& request = requests_[index];
  request.load_tokens = position;
  request.snapshot = reload.snapshot();
  request.published_blocks = static_cast<int32_t>(reload.num_device_blocks());
  ++request.num_loads;
  StartRunning(index, position);
  Move(request, Load{*slots_.Acquire(), std::move(table)});
  request.batch = tiers_->Open(index.value);
  for (const Reload::Piece& piece : pieces) {
    tiers_->Load(piece.content, piece.block, request.batch);
    request.load_pieces.push_back(static_cast<int32_t>(piece.index));
  }
  tiers_->Close(request.batch);
}

// Copies what a victim has to the host. Returns: the batch to wait for; BatchId(0) for none.
BatchId Scheduler::SaveVictim(RequestIndex index) {
  Request& request = requests_[index];
  if (tiers_ == nullptr || !MayPublish(request)) return {};
  const auto num_blocks = static_cast<size_t>(request.published_blocks);
  if (!IsWorth(request.computed, num_blocks * static_cast<size_t>(kv_.num_groups()))) return {};
  const BatchId batch = tiers_->Open(index.value);
  for (size_t i = 0; i < num_blocks; ++i) writer_->SaveSet(request.blocks()->blocks.set(i), batch);
  if (kv_.index().snapshots().Has(request.snapshot)) {
    writer_->SaveSnapshot(request.snapshot.row, batch);
  }
  return tiers_->CloseIfBusy(batch) ? batch : BatchId();
}

void Scheduler::SettleTransfers() {
  if (tiers_ == nullptr) return;
  for (const Tiers::Ended& ended : tiers_->TakeEnded()) {
    const RequestIndex index(ended.owner);
    Request& request = requests_[index];
    TS_CHECK(request.batch == ended.batch, "a batch ends for the request that waits for it");
    request.batch = BatchId();
    if (std::holds_alternative<Draining>(request.state)) {
      DrainIfDone(index);
    } else if (std::holds_alternative<Loading>(request.state)) {
      EndLoad(index, ended.failed);
    } else {
      EndSave(index);
    }
  }
}

// What arrived is in the cache; what did not is computed again: the request goes back to its place
// in the queue and starts from what there is then.
void Scheduler::EndLoad(RequestIndex index, std::span<const int32_t> failed) {
  Request& request = requests_[index];
  int32_t first_bad = std::numeric_limits<int32_t>::max();
  for (const int32_t piece : failed) first_bad = std::min(first_bad, request.load_pieces[piece]);
  request.load_pieces.clear();
  Move(request, Loaded{});
  const bool is_whole = failed.empty();
  const int32_t good = is_whole ? request.load_tokens : first_bad * config_.block_tokens;
  request.computed = request.planned = std::min(good, request.load_tokens);
  if (request.computed >= request.published_blocks * config_.block_tokens) PublishFull(index);
  if (is_whole) {
    if (MayPublish(request)) PublishState(request, false);
    NoteMatch(request, {.matched = request.load_tokens,
                        .known = request.load_tokens,
                        .matchable = static_cast<int32_t>(Matchable(request).size()),
                        .grain = kv_.share_tokens(),
                        .previous = request.previous});
    ++num_loaded_;
    loaded_tokens_ += request.load_tokens;
    if (request.retract_pending) RetractNow(index);
    return;
  }
  ++num_loads_failed_;
  LeaveRunning(index);
  Move(request, Retract{});
  Restart(index);
}

void Scheduler::EndSave(RequestIndex index) {
  Request& request = requests_[index];
  request.retract_pending = false;
  --num_retractions_pending_;
  ++num_saved_;
  Move(request, Saved{});
  Enqueue(index);
}

}  // namespace tokenspeed
