// The engine's small parts: thread pool, sampler, generation loop, report, removal of the file on a signal.
// SPDX-License-Identifier: MIT
#include <kvtl/prefix_store.hpp>

#include "cleanup.hpp"
#include "dense_cache.hpp"
#include "generate.hpp"
#include "memory_report.hpp"
#include "model.hpp"
#include "random_model.hpp"
#include "report.hpp"
#include "sampler.hpp"
#include "thread_pool.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <thread>

using namespace engine;

// A store of prefixes stands above the programs' view of a cache as above the cache itself.
static_assert(kvtl::saving_cache<engine::kv_cache>);
template class kvtl::prefix_store<engine::kv_cache>;

TEST_CASE("thread pool: every index once, job after job") {
    for (const unsigned threads : {1U, 2U, 4U}) {
        thread_pool pool(threads);
        CHECK(pool.size() == threads);
        for (std::size_t n = 0; n < 300; ++n) {
            std::vector<std::atomic<int>> seen(n + 1);
            pool.parallel(n, [&](std::size_t i) noexcept { ++seen[i]; });
            int wrong = seen[n] != 0;
            for (std::size_t i = 0; i < n; ++i) wrong += seen[i] != 1;
            CHECK(wrong == 0);
        }
    }
    for (int i = 0; i < 200; ++i) thread_pool unused(3); // also when no job ever comes
}

TEST_CASE("thread pool: what it lends works at rest, inside of a job and from several threads") {
    for (const unsigned threads : {1U, 3U}) {
        thread_pool pool(threads);
        const kvtl::lent_threads lent = pool.lend();
        CHECK(lent.count == threads);
        const auto pieces_done_once = [&](std::size_t parts) {
            std::vector<std::atomic<int>> seen(100);
            lent.divide(seen.size(), parts, [&](std::size_t first, std::size_t end) noexcept {
                for (std::size_t i = first; i < end; ++i) ++seen[i];
            });
            return std::all_of(seen.begin(), seen.end(), [](const auto& x) { return x == 1; });
        };
        for (int round = 0; round < 100; ++round) {
            CHECK(pieces_done_once(4));
            std::atomic<int> good = 0;
            pool.parallel(1,
                          [&](std::size_t) noexcept { good += pieces_done_once(4); }); // nobody else is busy
            pool.parallel(4, [&](std::size_t) noexcept { good += pieces_done_once(4); });
            CHECK(good == 5);
            std::vector<std::thread> all;
            for (int i = 0; i < 3; ++i) all.emplace_back([&] { good += pieces_done_once(3); });
            for (auto& t : all) t.join();
            CHECK(good == 8);
        }
    }
}

TEST_CASE("sampler: the best token, the lower one of equals") {
    const std::vector<float> logits = {1, 3, 2, 3, -1};
    CHECK(sampler(0, 1).choose(logits) == 1);
    const auto top = highest(logits, 3);
    REQUIRE(top.size() == 3);
    CHECK(top[0] == std::pair<token_id, float>{1, 3.0F});
    CHECK(top[1] == std::pair<token_id, float>{3, 3.0F});
    CHECK(top[2] == std::pair<token_id, float>{2, 2.0F});
    CHECK(highest(logits, 100).size() == 5);
}

TEST_CASE("sampler: frequencies follow the softmax, and a seed fixes them") {
    const std::vector<float> logits = {0.0F, std::log(2.0F), std::log(5.0F)};
    const auto draw = [&](double temperature, std::uint64_t seed) {
        sampler s(temperature, seed);
        std::vector<int> count(3);
        for (int i = 0; i < 16000; ++i) ++count[s.choose(logits)];
        return count;
    };
    const auto one = draw(1, 1);
    CHECK(one == draw(1, 1));
    CHECK(one != draw(1, 2));
    CHECK(std::abs(one[0] - 2000) < 200); // 1 : 2 : 5
    CHECK(std::abs(one[1] - 4000) < 250);
    const auto half = draw(0.5, 1); // squares: 1 : 4 : 25
    CHECK(std::abs(half[2] - 16000 * 25 / 30) < 250);
}

