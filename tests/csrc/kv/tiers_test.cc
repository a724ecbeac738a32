#include "kv/tiers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <random>
#include <string>
#include <utility>

#include "support/tier_model.h"

namespace tokenspeed {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr int32_t kBlockTokens = 16;

// A content of its own per number: 16 tokens, or fewer for every fifth.
struct Sample {
  explicit Sample(int64_t number, int32_t group = 0) : number(number) {
    const int32_t size = number % 5 == 4 ? 1 + static_cast<int32_t>(number % 16) : kBlockTokens;
    for (int32_t i = 0; i < size; ++i) tokens.push_back(static_cast<int32_t>(number) * 100 + i);
    const Hash128 parent{static_cast<uint64_t>(number) / 3, 7};
    content = {GroupKey(PositionKey(parent, tokens, kBlockTokens), GroupId(group)), parent, tokens,
               GroupId(group)};
  }
  Sample(const Sample&) = delete;
  int64_t number;
  std::vector<int32_t> tokens;
  Content content;
};

class TiersTest : public testing::Test {
 protected:
  void Make(TiersConfig config) {
    config.block_tokens = kBlockTokens;
    tiers_ = std::make_unique<Tiers>(config);
  }
  TierRows Emit() {
    TierRows rows;
    tiers_->Emit(rows);
    tiers_->CheckInvariants();
    return rows;
  }
  void Run() {
    model_.Run(Emit(), random_);
    tiers_->Acknowledge(model_.Report(random_, true));
    tiers_->CheckInvariants();
  }
  void RunAll() {
    while (tiers_->has_rows()) Run();
  }
  // Writes the content from device block 1 and waits for it.
  void Keep(const Sample& sample) {
    model_.device[{sample.content.group.value, 1}] = sample.number;
    ASSERT_TRUE(tiers_->Write(sample.content, BlockId(1)));
    RunAll();
  }
  // Loads into `block`; returns the pieces that failed.
  std::vector<int32_t> LoadNow(const Sample& sample, int32_t block) {
    const BatchId batch = tiers_->Open(5);
    tiers_->Load(sample.content, BlockId(block), batch);
    tiers_->Close(batch);
    RunAll();
    const std::vector<Tiers::Ended> ended = tiers_->TakeEnded();
    EXPECT_EQ(ended.size(), 1u);
    EXPECT_EQ(ended[0].batch, batch);
    EXPECT_EQ(ended[0].owner, 5);
    return ended[0].failed;
  }

