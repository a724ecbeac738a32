// Random operations against the fake device, invariants recounted along the way. Every answer must
// be what the model says for the request alone, whatever shared, evicted, retracted or overlapped.
#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <deque>
#include <functional>
#include <iostream>
#include <random>
#include <set>

#include "base/errors.h"
#include "kv/flat_kv.h"
#include "kv/namespaces.h"
#include "support/device_model.h"

namespace tokenspeed::test {
namespace {

using Ids = std::vector<int32_t>;

size_t Common(const Ids& a, const Ids& b) {
  return static_cast<size_t>(std::ranges::mismatch(a, b).in1 - a.begin());
}

// A sequence of a namespace: the last turn of a session, or a request.
struct Told {
  std::string salt;
  Ids tokens;
};

// A node of the prefix index as anybody could draw it.
struct Drawn {
  std::string salt;
  Ids path;  // from the first token to its last
  size_t begin = 0;
  int32_t parent = 0;
  int32_t num_children = 0;
  bool is_held = false;
  bool is_remembered = false;    // so that others can share a part of it
  std::vector<int32_t> windows;  // groups in which it has a block
};

struct Asked {
  int32_t prompt = 0, outputs = 0, max_new = 0, min_new = 0;
  int64_t session = 0;
  std::vector<int32_t> known = {};  // prompt and outputs given
  std::vector<int32_t> stop_ids;
  std::vector<int32_t> got;
  int32_t max_drafts = 0;  // that the host proposes
  std::string salt = {};
};

class RandomRun {
 public:
  RandomRun(uint64_t seed, int32_t depth)
      : random_(seed),
        config_(MakeConfig(depth)),
        scheduler_(config_),
        device_(config_.groups, config_.block_tokens) {
    device_.tiers.fail_percent = Chance(50) ? Pick(1, 30) : 0;
    device_.tiers.damage_percent = Chance(50) ? Pick(1, 30) : 0;
  }

  void Run(int num_operations, int check_every) {
    for (int i = 0; i < num_operations && !testing::Test::HasFailure(); ++i) {
      Operate();
      if (i % check_every == 0) scheduler_.CheckInvariants();
    }
    Finish();
  }

  int64_t num(const char* name) {
    const auto stats = scheduler_.Stats();
    const auto found = stats.find(name);
    return found == stats.end() ? 0 : found->second;
  }
  int64_t num_limits() const { return num_limits_; }
  int64_t num_misfits() const { return std::ssize(misfits_); }
  int64_t num_retractions() { return scheduler_.Stats()["retractions"]; }
  int64_t num_cached() { return scheduler_.Stats()["cached_tokens"]; }

 private:
  int32_t Pick(int32_t low, int32_t high) {
    return std::uniform_int_distribution<int32_t>(low, high)(random_);
  }
  bool Chance(int percent) { return Pick(1, 100) <= percent; }

  SchedulerConfig MakeConfig(int32_t depth) {
    SchedulerConfig config;
    config.block_tokens = 16;
    config.groups = {{.name = "a", .packing = Pick(1, 4), .share_tokens = 1 << Pick(0, 4)}};
    if (Chance(60)) config.groups.push_back({.name = "b", .packing = Pick(1, 3)});
    if (Chance(40)) {
      config.groups.push_back(
          {.name = "w", .kind = "window", .packing = Pick(1, 4), .window = Pick(1, 50)});
    }
    if (Chance(15)) {
      config.groups.push_back(
          {.name = "v", .kind = "window", .packing = Pick(1, 2), .window = Pick(1, 50)});
    }
    const char* speculation = Chance(50) ? "replay" : "rows_per_position";
    for (const char* name : {"s", "t"}) {
      if (!Chance(name[0] == 's' ? 50 : 20)) continue;
      config.groups.push_back(
          {.name = name, .kind = "state", .packing = Pick(1, 3), .speculation = speculation});
    }
    config.state_cache_share = Pick(0, 4) / 4.0;
    if (config.prefix_cache = Chance(90); config.prefix_cache && Chance(60)) {
      constexpr std::array kPolicies = {"none", "on_eviction", "on_commit", "selective"};
      config.host_blocks = Pick(2, 16);
      config.write_policy = kPolicies[Pick(0, 3)];
      config.min_reuse = Pick(1, 2);
      config.store = Chance(50);
      config.layer_ranges = Pick(1, 3);
      config.copy_cost_tokens = Pick(0, 2) * 4.0;
    }
    config.max_running = Pick(1, 8);
    config.max_waiting = 12;
    config.max_step_tokens = Chance(20) ? Pick(1, 8) : Pick(16, 96);
    config.max_context_tokens = Pick(60, 200);
    config.depth = depth;
    config.ageing_us = Chance(50) ? 50 : 1'000'000;
    config.min_tps_per_user = Chance(20) ? Pick(1, 3000) : 0;
    config.max_prefill_steps = Pick(0, 3);
    config.max_sessions = Pick(1, 4);
    config.record_events = true;
    const int32_t fewest = MinPhysicalBlocks(KvConfig(config)) + (Chance(20) ? 0 : Pick(1, 6));
    config.num_physical_blocks = std::max(fewest, Chance(50) ? Pick(8, 20) : Pick(20, 80));
    return config;
  }

