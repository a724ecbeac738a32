// Turns of sessions: what the last one left, and how the next one builds on it.
#include <algorithm>
#include <string>

#include "base/errors.h"
#include "scheduler/scheduler.h"

namespace tokenspeed {
namespace {

// So many outputs find room behind the prompt, so that no step of an ordinary answer moves a long
// prompt to a larger place. What is not written takes no memory.
constexpr int32_t kMaxRoomTokens = 16 * 1024;

size_t RoomForOutputs(int32_t max_outputs) {
  return static_cast<size_t>(std::min(max_outputs, kMaxRoomTokens));
}

}  // namespace

// Session's own tokens are verified by digest; what a live turn has is not a base.
void Scheduler::SubmitTurn(const Submission& submission, const TurnBase& base, int64_t now_us) {
  record_.SubmitTurn(submission, base, now_us);
  SetNow(now_us);
  if (!sessions_.Has(submission.session, base)) {
    throw RequestError("the turn is refused: session " + std::to_string(submission.session) +
                           " has no known base of " + std::to_string(base.tokens) +
                           " tokens with this digest; allowed: what session_base returns; send "
                           "the whole prompt with submit",
                       "session_base_unknown");
  }
  const size_t num_prompt = base.tokens + submission.prompt.size();
  CheckSubmission(submission, num_prompt);
  const int32_t max_outputs = ResolveMaxOutputs(submission, static_cast<int64_t>(num_prompt));
  const NodeId root = kv_.AcquireRoot(submission.salt, submission.tenant);
  const auto previous = PreviousTurn(submission, base.tokens);
  Chain chain = sessions_.Take(submission.session, base.tokens, kv_.Chain(root));
  Extend(chain, root, submission.prompt, max_outputs);
  Accept(submission, root, std::move(chain), max_outputs, previous, now_us);
}

// First tokens that a prompt shares with the session's last turn. Of a turn in another namespace
// nothing is compared, so that no answer depends on what it held.
size_t Scheduler::CommonWithPrevious(const Submission& submission) const {
  const auto previous = sessions_.Previous(submission.session);
  if (!previous || previous->salt != submission.salt || previous->tenant != submission.tenant) {
    return 0;
  }
  return CommonPrefix(sessions_.Tokens(submission.session), submission.prompt);
}

// Why a prompt is not found: evidence from the session's last turn.
std::optional<MatchEvidence::Turn> Scheduler::PreviousTurn(const Submission& submission,
                                                           size_t common) const {
  const auto previous = sessions_.Previous(submission.session);
  if (!previous) return std::nullopt;
  return MatchEvidence::Turn{static_cast<int32_t>(common), previous->salt == submission.salt,
                             previous->tenant == submission.tenant};
}

std::optional<TurnBase> Scheduler::SessionBase(int64_t session) const {
  return sessions_.Base(session);
}

// The prompt with what is known of it: a session's last turn gives its buffers if the prompt goes
// on from most of it, else they are made new.
Chain Scheduler::ChainOf(const Submission& submission, NodeId root, size_t common,
                         int32_t max_outputs) {
  const size_t num_known = sessions_.Tokens(submission.session).size();
  if (2 * common < num_known || common == 0) {
    Chain chain{{}, kv_.Chain(root)};
    Extend(chain, root, submission.prompt, max_outputs);
    return chain;
  }
  Chain chain = sessions_.Take(submission.session, common, kv_.Chain(root));
  Extend(chain, root, submission.prompt.subspan(common), max_outputs);
  return chain;
}

// Appends tokens of a prompt, and learns what the cache has of them.
void Scheduler::Extend(Chain& chain, NodeId root, std::span<const int32_t> more,
                       int32_t max_outputs) const {
  if (config_.prefix_cache) chain.keys.Reserve(chain.tokens.size() + more.size());
  chain.Append(more, RoomForOutputs(max_outputs), [&] {
    if (config_.prefix_cache) kv_.Recognise(root, chain.tokens, chain.keys, chain.sets);
  });
}

}  // namespace tokenspeed
