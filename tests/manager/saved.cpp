// Saved sequences: what save() refuses, what load() refuses and says, and that neither changes anything else. That every
// preset goes on to the bit stands in tests/engine/saved.cpp; the file itself is tested in tests/save/.
// SPDX-License-Identifier: MIT
#include <kvtl/core/shard_access.hpp>
#include <kvtl/io/faulty.hpp>
#include <kvtl/presets/dynakv.hpp>
#include <kvtl/presets/quest.hpp>
#include <kvtl/presets/snapkv.hpp>

#include "support/cache_fixture.hpp"
#include "support/on_device.hpp"
#include "support/refused.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace manager_saved_test {

using namespace kvtl_test;

namespace {

constexpr kvtl::shape small{2, 4, 2, 64};
constexpr std::size_t max_tokens = 420;

using clusters = kvtl::kv_manager<f32_on<kvtl::presets::dynakv, kvtl::faulty<kvtl::in_memory>>>;
using runs = kvtl::kv_manager<f32_on<kvtl::presets::dynakv_unit_contiguous, kvtl::faulty<kvtl::in_memory>>>;
using pages = kvtl::kv_manager<f32_on<kvtl::presets::quest, kvtl::faulty<kvtl::in_memory>>>;
using rows = kvtl::kv_manager<kvtl::presets::snapkv_group>;

template <class Cache> typename Cache::config config_for(std::size_t attend_tokens = 96) {
    typename Cache::config c;
    c.shape = small;
    c.max_tokens = max_tokens;
    c.max_sequences = 2;
    c.attend_tokens = attend_tokens;
    c.memory_bytes = std::size_t{32} << 20;
    if constexpr (requires { c.io.faults; }) c.io.faults = std::make_shared<kvtl::io_faults>();
    if constexpr (requires { c.clusterer.min_entries_to_cluster; }) c.clusterer.min_entries_to_cluster = 64;
    return c;
}

/// A path that nothing has yet, and nothing has afterwards.
class place {
  public:
    explicit place(const std::string& name)
        : path_((std::filesystem::temp_directory_path() / ("kvtl-" + std::to_string(::getpid()) + name))
                    .string()) {}
    place(const place&) = delete;
    ~place() { std::filesystem::remove(path_); }
    [[nodiscard]] const std::string& path() const { return path_; }
    [[nodiscard]] bool there() const { return std::filesystem::exists(path_); }

  private:
    std::string path_;
};

/// Memory that can fall silent. Reads from then on are given up, and their memory is still the device's.
struct falling_silent {
    static constexpr std::string_view name = "falling_silent";
    struct record {
        bool silent = false;
        std::vector<::iovec> unanswered;
    };
    struct config {
        std::shared_ptr<record> of{};
    };
    class queue {
      public:
        queue(kvtl::in_memory::queue& inner, record& of) : inner_(inner), of_(of) {}
        kvtl::status submit(std::span<const kvtl::io_request> requests) noexcept {
            if (!of_.silent || requests.front().verb == kvtl::io_verb::write) return inner_.submit(requests);
            for (const kvtl::io_request& r : requests) {
                tags_.push_back(r.tag);
                of_.unanswered.insert(of_.unanswered.end(), r.slices, r.slices + r.slice_count);
            }
            return {};
        }
        std::size_t reap(std::span<kvtl::io_completion> done, bool wait) noexcept {
            if (inner_.in_flight() > 0 || !wait) return inner_.reap(done, wait);
            std::size_t n = 0;
            for (; n < done.size() && !tags_.empty(); tags_.pop_back())
                done[n++] = {tags_.back(), kvtl::io_no_answer};
            return n;
        }
        [[nodiscard]] std::size_t in_flight() const noexcept { return inner_.in_flight() + tags_.size(); }
        [[nodiscard]] kvtl::io_counters counters() const noexcept { return inner_.counters(); }

