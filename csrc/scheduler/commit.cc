#include <algorithm>
#include <stdexcept>

#include "scheduler/move.h"

namespace tokenspeed {

CommitResult Scheduler::Commit(int64_t step_id, std::span<const int32_t> tokens,
                               std::span<const bool> failed, int64_t now_us) {
  CommitResult result;
  Commit(step_id, {tokens, {}, failed}, now_us, result);
  return result;
}

void Scheduler::Commit(int64_t step_id, const StepOutcome& outcome, int64_t now_us,
                       CommitResult& result) {
  record_.Commit(step_id, outcome, now_us);
  CheckCommit(step_id, outcome);
  SetNow(now_us);
  result.Clear();
  Uncommitted step = std::move(uncommitted_.front());
  uncommitted_.pop_front();
  step.copy_windows.clear();
  step.copy_sources.clear();  // before their parents may go
  CommitRows(*step.plan, outcome, result);
  result.Finish();
  floor_.Committed(std::max(now_us_, now_us));
  Expire(now_us);
}

// Rows to which nothing happens are committed by their lines alone, which are asked for ahead.
void Scheduler::CommitRows(const StepPlan& plan, const StepOutcome& outcome, CommitResult& result) {
  constexpr int32_t kLinesAhead = 12, kTokensAhead = 6;
  const int32_t num_rows = plan.num_rows();
  const bool may_be_quiet = outcome.accepted.empty() && kv_.num_state_groups() == 0;
  const int32_t num_quiet = may_be_quiet ? plan.num_decode_rows : 0;  // at most
  for (int32_t row = 0; row < num_rows; ++row) {
    if (row + kLinesAhead < num_rows) requests_.PrefetchLine(plan.requests[row + kLinesAhead]);
    if (row + kTokensAhead < num_rows) requests_.PrefetchEnd(plan.requests[row + kTokensAhead]);
    Request& request = requests_[plan.requests[row]];
    const bool has_failed = !outcome.failed.empty() && outcome.failed[row];
    const bool samples = plan.output_index[row] >= 0 && !has_failed;
    if (row < num_quiet && samples && IsQuiet(request, outcome.tokens[row])) {
      CommitQuietRow(request, row, outcome.tokens[row], result);
    } else {
      CommitRow(plan, row, Accepted(outcome, num_rows, row), has_failed, result);
    }
  }
}

// Says whether this token of a decode row brings nothing about: it ends neither a block nor the
// request, and nobody waits for its commit. Reads the line only (step_line.h).
bool Scheduler::IsQuiet(const Request& request, int32_t token) const {
  const bool is_plain = request.is_decoding && !request.retract_pending &&
                        request.max_drafts == 0 && !request.is_poisoned && request.cached_reported;
  const int32_t block_end = (request.published_blocks + 1) << block_shift_;
  return is_plain && request.num_outputs() + 1 < request.max_outputs && !request.IsStop(token) &&
         (request.computed + 1 < block_end || !MayPublish(request));
}

// What CommitRow comes to then.
void Scheduler::CommitQuietRow(Request& request, int32_t row, int32_t token, CommitResult& result) {
  --request.uncommitted_rows;
  --request.ahead;
  ++request.computed;
  ++output_tokens_;
  request.tokens.push_back(token);
  if (kv_.num_window_groups() > 0) Slide(request);
  result.AddOne(request.id, token, FinishReason::kNone, -1, row);
}

// Tokens that row `row` brings: one, or as many as were accepted and one more.
std::span<const int32_t> Scheduler::Accepted(const StepOutcome& outcome, size_t num_rows,
                                             int32_t row) const {
  if (outcome.accepted.empty()) return outcome.tokens.subspan(row, 1);
  const size_t width = outcome.tokens.size() / num_rows;
  return outcome.tokens.subspan(row * width, outcome.accepted[row] + size_t{1});
}

void Scheduler::CheckCommit(int64_t step_id, const StepOutcome& outcome) const {
  const auto& [tokens, accepted, failed] = outcome;
  const auto what = [step_id] { return "commit of step " + std::to_string(step_id); };
  if (uncommitted_.empty() || uncommitted_.front().plan->step_id != step_id) {
    throw std::invalid_argument(
        what() + ": not the oldest uncommitted step; allowed: " +
        (uncommitted_.empty() ? "none" : std::to_string(uncommitted_.front().plan->step_id)) +
        "; commit steps in the order of their plans");
  }
  const StepPlan& plan = *uncommitted_.front().plan;
  const auto num_rows = static_cast<size_t>(plan.num_rows());
  const size_t width =
      accepted.empty() ? 1 : std::max<size_t>(1, tokens.size() / std::max<size_t>(1, num_rows));
  if (tokens.size() != num_rows * width || width == 0 ||
      (!failed.empty() && failed.size() != num_rows) ||
      (!accepted.empty() && accepted.size() != num_rows)) {
    throw std::invalid_argument(
        what() + ": " + std::to_string(tokens.size()) + " tokens, " +
        std::to_string(accepted.size()) + " accepted counts and " + std::to_string(failed.size()) +
        " failed flags; allowed: " + std::to_string(num_rows) +
        " rows; pass one entry per row, and as many tokens for each when `accepted` is given");
  }
  // Mostly every row has its token; who looks closer says which one has not.
  bool is_sound = accepted.empty();
  for (size_t row = 0; is_sound && row < num_rows; ++row) {
    is_sound = (plan.output_index[row] < 0) | (tokens[row] >= 0);
  }
  if (!is_sound) CheckAccepted(what(), plan, outcome);
}

void Scheduler::CheckAccepted(const std::string& what, const StepPlan& plan,
                              const StepOutcome& outcome) const {
  const auto& [tokens, accepted, failed] = outcome;
  const auto num_rows = static_cast<size_t>(plan.num_rows());
  const auto width = static_cast<int32_t>(tokens.size() / std::max<size_t>(1, num_rows));
  for (size_t row = 0; row < num_rows; ++row) {
    if (!accepted.empty() &&
        (accepted[row] < 0 || accepted[row] > plan.num_drafts[row] || accepted[row] >= width)) {
      throw std::invalid_argument(what + ": row " + std::to_string(row) + " accepted " +
                                  std::to_string(accepted[row]) + "; allowed: 0 to its " +
                                  std::to_string(plan.num_drafts[row]) +
                                  " drafts, with a token for each and one more; correct it");
    }
    if (plan.output_index[row] < 0 || (!failed.empty() && failed[row])) continue;
    const auto taken = Accepted(outcome, num_rows, static_cast<int32_t>(row));
    const auto bad = std::ranges::find_if(taken, [](int32_t token) { return token < 0; });
    if (bad == taken.end() ||
        std::holds_alternative<Draining>(requests_[plan.requests[row]].state)) {
      continue;
    }
    throw std::invalid_argument(what + ": row " + std::to_string(row) +
                                " samples, but its token is " + std::to_string(*bad) +
                                "; allowed: 0 or more; mark a failed row in `failed`");
  }
}

void Scheduler::CommitRow(const StepPlan& plan, int32_t row, std::span<const int32_t> tokens,
                          bool has_failed, CommitResult& result) {
  const RequestIndex index = plan.requests[row];
  Request& request = requests_[index];
  const bool samples = plan.output_index[row] >= 0;
  const int32_t num_drafts = plan.num_drafts[row];
  const int32_t num_rejected = num_drafts + 1 - static_cast<int32_t>(tokens.size());
  --request.uncommitted_rows;
  request.drafts_in_flight -= num_drafts;
  request.ahead -= samples ? 1 + num_drafts : 0;
  if (num_rejected > 0) RejectDrafts(plan, row, num_rejected, request);
  request.is_poisoned |= has_failed;
  num_drafted_ += num_drafts;
  num_accepted_ += num_drafts - num_rejected;
  const bool is_ended = std::holds_alternative<Draining>(request.state);
  FinishReason reason = has_failed ? FinishReason::kError : FinishReason::kNone;
  if (!samples || has_failed || is_ended) tokens = {};
  if (!tokens.empty()) reason = AppendTokens(request, tokens);
  const int32_t num_query = plan.query_start[row + 1] - plan.query_start[row];
  const int32_t num_replayed = std::max(0, request.computed - plan.context_tokens[row]);
  const int32_t num_new = num_query - num_rejected - (is_replay_ ? num_replayed : 0);
  if (!request.is_poisoned) AdvanceComputed(index, num_new);
  if (is_ended) {
    DrainIfDone(index);
    return;
  }
  if (!tokens.empty() || has_failed) {
    const bool is_first = !tokens.empty() && !request.cached_reported;
    if (is_first) {
      const auto& [cached, created, recomputed, position, end] = request.truth;
      result.reports.push_back(
          {result.num_entries(), cached, created, recomputed, position, static_cast<int32_t>(end)});
    }
    result.Add(request.id, tokens, reason, is_first ? request.cached_tokens : -1, row);
    request.cached_reported |= is_first;
  }
  if (reason != FinishReason::kNone) {
    End(index, reason);
  } else if (request.retract_pending && request.uncommitted_rows == 0) {
    RetractNow(index);
  }
}

// Rows of the steps after this one are planned already: as if every draft were right. Of a request
// that has ended only states before those are of use.
void Scheduler::RejectDrafts(const StepPlan& plan, int32_t row, int32_t num_rejected,
                             Request& request) {
  request.planned -= num_rejected;
  if (is_replay_) request.to_replay -= num_rejected;
  if (is_replay_ || std::holds_alternative<Draining>(request.state)) return;
  const int32_t num_query = plan.query_start[row + 1] - plan.query_start[row];
  request.blocks()->rows.Reject(request.computed + num_query, num_rejected);
}

// Appends tokens up to the one that ends the request; `tokens` is cut after it.
FinishReason Scheduler::AppendTokens(Request& request, std::span<const int32_t>& tokens) {
  request.drafts.clear();
  for (size_t i = 0; i < tokens.size(); ++i) {
    request.tokens.push_back(tokens[i]);
    ++output_tokens_;
    const FinishReason reason = ReasonAfter(request, tokens[i]);
    if (reason == FinishReason::kNone) continue;
    tokens = tokens.first(i + 1);
    return reason;
  }
  return FinishReason::kNone;
}

FinishReason Scheduler::ReasonAfter(const Request& request, int32_t token) const {
  if (request.num_outputs() > request.min_outputs && request.IsStop(token)) {
    return FinishReason::kStop;
  }
  return request.num_outputs() < request.max_outputs ? FinishReason::kNone : FinishReason::kLength;
}

}  // namespace tokenspeed
