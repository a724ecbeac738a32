// One writer's stream of messages to several readers, in memory that their processes share.
//
//   head     one cache line: bytes written so far, and two bells
//   readers  one cache line each: bytes read so far
//   data     `capacity` bytes, a ring; a message is its length (8 bytes) and itself
//
// A message may be longer than the ring: it then passes through in pieces. Whoever waits looks for
// some microseconds and then sleeps on a bell (a futex); an idle ring costs nothing.
// Owns no memory: what it is given outlives it. The writer makes it first, zeroed by the system.
// Thread: `Write` one thread of one process, `Read` of one reader likewise. O(bytes).
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace tokenspeed {

class PlanRing {
 public:
  // Returns the bytes of memory that a ring needs.
  static size_t MemoryBytes(size_t capacity, int num_readers);

  // REQUIRES: memory is aligned to 64 bytes and as long as MemoryBytes says.
  PlanRing(std::span<std::byte> memory, size_t capacity, int num_readers);

  // Writes one message for every reader; waits while the slowest has no room for it.
  // Returns: false when the time is over; the rest of the message follows with the next call, which
  // must be for the same message.
  bool Write(std::span<const std::byte> message, std::chrono::microseconds timeout);

  // Reads the next message into `message`.
  // Returns: false when the time is over before it is complete; a later call goes on.
  bool Read(int reader, std::vector<std::byte>& message, std::chrono::microseconds timeout);

  // Returns how many bytes a reader has not read yet.
  uint64_t Unread(int reader) const;

 private:
  struct alignas(64) Head {
    std::atomic<uint64_t> written;
    std::atomic<uint32_t> data_bell, data_sleepers, room_bell, room_sleepers;
  };
  struct alignas(64) Reader {
    std::atomic<uint64_t> read;
  };

  void Put(std::span<const std::byte> bytes, uint64_t at);
  void Take(std::span<std::byte> bytes, uint64_t at) const;
  uint64_t Room() const;

  Head* head_;       // not owned
  Reader* readers_;  // not owned
  std::byte* data_;  // not owned
  size_t capacity_;
  int num_readers_;
  size_t begun_ = 0;  // bytes of the unfinished message that are written
  size_t taken_ = 0;  // bytes of the unfinished message that are read, its length included
  uint64_t due_ = 0;  // its length
};

}  // namespace tokenspeed
