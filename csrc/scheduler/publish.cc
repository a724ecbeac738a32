// What committed steps wrote becomes matchable: full blocks as they fill, a partly filled block and
// the state at reuse points and at the end.
#include <algorithm>

#include "scheduler/scheduler.h"

namespace tokenspeed {

// What a committed step wrote is in the cache; a token that was dropped with its request is not.
void Scheduler::AdvanceComputed(RequestIndex index, int32_t num_query) {
  Request& request = requests_[index];
  request.computed = std::min(request.computed + num_query, request.size());
  PublishFull(index);
  if (MayPublish(request) && std::ranges::count(request.points, request.computed) > 0) {
    PublishState(request, false);
  }
  Slide(request);
}

// Window blocks that no step reads any more go. Tokens to be read again see what they saw before.
void Scheduler::Slide(Request& request) {
  const int32_t start = std::min(request.computed, request.step_start());
  kv_.Slide(*request.blocks(), start, [&](int32_t w, size_t block) {
    return std::ranges::any_of(request.points,
                               [&](int32_t point) { return kv_.IsInWindow(w, block, point); });
  });
}

void Scheduler::PublishFull(RequestIndex index) {
  Request& request = requests_[index];
  if (!MayPublish(request)) return;
  constexpr int32_t kKeysAhead = 8;
  const int32_t block_tokens = config_.block_tokens;
  if ((request.published_blocks + 1) * block_tokens > request.computed) return;
  const std::span<const int32_t> tokens(request.tokens);
  request.keys.Extend(tokens.first(request.computed));
  constexpr int32_t kBlocksAhead = 2;
  const int32_t end = request.computed / block_tokens;
  while ((request.published_blocks + 1) * block_tokens <= request.computed) {
    if (const int32_t next = request.published_blocks + kBlocksAhead; next < end) {
      kv_.PrefetchPublish(*request.blocks(), next, request.keys[next]);
    }
    const int32_t position = request.published_blocks;
    const auto block = tokens.subspan(position * block_tokens, block_tokens);
    if (static_cast<size_t>(position + kKeysAhead) < request.keys.size()) {
      kv_.PrefetchPublish(request.keys[position + kKeysAhead]);
    }
    const auto publication =
        kv_.Publish(request.root, *request.blocks(), position, request.keys[position], block);
    if (publication == FlatKv::Publication::kPrivate) {
      request.is_private = true;
      return;
    }
    if (writer_ != nullptr) {
      writer_->SetPublished(request.blocks()->blocks.set(position),
                            publication == FlatKv::Publication::kAdded);
    }
    const bool has_executor_row = request.admission != 0;
    if (publication == FlatKv::Publication::kReplaced && has_executor_row) {
      replacements_.push_back({index, request.admission, position});
    }
    ++request.published_blocks;
  }
}

// Before the request lets its blocks go: the partly filled block, the state, and their keys.
void Scheduler::PublishRest(Request& request) {
  const KvTable* blocks = request.blocks();
  if (blocks == nullptr) return;
  if (MayPublish(request) && request.computed > 0) {
    if (!PublishState(request, true)) PublishTail(request);
  }
  kv_.SetKeys(*blocks, request.gap_us, request.retain_us, blocks->size());
}

// Returns: the set that has the tokens of the block in which `computed` lies; SetId(0) for none.
SetId Scheduler::PublishTail(Request& request) {
  const int32_t first = request.published_blocks * config_.block_tokens;
  const int32_t num_tokens = request.computed - first;
  if (num_tokens == 0) {
    return first == 0 ? SetId() : request.blocks()->blocks.set(request.published_blocks - 1);
  }
  const auto tokens = std::span<const int32_t>(request.tokens).subspan(first, num_tokens);
  return kv_.PublishTail(request.root, *request.blocks(), request.published_blocks, tokens);
}

// Makes the newest state matchable, with the tokens before it. Returns: false when there are no
// state groups, or nothing could start there.
bool Scheduler::PublishState(Request& request, bool is_last) {
  const int32_t position = std::min(request.computed, request.step_start());
  if (kv_.num_state_groups() == 0 || position == 0) return false;
  if (position % kv_.share_tokens() != 0) return false;
  const int32_t index = (position - 1) >> block_shift_;
  const SetId tail = PublishTail(request);
  const bool is_full = index < request.published_blocks;
  const SetId set = is_full ? request.blocks()->blocks.set(index) : tail;
  if (set.value == 0) return false;
  const bool is_branch = position == request.points[0];
  const SnapshotId snapshot =
      kv_.PublishState(*request.blocks(), set, position, request.snapshot, is_branch, is_last);
  if (snapshot) request.snapshot = snapshot;
  if (snapshot && writer_ != nullptr) writer_->SnapshotPublished(snapshot.row);
  return true;
}

}  // namespace tokenspeed