      private:
        kvtl::in_memory::queue& inner_;
        record& of_;
        std::vector<std::uint64_t> tags_;
    };
    class device {
      public:
        device(kvtl::in_memory::device inner, record& of, unsigned queues) : inner_(std::move(inner)) {
            for (unsigned i = 0; i < queues; ++i) queues_.emplace_back(inner_.queue(i), of);
        }
        [[nodiscard]] kvtl::io_device_info device_info() const noexcept { return inner_.device_info(); }
        [[nodiscard]] falling_silent::queue& queue(unsigned i) noexcept { return queues_[i]; }
        kvtl::status reserve(std::uint64_t offset, std::uint64_t bytes) noexcept {
            return inner_.reserve(offset, bytes);
        }

      private:
        kvtl::in_memory::device inner_;
        std::vector<falling_silent::queue> queues_;
    };
    static kvtl::result<device> open(const config& c, const kvtl::io_plan& plan) {
        auto inner = kvtl::in_memory::open({}, plan);
        if (!inner) return inner.error();
        return device(*std::move(inner), *c.of, plan.queues);
    }
};

const drift& stream() {
    static const drift made(small, max_tokens, 5);
    return made;
}

/// What a target or file has is this sequence.
template <class Cache, class From>
void check_saved(From&& from, Cache& cache, kvtl::sequence_id seq, typename Cache::config c) {
    if constexpr (requires { c.io.faults; }) c.io.faults = std::make_shared<kvtl::io_faults>();
    auto other = open_cache<Cache>(c);
    const auto loaded = other.load(from);
    REQUIRE_MESSAGE(loaded.ok(), error_of(loaded));
    CHECK(hash_of(other, loaded->seq) == hash_of(cache, seq));
}
kvtl::saved_file opened(const std::string& path) {
    auto file = kvtl::saved_file::open(path);
    REQUIRE_MESSAGE(file.ok(), error_of(file));
    return *std::move(file);
}

/// Prompt, steps, rewinds and a turn, and a save to one file after each. Memory is short, so that entries are appended, units
/// split and move, and open pages are put away in between.
template <class Cache> void is_saved_again(bool by_name) {
    const place path("-again.kvs");
    auto c = config_for<Cache>();
    if constexpr (requires { c.clusterer.tokens_per_cluster; }) c.clusterer.tokens_per_cluster = 8;
    c.window_tokens = 8;
    c.max_sequences = 1;
    c.memory_bytes = least_memory<Cache>(c) + (std::size_t{64} << 10);
    auto cache = open_cache<Cache>(c);
    reader<Cache> one(cache, stream(), 0);
    one.prefill(150, 90);
    const auto first = cache.save(one.id(), path.path());
    REQUIRE_MESSAGE(first.ok(), error_of(first));
    std::optional<kvtl::saved_file> file;
    if (!by_name) file = opened(path.path());
    std::uint64_t written = 0;
    for (std::uint64_t round = 0; round < 24; ++round) {
        one.decode(7);
        if (round % 4 == 3) one.rewind(3);
        if (round == 10) one.prefill(40, 25);
        const auto facts = by_name ? cache.save(one.id(), path.path()) : cache.save(one.id(), *file);
        REQUIRE_MESSAGE(facts.ok(), error_of(facts));
        CHECK(facts->generation == round + 2);
        CHECK(facts->tokens == one.tokens());
        written += facts->written_bytes;
        if (file) require_ok(file->publish());
        if (file)
            check_saved(*file, cache, one.id(), c);
        else
            check_saved(path.path(), cache, one.id(), c);
    }
    const place whole("-whole.kvs");
    const auto all = cache.save(one.id(), whole.path());
    REQUIRE_MESSAGE(all.ok(), error_of(all));
    CHECK(all->generation == 1);
    CHECK(written / 24 < all->written_bytes * 3 / 4);
    check_saved(whole.path(), cache, one.id(), c);
    if constexpr (requires { c.clusterer.tokens_per_cluster; }) {
        CHECK(cache.stats().splits > 0);
        CHECK(cache.stats().tail_rewrites > 0);
    }
}

/// Saved, loaded into a cache with another number of shards and in another slot: the same sequence.
template <class Cache> void is_the_same_elsewhere() {
    const place file("-same.kvs");
    auto c = config_for<Cache>();
    auto cache = open_cache<Cache>(c);
    reader<Cache> one(cache, stream(), 0);
    one.prefill(200, 90);
    one.decode(70);
    const std::uint64_t before = hash_of(cache, one.id());
    const auto facts = cache.save(one.id(), file.path(), {.model = 7});
    REQUIRE_MESSAGE(facts.ok(), error_of(facts));
    CHECK(facts->tokens == 270);
    CHECK(hash_of(cache, one.id()) == before);

    c.shards = 2;
    c.max_tokens += 50;
    c.memory_bytes *= 2;
    auto other = open_cache<Cache>(c);
    reader<Cache> beside(other, stream(), 0);
    beside.prefill(100);
    const std::uint64_t neighbour = hash_of(other, beside.id());
    const auto loaded = other.load(file.path(), {.model = 7});
    REQUIRE_MESSAGE(loaded.ok(), error_of(loaded));
    CHECK(loaded->tokens == 270);
    CHECK(hash_of(other, loaded->seq) == before);
    CHECK(hash_of(other, beside.id()) == neighbour);
    beside.decode(5); // both go on
    std::vector<float> out(stream().query_floats());
    require_ok(other.attend(loaded->seq, 0, stream().input(0, 270, 1), out));
    CHECK(hash_of(other, loaded->seq) != before);
}

/// Whose pages a save may keep.
template <class Cache> void keeps_pages_of_the_last_save() {
    const place path("-last.kvs"), other("-other.kvs");
    auto c = config_for<Cache>();
    auto cache = open_cache<Cache>(c);
    reader<Cache> one(cache, stream(), 0);
    one.prefill(300);
    const auto save = [&](kvtl::sequence_id seq, auto&& to) {
        const auto facts = cache.save(seq, to);
        REQUIRE_MESSAGE(facts.ok(), error_of(facts));
        return *facts;
    };
    const std::uint64_t all = save(one.id(), path.path()).written_bytes;
    REQUIRE(save(one.id(), path.path()).written_bytes < all / 2); // as nothing has changed
    // Pieces of tables that are equal stay in a file, whichever sequence has them. Pages do not.
    const std::uint64_t all_pages = [&] {
        std::uint64_t n = 0;
        auto file = opened(path.path());
        for (const auto& s : file.sections())
            if (s.kind == kvtl::section_kind::pages) n += s.bytes / sizeof(kvtl::block_ref);
        return n * file.facts().page_bytes;
    }();
    REQUIRE(all_pages > all / 2);
    SUBCASE("not of one that it has replaced in another file") {
        const std::uint64_t there = save(one.id(), other.path()).written_bytes;
        CHECK(there == all);
        one.decode(1);
        CHECK(save(one.id(), path.path()).generation == 1); // a new file: the last save is in the other one
        check_saved(path.path(), cache, one.id(), c);
    }
    SUBCASE("not of another sequence") {
        auto file = opened(path.path());
        reader<Cache> two(cache, stream(), 0);
        two.prefill(290);
        CHECK(save(two.id(), file).written_bytes > all / 2);
        require_ok(file.publish());
        check_saved(file, cache, two.id(), c);
        CHECK(save(one.id(), file).written_bytes >= all_pages);
        require_ok(file.publish());
        check_saved(file, cache, one.id(), c);
    }
    SUBCASE("not of its parent") {
        const auto branch = cache.fork(one.id());
        REQUIRE(branch.ok());
        auto file = opened(path.path());
        CHECK(save(*branch, file).written_bytes >= all_pages);
        require_ok(file.publish());
        check_saved(file, cache, *branch, c);
    }
    SUBCASE("not of what was never published") {
        auto file = opened(path.path());
        one.decode(20);
        static_cast<void>(save(one.id(), file)); // clears what has changed
        file.abandon();
        CHECK(save(one.id(), file).written_bytes >= all_pages);
        require_ok(file.publish());
        check_saved(file, cache, one.id(), c);
    }
    SUBCASE("not of a save that took the number of one that was never published") {
        auto file = opened(path.path());
        reader<Cache> two(cache, stream(), 0);
        two.prefill(290);
        const auto lost = save(one.id(), file);
        file.abandon();
        const auto taken = save(two.id(), file);
        REQUIRE(taken.generation == lost.generation);
        require_ok(file.publish());
        CHECK(save(one.id(), file).written_bytes >= all_pages);
        require_ok(file.publish());
        check_saved(file, cache, one.id(), c);
    }
    SUBCASE("also of one that is published by the next save") {
        auto file = opened(path.path());
        static_cast<void>(save(one.id(), file));
        CHECK(save(one.id(), file).written_bytes < all / 2);
        require_ok(file.publish());
        check_saved(file, cache, one.id(), c);
    }
    SUBCASE("also of the save that it was loaded from") {
        one.end();
        auto file = opened(path.path());
        const auto loaded = cache.load(file);
        REQUIRE_MESSAGE(loaded.ok(), error_of(loaded));
        one.go_on_in(loaded->seq);
        one.decode(1);
        CHECK(save(one.id(), file).written_bytes < all * 2 / 3);
        require_ok(file.publish());
        check_saved(file, cache, one.id(), c);
    }
    SUBCASE("not of an older sequence of its slot") {
        one.end();
        reader<Cache> two(cache, stream(), 0);
        REQUIRE(two.id().slot == one.id().slot);
        two.prefill(300);
        auto file = opened(path.path());
        CHECK(save(two.id(), file).written_bytes >= all_pages);
        require_ok(file.publish());
        check_saved(file, cache, two.id(), c);
    }
}

} // namespace