  std::unique_ptr<Tiers> tiers_;
  TierModel model_{kBlockTokens};
  std::mt19937_64 random_{1};
};

TEST_F(TiersTest, AWriteIsFoundOnlyWhenItIsAcknowledged) {
  Make({.packing = {2}, .num_host_blocks = 3});
  const Sample sample(1);
  model_.device[{0, 9}] = 1;
  EXPECT_FALSE(tiers_->Has(sample.content));
  EXPECT_TRUE(tiers_->Write(sample.content, BlockId(9)));
  EXPECT_EQ(tiers_->host().num_present(), 0);
  const TierRows rows = Emit();
  EXPECT_THAT(rows.transfers, ElementsAre(ElementsAre(1, Tiers::kStore, 0, 9, 2, -1)));
  tiers_->Acknowledge(std::vector<std::array<int32_t, 2>>{{1, 1}});
  EXPECT_EQ(tiers_->host().num_present(), 1);
  EXPECT_TRUE(tiers_->is_idle());
}

TEST_F(TiersTest, AFailedWriteWasNever) {
  Make({.packing = {2}, .num_host_blocks = 3, .has_store = true});
  const Sample sample(1);
  tiers_->Write(sample.content, BlockId(9));
  Emit();
  tiers_->Acknowledge(std::vector<std::array<int32_t, 2>>{{1, 0}});
  EXPECT_FALSE(tiers_->Has(sample.content));
  EXPECT_FALSE(tiers_->has_rows()) << "and is not handed on to the store";
  EXPECT_EQ(tiers_->host().num_items(), 0);
}

// What a listener believes each tier to have.
std::map<std::pair<int, EventBatch::Key>, int> Believed(const EventBatch& events) {
  std::map<std::pair<int, EventBatch::Key>, int> believed;
  for (size_t i = 0; i < events.kinds.size(); ++i) {
    const bool is_stored = static_cast<KvEvent>(events.kinds[i]) == KvEvent::kStored;
    believed[{events.mediums[i], events.hashes[i]}] += is_stored ? 1 : -1;
  }
  return believed;
}

TEST_F(TiersTest, ABlockIsToldInATierWhenItCanBeReadThereAndWhenItIsGone) {
  Make({.packing = {1}, .num_host_blocks = 3, .has_store = true});
  EventBatch events;
  tiers_->SetEvents(&events);
  const Sample first(1), second(2), third(3), part(4);
  const std::string salt = "s";
  Content head = first.content;
  head.salt = &salt;
  model_.device[{0, 1}] = 1;
  ASSERT_TRUE(tiers_->Write(head, BlockId(1)));
  EXPECT_TRUE(events.empty()) << "it has not arrived";
  RunAll();
  const auto mediums = [&events] { return std::exchange(events, EventBatch{}).mediums; };
  EXPECT_EQ(events.salts, std::vector<std::string>{"s"});
  EXPECT_THAT(events.namespaces, ElementsAre(0, 0));
  EXPECT_THAT(events.tokens, testing::SizeIs(2 * kBlockTokens));
  EXPECT_THAT(mediums(), ElementsAre(1, 2)) << "the host, then the store";
  Keep(part);
  EXPECT_THAT(mediums(), IsEmpty()) << "a part of a block has no name";
  Keep(second);
  Keep(third);  // of three slots' worth the host keeps two
  const auto believed = Believed(events);
  const Hash128 key = HashBlock(first.content.parent, first.content.tokens);
  EventBatch::Key name;
  std::memcpy(name.data(), &key, sizeof(key));
  EXPECT_EQ(believed.at({1, name}), -1) << "evicted from the host";
  EXPECT_FALSE(believed.contains({2, name})) << "and still in the store";
  mediums();
  tiers_->NotifyStore(first.content.key, false);
  EXPECT_EQ(Believed(events).at({2, name}), -1);
  tiers_->NotifyStore(first.content.key, false);
  EXPECT_THAT(events.kinds, testing::SizeIs(1)) << "what is gone does not go again";
}

TEST_F(TiersTest, ARecordFromBeforeTheStartIsToldWhenItIsRead) {
  Make({.packing = {1}, .num_host_blocks = 3, .has_store = true});
  const Sample sample(1);
  Keep(sample);
  const TierModel kept = model_;
  Make({.packing = {1}, .num_host_blocks = 3, .has_store = true});
  model_ = kept;
  EventBatch events;
  tiers_->SetEvents(&events);
  tiers_->NotifyStore(sample.content.key, true);
  EXPECT_TRUE(events.empty());
  EXPECT_THAT(LoadNow(sample, 5), IsEmpty());
  EXPECT_THAT(events.mediums, ElementsAre(1, 2));
}

TEST_F(TiersTest, WhatIsThereIsNotWrittenTwice) {
  Make({.packing = {2}, .num_host_blocks = 3});
  const Sample sample(1);
  Keep(sample);
  EXPECT_TRUE(tiers_->Write(sample.content, BlockId(4)));
  EXPECT_FALSE(tiers_->has_rows());
}

TEST_F(TiersTest, ALoadComesByLayerRangesFirstLayersFirst) {
  Make({.packing = {4}, .num_host_blocks = 3, .layer_ranges = 2});
  const Sample first(1), second(2);
  Keep(first);
  Keep(second);
  const BatchId batch = tiers_->Open(0);
  tiers_->Load(first.content, BlockId(6), batch);
  tiers_->Load(second.content, BlockId(7), batch);
  tiers_->Close(batch);
  std::vector<std::pair<int32_t, int32_t>> order;
  const TierRows rows = Emit();
  for (const auto& row : rows.transfers) order.emplace_back(row[5], row[3]);
  EXPECT_THAT(order,
              ElementsAre(std::pair(0, 6), std::pair(0, 7), std::pair(1, 6), std::pair(1, 7)));
  model_.Run(rows, random_);
  std::vector<std::array<int32_t, 2>> acks = model_.Report(random_, true);
  const std::array<int32_t, 2> last = acks.back();
  acks.pop_back();
  tiers_->Acknowledge(acks);
  EXPECT_THAT(tiers_->TakeEnded(), IsEmpty());
  tiers_->Acknowledge({&last, 1});
  EXPECT_EQ(tiers_->TakeEnded().size(), 1u);
  EXPECT_EQ((model_.device[{0, 6}]), 1);
  EXPECT_EQ((model_.device[{0, 7}]), 2);
}

TEST_F(TiersTest, AFailedRangeFailsItsPieceAndTheItemIsNotTrustedAgain) {
  Make({.packing = {4}, .num_host_blocks = 3, .layer_ranges = 2});
  const Sample first(1), second(2);
  Keep(first);
  Keep(second);
  const BatchId batch = tiers_->Open(0);
  tiers_->Load(first.content, BlockId(6), batch);
  tiers_->Load(second.content, BlockId(7), batch);
  tiers_->Close(batch);
  std::vector<std::array<int32_t, 2>> acks;
  for (const auto& row : Emit().transfers) {
    acks.push_back({row[0], !(row[3] == 7 && row[5] == 0)});
  }
  tiers_->Acknowledge(acks);
  const auto ended = tiers_->TakeEnded();
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_THAT(ended[0].failed, ElementsAre(1));
  EXPECT_TRUE(tiers_->Has(first.content));
  EXPECT_FALSE(tiers_->Has(second.content));
}

TEST_F(TiersTest, TheStoreServesWhatTheHostForgot) {
  Make({.packing = {1}, .num_host_blocks = 2, .has_store = true});
  const Sample first(1), second(2);
  Keep(first);
  Keep(second);
  EXPECT_EQ(tiers_->host().num_items(), 1);
  EXPECT_EQ(tiers_->store().size(), 2u);
  EXPECT_TRUE(tiers_->Has(first.content));
  EXPECT_THAT(LoadNow(first, 6), IsEmpty());
  EXPECT_EQ((model_.device[{0, 6}]), 1);
}

TEST_F(TiersTest, ACorruptRecordIsForgotten) {
  Make({.packing = {1}, .num_host_blocks = 2, .has_store = true});
  const Sample first(1), second(2);
  Keep(first);
  Keep(second);
  model_.corrupt_share = 1.0;
  EXPECT_THAT(LoadNow(first, 6), ElementsAre(0));
  EXPECT_FALSE(tiers_->Has(first.content));
  EXPECT_FALSE(tiers_->store().Contains(first.content.key));
}

TEST_F(TiersTest, AFailedPutIsNeverCountedAsStored) {
  Make({.packing = {1}, .num_host_blocks = 3, .has_store = true});
  const Sample sample(1);
  model_.device[{0, 1}] = 1;
  tiers_->Write(sample.content, BlockId(1));
  Run();
  ASSERT_TRUE(tiers_->has_rows());
  model_.fail_share = 1.0;
  Run();
  EXPECT_EQ(tiers_->store().size(), 0u);
  EXPECT_TRUE(tiers_->Has(sample.content)) << "the host has it still";
}

TEST_F(TiersTest, ARestartFindsWhatTheStoreSaysThatItHas) {
  Make({.packing = {1}, .num_host_blocks = 3, .has_store = true});
  const Sample sample(1);
  Keep(sample);
  Make({.packing = {1}, .num_host_blocks = 3, .has_store = true});
  EXPECT_FALSE(tiers_->Has(sample.content));
  tiers_->NotifyStore(sample.content.key, true);
  EXPECT_THAT(LoadNow(sample, 6), IsEmpty());
  EXPECT_EQ((model_.device[{0, 6}]), 1);
  tiers_->NotifyStore(sample.content.key, false);
  EXPECT_EQ(tiers_->store().size(), 0u);
}

TEST_F(TiersTest, TwoRequestsThatWantOneRecordReadItOnce) {
  Make({.packing = {1}, .num_host_blocks = 3, .has_store = true});
  const Sample sample(1);
  Keep(sample);
  Make({.packing = {1}, .num_host_blocks = 3, .has_store = true});
  tiers_->NotifyStore(sample.content.key, true);
  for (const int32_t block : {6, 7}) {
    const BatchId batch = tiers_->Open(block);
    tiers_->Load(sample.content, BlockId(block), batch);
    tiers_->Close(batch);
  }
  EXPECT_EQ(Emit().store_moves.size(), 1u);
  model_.store.clear();
  tiers_->Acknowledge(std::vector<std::array<int32_t, 2>>{{1, 1}});
  EXPECT_EQ(Emit().transfers.size(), 2u);
}

TEST_F(TiersTest, AKeyOfOtherContentIsAMissAndIsReplaced) {
  Make({.packing = {1}, .num_host_blocks = 3});
  const Sample first(1), second(2);
  Keep(first);
  Content forged = second.content;
  forged.key = first.content.key;
  EXPECT_FALSE(tiers_->Has(forged));
  model_.device[{0, 1}] = 2;
  EXPECT_TRUE(tiers_->Write(forged, BlockId(1)));
  RunAll();
  EXPECT_TRUE(tiers_->Has(forged));
  EXPECT_FALSE(tiers_->Has(first.content));
}

TEST_F(TiersTest, AFullTierDropsWritesInsteadOfWhatIsBeingMoved) {
  Make({.packing = {1}, .num_host_blocks = 3});
  const Sample first(1), second(2), third(3);
  EXPECT_TRUE(tiers_->Write(first.content, BlockId(1)));
  EXPECT_TRUE(tiers_->Write(second.content, BlockId(2)));
  EXPECT_FALSE(tiers_->Write(third.content, BlockId(3)));
  EXPECT_EQ(tiers_->Stats().at("host_writes_dropped"), 1);
}

TEST_F(TiersTest, TheColdestGoesAndAGroupTakesARoomFromAnother) {
  Make({.packing = {2, 1}, .num_host_blocks = 3});
  const Sample a(1), b(2), c(3), d(5), snapshot(6, 1);
  for (const Sample* sample : {&a, &b, &c, &d}) Keep(*sample);
  EXPECT_TRUE(tiers_->Write(a.content, BlockId(1)));  // a use
  Keep(snapshot);
  EXPECT_TRUE(tiers_->Has(snapshot.content));
  EXPECT_TRUE(tiers_->Has(c.content)) << "the physical block of a and b was at rest for longer";
  EXPECT_FALSE(tiers_->Has(b.content));
}

TEST_F(TiersTest, ASaveEndsWhenItsWritesAre) {
  Make({.packing = {1}, .num_host_blocks = 3});
  const Sample first(1), second(2), third(3);
  Keep(third);
  const BatchId batch = tiers_->Open(3);
  EXPECT_TRUE(tiers_->Write(first.content, BlockId(4), batch));
  EXPECT_TRUE(tiers_->Write(second.content, BlockId(5), batch)) << "third made room";
  tiers_->Close(batch);
  Emit();
  tiers_->Acknowledge(std::vector<std::array<int32_t, 2>>{{3, 0}});
  EXPECT_THAT(tiers_->TakeEnded(), IsEmpty());
  tiers_->Acknowledge(std::vector<std::array<int32_t, 2>>{{2, 1}});
  const auto ended = tiers_->TakeEnded();
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_THAT(ended[0].failed, ElementsAre(1));
  EXPECT_TRUE(tiers_->Has(first.content));
}

TEST_F(TiersTest, AnEmptyBatchEndsAtOnce) {
  Make({.packing = {1}, .num_host_blocks = 3});
  tiers_->Close(tiers_->Open(3));
  EXPECT_EQ(tiers_->TakeEnded().size(), 1u);
}

TEST_F(TiersTest, UnknownAcknowledgementsAreRefusedAndChangeNothing) {
  Make({.packing = {1}, .num_host_blocks = 3});
  const Sample sample(1);
  tiers_->Write(sample.content, BlockId(1));
  using Acks = std::vector<std::array<int32_t, 2>>;
  EXPECT_THROW(tiers_->Acknowledge(Acks{{1, 1}}), std::invalid_argument) << "not handed out yet";
  Emit();
  EXPECT_THROW(tiers_->Acknowledge(Acks{{1, 1}, {7, 1}}), std::invalid_argument);
  EXPECT_THROW(tiers_->Acknowledge(Acks{{1, 1}, {1, 1}}), std::invalid_argument);
  EXPECT_EQ(tiers_->host().num_present(), 0);
  tiers_->Acknowledge(Acks{{1, 1}});
  EXPECT_EQ(tiers_->host().num_present(), 1);
}

// Random moves over two groups, with failing, late and corrupt ones. Blocks are overwritten as soon
// as a plan was carried out; whatever a load says has arrived must be the content it asked for.
class RandomTiers {
 public:
  explicit RandomTiers(uint64_t seed)
      : random_(seed),
        tiers_({.packing = {1 + Draw(3), 1 + Draw(2)},
                .num_host_blocks = 2 + Draw(8),
                .block_tokens = kBlockTokens,
                .layer_ranges = 1 + Draw(3),
                .has_store = Draw(2) == 0}) {
    for (int32_t i = 0; i < 60; ++i) samples_.emplace_back(i, i % 2);
    model_.fail_share = Draw(2) * 0.2;
    model_.corrupt_share = Draw(2) * 0.2;
  }

