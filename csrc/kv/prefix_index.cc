#include "kv/prefix_index.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/check.h"
#include "kv/namespaces.h"

namespace tokenspeed {

PrefixIndex::PrefixIndex(BlockPool& sets, std::vector<BlockPool*> windows, BlockPool& rows,
                         int32_t block_tokens, uint64_t hash_seed)
    : pool_(sets),
      windows_(std::move(windows)),
      rows_(rows),
      block_tokens_(block_tokens),
      hash_seed_(hash_seed),
      stamps_(sets.max_items() + 1, 0),
      nodes_(sets.max_items() + 1),
      has_links_(!windows_.empty() || rows.max_items() > 0),
      links_(has_links_ ? nodes_.size() : 0),
      window_of_set_(nodes_.size() * windows_.size(), 0),
      snapshots_(rows),
      tokens_(nodes_.size() * block_tokens),
      slots_(std::bit_ceil(nodes_.size() * 2)),
      slot_mask_(slots_.size() - 1) {
  for (const BlockPool* pool : windows_) set_of_window_.emplace_back(pool->max_items() + 1, 0);
}

NodeId PrefixIndex::AcquireRoot(const std::string& salt, int64_t tenant) {
  std::string name = NamespaceOf(tenant, salt);
  auto [found, is_new] = root_of_name_.try_emplace(name, 0);
  if (is_new) {
    if (free_roots_.empty()) {
      free_roots_.push_back(static_cast<int32_t>(roots_.size()));
      roots_.emplace_back();
    }
    found->second = free_roots_.back();
    free_roots_.pop_back();
    Root& root = roots_[found->second];
    root = Root{};
    root.node.key = HashRoot(hash_seed_, name);
    root.name = std::move(name);
    root.tenant = tenant;
    root.account = pool_.accounts().Find(tenant);
  }
  ++roots_[found->second].num_users;
  return NodeId{~found->second};
}

void PrefixIndex::ReleaseRoot(NodeId root) {
  --roots_[~root.value].num_users;
  FreeRootIfUnused(~root.value);
}

void PrefixIndex::SetAccount(int64_t tenant, AccountId account) {
  for (const auto& [name, root] : root_of_name_) {
    if (roots_[root].tenant == tenant) roots_[root].account = account;
  }
}

std::vector<SetId> PrefixIndex::SetsOf(int64_t tenant) const {
  std::vector<int32_t> root_of(nodes_.size(), 0), chain;  // 0: not known yet
  std::vector<SetId> sets;
  for (int32_t set = 1; set < static_cast<int32_t>(nodes_.size()); ++set) {
    if (!Has(SetId(set))) continue;
    NodeId at{set};
    for (; !at.is_root() && root_of[at.value] == 0; at = nodes_[at.value].parent) {
      chain.push_back(at.value);
    }
    const int32_t root = at.is_root() ? at.value : root_of[at.value];
    for (const int32_t node : chain) root_of[node] = root;
    chain.clear();
    if (roots_[~root].tenant == tenant) sets.emplace_back(set);
  }
  return sets;
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

int32_t PrefixIndex::Shared(int32_t child, Tokens tokens) const {
  const int32_t* known = TokensOf(child);
  const int32_t limit = std::min(nodes_[child].num_tokens, static_cast<int32_t>(tokens.size()));
  const auto mismatch = std::mismatch(known, known + limit, tokens.begin());
  return static_cast<int32_t>(mismatch.first - known);
}

std::pair<SetId, int32_t> PrefixIndex::FindTail(NodeId parent, Tokens tokens) const {
  std::pair<SetId, int32_t> best{SetId(), 0};
  for (const int32_t child : children(parent)) {
    if (child == 0) break;
    const int32_t shared = Shared(child, tokens);
    if (shared > best.second) best = {SetId(child), shared};
  }
  return best;
}

SetId PrefixIndex::InsertFull(SetId set, NodeId parent, const Hash128& key, Tokens block) {
  size_t i = key.lo & slot_mask_;
  for (; slots_[i].set != 0; i = (i + 1) & slot_mask_) {
    if (slots_[i].tag != key.hi || nodes_[slots_[i].set].key != key) continue;
    const SetId known = Find(parent, key, block);
    if (Has(set)) {  // it was a tail until now
      if (known.value != 0) MoveParts(set.value, known.value);
      Remove(set);
    }
    return known;
  }
  slots_[i] = {key.hi, set.value, static_cast<uint32_t>(key.lo)};
  if (Has(set)) {
    Grow(set.value, block);
    nodes_[set.value].key = key;
  } else {
    Attach(set, parent, key, block);
  }
  if (events_ != nullptr) TellSet(set, true);
  if (children(parent)[1] != 0) DropSuperseded(set.value, parent, block);
  return set;
}

SetId PrefixIndex::InsertTail(SetId set, NodeId parent, Tokens tokens) {
  for (const int32_t child : children(parent)) {
    if (child == 0) break;
    if (nodes_[child].num_tokens < static_cast<int32_t>(tokens.size()) || !Holds(child, tokens)) {
      continue;
    }
    if (child != set.value && Has(set)) {
      MoveParts(set.value, child);
      Remove(set);
    }
    return SetId(child);
  }
  if (Has(set)) {
    Grow(set.value, tokens);
  } else {
    Attach(set, parent, Hash128{}, tokens);
  }
  DropSuperseded(set.value, parent, tokens);
  return set;
}

void PrefixIndex::Remove(SetId set) {
  Node& node = nodes_[set.value];
  TS_CHECK(node.num_tokens > 0, "only an indexed set is removed");
  TS_CHECK(node.num_children == 0, "a parent is never evicted before its children");
  TellSnapshot(set, SnapshotAt(set, block_tokens_).value == 0 ? 0 : block_tokens_, false);
  snapshots_.DetachAll(node.first_snapshot);
  for (size_t w = 0; w < windows_.size(); ++w) {
    const WindowId mine = window(set, static_cast<int32_t>(w));
    if (mine.value != 0) DetachWindow(static_cast<int32_t>(w), mine);
  }
  TellSet(set, false);
  if (node.num_tokens == block_tokens_) EraseSlot(node.key, set.value);
  node.num_tokens = 0;
  --num_nodes_;
  Unlink(node.parent, set.value);
  pool_.SetCached(set.value, false);
}

void PrefixIndex::Shorten(SetId set, int32_t num_tokens) {
  Node& node = nodes_[set.value];
  TS_CHECK(node.num_children == 0 && IsRemembered(set), "only a leaf becomes a tail");
  for (int32_t row = node.first_snapshot, next = 0; row != 0; row = next) {
    next = snapshots_.next(row);
    if (snapshots_.offset(RowId(row)) > num_tokens) DetachSnapshot(RowId(row));
  }
  if (node.num_tokens == block_tokens_ && num_tokens < block_tokens_) {
    for (size_t w = 0; w < windows_.size(); ++w) {
      if (window(set, static_cast<int32_t>(w)).value != 0) TellPool(*windows_[w], set, false);
    }
    TellSet(set, false);
    EraseSlot(node.key, set.value);
    node.key = Hash128{};
    ++stamps_[set.value];
  }
  node.num_tokens = num_tokens;
}

void PrefixIndex::AttachWindow(SetId set, int32_t w, WindowId window) {
  int32_t& mine = window_of_set_[static_cast<size_t>(set.value) * windows_.size() + w];
  TS_CHECK(Has(set) && mine == 0, "an indexed set without a window block gets one");
  TS_CHECK(set_of_window_[w][window.value] == 0, "a window block is of one set");
  mine = window.value;
  set_of_window_[w][window.value] = set.value;
  windows_[w]->SetCached(window.value, true);
  TellPool(*windows_[w], set, true);
}

void PrefixIndex::DetachWindow(int32_t w, WindowId window) {
  const int32_t set = std::exchange(set_of_window_[w][window.value], 0);
  TellPool(*windows_[w], SetId(set), false);
  window_of_set_[static_cast<size_t>(set) * windows_.size() + w] = 0;
  windows_[w]->SetCached(window.value, false);
}

void PrefixIndex::AttachSnapshot(RowId row, SetId set, int32_t offset, SnapshotId previous,
                                 bool is_branch) {
  TS_CHECK(Has(set) && offset <= nodes_[set.value].num_tokens, "a snapshot lies inside its set");
  snapshots_.Attach(row, set, nodes_[set.value].first_snapshot, offset, previous, is_branch);
  TellSnapshot(set, offset, true);
}

void PrefixIndex::DetachSnapshot(RowId row) {
  TellSnapshot(snapshots_.set(row), snapshots_.offset(row), false);
  snapshots_.Detach(row, nodes_[snapshots_.set(row).value].first_snapshot);
}

// Bounds the snapshots of a chain: what a new one makes superfluous goes.
void PrefixIndex::DropSuperseded(RowId newest) {
  const RowId gone = snapshots_.Superseded(newest);
  if (gone.value == 0 || num_children(snapshots_.set(gone)) > 1) return;
  snapshots_.Skip(newest);
  DetachSnapshot(gone);
}

// A full block of each group of a class came or went.
void PrefixIndex::TellPool(const BlockPool& pool, SetId set, bool is_stored) const {
  if (events_ == nullptr || !IsFull(set)) return;
  const Node& node = nodes_[set.value];
  const std::string* salt = node.parent.is_root() ? &name(node.parent) : nullptr;
  for (int32_t k = 0; k < pool.num_groups(); ++k) {
    if (is_stored) {
      events_->Stored(KvMedium::kDevice, pool.group(k), node.key, key(node.parent), salt,
                      tokens(set));
    } else {
      events_->Removed(KvMedium::kDevice, pool.group(k), node.key);
    }
  }
}

// A block that was filled up may have had a window block before; one that goes has lost it.
void PrefixIndex::TellSet(SetId set, bool is_stored) const {
  TellPool(pool_, set, is_stored);
  for (size_t w = 0; events_ != nullptr && is_stored && w < windows_.size(); ++w) {
    if (window(set, static_cast<int32_t>(w)).value != 0) TellPool(*windows_[w], set, true);
  }
}

void PrefixIndex::TellSnapshot(SetId set, int32_t offset, bool is_stored) const {
  if (offset == block_tokens_) TellPool(rows_, set, is_stored);
}

void PrefixIndex::Attach(SetId set, NodeId parent, const Hash128& key, Tokens tokens) {
  Node& node = nodes_[set.value];
  TS_CHECK(node.num_tokens == 0 && pool_.refs(set) > 0, "a held, unknown set is indexed");
  node = Node{};
  node.key = key;
  node.parent = parent;
  node.num_tokens = static_cast<int32_t>(tokens.size());
  std::memcpy(TokensOf(set.value), tokens.data(), tokens.size_bytes());
  ++stamps_[set.value];
  ++num_nodes_;
  pool_.SetCached(set.value, true);
  Remember(parent, set.value);
}

// A tail of a running request has been filled further: the same block, more tokens.
void PrefixIndex::Grow(int32_t set, Tokens tokens) {
  Node& node = nodes_[set];
  TS_CHECK(node.num_tokens < block_tokens_ && Holds(set, tokens.first(node.num_tokens)),
           "a tail grows at its end");
  std::memcpy(TokensOf(set), tokens.data(), tokens.size_bytes());
  node.num_tokens = static_cast<int32_t>(tokens.size());
}

void PrefixIndex::Remember(NodeId parent, int32_t set) {
  Node& node = NodeAt(parent);
  if (node.num_children++ == 0 && !parent.is_root()) pool_.queue().SetLeaf(parent.value, false);
  if (has_links_ && !parent.is_root()) LinkChild(parent.value, set);
  if (node.children.front() == 0) {  // mostly: its only child
    node.children.front() = set;
    return;
  }
  const int32_t displaced = node.children.back();
  std::move_backward(node.children.begin(), node.children.end() - 1, node.children.end());
  node.children.front() = set;
  // A full child is still found by its key; a tail is not, so it goes.
  if (displaced != 0 && nodes_[displaced].num_tokens < block_tokens_) Remove(SetId(displaced));
}

void PrefixIndex::MoveParts(int32_t from, int32_t to) {
  snapshots_.MoveAll(nodes_[from].first_snapshot, SetId(to), nodes_[to].first_snapshot,
                     nodes_[to].num_tokens);
}

// A tail whose tokens all begin `tokens`, which `by` has, is of no more use. One that somebody
// holds, to copy from or to write on, lives on unknown.
void PrefixIndex::DropSuperseded(int32_t by, NodeId parent, Tokens tokens) {
  const auto known = children(parent);
  for (const int32_t child : known) {
    if (child == 0) break;
    const int32_t size = nodes_[child].num_tokens;
    if (child == by || size >= static_cast<int32_t>(tokens.size())) continue;
    if (!Holds(child, tokens.first(size))) continue;
    MoveParts(child, by);
    Remove(SetId(child));
  }
}

void PrefixIndex::Unlink(NodeId parent, int32_t set) {
  Node& node = NodeAt(parent);
  if (--node.num_children == 0 && !parent.is_root()) pool_.queue().SetLeaf(parent.value, true);
  if (has_links_ && !parent.is_root()) UnlinkChild(parent.value, set);
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
    const size_t home = slots_[i].home & slot_mask_;
    if (((i - home) & slot_mask_) < ((i - hole) & slot_mask_)) continue;
    slots_[hole] = slots_[i];
    hole = i;
  }
  slots_[hole] = Slot{};
}

void PrefixIndex::FreeRootIfUnused(int32_t root) {
  Root& record = roots_[root];
  if (record.num_users > 0 || record.node.num_children > 0) return;
  root_of_name_.erase(record.name);
  record = Root{};
  free_roots_.push_back(root);
}

void PrefixIndex::CheckInvariants() const {
  int32_t num_nodes = 0, num_full = 0;
  std::vector<int32_t> children(nodes_.size(), 0), root_children(roots_.size(), 0);
  for (int32_t set = 1; set < static_cast<int32_t>(nodes_.size()); ++set) {
    const Node& node = nodes_[set];
    const bool is_cached = pool_.is_cached(set);
    TS_CHECK(node.num_tokens > 0 ? is_cached : !is_cached, "exactly the indexed sets are cached");
    if (node.num_tokens == 0) continue;
    ++num_nodes;
    TS_CHECK(pool_.account(set) ==
                 (node.parent.is_root() ? account(node.parent) : pool_.account(node.parent.value)),
             "a set is of the account of its namespace");
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
  for (const auto& [name, root] : root_of_name_) {
    TS_CHECK(roots_[root].node.num_children == root_children[root], "root children are counted");
  }
  const auto is_taken = [](const Slot& slot) { return slot.set != 0; };
  TS_CHECK(std::count_if(slots_.begin(), slots_.end(), is_taken) == num_full,
           "the table holds exactly the full nodes");
  CheckParts();
}

void PrefixIndex::LinkChild(int32_t parent, int32_t set) {
  int32_t& first = links_[parent].first_child;
  links_[set].next = first;
  links_[set].previous = 0;
  if (first != 0) links_[first].previous = set;
  first = set;
}

void PrefixIndex::UnlinkChild(int32_t parent, int32_t set) {
  const auto [next, previous] = std::pair(links_[set].next, links_[set].previous);
  (previous != 0 ? links_[previous].next : links_[parent].first_child) = next;
  if (next != 0) links_[next].previous = previous;
  links_[set].next = links_[set].previous = 0;
}

int32_t PrefixIndex::SubtreeSize(SetId set, int32_t limit) const {
  int32_t count = 1, at = set.value;
  while (count < limit) {
    if (links_[at].first_child != 0) {
      at = links_[at].first_child;
    } else {
      while (at != set.value && links_[at].next == 0) at = nodes_[at].parent.value;
      if (at == set.value) break;
      at = links_[at].next;
    }
    ++count;
  }
  return count;
}

SetId PrefixIndex::DeepestFirst(SetId set) const {
  while (links_[set.value].first_child != 0) set = SetId(links_[set.value].first_child);
  return set;
}

void PrefixIndex::CheckParts() const {
  for (int32_t set = 1; has_links_ && set < static_cast<int32_t>(nodes_.size()); ++set) {
    int32_t num_children = 0;
    for (int32_t child = links_[set].first_child; child != 0; child = links_[child].next) {
      TS_CHECK(nodes_[child].parent.value == set, "a linked child names its parent");
      TS_CHECK(++num_children <= nodes_[set].num_children, "children end");
    }
    TS_CHECK(nodes_[set].num_tokens == 0 || num_children == nodes_[set].num_children,
             "all children are linked");
  }
  int32_t num_snapshots = 0, num_windows = 0;
  for (int32_t set = 1; set < static_cast<int32_t>(nodes_.size()); ++set) {
    const Node& node = nodes_[set];
    if (node.num_tokens > 0 && !node.parent.is_root() && pool_.refs(SetId(set)) == 0) {
      const EvictionQueue& queue = pool_.queue();
      TS_CHECK(pool_.refs(SetId(node.parent.value)) > 0 ||
                   queue.last_use_us(set) <= queue.last_use_us(node.parent.value),
               "a child is not used later than its parent");
    }
    for (int32_t row = node.num_tokens > 0 ? node.first_snapshot : 0; row != 0;
         row = snapshots_.next(row), ++num_snapshots) {
      TS_CHECK(snapshots_.set(RowId(row)) == SetId(set), "a snapshot names its set");
      TS_CHECK(snapshots_.offset(RowId(row)) <= node.num_tokens, "a snapshot lies in its set");
    }
    for (size_t w = 0; w < windows_.size(); ++w) {
      const WindowId mine = window(SetId(set), static_cast<int32_t>(w));
      if (mine.value == 0) continue;
      ++num_windows;
      TS_CHECK(node.num_tokens > 0 && set_of_window_[w][mine.value] == set,
               "a window block names its set");
    }
  }
  TS_CHECK(num_snapshots == snapshots_.size() && num_snapshots == snapshots_.num_cached(),
           "every cached row is a snapshot");
  int32_t num_cached = 0;
  for (const BlockPool* pool : windows_) num_cached += pool->num_cached();
  TS_CHECK(num_windows == num_cached, "every cached window block is of a set");
}

}  // namespace tokenspeed
