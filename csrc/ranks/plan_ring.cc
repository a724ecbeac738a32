#include "ranks/plan_ring.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>
#include <thread>

#ifdef __linux__
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace tokenspeed {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::microseconds;
using std::chrono::nanoseconds;

constexpr microseconds kLook{5};
constexpr size_t kLengthBytes = sizeof(uint64_t);

static_assert(std::atomic<uint64_t>::is_always_lock_free);
static_assert(std::atomic<uint32_t>::is_always_lock_free);

// Sleeps until the bell has rung after `heard`, or about so long.
void Sleep(std::atomic<uint32_t>& bell, uint32_t heard, nanoseconds longest) {
#ifdef __linux__
  const timespec timeout{static_cast<time_t>(longest.count() / 1'000'000'000),
                         static_cast<long>(longest.count() % 1'000'000'000)};
  // Not FUTEX_PRIVATE: the bell is shared by processes.
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&bell), FUTEX_WAIT, heard, &timeout, nullptr, 0);
#else
  if (bell.load() == heard) std::this_thread::sleep_for(std::min<nanoseconds>(longest, kLook * 10));
#endif
}

void Ring(std::atomic<uint32_t>& bell, const std::atomic<uint32_t>& sleepers) {
  bell.fetch_add(1);
#ifdef __linux__
  // Sequentially consistent: a sleeper counts itself before it compares the bell, so either it is
  // seen here or it sees the new bell.
  if (sleepers.load() != 0) {
    syscall(SYS_futex, reinterpret_cast<uint32_t*>(&bell), FUTEX_WAKE, INT32_MAX, nullptr, nullptr,
            0);
  }
#else
  static_cast<void>(sleepers);
#endif
}

// Waits until `is_due()`; returns whether it came to be before `deadline`.
template <class IsDue>
bool WaitFor(IsDue&& is_due, std::atomic<uint32_t>& bell, std::atomic<uint32_t>& sleepers,
             Clock::time_point deadline) {
  const auto looks_until = Clock::now() + kLook;
  while (!is_due()) {
    const auto now = Clock::now();
    if (now >= deadline) return false;
    if (now < looks_until) continue;
    sleepers.fetch_add(1);
    const uint32_t heard = bell.load();
    if (!is_due()) Sleep(bell, heard, deadline - now);
    sleepers.fetch_sub(1);
  }
  return true;
}

}  // namespace

size_t PlanRing::MemoryBytes(size_t capacity, int num_readers) {
  return sizeof(Head) + sizeof(Reader) * static_cast<size_t>(num_readers) + capacity;
}

PlanRing::PlanRing(std::span<std::byte> memory, size_t capacity, int num_readers)
    : capacity_(capacity), num_readers_(num_readers) {
  if (num_readers < 1 || capacity < 64 || memory.size() < MemoryBytes(capacity, num_readers) ||
      reinterpret_cast<uintptr_t>(memory.data()) % alignof(Head) != 0) {
    throw std::invalid_argument("a ring of " + std::to_string(capacity) + " bytes for " +
                                std::to_string(num_readers) + " readers does not fit into " +
                                std::to_string(memory.size()) + " bytes of aligned memory");
  }
  head_ = reinterpret_cast<Head*>(memory.data());
  readers_ = reinterpret_cast<Reader*>(memory.data() + sizeof(Head));
  data_ = memory.data() + sizeof(Head) + sizeof(Reader) * static_cast<size_t>(num_readers);
}

bool PlanRing::Write(std::span<const std::byte> message, microseconds timeout) {
  const auto deadline = Clock::now() + timeout;
  const uint64_t length = message.size();
  const auto prefix = std::as_bytes(std::span(&length, 1));
  const size_t total = kLengthBytes + message.size();
  while (begun_ < total) {
    if (!WaitFor([this] { return Room() > 0; }, head_->room_bell, head_->room_sleepers, deadline)) {
      return false;
    }
    const uint64_t at = head_->written.load(std::memory_order_relaxed);
    uint64_t room = Room(), put = 0;
    for (const auto& [part, first] :
         {std::pair(prefix, size_t{0}), std::pair(message, kLengthBytes)}) {
      if (begun_ + put < first || begun_ + put >= first + part.size()) continue;
      const auto rest = part.subspan(begun_ + put - first);
      const auto piece = rest.first(std::min<uint64_t>(rest.size(), room - put));
      Put(piece, at + put);
      put += piece.size();
    }
    begun_ += put;
    head_->written.store(at + put, std::memory_order_release);
    Ring(head_->data_bell, head_->data_sleepers);
  }
  begun_ = 0;
  return true;
}

bool PlanRing::Read(int reader, std::vector<std::byte>& message, microseconds timeout) {
  const auto deadline = Clock::now() + timeout;
  std::atomic<uint64_t>& read = readers_[reader].read;
  while (taken_ < kLengthBytes || taken_ < kLengthBytes + due_) {
    if (!WaitFor([&] { return Unread(reader) > 0; }, head_->data_bell, head_->data_sleepers,
                 deadline)) {
      return false;
    }
    const uint64_t at = read.load(std::memory_order_relaxed);
    const bool is_length = taken_ < kLengthBytes;
    const size_t first = is_length ? taken_ : taken_ - kLengthBytes;
    const auto whole = is_length ? std::as_writable_bytes(std::span(&due_, 1)) : std::span(message);
    const size_t taken = std::min<uint64_t>(whole.size() - first, Unread(reader));
    Take(whole.subspan(first, taken), at);
    taken_ += taken;
    if (is_length && taken_ == kLengthBytes) message.resize(due_);
    read.store(at + taken, std::memory_order_release);
    Ring(head_->room_bell, head_->room_sleepers);
  }
  taken_ = due_ = 0;
  return true;
}

uint64_t PlanRing::Unread(int reader) const {
  return head_->written.load(std::memory_order_acquire) -
         readers_[reader].read.load(std::memory_order_acquire);
}

uint64_t PlanRing::Room() const {
  uint64_t longest = 0;
  for (int reader = 0; reader < num_readers_; ++reader) {
    longest = std::max(longest, Unread(reader));
  }
  return capacity_ - longest;
}

void PlanRing::Put(std::span<const std::byte> bytes, uint64_t at) {
  const size_t first = at % capacity_;
  const size_t until_end = std::min(bytes.size(), capacity_ - first);
  if (until_end != 0) std::memcpy(data_ + first, bytes.data(), until_end);
  if (bytes.size() > until_end) {
    std::memcpy(data_, bytes.data() + until_end, bytes.size() - until_end);
  }
}

void PlanRing::Take(std::span<std::byte> bytes, uint64_t at) const {
  const size_t first = at % capacity_;
  const size_t until_end = std::min(bytes.size(), capacity_ - first);
  if (until_end != 0) std::memcpy(bytes.data(), data_ + first, until_end);
  if (bytes.size() > until_end) {
    std::memcpy(bytes.data() + until_end, data_, bytes.size() - until_end);
  }
}

}  // namespace tokenspeed
