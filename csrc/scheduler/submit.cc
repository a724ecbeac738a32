#include <algorithm>
#include <bit>
#include <stdexcept>
#include <string>

#include "base/errors.h"
#include "scheduler/scheduler.h"

namespace tokenspeed {
namespace {

const SchedulerConfig& Validated(const SchedulerConfig& config) {
  Validate(config);
  return config;
}

constexpr int32_t kMaxDrafts = 64;
constexpr int64_t kMaxRetryAfterSeconds = 60;

}  // namespace

Scheduler::Scheduler(const SchedulerConfig& config)
    : config_(Validated(config)),
      block_shift_(std::countr_zero(static_cast<uint32_t>(config.block_tokens))),
      is_replay_(std::ranges::count(config.groups, "state", &GroupSpec::kind) > 0 &&
                 std::ranges::find(config.groups, "state", &GroupSpec::kind)->speculation ==
                     "replay"),
      kv_(KvConfig(config)),
      slots_(config.max_running),
      record_(config.record_events),
      sessions_(config.max_sessions, config.session_bytes, config.block_tokens),
      queue_(config.ageing_us),
      short_queue_(config.ageing_us),
      floor_(config.min_tps_per_user) {
  running_.reserve(config.max_running);
  StartTiers();
}

void Scheduler::Submit(const Submission& submission, int64_t now_us) {
  record_.Submit(submission, now_us);
  SetNow(now_us);
  CheckSubmission(submission, submission.prompt.size());
  const int32_t max_outputs =
      ResolveMaxOutputs(submission, static_cast<int64_t>(submission.prompt.size()));
  const NodeId root = kv_.AcquireRoot(submission.salt, submission.tenant);
  const size_t common = CommonWithPrevious(submission);
  const auto previous = PreviousTurn(submission, common);
  Chain chain = ChainOf(submission, root, common, max_outputs);
  Accept(submission, root, std::move(chain), max_outputs, previous, now_us);
}

void Scheduler::Accept(const Submission& submission, NodeId root, Chain chain, int32_t max_outputs,
                       std::optional<MatchEvidence::Turn> previous, int64_t now_us) {
  const RequestIndex index = requests_.Insert(submission.id);
  Request& request = requests_[index];
  request.priority = submission.priority;
  request.arrival = num_submitted_++;
  request.since_us = now_us;
  request.prompt_tokens = static_cast<int32_t>(chain.tokens.size());
  request.max_outputs = max_outputs;
  request.is_open_ended = submission.max_new_tokens == 0;
  request.min_outputs = submission.min_new_tokens;
  request.deadline_us = submission.deadline_us;
  request.match_prefix = submission.match_prefix;
  request.session = submission.session;
  request.root_session = submission.root;
  request.tenant = submission.tenant;
  std::ranges::copy(submission.reuse_points, request.reuse_points.begin());
  request.gap_us = submission.gap_us;
  request.queue_key = submission.queue_key;
  request.victim_key = submission.victim_key;
  request.retain_us = submission.retain_us;
  request.max_drafts = submission.max_drafts;
  num_drafting_ += submission.max_drafts > 0;
  request.device_drafts = submission.device_drafts;
  request.drafts_in_turn = DraftsInTurn(submission);
  request.root = root;
  request.previous = previous;
  ChoosePoints(request);
  request.salt = submission.salt;
  request.SetStopIds(submission.stop_ids);
  request.tokens = std::move(chain.tokens);
  request.tokens.insert(request.tokens.end(), submission.outputs.begin(), submission.outputs.end());
  request.given_outputs = static_cast<int32_t>(submission.outputs.size());
  request.keys = std::move(chain.keys);
  request.known = std::move(chain.sets);
  ++num_in_state_[request.state.index()];
  now_us_ = std::max(now_us_, now_us);
  Enqueue(index);
  const int64_t limit =
      submission.max_queue_us > 0 ? submission.max_queue_us : config_.max_queue_us;
  if (limit > 0) request.queue_deadline_us = now_us + limit;
  if (request.next_deadline_us() > 0) {
    deadlines_.emplace(request.next_deadline_us(), index.value);
  }
  if (request.num_outputs() >= max_outputs) EndOutsideCommit(index, FinishReason::kLength);
}

// A snapshot is of use only where a tail can be shared, so its position is on that grain. Without
// reuse points: the prompt's end. A repeat of the prompt computes its last token anew, so where
// that end is on the grain it starts at the block boundary before: that is found by its key however
// many prompts go on from there, they all share it, and what is left is one step as it is from
// anywhere later. A prompt within one block is computed in one step either way.
void Scheduler::ChoosePoints(Request& request) const {
  std::array<int32_t, 3> wanted = request.reuse_points;
  if (wanted[0] == 0) {
    const int32_t end = request.prompt_tokens;
    const bool is_on_grain = end % kv_.share_tokens() == 0;
    wanted = {is_on_grain ? (end - 1) >> block_shift_ << block_shift_ : 0, end, 0};
  }
  size_t count = 0;
  for (const int32_t point : wanted) {
    const int32_t floored = point / kv_.share_tokens() * kv_.share_tokens();
    if (floored > (count == 0 ? 0 : request.points[count - 1])) request.points[count++] = floored;
  }
}

void Scheduler::CheckSubmission(const Submission& submission, size_t prompt_tokens) const {
  if (prompt_tokens == 0) {
    throw RequestError(
        "the request is refused: the prompt has 0 tokens; allowed: 1 or more; send a prompt");
  }
  if (requests_.Find(submission.id) != nullptr) {
    throw RequestError(
        "the request is refused: a live request has this id; allowed: unique ids; choose another");
  }
  if (submission.max_new_tokens < 0 || submission.min_new_tokens < 0) {
    throw RequestError("the request is refused: max_tokens " +
                       std::to_string(submission.max_new_tokens) + ", min_tokens " +
                       std::to_string(submission.min_new_tokens) +
                       "; allowed: 0 or more; correct the value");
  }
  if (prompt_tokens + 1 > static_cast<size_t>(config_.max_context_tokens)) {
    throw RequestError("the request is refused: the prompt has " + std::to_string(prompt_tokens) +
                           " tokens and needs room for one more; allowed: a context of " +
                           std::to_string(config_.max_context_tokens) +
                           " tokens; shorten the prompt",
                       "context_length_exceeded");
  }
  CheckReusePoints(submission, prompt_tokens);
  if (submission.max_drafts < 0 || submission.max_drafts > kMaxDrafts) {
    throw RequestError("the request is refused: max_drafts is " +
                       std::to_string(submission.max_drafts) + "; allowed: 0 to " +
                       std::to_string(kMaxDrafts) + "; correct the value");
  }
  const int32_t num_rows = DraftRows(submission.max_drafts, DraftsInTurn(submission));
  if (num_rows > 0 && !kv_.CanEverHoldRows(num_rows)) {
    throw RequestError(
        "the request is refused: max_drafts is " + std::to_string(submission.max_drafts) +
        " and takes " + std::to_string(num_rows) +
        " rows of state; allowed: what the pool holds; send fewer drafts or give the "
        "engine more memory");
  }
  if (queue_.size() + parked_.size() >= static_cast<size_t>(config_.max_waiting)) {
    throw QueueFull();
  }
}

// Come back when a quarter of the queue has left, at the rate at which the last ones left.
CapacityError Scheduler::QueueFull() const {
  const auto num_waiting = static_cast<int64_t>(queue_.size() + parked_.size());
  const auto ring = std::ssize(queue_leaves_us_);
  const int64_t num_known = std::min(num_queue_leaves_, ring);
  int64_t seconds = 1;
  if (num_known >= 2) {
    const int64_t oldest = num_queue_leaves_ < ring ? 0 : num_queue_leaves_ % ring;
    const int64_t each_us = (now_us_ - queue_leaves_us_[oldest]) / num_known;
    seconds = each_us * ((num_waiting + 3) / 4) / 1'000'000;
  }
  return CapacityError("the request is refused: " + std::to_string(num_waiting) +
                           (num_waiting == 1 ? " request is" : " requests are") +
                           " waiting; allowed: " + std::to_string(config_.max_waiting) +
                           "; try again later",
                       static_cast<int>(std::clamp<int64_t>(seconds, 1, kMaxRetryAfterSeconds)));
}

void Scheduler::CheckReusePoints(const Submission& submission, size_t prompt_tokens) {
  const auto& points = submission.reuse_points;
  int64_t previous = 0;
  bool is_increasing = points.size() <= Request{}.reuse_points.size();
  for (const int32_t point : points) {
    is_increasing &= point > previous && point <= static_cast<int64_t>(prompt_tokens);
    previous = point;
  }
  if (is_increasing) return;
  throw RequestError("the request is refused: its " + std::to_string(points.size()) +
                     " reuse points end with " + std::to_string(previous) +
                     "; allowed: up to 3 increasing positions in the prompt; correct them");
}

int32_t Scheduler::ResolveMaxOutputs(const Submission& submission, int64_t prompt) const {
  const int64_t in_context = config_.max_context_tokens - prompt;
  const AccountId account = kv_.accounts().Find(submission.tenant);
  const int64_t fits = CapacityTokens(account);
  const int64_t wanted = submission.max_new_tokens > 0
                             ? std::min<int64_t>(submission.max_new_tokens, in_context)
                             : std::clamp<int64_t>(fits - prompt, 1, in_context);
  if (prompt + wanted > fits) {
    throw CapacityError("this can never fit: " + std::to_string(prompt) + " prompt tokens and " +
                        std::to_string(wanted) + " new tokens need " +
                        std::to_string(BlocksFor(prompt + wanted)) + " blocks; " + RoomOf(account) +
                        " of " + std::to_string(config_.block_tokens) +
                        " tokens; shorten the prompt, lower max_tokens or give the " +
                        (kv_.accounts().empty() ? "cache" : "tenant") + " more memory");
  }
  return static_cast<int32_t>(wanted);
}

void Scheduler::Propose(RequestId id, std::span<const int32_t> drafts) {
  record_.Propose(id, drafts);
  const RequestIndex* index = requests_.Find(id);
  const int32_t most =
      index == nullptr || requests_[*index].device_drafts ? 0 : requests_[*index].max_drafts;
  const auto is_token = [](int32_t token) { return token >= 0; };
  if (std::ssize(drafts) > most || most == 0 || !std::ranges::all_of(drafts, is_token)) {
    throw std::invalid_argument(
        "propose: request " + std::to_string(id.value) + " gets " + std::to_string(drafts.size()) +
        " drafts; allowed: up to " + std::to_string(most) +
        " tokens of 0 or more; propose for live requests with max_drafts and host drafts only");
  }
  requests_[*index].drafts.assign(drafts.begin(), drafts.end());
  requests_[*index].is_paused = drafts.empty();
}

// Tokens of the longest request of an account that can ever run.
int64_t Scheduler::CapacityTokens(AccountId account) const {
  return kv_.MaxSets(account) * config_.block_tokens;
}

}  // namespace tokenspeed
