// FlatKv::Match: the longest joint position.
#include <limits>

#include "kv/flat_kv.h"

namespace tokenspeed {

// A position at which a request could start, and what it would use.
struct FlatKv::Candidate {
  int64_t position = 0;
  size_t num_blocks = 0;  // whole ones
  SetId tail;             // when the position is inside a block: where its tokens are
  RowId snapshot;
};

// Walks down the chain of known blocks and keeps the best position met. One pass: per window group
// it knows where the run of window blocks that ends here began.
class FlatKv::Walk {
 public:
  Walk(const FlatKv& kv, Tokens tokens)
      : kv_(kv), tokens_(tokens), starts_(kv.windows_.size(), 0) {}

  void PassBlock(size_t index, NodeId parent, SetId set) {
    if (is_plain()) return;
    if (kv_.rows_.num_groups() > 0 && kv_.index_.children(parent)[1] != 0) {
      PassChildren(index, parent, set);
    }
    PassWindows(index, set);
    Consider(index, set, kv_.config_.block_tokens, kv_.config_.block_tokens);
  }

  // The block where the known tokens end.
  void PassEnd(size_t index, NodeId parent) {
    if (is_plain()) best_ = {kv_.Position(index), index, SetId(), RowId()};
    longest_shared_ = PassChildren(index, parent, SetId());
    end_ = index;
  }

  const Candidate& best() const { return best_; }
  int64_t chain_tokens() const { return kv_.Position(end_) + longest_shared_; }
  // Furthest position by full groups alone, and by full and state groups.
  int64_t full_tokens() const { return kv_.Position(end_) + Floor(longest_shared_); }
  int64_t stated_tokens() const { return stated_; }

 private:
  bool is_plain() const { return kv_.windows_.empty() && kv_.rows_.num_groups() == 0; }
  int32_t Floor(int32_t offset) const {
    return offset / kv_.config_.share_tokens * kv_.config_.share_tokens;
  }

  // A position inside a block by each child that is remembered there, `but` for one: a snapshot may
  // lie on a block that parts from this one behind it. Returns: the most tokens that one shares.
  int32_t PassChildren(size_t index, NodeId parent, SetId but) {
    const Tokens rest = tokens_.subspan(index * kv_.config_.block_tokens);
    const auto starts = starts_;
    int32_t longest = 0;
    for (const int32_t child : kv_.index_.children(parent)) {
      if (child == 0) break;
      if (child == but.value) continue;
      const int32_t shared = std::min(kv_.index_.Shared(child, rest), kv_.config_.block_tokens - 1);
      longest = std::max(longest, shared);
      PassWindows(index, SetId(child));
      Consider(index, SetId(child), shared, shared);
      starts_ = starts;
    }
    return longest;
  }

  void PassWindows(size_t index, SetId set) {
    for (size_t w = 0; w < starts_.size(); ++w) {
      if (kv_.index_.window(set, static_cast<int32_t>(w)).value == 0) starts_[w] = index + 1;
    }
  }

  void Consider(size_t index, SetId set, int32_t limit, int32_t shared) {
    Candidate candidate;
    int32_t offset = shared == kv_.config_.block_tokens ? shared : Floor(shared);
    if (kv_.rows_.num_groups() > 0) {
      candidate.snapshot = kv_.index_.BestSnapshot(set, limit, kv_.config_.share_tokens);
      if (candidate.snapshot.value == 0) return;
      offset = kv_.index_.snapshots().offset(candidate.snapshot);
    }
    if (offset == 0) return;
    candidate.position = kv_.Position(index) + offset;
    stated_ = std::max(stated_, candidate.position);
    if (candidate.position <= best_.position) return;
    for (size_t w = 0; w < starts_.size(); ++w) {
      const auto start = kv_.WindowStart(static_cast<int32_t>(w), candidate.position);
      if (static_cast<size_t>(start) < starts_[w]) return;
    }
    const bool is_whole = offset == kv_.config_.block_tokens;
    candidate.num_blocks = is_whole ? index + 1 : index;
    if (!is_whole) candidate.tail = set;
    best_ = candidate;
  }