  // Moves between the tiers end late, in any order, well or not; a store loses records.
  void Acknowledge(bool is_all) {
    scheduler_.Notify(device_.Report(random_, is_all), now_us_);
    if (config_.store && Chance(2)) device_.tiers.LoseRecord(random_);
    if (config_.store && Chance(1)) scheduler_.NotifyStore(device_.tiers.Keys(), Chance(50));
  }

  void Operate() {
    const int choice = Pick(1, 100);
    now_us_ += Pick(0, 20);
    if (config_.host_blocks > 0 && Chance(40)) Acknowledge(false);
    if (choice <= 20) {
      Submit();
    } else if (choice <= 22) {
      EndSome(true);
    } else if (choice <= 24) {
      EndSome(false);
    } else if (choice <= 26) {
      Rekey();
    } else if (choice <= 30) {
      Propose();
    } else if (choice <= 31) {
      SetLimits();
    } else if (choice <= 33) {
      Release();
    } else if (choice <= 64) {
      Plan();
    } else {
      Commit();
    }
    Read(scheduler_.TakeEnded());
  }

  std::vector<int32_t> Tokens(int32_t count) {
    std::vector<int32_t> tokens;
    const int32_t family = Pick(0, 2);
    for (int32_t i = 0; i < count; ++i) tokens.push_back((family * 7 + i * i) % 5);
    for (int32_t edits = Pick(0, 2); edits > 0 && count > 0; --edits) {
      tokens[Pick(0, count - 1)] = Pick(0, 4);
    }
    return tokens;
  }

