// What one running request holds of the cache, as one move-only handle:
//   blocks   its sets of full blocks, in sequence order from position 0
//   windows  per window group the live part only: blocks [first, end), end as in `blocks`
//   rows     its working rows of state, and the shared row that its next step reads
//
//   blocks   |0|1|2|3|4|5|6|7|8|          position:  computed      planned
//   windows              |5|6|7|8|                       v            v
//   rows     one at the position of every step that may still be read or published
//
// Lets go of the last block first, so that a child is always evicted before its parent.
// Thread: scheduler thread only.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "kv/block_pool.h"

namespace tokenspeed {

// One hold on each of its sets, all of one pool. They are kept as bare numbers: a long chain is
// held in one go, and takes four bytes a block.
class BlockTable {
 public:
  BlockTable() = default;
  BlockTable(BlockTable&& other) noexcept
      : pool_(other.pool_), sets_(std::exchange(other.sets_, {})) {}
  // What it held goes with `other`.
  BlockTable& operator=(BlockTable&& other) noexcept {
    std::swap(pool_, other.pool_);
    sets_.swap(other.sets_);
    return *this;
  }
  ~BlockTable() {
    while (!sets_.empty()) {
      pool_->LetGo(sets_.back());
      sets_.pop_back();
    }
  }

  // Fills an empty table with holds on `sets`.
  void Hold(BlockPool& pool, std::span<const SetId> sets) {
    pool_ = &pool;
    sets_.assign(sets.begin(), sets.end());
    pool.HoldAll(sets);
  }
  void Append(BlockRef ref) {
    sets_.push_back(ref.id());
    pool_ = ref.Yield();
  }
  void Replace(size_t index, BlockRef ref) {
    pool_->LetGo(std::exchange(sets_[index], ref.id()));
    ref.Yield();
  }
  // Grows by halves: exact growth would copy a long table at every block that a decode appends.
  void Reserve(size_t size) {
    if (size > sets_.capacity()) sets_.reserve(std::max(size, sets_.size() + sets_.size() / 2));
  }
  SetId set(size_t index) const { return sets_[index]; }
  SetId last() const { return sets_.empty() ? SetId() : sets_.back(); }
  size_t size() const { return sets_.size(); }
  std::span<const SetId> sets() const { return sets_; }

 private:
  BlockPool* pool_ = nullptr;  // of all that it holds; not owned, outlives this
  std::vector<SetId> sets_;
};

// Blocks [first, end) of one window group.
class WindowTable {
 public:
  WindowTable() = default;
  explicit WindowTable(size_t first) : first_(first) {}
  WindowTable(WindowTable&&) noexcept = default;
  WindowTable& operator=(WindowTable&& other) noexcept {
    refs_.swap(other.refs_);
    std::swap(first_, other.first_);
    std::swap(num_gone_, other.num_gone_);
    return *this;
  }
  ~WindowTable() {
    while (!refs_.empty()) refs_.pop_back();
  }

  void Append(WindowRef ref) { refs_.push_back(std::move(ref)); }
  void Replace(size_t index, WindowRef ref) { At(index) = std::move(ref); }
  // Lets go of the first block; `is_surplus`: nobody is expected to match there.
  void DropFirst(bool is_surplus) {
    WindowRef gone = std::move(refs_[num_gone_++]);
    ++first_;
    if (is_surplus) gone.ResetAsSurplus();
    if (num_gone_ > 32 && num_gone_ * 2 > refs_.size()) {
      refs_.erase(refs_.begin(), refs_.begin() + static_cast<std::ptrdiff_t>(num_gone_));
      num_gone_ = 0;
    }
  }
  bool Has(size_t index) const { return index >= first_ && index < end(); }
  WindowId window(size_t index) const { return refs_[index - first_ + num_gone_].id(); }
  WindowId last() const { return size() == 0 ? WindowId() : refs_.back().id(); }
  size_t first() const { return first_; }
  size_t end() const { return first_ + size(); }
  size_t size() const { return refs_.size() - num_gone_; }

