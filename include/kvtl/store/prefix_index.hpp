// Finds prefixes by the hashes of a prompt, and remembers some that were evicted.
//
// Cost:   a search is one pass over the tokens and one look-up for each length that occurs. Some 100 bytes for each length
//         under which a prefix is found: all of its tokens, and up to `rewind_tokens` fewer.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/store/prefix_note.hpp>
#include <kvtl/store/prefix_types.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

namespace kvtl { inline namespace v0 {

/// A prefix whose hash says that it begins with these many tokens of a prompt.
struct prefix_match {
    prefix_id id = 0;
    std::uint32_t tokens = 0;
    std::uint32_t given_up = 0; ///< that the prefix has beyond them
};

template <class Hash> class prefix_index {
  public:
    struct found {
        std::vector<prefix_match> matches{}; ///< longest first, then with the fewest tokens given up
        std::size_t evicted = 0;             ///< tokens of the longest match that was evicted
        std::vector<hash128> hashes{};       ///< of all tokens, of one less, ...: those of a label
    };

    explicit prefix_index(std::uint32_t rewind_tokens) : rewind_(rewind_tokens) {}

    [[nodiscard]] found search(std::span<const std::uint32_t> tokens, std::uint64_t model,
                               const prefix_space& space) const {
        found f;
        std::vector<key> keys;
        hash128 h = Hash::begin(model, space);
        auto length = lengths_.begin();
        for (std::size_t i = 0; i < tokens.size(); ++i) {
            h = Hash::next(h, tokens[i]);
            if (length != lengths_.end() && length->first == i + 1) {
                keys.push_back({length->first, h});
                ++length;
            }
            if (tokens.size() - i <= std::size_t{rewind_} + 1) f.hashes.push_back(h);
        }
        std::reverse(f.hashes.begin(), f.hashes.end());
        for (auto k = keys.rbegin(); k != keys.rend(); ++k) {
            const auto first = static_cast<std::ptrdiff_t>(f.matches.size());
            const auto [from, to] = table_.equal_range(*k);
            for (auto at = from; at != to; ++at)
                if (at->second.id != 0)
                    f.matches.push_back(at->second);
                else
                    f.evicted = std::max<std::size_t>(f.evicted, k->tokens);
            std::sort(f.matches.begin() + first, f.matches.end(),
                      [](const prefix_match& a, const prefix_match& b) {
                          return a.given_up != b.given_up ? a.given_up < b.given_up : a.id < b.id;
                      });
        }
        return f;
    }

    void add(prefix_id id, const prefix_label& label) {
        for (std::uint32_t i = 0; i < label.hashes.size() && i <= rewind_; ++i)
            put({label.tokens - i, label.hashes[i]}, {id, label.tokens - i, i});
    }
    void remove(prefix_id id, const prefix_label& label) {
        for (std::uint32_t i = 0; i < label.hashes.size(); ++i) take({label.tokens - i, label.hashes[i]}, id);
    }
    /// It was removed for want of room.
    void remember(const prefix_label& label) {
        const key k{label.tokens, label.hashes[0]};
        if (evicted_.size() < most_evicted)
            evicted_.push_back(k);
        else
            take(std::exchange(evicted_[oldest_++ % most_evicted], k), 0);
        put(k, {0, k.tokens, 0});
    }

    /// Of what is stored; what is remembered takes at most 128 KiB besides.
    [[nodiscard]] std::size_t memory_bytes() const noexcept {
        constexpr std::size_t node = 2 * sizeof(void*);
        return (table_.size() - evicted_.size()) * (sizeof(key) + sizeof(prefix_match) + node) +
               lengths_.size() * (2 * sizeof(std::uint64_t) + 2 * node);
    }

  private:
    static constexpr std::size_t most_evicted = 1024;

    struct key {
        std::uint32_t tokens = 0;
        hash128 hash{};
        friend bool operator==(const key&, const key&) = default;
    };
    struct hash_of_key {
        std::size_t operator()(const key& k) const noexcept {
            return static_cast<std::size_t>(k.hash[0] ^ (k.hash[1] << 3) ^ k.tokens);
        }
    };

    void put(const key& k, const prefix_match& m) {
        table_.emplace(k, m);
        ++lengths_[k.tokens];
    }
    void take(const key& k, prefix_id id) {
        const auto [from, to] = table_.equal_range(k);
        const auto at = std::find_if(from, to, [&](const auto& line) { return line.second.id == id; });
        if (at == to) return;
        table_.erase(at);
        if (--lengths_[k.tokens] == 0) lengths_.erase(k.tokens);
    }

    std::uint32_t rewind_;
    std::unordered_multimap<key, prefix_match, hash_of_key> table_;
    std::map<std::uint32_t, std::uint64_t> lengths_; ///< that occur in the table, and how often
    std::vector<key> evicted_;
    std::size_t oldest_ = 0;
};

}} // namespace kvtl::v0
