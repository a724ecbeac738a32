// FlatKv, what one sequence alone has in the cache: where its nodes lie, and how one is dropped.
#include "base/check.h"
#include "kv/flat_kv.h"

namespace tokenspeed {

std::vector<PathNode> FlatKv::Path(NodeId root, Tokens tokens, const ChainKeys& keys) const {
  const auto block_tokens = static_cast<size_t>(config_.block_tokens);
  std::vector<PathNode> path;
  NodeId node = root;
  size_t begin = 0;
  for (size_t i = 0; i < keys.size() && begin + block_tokens <= tokens.size(); ++i) {
    const SetId set = index_.Find(node, keys[i], tokens.subspan(begin, block_tokens));
    if (set.value == 0) break;
    path.push_back({set, begin});
    node = NodeId::Of(set);
    begin += block_tokens;
  }
  for (const int32_t child : index_.children(node)) {
    const SetId tail(child);
    if (child == 0) break;
    if (index_.IsFull(tail)) continue;
    if (index_.Shared(child, tokens.subspan(begin)) == index_.num_tokens(tail)) {
      path.push_back({tail, begin});
    }
  }
  return path;
}

// Returns a sibling in which others find the first tokens of a set as far as in it, SetId(0) for
// none. What lies at a position that cannot be shared is found nowhere.
SetId FlatKv::Substitute(SetId set, int32_t num_shared) const {
  const Tokens shared = index_.tokens(set).first(num_shared);
  for (const int32_t child : index_.children(index_.parent(set))) {
    const SetId sibling(child);
    if (child == 0 || sibling == set || index_.Shared(child, shared) < num_shared) continue;
    bool has_windows = true;
    for (int32_t w = 0; w < num_window_groups(); ++w) {
      has_windows &= index_.window(set, w).value == 0 || index_.window(sibling, w).value != 0;
    }
    if (has_windows) return sibling;
  }
  return SetId();
}

int32_t FlatKv::Release(SetId set, int32_t num_shared, std::span<int64_t> blocks) {
  TS_CHECK(IsAlone(set), "what others use is not released");
  const int32_t num_tokens = index_.num_tokens(set);
  num_shared = num_shared / share_tokens() * share_tokens();
  if (num_shared > 0 && !index_.IsRemembered(set)) num_shared = 0;
  const SetId substitute = num_shared > 0 ? Substitute(set, num_shared) : SetId();
  const bool stays = num_shared > 0 && substitute.value == 0;
  const auto add = [&](const BlockPool& pool, int64_t count) {
    for (int32_t k = 0; k < pool.num_groups(); ++k) blocks[pool.group(k).value] += count;
  };
  if (index_.IsFull(set)) evicted_.Add(index_.key(NodeId::Of(set)));
  const int32_t num_rows = rows_.num_free_items();
  if (num_shared > 0) index_.Shorten(set, num_shared);
  if (stays) {
    add(rows_, rows_.num_free_items() - num_rows);
    return num_tokens - num_shared;
  }
  if (substitute.value != 0) index_.MoveParts(set.value, substitute.value);
  for (int32_t w = 0; w < num_window_groups(); ++w) {
    const WindowId window = index_.window(set, w);
    if (window.value != 0 && windows_[w]->refs(window.value) == 0) add(*windows_[w], 1);
  }
  index_.Remove(set);
  add(sets_, 1);
  add(rows_, rows_.num_free_items() - num_rows);
  return num_tokens - num_shared;
}

}  // namespace tokenspeed
