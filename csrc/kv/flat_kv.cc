#include "kv/flat_kv.h"

#include <numeric>

#include "base/check.h"

namespace tokenspeed {
namespace {

std::vector<int32_t> Packing(const FlatKvConfig& config) {
  std::vector<int32_t> packing;
  for (const KvGroup& group : config.groups) packing.push_back(group.packing);
  return packing;
}

std::vector<GroupId> GroupsOf(const FlatKvConfig& config, GroupKind kind) {
  std::vector<GroupId> groups;
  for (size_t group = 0; group < config.groups.size(); ++group) {
    if (config.groups[group].kind == kind) groups.emplace_back(static_cast<int32_t>(group));
  }
  return groups;
}

int64_t PhysicalFor(const FlatKvConfig& config, GroupKind kind, int64_t num_things) {
  int64_t num_physical = 0;
  for (const KvGroup& group : config.groups) {
    if (group.kind == kind) num_physical += (num_things + group.packing - 1) / group.packing;
  }
  return num_physical;
}

// Returns the most things of a kind that fit so many physical blocks.
int32_t MaxThings(const FlatKvConfig& config, GroupKind kind, int64_t num_physical) {
  int64_t low = 0, high = std::max<int64_t>(0, num_physical) * PhysicalPool::kMaxPacking;
  if (PhysicalFor(config, kind, 1) == 0) return 0;
  while (low < high) {
    const int64_t middle = (low + high + 1) / 2;
    if (PhysicalFor(config, kind, middle) <= num_physical) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return static_cast<int32_t>(low);
}

// Most blocks that an interval of so many tokens meets.
int64_t BlocksSpanned(int64_t num_tokens, int32_t block_tokens) {
  return (num_tokens - 1 + block_tokens - 1) / block_tokens + 1;
}

KvNeed NeedAloneOf(const FlatKvConfig& config) {
  KvNeed need;
  size_t w = 0;
  for (const KvGroup& group : config.groups) {
    // And the published row that a step still reads.
    if (group.kind == GroupKind::kState) need.rows = config.rows_per_request + 1;
    if (group.kind != GroupKind::kWindow) continue;
    need.windows[w++] =
        BlocksSpanned(int64_t{group.window} + config.step_tokens_ahead, config.block_tokens);
  }
  return need;
}

// Physical blocks that stay out of the full groups' reach.
int64_t ReservedPhysical(const FlatKvConfig& config) {
  const KvNeed alone = NeedAloneOf(config);
  const auto num_state_groups =
      std::ranges::count(config.groups, GroupKind::kState, &KvGroup::kind);
  return std::accumulate(alone.windows.begin(), alone.windows.end(), alone.rows * num_state_groups);
}

}  // namespace

int32_t MinPhysicalBlocks(const FlatKvConfig& config) {
  return static_cast<int32_t>(1 + ReservedPhysical(config) +
                              PhysicalFor(config, GroupKind::kFull, 1));
}

FlatKv::FlatKv(const FlatKvConfig& config)
    : config_(config),
      physical_(Packing(config), config.num_physical_blocks),
      sets_(physical_, GroupsOf(config, GroupKind::kFull),
            MaxThings(config, GroupKind::kFull, physical_.num_usable() - ReservedPhysical(config))),
      windows_([&] {
        std::vector<std::unique_ptr<BlockPool>> pools;
        for (const GroupId group : GroupsOf(config, GroupKind::kWindow)) {
          const int32_t max_items = physical_.num_usable() * physical_.packing(group);
          pools.push_back(
              std::make_unique<BlockPool>(physical_, std::vector<GroupId>{group}, max_items));
        }
        return pools;
      }()),
      rows_(physical_, GroupsOf(config, GroupKind::kState),
            MaxThings(config, GroupKind::kState, physical_.num_usable())),
      index_(
          sets_,
          [&] {
            std::vector<BlockPool*> pools;
            for (const auto& pool : windows_) pools.push_back(pool.get());
            return pools;
          }(),
          rows_, config.block_tokens, config.hash_seed),
      evicted_(sets_.max_items() * 2) {
  std::array<int32_t, 3> num_of_kind{};
  for (const KvGroup& group : config.groups) {
    place_.push_back(num_of_kind[static_cast<size_t>(group.kind)]++);
    if (group.kind == GroupKind::kWindow) window_tokens_.push_back(group.window);
  }
  max_snapshots_ = MaxThings(
      config, GroupKind::kState,
      static_cast<int64_t>(config.state_cache_share * static_cast<double>(physical_.num_usable())));
  max_retained_ = static_cast<int32_t>(config.retain_share * sets_.max_items());
  index_.SetEvents(events());
}

void FlatKv::SetNow(int64_t now_us) {
  now_us_ = std::max(now_us_, now_us);
  sets_.SetNow(now_us_);
  rows_.SetNow(now_us_);
  for (const auto& pool : windows_) pool->SetNow(now_us_);
}

KvNeed FlatKv::Need(const KvTable& table, size_t num_blocks) const {
  KvNeed need;
  need.sets = std::max<int64_t>(
      0, static_cast<int64_t>(num_blocks) - static_cast<int64_t>(table.blocks.size()));
  if (rows_.num_groups() > 0) {
    const int64_t wanted = std::max(config_.rows_per_request, table.rows.num_wanted());
    need.rows = std::max<int64_t>(0, wanted - static_cast<int64_t>(table.rows.size()));
  }
  for (size_t w = 0; w < windows_.size(); ++w) {
    const size_t end = w < table.windows.size() ? table.windows[w].end() : 0;
    need.windows[w] =
        std::max<int64_t>(0, static_cast<int64_t>(num_blocks) - static_cast<int64_t>(end));
  }
  return need;
}

KvNeed FlatKv::NeedToRun(const KvTable& table, size_t num_blocks) const {
  KvNeed need = Need(table, num_blocks);
  const KvNeed alone = NeedAlone();
  for (size_t w = 0; w < windows_.size(); ++w) {
    const auto held = w < table.windows.size() ? static_cast<int64_t>(table.windows[w].size()) : 0;
    need.windows[w] = std::min(need.windows[w], std::max<int64_t>(0, alone.windows[w] - held));
  }
  return need;
}

bool FlatKv::CanEverHoldRows(int64_t num_rows) const {
  FlatKvConfig config = config_;
  config.rows_per_request = static_cast<int32_t>(num_rows);
  return MinPhysicalBlocks(config) <= config_.num_physical_blocks;
}

KvNeed FlatKv::NeedAlone() const { return NeedAloneOf(config_); }

void FlatKv::NeedsByGroup(const KvNeed& need, std::span<int64_t> blocks) const {
  for (int32_t group = 0; group < num_groups(); ++group) {
    const GroupKind kind = config_.groups[group].kind;
    blocks[group] = kind == GroupKind::kFull    ? need.sets
                    : kind == GroupKind::kState ? need.rows
                                                : need.windows[place_[group]];
  }
}

bool FlatKv::FitsPhysical(const KvNeed& need) const {
  if (rows_.num_held() + need.rows > rows_.max_items()) return false;
  std::array<int64_t, kMaxGroups> blocks;
  NeedsByGroup(need, blocks);
  return physical_.CanHold(std::span(blocks).first(num_groups()));
}

size_t FlatKv::MaxBlocks(const KvTable& table, size_t limit, AccountId account) const {
  size_t low = std::min(table.size(), limit), high = limit;
  while (low < high) {
    const size_t middle = (low + high + 1) / 2;
    if (CanHold(Need(table, middle), account)) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

bool FlatKv::Grow(KvTable& table, size_t num_blocks, AccountId account) {
  KvNeed rest = Need(table, num_blocks);
  if (rest.sets == 0 && rest.rows == 0) {  // windows end where blocks end
    return true;
  }
  if (!CanHold(rest, account)) return false;
  table.windows.resize(windows_.size());
  while (rest.rows > 0) {
    MakeRoom(rows_, rest);
    table.rows.Add(rows_.Acquire<RowId>());
  }
  table.blocks.Reserve(num_blocks);
  for (size_t w = 0; w < windows_.size(); ++w) {
    while (rest.windows[w] > 0) {
      MakeRoom(*windows_[w], rest);
      table.windows[w].Append(windows_[w]->Acquire<WindowId>(table.windows[w].last()));
    }
  }
  // While as many physical blocks are free as all of them could need, nothing has to be made.
  const int64_t most = rest.sets * sets_.num_groups();
  const bool is_roomy = physical_.num_free() >= most && rest.sets <= sets_.num_free_items() &&
                        !accounts()[account].is_above_cap(rest.sets);
  int32_t ahead = 0;  // a set that is evicted soon
  for (; rest.sets > 0; is_roomy ? --rest.sets : rest.sets) {
    if (!is_roomy) {
      if (rest.sets > 1) LookAhead(ahead, account);
      MakeRoom(sets_, rest, account);
    }
    table.blocks.Append(sets_.Acquire<SetId>(table.blocks.last(), account));
  }
  return true;
}

FlatKv::Publication FlatKv::Publish(NodeId root, KvTable& table, size_t index, const Hash128& key,
                                    Tokens block) {
  const NodeId parent = ParentOf(root, table, index);
  const SetId mine = table.blocks.set(index);
  const SetId known = index_.InsertFull(mine, parent, key, block);
  if (known.value == 0) return Publication::kPrivate;
  const bool is_mine = known == mine;
  if (!is_mine) table.blocks.Replace(index, sets_.Hold(known));
  if (is_mine) {
    ++num_publications_;
    evicted_.Forget(key);
  }
  if (!windows_.empty()) PublishWindows(table, index, known, !is_mine);
  return is_mine ? Publication::kAdded : Publication::kReplaced;
}

// The window blocks of a table's block become those of its node, or known ones take their place.
void FlatKv::PublishWindows(KvTable& table, size_t index, SetId set, bool may_replace) {
  for (int32_t w = 0; w < num_window_groups(); ++w) {
    WindowTable& window = table.windows[w];
    if (!window.Has(index)) continue;
    const WindowId mine = window.window(index), theirs = index_.window(set, w);
    if (mine == theirs) continue;
    if (theirs.value == 0) {
      if (index_.set_of_window(w, mine).value == 0) index_.AttachWindow(set, w, mine);
    } else if (may_replace) {
      window.Replace(index, windows_[w]->Hold(theirs));
    }
  }
}

SetId FlatKv::PublishTail(NodeId root, KvTable& table, size_t index, Tokens tokens) {
  ++num_publications_;
  const SetId set =
      index_.InsertTail(table.blocks.set(index), ParentOf(root, table, index), tokens);
  // A node that has more tokens than ours needs a window block that has them too.
  if (index_.num_tokens(set) == static_cast<int32_t>(tokens.size())) {
    PublishWindows(table, index, set, false);
  }
  return set;
}

SnapshotId FlatKv::PublishState(KvTable& table, SetId set, int32_t position, SnapshotId previous,
                                bool is_branch, bool is_last) {
  if (rows_.num_groups() == 0 || position == 0) return {};
  const int32_t offset = (position - 1) % config_.block_tokens + 1;
  if (const RowId known = index_.SnapshotAt(set, offset); known.value != 0) {
    if (is_branch) index_.MarkBranch(known);
    rows_.Hold(known);  // and lets go again: it was used now
    return index_.snapshots().id(known);
  }
  const int place = table.rows.Find(position);
  const BlockRef guard = sets_.Hold(set);  // what makes room leaves it alone, and counts without it
  KvNeed rest{.rows = is_last ? 0 : 1};
  if (place < 0 || max_snapshots_ == 0 || !CanHold(rest)) return {};
  if (!LimitSnapshots()) return {};
  const RowId row = table.rows.row(place).id();
  if (!is_last) {
    MakeRoom(rows_, rest);
    table.rows.Publish(place, rows_.Acquire<RowId>());
  }
  ++num_publications_;
  index_.AttachSnapshot(row, set, offset, previous, is_branch);
  index_.DropSuperseded(row);
  return index_.snapshots().id(row);
}

// Says whether one more snapshot is within their share, letting the coldest go.
bool FlatKv::LimitSnapshots() {
  while (rows_.num_cached() >= max_snapshots_) {
    const int32_t coldest = rows_.Coldest();
    if (coldest == 0) return false;
    EvictItem(rows_, coldest);
  }
  return true;
}

void FlatKv::SetKeys(const KvTable& table, int64_t gap_us, int64_t retain_us, size_t num_blocks) {
  if (gap_us == 0 && retain_us == 0 && !has_keys_) return;
  has_keys_ = true;
  const int64_t retain_until_us = now_us_ + retain_us;
  bool is_kept = retain_us > 0;
  for (size_t i = 0; i < table.size(); ++i) {
    const SetId set = table.blocks.set(i);
    EvictionQueue& queue = sets_.queue();
    is_kept = is_kept && i < num_blocks &&
              (queue.is_retained(set.value, now_us_) || queue.num_retained() < max_retained_);
    queue.SetGap(set.value, gap_us);
    if (is_kept) queue.Retain(set.value, retain_until_us);
    if (!index_.Has(set)) continue;
    for (int32_t row = index_.first_snapshot(set); row != 0; row = index_.snapshots().next(row)) {
      rows_.queue().SetGap(row, gap_us);
      if (is_kept) rows_.queue().Retain(row, retain_until_us);
    }
    for (int32_t w = 0; w < num_window_groups(); ++w) {
      const WindowId window = index_.window(set, w);
      if (window.value == 0) continue;
      windows_[w]->queue().SetGap(window.value, gap_us);
      const bool is_seen = static_cast<int64_t>(i) >=
                           WindowStart(w, static_cast<int64_t>(num_blocks) * config_.block_tokens);
      if (is_kept && is_seen) windows_[w]->queue().Retain(window.value, retain_until_us);
    }
  }
}

BlockId FlatKv::block(const KvTable& table, GroupId group, size_t index) const {
  const int32_t k = place(group);
  if (kind(group) == GroupKind::kFull) return sets_.block(table.blocks.set(index), k);
  const WindowTable& window = table.windows[k];
  return window.Has(index) ? windows_[k]->block(window.window(index), 0) : BlockId();
}

int64_t FlatKv::num_releases() const {
  int64_t sum = sets_.num_releases() + rows_.num_releases();
  for (const auto& pool : windows_) sum += pool->num_releases();
  return sum;
}

int64_t FlatKv::num_refs() const {
  int64_t sum = sets_.num_refs() + rows_.num_refs();
  for (const auto& pool : windows_) sum += pool->num_refs();
  return sum;
}

double FlatKv::vacant_blocks() const {
  double sum = 0;
  for (int32_t group = 0; group < num_groups(); ++group) {
    sum += static_cast<double>(physical_.num_vacant(GroupId(group))) /
           physical_.packing(GroupId(group));
  }
  return sum;
}

void FlatKv::CheckInvariants() const {
  physical_.CheckInvariants();
  sets_.CheckInvariants();
  rows_.CheckInvariants();
  for (const auto& pool : windows_) pool->CheckInvariants();
  index_.CheckInvariants();
  TS_CHECK(rows_.num_cached() <= max_snapshots_, "snapshots keep to their share");
  int64_t num_taken = 0;
  for (int32_t id = 1; id < physical_.num_physical(); ++id) {
    num_taken += physical_.num_residents(PhysicalId(id));
  }
  for (int32_t group = 0; group < num_groups(); ++group) {
    num_taken -= physical_.num_taken(GroupId(group));
  }
  TS_CHECK(num_taken == 0, "every taken block is of a group");
}

}  // namespace tokenspeed
