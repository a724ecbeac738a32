#include "kv/tier_writer.h"

namespace tokenspeed {

TierWriter::TierWriter(const FlatKv& kv, Tiers& tiers, WritePolicy policy, int32_t min_reuse)
    : kv_(kv),
      tiers_(tiers),
      policy_(policy),
      min_reuse_(min_reuse),
      reuses_(kv.sets().max_items() + 1, 0) {
  for (int32_t group = 0; group < kv.num_groups(); ++group) {
    const GroupKind kind = kv.kind(GroupId(group));
    (kind == GroupKind::kFull     ? full_
     : kind == GroupKind::kWindow ? window_
                                  : state_)
        .push_back(GroupId(group));
  }
}

void TierWriter::SetPublished(SetId set, bool is_new) {
  if (is_new) reuses_[set.value] = 0;
  if (policy_ == WritePolicy::kOnCommit) SaveSet(set);
}

void TierWriter::SnapshotPublished(RowId row) {
  if (policy_ == WritePolicy::kOnCommit) SaveSnapshot(row);
}

void TierWriter::SetReused(SetId set) {
  if (policy_ != WritePolicy::kSelective || ++reuses_[set.value] != min_reuse_) return;
  SaveSet(set);
  const PrefixIndex& index = kv_.index();
  for (int32_t row = index.first_snapshot(set); row != 0; row = index.snapshots().next(row)) {
    SaveSnapshot(RowId(row));
  }
}

void TierWriter::SaveSet(SetId set, BatchId batch) {
  const PrefixIndex& index = kv_.index();
  if (!index.IsFull(set)) return;
  for (const GroupId group : full_) {
    Save(set, index.num_tokens(set), group, kv_.set_block(set, group), batch);
  }
  for (int32_t w = 0; w < kv_.num_window_groups(); ++w) {
    SaveWindow(set, w, index.window(set, w), batch);
  }
}

void TierWriter::SaveWindow(SetId set, int32_t w, WindowId window, BatchId batch) {
  if (window.value == 0) return;
  Save(set, kv_.index().num_tokens(set), window_[w], kv_.window_block(w, window), batch);
}

void TierWriter::SaveSnapshot(RowId row, BatchId batch) {
  const PrefixIndex& index = kv_.index();
  const SetId set = index.snapshots().set(row);
  const int32_t offset = index.snapshots().offset(row);
  for (size_t k = 0; k < state_.size(); ++k) {
    Save(set, offset, state_[k], kv_.row_block(row, static_cast<int32_t>(k)), batch);
  }
  if (offset == static_cast<int32_t>(tiers_.host().block_tokens())) return;
  for (const GroupId group : full_) Save(set, offset, group, kv_.set_block(set, group), batch);
  for (int32_t w = 0; w < kv_.num_window_groups(); ++w) {
    const WindowId window = index.window(set, w);
    if (window.value == 0) continue;
    Save(set, offset, window_[w], kv_.window_block(w, window), batch);
  }
}

void TierWriter::Save(SetId set, int32_t num_tokens, GroupId group, BlockId block, BatchId batch) {
  const PrefixIndex& index = kv_.index();
  const Hash128& parent = index.key(index.parent(set));
  const auto tokens = index.tokens(set).first(num_tokens);
  const int32_t block_tokens = tiers_.host().block_tokens();
  const Hash128 position = num_tokens == block_tokens ? index.key(NodeId::Of(set))
                                                      : PositionKey(parent, tokens, block_tokens);
  const NodeId before = index.parent(set);
  const std::string* salt = before.is_root() ? &index.name(before) : nullptr;
  tiers_.Write({GroupKey(position, group), parent, tokens, group, salt}, block, batch);
}

void TierWriter::SetGoes(SetId set) {
  if (!follows_evictions()) return;
  SaveSet(set);
  const PrefixIndex& index = kv_.index();
  for (int32_t row = index.first_snapshot(set); row != 0; row = index.snapshots().next(row)) {
    SaveSnapshot(RowId(row));
  }
}

void TierWriter::WindowGoes(int32_t w, WindowId window) {
  if (!follows_evictions()) return;
  if (kv_.windows(w).queue().is_surplus(window.value)) return;
  const SetId set = kv_.index().set_of_window(w, window);
  if (kv_.index().IsFull(set)) SaveWindow(set, w, window, BatchId());
}

void TierWriter::SnapshotGoes(RowId row) {
  if (follows_evictions()) SaveSnapshot(row);
}

}  // namespace tokenspeed
