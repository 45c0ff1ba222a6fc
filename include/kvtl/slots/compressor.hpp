// The compressor slot: the bytes in which entries are stored.
//
// What:   a *record* is the stored form of one token of a lane: one record for its key, one for its value.
//         The policy's state is the *row codec*, the only code that looks into a record. Stores copy records
//         when entries move (splits, rewrites, loads). They never encode an entry a second time, with one
//         exception: rows in memory, when a prompt that waited in chunks is scored.
// Rows:   a *plain row* is (lane heads, D) numbers of the policy's plain_type. Window, sinks, pending entries
//         and staged chunks of a prompt are plain rows. An entry is encoded when it leaves them for a store.
// Policy: it declares name, config and
//           plain_type         float, f16 or bf16
//           domain             keys after or before RoPE
//           granule            number of consecutive entries that are encoded together
//           ragged             records differ in size, and state::bytes() bounds them
//           rows_are_records   a record is the plain row, byte for byte
//           relative_error     error of a number, relative to the largest number of its head in the rows of
//                              its record, rounding to plain_type included
//           layer_wide_only    a record couples all heads of a layer (engine_inputs.hpp); optional
//           needs              further inputs from the engine; optional
// State:  constructible from (config, record_shape), trivially copyable, every function const and noexcept:
//           record_bytes bytes()                       exact, or an upper bound if records are ragged
//           encode_key(rows, position, record)         plain rows, (granule, width), to a record; returns the
//                                                      bytes of the record. The first row is token `position`
//           encode_value(rows, record)
//           decode_keys(records, rows), decode_values  a tile of records to plain rows, (count, width)
//           score(q, q_stride, group, keys, head, out, out_stride)
//               out[g * out_stride + i] = q_g . key i of `head`, computed from the records
//           accumulate(weight, group, values, head, acc, acc_stride)
//               acc_g += sum over i of weight[g * attend_block + i] * value i of `head`
//         A call gets at most simd::attend_block entries. core/step/attend_records.hpp computes attention
//         with score and accumulate. Optional: score_run(arguments of score) scores any number of entries at
//         once, for an index that scores all stored keys (stored_keys). Optional, if not every config fits
//         every shape: static status check(config, record_shape). If not every config fits every unit:
//         check_units(config, tokens of a unit, sink_tokens).
// Granule: if granule > 1, that many consecutive entries share a record of keys and a record of values. Units
//         are then runs of a multiple of the granule, and so is simd::attend_block.
// Trust:  a codec does not check the content of records. Pages are returned byte for byte or refused: their
//         checksums stay in memory.
// Home:   with key_home = home::memory the records of keys stay in the lane's memory, where an index may
//         score them (stored_keys), and storage has only values. Units are then runs of consecutive entries.
//         Keys are decoded when their unit is read, so attention finds plain rows. Values are where the units
//         are.
// Domain: plain rows always hold keys after RoPE. A codec with key_domain::pre_rope rotates keys back by
//         `position`, the entry's token. It writes the position into the record, where it counts as its
//         bytes. It rotates decoded keys forward again (support/position_table.hpp).
// Input:  a codec with encodes_input stores the layer's input instead of rows, and needs engine_input::x. A token has one
//         record, which is made when the token arrives, because x is there only then. Instead of encode_key and
//         encode_value the state has
//           input_numbers()                          numbers of x per token
//           check_arrival(layer_input, tokens)       status; before a call changes anything
//           encode_input(x, position, record)        returns the bytes of the record
//         bytes().value is 0, and decode_values and accumulate get the records of keys. Only presets that keep every
//         entry in memory can hold such records: they wait beside the plain rows of the window.
// Lanes:  a codec that differs from lane to lane declares any of
//           calibrated   the calibration kinds that it reads, a set of kind_bit()s. The state then has
//                        bind(calibration_view). Before it, `status check_calibration(view)` checks that the
//                        file holds everything that the codec relies on
//           shares       tables that all lanes of a shard share: shared_bytes(max_tokens) and share(config,
//                        max_tokens, span of bytes)
//           fits_lanes   bytes that are fitted to a lane when its prompt is complete: lane_bytes(), and
//                        fit(lane's bytes, keys, values, scratch), with rows_view of floats or of plain rows,
//                        and fit_scratch_bytes(rows) bytes of scratch. Until then the bytes are zero.
//                        Clusterers pass the rows that they are about to group; runs of consecutive entries
//                        pass the prompt's first chunk from token 0
//           fits_queries the fit reads the chunk's queries too: fit(lane's bytes, keys, values, prompt_queries,
//                        scratch)
//         and at(codec_lane), which returns the state of one lane. That state encodes and attends the lane's
//         records. Lanes exist for units and for chains of records in memory, and both know positions. A fit
//         to the prompt needs units.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/element.hpp>
#include <kvtl/engine_inputs.hpp>
#include <kvtl/slots/policy.hpp>
#include <kvtl/status.hpp>
#include <kvtl/views.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>

