// Entries outside a page, as plain rows to decide with and as the records that are stored: what a prompt
// organises and what a split divides.
//
// What:   an entry that comes as rows is encoded once, one that comes from a page keeps its record and is
//         decoded; so moving entries between pages never changes them. Where records are the rows themselves
//         there is one copy of them.
// Shapes: rows (n, width) of the plain type; records of the codec's bytes at most.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/reservation.hpp>
#include <kvtl/slots/compressor.hpp>
#include <kvtl/views.hpp>

#include <algorithm>
#include <cstring>
#include <span>

namespace kvtl { inline namespace v0 {

/// Bytes behind the record of a key that hold the entry's log-weight; none where entries have none.
template <class Types>
inline constexpr std::uint32_t weight_bytes = Types::weighted ? std::uint32_t{sizeof(float)} : 0;
/// The log-weight of an entry whose records these are.
[[nodiscard]] inline float weight_behind(const std::byte* key, std::uint32_t key_bytes) noexcept {
    float w = 0;
    std::memcpy(&w, key + key_bytes - sizeof w, sizeof w);
    return w;
}

/// What an entry is besides its rows.
struct entry_facts {
    std::uint32_t position = 0; ///< its token; meaningless where the codec's keys are after RoPE
    float log_weight = 0;       ///< 0 where entries have none
};

/// The record of one entry that comes as rows; `scratch` holds it where it is not the rows themselves.
/// `most`: bytes of a record at most, weight included.
template <class Types>
[[nodiscard]] entry_record record_of(const typename Types::codec& codec, record_bytes most,
                                     const typename Types::element_type* k,
                                     const typename Types::element_type* v, const entry_facts& facts,
                                     std::span<std::byte> scratch) noexcept {
    if constexpr (Types::plain_records) {
        static_cast<void>(scratch), static_cast<void>(codec), static_cast<void>(facts);
        return {reinterpret_cast<const std::byte*>(k), reinterpret_cast<const std::byte*>(v), most};
    } else {
        std::byte *key = scratch.data(), *value = key + most.key;
        std::uint32_t key_bytes = codec.encode_key(k, facts.position, key);
        std::memcpy(key + key_bytes, &facts.log_weight, weight_bytes<Types>);
        key_bytes += weight_bytes<Types>;
        return {key, value, {key_bytes, codec.encode_value(v, value)}};
    }
}
/// Bytes of scratch that record_of() needs.
template <class Types> [[nodiscard]] constexpr std::size_t record_scratch(record_bytes most) noexcept {
    return Types::plain_records ? 0 : most.entry();
}

/// Stored entries as plain rows, for those who attend them elsewhere: as they lie, or decoded a tile at a
/// time.
template <class Types> class row_tile {
  public:
    using element_type = typename Types::element_type;

    static row_tile take(carver& c, std::size_t rows, std::uint32_t width) noexcept {
        row_tile t;
        t.rows_ = Types::plain_records ? 0 : rows;
        t.k_ = c.take<element_type>(t.rows_ * width);
        t.v_ = c.take<element_type>(t.rows_ * width);
        return t;
    }
    /// visit(first, k, v, rows) for all of them, (rows, width) each; decoded rows last as long as the visit.
    template <class Visit>
    void show(const typename Types::unit_codec& codec, const records_view& keys, const records_view& values,
              Visit&& visit) const noexcept {
        if constexpr (Types::plain_records) {
            visit(std::size_t{0}, reinterpret_cast<const element_type*>(keys.data),
                  reinterpret_cast<const element_type*>(values.data), keys.count);
        } else {
            for (std::size_t first = 0; first < keys.count; first += rows_) {
                const std::size_t n = std::min(rows_, keys.count - first);
                codec.decode_keys(keys.slice(first, n), k_.data());
                codec.decode_values(values.slice(first, n), v_.data());
                visit(first, k_.data(), v_.data(), n);
            }
        }
    }

  private:
    std::size_t rows_ = 0;
    std::span<element_type> k_, v_;
};

template <class Types> class record_rows {
  public:
    using element_type = typename Types::element_type;
    using codec_type = typename Types::codec;
    static constexpr bool plain = Types::plain_records;

    static record_rows take(carver& c, std::size_t rows, std::uint32_t width, record_bytes most) noexcept {
        record_rows r;
        r.width_ = width;
        r.most_ = most;
        r.k_ = c.take<element_type>(rows * width);
        r.v_ = c.take<element_type>(rows * width);
        r.records_ = c.take<std::byte>(rows * record_scratch<Types>(most));
        r.bytes_ = c.take<record_bytes>(Types::compressor::ragged ? rows : 0);
        return r;
    }

    [[nodiscard]] element_type* key(std::size_t i) const noexcept { return &k_[i * width_]; }
    [[nodiscard]] element_type* value(std::size_t i) const noexcept { return &v_[i * width_]; }
    [[nodiscard]] rows_view<element_type> keys(std::size_t first, std::size_t n) const noexcept {
        return {k_.data() + first * width_, n, width_, width_};
    }
    [[nodiscard]] rows_view<element_type> values(std::size_t first, std::size_t n) const noexcept {
        return {v_.data() + first * width_, n, width_, width_};
    }

    /// Makes the record of row i, whose key and value are in place.
    void encode(const codec_type& codec, std::size_t i, const entry_facts& facts) const noexcept {
        if (plain) return;
        const entry_record e =
            record_of<Types>(codec, most_, key(i), value(i), facts, records_.subspan(place(i)));
        if (Types::compressor::ragged) bytes_[i] = e.bytes;
    }
    /// Entry i from rows.
    void set(const codec_type& codec, std::size_t i, const element_type* k, const element_type* v,
             const entry_facts& facts) const noexcept {
        std::memcpy(key(i), k, width_ * sizeof(element_type));
        std::memcpy(value(i), v, width_ * sizeof(element_type));
        encode(codec, i, facts);
    }
    /// Entry i from its record.
    void load(const codec_type& codec, std::size_t i, const entry_record& e) const noexcept {
        if (!plain) {
            std::byte* to = &records_[place(i)];
            std::memcpy(to, e.key, e.bytes.key);
            std::memcpy(to + most_.key, e.value, e.bytes.value);
            if (Types::compressor::ragged) bytes_[i] = e.bytes;
        }
        codec.decode_keys({e.key, 1, e.bytes.key}, key(i));
        codec.decode_values({e.value, 1, e.bytes.value}, value(i));
    }
    [[nodiscard]] entry_record record(std::size_t i) const noexcept {
        if (plain)
            return {reinterpret_cast<const std::byte*>(key(i)), reinterpret_cast<const std::byte*>(value(i)),
                    most_};
        return {&records_[place(i)], &records_[place(i) + most_.key],
                Types::compressor::ragged ? bytes_[i] : most_};
    }

  private:
    [[nodiscard]] std::size_t place(std::size_t i) const noexcept { return i * most_.entry(); }

    std::uint32_t width_ = 0;
    record_bytes most_{};
    std::span<element_type> k_, v_;
    std::span<std::byte> records_;
    std::span<record_bytes> bytes_; ///< ragged: of each record
};

}} // namespace kvtl::v0
