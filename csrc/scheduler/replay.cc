// Repeats the calls of a record on a fresh scheduler.
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/errors.h"
#include "scheduler/record.h"
#include "scheduler/scheduler.h"

namespace tokenspeed {

// Reads a record and repeats its calls.
class Player {
 public:
  Player(Scheduler& scheduler, std::string_view bytes) : scheduler_(scheduler), bytes_(bytes) {}

  int64_t Run() {
    Require(bytes_.starts_with(Record::kMagic), "it does not begin with TSR2");
    next_ = std::string_view(Record::kMagic).size();
    while (next_ < bytes_.size()) {
      const auto call = static_cast<Record::Call>(bytes_[next_++]);
      try {
        Repeat(call);
      } catch (const RequestError&) {  // refused then as now; nothing changed
      } catch (const CapacityError&) {
      } catch (const std::invalid_argument& error) {
        if (has_failed_) throw;
      }
    }
    return num_plans_;
  }

 private:
  void Require(bool is_met, const std::string& what) {
    if (is_met) return;
    has_failed_ = true;
    throw std::invalid_argument("replay: " + what + " at byte " + std::to_string(next_) +
                                "; allowed: a whole record on a fresh scheduler of the same "
                                "configuration and version; record it again");
  }

  int64_t Get() {
    uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
      Require(next_ < bytes_.size() && shift < 70, "a number is cut off");
      const auto byte = static_cast<unsigned char>(bytes_[next_++]);
      value |= static_cast<uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) break;
    }
    return static_cast<int64_t>(value >> 1) ^ -static_cast<int64_t>(value & 1);
  }

  size_t GetSize() {
    const int64_t size = Get();
    Require(size >= 0 && size <= std::ssize(bytes_), "a list has a wrong length");
    return static_cast<size_t>(size);
  }

  std::vector<int32_t> GetInts() {
    const size_t size = GetSize();
    std::vector<int32_t> values;
    for (size_t i = 0; i < size; ++i) values.push_back(static_cast<int32_t>(Get()));
    return values;
  }

  // The submission's spans are of the vectors, which stay until the next call.
  Submission GetSubmission() {
    Submission submission{.id = RequestId(Get())};
    prompt_ = GetInts();
    outputs_ = GetInts();
    stop_ids_ = GetInts();
    reuse_points_ = GetInts();
    for (const int32_t byte : GetInts()) submission.salt.push_back(static_cast<char>(byte));
    submission.prompt = prompt_;
    submission.outputs = outputs_;
    submission.stop_ids = stop_ids_;
    submission.reuse_points = reuse_points_;
    submission.max_new_tokens = static_cast<int32_t>(Get());
    submission.min_new_tokens = static_cast<int32_t>(Get());
    submission.priority = static_cast<int32_t>(Get());
    submission.match_prefix = Get() != 0;
    submission.deadline_us = Get();
    submission.session = Get();
    submission.root = Get();
    submission.tenant = Get();
    submission.gap_us = Get();
    submission.queue_key = Get();
    submission.victim_key = Get();
    submission.retain_us = Get();
    submission.max_queue_us = Get();
    submission.max_drafts = static_cast<int32_t>(Get());
    submission.device_drafts = Get() != 0;
    return submission;
  }

  void Repeat(Record::Call call) {
    switch (call) {
      case Record::Call::kSubmit: {
        const Submission submission = GetSubmission();
        scheduler_.Submit(submission, Get());
        return;
      }
      case Record::Call::kTurn: {
        const Submission submission = GetSubmission();
        const auto tokens = static_cast<int32_t>(Get());
        const auto digest = static_cast<uint64_t>(Get());
        scheduler_.SubmitTurn(submission, {tokens, digest}, Get());
        return;
      }
      case Record::Call::kAbort:
      case Record::Call::kStop: {
        const RequestId id(Get());
        const int64_t now_us = Get();
        if (call == Record::Call::kAbort) {
          scheduler_.AbortRequest(id, now_us);
        } else {
          scheduler_.StopRequest(id, now_us);
        }
        return;
      }
      case Record::Call::kRekey: {
        const RequestId id(Get());
        const int64_t gap_us = Get();
        scheduler_.Rekey(id, gap_us, Get());
        return;
      }
      case Record::Call::kTenantLimits: {
        const int64_t tenant = Get();
        const bool has_limits = Get() != 0;
        TenantLimits limits;
        limits.floor = Get();
        limits.cap = Get();
        const int64_t now_us = Get();
        scheduler_.SetTenantLimits(tenant, has_limits ? std::optional(limits) : std::nullopt,
                                   now_us);
        return;
      }
      case Record::Call::kPropose: {
        const RequestId id(Get());
        const std::vector<int32_t> drafts = GetInts();
        scheduler_.Propose(id, drafts);
        return;
      }
      case Record::Call::kPlan: {
        const int64_t now_us = Get();
        const auto plan = scheduler_.Plan(now_us);
        const auto digest = plan == nullptr ? 0 : static_cast<int64_t>(DigestOf(*plan));
        num_plans_ += plan != nullptr;
        Require(Get() == digest, "plan " + std::to_string(num_plans_) + " differs");
        return;
      }
      case Record::Call::kCommit:
        RepeatCommit();
        return;
      case Record::Call::kNotify: {
        std::vector<std::array<int32_t, 2>> acks(GetSize());
        for (auto& [transfer, ok] : acks) {
          transfer = static_cast<int32_t>(Get());
          ok = static_cast<int32_t>(Get());
        }
        scheduler_.Notify(acks, Get());
        return;
      }
      case Record::Call::kNotifyStore: {
        std::vector<Hash128> keys(GetSize());
        for (Hash128& key : keys) {
          key.lo = static_cast<uint64_t>(Get());
          key.hi = static_cast<uint64_t>(Get());
        }
        scheduler_.NotifyStore(keys, Get() != 0);
        return;
      }
      case Record::Call::kRelease: {
        const int64_t session = Get();
        scheduler_.Release(session, Get());
        return;
      }
    }
    Require(false, "an unknown call");
  }

  void RepeatCommit() {
    const int64_t step_id = Get();
    const std::vector<int32_t> tokens = GetInts(), accepted = GetInts(), failed = GetInts();
    const auto flags = std::make_unique<bool[]>(failed.size());
    for (size_t row = 0; row < failed.size(); ++row) flags[row] = failed[row] != 0;
    CommitResult result;
    scheduler_.Commit(step_id, {tokens, accepted, {flags.get(), failed.size()}}, Get(), result);
    scheduler_.TakeEnded(result);
  }

  Scheduler& scheduler_;
  std::string_view bytes_;
  size_t next_ = 0;
  int64_t num_plans_ = 0;
  bool has_failed_ = false;
  std::vector<int32_t> prompt_, outputs_, stop_ids_, reuse_points_;
};

int64_t Replay(Scheduler& scheduler, std::string_view record) {
  return Player(scheduler, record).Run();
}

}  // namespace tokenspeed
