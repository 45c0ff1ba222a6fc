// A tier behind the folder: over a folder, Redis, three servers and a cluster the same suite; then what is lost, damaged, foreign or
// late, which is a miss.
// SPDX-License-Identifier: MIT
#include <kvtl/store/blob_folder.hpp>
#include <kvtl/store/remote_tier.hpp>
#include <kvtl/store/resp_store.hpp>

#include "support/prefix_stores.hpp"
#include "support/redis_servers.hpp"
#include "support/rude_server.hpp"
#include "support/scratch_folder.hpp"

#include <fstream>
#include <optional>

namespace remote_test {

using namespace kvtl_test;
using namespace std::chrono_literals;

namespace {

template <class Blobs, class Clock = kvtl::blob_clock>
using tier_of = kvtl::remote_tier<Blobs, simulated_file_ops, Clock>;

/// A machine: its disk, its cache, its store.
template <class Blobs, class Clock = kvtl::blob_clock> struct machine {
    simulated_disk disk;
    pretend_cache cache{.disk = &disk, .token_bytes = 4096}; // several chunks for a hundred tokens
    tier_of<Blobs, Clock> tier;
    std::optional<pretend_store> store;

    explicit machine(Blobs blobs, kvtl::remote_config c = {}, const std::string& identity = "pretend",
                     std::uint64_t model = 7)
        : tier(*tier_of<Blobs, Clock>::open(std::move(blobs), (c.chunk_bytes = 64U << 10, c), {&disk})) {
        cache.identity = identity;
        store.emplace(open_store(cache, {.folder = "f",
                                         .model = model,
                                         .free_bytes = 0,
                                         .rewind_tokens = 2,
                                         .remote = &tier,
                                         .remote_gain = 1}));
    }
    machine(const machine&) = delete;
    machine& operator=(const machine&) = delete;
    ~machine() = default;
};

/// `open` returns a Blobs, each of which is a connection of another machine to the same place.
template <class Open> void check_suite(const Open& open) {
    using blobs = decltype(open());
    const token_list document = counting(1000, 130);
    token_list longer = document, other = document;
    for (std::uint32_t i = 0; i < 40; ++i) longer.push_back(5 + i), other.push_back(500 + i);
    machine<blobs> a(open());
    static_cast<void>(kept(*a.store, a.cache, document));
    const kvtl::prefix_id last = kept(*a.store, a.cache, longer);
    static_cast<void>(kept(*a.store, a.cache, other, {.space = {.tenant = "other"}}));
    CAPTURE(a.store->statistics().last_refusal);
    REQUIRE(a.store->statistics().refused == 0);
    REQUIRE(a.tier.statistics().put == 3);

    { // another machine finds the longest one, of its own space, and loads it
        machine<blobs> b(open());
        token_list prompt = longer;
        prompt.push_back(1);
        auto got = started(*b.store, b.cache, prompt);
        CAPTURE(b.store->statistics().last_refusal);
        REQUIRE(got.tokens == longer.size());
        CHECK(got.from == kvtl::prefix_source::file);
        CHECK(b.store->statistics().fetched == 1);
        CHECK(b.tier.statistics().bytes_read == b.store->statistics().file_bytes);
        check_counts(*b.store, b.cache);
        got = started(*b.store, b.cache, prompt); // from the folder
        CHECK(got.tokens == longer.size());
        CHECK(b.store->statistics().fetched == 1);
        prompt = document;
        prompt.insert(prompt.end(), {9, 9, 9});
        CHECK(started(*b.store, b.cache, prompt).tokens == document.size());
        CHECK(started(*b.store, b.cache, document).tokens == document.size() - 1); // all of it but the last
        CHECK(started(*b.store, b.cache, other).tokens == document.size());        // not of the other space
        CHECK(started(*b.store, b.cache, other, {.tenant = "other"}).tokens == other.size() - 1);
        CHECK(started(*b.store, b.cache, longer, {.tenant = "third"}).tokens == 0);
        CHECK(started(*b.store, b.cache, longer, {.adapter = "other"}).tokens == 0);
        CHECK(b.tier.statistics().failed == 0);
        b.store.reset(); // after a restart it is in the folder
        const std::uint64_t read = b.tier.statistics().bytes_read;
        b.store.emplace(open_store(b.cache, {.folder = "f", .model = 7, .free_bytes = 0, .remote = &b.tier}));
        CHECK(started(*b.store, b.cache, longer).tokens > document.size());
        CHECK(b.tier.statistics().bytes_read == read);
    }
    { // another model, another name
        machine<blobs> b(open(), {}, "pretend", 8), c(open(), {.names = "kvtl:1:other"});
        CHECK(started(*b.store, b.cache, longer).tokens == 0);
        CHECK(started(*c.store, c.cache, longer).tokens == 0);
        CHECK(b.tier.statistics().failed + c.tier.statistics().failed == 0);
    }
    { // a cache with other settings refuses the file; it is asked for once
        machine<blobs> b(open(), {}, "other settings");
        CHECK(started(*b.store, b.cache, longer).tokens == 0);
        CHECK(b.store->statistics().last_refusal.find("who is other settings") != std::string::npos);
        CHECK(b.store->statistics().files == 0);
        CHECK(b.store->tier_is_foreign());
        const std::uint64_t read = b.tier.statistics().bytes_read;
        CHECK(started(*b.store, b.cache, longer).tokens == 0);
        CHECK(b.tier.statistics().bytes_read == read);
    }
    { // a turn that goes on: its file again, found at its new length
        token_list turn = longer;
        for (std::uint32_t i = 0; i < 100; ++i) turn.push_back(7000 + i);
        static_cast<void>(kept(*a.store, a.cache, turn, {.replaces = last}));
        machine<blobs> b(open());
        token_list prompt = turn;
        prompt.push_back(1);
        CHECK(started(*b.store, b.cache, prompt).tokens == turn.size());
    }
    { // what a machine has itself is not sent again by the next save of the same text
        const std::uint64_t written = a.tier.statistics().bytes_written;
        static_cast<void>(kept(*a.store, a.cache, document));
        CHECK(a.tier.statistics().bytes_written == written);
    }
    { // a file that would not fit is not brought
        machine<blobs> b(open());
        b.store.reset();
        b.store.emplace(open_store(b.cache, {.folder = "f",
                                             .model = 7,
                                             .file_bytes = 100000,
                                             .free_bytes = 0,
                                             .remote = &b.tier,
                                             .remote_gain = 1}));
        CHECK(started(*b.store, b.cache, document).tokens == 0);
        CHECK(b.store->statistics().last_refusal.find("valid: up to 100000") != std::string::npos);
        CHECK(b.disk.used() < 100000);
    }
}

kvtl::resp_store<> open_resp(std::vector<kvtl::server_address> servers) {
    auto s = kvtl::resp_store<>::open({.servers = std::move(servers), .stall = 5s});
    REQUIRE(s.ok());
    return *std::move(s);
}

struct in_folder {
    scratch_folder folder;
    [[nodiscard]] kvtl::blob_folder open() const {
        auto s = kvtl::blob_folder::open(folder.path());
        REQUIRE(s.ok());
        return *std::move(s);
    }
    [[nodiscard]] std::vector<std::string> blobs(const std::string& with) const {
        std::vector<std::string> names;
        for (const auto& f : std::filesystem::directory_iterator(folder.path()))
            if (f.path().filename().string().find(with) != std::string::npos)
                names.push_back(f.path().string());
        std::sort(names.begin(), names.end());
        return names;
    }
};

} // namespace

TEST_CASE_FIXTURE(in_folder, "a tier in a folder") {
    check_suite([&] { return open(); });
}

TEST_CASE("a tier on a server of Redis") {
    if (!redis_is_there()) return;
    const redis_server server;
    check_suite([&] { return open_resp({server.address()}); });
    // what redis-cli sees: chunks live longer than manifests
    const int manifest = std::stoi(server.cli("ttl $(redis-cli -p " + std::to_string(server.port()) +
                                              " --scan --pattern 'kvtl:1:m:*' | head -1)"));
    const int chunk = std::stoi(server.cli("ttl $(redis-cli -p " + std::to_string(server.port()) +
                                           " --scan --pattern 'kvtl:1:{*' | head -1)"));
    CHECK(manifest > 86000);
    CHECK(manifest <= 86400);
    CHECK(chunk > 94000);
}

TEST_CASE("a tier on three servers, of which one is lost") {
    if (!redis_is_there()) return;
    std::vector<std::unique_ptr<redis_server>> servers;
    std::vector<kvtl::server_address> all;
    for (int i = 0; i < 3; ++i)
        servers.push_back(std::make_unique<redis_server>()), all.push_back(servers.back()->address());
    const auto open = [&] { return open_resp(all); };
    check_suite(open);

    using blobs = kvtl::resp_store<>;
    machine<blobs> a(open());
    constexpr std::uint32_t prefixes = 24;
    for (std::uint32_t i = 0; i < prefixes; ++i)
        static_cast<void>(kept(*a.store, a.cache, counting(100000 + 1000 * i, 70)));
    REQUIRE(a.tier.statistics().not_put == 0);
    std::string posts,
        manifests; // by server: a manifest is where its signpost is, so a prefix needs two servers at most
    for (const auto& server : servers) {
        const std::string keys = "--scan --pattern 'kvtl:1:";
        posts += server->cli(keys + "s:*' | cut -d: -f4 | sort -u");
        manifests += server->cli(keys + "m:*' | cut -d: -f4 | sort -u");
    }
    CHECK(posts.size() > 1000);
    CHECK(posts == manifests);
    servers[2]->kill();
    machine<blobs> b(open());
    std::uint32_t found = 0;
    for (std::uint32_t i = 0; i < prefixes; ++i)
        found += started(*b.store, b.cache, counting(100000 + 1000 * i, 80)).tokens != 0;
    CHECK(found > 0);
    CHECK(found < prefixes);
    CHECK(b.tier.statistics().failed > 0);
    for (std::uint32_t i = 0; i < prefixes; ++i) // and it goes on to store
        static_cast<void>(kept(*b.store, b.cache, counting(500000 + 1000 * i, 70)));
    CHECK(b.tier.statistics().put > 0);
}

TEST_CASE("a tier in a cluster") {
    if (!redis_is_there()) return;
    const redis_cluster cluster;
    check_suite([&] { return open_resp({cluster.nodes[0]->address(), cluster.nodes[1]->address()}); });
}

TEST_CASE_FIXTURE(in_folder, "a chunk that is lost or damaged makes a miss, and removes the manifest") {
    using blobs = kvtl::blob_folder;
    const token_list text = counting(1, 100);
    enum class harm { remove, flip, shorten, lengthen, foreign };
    for (const harm h : {harm::remove, harm::flip, harm::shorten, harm::lengthen, harm::foreign}) {
        CAPTURE(static_cast<int>(h));
        machine<blobs> a(open());
        static_cast<void>(kept(*a.store, a.cache, text));
        const auto chunks = this->blobs("}:");
        REQUIRE(chunks.size() >= 5);
        const std::string& victim = chunks[2];
        if (h == harm::remove) std::filesystem::remove(victim);
        const auto time =
            h == harm::remove ? std::filesystem::file_time_type{} : std::filesystem::last_write_time(victim);
        if (h == harm::flip)
            std::fstream(victim, std::ios::in | std::ios::out).seekp(1000).put('!').put('?').put('!');
        if (h == harm::shorten) std::filesystem::resize_file(victim, 64);
        if (h == harm::lengthen) std::filesystem::resize_file(victim, (64U << 10) + 64);
        if (h == harm::foreign) std::ofstream(victim) << "not a chunk";
        if (h != harm::remove) std::filesystem::last_write_time(victim, time);
        machine<blobs> b(open());
        CHECK(started(*b.store, b.cache, text).tokens == 0);
        CHECK(b.tier.statistics().failed == 1);
        CHECK(b.store->statistics().refused == 1);
        CHECK(b.store->statistics().files == 0);
        for (const auto& [name, f] : b.disk.seen) CHECK(name.find(".kvs") == std::string::npos);
        CHECK(this->blobs(":m:").empty() == (h != harm::lengthen)); // which is refused before it is read
        for (const std::string& name : this->blobs("kvtl")) std::filesystem::remove(name);
    }
}

TEST_CASE_FIXTURE(in_folder, "values of another format under the same names are misses, and stay") {
    using blobs = kvtl::blob_folder;
    const token_list text = counting(1, 100);
    for (const std::string kind : {":m:", ":s:"}) {
        CAPTURE(kind);
        machine<blobs> a(open());
        static_cast<void>(kept(*a.store, a.cache, text));
        const auto all = this->blobs(kind);
        REQUIRE(all.size() == 1);
        const auto time = std::filesystem::last_write_time(all[0]);
        std::string good;
        std::getline(std::ifstream(all[0], std::ios::binary), good, '\0');
        for (std::string bytes :
             {std::string("x"), std::string("sixteen bytes!!!"), std::string(500, '\xFF'), good}) {
            std::ofstream(all[0], std::ios::binary) << bytes;
            std::filesystem::last_write_time(all[0], time);
            machine<blobs> b(open());
            CHECK(started(*b.store, b.cache, text).tokens == 0);
            CHECK(b.tier.statistics().failed == 1);
            CHECK(b.tier.statistics().last_failure.find('\n') == std::string::npos);
            CHECK(std::filesystem::file_size(all[0]) == bytes.size());
        }
        for (const std::string& name : this->blobs("kvtl")) std::filesystem::remove(name);
    }
}

TEST_CASE("no damaged manifest is taken for a good one, or reads beyond its bytes") {
    const token_list text = counting(1, 100);
    kvtl::remote_manifest m{
        .header = {.chunk_bytes = 65536, .file_bytes = 131072 + 64, .model = 7, .tokens = 100},
        .sums = {1, 2, 3},
        .space = {.tenant = "t"},
        .tokens = text};
    m.header.space_bytes = static_cast<std::uint32_t>(m.space.bytes().size());
    const auto good = kvtl::bytes_of(m);
    const auto back = kvtl::parse_manifest(good);
    REQUIRE(back.has_value());
    CHECK(back->tokens == text);
    CHECK(back->space == m.space);
    CHECK(back->sums == m.sums);
    for (std::size_t n = 0; n < good.size(); ++n)
        CHECK_FALSE(kvtl::parse_manifest(std::span(good).first(n)).has_value());
    for (std::size_t at = 0; at < sizeof(kvtl::remote_header);
         ++at) // sizes decide; other fields are compared later
        for (const unsigned flip : {1U, 0x80U, 0xFFU}) {
            auto bytes = good;
            bytes[at] ^= static_cast<std::byte>(flip);
            const auto parsed = kvtl::parse_manifest(bytes);
            if (parsed)
                CHECK((at >= 16 && at < 48)); // the file's id, its length within the last chunk, the model
        }
}

TEST_CASE_FIXTURE(in_folder, "a writer that dies at any moment leaves a whole prefix or none") {
    using blobs = kvtl::blob_folder;
    struct dying { // a blob_store whose writes stop
        blobs inner;
        int* left;
        kvtl::status put(const std::string& name, std::span<const std::byte> b, std::chrono::seconds t,
                         kvtl::blob_deadline d) {
            if ((*left)-- <= 0) return kvtl::status::failure(kvtl::errc::io_error, "died");
            return inner.put(name, b, t, d);
        }
        kvtl::status settle(kvtl::blob_deadline d) { return inner.settle(d); }
        kvtl::status get(std::span<const std::string> n, std::span<const std::span<std::byte>> i,
                         std::span<std::uint64_t> b, kvtl::blob_deadline d) {
            return inner.get(n, i, b, d);
        }
        kvtl::status touch(std::span<const std::string> n, std::chrono::seconds t, std::span<std::uint8_t> th,
                           kvtl::blob_deadline d) {
            return inner.touch(n, t, th, d);
        }
        kvtl::status remove(std::span<const std::string> n, kvtl::blob_deadline d) {
            return inner.remove(n, d);
        }
    };
    const token_list text = counting(1, 100);
    bool whole = false;
    for (int writes = 0; !whole; ++writes) {
        REQUIRE(writes < 20);
        int left = writes;
        machine<dying> a({open(), &left});
        static_cast<void>(kept(*a.store, a.cache, text));
        whole = a.tier.statistics().put == 1;
        CHECK(a.store->statistics().files == 1); // whatever happens behind the folder
        machine<blobs> b(open());
        CHECK(started(*b.store, b.cache, text).tokens == (whole ? 99 : 0));
        CHECK(b.tier.statistics().failed == 0);
        left = 1000; // the next writer completes it
        if (!whole) {
            machine<dying> c({open(), &left});
            static_cast<void>(kept(*c.store, c.cache, text));
            machine<blobs> d(open());
            CHECK(started(*d.store, d.cache, text).tokens == 99);
        }
        for (const std::string& name : this->blobs("kvtl")) std::filesystem::remove(name);
    }
}

namespace {
/// Stands still until the test moves it. Far ahead, so that a folder that looks at its own clock meets every deadline.
struct set_clock {
    static inline kvtl::blob_deadline time = kvtl::blob_clock::now() + 24h;
    [[nodiscard]] static kvtl::blob_deadline now() noexcept { return time; }
};
} // namespace

TEST_CASE_FIXTURE(in_folder, "a prefix that cannot come in time is given up early, and tried again later") {
    struct slow : kvtl::blob_folder { // takes 250 ms for each read of chunks
        unsigned* reads;
        slow(kvtl::blob_folder in, unsigned* count) : kvtl::blob_folder(std::move(in)), reads(count) {}
        kvtl::status get(std::span<const std::string> names, std::span<const std::span<std::byte>> into,
                         std::span<std::uint64_t> lengths, kvtl::blob_deadline until) {
            if (into[0].size() > 4096 && into[0].size() <= 65536) { // neither a signpost nor a manifest
                ++*reads;
                set_clock::time += 250ms;
            }
            return kvtl::blob_folder::get(names, into, lengths, until);
        }
    };
    unsigned reads = 0;
    const token_list document =
        counting(1000, 200); // 13 chunks: a second in four reads, the last of one chunk
    const token_list shorter = counting(1000, 190); // a turn before
    {
        machine<kvtl::blob_folder> writer(open());
        static_cast<void>(kept(*writer.store, writer.cache, document));
        static_cast<void>(kept(*writer.store, writer.cache, shorter));
        REQUIRE(writer.tier.statistics().put == 2);
    }
    machine<slow, set_clock> in_time({open(), &reads}, {.fetch_within = 1001ms});
    CHECK(started(*in_time.store, in_time.cache, document).tokens > 100);
    CHECK(reads == 4);
    CHECK(in_time.tier.statistics().too_late == 0);

    reads = 0;
    machine<slow, set_clock> late({open(), &reads}, {.fetch_within = 750ms});
    const auto call = [&] { CHECK(started(*late.store, late.cache, document).tokens == 0); };
    call();
    CHECK(reads ==
          1); // the first four chunks say that nine more take longer, and what the shorter file takes
    CHECK(late.tier.statistics().missed == 1);
    CHECK(late.tier.statistics().too_late == 2);
    call();
    CHECK(reads == 1); // nothing was read: that is remembered
    CHECK(late.tier.statistics().too_late == 4);
    call();
    CHECK(reads == 2); // half of that time would do
    CHECK(late.tier.statistics().fetched == 0);
    CHECK(late.tier.statistics().failed == 0);
}

TEST_CASE_FIXTURE(in_folder, "a file that is saved again while it is put is given up") {
    using blobs = kvtl::blob_folder;
    struct saving { // a blob_store during whose writes the file changes
        blobs inner;
        simulated_disk* disk;
        kvtl::status put(const std::string& name, std::span<const std::byte> b, std::chrono::seconds t,
                         kvtl::blob_deadline d) {
            for (auto& [file, f] : disk->seen)
                if (file.ends_with(".kvs")) f->seen[50] ^= std::byte{1};
            return inner.put(name, b, t, d);
        }
        kvtl::status settle(kvtl::blob_deadline d) { return inner.settle(d); }
        kvtl::status get(std::span<const std::string> n, std::span<const std::span<std::byte>> i,
                         std::span<std::uint64_t> b, kvtl::blob_deadline d) {
            return inner.get(n, i, b, d);
        }
        kvtl::status touch(std::span<const std::string> n, std::chrono::seconds t, std::span<std::uint8_t> th,
                           kvtl::blob_deadline d) {
            return inner.touch(n, t, th, d);
        }
        kvtl::status remove(std::span<const std::string> n, kvtl::blob_deadline d) {
            return inner.remove(n, d);
        }
    };
    simulated_disk disk;
    pretend_cache cache{.disk = &disk, .token_bytes = 4096};
    auto tier = *tier_of<saving>::open({open(), &disk}, {.chunk_bytes = 64U << 10}, {&disk});
    auto store = open_store(cache, {.folder = "f", .model = 7, .free_bytes = 0, .remote = &tier});
    static_cast<void>(kept(store, cache, counting(1, 40))); // an odd number of chunks
    CHECK(tier.statistics().not_put == 1);
    CHECK(tier.statistics().failed == 0);
    CHECK(this->blobs(":m:").empty());
}

TEST_CASE(
    "a server that is not there, hangs, lies or is slow: no call fails, and none waits beyond its deadline") {
    std::atomic<int> mode = 0;
    rude_server server([&](const rude_server::words& w) {
        if (mode == 0) return rude_answer{}; // hangs
        if (w[0] == "PING") return rude_answer{"+PONG\r\n"};
        if (mode == 1)
            return rude_answer{"$16\r\nkvtl-sig" + std::string(8, '\xFF') + "\r\n"}; // everything is there
        if (mode == 2) return rude_answer{"$16\r\nkvtl-sig" + std::string(8, '\xFF') + "\r\n", false, true};
        return rude_answer{"-ERR no\r\n"};
    });
    using blobs = kvtl::resp_store<>;
    const auto open = [&](const kvtl::server_address& at) {
        auto s = blobs::open({.servers = {at}, .stall = 50ms, .retry_first = 1ms, .retry_most = 1ms});
        REQUIRE(s.ok());
        return *std::move(s);
    };
    const token_list text = counting(1, 100);
    for (int m = -1; m < 4; ++m) {
        CAPTURE(m);
        mode = m;
        machine<blobs> a(open(m < 0 ? kvtl::server_address{"127.0.0.1", free_port()} : server.address()),
                         {.fetch_within = 150ms, .put_within = 150ms});
        const auto before = std::chrono::steady_clock::now();
        CHECK(started(*a.store, a.cache, text).tokens == 0);
        static_cast<void>(kept(*a.store, a.cache, text));
        CHECK(started(*a.store, a.cache, text).tokens == 99);
        CHECK(std::chrono::steady_clock::now() - before < 5s); // some deadlines, on a machine that is busy
        CHECK(a.tier.statistics().failed >= 1);
        CHECK(a.tier.statistics().put == 0);
        CHECK(a.store->statistics().last_refusal.find('\n') == std::string::npos);
    }
}

TEST_CASE_FIXTURE(in_folder, "settings of a tier that cannot work") {
    using tier = tier_of<kvtl::blob_folder>;
    for (const std::string& names : {std::string(), std::string("a/b"), std::string("a b"),
                                     std::string("a{b}"), std::string(101, 'x')}) {
        const auto made = tier::open(open(), {.names = names});
        REQUIRE_FALSE(made.ok());
        CHECK(made.error().message.find("names is '" + names.substr(0, 100)) != std::string::npos);
    }
    for (const std::uint32_t bytes : {0U, 65536U - 64, 65537U, (4U << 20) + 64}) {
        const auto made = tier::open(open(), {.chunk_bytes = bytes});
        REQUIRE_FALSE(made.ok());
        CHECK(made.error().message.find("chunk_bytes is " + std::to_string(bytes)) != std::string::npos);
    }
    CHECK(tier::open(open(), {.names = std::string(100, 'x'), .chunk_bytes = 4U << 20}).ok());
}

TEST_CASE("a tier without a folder is refused") {
    simulated_disk disk;
    pretend_cache cache{.disk = &disk};
    const scratch_folder folder;
    auto tier = *tier_of<kvtl::blob_folder>::open(*kvtl::blob_folder::open(folder.path()), {}, {&disk});
    const auto s = pretend_store::open(cache, {.trunks = 2, .remote = &tier}, cache.ops());
    REQUIRE_FALSE(s.ok());
    CHECK(s.error().message.find("folder is empty and remote is set") != std::string::npos);
}

} // namespace remote_test