  void Submit() {
    const int64_t id = next_id_++;
    Asked asked;
    std::vector<int32_t> prompt = Tokens(Pick(1, Chance(30) ? 180 : 70));
    std::vector<int32_t> outputs;
    if (Chance(15)) outputs = Tokens(Pick(1, 10));
    const std::string salt = Chance(20) ? "x" : "";
    asked.session = Pick(0, 4);
    const auto base = scheduler_.SessionBase(asked.session);
    const bool is_turn = base && Chance(60);
    if (is_turn) outputs.clear();
    if (Chance(40)) asked.stop_ids = {Pick(0, 4)};
    asked.max_new = Chance(20) ? 0 : Pick(1, 60);
    asked.min_new = Pick(0, 5);
    Submission submission{.id = RequestId(id),
                          .prompt = prompt,
                          .outputs = outputs,
                          .max_new_tokens = asked.max_new,
                          .min_new_tokens = asked.min_new,
                          .stop_ids = asked.stop_ids,
                          .priority = Pick(0, 2),
                          .salt = salt,
                          .match_prefix = Chance(90),
                          .deadline_us = Chance(5) ? now_us_ + Pick(0, 2000) : 0,
                          .session = asked.session,
                          .root = Pick(0, 3),
                          .tenant = Pick(0, 2),
                          .queue_key = Pick(0, 2),
                          .victim_key = Pick(0, 2),
                          .max_queue_us = Chance(5) ? Pick(1, 2000) : 0};
    std::vector<int32_t> points;
    for (int32_t point = Pick(1, 40); Chance(60) && points.size() < 3; point += Pick(1, 40)) {
      if (point <= static_cast<int32_t>(prompt.size())) points.push_back(point);
    }
    submission.reuse_points = points;
    if (Chance(30)) {
      submission.max_drafts = Pick(1, 5);
      submission.device_drafts = Chance(50);
      asked.max_drafts = submission.device_drafts ? 0 : submission.max_drafts;
    }
    if (Chance(30)) submission.gap_us = Pick(0, 500);
    if (Chance(10)) submission.retain_us = Pick(1, 1000);
    try {
      if (is_turn) {
        EXPECT_EQ(base->tokens, std::ssize(last_turn_[asked.session]));
        scheduler_.SubmitTurn(submission, *base, now_us_);
        const std::vector<int32_t>& before = last_turn_[asked.session];
        prompt.insert(prompt.begin(), before.begin(), before.end());
      } else {
        scheduler_.Submit(submission, now_us_);
      }
    } catch (const RequestError&) {
      return;
    } catch (const CapacityError&) {
      return;
    }
    asked.salt = NamespaceOf(submission.tenant, salt);
    asked.prompt = static_cast<int32_t>(prompt.size());
    asked.outputs = static_cast<int32_t>(outputs.size());
    prompt.insert(prompt.end(), outputs.begin(), outputs.end());
    // What is shared between namespaces would be noticed: each has tokens of its own.
    expected_[id] = ExpectedSequence(asked.salt, prompt);
    asked.known = prompt;
    live_[id] = asked;
  }

  void EndSome(bool is_abort) {
    if (live_.empty()) return;
    const auto chosen = std::next(live_.begin(), Pick(0, static_cast<int>(live_.size()) - 1));
    const RequestId id(chosen->first);
    EXPECT_TRUE(is_abort ? scheduler_.AbortRequest(id, now_us_)
                         : scheduler_.StopRequest(id, now_us_));
    EXPECT_FALSE(scheduler_.AbortRequest(id, now_us_));
  }

  // Figures change at any time; whom they leave no room ends and is named.
  void SetLimits() {
    const bool is_full_only =
        std::ranges::all_of(config_.groups, [](const GroupSpec& g) { return g.kind == "full"; });
    if (!is_full_only) return;
    const int32_t pool = static_cast<int32_t>(scheduler_.Stats()["blocks_total"]);
    std::optional<TenantLimits> limits;
    if (Chance(80)) {
      limits = TenantLimits{};
      limits->floor = Chance(60) ? Pick(0, pool / 2) : 0;
      if (Chance(60)) limits->cap = Pick(std::max(1, static_cast<int>(limits->floor)), pool);
    }
    try {
      for (const RequestId id : scheduler_.SetTenantLimits(Pick(0, 2), limits, now_us_)) {
        misfits_.insert(id.value);
      }
      ++num_limits_;
    } catch (const std::invalid_argument&) {  // floors beyond the pool
    }
  }

  void CheckCaps() {
    for (const TenantUsage& usage : scheduler_.Tenants()) {
      EXPECT_LE(usage.cached == 0 ? 0 : usage.held + usage.cached, usage.limits.cap);
    }
  }

  void Rekey() {
    if (live_.empty()) return;
    EXPECT_TRUE(scheduler_.Rekey(RequestId(live_.begin()->first), Pick(0, 500), Pick(0, 2)));
    EXPECT_FALSE(scheduler_.Rekey(RequestId(next_id_), 1, 1));
  }

