#include "kv/prefix_index.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/check.h"

namespace tokenspeed {

PrefixIndex::PrefixIndex(BlockPool& pool, int32_t block_tokens, uint64_t hash_seed)
    : pool_(pool),
      block_tokens_(block_tokens),
      hash_seed_(hash_seed),
      nodes_(pool.max_sets() + 1),
      tokens_(new int32_t[nodes_.size() * block_tokens]),
      slots_(std::bit_ceil(nodes_.size() * 2)),
      slot_mask_(slots_.size() - 1) {}

NodeId PrefixIndex::AcquireRoot(const std::string& salt) {
  auto [found, is_new] = root_of_salt_.try_emplace(salt, 0);
  if (is_new) {
    if (free_roots_.empty()) {
      free_roots_.push_back(static_cast<int32_t>(roots_.size()));
      roots_.emplace_back();
    }
    found->second = free_roots_.back();
    free_roots_.pop_back();
    roots_[found->second] = Root{};
    roots_[found->second].salt = salt;
    roots_[found->second].node.key = HashRoot(hash_seed_, salt);
  }
  ++roots_[found->second].num_users;
  return NodeId{~found->second};
}

void PrefixIndex::ReleaseRoot(NodeId root) {
  --roots_[~root.value].num_users;
  FreeRootIfUnused(~root.value);
}

SetId PrefixIndex::Find(NodeId parent, const Hash128& key, Tokens block) const {
  for (size_t i = key.lo & slot_mask_; slots_[i].set != 0; i = (i + 1) & slot_mask_) {
    const int32_t set = slots_[i].set;
    if (slots_[i].tag != key.hi || nodes_[set].key != key) continue;
    const bool is_same = nodes_[set].parent == parent && Holds(set, block);
    return is_same ? SetId(set) : SetId();
  }
  return SetId();
}

std::pair<SetId, int32_t> PrefixIndex::FindTail(NodeId parent, Tokens tokens) const {
  std::pair<SetId, int32_t> best{SetId(), 0};
  for (const int32_t child : NodeAt(parent).children) {
    if (child == 0) break;
    const int32_t* known = TokensOf(child);
    const int32_t limit = std::min(nodes_[child].num_tokens, static_cast<int32_t>(tokens.size()));
    const auto mismatch = std::mismatch(known, known + limit, tokens.begin());
    const auto shared = static_cast<int32_t>(mismatch.first - known);
    if (shared > best.second) best = {SetId(child), shared};
  }
  return best;
}

SetId PrefixIndex::InsertFull(SetId set, NodeId parent, const Hash128& key, Tokens block) {
  size_t i = key.lo & slot_mask_;
  for (; slots_[i].set != 0; i = (i + 1) & slot_mask_) {
    if (slots_[i].tag == key.hi && nodes_[slots_[i].set].key == key) {
      return Find(parent, key, block);
    }
  }
  slots_[i] = {key.hi, set.value};
  DropSuperseded(parent, block);
  Attach(set, parent, key, block);
  return set;
}

bool PrefixIndex::InsertTail(SetId set, NodeId parent, Tokens tokens) {
  for (const int32_t child : NodeAt(parent).children) {
    if (child == 0) break;
    if (nodes_[child].num_tokens >= static_cast<int32_t>(tokens.size()) && Holds(child, tokens)) {
      return false;
    }
  }
  DropSuperseded(parent, tokens);
  Attach(set, parent, Hash128{}, tokens);
  return true;
}

void PrefixIndex::Remove(SetId set) {
  Node& node = nodes_[set.value];
  TS_CHECK(node.num_tokens > 0, "only an indexed set is removed");
  TS_CHECK(node.num_children == 0, "a parent is never evicted before its children");
  if (node.num_tokens == block_tokens_) EraseSlot(node.key, set.value);
  node.num_tokens = 0;
  --num_nodes_;
  Unlink(node.parent, set.value);
  pool_.SetCached(set, false);
}

bool PrefixIndex::Holds(int32_t set, Tokens first) const {
  return std::memcmp(TokensOf(set), first.data(), first.size_bytes()) == 0;
}

void PrefixIndex::Attach(SetId set, NodeId parent, const Hash128& key, Tokens tokens) {
  Node& node = nodes_[set.value];
  TS_CHECK(node.num_tokens == 0 && pool_.refs(set) > 0, "a held, unknown set is indexed");
  node.key = key;
  node.parent = parent;
  node.num_tokens = static_cast<int32_t>(tokens.size());
  node.num_children = 0;
  node.children.fill(0);
  std::memcpy(TokensOf(set.value), tokens.data(), tokens.size_bytes());
  ++num_nodes_;
  pool_.SetCached(set, true);
  Remember(parent, set.value);
}

void PrefixIndex::Remember(NodeId parent, int32_t set) {
  Node& node = NodeAt(parent);
  ++node.num_children;
  const int32_t displaced = node.children.back();
  std::move_backward(node.children.begin(), node.children.end() - 1, node.children.end());
  node.children.front() = set;
  // A full child is still found by its key; a tail is not, so it goes.
  if (displaced != 0 && nodes_[displaced].num_tokens < block_tokens_) Remove(SetId(displaced));
}

// A tail whose tokens all begin `tokens` is of no more use, unless a copy still reads it.
void PrefixIndex::DropSuperseded(NodeId parent, Tokens tokens) {
  const auto children = NodeAt(parent).children;
  for (const int32_t child : children) {
    if (child == 0) break;
    const int32_t size = nodes_[child].num_tokens;
    if (size >= static_cast<int32_t>(tokens.size()) || pool_.refs(SetId(child)) > 0) continue;
    if (Holds(child, tokens.first(size))) Remove(SetId(child));
  }
}

void PrefixIndex::Unlink(NodeId parent, int32_t set) {
  Node& node = NodeAt(parent);
  --node.num_children;
  const auto found = std::find(node.children.begin(), node.children.end(), set);
  if (found != node.children.end()) {
    std::move(found + 1, node.children.end(), found);
    node.children.back() = 0;
  }
  if (parent.is_root()) FreeRootIfUnused(~parent.value);
}

// Removes without tombstones: later entries of the probe run move back into the hole.
void PrefixIndex::EraseSlot(const Hash128& key, int32_t set) {
  size_t hole = key.lo & slot_mask_;
  while (slots_[hole].set != set) hole = (hole + 1) & slot_mask_;
  for (size_t i = (hole + 1) & slot_mask_; slots_[i].set != 0; i = (i + 1) & slot_mask_) {
    const size_t home = nodes_[slots_[i].set].key.lo & slot_mask_;
    if (((i - home) & slot_mask_) < ((i - hole) & slot_mask_)) continue;
    slots_[hole] = slots_[i];
    hole = i;
  }
  slots_[hole] = Slot{};
}

void PrefixIndex::FreeRootIfUnused(int32_t root) {
  Root& record = roots_[root];
  if (record.num_users > 0 || record.node.num_children > 0) return;
  root_of_salt_.erase(record.salt);
  record.salt.clear();
  free_roots_.push_back(root);
}

void PrefixIndex::CheckInvariants() const {
  int32_t num_nodes = 0, num_full = 0;
  std::vector<int32_t> children(nodes_.size(), 0), root_children(roots_.size(), 0);
  for (int32_t set = 1; set < static_cast<int32_t>(nodes_.size()); ++set) {
    const Node& node = nodes_[set];
    const bool is_cached = pool_.is_cached(SetId(set));
    TS_CHECK(node.num_tokens > 0 ? is_cached : !is_cached, "exactly the indexed sets are cached");
    if (node.num_tokens == 0) continue;
    ++num_nodes;
    ++(node.parent.is_root() ? root_children[~node.parent.value] : children[node.parent.value]);
    TS_CHECK(node.parent.is_root() || Has(SetId(node.parent.value)), "a node's parent is indexed");
    if (!node.parent.is_root() && pool_.refs(SetId(set)) > 0) {
      TS_CHECK(pool_.refs(SetId(node.parent.value)) > 0, "the parent of a held node is held");
    }
    if (node.num_tokens < block_tokens_) {
      const auto& known = NodeAt(node.parent).children;
      TS_CHECK(std::find(known.begin(), known.end(), set) != known.end(), "a tail is remembered");
      continue;
    }
    ++num_full;
    const Tokens tokens(TokensOf(set), block_tokens_);
    TS_CHECK(Key(node.parent, tokens) == node.key, "a key is the hash of the chain");
    TS_CHECK(Find(node.parent, node.key, tokens) == SetId(set), "a full node is found by its key");
  }
  TS_CHECK(num_nodes == num_nodes_, "nodes are counted");
  for (size_t set = 1; set < nodes_.size(); ++set) {
    if (nodes_[set].num_tokens == 0) continue;
    TS_CHECK(nodes_[set].num_children == children[set], "children are counted");
    for (const int32_t child : nodes_[set].children) {
      TS_CHECK(child == 0 || nodes_[child].parent.value == static_cast<int32_t>(set),
               "remembered children name their parent");
    }
  }
  for (const auto& [salt, root] : root_of_salt_) {
    TS_CHECK(roots_[root].node.num_children == root_children[root], "root children are counted");
  }
  const auto is_taken = [](const Slot& slot) { return slot.set != 0; };
  TS_CHECK(std::count_if(slots_.begin(), slots_.end(), is_taken) == num_full,
           "the table holds exactly the full nodes");
  std::vector<bool> is_passed(nodes_.size(), false);
  for (SetId set = pool_.coldest(); set.value != 0; set = pool_.hotter(set)) {
    const NodeId parent = nodes_[set.value].parent;
    TS_CHECK(parent.is_root() || !is_passed[parent.value], "a child is colder than its parent");
    is_passed[set.value] = true;
  }
}

}  // namespace tokenspeed
