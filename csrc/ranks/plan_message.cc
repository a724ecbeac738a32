#include "ranks/plan_message.h"

#include <cstdio>
#include <cstring>
#include <stdexcept>
#include <string>

#include "base/hash.h"

namespace tokenspeed {
namespace {

struct Header {
  int64_t bytes, sequence;
  uint64_t digest;
  int64_t step_id;
  int32_t decode_rows, rows, tokens, admitted, block_updates, copies;
  int32_t transfers, store_moves, store_tokens, state_groups, write_rows, extra;
};
static_assert(sizeof(Header) == 80);
constexpr size_t kDigested = offsetof(Header, step_id);

// Calls visit(vector, items) for each array of a plan, in the order of the message.
template <class Plan, class Visit>
void EachArray(Plan& plan, const Header& header, Visit&& visit) {
  const auto count = [](int64_t items) { return static_cast<size_t>(items); };
  visit(plan.request_ids, count(header.rows));
  visit(plan.slots, count(header.rows));
  visit(plan.query_start, count(header.rows) + 1);
  visit(plan.context_tokens, count(header.rows));
  visit(plan.output_index, count(header.rows));
  visit(plan.num_drafts, count(header.rows));
  visit(plan.token_ids, count(header.tokens));
  visit(plan.admitted, count(header.admitted));
  visit(plan.block_updates, count(header.block_updates));
  visit(plan.copies, count(header.copies));
  visit(plan.state_rows,
        count(int64_t{header.rows} * header.state_groups * (1 + header.write_rows)));
  visit(plan.tier_rows.transfers, count(header.transfers));
  visit(plan.tier_rows.store_moves, count(header.store_moves));
  visit(plan.tier_rows.store_keys, count(header.store_moves));
  visit(plan.tier_rows.store_tokens, count(int64_t{header.store_moves} * header.store_tokens));
}

Header HeaderOf(const StepPlan& plan, size_t extra) {
  const auto size = [](const auto& values) { return static_cast<int32_t>(values.size()); };
  Header header{};
  header.step_id = plan.step_id;
  header.decode_rows = plan.num_decode_rows;
  header.rows = plan.num_rows();
  header.tokens = plan.num_tokens();
  header.admitted = size(plan.admitted);
  header.block_updates = size(plan.block_updates);
  header.copies = size(plan.copies);
  header.transfers = size(plan.tier_rows.transfers);
  header.store_moves = size(plan.tier_rows.store_moves);
  header.store_tokens = plan.tier_rows.block_tokens;
  header.state_groups = plan.num_state_groups;
  header.write_rows = plan.num_write_rows;
  header.extra = static_cast<int32_t>(extra);
  return header;
}

bool HasNegative(const Header& header) {
  for (const int32_t value :
       {header.decode_rows, header.rows, header.tokens, header.admitted, header.block_updates,
        header.copies, header.transfers, header.store_moves, header.store_tokens,
        header.state_groups, header.write_rows, header.extra}) {
    if (value < 0) return true;
  }
  return false;
}

std::string Hex(uint64_t value) {
  char text[17];
  std::snprintf(text, sizeof(text), "%016llx", static_cast<unsigned long long>(value));
  return text;
}

}  // namespace

PlanChain PlanChain::After(int64_t step_id, std::span<const std::byte> body) const {
  using namespace hash_internal;
  uint64_t lanes[4] = {digest ^ kSalt[0], static_cast<uint64_t>(sequence) ^ kSalt[1],
                       static_cast<uint64_t>(step_id) ^ kSalt[2], body.size() ^ kSalt[3]};
  std::byte last[64] = {};
  while (!body.empty()) {
    const size_t taken = std::min(body.size(), sizeof(last));
    const std::byte* block = body.data();
    if (taken < sizeof(last)) {
      std::memcpy(last, block, taken);
      block = last;
    }
    uint64_t words[8];
    std::memcpy(words, block, sizeof(words));
    for (size_t i = 0; i < 4; ++i) {
      lanes[i] = Mix(words[2 * i] ^ kSalt[i + 1], words[2 * i + 1] ^ lanes[i]);
    }
    body = body.subspan(taken);
  }
  return {sequence + 1, Mix(lanes[0] ^ kSalt[5], lanes[1]) ^ Mix(lanes[2] ^ kSalt[4], lanes[3])};
}

std::span<const std::byte> PlanEncoder::Encode(const StepPlan& plan,
                                               std::span<const int32_t> extra) {
  Header header = HeaderOf(plan, extra.size());
  size_t bytes = sizeof(Header) + extra.size_bytes();
  EachArray(plan, header,
            [&](const auto& values, size_t items) { bytes += items * sizeof(values[0]); });
  message_.resize(bytes);
  std::byte* end = message_.data() + sizeof(Header);
  const auto append = [&end](const void* values, size_t size) {
    if (size != 0) std::memcpy(end, values, size);
    end += size;
  };
  EachArray(plan, header, [&](const auto& values, size_t items) {
    append(values.data(), items * sizeof(values[0]));
  });
  append(extra.data(), extra.size_bytes());
  header.bytes = static_cast<int64_t>(bytes);
  header.sequence = chain_.sequence;
  std::memcpy(message_.data(), &header, sizeof(header));
  chain_ = chain_.After(plan.step_id, std::span<const std::byte>(message_).subspan(kDigested));
  std::memcpy(message_.data() + offsetof(Header, digest), &chain_.digest, sizeof(uint64_t));
  return message_;
}

void PlanDecoder::Decode(std::span<const std::byte> message, StepPlan& plan,
                         std::vector<int32_t>& extra) {
  Header header{};
  if (message.size() >= sizeof(header)) std::memcpy(&header, message.data(), sizeof(header));
  size_t bytes = sizeof(Header) + static_cast<size_t>(header.extra) * sizeof(int32_t);
  EachArray(plan, header,
            [&](const auto& values, size_t items) { bytes += items * sizeof(values[0]); });
  if (HasNegative(header) || message.size() != bytes ||
      header.bytes != static_cast<int64_t>(bytes)) {
    throw std::invalid_argument("a plan of " + std::to_string(message.size()) +
                                " bytes says that it has " + std::to_string(header.bytes) +
                                ", and its arrays " + std::to_string(bytes));
  }
  if (header.sequence != chain_.sequence) {
    throw std::invalid_argument("plan number " + std::to_string(header.sequence) + " came where " +
                                std::to_string(chain_.sequence) + " is due");
  }
  const PlanChain next = chain_.After(header.step_id, message.subspan(kDigested));
  if (next.digest != header.digest) {
    throw std::invalid_argument("plan number " + std::to_string(header.sequence) +
                                " was sent with digest " + Hex(header.digest) +
                                " and is received with " + Hex(next.digest));
  }
  chain_ = next;
  plan.step_id = header.step_id;
  plan.num_decode_rows = header.decode_rows;
  plan.num_state_groups = header.state_groups;
  plan.num_write_rows = header.write_rows;
  plan.tier_rows.block_tokens = header.store_tokens;
  const std::byte* next_array = message.data() + sizeof(Header);
  const auto take = [&next_array](auto& values, size_t items) {
    values.resize(items);
    const size_t size = items * sizeof(values[0]);
    if (size != 0) std::memcpy(values.data(), next_array, size);
    next_array += size;
  };
  EachArray(plan, header, take);
  take(extra, static_cast<size_t>(header.extra));
}

}  // namespace tokenspeed
