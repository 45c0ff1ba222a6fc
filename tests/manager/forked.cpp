// Forked sequences: a branch is what its parent is, and each goes on as if the other were not there. Against dense attention
// over the tokens of each, however they were forked, rewound, saved and ended; and what fork() refuses. That every preset
// can be forked stands in tests/engine/forked.cpp.
// SPDX-License-Identifier: MIT
#include <kvtl/core/shard_access.hpp>
#include <kvtl/io/faulty.hpp>
#include <kvtl/presets/best.hpp>
#include <kvtl/presets/dynakv.hpp>
#include <kvtl/presets/dynamickv.hpp>
#include <kvtl/presets/int8.hpp>
#include <kvtl/presets/quest.hpp>
#include <kvtl/presets/snapkv.hpp>
#include <kvtl/presets/virtualised.hpp>

#include "support/cache_fixture.hpp"
#include "support/dense_rows.hpp"
#include "support/on_device.hpp"
#include "support/refused.hpp"

#include <unistd.h>

#include <array>
#include <cstddef>
#include <filesystem>
#include <numeric>
#include <random>
#include <thread>
#include <type_traits>

namespace manager_forked_test {

using namespace kvtl_test;

namespace {

constexpr kvtl::shape small{2, 4, 2, 64};
constexpr std::size_t max_tokens = 400;

using device = kvtl::faulty<kvtl::in_memory>;
using clusters = kvtl::kv_manager<f32_on<kvtl::presets::dynakv, device>>;
using runs = kvtl::kv_manager<f32_on<kvtl::presets::dynakv_unit_contiguous, device>>;
using layers = kvtl::kv_manager<f32_on<kvtl::presets::dynakv_virtualised, device>>;
using pages = kvtl::kv_manager<f32_on<kvtl::presets::quest, device>>;
using survivors = kvtl::snapkv_group;
using late = kvtl::dynamickv;                                              // budgets that compare layers
using priced = kvtl::kv_manager<f32_on<kvtl::presets::kvtl_best, device>>; // one price for all layers

const drift& stream() {
    static const drift made(small, max_tokens, 5);
    return made;
}

/// Attends everything, so that each step equals dense attention.
template <class Cache> typename Cache::config config_for(std::size_t sequences = 4, bool least = false) {
    typename Cache::config c;
    c.shape = small;
    c.max_tokens = max_tokens;
    c.max_sequences = sequences;
    c.attend_tokens = max_tokens;
    c.window_tokens = 8;
    if constexpr (requires { c.io.faults; }) c.io.faults = std::make_shared<kvtl::io_faults>();
    if constexpr (requires { c.clusterer.min_entries_to_cluster; }) {
        c.clusterer.min_entries_to_cluster = 64;
        c.clusterer.tokens_per_cluster = 8;
    }
    c.memory_bytes = std::size_t{64} << 20;
    if (least) c.memory_bytes = least_memory<Cache>(c);
    return c;
}

template <class Cache> std::uint32_t pages_in_use(Cache& cache) {
    std::uint32_t n = 0;
    for (unsigned s = 0; s < cache.shards(); ++s)
        n += kvtl::shard_access::of(cache, s).store().layout().used();
    return n;
}
template <class Cache> void check_nothing_left(Cache& cache) {
    CHECK(pages_in_use(cache) == 0);
    for (unsigned s = 0; s < cache.shards(); ++s) {
        CHECK_FALSE(kvtl::shard_access::of(cache, s).store().any_shared());
        CHECK(kvtl::shard_access::of(cache, s).store().promised_pages() == 0);
    }
}

/// A sequence with a history of its own: which tokens of the stream it has read, and what dense attention makes of them.
template <class Cache> class text {
  public:
    explicit text(Cache& cache) : cache_(&cache), keys_(small.layers), values_(small.layers) {
        const auto seq = cache.begin();
        REQUIRE_MESSAGE(seq.ok(), error_of(seq));
        seq_ = *seq;
    }

    [[nodiscard]] kvtl::sequence_id id() const { return seq_; }
    [[nodiscard]] std::size_t tokens() const { return tokens_; }
    [[nodiscard]] double error() const { return error_.value(); }
    [[nodiscard]] const std::vector<float>& outputs() const { return outputs_; }

    void prefill(std::size_t n, std::size_t first) {
        for (std::uint32_t l = 0; l < small.layers; ++l) {
            std::vector<float> out(n * stream().query_floats());
            require_ok(cache_->prefill(seq_, l, stream().input(l, first, n), out));
            take(l, first, n);
            for (std::size_t t = 0; t < n; t += 7)
                compare(l, tokens_ + t, first + t, &out[t * stream().query_floats()]);
        }
        tokens_ += n;
    }
    void read(std::size_t token, bool last_layer_first = false) {
        for (std::uint32_t i = 0; i < small.layers; ++i) {
            const std::uint32_t l = last_layer_first ? small.layers - 1 - i : i;
            std::vector<float> out(stream().query_floats());
            kvtl::status s = cache_->attend(seq_, l, stream().input(l, token), out);
            if (s.code() == kvtl::errc::writes_pending) { // the write that a test lets fail
                require_ok(cache_->retry_writes(seq_));
                s = cache_->attend(seq_, l, stream().input(l, token), out);
            }
            require_ok(s);
            take(l, token, 1);
            if (tokens_ % 3 == 0) compare(l, tokens_, token, out.data());
            outputs_.insert(outputs_.end(), out.begin(), out.end());
        }
        ++tokens_;
    }
    [[nodiscard]] bool rewind(std::size_t n) {
        if (!cache_->rewind(seq_, n)) return false;
        tokens_ -= n;
        for (auto* rows : {&keys_, &values_})
            for (auto& layer : *rows) layer.resize(tokens_ * stream().key_floats());
        return true;
    }
    [[nodiscard]] text fork() const {
        const auto branch = cache_->fork(seq_);
        REQUIRE_MESSAGE(branch.ok(), error_of(branch));
        text other(*this);
        other.seq_ = *branch;
        other.outputs_.clear();
        return other;
    }
    void save_and_load(const std::string& path) {
        const auto saved = cache_->save(seq_, path);
        REQUIRE_MESSAGE(saved.ok(), error_of(saved));
        end();
        const auto loaded = cache_->load(path);
        REQUIRE_MESSAGE(loaded.ok(), error_of(loaded));
        seq_ = loaded->seq;
    }
    void end() { require_ok(cache_->end(seq_)); }
    void check_tokens() const {
        for (std::uint32_t l = 0; l < small.layers; ++l) CHECK(cache_->tokens(seq_, l) == tokens_);
    }

  private:
    void take(std::uint32_t layer, std::size_t first, std::size_t n) {
        const auto k = stream().k(layer, first, n), v = stream().v(layer, first, n);
        keys_[layer].insert(keys_[layer].end(), k.begin(), k.end());
        values_[layer].insert(values_[layer].end(), v.begin(), v.end());
    }
    void compare(std::uint32_t layer, std::size_t at, std::size_t token, const float* out) {
        const auto dense = dense_rows(rule_, at, stream().q(layer, token).data(), keys_[layer].data(),
                                      values_[layer].data());
        for (std::size_t i = 0; i < dense.size(); ++i) error_.see(static_cast<double>(out[i]) - dense[i]);
    }

    Cache* cache_;
    kvtl::sequence_id seq_{};
    std::size_t tokens_ = 0;
    std::vector<std::vector<float>> keys_, values_; ///< by layer
    dense_rule rule_ = [] {
        dense_rule r;
        r.shape = small;
        return r;
    }();
    ::oracle::largest_error error_;
    std::vector<float> outputs_;
};

/// A path that nothing has afterwards.
class place {
  public:
    place()
        : path_((std::filesystem::temp_directory_path() / ("kvtl-forked-" + std::to_string(::getpid())))
                    .string()) {}
    place(const place&) = delete;
    ~place() { std::filesystem::remove(path_); }
    [[nodiscard]] const std::string& path() const { return path_; }

