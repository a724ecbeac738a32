// Room that lies idle inside occupied physical blocks, over a day of mixed load: half of the
// requests are short, blocks are packed by twelve, snapshots of state take whole physical blocks.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <random>

#include "kv/flat_kv.h"

namespace tokenspeed {
namespace {

constexpr int32_t kBlockTokens = 128;

class MixedDay {
 public:
  explicit MixedDay(uint64_t seed)
      : random_(seed),
        kv_({.block_tokens = kBlockTokens,
             .groups = {{GroupKind::kFull, 12, 0},
                        {GroupKind::kState, 1, 0},
                        {GroupKind::kWindow, 8, 1024}},
             .num_physical_blocks = 3001}),
        root_(kv_.AcquireRoot("")) {}

  // Returns the shares of idle room, one per step, smallest first.
  std::vector<double> Run(int num_steps) {
    std::vector<double> idle;
    for (int step = 0; step < num_steps; ++step) {
      kv_.SetNow(step);
      if (running_.size() < 240 && random_() % 3 != 0) Admit();
      for (size_t i = 0; i < running_.size();) {
        if (!Advance(running_[i]))
          End(i);
        else
          ++i;
      }
      if (step > num_steps / 10) idle.push_back(kv_.vacant_blocks() / kv_.physical().num_usable());
      if (step % 500 == 0) kv_.CheckInvariants();
    }
    std::ranges::sort(idle);
    return idle;
  }

  int64_t num_evictions() const { return kv_.num_evictions(); }

 private:
  struct Request {
    KvTable table;
    std::vector<int32_t> tokens;
    ChainKeys keys;
    int32_t computed = 0, published = 0;
  };

  void Admit() {
    const bool is_short = random_() % 2 == 0;
    const double scale = std::uniform_real_distribution<>(0, 1)(random_);
    const auto size = static_cast<int32_t>(is_short ? 20 + 490 * scale : 512 * std::pow(80, scale));
    Request request;
    request.keys = kv_.Chain(root_);
    for (int32_t i = 0; i < size; ++i) request.tokens.push_back(static_cast<int32_t>(random_()));
    const size_t num_blocks = (size + kBlockTokens - 1) / kBlockTokens;
    if (!kv_.CanHold(kv_.NeedToRun(request.table, num_blocks)) || !kv_.Grow(request.table, 1)) {
      return;
    }
    running_.push_back(std::move(request));
  }

  // One step of a request: a chunk of its prompt, then tokens one by one (here by 16).
  // Returns: false when it has all its tokens, or no room.
  bool Advance(Request& request) {
    const auto size = static_cast<int32_t>(request.tokens.size());
    const int32_t left = size - request.computed;
    if (left == 0) return false;
    const int32_t end =
        request.computed + (left > size / 4 ? std::min(left, 2048) : std::min(left, 16));
    if (!kv_.Grow(request.table, (end + kBlockTokens - 1) / kBlockTokens)) return false;
    request.table.rows.Write(request.computed, request.computed, end);
    request.computed = end;
    request.keys.Extend(std::span(request.tokens).first(end));
    for (; (request.published + 1) * kBlockTokens <= end; ++request.published) {
      kv_.Publish(
          root_, request.table, request.published, request.keys[request.published],
          std::span(request.tokens).subspan(request.published * kBlockTokens, kBlockTokens));
    }
    kv_.Slide(request.table, end, [](int32_t, size_t) { return false; });
    return true;
  }

  void End(size_t index) {
    Request& request = running_[index];
    if (request.computed > 0) {
      SetId set = request.published > 0 ? request.table.blocks.set(request.published - 1) : SetId();
      const int32_t rest = request.computed % kBlockTokens;
      if (rest > 0) {
        const auto tail = std::span(request.tokens).subspan(request.computed - rest, rest);
        set = kv_.PublishTail(root_, request.table, request.published, tail);
      }
      kv_.PublishState(request.table, set, request.computed, {}, false, true);
    }
    std::swap(running_[index], running_.back());
    running_.pop_back();
  }

  std::mt19937_64 random_;
  FlatKv kv_;
  NodeId root_;
  std::vector<Request> running_;
};

TEST(FragmentationTest, IdleRoomInOccupiedBlocksStaysBelowFivePercent) {
  MixedDay day(1);
  const std::vector<double> idle = day.Run(6000);
  EXPECT_GT(day.num_evictions(), 1000) << "the pool is full";
  const double p99 = idle[idle.size() * 99 / 100];
  std::cout << "idle room: median " << idle[idle.size() / 2] << ", p99 " << p99 << "\n";
  EXPECT_LT(p99, 0.05);
}

}  // namespace
}  // namespace tokenspeed
