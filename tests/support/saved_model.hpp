// What a saved file must give back: generations of random sections and pages, each made from the one before, with pages that
// stay. Bytes are functions of seeds, so that a generation is small.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/save/saved_file.hpp>

#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace kvtl_test {

struct saved_model {
    std::uint64_t tokens = 0;
    std::map<std::pair<kvtl::section_kind, std::uint32_t>, std::pair<std::uint64_t, std::size_t>>
        sections;                                  ///< seed, bytes
    std::vector<std::vector<std::uint64_t>> lanes; ///< seeds of their pages; 0: no page

    [[nodiscard]] static std::vector<std::byte> bytes_of(std::uint64_t seed, std::size_t bytes) {
        std::mt19937_64 random(seed);
        std::vector<std::uint64_t> words((bytes + 7) / 8);
        for (auto& w : words) w = random();
        const auto all = std::as_bytes(std::span(words)).first(bytes);
        return {all.begin(), all.end()};
    }
    [[nodiscard]] std::vector<kvtl::identity_field> identity() const {
        return {{"preset", "model"}, {"tokens", std::to_string(tokens)}, {"empty", ""}};
    }
    [[nodiscard]] std::vector<std::byte> note() const { return bytes_of(tokens, tokens % 7000); }

    /// The generation behind `before`: half of its sections, some of them longer or shorter, and others, a few other pages, and
    /// some more up to `most` per lane.
    [[nodiscard]] static saved_model next(const saved_model& before, std::mt19937_64& random,
                                          std::size_t most_bytes, std::size_t lanes, std::size_t most) {
        saved_model m = before;
        m.tokens += random() % 1000 + 1;
        m.sections.clear();
        for (std::uint32_t first = 0; first < 60; first += 10) // gaps between the indices
            for (std::uint32_t i = 0; i < random() % 4; ++i)
                if (const auto was = before.sections.find({kvtl::section_kind::lane, first + i});
                    was != before.sections.end() && random() % 2 == 0) {
                    m.sections[was->first] = was->second;
                    if (random() % 2 == 0) m.sections[was->first].second = random() % most_bytes;
                } else {
                    m.sections[{kvtl::section_kind::lane, first + i}] = {random(), random() % most_bytes};
                }
        m.lanes.resize(lanes);
        for (auto& pages : m.lanes) {
            for (auto& p : pages)
                if (random() % 4 == 0) p = random() % 16 == 0 ? 0 : random();
            if (pages.size() >= most) pages.resize(most / 2);
            for (std::size_t more = random() % 5; more != 0; --more) pages.push_back(random());
        }
        return m;
    }
};

/// Writes `m` and commits it, in pieces and orders that callers may choose. Pages that `before`, the published generation of
/// `to`, has at the same place are kept.
template <class File>
kvtl::status write_model(File& to, const saved_model& m, const saved_model& before, std::mt19937_64& random) {
    const std::size_t page = to.facts().page_bytes;
    for (const auto& [name, what] : m.sections) {
        const auto bytes = saved_model::bytes_of(what.first, what.second);
        std::span<const std::byte> rest = bytes;
        do { // a section is a stream
            const auto part = rest.first(random() % 3 == 0 ? random() % (rest.size() + 1) : rest.size());
            if (auto s = to.put(name.first, name.second, part); !s) return s;
            rest = rest.subspan(part.size());
        } while (!rest.empty());
    }
    for (std::uint32_t lane = 0; lane < m.lanes.size(); ++lane) {
        const auto& seeds = m.lanes[lane];
        std::vector<kvtl::block_ref> refs(seeds.size());
        std::vector<bool> kept(seeds.size());
        const auto* list = kvtl::find_section(to.sections(), kvtl::section_kind::pages, lane);
        if (lane < before.lanes.size() && list != nullptr)
            for (std::size_t i = 0; i < std::min(seeds.size(), before.lanes[lane].size()); ++i)
                if (seeds[i] == before.lanes[lane][i]) {
                    if (auto s =
                            to.get(*list, i * sizeof refs[0], std::as_writable_bytes(std::span(&refs[i], 1)));
                        !s)
                        return s;
                    kept[i] = true;
                }
        for (std::size_t i = 0; i < seeds.size(); ++i) {
            if (kept[i] || seeds[i] == 0) continue;
            std::vector<std::byte> images; // as many neighbours as there are
            std::size_t n = 0;
            for (; i + n < seeds.size() && !kept[i + n] && seeds[i + n] != 0; ++n) {
                const auto image = saved_model::bytes_of(seeds[i + n], page);
                images.insert(images.end(), image.begin(), image.end());
            }
            if (auto s = to.put_pages(images, std::span(refs).subspan(i, n)); !s) return s;
            i += n - 1;
        }
        if (auto s = to.put(kvtl::section_kind::pages, lane, std::as_bytes(std::span(refs))); !s) return s;
    }
    const auto identity = m.identity();
    const auto note = m.note();
    const auto done = to.commit({.tokens = m.tokens, .model = 7, .identity = identity, .note = note});
    return done ? kvtl::status{}
                : kvtl::status::failure(done.error().code, "%s", done.error().message.c_str());
}

/// Ok where all of `from` is `m`, or the error that reading met. `differs` is set where other bytes were handed out.
template <class File> kvtl::status read_model(File& from, const saved_model& m, bool& differs) {
    const auto expect = [&](bool same) { differs = differs || !same; };
    const std::size_t page = from.facts().page_bytes;
    expect(from.facts().tokens == m.tokens && from.facts().model == 7);
    expect(from.sections().size() == m.sections.size() + m.lanes.size() + 2);
    for (const auto& [name, what] : m.sections) {
        const auto* s = kvtl::find_section(from.sections(), name.first, name.second);
        expect(s != nullptr && s->bytes == what.second);
        if (differs) return {};
        std::vector<std::byte> found(what.second);
        if (auto read = from.get(*s, 0, found); !read) return read;
        expect(found == saved_model::bytes_of(what.first, what.second));
    }
    for (std::uint32_t lane = 0; lane < m.lanes.size(); ++lane) {
        const auto& seeds = m.lanes[lane];
        const auto* s = kvtl::find_section(from.sections(), kvtl::section_kind::pages, lane);
        expect(s != nullptr && s->bytes == seeds.size() * sizeof(kvtl::block_ref));
        if (differs) return {};
        std::vector<kvtl::block_ref> refs(seeds.size());
        if (auto read = from.get(*s, 0, std::as_writable_bytes(std::span(refs))); !read) return read;
        for (std::size_t i = 0, n = 0; i < seeds.size(); i += std::max<std::size_t>(n, 1)) {
            expect((refs[i].block == 0) == (seeds[i] == 0));
            if (differs) return {};
            for (n = 0; i + n < seeds.size() && seeds[i + n] != 0 && n < 7;) ++n;
            std::vector<std::byte> images(n * page);
            if (auto read = from.get_pages(std::span(refs).subspan(i, n), images); !read) return read;
            for (std::size_t k = 0; k < n; ++k) {
                const auto image = std::span(images).subspan(k * page, page);
                expect(std::ranges::equal(image, saved_model::bytes_of(seeds[i + k], page)));
            }
        }
    }
    auto identity = from.identity();
    if (!identity)
        return kvtl::status::failure(identity.error().code, "%s", identity.error().message.c_str());
    expect(*identity == m.identity());
    auto note = from.note();
    if (!note) return kvtl::status::failure(note.error().code, "%s", note.error().message.c_str());
    expect(*note == m.note());
    return {};
}

} // namespace kvtl_test