  void Step() {
    switch (Draw(6)) {
      case 0:
      case 1:
        return Write(BatchId());
      case 2:
        return Load();
      case 3:
        return Carry();
      case 4:
        return Acknowledge(false);
      default:
        return Draw(4) == 0 ? Save() : DisturbStore();
    }
  }

  void Drain() {
    model_.fail_share = 0.0;
    while (tiers_.has_rows() || !model_.pending.empty()) {
      Carry();
      Acknowledge(true);
    }
    EXPECT_TRUE(tiers_.is_idle());
    EXPECT_EQ(tiers_.num_batches(), 0u);
    EXPECT_THAT(wanted_, IsEmpty()) << "every batch ended";
  }

  const Tiers& tiers() const { return tiers_; }
  int64_t num_loaded = 0, num_failed = 0;

 private:
  struct Wanted {
    TierModel::Place place;
    int64_t number;
  };

  int32_t Draw(int32_t n) { return static_cast<int32_t>(random_() % static_cast<uint64_t>(n)); }
  const Sample& Any() { return samples_[Draw(static_cast<int32_t>(samples_.size()))]; }

  void Write(BatchId batch) {
    const Sample& sample = Any();
    const int32_t block = ++next_block_;
    model_.device[{sample.content.group.value, block}] = sample.number;
    tiers_.Write(sample.content, BlockId(block), batch);
    written_.push_back({sample.content.group.value, block});
  }
  void Save() {
    const BatchId batch = tiers_.Open(-1);
    for (int32_t i = Draw(4); i >= 0; --i) Write(batch);
    tiers_.Close(batch);
    TakeEnded();
  }
  void Load() {
    const BatchId batch = tiers_.Open(static_cast<int32_t>(wanted_.size()));
    for (int32_t i = Draw(4); i >= 0; --i) {
      const Sample& sample = Any();
      wanted_[batch.value].push_back({{sample.content.group.value, ++next_block_}, sample.number});
      tiers_.Load(sample.content, BlockId(next_block_), batch);
    }
    tiers_.Close(batch);
    TakeEnded();
  }
  void Carry() {
    TierRows rows;
    tiers_.Emit(rows);
    model_.Run(rows, random_);
    for (const TierModel::Place& place : written_) model_.device[place] = TierModel::kGarbage;
    written_.clear();
  }
  void Acknowledge(bool is_all) {
    tiers_.Acknowledge(model_.Report(random_, is_all));
    TakeEnded();
  }
  void DisturbStore() {
    const Sample& sample = Any();
    std::array<uint8_t, 16> key;
    std::memcpy(key.data(), &sample.content.key, key.size());
    const bool is_there = model_.store.contains(key);
    if (Draw(3) == 0) {
      model_.store.erase(key);  // and says so, or not
      if (Draw(2) == 0) tiers_.NotifyStore(sample.content.key, false);
    } else if (tiers_.Stats().at("store_keys") > 0 || is_there) {
      tiers_.NotifyStore(sample.content.key, is_there || Draw(2) == 0);
    }
  }
  void TakeEnded() {
    for (const Tiers::Ended& ended : tiers_.TakeEnded()) {
      if (ended.owner < 0) continue;
      const std::vector<Wanted> wanted = wanted_.at(ended.batch.value);
      wanted_.erase(ended.batch.value);
      for (size_t i = 0; i < wanted.size(); ++i) {
        if (std::ranges::count(ended.failed, static_cast<int32_t>(i)) > 0) {
          ++num_failed;
          continue;
        }
        ++num_loaded;
        ASSERT_EQ(model_.device[wanted[i].place], wanted[i].number);
      }
    }
  }