  // All nodes of the prefix index.
  std::map<int32_t, Drawn> Draw() const {
    const PrefixIndex& index = scheduler_.kv().index();
    std::map<int32_t, Drawn> drawn;
    const std::function<Drawn&(int32_t)> draw = [&](int32_t set) -> Drawn& {
      const auto [found, is_new] = drawn.try_emplace(set);
      Drawn& node = found->second;
      if (!is_new) return node;
      const NodeId parent = index.parent(SetId(set));
      if (parent.is_root()) {
        node.salt = index.name(parent);
      } else {
        const Drawn& above = draw(parent.value);
        node.salt = above.salt;
        node.path = above.path;
        node.parent = parent.value;
      }
      node.begin = node.path.size();
      const auto tokens = index.tokens(SetId(set));
      node.path.insert(node.path.end(), tokens.begin(), tokens.end());
      node.num_children = index.num_children(SetId(set));
      node.is_held = scheduler_.kv().sets().refs(SetId(set)) > 0;
      node.is_remembered = std::ranges::count(index.children(parent), set) > 0;
      for (int32_t w = 0; w < scheduler_.kv().num_window_groups(); ++w) {
        if (index.window(SetId(set), w).value != 0) node.windows.push_back(w);
      }
      return node;
    };
    for (int32_t set = 1; set <= scheduler_.kv().sets().max_items(); ++set) {
      if (index.Has(SetId(set))) draw(set);
    }
    return drawn;
  }

  size_t Floor(size_t num_tokens) const {
    const auto grain = static_cast<size_t>(scheduler_.kv().share_tokens());
    return num_tokens / grain * grain;
  }

  // How far a sequence is found again, as far as sets go: by whole blocks, then in a part of one.
  size_t Found(const std::map<int32_t, Drawn>& nodes, const Told& told) const {
    const auto size = static_cast<size_t>(config_.block_tokens);
    size_t whole = 0, best = 0;
    for (bool goes_on = true; goes_on;) {
      goes_on = std::ranges::any_of(nodes, [&](const auto& item) {
        const Drawn& node = item.second;
        return node.salt == told.salt && node.begin == whole && node.path.size() == whole + size &&
               Common(node.path, told.tokens) == node.path.size();
      });
      whole += goes_on * size;
    }
    for (const auto& [set, node] : nodes) {
      if (node.salt != told.salt || node.begin != whole || !node.is_remembered) continue;
      const size_t shared = Common(node.path, told.tokens);
      if (shared > whole) best = std::max(best, Floor(shared - whole));
    }
    return whole + best;
  }

  // Last turns and live requests, but those of one session, each without its last token, which it
  // has not computed.
  std::vector<Told> OthersThan(int64_t session) {
    std::vector<Told> others;
    for (const auto& [other, tokens] : last_turn_) {
      if (other == 0 || other == session || !scheduler_.SessionBase(other)) continue;
      others.push_back({salt_of_turn_[other], tokens});
    }
    for (const RequestView& view : scheduler_.Requests()) {
      const auto live = live_.find(view.id.value);
      if (live == live_.end()) {
        others.push_back(ended_.at(view.id.value));  // it drains
        continue;
      }
      Ids tokens = live->second.known;
      tokens.insert(tokens.end(), live->second.got.begin(), live->second.got.end());
      others.push_back({live->second.salt, tokens});
    }
    for (Told& other : others) other.tokens.pop_back();
    return others;
  }

  // Says whether others find the first tokens of a node as far in a sibling.
  bool HasSubstitute(const std::map<int32_t, Drawn>& nodes, const Drawn& node, size_t end) const {
    return std::ranges::any_of(nodes, [&](const auto& item) {
      const Drawn& sibling = item.second;
      const bool has_windows = std::ranges::includes(sibling.windows, node.windows);
      return &sibling != &node && sibling.is_remembered && sibling.salt == node.salt &&
             sibling.parent == node.parent && sibling.begin == node.begin && has_windows &&
             Common(sibling.path, node.path) >= end;
    });
  }

