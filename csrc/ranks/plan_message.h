// One step's plan as one flat message, for the other ranks of a replica, and back.
//
//   header  int64[4]: size in bytes, sequence, digest, step id
//           int32[12]: decode rows, rows, tokens, admitted, block updates, copies, transfers,
//           store moves, tokens of a store record, state groups, written rows, extra values
//   arrays  in the order of StepPlan, 8-byte items first; then `extra`, integers of the caller's
//
// The digest is a chain over everything sent so far: two ends that agree on it have seen the same
// messages in the same order. Both ends run on machines of one byte order.
// Thread: any; an encoder or decoder belongs to one thread. Cost: O(bytes), a copy and a hash.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "scheduler/step.h"

namespace tokenspeed {

// What both ends have seen: number of messages, and a hash over all of them.
struct PlanChain {
  int64_t sequence = 0;
  uint64_t digest = 0x746f6b656e737064ULL;

  // Returns the chain after a message whose bytes behind the header's digest are these.
  PlanChain After(int64_t step_id, std::span<const std::byte> body) const;
};

// Writes plans one after another. Owns the buffer that `Encode` returns a view of.
class PlanEncoder {
 public:
  // Returns the message; valid until the next call.
  std::span<const std::byte> Encode(const StepPlan& plan, std::span<const int32_t> extra);
  const PlanChain& chain() const { return chain_; }

 private:
  PlanChain chain_;
  std::vector<std::byte> message_;
};

// Reads them in the same order.
class PlanDecoder {
 public:
  // Fills `plan` and `extra` with a message. Plans of a message name no requests of a scheduler.
  // Throws std::invalid_argument when the message is damaged, or not the one that follows the last;
  // the text says which and names both numbers. The chain then stays as it was.
  void Decode(std::span<const std::byte> message, StepPlan& plan, std::vector<int32_t>& extra);
  const PlanChain& chain() const { return chain_; }

 private:
  PlanChain chain_;
};

}  // namespace tokenspeed