TEST_CASE("sampler: the most likely tokens that have top_p of the probability, in their proportions") {
    const std::vector<float> logits = {0.0F, std::log(2.0F), std::log(5.0F), std::log(2.0F)}; // of 10
    const auto draw = [&](double top_p) {
        sampler s(1, 1, top_p);
        std::vector<int> count(4);
        for (int i = 0; i < 14000; ++i) ++count[s.choose(logits)];
        return count;
    };
    CHECK(draw(0) == std::vector<int>{0, 0, 14000, 0});
    CHECK(draw(0.49) == std::vector<int>{0, 0, 14000, 0});
    const auto two = draw(0.65); // the lower one of equals
    CHECK(std::abs(two[1] - 4000) < 250);
    CHECK(two[1] + two[2] == 14000);
    const auto three = draw(0.85);
    CHECK(three[0] == 0);
    CHECK(std::abs(three[3] - 14000 * 2 / 9) < 250);
    CHECK(draw(0.95)[0] > 1000);
}

TEST_CASE("generation stops at the end of the text, or does not") {
    random_model spec;
    spec.architecture = "qwen2";
    const std::string path = "parts-" + std::to_string(::getpid()) + ".gguf";
    spec.build().write(path);
    const gguf_file file(path);
    std::remove(path.c_str());
    const model weights(file);
    thread_pool pool(1);
    cache_options o;
    o.shape = weights.hyper().shape;
    o.max_tokens = 64;
    dense_cache cache(o);
    transformer run(weights, cache, pool);
    const tokenizer words(file);
    generate_options options;
    options.predict = 40;
    options.temperature = 1.5;
    options.ignore_end = true;
    const std::vector<token_id> prompt = {1, 2, 3};
    // Some seed draws one of the two end tokens among 40.
    for (options.seed = 1; options.seed < 200; ++options.seed) {
        options.ignore_end = true;
        const auto all = generate(run, words, prompt, options);
        REQUIRE(all.tokens.size() == 40);
        CHECK(all.steps == 39);
        CHECK(all.tokens_per_s() > 0);
        const auto end =
            std::find_if(all.tokens.begin(), all.tokens.end(), [&](token_id id) { return words.is_end(id); });
        if (end == all.tokens.end()) continue;
        options.ignore_end = false;
        const auto stopped = generate(run, words, prompt, options);
        CHECK(stopped.tokens == std::vector<token_id>(all.tokens.begin(), end));
        break;
    }
    CHECK(options.seed < 200);
    options.predict = 0;
    CHECK(generate(run, words, prompt, options).tokens.empty());
}

TEST_CASE("report: every key, and text that ends inside a character") {
    run_report r;
    r.policy = "p";
    r.prompt_tokens = 3;
    r.text = "caf\xC3";
    r.run.tokens = {5, 6};
    r.run.steps = 1;
    r.run.decode_s = 0.5;
    r.stats.io = "posix";
    r.stats.reads = 9;
    r.stats.bytes_by_part = {{"index", 10}, {"frames", 20}};
    auto json = nlohmann::json::parse(to_json(r));
    for (const char* key : {"policy", "io", "direct", "prompt_tokens", "tokens", "text", "prefill_s",
                            "decode_s", "tokens_per_s"})
        CHECK(json.contains(key));
    for (const char* key : {"resident_bytes_peak", "read_bytes", "useful_bytes", "reads", "written_bytes",
                            "hit_rate", "mean_read_entries", "storage_bytes"})
        CHECK(json.at("stats").contains(key));
    CHECK(json.at("tokens") == nlohmann::json::array({5, 6}));
    CHECK(json.at("tokens_per_s") == 2.0);
    CHECK(json.at("text") == "caf\xEF\xBF\xBD");
    CHECK(json.at("stats").at("bytes_by_part").at("frames") == 20);
    CHECK(json.at("stats").at("share_by_part").empty()); // of nothing
    r.stats.raw_cache_bytes = 40;
    json = nlohmann::json::parse(to_json(r));
    CHECK(json.at("stats").at("raw_cache_bytes") == 40);
    CHECK(json.at("stats").at("share_by_part") ==
          nlohmann::json{{"index", 0.25}, {"frames", 0.5}, {"total", 0.75}});
    CHECK(!json.contains("logits"));
    r.run.logits = {{{5, 1.5F}}, {{6, 2.5F}}};
    json = nlohmann::json::parse(to_json(r));
    CHECK(json.at("logits")[1][0][1] == 2.5);
}