  // What a release leaves, told from the drawing alone: nodes of the session's tokens that hold
  // more than anybody else has, from the leaves on.
  void Forget(std::map<int32_t, Drawn>& nodes, const Told& own, const std::vector<Told>& others) {
    size_t common = 0;
    for (const Told& other : others) {
      if (other.salt == own.salt) common = std::max(common, Common(own.tokens, other.tokens));
    }
    const auto goes = [&](const auto& item) {
      const Drawn& node = item.second;
      return node.salt == own.salt && Common(node.path, own.tokens) == node.path.size() &&
             node.num_children == 0 && !node.is_held && node.path.size() > common;
    };
    for (auto found = std::ranges::find_if(nodes, goes); found != nodes.end();
         found = std::ranges::find_if(nodes, goes)) {
      Drawn& node = found->second;
      const size_t shared = common > node.begin ? Floor(common - node.begin) : 0;
      if (shared > 0 && node.is_remembered && !HasSubstitute(nodes, node, node.begin + shared)) {
        node.path.resize(node.begin + shared);
        return;  // nothing before it goes either
      }
      if (node.parent != 0) --nodes.at(node.parent).num_children;
      nodes.erase(found);
    }
  }

  void Release() {
    const int64_t session = Pick(0, 4);
    const auto is_its = [&](const auto& item) { return item.second.session == session; };
    const bool is_live = session != 0 && std::ranges::any_of(live_, is_its);
    auto nodes = Draw();
    const auto others = OthersThan(session);
    const bool has_turn = scheduler_.SessionBase(session).has_value();
    std::vector<size_t> found;
    for (const Told& other : others) found.push_back(Found(nodes, other));
    std::vector<int64_t> taken;
    for (int32_t group = 0; group < scheduler_.kv().num_groups(); ++group) {
      taken.push_back(scheduler_.kv().physical().num_taken(GroupId(group)));
    }
    std::optional<Released> released;
    try {
      released = scheduler_.Release(session, now_us_);
    } catch (const RequestError&) {
      EXPECT_TRUE(is_live || !in_flight_.empty() || config_.host_blocks > 0);
      return;
    }
    EXPECT_FALSE(is_live);
    if (released && has_turn && config_.prefix_cache) {
      Forget(nodes, {salt_of_turn_[session], last_turn_[session]}, others);
    }
    const auto after = Draw();
    EXPECT_TRUE(std::ranges::equal(nodes, after, {}, ContentOf, ContentOf)) << "its own goes";
    for (size_t i = 0; i < others.size(); ++i) {
      EXPECT_EQ(Found(after, others[i]), found[i]) << "others find what they found";
    }
    for (size_t group = 0; released && group < taken.size(); ++group) {
      const auto id = GroupId(static_cast<int32_t>(group));
      EXPECT_EQ(scheduler_.kv().physical().num_taken(id), taken[group] - released->blocks[group]);
    }
    EXPECT_FALSE(scheduler_.SessionBase(session)) << "its last turn is forgotten";
  }
  static std::pair<int32_t, Ids> ContentOf(const std::pair<const int32_t, Drawn>& item) {
    return {item.first, item.second.path};
  }

  // Drafts of which the first are right.
  void Propose() {
    for (const auto& [id, asked] : live_) {
      if (asked.max_drafts == 0) continue;
      const auto known = std::ssize(asked.known) + std::ssize(asked.got);
      std::vector<int32_t> drafts;
      for (int32_t count = Pick(0, asked.max_drafts), right = Pick(0, 5); count > 0; --count) {
        const auto position = static_cast<int32_t>(known + std::ssize(drafts));
        const int32_t token = expected_[id].token(position);
        drafts.push_back(--right < 0 ? token + 1 : token);
      }
      scheduler_.Propose(RequestId(id), drafts);
    }
  }

  void Plan() {
    const bool may_plan = in_flight_.size() <= static_cast<size_t>(config_.depth);
    const auto plan = scheduler_.Plan(now_us_);
    if (may_plan) CheckCaps();  // what a move lets go while no plan may be made stays till the next
    if (plan == nullptr) return;
    ++num_plans_;
    EXPECT_LE(plan->num_tokens(), config_.max_step_tokens);
    in_flight_.emplace_back(plan, device_.Run(*plan, expected_));
    EXPECT_LE(in_flight_.size(), static_cast<size_t>(config_.depth) + 1);
  }

