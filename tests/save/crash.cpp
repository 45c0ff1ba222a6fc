// A process that saves and is killed: what it had published is there, whole, and goes on to the bit.
//
// A child decodes a fixed stream and publishes a save every few tokens, in one of four ways; each time it says so through a
// pipe. SIGKILL meets it at a random moment. Then the file holds the save that was acknowledged last, or one that was under
// way; loaded, it is the sequence that a run without kills had at that token, and the outputs that follow are that run's. The
// next child goes on from the file.
//
// KVTL_KILLS=1000 build/test/bin/test_save_crash     as many kills (here 60)
// SPDX-License-Identifier: MIT
#include <kvtl/core/shard_access.hpp>
#include <kvtl/io/in_memory.hpp>
#include <kvtl/presets/quest.hpp>
#include <kvtl/save/saved_file.hpp>

#include "support/cache_fixture.hpp"
#include "support/on_device.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <future>
#include <map>
#include <optional>
#include <random>

namespace save_crash_test {

using namespace kvtl_test;

namespace {

using cache_type = kvtl::kv_manager<without_file<kvtl::presets::quest>>;
constexpr kvtl::shape shape{2, 4, 2, 64};
constexpr std::size_t prompt = 64, all = 400, between_saves = 3;

/// How a child saves.
enum class way {
    new_file,   ///< that takes the name
    generation, ///< a further one of the file
    apart,      ///< likewise, published by another thread while the next tokens come
    branches,   ///< each save is of a new branch, which goes on in place of its parent
    count
};

cache_type opened() {
    cache_type::config c;
    c.shape = shape;
    c.max_tokens = all;
    c.attend_tokens = 64;
    c.memory_bytes = std::size_t{8} << 20;
    c.max_sequences = 2;
    return open_cache<cache_type>(c);
}

const drift& stream() {
    static const drift made(shape, all, 3);
    return made;
}

void read_prompt(cache_type& cache, kvtl::sequence_id seq) {
    for (std::uint32_t l = 0; l < shape.layers; ++l) {
        std::vector<float> out(prompt * stream().query_floats());
        require_ok(cache.prefill(seq, l, stream().input(l, 0, prompt), out));
    }
}
/// Token t; the outputs of all layers.
std::vector<float> step(cache_type& cache, kvtl::sequence_id seq, std::size_t t) {
    std::vector<float> outputs;
    for (std::uint32_t l = 0; l < shape.layers; ++l) {
        std::vector<float> out(stream().query_floats());
        require_ok(cache.attend(seq, l, stream().input(l, t, 1), out));
        outputs.insert(outputs.end(), out.begin(), out.end());
    }
    return outputs;
}
std::uint64_t hash_of(cache_type& cache, kvtl::sequence_id seq) {
    const auto hash = kvtl::shard_access::identity_hash(cache, seq);
    REQUIRE(hash.ok());
    return *hash;
}

/// The run that nobody kills: what the sequence is before each token, and the token's outputs.
struct undisturbed {
    std::map<std::size_t, std::uint64_t> hash;
    std::map<std::size_t, std::vector<float>> outputs;

