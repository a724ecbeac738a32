// FlatKv::Match against a naive list of everything that was ever published, in a pool that never
// evicts: the joint match must be the longest there is. And in a small pool: whatever is evicted,
// invariants hold and a match holds what it says.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "kv/flat_kv.h"

namespace tokenspeed {
namespace {

constexpr int32_t kBlockTokens = 16;
using Tokens = std::vector<int32_t>;

// Everything that was published: sequences of full and window groups, positions with a state.
class Naive {
 public:
  Naive(bool has_state, int32_t share_tokens) : has_state_(has_state), share_(share_tokens) {}

  void Publish(const Tokens& tokens, int32_t size) {
    if (has_state_) {
      ends_.emplace_back(tokens.begin(), tokens.begin() + size);
    } else {
      sequences_.emplace_back(tokens.begin(), tokens.begin() + size);
    }
  }

  int32_t Longest(const Tokens& query) const {
    int32_t best = 0;
    for (const Tokens& end : ends_) {
      const auto size = static_cast<int32_t>(end.size());
      const bool is_usable = size % kBlockTokens == 0 || size % share_ == 0;
      const bool is_prefix =
          end.size() <= query.size() && std::equal(end.begin(), end.end(), query.begin());
      if (is_usable && is_prefix) best = std::max(best, size);
    }
    for (const Tokens& known : sequences_) {
      const size_t limit = std::min(known.size(), query.size());
      const auto mismatch = std::mismatch(known.begin(), known.begin() + limit, query.begin());
      const auto shared = static_cast<int32_t>(mismatch.first - known.begin());
      best = std::max(best, shared / share_ * share_);
    }
    return best;
  }

 private:
  bool has_state_;
  int32_t share_;
  std::vector<Tokens> sequences_, ends_;
};

class JointRun {
 public:
  JointRun(uint64_t seed, bool is_small)
      : random_(seed),
        is_small_(is_small),
        config_(MakeConfig()),
        kv_(config_),
        naive_(kv_.num_state_groups() > 0, config_.share_tokens),
        root_(kv_.AcquireRoot("")) {}

  void Run(int num_operations) {
    for (int i = 0; i < num_operations && !testing::Test::HasFailure(); ++i) {
      kv_.SetNow(++now_us_);
      if (running_.empty() || (running_.size() < 4 && Pick(0, 2) == 0)) {
        Begin();
      } else {
        Continue(Pick(0, static_cast<int32_t>(running_.size()) - 1));
      }
      kv_.CheckInvariants();
    }
    running_.clear();
    kv_.CheckInvariants();
    EXPECT_EQ(kv_.num_refs(), 0);
    EXPECT_EQ(kv_.physical().num_unpinned(), kv_.physical().num_usable());
  }

  int64_t num_matched() const { return num_matched_; }
  int64_t num_evictions() const {
    return kv_.num_evictions() + kv_.num_window_evictions() + kv_.num_snapshot_evictions();
  }

 private:
  struct Request {
    KvTable table;
    Tokens tokens;
    ChainKeys keys;
    SnapshotId snapshot;
    int32_t computed = 0;
  };

  int32_t Pick(int32_t low, int32_t high) {
    return std::uniform_int_distribution<int32_t>(low, high)(random_);
  }

  FlatKvConfig MakeConfig() {
    FlatKvConfig config{.block_tokens = kBlockTokens,
                        .groups = {{GroupKind::kFull, Pick(1, 4), 0}},
                        .share_tokens = 1 << Pick(0, 2),
                        .state_cache_share = is_small_ ? 0.4 : 1.0};
    if (Pick(0, 2) == 0) config.groups.push_back({GroupKind::kFull, Pick(1, 3), 0});
    if (Pick(0, 1) == 0) config.groups.push_back({GroupKind::kWindow, Pick(1, 4), Pick(1, 60)});
    if (Pick(0, 1) == 0) config.groups.push_back({GroupKind::kState, Pick(1, 3), 0});
    if (Pick(0, 2) == 0) config.groups.push_back({GroupKind::kState, Pick(1, 2), 0});
    config.num_physical_blocks = is_small_ ? MinPhysicalBlocks(config) + Pick(0, 30) : 6000;
    return config;
  }

  // Few branches, so that no parent forgets a child.
  Tokens MakeTokens() {
    Tokens tokens;
    const int32_t size = Pick(2, 90);
    int32_t branch = 0;
    for (int32_t i = 0; i < size; ++i) {
      if (i % 24 == 5) branch = branch * 2 + Pick(0, 1);
      tokens.push_back(i * 1000 + branch);
    }
    return tokens;
  }

  void Begin() {
    Request request{.table = {},
                    .tokens = MakeTokens(),
                    .keys = kv_.Chain(root_),
                    .snapshot = {},
                    .computed = 0};
    request.keys.Extend(request.tokens);
    const auto matchable = std::span(request.tokens).first(request.tokens.size() - 1);
    PrefixMatch match = kv_.Match(root_, matchable, request.keys);
    CheckMatch(match, request);
    if (!is_small_) {
      EXPECT_EQ(match.num_tokens, naive_.Longest({matchable.begin(), matchable.end()}))
          << "chain " << match.chain_tokens << " of " << matchable.size() << ", limit "
          << static_cast<int>(match.limit) << ", " << kv_.num_window_groups() << " windows, "
          << kv_.num_state_groups() << " states, grain " << config_.share_tokens;
    }
    num_matched_ += match.num_tokens;
    const size_t num_blocks = (request.tokens.size() + kBlockTokens - 1) / kBlockTokens;
    if (!kv_.CanHold(kv_.NeedToRun(match.table, num_blocks))) {
      if (!running_.empty()) return;
      match = PrefixMatch{};
      if (!kv_.CanEverHold(static_cast<int64_t>(num_blocks))) return;
      EXPECT_TRUE(kv_.CanHold(kv_.NeedToRun(match.table, num_blocks))) << "alone it fits";
    }
    // Whatever NeedToRun promised together with the first block is there.
    EXPECT_TRUE(kv_.Grow(match.table, match.num_tokens / kBlockTokens + 1));
    request.computed = match.num_tokens;
    request.snapshot = match.snapshot;
    request.table = std::move(match.table);
    running_.push_back(std::move(request));
  }

