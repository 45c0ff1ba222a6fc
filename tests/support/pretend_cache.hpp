// A cache whose sequences are only their tokens, for tests of what stands above a cache: what a sequence holds can be read.
// Its files are real saved files on a simulated disk.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/save/saved_file.hpp>
#include <kvtl/views.hpp>

#include "support/simulated_disk.hpp"

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace kvtl_test {

struct pretend_cache {
    using token_list = std::vector<std::uint32_t>;

    simulated_disk* disk = nullptr;
    std::size_t slots = 64;       ///< sequences at a time
    std::size_t window = 8;       ///< tokens that can be taken back
    std::size_t token_bytes = 16; ///< in a file
    std::string identity = "pretend";
    bool forks_refused = false;
    std::map<std::uint32_t, token_list> open{}; ///< by slot
    std::size_t saves = 0, loads = 0, forks = 0;

    [[nodiscard]] simulated_file_ops ops() const { return {disk}; }
    [[nodiscard]] const token_list& of(kvtl::sequence_id seq) const { return open.at(seq.slot); }
    void feed(kvtl::sequence_id seq, std::span<const std::uint32_t> tokens) {
        token_list& t = open.at(seq.slot);
        t.insert(t.end(), tokens.begin(), tokens.end());
    }

    [[nodiscard]] std::size_t tokens(kvtl::sequence_id seq, std::size_t) const { return of(seq).size(); }
    kvtl::result<kvtl::sequence_id> begin() {
        for (std::uint32_t slot = 0; slot < slots; ++slot)
            if (open.try_emplace(slot).second) return kvtl::sequence_id{slot, 1};
        return kvtl::status::failure(kvtl::errc::out_of_range, "begin: all %zu sequences are there", slots);
    }
    kvtl::status end(kvtl::sequence_id seq) {
        if (open.erase(seq.slot) == 1) return {};
        return kvtl::status::failure(kvtl::errc::not_open, "end: not open");
    }
    kvtl::result<kvtl::sequence_id> fork(kvtl::sequence_id seq) {
        if (forks_refused) return kvtl::status::failure(kvtl::errc::out_of_range, "fork: no slot");
        auto branch = begin();
        if (branch) open[branch->slot] = of(seq), ++forks;
        return branch;
    }
    kvtl::status rewind_to(kvtl::sequence_id seq, std::size_t tokens) {
        token_list& t = open.at(seq.slot);
        if (tokens >= t.size()) return {};
        if (t.size() - tokens > window)
            return kvtl::status::failure(kvtl::errc::out_of_range, "rewind_to: beyond the window");
        t.resize(tokens);
        return {};
    }
    kvtl::result<kvtl::save_facts> save(kvtl::sequence_id seq, const std::string& path,
                                        const kvtl::save_options& o) {
        auto file = kvtl::basic_saved_file<simulated_file_ops>::create(path, 4096, ops());
        if (!file) return file.error();
        const token_list& t = of(seq);
        token_list entries(t.size() * token_bytes / sizeof(std::uint32_t));
        std::copy(t.begin(), t.end(), entries.begin());
        if (auto s = file->put(kvtl::section_kind::lane, 0, std::as_bytes(std::span(entries))); !s) return s;
        const kvtl::identity_field who{"who", identity};
        auto facts = file->commit(
            {.tokens = t.size(), .model = o.model, .identity = std::span(&who, 1), .note = o.note});
        if (!facts) return facts.error();
        if (auto s = file->publish(); !s) return s;
        ++saves;
        return facts;
    }
    kvtl::result<kvtl::loaded_sequence> load(const std::string& path, const kvtl::load_options& o) {
        auto file = kvtl::basic_saved_file<simulated_file_ops>::open(path, ops());
        if (!file) return file.error();
        const auto who = file->identity();
        if (!who) return who.error();
        if (who->size() != 1 || who->front().value != identity || file->facts().model != o.model)
            return kvtl::status::failure(kvtl::errc::file_refused, "load: who is %s in this cache",
                                         identity.c_str());
        const auto* lane = kvtl::find_section(file->sections(), kvtl::section_kind::lane);
        if (lane == nullptr) return kvtl::status::failure(kvtl::errc::corrupt, "load: no entries");
        token_list entries(lane->bytes / sizeof(std::uint32_t));
        if (auto s = file->get(*lane, 0, std::as_writable_bytes(std::span(entries))); !s) return s;
        auto seq = begin();
        if (!seq) return seq.error();
        entries.resize(file->facts().tokens);
        open[seq->slot] = std::move(entries);
        ++loads;
        return kvtl::loaded_sequence{*seq, file->facts().tokens, true};
    }
};

} // namespace kvtl_test