namespace kvtl { inline namespace v0 {

class calibration_view;

/// Whether stored keys are rotated to their positions.
enum class key_domain : std::uint8_t { post_rope, pre_rope };

/// Where the records of keys are kept.
enum class home : std::uint8_t { storage, memory };

/// The shape of a record: a token of a lane, or a granule of tokens.
struct record_shape {
    std::uint32_t heads = 1; ///< KV heads of the lane
    std::uint32_t dim = 0;   ///< D

    [[nodiscard]] constexpr std::uint32_t width() const noexcept { return heads * dim; }
};

/// Bytes of the two records of an entry, or of a granule.
struct record_bytes {
    std::uint32_t key = 0, value = 0;
    [[nodiscard]] constexpr std::uint32_t entry() const noexcept { return key + value; }
};

/// The two records of an entry, in any memory.
struct entry_record {
    const std::byte* key = nullptr;
    const std::byte* value = nullptr;
    record_bytes bytes{};
};

/// Records of the keys, or of the values, of consecutive entries.
struct records_view {
    const std::byte* data = nullptr;
    std::size_t count = 0;             ///< entries
    std::size_t stride = 0;            ///< bytes from record to record, if they have one size
    const std::uint32_t* at = nullptr; ///< otherwise at[2 * i] is the offset of record i from `data`
    std::uint32_t granule = 1;         ///< entries per record
    std::size_t following = 0;         ///< entries behind these that are likely to be read next

