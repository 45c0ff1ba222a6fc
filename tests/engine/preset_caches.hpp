// Caches of any preset that go on with each other's sequences, and a file to save these to.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/io/in_memory.hpp>

#include "workload.hpp"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvtl_test {

class scratch_file {
  public:
    scratch_file()
        : path_((std::filesystem::temp_directory_path() / ("kvtl-saved-" + std::to_string(::getpid())))
                    .string()) {}
    scratch_file(const scratch_file&) = delete;
    ~scratch_file() { std::filesystem::remove(path_); }
    [[nodiscard]] const std::string& path() const { return path_; }

  private:
    std::string path_;
};

class preset_caches {
  public:
    explicit preset_caches(std::string_view policy,
                           kvtl::any_io::config device = kvtl::any_io::of<kvtl::in_memory>({}))
        : policy_(policy), device_(std::move(device)), gates_(model, gate_inputs_of(policy, model)) {}

    /// mib 0: the least memory with which all tokens fit.
    [[nodiscard]] engine::kv_cache& open(unsigned shards, std::size_t sequences, std::size_t mib) {
        engine::cache_options o;
        o.policy = policy_;
        o.shape = model;
        o.max_tokens = all_tokens + (sequences - 1) * 64; // another one, too
        o.max_sequences = sequences;
        o.attend_tokens = 96;
        if (engine::policy_wants(policy_).evicts) o.keep_tokens = 128, o.prefill_tokens = prompt;
        o.memory_bytes = mib << 20;
        o.shards = shards;
        o.device = device_;
        o.engine_inputs = engine::model_file_inputs | kvtl::engine_input::external;
        o.calibration = bases_.path();
        o.gates = engine::policy_wants(policy_).trained ? bases_.path() : gates_.path();
        if (mib == 0) o.memory_bytes = least_bytes(o, std::size_t{96} << 20);
        auto opened = engine::open_cache(o);
        REQUIRE_MESSAGE(opened.ok(), (opened.ok() ? std::string() : opened.error().message));
        open_.push_back(std::move(*opened));
        return *open_.back();
    }
    void close_all_but_last() { open_.erase(open_.begin(), open_.end() - 1); }

  private:
    std::string policy_;
    kvtl::any_io::config device_;
    bases_file bases_;
    gates_file gates_;
    std::vector<std::unique_ptr<engine::kv_cache>> open_;
};

/// The first of b's hashes that is another one in a; empty where there is none. b goes with a from a's hash `first` on.
inline std::string difference(const record& a, const record& b, std::size_t first = 0) {
    REQUIRE(first + b.size() <= a.size());
    for (std::size_t i = 0; i < b.size(); ++i)
        if (a[first + i] != b[i]) return b[i].first;
    return "";
}

} // namespace kvtl_test
