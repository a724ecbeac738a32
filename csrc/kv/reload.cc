#include "kv/reload.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace tokenspeed {

Reload::Reload(FlatKv& kv, const Tiers& tiers, NodeId root, Tokens tokens, const ChainKeys& keys)
    : kv_(kv),
      tiers_(tiers),
      root_(root),
      tokens_(tokens),
      keys_(keys),
      block_tokens_(tiers.host().block_tokens()) {
  NodeId parent = root;
  for (size_t i = 0; (i + 1) * block_tokens_ <= tokens.size(); ++i) {
    const auto block = tokens.subspan(i * block_tokens_, block_tokens_);
    const SetId set = kv.index().Find(parent, keys[i], block);
    if (set.value == 0) break;
    chain_.push_back(set);
    parent = NodeId::Of(set);
  }
}

int32_t Reload::Find(int32_t matched) {
  size_t end = chain_.size();
  while ((end + 1) * block_tokens_ <= tokens_.size() &&
         InTiers(end, block_tokens_, GroupKind::kFull)) {
    ++end;
  }
  const auto found = [&](size_t index, int32_t offset) {
    position_ = static_cast<int32_t>(index) * block_tokens_ + offset;
    num_device_blocks_ = std::min(chain_.size(), static_cast<size_t>(position_ / block_tokens_));
    return position_;
  };
  const bool has_state = kv_.num_state_groups() > 0;
  const int32_t grain = kv_.share_tokens();
  const auto rest = static_cast<int64_t>(tokens_.size() - end * block_tokens_);
  for (size_t i = end + 1; i-- > 0;) {
    const int32_t first = static_cast<int32_t>(i) * block_tokens_;
    if (first + block_tokens_ <= matched) break;
    if (i < end && IsUsable(i, block_tokens_)) return found(i, block_tokens_);
    if (!has_state || i + kProbeBlocks < end) continue;
    const auto last = static_cast<int32_t>(
        std::min<int64_t>(i == end ? rest : block_tokens_ - 1, block_tokens_ - 1));
    for (int32_t offset = last / grain * grain; offset > 0 && first + offset > matched;
         offset -= grain) {
      if (IsUsable(i, offset)) return found(i, offset);
    }
  }
  return 0;
}

Content Reload::At(size_t index, int32_t num_tokens, GroupId group) const {
  const Hash128& parent = keys_.parent(index);
  const Tokens tokens = tokens_.subspan(index * block_tokens_, num_tokens);
  const Hash128 position =
      num_tokens == block_tokens_ ? keys_[index] : PositionKey(parent, tokens, block_tokens_);
  const std::string* salt = index == 0 ? &kv_.index().name(root_) : nullptr;
  return {GroupKey(position, group), parent, tokens, group, salt};
}

bool Reload::InTiers(size_t index, int32_t num_tokens, GroupKind kind) const {
  for (int32_t group = 0; group < kv_.num_groups(); ++group) {
    if (kv_.kind(GroupId(group)) != kind) continue;
    if (!tiers_.Has(Best(index, num_tokens, GroupId(group)))) return false;
  }
  return true;
}

bool Reload::IsUsable(size_t index, int32_t offset) const {
  // The state is rarest, so it is asked for first.
  if (!HasState(index, offset)) return false;
  if (offset < block_tokens_ && !InTiers(index, offset, GroupKind::kFull)) return false;
  return HasWindows(index, offset);
}

bool Reload::HasState(size_t index, int32_t offset) const {
  if (kv_.num_state_groups() == 0) return true;
  if (index < chain_.size() && kv_.index().SnapshotAt(chain_[index], offset).value != 0)
    return true;
  for (int32_t group = 0; group < kv_.num_groups(); ++group) {
    if (kv_.kind(GroupId(group)) != GroupKind::kState) continue;
    if (!tiers_.Has(At(index, offset, GroupId(group)))) return false;
  }
  return true;
}

bool Reload::HasWindows(size_t index, int32_t offset) const {
  const auto position = static_cast<int64_t>(index) * block_tokens_ + offset;
  for (int32_t group = 0; group < kv_.num_groups(); ++group) {
    if (kv_.kind(GroupId(group)) != GroupKind::kWindow) continue;
    const int32_t w = kv_.place(GroupId(group));
    for (size_t i = index + 1; i-- > 0 && kv_.IsInWindow(w, i, position);) {
      const int32_t needed = i == index ? offset : block_tokens_;
      const bool is_on_device = needed == block_tokens_ && i < chain_.size() &&
                                kv_.index().window(chain_[i], w).value != 0;
      if (!is_on_device && !tiers_.Has(Best(i, needed, GroupId(group)))) return false;
    }
  }
  return true;
}