TEST_CASE("a loaded sequence is the one that was saved") {
    SUBCASE("clusters") {
        is_the_same_elsewhere<clusters>();
    }
    SUBCASE("fixed groups") {
        is_the_same_elsewhere<pages>();
    }
    SUBCASE("rows") {
        is_the_same_elsewhere<rows>();
    }
}

TEST_CASE("every entry of a loaded sequence is attended once, also those that wait for their cluster") {
    const place file("-dense.kvs");
    auto c = config_for<clusters>(max_tokens);
    c.clusterer.tokens_per_cluster = 8;
    c.window_tokens = 8;
    c.max_sequences = 1;
    c.memory_bytes = least_memory<clusters>(c); // units are cold, so entries wait
    auto cache = open_cache<clusters>(c);
    reader<clusters> one(cache, stream(), 1);
    one.prefill(150);
    for (int part = 0; part < 4; ++part) {
        one.decode(40);
        const auto saved = cache.save(one.id(), file.path());
        REQUIRE_MESSAGE(saved.ok(), error_of(saved));
        one.end();
        const auto loaded = cache.load(file.path());
        REQUIRE_MESSAGE(loaded.ok(), error_of(loaded));
        CHECK(loaded->exact);
        one.go_on_in(loaded->seq);
    }
    one.check_tokens();
    CHECK(one.error() < exact);
}