TEST_CASE("a line says what the parts take and what share of the raw cache that is") {
    const memory_use m{{{"index", 3 << 20}, {"metadata", 0}, {"tails", 512}}, std::uint64_t{12} << 20};
    CHECK(m.total() == (3 << 20) + 512);
    CHECK(memory_line(m) == "total 3.00 MiB 25.0 % of the raw cache of 12.00 MiB: index 3.00 MiB 25.0 %, "
                            "tails 0.5 KiB 0.0 %");
    const auto shares = shares_of(m);
    REQUIRE(shares.size() == 4);
    CHECK(shares.front().second == 0.25);
    CHECK(shares.back().first == "total");
}

TEST_CASE("--least-memory: bytes, parts and shares of a policy, or why it has none") {
    const memory_use m{{{"index", 100}}, 400};
    const least_row a{"a", "64 attended", m}, b{"b", "", kvtl::error(kvtl::errc::unsupported, "no bases")};
    CHECK(least_line(a) == "a, 64 attended: least memory 100 bytes, " + memory_line(m));
    CHECK(least_line(b) == "b: no bases");
    const auto rows = nlohmann::json::parse(to_json(std::vector{a, b}));
    REQUIRE(rows.size() == 2);
    CHECK(rows[0].at("policy") == "a");
    CHECK(rows[0].at("settings") == "64 attended");
    CHECK(rows[0].at("least_memory_bytes") == 100);
    CHECK(rows[0].at("raw_cache_bytes") == 400);
    CHECK(rows[0].at("bytes_by_part").at("index") == 100);
    CHECK(rows[0].at("share_by_part").at("total") == 0.25);
    CHECK(rows[1].at("error") == "no bases");
}

TEST_CASE("a signal removes the file and still ends the program") {
    const std::string path = "parts-" + std::to_string(::getpid()) + ".kv";
    for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGPIPE}) {
        std::ofstream(path) << "x";
        const pid_t child = ::fork();
        REQUIRE(child >= 0);
        if (child == 0) {
            for (const int n : {SIGINT, SIGTERM, SIGHUP, SIGPIPE})
                std::signal(n, SIG_DFL); // doctest has its own
            {
                const signal_hold hold;
                ::raise(number); // held back until the file is registered
                remove_on_signal(path);
            }
            ::_exit(0); // not reached
        }
        int state = 0;
        REQUIRE(::waitpid(child, &state, 0) == child);
        CHECK(WIFSIGNALED(state));
        CHECK(WTERMSIG(state) == number);
        CHECK(::access(path.c_str(), F_OK) != 0);
    }
}

TEST_CASE(
    "a mapped file that is cut short ends the program with one line, however many threads meet it at once") {
    const std::string name = "parts-" + std::to_string(::getpid());
    for (int round = 0; round < 20; ++round) {
        std::ofstream(name + ".kv") << "x";
        std::ofstream(name + ".model") << std::string(1 << 16, 'x');
        int lines[2];
        REQUIRE(::pipe(lines) == 0);
        const pid_t child = ::fork();
        REQUIRE(child >= 0);
        if (child == 0) {
            ::dup2(lines[1], STDERR_FILENO);
            const int file = ::open((name + ".model").c_str(), O_RDWR);
            const auto* bytes =
                static_cast<const volatile char*>(::mmap(nullptr, 1 << 16, PROT_READ, MAP_SHARED, file, 0));
            remove_on_signal(name + ".kv");
            end_when_mapping_is_lost();
            if (::ftruncate(file, 0) != 0) ::_exit(2);
            std::atomic<int> ready = 0;
            std::vector<std::thread> readers;
            for (int i = 0; i < 8; ++i)
                readers.emplace_back([&] {
                    for (++ready; ready < 8;) {
                    }
                    static_cast<void>(*bytes);
                });
            for (std::thread& reader : readers) reader.join();
            ::_exit(0); // not reached
        }
        ::close(lines[1]);
        std::string said;
        char part[256];
        for (ssize_t n = 0; (n = ::read(lines[0], part, sizeof part)) > 0;)
            said.append(part, static_cast<std::size_t>(n));
        ::close(lines[0]);
        int state = 0;
        REQUIRE(::waitpid(child, &state, 0) == child);
        const bool removed = ::access((name + ".kv").c_str(), F_OK) != 0;
        std::remove((name + ".kv").c_str());
        std::remove((name + ".model").c_str());
        CHECK(removed);
        REQUIRE(WIFEXITED(state));
        CHECK(WEXITSTATUS(state) == 1);
        CHECK(std::count(said.begin(), said.end(), '\n') == 1);
        CHECK(said.find("was cut short") != std::string::npos);
    }
}