 private:
  WindowRef& At(size_t index) { return refs_[index - first_ + num_gone_]; }

  std::vector<WindowRef> refs_;  // the first num_gone_ are empty
  size_t num_gone_ = 0;
  size_t first_ = 0;
};

// Rows of state of one request. A step that starts at position p reads the row at p and writes
// others, or the same in place where nothing else may read it; a fresh sequence reads none (zeros).
// A step with drafts may write a row for each position at which it could be cut.
class StateRows {
 public:
  static constexpr int32_t kNowhere = -1;

  // Working rows to be drawn, if more than a request without drafts needs.
  void Want(int32_t num_rows) { num_wanted_ = num_rows; }
  int32_t num_wanted() const { return num_wanted_; }

  void Add(RowRef row) { working_.push_back({std::move(row), kNowhere}); }
  // The first working row holds the state at `position`: it was loaded. REQUIRES: size() > 0.
  void Place(int32_t position) { working_[0].position = position; }
  // A shared snapshot at `position`, to be read by the step that starts there.
  void SetSource(RowRef row, int32_t position) { source_ = {std::move(row), position}; }

  // Returns the row that holds the state at `position`, RowId(0) for none.
  RowId At(int32_t position) const {
    if (source_.row && source_.position == position) return source_.row.id();
    const int index = Find(position);
    return index < 0 ? RowId() : working_[index].row.id();
  }

  // Chooses a row that a step from `start` writes with the state at `end`: the one whose state is
  // oldest; last the one it reads, and never one of steps after `computed` while there is another.
  // REQUIRES: size() > 0.
  RowId Write(int32_t start, int32_t computed, int32_t end) {
    const auto rank = [start, computed](const Row& row) {
      return std::pair(row.position == start || row.position > computed, row.position);
    };
    Row& chosen = *std::ranges::min_element(working_, {}, rank);
    chosen.position = end;
    return chosen.row.id();
  }

  // Of a step that ended at `end` at most, the last `num_rejected` tokens were not right: rows
  // there hold nothing, and those of the steps after it lie so much earlier.
  void Reject(int32_t end, int32_t num_rejected) {
    for (Row& row : working_) {
      if (row.position > end) {
        row.position -= num_rejected;
      } else if (row.position > end - num_rejected) {
        row.position = kNowhere;
      }
    }
  }

  // Index of the working row at `position`, -1 for none.
  int Find(int32_t position) const {
    for (size_t i = 0; i < working_.size(); ++i) {
      if (working_[i].position == position) return static_cast<int>(i);
    }
    return -1;
  }
  const RowRef& row(int index) const { return working_[index].row; }
  int32_t position(int index) const { return working_[index].position; }

  // A fresh row takes the place of working row `index`, which becomes the source: it was published.
  void Publish(int index, RowRef fresh) {
    source_ = {std::exchange(working_[index].row, std::move(fresh)),
               std::exchange(working_[index].position, kNowhere)};
  }
  // Every step that starts before `computed` is committed: a source there is not read any more.
  void Settle(int32_t computed) {
    if (source_.row && source_.position < computed) source_.row.Reset();
  }
  // Gives all rows back.
  void Clear() {
    working_.clear();
    source_.row.Reset();
  }

  size_t size() const { return working_.size(); }
  int32_t num_refs() const { return static_cast<int32_t>(size()) + (source_.row ? 1 : 0); }

 private:
  struct Row {
    RowRef row;
    int32_t position = kNowhere;
  };

  std::vector<Row> working_;
  Row source_;
  int32_t num_wanted_ = 0;
};

struct KvTable {
  BlockTable blocks;
  std::vector<WindowTable> windows;  // [window group in order]
  StateRows rows;

  size_t size() const { return blocks.size(); }
  int64_t num_refs() const {
    int64_t sum = static_cast<int64_t>(blocks.size()) + rows.num_refs();
    for (const WindowTable& window : windows) sum += static_cast<int64_t>(window.size());
    return sum;
  }
};

}  // namespace tokenspeed