namespace {

/// Entries join clusters that are in memory, so a save has to keep which ones are.
template <class Cache> void goes_on_to_the_bit(std::size_t beyond_least, unsigned shards, bool lends) {
    CAPTURE(beyond_least);
    CAPTURE(shards);
    CAPTURE(lends);
    const place file("-hot.kvs");
    auto c = config_for<Cache>(48);
    c.clusterer.tokens_per_cluster = 8;
    c.window_tokens = 8;
    c.shards = shards;
    c.lend_tables = lends;
    if (beyond_least == 0) c.open_pages = 5; // open pages are put away all the time
    c.memory_bytes = least_memory<Cache>(c) + beyond_least;
    auto alone = open_cache<Cache>(c);
    c.io.faults = std::make_shared<kvtl::io_faults>();
    auto cache = open_cache<Cache>(c);
    reader<Cache> a(alone, stream(), 0), b(cache, stream(), 0);
    const auto play = [](reader<Cache>& r, auto&& then) {
        r.prefill(150, 90), then();
        for (int round = 0; round < 6; ++round) {
            r.decode(17), then();
            if (round == 2) r.rewind(3), then();
            if (round == 4) r.prefill(40, 25), then();
        }
    };
    play(a, [] {});
    play(b, [&] {
        const auto saved = cache.save(b.id(), file.path());
        REQUIRE_MESSAGE(saved.ok(), error_of(saved));
        const std::uint64_t hash = hash_of(cache, b.id());
        if (lends) b.end(); // how many frames tables lend depends on where the slot's tables lie
        const auto loaded = cache.load(file.path());
        REQUIRE_MESSAGE(loaded.ok(), error_of(loaded));
        CHECK(loaded->exact);
        CHECK((loaded->seq.slot == b.id().slot) == lends);
        CHECK(hash_of(cache, loaded->seq) == hash);
        if (!lends) b.end();
        b.go_on_in(loaded->seq);
    });
    CHECK(a.outputs() == b.outputs());
    CHECK(hash_of(alone, a.id()) == hash_of(cache, b.id()));
    CHECK(alone.stats().splits > 0);
    if (beyond_least == 0) CHECK(alone.stats().tail_rewrites > 0);
    if (beyond_least == 0) CHECK(alone.stats().read_bytes > 0);
}

} // namespace

