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

bool FlatKv::IsOnlyHolder(SetId set, Tokens tokens) const {
  const NodeId parent = index_.parent(set);
  const auto& children = index_.children(parent);
  if (std::ranges::find(children, set.value) == children.end()) return false;
  const int32_t shared = index_.Shared(set.value, tokens) / share_tokens() * share_tokens();
  return shared > 0 && std::ranges::none_of(children, [&](int32_t child) {
           return child != 0 && child != set.value && index_.Shared(child, tokens) >= shared;
         });
}

void FlatKv::Release(SetId set, std::span<int64_t> blocks) {
  TS_CHECK(IsAlone(set), "what others use is not released");
  for (int32_t k = 0; k < sets_.num_groups(); ++k) ++blocks[sets_.group(k).value];
  for (int32_t w = 0; w < num_window_groups(); ++w) {
    const WindowId window = index_.window(set, w);
    if (window.value == 0 || windows_[w]->refs(window.value) > 0) continue;
    ++blocks[windows_[w]->group(0).value];
  }
  for (int32_t row = index_.first_snapshot(set); row != 0; row = index_.snapshots().next(row)) {
    if (rows_.refs(row) > 0) continue;
    for (int32_t k = 0; k < rows_.num_groups(); ++k) ++blocks[rows_.group(k).value];
  }
  if (index_.IsFull(set)) evicted_.Add(index_.key(NodeId::Of(set)));
  index_.Remove(set);
}

}  // namespace tokenspeed