Content Reload::Best(size_t index, int32_t offset, GroupId group) const {
  const Content part = At(index, offset, group);
  const bool has_whole = (index + 1) * block_tokens_ <= tokens_.size();
  if (offset == block_tokens_ || !has_whole || tiers_.Has(part)) return part;
  return At(index, block_tokens_, group);
}

// Tokens of block `index` before the position found.
int32_t Reload::Offset(size_t index) const {
  return std::min(block_tokens_, position_ - static_cast<int32_t>(index) * block_tokens_);
}

std::vector<Reload::Piece> Reload::Missing() const {
  std::vector<Piece> pieces;
  const auto num_blocks = static_cast<size_t>((position_ + block_tokens_ - 1) / block_tokens_);
  for (int32_t g = 0; g < kv_.num_groups(); ++g) {
    const GroupId group(g);
    switch (kv_.kind(group)) {
      case GroupKind::kFull:
        for (size_t i = num_device_blocks_; i < num_blocks; ++i) {
          pieces.push_back({Best(i, Offset(i), group), BlockId(), i});
        }
        break;
      case GroupKind::kWindow:
        for (size_t i = 0; i < num_blocks; ++i) {
          if (!kv_.IsInWindow(kv_.place(group), i, position_)) continue;
          const bool is_on_device =
              i < num_device_blocks_ && kv_.index().window(chain_[i], kv_.place(group)).value != 0;
          if (!is_on_device) pieces.push_back({Best(i, Offset(i), group), BlockId(), i});
        }
        break;
      case GroupKind::kState:
        if (!snapshot()) {
          const size_t i = num_blocks - 1;
          pieces.push_back({At(i, Offset(i), group), BlockId(), i});
        }
    }
  }
  return pieces;
}

// The snapshot on the device at the position found.
SnapshotId Reload::snapshot() const {
  const auto index = static_cast<size_t>((position_ - 1) / block_tokens_);
  if (kv_.num_state_groups() == 0 || index >= chain_.size()) return {};
  const RowId row = kv_.index().SnapshotAt(chain_[index], Offset(index));
  return row.value == 0 ? SnapshotId() : kv_.index().snapshots().id(row);
}

std::vector<Reload::Piece> Reload::Hold(KvTable& table) {
  std::vector<Piece> pieces = Missing();
  const auto device = std::span(chain_).first(num_device_blocks_);
  const RowId row = snapshot().row;
  if (!kv_.HoldForReload(device, position_, row, kv_.account(root_), table)) return {};
  for (Piece& piece : pieces) {
    const GroupId group = piece.content.group;
    piece.block = kv_.kind(group) == GroupKind::kState
                      ? kv_.row_block(table.rows.At(position_), kv_.place(group))
                      : kv_.block(table, group, piece.index);
  }
  return pieces;
}

// In this file because nobody else needs it.
bool FlatKv::HoldForReload(std::span<const SetId> device, int32_t position, RowId snapshot,
                           AccountId account, KvTable& table) {
  const size_t num_blocks = static_cast<size_t>(position + config_.block_tokens - 1) /
                            static_cast<size_t>(config_.block_tokens);
  // All that is on the device is held before anything makes room.
  table.blocks.Hold(sets_, device);
  if (snapshot.value != 0) table.rows.SetSource(rows_.Hold(snapshot), position);
  std::vector<std::vector<WindowRef>> held(windows_.size());
  KvNeed need = Need(table, num_blocks);
  for (size_t w = 0; w < windows_.size(); ++w) {
    const auto start = static_cast<size_t>(WindowStart(static_cast<int32_t>(w), position));
    need.windows[w] = static_cast<int64_t>(num_blocks - start);
    for (size_t i = start; i < device.size(); ++i) {
      const WindowId window = index_.window(device[i], static_cast<int32_t>(w));
      held[w].push_back(window.value == 0 ? WindowRef() : windows_[w]->Hold(window));
      need.windows[w] -= window.value != 0;
    }
  }
  if (!CanHold(need, account)) {
    held.clear();
    table = KvTable();
    return false;
  }
  for (size_t w = 0; w < windows_.size(); ++w) {
    const auto start = static_cast<size_t>(WindowStart(static_cast<int32_t>(w), position));
    WindowTable& window = table.windows.emplace_back(start);
    for (WindowRef& ref : held[w]) {
      if (!ref) {
        MakeRoom(*windows_[w], need);
        ref = windows_[w]->Acquire<WindowId>(window.last());
      }
      window.Append(std::move(ref));
    }
  }
  const bool has_room = Grow(table, num_blocks, account);
  TS_CHECK(has_room, "room that was promised is there");
  if (rows_.num_groups() > 0 && snapshot.value == 0) table.rows.Place(position);
  return true;
}

}  // namespace tokenspeed
