#include "scheduler/record.h"

#include <utility>
#include <vector>

#include "base/hash.h"
#include "scheduler/scheduler.h"

namespace tokenspeed {
namespace {

void Put(std::string& bytes, int64_t value) {
  uint64_t rest = (static_cast<uint64_t>(value) << 1) ^ static_cast<uint64_t>(value >> 63);
  for (; rest >= 0x80; rest >>= 7) bytes.push_back(static_cast<char>(rest | 0x80));
  bytes.push_back(static_cast<char>(rest));
}

template <class T>
void Put(std::string& bytes, std::span<const T> values) {
  Put(bytes, static_cast<int64_t>(values.size()));
  for (const T value : values) Put(bytes, int64_t{value});
}

void Put(std::string& bytes, const Submission& submission) {
  Put(bytes, submission.id.value);
  Put(bytes, submission.prompt);
  Put(bytes, submission.outputs);
  Put(bytes, submission.stop_ids);
  Put(bytes, submission.reuse_points);
  Put(bytes, std::span<const char>(submission.salt));
  for (const int64_t value :
       {int64_t{submission.max_new_tokens}, int64_t{submission.min_new_tokens},
        int64_t{submission.priority}, int64_t{submission.match_prefix}, submission.deadline_us,
        submission.session, submission.root, submission.tenant, submission.gap_us,
        submission.queue_key, submission.victim_key, submission.retain_us, submission.max_queue_us,
        int64_t{submission.max_drafts}, int64_t{submission.device_drafts}}) {
    Put(bytes, value);
  }
}

}  // namespace

void Record::Submit(const Submission& submission, int64_t now_us) {
  if (!is_on_) return;
  bytes_.push_back(static_cast<char>(Call::kSubmit));
  Put(bytes_, submission);
  Put(bytes_, now_us);
}

void Record::SubmitTurn(const Submission& submission, const TurnBase& base, int64_t now_us) {
  if (!is_on_) return;
  bytes_.push_back(static_cast<char>(Call::kTurn));
  Put(bytes_, submission);
  Put(bytes_, base.tokens);
  Put(bytes_, static_cast<int64_t>(base.digest));
  Put(bytes_, now_us);
}

void Record::End(RequestId id, bool is_abort, int64_t now_us) {
  if (!is_on_) return;
  bytes_.push_back(static_cast<char>(is_abort ? Call::kAbort : Call::kStop));
  Put(bytes_, id.value);
  Put(bytes_, now_us);
}

void Record::Rekey(RequestId id, int64_t gap_us, int64_t victim_key) {
  if (!is_on_) return;
  bytes_.push_back(static_cast<char>(Call::kRekey));
  for (const int64_t value : {id.value, gap_us, victim_key}) Put(bytes_, value);
}

void Record::Release(int64_t session, int64_t now_us) {
  if (!is_on_) return;
  bytes_.push_back(static_cast<char>(Call::kRelease));
  for (const int64_t value : {session, now_us}) Put(bytes_, value);
}

void Record::SetTenantLimits(int64_t tenant, const std::optional<TenantLimits>& limits,
                             int64_t now_us) {
  if (!is_on_) return;
  bytes_.push_back(static_cast<char>(Call::kTenantLimits));
  Put(bytes_, tenant);
  Put(bytes_, int64_t{limits.has_value()});
  Put(bytes_, limits ? limits->floor : 0);
  Put(bytes_, limits ? limits->cap : 0);
  Put(bytes_, now_us);
}

void Record::Propose(RequestId id, std::span<const int32_t> drafts) {
  if (!is_on_) return;
  bytes_.push_back(static_cast<char>(Call::kPropose));
  Put(bytes_, id.value);
  Put(bytes_, drafts);
}

void Record::Plan(int64_t now_us, const StepPlan* plan) {
  if (!is_on_) return;
  bytes_.push_back(static_cast<char>(Call::kPlan));
  Put(bytes_, now_us);
  Put(bytes_, plan == nullptr ? 0 : static_cast<int64_t>(DigestOf(*plan)));
}

void Record::Commit(int64_t step_id, const StepOutcome& outcome, int64_t now_us) {
  if (!is_on_) return;
  bytes_.push_back(static_cast<char>(Call::kCommit));
  Put(bytes_, step_id);
  Put(bytes_, outcome.tokens);
  Put(bytes_, outcome.accepted);
  Put(bytes_, outcome.failed);
  Put(bytes_, now_us);
}

void Record::Notify(std::span<const std::array<int32_t, 2>> acks, int64_t now_us) {
  if (!is_on_) return;
  bytes_.push_back(static_cast<char>(Call::kNotify));
  Put(bytes_, static_cast<int64_t>(acks.size()));
  for (const auto& [transfer, ok] : acks) {
    Put(bytes_, transfer);
    Put(bytes_, ok);
  }
  Put(bytes_, now_us);
}

void Record::NotifyStore(std::span<const Hash128> keys, bool is_present) {
  if (!is_on_) return;
  bytes_.push_back(static_cast<char>(Call::kNotifyStore));
  Put(bytes_, static_cast<int64_t>(keys.size()));
  for (const Hash128& key : keys) {
    Put(bytes_, static_cast<int64_t>(key.lo));
    Put(bytes_, static_cast<int64_t>(key.hi));
  }
  Put(bytes_, int64_t{is_present});
}

uint64_t DigestOf(const StepPlan& plan) {
  uint64_t digest = static_cast<uint64_t>(plan.step_id);
  const auto add = [&digest](int64_t value) {
    digest = hash_internal::Mix(digest ^ hash_internal::kSalt[0],
                                static_cast<uint64_t>(value) ^ hash_internal::kSalt[1]);
  };
  const auto add_all = [&add](const auto& values) {
    add(std::ssize(values));
    for (const auto& value : values) {
      if constexpr (requires { value.begin(); }) {
        for (const auto& part : value) add(part);
      } else {
        add(value);
      }
    }
  };
  add(plan.num_decode_rows);
  add(plan.num_write_rows);
  add_all(plan.request_ids);
  add_all(plan.slots);
  add_all(plan.query_start);
  add_all(plan.context_tokens);
  add_all(plan.output_index);
  add_all(plan.num_drafts);
  add_all(plan.token_ids);
  add_all(plan.admitted);
  add_all(plan.block_updates);
  add_all(plan.copies);
  add_all(plan.state_rows);
  add_all(plan.tier_rows.transfers);
  add_all(plan.tier_rows.store_moves);
  add_all(plan.tier_rows.store_keys);
  add_all(plan.tier_rows.store_tokens);
  return digest;
}

}  // namespace tokenspeed