  void CheckMatch(const PrefixMatch& match, const Request& request) {
    EXPECT_LT(match.num_tokens, static_cast<int32_t>(request.tokens.size()));
    EXPECT_LE(match.num_tokens, match.chain_tokens);
    EXPECT_EQ(match.table.size() * kBlockTokens + match.tail_tokens,
              static_cast<size_t>(match.num_tokens));
    EXPECT_EQ(static_cast<bool>(match.tail), match.tail_tokens > 0);
    if (kv_.num_state_groups() > 0 && match.num_tokens > 0) {
      EXPECT_NE(match.table.rows.At(match.num_tokens), RowId(0));
    }
    for (int32_t w = 0; w < static_cast<int32_t>(match.table.windows.size()); ++w) {
      for (size_t i = 0; i < match.table.size(); ++i) {
        EXPECT_TRUE(!kv_.IsInWindow(w, i, match.num_tokens) || match.table.windows[w].Has(i));
      }
    }
  }

  void Continue(size_t index) {
    Request& request = running_[index];
    const auto size = static_cast<int32_t>(request.tokens.size());
    const int32_t wanted = std::min(size, request.computed + Pick(1, 40));
    const size_t room = kv_.MaxBlocks(request.table, (wanted + kBlockTokens - 1) / kBlockTokens);
    const int32_t end = std::min(wanted, static_cast<int32_t>(room) * kBlockTokens);
    EXPECT_TRUE(end > request.computed || running_.size() > 1) << "alone it goes on";
    if (end <= request.computed) {
      Finish(index);
      return;
    }
    EXPECT_TRUE(kv_.Grow(request.table, (end + kBlockTokens - 1) / kBlockTokens));
    if (kv_.num_state_groups() > 0)
      request.table.rows.Write(request.computed, request.computed, end);
    const int32_t before = request.computed;
    request.computed = end;
    for (int32_t i = before / kBlockTokens; (i + 1) * kBlockTokens <= end; ++i) {
      kv_.Publish(root_, request.table, i, request.keys[i],
                  std::span(request.tokens).subspan(i * kBlockTokens, kBlockTokens));
    }
    if (kv_.num_state_groups() == 0)
      naive_.Publish(request.tokens, end / kBlockTokens * kBlockTokens);
    const int32_t point = Pick(0, 2) == 0 ? end : -1;
    if (point > 0 && end < size) PublishHere(request, false);
    kv_.Slide(request.table, end, [&](int32_t, size_t) { return Pick(0, 1) == 0; });
    if (end == size) Finish(index);
  }

  void PublishHere(Request& request, bool is_last) {
    const int32_t end = request.computed, rest = end % kBlockTokens;
    SetId set = end >= kBlockTokens ? request.table.blocks.set(end / kBlockTokens - 1) : SetId();
    if (rest > 0) {
      const auto tail = std::span(request.tokens).subspan(end - rest, rest);
      set = kv_.PublishTail(root_, request.table, end / kBlockTokens, tail);
    }
    const SnapshotId taken =
        kv_.PublishState(request.table, set, end, request.snapshot, true, is_last);
    if (taken) request.snapshot = taken;
    if (taken || kv_.num_state_groups() == 0) naive_.Publish(request.tokens, end);
  }

  void Finish(size_t index) {
    Request& request = running_[index];
    if (request.computed > 0) PublishHere(request, true);
    kv_.SetKeys(request.table, is_small_ ? Pick(0, 3) * 20 : 0, is_small_ ? Pick(0, 1) * 50 : 0, 3);
    running_.erase(running_.begin() + static_cast<std::ptrdiff_t>(index));
  }

  std::mt19937_64 random_;
  bool is_small_;
  FlatKvConfig config_;
  FlatKv kv_;
  Naive naive_;
  NodeId root_;
  std::vector<Request> running_;
  int64_t now_us_ = 0, num_matched_ = 0;
};

void RunSeeds(bool is_small, int num_runs, int num_operations) {
  int64_t num_matched = 0, num_evictions = 0;
  for (int seed = 0; seed < num_runs; ++seed) {
    JointRun run(seed, is_small);
    try {
      run.Run(num_operations);
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what();
    }
    ASSERT_FALSE(testing::Test::HasFailure()) << "seed " << seed;
    num_matched += run.num_matched();
    num_evictions += run.num_evictions();
  }
  EXPECT_GT(num_matched, 0);
  EXPECT_EQ(num_evictions > 0, is_small);
}

TEST(JointMatchTest, ItIsTheLongestThereIs) { RunSeeds(false, 40, 120); }
TEST(JointMatchTest, ASmallPoolKeepsItsPromises) { RunSeeds(true, 300, 200); }

}  // namespace
}  // namespace tokenspeed
