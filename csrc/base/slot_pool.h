// Persistent rows of the executor's tables. A running request holds one SlotRef; the lowest free
// slot is handed out first, so tables stay dense and plans replay bit for bit.
// Owns the free map. Every SlotRef points back here, so the pool outlives all refs.
// Thread: scheduler thread only.
#pragma once

#include <bit>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace tokenspeed {

class SlotPool;

// Move-only ownership of one slot; the destructor gives it back.
class SlotRef {
 public:
  SlotRef() = default;
  SlotRef(SlotRef&& other) noexcept
      : pool_(std::exchange(other.pool_, nullptr)), slot_(std::exchange(other.slot_, -1)) {}
  SlotRef& operator=(SlotRef&& other) noexcept {
    std::swap(pool_, other.pool_);
    std::swap(slot_, other.slot_);
    return *this;
  }
  inline ~SlotRef();

  int32_t value() const { return slot_; }

 private:
  friend class SlotPool;
  SlotRef(SlotPool* pool, int32_t slot) : pool_(pool), slot_(slot) {}

  SlotPool* pool_ = nullptr;  // not owned; outlives this
  int32_t slot_ = -1;
};

class SlotPool {
 public:
  explicit SlotPool(int32_t num_slots)
      : free_words_((num_slots + 63) / 64, 0), num_slots_(num_slots), num_free_(num_slots) {
    for (int32_t slot = 0; slot < num_slots; ++slot) Mark(slot);
  }
  SlotPool(const SlotPool&) = delete;
  SlotPool& operator=(const SlotPool&) = delete;

  // Returns: the lowest free slot, nullopt when all are taken.
  std::optional<SlotRef> Acquire() {
    for (size_t word = 0; word < free_words_.size(); ++word) {
      if (free_words_[word] == 0) continue;
      const int bit = std::countr_zero(free_words_[word]);
      free_words_[word] &= free_words_[word] - 1;
      --num_free_;
      return SlotRef(this, static_cast<int32_t>(word * 64) + bit);
    }
    return std::nullopt;
  }

  int32_t num_slots() const { return num_slots_; }
  int32_t num_free() const { return num_free_; }

 private:
  friend class SlotRef;
  void Mark(int32_t slot) { free_words_[slot / 64] |= uint64_t{1} << (slot % 64); }
  void Release(int32_t slot) {
    Mark(slot);
    ++num_free_;
  }

  std::vector<uint64_t> free_words_;  // bit set: free
  int32_t num_slots_;
  int32_t num_free_;
};

inline SlotRef::~SlotRef() {
  if (pool_ != nullptr) pool_->Release(slot_);
}

}  // namespace tokenspeed