TEST_CASE("a loaded sequence of growing clusters goes on to the bit in an equal cache") {
    for (const unsigned shards : {1U, 2U})
        for (const bool lends : {false, true})
            for (const std::size_t beyond : {std::size_t{0}, std::size_t{64} << 10, std::size_t{16} << 20})
                goes_on_to_the_bit<clusters>(beyond, shards, lends);
    goes_on_to_the_bit<runs>(0, 1, true); // units move when their pages have no room
}

TEST_CASE("a sequence of growing clusters is not exact where its frames would be others") {
    const place file("-cold.kvs");
    auto c = config_for<clusters>();
    c.max_sequences = 1;
    auto cache = open_cache<clusters>(c);
    reader<clusters> one(cache, stream(), 0);
    one.prefill(200);
    REQUIRE(cache.save(one.id(), file.path()).ok());
    const auto is_exact = [&](auto change) {
        auto other = c;
        other.io.faults = std::make_shared<kvtl::io_faults>();
        change(other);
        auto there = open_cache<clusters>(other);
        const auto loaded = there.load(file.path());
        REQUIRE_MESSAGE(loaded.ok(), error_of(loaded));
        CHECK(hash_of(there, loaded->seq) == hash_of(cache, one.id()));
        return loaded->exact;
    };
    CHECK(is_exact([](auto&) {}));
    CHECK(is_exact([](auto& o) { o.max_sequences = 1; }));
    CHECK_FALSE(
        is_exact([](auto& o) { o.memory_bytes = least_memory<clusters>(o) + (std::size_t{64} << 10); }));
    CHECK_FALSE(is_exact([](auto& o) { o.shards = 2; }));
    CHECK_FALSE(is_exact([](auto& o) { o.replacement.updated_steps = 3; }));
    CHECK_FALSE(is_exact([](auto& o) {
        o.max_sequences = 2;
        o.share = true;
    }));
    SUBCASE("nor where it was saved while a layer was read ahead") {
        c.memory_bytes = least_memory<clusters>(c) + (std::size_t{64} << 10);
        c.io.faults = std::make_shared<kvtl::io_faults>();
        auto small_cache = open_cache<clusters>(c);
        reader<clusters> two(small_cache, stream(), 0);
        two.prefill(200);
        two.decode(3);
        require_ok(small_cache.prefetch(two.id(), 1, stream().input(1, 203, 1).q));
        REQUIRE(small_cache.save(two.id(), file.path()).ok());
        two.end();
        const auto loaded = small_cache.load(file.path());
        REQUIRE_MESSAGE(loaded.ok(), error_of(loaded));
        CHECK_FALSE(loaded->exact);
    }
}