  const FlatKv& kv_;
  Tokens tokens_;
  std::vector<size_t> starts_;  // [window group]
  Candidate best_;
  size_t end_ = 0;
  int32_t longest_shared_ = 0;
  int64_t stated_ = 0;
};

std::vector<KnownSet> FlatKv::Note(const KvTable& table, size_t num_blocks) const {
  std::vector<KnownSet> known;
  known.reserve(num_blocks);
  for (const SetId set : table.blocks.sets().first(num_blocks)) known.push_back(index_.Note(set));
  return known;
}

void FlatKv::Recognise(NodeId root, Tokens tokens, ChainKeys& keys,
                       std::vector<KnownSet>& known) const {
  const size_t block_tokens = config_.block_tokens;
  NodeId parent = known.empty() ? root : NodeId::Of(known.back().set);
  const bool is_known =
      known.size() == keys.size() && (known.empty() || index_.IsKnown(known.back()));
  for (size_t i = keys.size(); is_known && (i + 1) * block_tokens <= tokens.size(); ++i) {
    const Tokens block = tokens.subspan(i * block_tokens, block_tokens);
    SetId set = index_.FindNewest(parent, block);
    if (set.value != 0) {
      keys.Append(index_.key(NodeId::Of(set)));
    } else {
      keys.Extend(tokens.first((i + 1) * block_tokens));
      set = index_.Find(parent, keys[i], block);
      if (set.value == 0) break;
    }
    known.push_back(index_.Note(set));
    parent = NodeId::Of(set);
  }
  keys.Extend(tokens);
}

PrefixMatch FlatKv::Match(NodeId root, Tokens tokens, const ChainKeys& keys,
                          std::span<const KnownSet> known) {
  constexpr size_t kSlotsAhead = 16, kNodesAhead = 8;
  const size_t block_tokens = config_.block_tokens;
  const size_t limit = tokens.size() / block_tokens;
  Walk walk(*this, tokens);
  NodeId parent = root;
  chain_.clear();
  const auto is_there = [this](const KnownSet& set) { return index_.IsKnown(set); };
  known = known.first(std::min(limit, known.size()));
  // Mostly all of them are there.
  const auto end = known.empty() || is_there(known.back())
                       ? known.end()
                       : std::ranges::partition_point(known, is_there);
  const auto num_known = static_cast<size_t>(end - known.begin());
  for (size_t i = 0; i < num_known; ++i) {
    chain_.push_back(known[i].set);
    walk.PassBlock(i, parent, known[i].set);
    parent = NodeId::Of(known[i].set);
  }
  for (size_t i = num_known; i < limit; ++i) {
    if (i + kSlotsAhead < limit) index_.PrefetchSlot(keys[i + kSlotsAhead]);
    if (i + kNodesAhead < limit) index_.PrefetchNode(keys[i + kNodesAhead]);
    const SetId set = index_.Find(parent, keys[i], tokens.subspan(i * block_tokens, block_tokens));
    if (set.value == 0) break;
    chain_.push_back(set);
    walk.PassBlock(i, parent, set);
    parent = NodeId::Of(set);
  }
  walk.PassEnd(chain_.size(), parent);

  PrefixMatch match;
  const Candidate& best = walk.best();
  match.num_tokens = static_cast<int32_t>(best.position);
  match.chain_tokens = static_cast<int32_t>(walk.chain_tokens());
  if (best.position == static_cast<int64_t>(tokens.size())) {
    match.limit = MatchLimit::kComplete;
  } else if (best.position < walk.stated_tokens()) {
    match.limit = MatchLimit::kWindow;
  } else if (best.position < walk.full_tokens()) {
    match.limit = MatchLimit::kSnapshot;
  } else if (best.position < walk.chain_tokens()) {
    match.limit = MatchLimit::kGrain;
  } else {
    const size_t next = chain_.size();
    const bool was_evicted = next < keys.size() && evicted_.Contains(keys[next]);
    match.limit = was_evicted ? MatchLimit::kEvicted : MatchLimit::kUnknown;
  }
  HoldMatch(best, match);
  return match;
}

void FlatKv::HoldMatch(const Candidate& best, PrefixMatch& match) {
  KvTable& table = match.table;
  table.blocks.Reserve(best.num_blocks + 1);
  table.blocks.Hold(sets_, std::span(chain_).first(best.num_blocks));
  for (int32_t w = 0; w < num_window_groups(); ++w) {
    const auto start = static_cast<size_t>(WindowStart(w, best.position));
    WindowTable& window = table.windows.emplace_back(start);
    for (size_t i = start; i < best.num_blocks; ++i) {
      window.Append(windows_[w]->Hold(index_.window(chain_[i], w)));
    }
  }
  if (best.snapshot.value != 0) {
    match.snapshot = index_.snapshots().id(best.snapshot);
    table.rows.SetSource(rows_.Hold(best.snapshot), match.num_tokens);
  }
  if (best.tail.value == 0) return;
  match.tail = sets_.Hold(best.tail);
  match.tail_tokens = match.num_tokens % config_.block_tokens;
  for (int32_t w = 0; w < num_window_groups(); ++w) {
    match.window_tails.push_back(windows_[w]->Hold(index_.window(best.tail, w)));
  }
}

}  // namespace tokenspeed