    undisturbed() {
        cache_type cache = opened();
        const auto seq = *cache.begin();
        read_prompt(cache, seq);
        for (std::size_t t = prompt; t < all; ++t) {
            hash[t] = hash_of(cache, seq);
            outputs[t] = step(cache, seq, t);
        }
        hash[all] = hash_of(cache, seq);
    }
};

/// What the child does until it is killed, or all tokens have come. Says nothing but the tokens of each published save.
[[noreturn]] void child(const std::string& path, way how, int acknowledge) {
    cache_type cache = opened();
    kvtl::sequence_id seq{};
    std::size_t tokens = 0;
    if (const auto loaded = cache.load(path)) {
        seq = loaded->seq;
        tokens = loaded->tokens;
    } else {
        seq = *cache.begin();
        read_prompt(cache, seq);
        tokens = prompt;
    }
    const auto page = static_cast<std::uint32_t>(cache.device_info().page);
    std::optional<kvtl::saved_file> file;
    std::future<bool> published;
    const auto say = [&](std::size_t saved) {
        if (::write(acknowledge, &saved, sizeof saved) != sizeof saved) ::_exit(5);
    };
    for (;;) {
        if (how == way::branches) {
            const auto branch = cache.fork(seq);
            if (!branch || !cache.end(seq)) ::_exit(6);
            seq = *branch;
        }
        if (how == way::new_file) {
            auto made = kvtl::saved_file::create(path, page);
            if (!made || !cache.save(seq, *made) || !made->publish()) ::_exit(4);
        } else if (how == way::apart) {
            if (!file) {
                auto there = kvtl::saved_file::open(path);
                if (!there) there = kvtl::saved_file::create(path, page);
                if (!there) ::_exit(7);
                file.emplace(*std::move(there));
            }
            if (!cache.save(seq, *file)) ::_exit(8);
            published = std::async(std::launch::async, [&file] { return file->publish().ok(); });
        } else { // what has changed, once there is a file
            if (!cache.save(seq, path)) ::_exit(3);
        }
        const std::size_t saved = tokens;
        if (how != way::apart) say(saved);
        for (std::size_t i = 0; i < between_saves && tokens < all; ++i)
            static_cast<void>(step(cache, seq, tokens++));
        if (how == way::apart) {
            if (!published.get()) ::_exit(9);
            say(saved);
        }
        if (saved == all) ::_exit(0);
    }
}

} // namespace

TEST_CASE("a process that is killed at any moment loses no published save") {
    const char* const asked = std::getenv("KVTL_KILLS");
    const std::size_t kills = asked == nullptr ? 60 : std::strtoull(asked, nullptr, 10);
    const undisturbed right;
    const std::string path =
        (std::filesystem::temp_directory_path() / ("kvtl-crash-" + std::to_string(::getpid()) + ".kvs"))
            .string();
    std::mt19937 random(1);
    std::size_t last = 0, lived = 0;
    for (std::size_t kill = 0; kill < kills; ++kill) {
        CAPTURE(kill);
        int pipe[2];
        REQUIRE(::pipe(pipe) == 0);
        const ::pid_t pid = ::fork();
        REQUIRE(pid >= 0);
        if (pid == 0) {
            ::close(pipe[0]);
            child(path, static_cast<way>(kill % static_cast<std::size_t>(way::count)), pipe[1]);
        }
        ::close(pipe[1]);
        ::usleep(static_cast<::useconds_t>(random() % 30'000));
        REQUIRE(::kill(pid, SIGKILL) == 0);
        int how = 0;
        REQUIRE(::waitpid(pid, &how, 0) == pid);
        CHECK((WIFSIGNALED(how) || (WIFEXITED(how) && WEXITSTATUS(how) == 0)));
        for (std::size_t tokens = 0; ::read(pipe[0], &tokens, sizeof tokens) == sizeof tokens;) last = tokens;
        ::close(pipe[0]);

        cache_type cache = opened();
        const auto loaded = cache.load(path);
        if (!loaded) {
            CHECK_MESSAGE(last == 0, loaded.error().message);
            CHECK(loaded.error().code == kvtl::errc::absent);
            continue;
        }
        CAPTURE(last);
        const std::size_t tokens = loaded->tokens;
        CHECK(tokens >= last);
        CHECK(tokens <= std::max(last, prompt) + between_saves);
        CHECK(hash_of(cache, loaded->seq) == right.hash.at(tokens));
        for (std::size_t t = tokens; t < std::min(tokens + 2, all); ++t)
            CHECK(same_bits(step(cache, loaded->seq, t), right.outputs.at(t)));
        last = tokens;
        ++lived;
        if (tokens == all) { // from the beginning
            std::filesystem::remove(path);
            last = 0;
        }
    }
    CHECK(lived > kills / 4);
    std::filesystem::remove(path);
    std::filesystem::remove(path + ".part");
}

} // namespace save_crash_test
