// What the last turn of each session left: its tokens (prompt and outputs) and their chain keys, so
// that the next turn is submitted by what is new and no token is copied or hashed twice.
//
//   turn n ends -> Keep   tokens, keys          turn n + 1 -> Continue: takes both, cuts them at
//                                               the common prefix, the caller appends the rest
//
// A turn that runs has its session's buffers; they come back when it ends. A base is verified by a
// digest of its tokens, so any earlier position of the same tokens will do as a base too.
// Also sums the cache truth of each session; what a forgotten session had goes to session 0, so the
// sums always add up to the scheduler's counters.
// Bounded in sessions and bytes: the least recently used goes. O(1) beside the tokens' own cost.
// Thread: scheduler thread only.
#pragma once

#include <algorithm>
#include <cstdint>
#include <list>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/pages.h"
#include "kv/chain_keys.h"
#include "kv/prefix_index.h"
#include "scheduler/submission.h"

namespace tokenspeed {

// Tokens of a sequence and the chain keys of its first blocks.
struct Chain {
  PagedVector<int32_t> tokens;
  ChainKeys keys;
  std::vector<KnownSet> sets = {};  // of its first blocks, as they were when the turn ended

  // Appends tokens, a stretch at a time: `learn()` looks at each while it is in the nearest cache,
  // and while the next one is on its way there. `room`: tokens that are going to follow.
  template <class Learn>
  void Append(std::span<const int32_t> more, size_t room, const Learn& learn) {
    constexpr size_t kStretch = 512;
    Reserve(tokens.size() + more.size() + room);
    while (!more.empty()) {
      const auto stretch = more.first(std::min(kStretch, more.size()));
      tokens.insert(tokens.end(), stretch.begin(), stretch.end());
      more = more.subspan(stretch.size());
      PrefetchAppend(more.first(std::min(kStretch, more.size())));
      learn();
    }
  }

 private:
  // Starts to load what copying `next` reads and writes.
  void PrefetchAppend(std::span<const int32_t> next) const {
    constexpr size_t kLine = 16;
    for (size_t i = 0; i < next.size(); i += kLine) {
      __builtin_prefetch(&next[i]);
      __builtin_prefetch(tokens.data() + tokens.size() + i, 1);
    }
  }
  void Reserve(size_t num_tokens) {
    if (num_tokens > tokens.capacity()) tokens.reserve(std::max(num_tokens, 2 * tokens.size()));
  }
};

// Tokens, and the chain keys of some of their first blocks, wherever they lie.
struct Sequence {
  std::span<const int32_t> tokens;
  const ChainKeys& keys;
};

// Digest of the first `num_tokens` of a chain: of the key of its full blocks and the rest's tokens.
// REQUIRES: the keys of those blocks are there.
uint64_t DigestOf(const Chain& chain, size_t num_tokens, size_t block_tokens);

// How many first tokens two sequences share.
size_t CommonPrefix(std::span<const int32_t> a, std::span<const int32_t> b);

struct SessionTotals {
  int64_t turns = 0, prompt = 0, cached = 0, created = 0, recomputed = 0, output = 0;

  void Add(const SessionTotals& other) {
    turns += other.turns;
    prompt += other.prompt;
    cached += other.cached;
    created += other.created;
    recomputed += other.recomputed;
    output += other.output;
  }
  bool operator==(const SessionTotals&) const = default;
};

// In which namespace the turn before ran.
struct TurnScope {
  std::string salt;
  int64_t tenant = 0;
};

class Sessions {
 public:
  Sessions(int32_t max_sessions, int64_t max_bytes, int32_t block_tokens)
      : max_sessions_(max_sessions), max_bytes_(max_bytes), block_tokens_(block_tokens) {}

  std::optional<TurnBase> Base(int64_t session) const;
  // Says whether the session's tokens are here (no turn has them) and begin with `base`.
  bool Has(int64_t session, const TurnBase& base) const;

  // Moves the session's tokens out, cut to `num_tokens` (and the keys of their full blocks); the
  // keys are dropped if the namespace is another. REQUIRES: `session` has them.
  Chain Take(int64_t session, size_t num_tokens, const ChainKeys& fresh);
  // Tokens that are here, empty for none.
  std::span<const int32_t> Tokens(int64_t session) const;
  // Of the turn before; nullopt for none.
  std::optional<TurnScope> Previous(int64_t session) const;

  // Keeps what a turn that ended leaves. Session 0 keeps nothing.
  void Keep(int64_t session, Chain chain, std::string salt, int64_t tenant);

  // Forgets a session. Returns: what its last turn left, nullopt if it is not known.
  struct Left {
    Chain chain;
    std::string salt;
    int64_t tenant;
  };
  std::optional<Left> Release(int64_t session);
  // Calls visit(chain) for each chain that is here.
  template <class Visit>
  void ForEach(const Visit& visit) const {
    for (const int64_t session : by_use_) {
      const Chain& chain = sessions_.at(session).chain;
      if (!chain.tokens.empty()) visit(chain);
    }
  }

  void Count(int64_t session, const SessionTotals& totals);
  SessionTotals totals(int64_t session) const;
  SessionTotals all() const { return all_; }
  int64_t num_bytes() const { return num_bytes_; }
  size_t size() const { return sessions_.size(); }

  void CheckInvariants() const;

 private:
  struct Session {
    Chain chain;
    std::optional<TurnBase> base;
    std::string salt;
    int64_t tenant = 0;
    SessionTotals totals;
    std::list<int64_t>::iterator place;
  };

  Session& Touch(int64_t session);
  void Forget(int64_t session);
  void Trim(int64_t kept);
  static int64_t BytesOf(const Chain& chain) {
    return static_cast<int64_t>(chain.tokens.capacity() * sizeof(int32_t) +
                                chain.sets.capacity() * sizeof(KnownSet) + chain.keys.num_bytes());
  }

  int32_t max_sessions_;
  int64_t max_bytes_;
  size_t block_tokens_;
  std::unordered_map<int64_t, Session> sessions_;  // looked up only
  std::list<int64_t> by_use_;                      // most recent first
  SessionTotals others_, all_;                     // of no session or a forgotten one; of everybody
  int64_t num_bytes_ = 0;
};

}  // namespace tokenspeed