  // One token per row where no row has drafts.
  void Commit() {
    if (in_flight_.empty()) return;
    const auto [plan, sampled] = in_flight_.front();
    in_flight_.pop_front();
    size_t width = 1;
    for (const auto& row : sampled) width = std::max(width, row.size());
    const bool has_drafts = std::ranges::any_of(plan->num_drafts, [](int32_t n) { return n > 0; });
    std::vector<int32_t> tokens(sampled.size() * width, -1), accepted;
    auto failed = std::make_unique<bool[]>(sampled.size());
    for (size_t row = 0; row < sampled.size(); ++row) {
      std::ranges::copy(sampled[row], tokens.begin() + static_cast<std::ptrdiff_t>(row * width));
      if (has_drafts) accepted.push_back(std::max<int32_t>(0, std::ssize(sampled[row]) - 1));
      failed[row] = Chance(1);
    }
    CommitResult result;
    scheduler_.Commit(plan->step_id, {tokens, accepted, {failed.get(), sampled.size()}}, now_us_,
                      result);
    Read(result);
  }

  void Read(const CommitResult& result) {
    size_t next = 0;
    for (size_t i = 0; i < result.request_ids.size(); ++i) {
      const int64_t id = result.request_ids[i];
      ASSERT_TRUE(live_.contains(id)) << "request " << id << " ended before";
      const auto count = static_cast<size_t>(result.num_tokens[i]);
      const auto reason = static_cast<FinishReason>(result.finish_reasons[i]);
      Asked& asked = live_[id];
      if (count == 0 && misfits_.contains(id)) {
        EXPECT_EQ(reason, FinishReason::kError);
      }
      if (count == 0) CheckEnd(asked, reason, -1);
      for (size_t k = 0; k < count; ++k) {
        const bool is_told = k == 0 && result.cached_tokens[i] >= 0;
        EXPECT_EQ(is_told, asked.got.empty());
        ReadToken(id, asked, result.tokens[next + k], k + 1 < count ? FinishReason::kNone : reason);
      }
      next += std::max<size_t>(1, count);
      if (reason != FinishReason::kNone) KeepTurn(id);
    }
    EXPECT_EQ(next, result.tokens.size());
  }

  void ReadToken(int64_t id, Asked& asked, int32_t token, FinishReason reason) {
    EXPECT_EQ(token, expected_[id].token(asked.prompt + asked.outputs +
                                         static_cast<int32_t>(asked.got.size())));
    asked.got.push_back(token);
    CheckEnd(asked, reason, token);
  }

  void KeepTurn(int64_t id) {
    Asked& asked = live_[id];
    asked.known.insert(asked.known.end(), asked.got.begin(), asked.got.end());
    last_turn_[asked.session] = asked.known;
    salt_of_turn_[asked.session] = asked.salt;
    ended_[id] = {asked.salt, asked.known};
    live_.erase(id);
  }

  void CheckEnd(const Asked& asked, FinishReason reason, int32_t token) {
    const int32_t count = asked.outputs + static_cast<int32_t>(asked.got.size());
    const bool is_full = (asked.max_new > 0 && count >= asked.max_new) ||
                         asked.prompt + count >= config_.max_context_tokens;
    const bool is_stop = token >= 0 && count > asked.min_new && !asked.stop_ids.empty() &&
                         asked.stop_ids[0] == token;
    if (reason == FinishReason::kNone) {
      EXPECT_FALSE(is_full || is_stop);
    } else if (reason == FinishReason::kLength && asked.max_new > 0) {
      EXPECT_TRUE(is_full && !is_stop);
    } else if (reason == FinishReason::kStop && token >= 0) {
      EXPECT_TRUE(is_stop);
    }
  }

  // The same calls on a fresh scheduler make the same plans.
  void CheckReplay() {
    const std::string record = scheduler_.TakeRecord();
    Scheduler again(config_);
    EXPECT_EQ(Replay(again, record), num_plans_);
    EXPECT_TRUE(again.Stats() == scheduler_.Stats());
    if (record.size() < 200) return;
    std::string broken = record.substr(0, record.size() / 2);
    Scheduler cut(config_);
    try {
      Replay(cut, broken);
    } catch (const std::invalid_argument&) {  // cut inside a call
    }
  }