  std::mt19937_64 random_;
  Tiers tiers_;
  TierModel model_{kBlockTokens};
  std::deque<Sample> samples_;
  std::vector<TierModel::Place> written_;
  std::map<int64_t, std::vector<Wanted>> wanted_;
  int32_t next_block_ = 0;
};

TEST(RandomTiersTest, WhatArrivesIsWhatWasWrittenAndEverythingEnds) {
  const char* given = std::getenv("TOKENSPEED_TEST_SEED");
  const char* runs = std::getenv("TOKENSPEED_TEST_RUNS");
  const uint64_t first = given != nullptr ? std::strtoull(given, nullptr, 10) : 1;
  const uint64_t count = given != nullptr  ? 1
                         : runs != nullptr ? std::strtoull(runs, nullptr, 10)
                                           : 60;
  int64_t num_loaded = 0, num_failed = 0;
  for (uint64_t seed = first; seed < first + count; ++seed) {
    SCOPED_TRACE("TOKENSPEED_TEST_SEED=" + std::to_string(seed));
    RandomTiers run(seed);
    for (int i = 0; i < 300; ++i) {
      run.Step();
      ASSERT_NO_THROW(run.tiers().CheckInvariants());
      if (testing::Test::HasFatalFailure()) return;
    }
    run.Drain();
    num_loaded += run.num_loaded;
    num_failed += run.num_failed;
  }
  EXPECT_GT(num_failed, 0);
  EXPECT_GT(num_loaded, 0);
}

}  // namespace
}  // namespace tokenspeed