TEST_CASE("units that cannot be read back fail the load, and the slot is free again") {
    const place file("-unread.kvs");
    auto c = config_for<clusters>();
    c.clusterer.tokens_per_cluster = 8;
    c.window_tokens = 8;
    c.max_sequences = 1;
    auto cache = open_cache<clusters>(c);
    reader<clusters> one(cache, stream(), 0);
    one.prefill(150);
    one.decode(40);
    const std::uint64_t before = hash_of(cache, one.id());
    REQUIRE(cache.save(one.id(), file.path()).ok());
    one.end();
    c.io.faults->fail_read.first =
        c.io.faults->reads.load() + 1; // all other pages come from the file of the save
    const auto failed = cache.load(file.path());
    REQUIRE_FALSE(failed.ok());
    CHECK(failed.error().code == kvtl::errc::io_error);
    c.io.faults->fail_read.first = kvtl::io_faults::never;
    for (int again = 0; again < 2; ++again) {
        const auto loaded = cache.load(file.path());
        REQUIRE_MESSAGE(loaded.ok(), error_of(loaded));
        CHECK(loaded->exact);
        CHECK(hash_of(cache, loaded->seq) == before);
        if (again == 0) require_ok(cache.end(loaded->seq));
        if (again == 1) one.go_on_in(loaded->seq);
    }
    one.decode(60);
    one.check_tokens();
}

TEST_CASE("save refuses what is not between two tokens, and leaves no file") {
    const place file("-refused.kvs");
    auto c = config_for<clusters>();
    auto cache = open_cache<clusters>(c);
    reader<clusters> one(cache, stream(), 0);
    SUBCASE("a sequence that is not open") {
        one.end();
        CHECK_REFUSED(cache.save(one.id(), file.path()), not_open, "save: sequence 0");
    }
    SUBCASE("a prompt whose last chunk is to come") {
        for (std::uint32_t l = 0; l < small.layers; ++l) {
            auto in = stream().input(l, 0, 50);
            in.last_chunk = false;
            std::vector<float> out(50 * stream().query_floats());
            require_ok(cache.prefill(one.id(), l, in, out));
        }
        CHECK_REFUSED(cache.save(one.id(), file.path()), invalid_argument, "50 tokens wait for a prefill");
    }
    SUBCASE("one layer is ahead") {
        one.prefill(100);
        std::vector<float> out(stream().query_floats());
        require_ok(cache.attend(one.id(), 0, stream().input(0, 100, 1), out));
        CHECK_REFUSED(cache.save(one.id(), file.path()), invalid_argument,
                      "layer 1 has 100 tokens and layer 0 has 101");
    }
    SUBCASE("a folder that is not there") {
        CHECK_REFUSED(cache.save(one.id(), "no/such/folder/x.kvs"), absent, "no/such/folder");
    }
    SUBCASE("a page that cannot be read") {
        one.prefill(200); // of which nothing is resident
        c.io.faults->fail_read.first = c.io.faults->reads.load();
        CHECK_REFUSED(cache.save(one.id(), file.path()), io_error, "read");
        c.io.faults->fail_read.first = kvtl::io_faults::never;
        CHECK_FALSE(file.there());
        const auto saved = cache.save(one.id(), file.path());
        REQUIRE_MESSAGE(saved.ok(), error_of(saved));
        std::filesystem::remove(file.path());
    }
    SUBCASE("a page that could not be written") {
        one.prefill(200);
        c.io.faults->fail_write.first = c.io.faults->writes.load();
        c.io.faults->fail_write.count = 1000;
        kvtl::status appended;
        std::vector<float> out(stream().query_floats());
        for (std::size_t t = 200; t < 260 && appended.ok(); ++t)
            for (std::uint32_t l = 0; l < small.layers && appended.ok(); ++l)
                appended = cache.attend(one.id(), l, stream().input(l, t, 1), out);
        REQUIRE_FALSE(appended.ok());
        CHECK(appended.code() == kvtl::errc::writes_pending);
        require_ok(cache.rewind_to(one.id(), cache.tokens(one.id(), 1))); // layer 0 may be a token ahead
        CHECK_REFUSED(cache.save(one.id(), file.path()), writes_pending, "retry_writes");
    }
    CHECK_FALSE(file.there());
}