  private:
    std::string path_;
};

/// One of what has been forked, in every order of ends, and nothing is left.
template <class Cache> void equal_at_first_and_apart_then(const typename Cache::config& c) {
    auto cache = open_cache<Cache>(c);
    std::array<std::uint32_t, 3> order{};
    std::iota(order.begin(), order.end(), 0U);
    do {
        std::vector<text<Cache>> all;
        all.emplace_back(cache);
        all[0].prefill(120, 0);
        for (std::size_t t = 0; t < 21; ++t) all[0].read(120 + t);
        const std::uint64_t whole = hash_of(cache, all[0].id());
        const std::uint32_t used = pages_in_use(cache);
        all.push_back(all[0].fork());
        CHECK(hash_of(cache, all[0].id()) == whole);
        CHECK(hash_of(cache, all[1].id()) == whole);
        all.push_back(all[1].fork()); // of a branch
        CHECK(hash_of(cache, all[2].id()) == whole);
        CHECK(pages_in_use(cache) < 2 * used);
        for (std::size_t t = 0; t < 40; ++t)
            for (std::size_t i = 0; i < all.size(); ++i) all[i].read(150 + 50 * i + t);
        for (const auto& one : all) {
            one.check_tokens();
            CHECK(one.error() < exact);
        }
        CHECK(hash_of(cache, all[1].id()) != hash_of(cache, all[2].id()));
        for (const std::uint32_t i : order) {
            all[i].end();
            for (const std::uint32_t j : order) // those that are left go on
                if (cache.tokens(all[j].id(), 0) != 0)
                    for (std::size_t t = 0; t < 10; ++t) all[j].read(300 + t);
        }
        for (const auto& one : all) CHECK(one.error() < exact);
        check_nothing_left(cache);
    } while (std::next_permutation(order.begin(), order.end()));
}

/// Any calls in any order, on sequences that come from each other.
template <class Cache>
void equals_dense_whatever_happens(const typename Cache::config& c, std::uint32_t seed) {
    CAPTURE(seed);
    const place file;
    auto cache = open_cache<Cache>(c);
    std::mt19937 random(seed);
    const auto below = [&](std::size_t n) { return std::size_t{random()} % n; };
    std::vector<text<Cache>> all;
    all.emplace_back(cache);
    all[0].prefill(90, 0);
    std::size_t forks = 0;
    for (int call = 0; call < 160; ++call) {
        const std::size_t i = below(all.size());
        text<Cache>& one = all[i];
        const std::size_t what = below(20);
        if (what < 4 && all.size() < c.max_sequences) {
            all.push_back(text<Cache>(one.fork()));
            ++forks;
        } else if (what < 6 && all.size() > 1) {
            one.end();
            CHECK(one.error() < exact);
            all.erase(all.begin() + static_cast<std::ptrdiff_t>(i));
        } else if (what == 6) {
            static_cast<void>(one.rewind(1 + below(6)));
        } else if (what == 7) {
            one.save_and_load(file.path());
        } else if (what == 8 && one.tokens() + 20 < max_tokens) {
            one.prefill(20, below(max_tokens - 20));
        } else if (what == 9) { // touches one layer
            const auto layer = static_cast<std::uint32_t>(below(small.layers));
            require_ok(cache.prefetch(one.id(), layer, stream().q(layer, below(max_tokens))));
        } else {
            for (std::size_t n = below(12); n > 0 && one.tokens() < max_tokens; --n)
                one.read(below(max_tokens));
        }
    }
    CHECK(forks > 8);
    CHECK(cache.stats().bytes_moved_by_forks > 0);
    for (auto& one : all) {
        one.check_tokens();
        CHECK(one.error() < exact);
        one.end();
    }
    check_nothing_left(cache);
}

} // namespace

TEST_CASE("a branch is what its parent is, then each goes its way, and ends when it likes") {
    for (const bool share : {false, true})
        for (const bool least : {false, true}) {
            CAPTURE(share);
            CAPTURE(least);
            const auto with = [&]<class Cache>(Cache*) {
                auto c = config_for<Cache>();
                c.share = share && !std::is_same_v<Cache, pages>; // which lie in token order
                if (least) c.memory_bytes = least_memory<Cache>(c);
                equal_at_first_and_apart_then<Cache>(c);
            };
            with(static_cast<clusters*>(nullptr));
            with(static_cast<runs*>(nullptr));
            with(static_cast<layers*>(nullptr));
            with(static_cast<pages*>(nullptr));
        }
}

TEST_CASE("forked, rewound, saved, loaded and ended in any order, all equal dense attention") {
    for (std::uint32_t seed = 1; seed < 5; ++seed) {
        for (const bool least : {false, true}) {
            CAPTURE(least);
            equals_dense_whatever_happens<clusters>(config_for<clusters>(4, least), seed);
            equals_dense_whatever_happens<runs>(config_for<runs>(4, least), seed);
            equals_dense_whatever_happens<layers>(config_for<layers>(4, least), seed);
            equals_dense_whatever_happens<pages>(config_for<pages>(4, least), seed);
        }
        auto c = config_for<clusters>(5);
        c.share = true;
        equals_dense_whatever_happens<clusters>(c, seed);
        auto two = config_for<pages>(4);
        two.shards = 2;
        two.memory_bytes = least_memory<pages>(two);
        equals_dense_whatever_happens<pages>(two, seed);
    }
}

TEST_CASE("two branches made at one moment, each by itself, go on with the same bits") {
    const auto check = []<class Cache>(Cache*, bool in_turn) {
        CAPTURE(in_turn);
        auto c = config_for<Cache>(3);
        c.attend_tokens = 48;
        auto cache = open_cache<Cache>(c);
        text<Cache> one(cache);
        one.prefill(200, 0);
        for (std::size_t t = 200; t < 250; ++t) one.read(t);
        text<Cache> a = one.fork(), b = one.fork();
        for (std::size_t t = 250; t < 300; ++t) {
            one.read(t + 60); // the last owner of a place writes where it is
            a.read(t);
            if (in_turn) b.read(t);
        }
        if (!in_turn) one.end();
        for (std::size_t t = 250; t < 300 && !in_turn; ++t) b.read(t);
        CHECK(same_bits(a.outputs(), b.outputs()));
        // A save keeps how much room places have, and the last owner of a place keeps it.
        if (!std::is_same_v<Cache, runs>) CHECK(hash_of(cache, a.id()) == hash_of(cache, b.id()));
    };
    for (const bool in_turn :
         {false, true}) { // frames that are lent by tables differ from slot to slot: with none of them
        check(static_cast<clusters*>(nullptr), in_turn);
        check(static_cast<runs*>(nullptr), in_turn);
        check(static_cast<pages*>(nullptr), in_turn);
    }
}

TEST_CASE("branches read ahead of pages that they share, and each attends its own") {
    auto c = config_for<pages>(3, true);
    auto cache = open_cache<pages>(c);
    text<pages> one(cache);
    one.prefill(200, 0);
    text<pages> two = one.fork(), three = two.fork();
    for (std::size_t t = 200; t < 230; ++t) {
        for (const auto* who : {&one, &two, &three})
            for (std::uint32_t l = 0; l < small.layers; ++l)
                require_ok(cache.prefetch(who->id(), l, stream().q(l, t)));
        one.read(t), two.read(t + 10), three.read(t + 20);
    }
    for (const auto* who : {&one, &two, &three}) CHECK(who->error() < exact);
}

TEST_CASE("a branch of fewer tokens, as far as a rewind goes back") {
    auto cache = open_cache<clusters>(config_for<clusters>(2));
    text<clusters> one(cache);
    one.prefill(100, 0);
    for (std::size_t t = 100; t < 110; ++t) one.read(t);
    const std::uint64_t before = hash_of(cache, one.id());
    CHECK_REFUSED(cache.fork(one.id(), 50), out_of_range, "layer 0 has 110 tokens");
    CHECK_REFUSED(cache.fork(one.id(), 111), out_of_range, "111");
    const auto branch = cache.fork(one.id(), 105);
    REQUIRE_MESSAGE(branch.ok(), error_of(branch));
    CHECK(cache.tokens(*branch, 0) == 105);
    CHECK(cache.tokens(one.id(), 0) == 110);
    CHECK(hash_of(cache, one.id()) == before);
}

TEST_CASE("fork refuses what is not between two tokens, and what has no slot") {
    auto cache = open_cache<clusters>(config_for<clusters>(2));
    text<clusters> one(cache);
    SUBCASE("a sequence that is not open") {
        one.end();
        CHECK_REFUSED(cache.fork(one.id()), not_open, "fork: sequence 0");
    }
    SUBCASE("a prompt whose last chunk is to come") {
        for (std::uint32_t l = 0; l < small.layers; ++l) {
            auto in = stream().input(l, 0, 50);
            in.last_chunk = false;
            std::vector<float> out(50 * stream().query_floats());
            require_ok(cache.prefill(one.id(), l, in, out));
        }
        CHECK_REFUSED(cache.fork(one.id()), invalid_argument, "50 tokens wait for a prefill");
    }
    SUBCASE("one layer is ahead") {
        one.prefill(100, 0);
        std::vector<float> out(stream().query_floats());
        require_ok(cache.attend(one.id(), 0, stream().input(0, 100, 1), out));
        CHECK_REFUSED(cache.fork(one.id()), invalid_argument,
                      "fork: layer 1 has 100 tokens and layer 0 has 101");
    }
    SUBCASE("all sequences are open") {
        REQUIRE(cache.begin().ok());
        CHECK_REFUSED(cache.fork(one.id()), out_of_range, "fork: all 2 sequences are open");
    }
    SUBCASE("a sequence without a token may be forked") {
        const text<clusters> other = one.fork();
        CHECK(cache.tokens(other.id(), 0) == 0);
    }
}

TEST_CASE("256 sequences may share a page, and one more is refused") {
    auto c = config_for<pages>(258);
    c.shape = {1, 1, 1, 64};
    c.max_tokens = c.attend_tokens = 128;
    c.memory_bytes = least_memory<pages>(c);
    auto cache = open_cache<pages>(c);
    const drift data(c.shape, 120, 3);
    const auto parent = cache.begin();
    REQUIRE(parent.ok());
    std::vector<float> out(100 * data.query_floats());
    require_ok(cache.prefill(*parent, 0, data.input(0, 0, 100), out));
    const std::uint64_t before = hash_of(cache, *parent);
    std::vector<kvtl::sequence_id> open{*parent};
    while (open.size() < 256) {
        const auto branch = cache.fork(open.back());
        REQUIRE_MESSAGE(branch.ok(), error_of(branch));
        open.push_back(*branch);
    }
    const std::uint32_t used = pages_in_use(cache);
    CHECK_REFUSED(cache.fork(*parent), out_of_range, "fork: 256 sequences share a page");
    CHECK(pages_in_use(cache) == used);
    CHECK(hash_of(cache, *parent) == before);
    CHECK(hash_of(cache, open.back()) == before);
    require_ok(cache.end(open[100]));
    open[100] = *cache.begin(); // its slot, and another one's
    CHECK(cache.fork(*parent).ok());
    CHECK_FALSE(cache.fork(*parent).ok());
    for (std::size_t i = 0; i < open.size(); ++i) require_ok(cache.end(open[i]));
}

TEST_CASE("a branch lives in the shard of its parent") {
    auto c = config_for<pages>(4);
    c.shards = 2;
    c.shard_by = kvtl::division::sequences;
    auto cache = open_cache<pages>(c);
    text<pages> zero(cache), one(cache);
    one.prefill(100, 0);
    const text<pages> branch = one.fork();
    CHECK(branch.id().slot == 3);
    CHECK(cache.shard_of(branch.id()) == cache.shard_of(one.id()));
    CHECK(hash_of(cache, branch.id()) == hash_of(cache, one.id()));
    CHECK_REFUSED(cache.fork(one.id()), out_of_range, "fork: all 2 sequences of the shard are open");
    CHECK(cache.fork(zero.id()).ok());
}

TEST_CASE("fork copies nothing; the layer that a call touches is copied, for whichever sequence it is") {
    const auto check = []<class Cache>(Cache*, bool parent_first) {
        CAPTURE(parent_first);
        auto cache = open_cache<Cache>(config_for<Cache>(3));
        text<Cache> one(cache);
        one.prefill(200, 0);
        for (std::size_t t = 200; t < 230; ++t) one.read(t);
        const std::uint32_t used = pages_in_use(cache);
        const kvtl::statistics before = cache.stats();
        const std::size_t kept = cache.kept_entries(one.id(), 1);
        text<Cache> a = one.fork(), b = a.fork();
        const auto& store = kvtl::shard_access::of(cache, 0).store();
        CHECK_FALSE(store.any_shared());
        CHECK(pages_in_use(cache) == used);
        const kvtl::statistics after = cache.stats();
        CHECK(after.writes == before.writes);
        CHECK(after.reads == before.reads);
        CHECK(after.units == 3 * before.units);
        CHECK(after.kept_bytes == 3 * before.kept_bytes);
        for (const auto* who : {&a, &b}) {
            who->check_tokens();
            CHECK(cache.kept_entries(who->id(), 1) == kept);
        }
        require_ok(cache.prefetch((parent_first ? one : b).id(), 1, stream().q(1, 230)));
        CHECK(store.any_shared());
        CHECK(cache.stats().kept_bytes == after.kept_bytes);
        CHECK(cache.stats().units == after.units);
        for (std::size_t t = 230; t < 250; ++t) one.read(t), a.read(t + 20), b.read(t + 40);
        for (auto* who : {&one, &a, &b}) {
            CHECK(who->error() < exact);
            who->end();
        }
        check_nothing_left(cache);
    };
    for (const bool parent_first : {false, true}) {
        check(static_cast<clusters*>(nullptr), parent_first);
        check(static_cast<pages*>(nullptr), parent_first);
    }
}

/// A branch whose layers are still its parent's, and one that has copied them, go on with the same bits: whatever the parent
/// does meanwhile, in whichever order of layers.
TEST_CASE("a branch is as its parent was when it was forked, however late it is copied") {
    const auto check = []<class Cache>(Cache*, int then, bool slides) {
        CAPTURE(then);
        auto c = config_for<Cache>(4);
        c.attend_tokens = 48;
        if (slides) c.attention.windows = {16, 0};
        auto cache = open_cache<Cache>(c);
        text<Cache> one(cache);
        one.prefill(200, 0);
        for (std::size_t t = 200; t < 230; ++t) one.read(t);
        text<Cache> early = one.fork(), late = one.fork(), last = late.fork();
        const std::uint64_t whole = hash_of(cache, early.id());
        if (then == 0) one.end();
        if (then == 1) CHECK(one.rewind(4));
        if (then == 2) one.prefill(20, 300);
        if (then == 3) late.end();
        if (then == 4) { // the layers in the other order
            std::vector<float> out(stream().query_floats());
            for (std::uint32_t l = small.layers; l-- > 0;)
                require_ok(cache.attend(one.id(), l, stream().input(l, 300), out));
        }
        if (then == 5)
            for (std::size_t t = 230; t < 260; ++t) early.read(t);
        if (then != 3) CHECK(hash_of(cache, late.id()) == whole);
        CHECK(hash_of(cache, last.id()) == whole);
        if (then != 5)
            for (std::size_t t = 230; t < 260; ++t) early.read(t);
        for (std::size_t t = 230; t < 260; ++t) last.read(t);
        CHECK(same_bits(early.outputs(), last.outputs()));
    };
    for (int then = 0; then < 6; ++then) {
        for (const bool slides : {false, true}) {
            check(static_cast<clusters*>(nullptr), then, slides);
            check(static_cast<survivors*>(nullptr), then, slides);
        }
        check(static_cast<pages*>(nullptr), then, false);
    }
}

TEST_CASE("what belongs to all layers of a sequence is that of the one that is forked") {
    SUBCASE("a price for all layers, though the last layer is touched first") {
        auto c = config_for<priced>(3);
        c.attend_tokens = 48;
        auto cache = open_cache<priced>(c);
        text<priced> one(cache);
        one.prefill(200, 0);
        for (std::size_t t = 200; t < 230; ++t) one.read(t);
        text<priced> copied = one.fork(), waits = one.fork();
        require_ok(cache.rewind(copied.id(), 0)); // touches all layers
        for (auto* who : {&copied, &waits}) {
            who->read(230, true);
            for (std::size_t t = 231; t < 250; ++t) who->read(t);
        }
        CHECK(same_bits(copied.outputs(), waits.outputs()));
    }
    SUBCASE("notes of all layers, though the parent has gone on in one that the branch has copied") {
        auto c = config_for<priced>(3);
        c.attend_tokens = 48;
        auto cache = open_cache<priced>(c);
        text<priced> one(cache);
        one.prefill(200, 0);
        for (std::size_t t = 200; t < 230; ++t) one.read(t);
        text<priced> two = one.fork();
        std::vector<float> out(stream().query_floats());
        require_ok(cache.attend(one.id(), 0, stream().input(0, 300), out));
        text<priced> three = two.fork();
        for (auto* who : {&two, &three}) {
            who->read(230, true);
            for (std::size_t t = 231; t < 250; ++t) who->read(t);
        }
        CHECK(same_bits(two.outputs(), three.outputs()));
    }
    SUBCASE("budgets, though the parent has begun its prompt") {
        auto cache = open_cache<late>(config_for<late>(4));
        text<late> zero(cache), one(cache);
        zero.prefill(120, 0);
        text<late> two = one.fork();
        std::vector<float> out(120 * stream().query_floats());
        require_ok(cache.prefill(one.id(), 0, stream().input(0, 0, 120), out));
        text<late> three = two.fork();
        three.prefill(120, 0);
        CHECK(hash_of(cache, three.id()) == hash_of(cache, zero.id()));
    }
}

TEST_CASE("branches that were never touched end, and so do their parents, in any order") {
    const auto check = []<class Cache>(Cache*) {
        std::array<std::uint32_t, 4> order{};
        std::iota(order.begin(), order.end(), 0U);
        do {
            auto cache = open_cache<Cache>(config_for<Cache>(4));
            std::vector<text<Cache>> all;
            all.emplace_back(cache);
            all[0].prefill(120, 0);
            const std::uint64_t whole = hash_of(cache, all[0].id());
            all.push_back(all[0].fork());
            all.push_back(all[1].fork());
            all.push_back(all[0].fork());
            for (std::size_t i = 0; i + 1 < order.size(); ++i) all[order[i]].end();
            CHECK(hash_of(cache, all[order[3]].id()) == whole);
            for (std::size_t t = 0; t < 20; ++t) all[order[3]].read(150 + t);
            CHECK(all[order[3]].error() < exact);
            all[order[3]].end();
            check_nothing_left(cache);
        } while (std::next_permutation(order.begin(), order.end()));
    };
    check(static_cast<clusters*>(nullptr));
    check(static_cast<layers*>(nullptr));
    check(static_cast<pages*>(nullptr));
}

TEST_CASE("the blocks of chains that were kept for a branch are free again when it ends untouched") {
    auto c = config_for<kvtl::full_int8>(2);
    c.memory_bytes = least_memory<kvtl::full_int8>(c);
    auto cache = open_cache<kvtl::full_int8>(c);
    text<kvtl::full_int8> one(cache);
    one.prefill(300, 0);
    one.fork().end();
    text<kvtl::full_int8> other(cache);
    other.prefill(max_tokens, 0); // there is room for all that may come
    for (std::size_t t = 300; t < max_tokens; ++t) one.read(t);
}

TEST_CASE("a rewind that is refused copies nothing") {
    auto cache = open_cache<clusters>(config_for<clusters>(2));
    text<clusters> one(cache);
    one.prefill(200, 0);
    const text<clusters> two = one.fork();
    for (const kvtl::sequence_id who : {one.id(), two.id()}) {
        CHECK(cache.rewind(who, 10'000).code() == kvtl::errc::out_of_range);
        CHECK(cache.rewind_to(who, 1).code() == kvtl::errc::out_of_range);
    }
    CHECK_FALSE(kvtl::shard_access::of(cache, 0).store().any_shared());
}

TEST_CASE("a read or write that fails while a layer is copied changes nothing, and the call may come again") {
    const auto check = []<class Cache>(Cache*, bool reads, bool of_parent) {
        CAPTURE(of_parent);
        auto c = config_for<Cache>(2);
        auto cache = open_cache<Cache>(c);
        text<Cache> one(cache);
        one.prefill(130, 0);
        for (std::size_t t = 130; t < 160; ++t) one.read(t);
        const std::uint64_t before = hash_of(cache, one.id());
        const text<Cache> two = one.fork();
        const kvtl::sequence_id who = of_parent ? one.id() : two.id();
        auto& fault = reads ? c.io.faults->fail_read : c.io.faults->fail_write;
        std::size_t failed = 0;
        for (;; ++failed) { // each of them in turn, until none is left
            fault.first = (reads ? c.io.faults->reads : c.io.faults->writes).load() + failed % 3;
            fault.count = 1;
            const kvtl::status s = cache.rewind(who, 0); // touches all layers
            fault.first = kvtl::io_faults::never;
            one.check_tokens(), two.check_tokens();
            if (s.ok()) break;
            REQUIRE(failed < 200);
            if (!reads && of_parent) CHECK_FALSE(cache.end(one.id()).ok());
            require_ok(cache.retry_writes(who));
        }
        CHECK(hash_of(cache, one.id()) == before);
        CHECK(hash_of(cache, two.id()) == before);
        text<Cache> branch = two;
        one.read(200), branch.read(210);
        CHECK(one.error() < exact);
        CHECK(branch.error() < exact);
        one.end(), branch.end();
        check_nothing_left(cache);
        return failed;
    };
    for (const bool of_parent : {false, true}) {
        CHECK(check(static_cast<clusters*>(nullptr), false, of_parent) > 0);
        CHECK(check(static_cast<runs*>(nullptr), false, of_parent) > 0);
        CHECK(check(static_cast<layers*>(nullptr), false, of_parent) > 0);
        CHECK(check(static_cast<pages*>(nullptr), true, of_parent) > 0);
    }
}

TEST_CASE(
    "a fork sets aside what copying will take: storage, rows, and tables that would be lent to frames") {
    SUBCASE("storage") {
        auto c = config_for<pages>(3);
        c.max_tokens = 40'000; // of which no sequence has many: the file is several steps of reserved storage
        c.memory_bytes = least_memory<pages>(c);
        auto cache = open_cache<pages>(c);
        text<pages> one(cache);
        one.prefill(100, 0);
        const std::uint64_t whole = hash_of(cache, one.id());
        auto& store = kvtl::shard_access::of(cache, 0).store();
        const auto use_up = [&] {
            c.io.faults->full_beyond = 0;
            while (store.ensure_space(store.layout().run_pages()).ok())
                REQUIRE(store.layout().allocate_run() != kvtl::none);
            c.io.faults->full_beyond = kvtl::io_faults::never;
        };
        use_up();
        const text<pages> two = one.fork(); // reserves another step
        use_up();
        c.io.faults->full_beyond = 0;
        require_ok(cache.rewind(two.id(), 0));
        CHECK(hash_of(cache, two.id()) == whole);
        CHECK_REFUSED(cache.fork(one.id()), disk_full, "");
    }
    SUBCASE("rows") {
        auto cache = open_cache<survivors>(config_for<survivors>(2));
        text<survivors> one(cache);
        one.prefill(120, 0);
        const auto& pool = kvtl::shard_access::of(cache, 0).kept().pool();
        const std::uint32_t before = pool.free_blocks(), taken = pool.size() - before;
        REQUIRE(taken > 0);
        const text<survivors> two = one.fork();
        CHECK(pool.free_blocks() == before - taken);
        require_ok(cache.rewind(two.id(), 0));
        CHECK(pool.free_blocks() == before - taken);
    }
    SUBCASE("tables") {
        for (const bool share : {false, true}) {
            auto c = config_for<clusters>(3);
            c.shape = small;
            c.max_tokens = 16000;
            c.attend_tokens = max_tokens;
            c.share = share;
            c.memory_bytes = least_memory<clusters>(c) + 40 * 4096;
            auto cache = open_cache<clusters>(c);
            text<clusters> one(cache);
            one.prefill(300, 0);
            for (std::size_t t = 300; t < 310; ++t) one.read(t);
            const auto& store = kvtl::shard_access::of(cache, 0).store();
            REQUIRE(cache.stats().borrowed_bytes > 0);
            text<clusters> two = one.fork(), three = two.fork();
            const auto lent_and_promised = [&] { // never more than there is
                std::size_t spare = 0, lent = 0;
                for (const auto& region : store.lanes().regions) spare += region.spare();
                for (const auto& pool : store.pools())
                    lent += std::size_t{pool.borrowed()} * pool.frame_bytes();
                CHECK(lent <= spare);
            };
            lent_and_promised();
            require_ok(cache.rewind(two.id(), 0)); // copies, and adds nothing
            lent_and_promised();
            for (std::size_t t = 0; t < 40; ++t) {
                one.read(t), lent_and_promised();
                if (t > 10) three.read(t + 100);
                if (t > 20) two.read(t + 200);
                lent_and_promised();
            }
            for (auto* who : {&one, &two, &three}) CHECK(who->error() < exact);
            for (auto* who : {&one, &two, &three}) who->end();
            check_nothing_left(cache);
            for (const auto& region : store.lanes().regions) CHECK(region.promised == 0);
        }
    }
}

TEST_CASE("two threads, each in its shard, copy the same branch") {
    auto c = config_for<pages>(3);
    c.shards = 2;
    auto cache = open_cache<pages>(c);
    text<pages> one(cache);
    one.prefill(120, 0);
    const std::uint64_t whole = hash_of(cache, one.id());
    const text<pages> two = one.fork(), three = two.fork();
    std::array<std::size_t, 2> refused{};
    const auto touch = [&](unsigned shard) {
        for (std::uint32_t l = 0; l < small.layers; ++l)
            for (const auto id : shard == 0 ? std::array{two.id(), one.id()} : std::array{one.id(), two.id()})
                if (!cache.prefetch(id, l, stream().q(l, 120), shard)) ++refused[shard];
    };
    std::thread first(touch, 0), second(touch, 1);
    first.join(), second.join();
    for (unsigned shard = 0; shard < 2; ++shard) {
        CHECK(refused[shard] == 0);
        CHECK(kvtl::shard_access::of(cache, shard).store().any_shared());
    }
    for (const auto& id : {one.id(), two.id(), three.id()}) CHECK(hash_of(cache, id) == whole);
}

/// For the thread sanitizer.
TEST_CASE("a thread asks for the tokens of its sequence while another one forks in its shard") {
    auto c = config_for<pages>(6);
    c.shards = 2;
    c.shard_by = kvtl::division::sequences;
    auto cache = open_cache<pages>(c);
    text<pages> zero(cache), one(cache);
    zero.prefill(120, 0), one.prefill(100, 0);
    bool always = true;
    std::thread forks([&] {
        for (int i = 0; i < 50; ++i) {
            const auto branch = cache.fork(zero.id(), 119);
            always = always && branch.ok() && cache.end(*branch).ok();
        }
    });
    for (int i = 0; i < 2000; ++i) {
        CHECK(cache.tokens(one.id(), 0) == 100);
        CHECK(cache.kept_entries(one.id(), 1) == 200);
    }
    forks.join();
    CHECK(always);
}

} // namespace manager_forked_test