    /// Record i; if the granule is 1, that of entry i.
    [[nodiscard]] const std::byte* record(std::size_t i) const noexcept {
        return data + (at == nullptr ? i * stride : at[2 * i]);
    }
    /// Entries [first, first + n); `first` and `n` are multiples of the granule.
    [[nodiscard]] records_view slice(std::size_t first, std::size_t n) const noexcept {
        if (at != nullptr) return {data, n, stride, at + 2 * first};
        return {data + (granule == 1 ? first : first / granule) * stride,
                n,
                stride,
                nullptr,
                granule,
                following + count - first - n};
    }
};

/// A codec's view of a lane.
struct codec_lane {
    std::uint32_t layer = 0;
    std::uint32_t first_head = 0;      ///< the lane's first KV head, as the layer numbers heads
    const std::byte* fitted = nullptr; ///< lane_bytes()
};

/// The queries of the chunk to which a codec is fitted, of the KV heads of a lane.
struct prompt_queries {
    tensor_view q;           ///< (T, HQ, D), number i at q.place(i)
    std::size_t count = 0;   ///< T
    std::uint32_t all = 0;   ///< HQ
    std::uint32_t first = 0; ///< the lane's first query head
    std::uint32_t group = 1; ///< query heads of each KV head
};

/// The rows that a state scores by rounded queries, itself or through the codec that it rotates for; float where
/// there are none.
template <class State> struct scored_rows { using type = float; };
template <class State>
requires requires {
    typename State::rounded_type;
}
struct scored_rows<State> {
    using type = typename State::rounded_type;
};
template <class State>
requires(!requires { typename State::rounded_type; }) && requires(const State& s) {
    s.inner();
}
struct scored_rows<State> : scored_rows<std::remove_cvref_t<decltype(std::declval<const State&>().inner())>> {
};

// What a codec may declare, false where it does not.
template <class P>
concept codec_shares = requires {
    requires P::shares;
};
template <class P>
concept codec_fits_lanes = requires {
    requires P::fits_lanes;
};
template <class P>
concept codec_fits_queries = requires {
    requires P::fits_queries;
};
/// Keys stay in the lane's memory, not on storage.
template <class P>
concept codec_keeps_keys = requires {
    requires P::key_home == home::memory;
};
/// Records are made of the layer's input.
template <class P>
concept codec_encodes_input = requires {
    requires P::encodes_input;
};
/// The fit takes rows of E, and queries if the codec reads them.
template <class P, class E>
concept codec_fits = requires(const typename P::state& s, std::byte* lane, rows_view<E> rows,
                              std::span<std::byte> scratch) {
    requires(codec_fits_queries<P> || requires {
        { s.fit(lane, rows, rows, scratch) }
        noexcept;
    });
    requires(!codec_fits_queries<P> || requires(const prompt_queries& queries) {
        { s.fit(lane, rows, rows, queries, scratch) }
        noexcept;
    });
};
/// Each lane has a codec state of its own.
template <class P>
concept codec_per_lane = (calibrated_kinds<P>() != 0) || codec_fits_lanes<P>;
/// A codec that another codec may be made of: nothing but its config and the shape decides how it encodes one entry, and
/// it has no rule about lanes or units.
template <class Compressor>
concept codec_is_plain =
    Compressor::granule == 1 && !Compressor::ragged && Compressor::domain == key_domain::post_rope &&
    !codec_per_lane<Compressor> && !codec_shares<Compressor> && !codec_keeps_keys<Compressor> &&
    !codec_encodes_input<Compressor> && !requires {
    &Compressor::state::check_units;
};

template <class P>
concept compressor_declares_rows = requires {
    typename P::plain_type;
    requires element<typename P::plain_type>;
};
template <class P>
concept compressor_declares_records = requires {
    { P::name } -> std::convertible_to<std::string_view>;
    { P::domain } -> std::convertible_to<key_domain>;
    { P::granule } -> std::convertible_to<std::uint32_t>;
    { P::ragged } -> std::convertible_to<bool>;
    { P::rows_are_records } -> std::convertible_to<bool>;
    { P::relative_error } -> std::convertible_to<double>;
    requires std::is_aggregate_v<typename P::config>;
};
template <class P>
concept compressor_state_opens = requires {
    typename P::state;
    requires std::default_initializable<typename P::state>;
    requires std::is_trivially_copyable_v<typename P::state>;
    requires std::constructible_from<typename P::state, const typename P::config&, record_shape>;
};
template <class P>
concept compressor_encodes_rows = requires(const typename P::state& s, const typename P::plain_type* row,
                                           std::byte* record) {
    { s.encode_key(row, std::uint32_t{}, record) }
    noexcept->std::same_as<std::uint32_t>;
    { s.encode_value(row, record) }
    noexcept->std::same_as<std::uint32_t>;
};
template <class P>
concept compressor_encodes_inputs = requires(const typename P::state& s, const layer_input& in,
                                             const float* x, std::byte* record) {
    { s.input_numbers() }
    noexcept->std::same_as<std::uint32_t>;
    { s.check_arrival(in, std::size_t{}) }
    noexcept->std::same_as<status>;
    { s.encode_input(x, std::uint32_t{}, record) }
    noexcept->std::same_as<std::uint32_t>;
};
template <class P>
concept compressor_codes = compressor_declares_rows<P> && compressor_state_opens<P> &&
    (codec_encodes_input<P> ? compressor_encodes_inputs<P> : compressor_encodes_rows<P>)&&requires(
        const typename P::state& s, typename P::plain_type* rows, const records_view& records) {
    { s.bytes() }
    noexcept->std::same_as<record_bytes>;
    { s.decode_keys(records, rows) }
    noexcept;
    { s.decode_values(records, rows) }
    noexcept;
};
template <class P>
concept compressor_attends = compressor_state_opens<P> &&
    requires(const typename P::state& s, const float* q, float* out, const records_view& records,
             std::size_t n, std::uint32_t head) {
    { s.score(q, n, n, records, head, out, n) }
    noexcept;
    { s.accumulate(q, n, records, head, out, n) }
    noexcept;
};
template <class P>
concept compressor_knows_lanes =
    (calibrated_kinds<P>() == 0 ||
     requires(typename P::state & s, const calibration_view& view) {
         { s.bind(view) }
         noexcept;
         { std::as_const(s).check_calibration(view) } -> std::same_as<status>;
     }) &&
    (!codec_shares<P> ||
     requires(typename P::state & s, std::uint32_t tokens, const typename P::config& config,
              std::span<std::byte> memory) {
         { s.shared_bytes(tokens) }
         noexcept->std::same_as<std::size_t>;
         { s.share(config, tokens, memory) }
         noexcept;
     }) &&
    (!codec_fits_lanes<P> || (requires(const typename P::state& s, rows_view<float> rows) {
        { s.lane_bytes() }
        noexcept->std::same_as<std::size_t>;
        { s.fit_scratch_bytes(rows.count) }
        noexcept->std::same_as<std::size_t>;
    } && (codec_fits<P, float> && codec_fits<P, typename P::plain_type>))) &&
    (!codec_per_lane<P> || requires(const typename P::state& s, const codec_lane& lane) {
        { s.at(lane) }
        noexcept->std::same_as<typename P::state>;
    });
/// attend_block (simd/attend.hpp) is a multiple of the granule. A row that is its own record cannot share it.
template <class P>
concept compressor_granule_fits = P::granule == 1 || (P::granule > 1 && 32 % P::granule == 0 && !P::ragged &&
                                                      !P::rows_are_records);
template <class P>
concept compressor_for = compressor_declares_rows<P> && compressor_declares_records<P> &&
    compressor_codes<P> && compressor_attends<P> && compressor_knows_lanes<P> && compressor_granule_fits<P>;

template <class P> consteval void explain_compressor() {
    if constexpr (!has_name<P>) {
        static_assert(holds(has_name<P>),
                      "[kvtl] compressor: add `static constexpr std::string_view name` and what "
                      "slots/compressor.hpp lists");
    } else {
        static_assert(holds(compressor_declares_rows<P>),
                      "[kvtl] compressor: declare plain_type as float, f16 or bf16");
        static_assert(
            holds(compressor_declares_records<P>),
            "[kvtl] compressor: add a name, an aggregate `struct config`, and the constants domain, "
            "granule, ragged, rows_are_records and relative_error");
        static_assert(holds(compressor_state_opens<P>),
                      "[kvtl] compressor: add `class state`, trivially copyable, "
                      "default-constructible and constructible from (config, record_shape)");
        if constexpr (compressor_declares_rows<P>)
            static_assert(holds(compressor_codes<P>),
                          "[kvtl] compressor::state: add noexcept `record_bytes bytes()`, `std::uint32_t "
                          "encode_key(row, position, record)`, `encode_value(row, record)`, "
                          "`decode_keys(records, rows)` and decode_values; with encodes_input, "
                          "input_numbers(), check_arrival(layer_input, tokens) and encode_input(x, position, "
                          "record) instead of the first two");
        static_assert(holds(compressor_attends<P>),
                      "[kvtl] compressor::state: add noexcept score(q, q_stride, group, keys, head, out, "
                      "out_stride) and accumulate(weight, group, values, head, acc, acc_stride)");
        if constexpr (compressor_declares_rows<P>)
            static_assert(
                holds(compressor_knows_lanes<P>),
                "[kvtl] compressor::state: calibrated needs noexcept bind(calibration_view) and `status "
                "check_calibration(calibration_view) const`, shares needs "
                "shared_bytes(max_tokens) and share(config, max_tokens, bytes), fits_lanes needs "
                "lane_bytes(), fit_scratch_bytes(rows) and fit(bytes, keys, values, scratch) of floats and "
                "of plain rows (with fits_queries, prompt_queries ahead of scratch), and calibrated or "
                "fits_lanes `state at(codec_lane)`");
        if constexpr (compressor_declares_records<P>)
            static_assert(holds(compressor_granule_fits<P>),
                          "[kvtl] compressor: granule is 1, 2, 4, 8, 16 or 32, and 1 where records are "
                          "ragged or rows_are_records");
    }
}

}} // namespace kvtl::v0