  void Finish() {
    for (int i = 0; i < 20000 && scheduler_.HasWork() && !testing::Test::HasFailure(); ++i) {
      Plan();
      if (Chance(70)) Commit();
      if (Chance(30)) Acknowledge(Chance(50));
      Read(scheduler_.TakeEnded());
    }
    scheduler_.CheckInvariants();
    EXPECT_FALSE(scheduler_.HasWork()) << "every accepted request ends";
    EXPECT_TRUE(live_.empty());
    EXPECT_EQ(scheduler_.Stats()["blocks_used"], 0);
    CheckReplay();
    while (config_.host_blocks > 0 && !(device_.tiers.is_idle() && in_flight_.empty())) {
      Acknowledge(true);  // what came back may be handed on to the store
      Plan();
      Commit();
    }
    EXPECT_EQ(num("transfers_in_flight"), 0) << "every move ends";
    scheduler_.CheckInvariants();
  }

  std::mt19937_64 random_;
  SchedulerConfig config_;
  Scheduler scheduler_;
  DeviceModel device_;
  std::map<int64_t, ExpectedSequence> expected_;
  std::map<int64_t, Asked> live_;
  std::map<int64_t, Told> ended_;
  std::map<int64_t, std::vector<int32_t>> last_turn_;  // by session
  std::map<int64_t, std::string> salt_of_turn_;
  std::deque<std::pair<std::shared_ptr<const StepPlan>, DeviceModel::Sampled>> in_flight_;
  int64_t next_id_ = 1;
  int64_t now_us_ = 1;
  int64_t num_plans_ = 0;
  int64_t num_limits_ = 0;
  std::set<int64_t> misfits_;
};

// TOKENSPEED_TEST_SEED replays one seed; TOKENSPEED_TEST_RUNS makes the search longer, with
// invariants recounted after each operation.
void RunSeeds(int32_t depth) {
  const char* replay = std::getenv("TOKENSPEED_TEST_SEED");
  const char* longer = std::getenv("TOKENSPEED_TEST_RUNS");
  const uint64_t num_runs = longer != nullptr ? std::strtoull(longer, nullptr, 10) : 150;
  int64_t num_retractions = 0, num_cached = 0, num_limits = 0, num_misfits = 0;
  std::map<std::string, int64_t> met = {{"loads", 0},      {"loads_failed", 0},   {"saved", 0},
                                        {"store_gets", 0}, {"host_writes", 0},    {"drafted", 0},
                                        {"accepted", 0},   {"released_tokens", 0}};
  for (uint64_t run = 0; run < num_runs; ++run) {
    const uint64_t seed = replay != nullptr ? std::strtoull(replay, nullptr, 10) : run;
    RandomRun random_run(seed, depth);
    try {
      random_run.Run(300, longer != nullptr || replay != nullptr ? 1 : 4);
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what();
    }
    if (testing::Test::HasFailure()) {
      std::cerr << "replay with TOKENSPEED_TEST_SEED=" << seed << " depth " << depth << "\n";
      return;
    }
    num_retractions += random_run.num_retractions();
    num_cached += random_run.num_cached();
    num_limits += random_run.num_limits();
    num_misfits += random_run.num_misfits();
    for (auto& [name, count] : met) count += random_run.num(name.c_str());
    if (replay != nullptr) return;
  }
  EXPECT_GT(num_retractions, 0) << "the search must meet retractions";
  EXPECT_GT(num_limits, 0) << "the search must meet tenants with figures";
  EXPECT_GT(num_misfits, 0) << "and requests that they leave no room";
  EXPECT_GT(num_cached, 0) << "the search must meet cache hits";
  for (const auto& [name, count] : met) EXPECT_GT(count, 0) << "the search must meet " << name;
}

TEST(RandomOperationsTest, AnswersAreThoseOfTheRequestAloneAtDepth0) { RunSeeds(0); }
TEST(RandomOperationsTest, AnswersAreThoseOfTheRequestAloneAtDepth1) { RunSeeds(1); }

}  // namespace
}  // namespace tokenspeed::test
