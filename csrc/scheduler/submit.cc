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

constexpr int kRetryAfterSeconds = 1;

}  // namespace

Scheduler::Scheduler(const SchedulerConfig& config)
    : config_(Validated(config)),
      block_shift_(std::countr_zero(static_cast<uint32_t>(config.block_tokens))),
      kv_(KvConfig(config)),
      slots_(config.max_running) {
  running_.reserve(config.max_running);
  StartTiers();
}

void Scheduler::Submit(const Submission& submission, int64_t now_us) {
  kv_.SetNow(now_us);
  CheckSubmission(submission);
  const int32_t max_outputs = ResolveMaxOutputs(submission);
  const RequestIndex index = requests_.Insert(submission.id);
  Request& request = requests_[index];
  request.priority = submission.priority;
  request.arrival = num_submitted_++;
  request.prompt_tokens = static_cast<int32_t>(submission.prompt.size());
  request.max_outputs = max_outputs;
  request.min_outputs = submission.min_new_tokens;
  request.deadline_us = submission.deadline_us;
  request.match_prefix = submission.match_prefix;
  request.session = submission.session;
  request.tenant = submission.tenant;
  std::ranges::copy(submission.reuse_points, request.reuse_points.begin());
  request.gap_us = submission.gap_us;
  request.queue_key = submission.queue_key;
  request.victim_key = submission.victim_key;
  request.retain_us = submission.retain_us;
  request.max_queue_us =
      submission.max_queue_us > 0 ? submission.max_queue_us : config_.max_queue_us;
  request.max_drafts = submission.max_drafts;
  request.device_drafts = submission.device_drafts;
  request.root = kv_.AcquireRoot(submission.salt);
  request.keys = kv_.Chain(request.root);
  ChoosePoints(request);
  request.stop_ids.assign(submission.stop_ids.begin(), submission.stop_ids.end());
  std::sort(request.stop_ids.begin(), request.stop_ids.end());
  const size_t room = std::min<size_t>(max_outputs, 4096);  // a long answer grows the rest
  request.tokens.reserve(submission.prompt.size() + std::max(submission.outputs.size(), room));
  request.tokens.assign(submission.prompt.begin(), submission.prompt.end());
  request.tokens.insert(request.tokens.end(), submission.outputs.begin(), submission.outputs.end());
  ++num_in_state_[request.state.index()];
  queue_.insert(RankOf(index));
  if (request.deadline_us > 0) deadlines_.emplace(request.deadline_us, index.value);
  if (request.num_outputs() >= max_outputs) EndOutsideCommit(index, FinishReason::kLength);
}

// A snapshot is of use only where a tail can be shared, so its position is on that grain.
void Scheduler::ChoosePoints(Request& request) const {
  std::array<int32_t, 3> wanted = request.reuse_points;
  if (wanted[0] == 0) wanted[0] = request.prompt_tokens;
  size_t count = 0;
  for (const int32_t point : wanted) {
    const int32_t floored = point / kv_.share_tokens() * kv_.share_tokens();
    if (floored > (count == 0 ? 0 : request.points[count - 1])) request.points[count++] = floored;
  }
}

void Scheduler::CheckSubmission(const Submission& submission) const {
  if (submission.prompt.empty()) {
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
  if (submission.prompt.size() + 1 > static_cast<size_t>(config_.max_context_tokens)) {
    throw RequestError(
        "the request is refused: the prompt has " + std::to_string(submission.prompt.size()) +
            " tokens and needs room for one more; allowed: a context of " +
            std::to_string(config_.max_context_tokens) + " tokens; shorten the prompt",
        "context_length_exceeded");
  }
  CheckReusePoints(submission);
  if (submission.max_drafts != 0) {
    throw RequestError("the request is refused: max_drafts is " +
                       std::to_string(submission.max_drafts) +
                       "; allowed: 0; speculation is not built yet");
  }
  if (queue_.size() >= static_cast<size_t>(config_.max_waiting)) {
    throw CapacityError("the request is refused: " + std::to_string(queue_.size()) +
                            " requests are waiting; allowed: " +
                            std::to_string(config_.max_waiting) + "; try again later",
                        kRetryAfterSeconds);
  }
}

void Scheduler::CheckReusePoints(const Submission& submission) {
  const auto& points = submission.reuse_points;
  int64_t previous = 0;
  bool is_increasing = points.size() <= Request{}.reuse_points.size();
  for (const int32_t point : points) {
    is_increasing &= point > previous && point <= std::ssize(submission.prompt);
    previous = point;
  }
  if (is_increasing) return;
  throw RequestError("the request is refused: its " + std::to_string(points.size()) +
                     " reuse points end with " + std::to_string(previous) +
                     "; allowed: up to 3 increasing positions in the prompt; correct them");
}

int32_t Scheduler::ResolveMaxOutputs(const Submission& submission) const {
  const auto prompt = static_cast<int64_t>(submission.prompt.size());
  const int64_t in_context = config_.max_context_tokens - prompt;
  const int64_t fits = CapacityTokens();
  const int64_t wanted = submission.max_new_tokens > 0
                             ? std::min<int64_t>(submission.max_new_tokens, in_context)
                             : std::clamp<int64_t>(fits - prompt, 1, in_context);
  if (prompt + wanted > fits) {
    throw CapacityError("this can never fit: " + std::to_string(prompt) + " prompt tokens and " +
                        std::to_string(wanted) + " new tokens need " +
                        std::to_string(BlocksFor(prompt + wanted)) + " blocks; the pool holds " +
                        std::to_string(fits / config_.block_tokens) + " blocks of " +
                        std::to_string(config_.block_tokens) +
                        " tokens; shorten the prompt, lower max_tokens or give the cache more "
                        "memory");
  }
  return static_cast<int32_t>(wanted);
}

void Scheduler::SubmitTurn(const Submission& submission, const TurnBase&, int64_t) {
  throw RequestError("the turn is refused: session " + std::to_string(submission.session) +
                         " has no known base; allowed: what session_base returns; send the whole "
                         "prompt with submit",
                     "session_base_unknown");
}

std::optional<TurnBase> Scheduler::SessionBase(int64_t) const { return std::nullopt; }

void Scheduler::Propose(RequestId id, std::span<const int32_t> drafts) {
  throw std::invalid_argument("propose: request " + std::to_string(id.value) + " gets " +
                              std::to_string(drafts.size()) +
                              " drafts; allowed: its max_drafts, 0");
}

// Tokens of the longest request that can ever run.
int64_t Scheduler::CapacityTokens() const {
  return int64_t{kv_.sets().max_items()} * config_.block_tokens;
}

}  // namespace tokenspeed
