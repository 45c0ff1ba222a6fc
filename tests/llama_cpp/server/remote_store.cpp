// What the server sends to a remote and fetches from it, over a folder: parcels that are tried again, and bounds of what has come.
// SPDX-License-Identifier: MIT
#include <kvtl/save/saved_file.hpp>

#include "remote.hpp"
#include "support/scratch_folder.hpp"

#include <doctest/doctest.h>

#include <chrono>
#include <filesystem>
#include <thread>

using namespace std::chrono_literals;
using kvtl_server::remote_store;

namespace {

constexpr std::uint64_t model = 7;

/// A machine that stores in one folder and shares another one.
struct machine {
    kvtl_test::scratch_folder scratch;
    std::string own = scratch.file("own"), shared = scratch.file("shared");
    std::vector<std::uint32_t> tokens = std::vector<std::uint32_t>(200, 5);

    machine() {
        REQUIRE_FALSE(engine::policy_names().empty()); // the linker takes the presets first, then the engine
        std::filesystem::create_directory(own);
        std::filesystem::create_directory(shared);
    }
    [[nodiscard]] kvtl_server::remote_options place() const {
        return {.place = "folder:" + shared, .timeout = 20s};
    }
    [[nodiscard]] kvtl_server::remote_bounds bounds(std::uint64_t bytes = 1U << 30) const {
        return {.folder = own, .file_bytes = bytes, .free_bytes = 0};
    }
    /// A saved file of the tokens, and its label.
    [[nodiscard]] std::string saved(const std::string& name, kvtl::prefix_label& label) const {
        const std::string path = own + "/" + name;
        label = {.model = model, .made = 1, .tokens = static_cast<std::uint32_t>(tokens.size())};
        kvtl::hash128 hash = kvtl::prefix_hash::begin(model, label.space);
        for (const std::uint32_t t : tokens) hash = kvtl::prefix_hash::next(hash, t);
        label.hashes = {hash};
        auto file = kvtl::saved_file::create(path, 4096);
        REQUIRE(file.ok());
        const auto note = kvtl::note_of(label, tokens);
        REQUIRE(file->put(kvtl::section_kind::lane, 0, {}).ok());
        REQUIRE(file->commit({.tokens = label.tokens, .model = model, .note = note}).ok());
        REQUIRE(file->publish().ok());
        return path;
    }
};

template <class Until> bool comes(const Until& until) {
    for (int i = 0; i < 4000 && !until(); ++i) std::this_thread::sleep_for(5ms);
    return until();
}

} // namespace

TEST_CASE_FIXTURE(
    machine, "a conversation that could not be sent is sent later, and another one is given up and counted") {
    kvtl::prefix_label label;
    const std::string path = saved("a.kvs", label);
    remote_store remote(place(), "kvtl:1:x", bounds(), model, 20ms);
    std::filesystem::rename(shared, shared + ".away");
    REQUIRE(remote.put(path, label, tokens).ok());
    REQUIRE(comes([&] { return remote.statistics().failed >= 2; })); // it is tried again
    std::filesystem::rename(shared + ".away", shared);
    if (comes([&] { return remote.statistics().put + remote.statistics().not_put == 1; }) &&
        remote.statistics().not_put == 1) { // all tries came too early, on a machine that is slow
        REQUIRE(remote.put(path, label, tokens).ok());
    }
    CHECK(comes([&] { return remote.statistics().put == 1; }));

    const std::uint64_t given_up = remote.statistics().not_put;
    std::filesystem::rename(shared, shared + ".away");
    REQUIRE(remote.put(path, label, tokens).ok());
    CHECK(comes([&] { return remote.statistics().not_put == given_up + 1; }));
}

TEST_CASE_FIXTURE(machine, "what has come and was not taken counts against the bytes of the store") {
    kvtl::prefix_label label;
    const std::string path = saved("a.kvs", label);
    const std::uint64_t bytes = std::filesystem::file_size(path);
    {
        remote_store remote(place(), "kvtl:1:x", bounds(), model);
        REQUIRE(remote.put(path, label, tokens).ok());
        remote.finish(20s);
        REQUIRE(remote.statistics().put == 1);
    }
    remote_store remote(place(), "kvtl:1:x", bounds(bytes + bytes / 2), model);
    const auto ask = [&] {
        auto sent = remote.ask(tokens, "", 0);
        REQUIRE(sent != nullptr);
        REQUIRE(comes([&] { return sent->over(); }));
        return sent;
    };
    auto first = ask();
    CHECK(first->tokens() == tokens.size());
    CHECK(ask()->tokens() == 0); // the first one is still there
    first.reset();
    CHECK(comes([&] { return ask()->tokens() == tokens.size(); }));
    CHECK(comes([&] { // all were removed but the one that was saved
        return std::distance(std::filesystem::directory_iterator(own), {}) == 1;
    }));
}

TEST_CASE_FIXTURE(machine, "files that are fetched have names that no earlier run has used") {
    std::vector<std::string> seen;
    kvtl::prefix_label label;
    const std::string path = saved("a.kvs", label);
    for (int run = 0; run < 2; ++run) {
        remote_store remote(place(), "kvtl:1:x", bounds(), model);
        REQUIRE(remote.put(path, label, tokens).ok());
        remote.finish(20s);
        const auto sent = remote.ask(tokens, "", 0);
        REQUIRE(comes([&] { return sent->over(); }));
        for (const auto& f : std::filesystem::directory_iterator(own))
            if (f.path().string() != path) seen.push_back(f.path().filename().string());
    }
    REQUIRE(seen.size() == 2);
    CHECK(seen[0] != seen[1]);
}