TEST_CASE("load names what differs, and leaves nothing behind") {
    const place file("-differs.kvs");
    {
        auto cache = open_cache<clusters>(config_for<clusters>());
        reader<clusters> one(cache, stream(), 0);
        one.prefill(200);
        one.decode(3);
        const auto saved = cache.save(one.id(), file.path(), {.model = 7});
        REQUIRE_MESSAGE(saved.ok(), error_of(saved));
    }
    auto c = config_for<clusters>();
    const auto refuses = [&](kvtl::errc code, const std::string& text, const kvtl::load_options& o = {}) {
        auto cache = open_cache<clusters>(c);
        reader<clusters> one(cache, stream(), 0);
        one.prefill(100);
        const std::uint64_t before = hash_of(cache, one.id());
        const auto loaded = cache.load(file.path(), o);
        REQUIRE_FALSE(loaded.ok());
        CHECK(loaded.error().code == code);
        CHECK_MESSAGE(loaded.error().message.find(text) != std::string::npos, loaded.error().message);
        CHECK(hash_of(cache, one.id()) == before);
        CHECK(cache.begin().ok()); // the slot is free again
        CHECK_FALSE(cache.begin().ok());
    };
    SUBCASE("the model") {
        refuses(kvtl::errc::file_refused, "model is 0000000000000008", {.model = 8});
    }
    SUBCASE("the window") {
        c.window_tokens = 16;
        refuses(kvtl::errc::file_refused, "window_tokens is 16 in this cache and was 32");
    }
    SUBCASE("the shape") {
        c.shape.kv_heads = 4;
        auto cache = open_cache<clusters>(c);
        CHECK_REFUSED(cache.load(file.path()), file_refused, "kv_heads is 4 in this cache and was 2");
    }
    SUBCASE("a setting of a policy") {
        c.clusterer.tokens_per_cluster = 8;
        refuses(kvtl::errc::file_refused, "clusterer.tokens_per_cluster is 8");
    }
    SUBCASE("another preset") {
        auto cache = open_cache<pages>(config_for<pages>());
        CHECK_REFUSED(cache.load(file.path()), file_refused,
                      "clusterer is fixed_groups in this cache and was variance_split");
    }
    SUBCASE("too few tokens") {
        c.max_tokens = 150;
        refuses(kvtl::errc::out_of_range, "203 tokens; valid: up to max_tokens = 150");
    }
    SUBCASE("no file") {
        auto cache = open_cache<clusters>(c);
        CHECK_REFUSED(cache.load(file.path() + ".other"), absent, ".other");
    }
    SUBCASE("a write that fails while its pages come in") {
        auto cache = open_cache<clusters>(c);
        c.io.faults->fail_write.first = c.io.faults->writes.load();
        CHECK_REFUSED(cache.load(file.path()), io_error, "write");
        c.io.faults->fail_write.first = kvtl::io_faults::never;
        const auto loaded = cache.load(file.path()); // and now it works
        CHECK_MESSAGE(loaded.ok(), error_of(loaded));
    }
    SUBCASE("damage anywhere is found, or harmless") {
        auto cache = open_cache<clusters>(c);
        const auto size = static_cast<std::streamoff>(std::filesystem::file_size(file.path()));
        kvtl::sequence_id whole = cache.load(file.path())->seq;
        const std::uint64_t right = hash_of(cache, whole);
        require_ok(cache.end(whole));
        std::size_t found = 0, tries = 0;
        for (std::streamoff at = 13; at < size; at += size / 97, ++tries) {
            std::fstream f(file.path(), std::ios::in | std::ios::out | std::ios::binary);
            const auto flip = [&] {
                f.seekg(at);
                const int byte = f.get();
                f.seekp(at);
                f.put(static_cast<char>(byte ^ 0x10));
                f.flush();
            };
            flip();
            const auto loaded = cache.load(file.path());
            if (loaded.ok()) {
                CHECK(hash_of(cache, loaded->seq) == right);
                require_ok(cache.end(loaded->seq));
            } else {
                ++found;
                CHECK(loaded.error().code == kvtl::errc::corrupt);
            }
            flip();
        }
        CHECK(found > tries / 2);
    }
}

