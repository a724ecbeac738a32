// The input stream of a scheduler as compact bytes: every call with its arguments and time, and a
// digest of every plan. As nothing else goes in, replaying it gives the same plans, bit for bit.
//
//   "TSR2" then calls: a byte for which, then its integers as variable-length bytes
//
// Thread: scheduler thread only.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "base/hash.h"
#include "kv/accounts.h"
#include "scheduler/step.h"
#include "scheduler/submission.h"

namespace tokenspeed {

class Scheduler;
struct StepOutcome;

class Record {
 public:
  explicit Record(bool is_on) : is_on_(is_on) {
    if (is_on_) bytes_ = kMagic;
  }

  void Submit(const Submission& submission, int64_t now_us);
  void SubmitTurn(const Submission& submission, const TurnBase& base, int64_t now_us);
  void End(RequestId id, bool is_abort, int64_t now_us);
  void Rekey(RequestId id, int64_t gap_us, int64_t victim_key);
  void Release(int64_t session, int64_t now_us);
  void SetTenantLimits(int64_t tenant, const std::optional<TenantLimits>& limits, int64_t now_us);
  void Propose(RequestId id, std::span<const int32_t> drafts);
  void Plan(int64_t now_us, const StepPlan* plan);
  void Notify(std::span<const std::array<int32_t, 2>> acks, int64_t now_us);
  void NotifyStore(std::span<const Hash128> keys, bool is_present);
  void Commit(int64_t step_id, const StepOutcome& outcome, int64_t now_us);

  // Returns what was recorded since the last call; the first part begins with the magic.
  std::string Take() { return std::exchange(bytes_, std::string()); }

  static constexpr const char* kMagic = "TSR2";

 private:
  enum class Call : uint8_t {
    kSubmit,
    kTurn,
    kAbort,
    kStop,
    kRekey,
    kPropose,
    kPlan,
    kCommit,
    kNotify,
    kNotifyStore,
    kTenantLimits,
    kRelease
  };
  friend int64_t Replay(Scheduler& scheduler, std::string_view record);
  friend class Player;

  bool is_on_;
  std::string bytes_;
};

// Digest of everything in a plan that Python sees.
uint64_t DigestOf(const StepPlan& plan);

// Repeats the calls of a whole record on a fresh scheduler of the same configuration.
// Returns: the number of plans. Throws std::invalid_argument at the first plan that differs, or
// when the bytes are no record.
int64_t Replay(Scheduler& scheduler, std::string_view record);

}  // namespace tokenspeed