TEST_CASE("a further save to the same file has what has changed, and the rest of the save before") {
    SUBCASE("clusters, a file by its name") {
        is_saved_again<clusters>(true);
    }
    SUBCASE("clusters, an open file") {
        is_saved_again<clusters>(false);
    }
    SUBCASE("fixed groups, a file by its name") {
        is_saved_again<pages>(true);
    }
    SUBCASE("fixed groups, an open file") {
        is_saved_again<pages>(false);
    }
}

TEST_CASE("a save keeps pages of the sequence's last save only: clusters") {
    keeps_pages_of_the_last_save<clusters>();
}
TEST_CASE("a save keeps pages of the sequence's last save only: fixed groups") {
    keeps_pages_of_the_last_save<pages>();
}

TEST_CASE("a further save has the units that a turn has made anew") {
    const place path("-anew.kvs");
    auto c = config_for<clusters>();
    c.window_tokens = 8;
    auto cache = open_cache<clusters>(c);
    reader<clusters> one(cache, stream(), 0);
    one.prefill(60); // too few to cluster
    REQUIRE(cache.save(one.id(), path.path()).ok());
    one.prefill(100);
    const auto facts = cache.save(one.id(), path.path());
    REQUIRE_MESSAGE(facts.ok(), error_of(facts));
    CHECK(facts->generation == 2);
    check_saved(path.path(), cache, one.id(), c);
}

TEST_CASE("a failed save leaves the file as it was") {
    const place file("-kept.kvs");
    auto cache = open_cache<pages>(config_for<pages>());
    reader<pages> one(cache, stream(), 0);
    one.prefill(200);
    REQUIRE(cache.save(one.id(), file.path()).ok());
    std::vector<float> out(stream().query_floats());
    require_ok(cache.attend(one.id(), 0, stream().input(0, 200, 1), out)); // layer 1 has not come
    CHECK_REFUSED(cache.save(one.id(), file.path()), invalid_argument, "layer 1");
    const auto loaded = cache.load(file.path());
    REQUIRE_MESSAGE(loaded.ok(), error_of(loaded));
    CHECK(loaded->tokens == 200);
    CHECK(loaded->exact);
    auto other = open_cache<pages>(config_for<pages>(64)); // attends fewer entries: another continuation
    const auto there = other.load(file.path());
    REQUIRE_MESSAGE(there.ok(), error_of(there));
    CHECK_FALSE(there->exact);
}

TEST_CASE("the memory of a save that its device has not answered is not given to others") {
    static const auto of =
        std::make_shared<falling_silent::record>(); // as the device, it knows that memory for ever
    using silent = kvtl::kv_manager<on_device<kvtl::presets::quest, falling_silent>>;
    auto c = config_for<silent>();
    c.io.of = of;
    c.max_sequences = 1;
    c.memory_bytes = least_memory<silent>(c);
    auto cache = open_cache<silent>(c);
    reader<silent> one(cache, stream(), 0);
    one.prefill(300);
    of->silent = true;
    const place path("-silent.kvs");
    const auto saved = cache.save(one.id(), path.path());
    REQUIRE(!saved.ok());
    CHECK(saved.error().code == kvtl::errc::io_error);
    CHECK(error_of(saved).find("did not answer within io_timeout_ms") != std::string::npos);
    CHECK(!path.there());
    REQUIRE(!of->unanswered.empty());
    std::vector<std::vector<std::byte>> others(64);
    for (auto& other : others) other.resize(std::size_t{32} << 10);
    for (const ::iovec& slice : of->unanswered)
        std::memset(slice.iov_base, 0xAB, slice.iov_len); // it comes late
    for (const auto& other : others)
        CHECK(std::all_of(other.begin(), other.end(), [](std::byte b) { return b == std::byte{0}; }));
    std::vector<float> out(stream().query_floats());
    CHECK(!cache.attend(one.id(), 0, stream().input(0, 300, 1), out).ok());
}

} // namespace manager_saved_test
