// Writes calibration files (calibration/format.hpp says what is in them). For tools: it allocates and copies.
//
//   calibration_writer out(shape, fingerprint);
//   if (auto s = out.add(calibration_kind::joint_adapter, r, values); !s) ...   // (L, 1, r, H*D)
//   if (auto s = out.write("model.cal"); !s) ...
//
// The file appears under its name only when it is complete.
// SPDX-License-Identifier: MIT
#pragma once

#include <kvtl/calibration/calibration.hpp>
#include <kvtl/calibration/whole_file.hpp>

#include <cmath>
#include <vector>

namespace kvtl { inline namespace v0 {

class calibration_writer {
  public:
    calibration_writer(const shape& model, std::uint64_t fingerprint) {
        header_.shape = model;
        header_.fingerprint = fingerprint;
    }

    /// A section of floats, (layers, blocks, rows, columns) as calibration_extents has them.
    [[nodiscard]] status add(calibration_kind kind, std::uint32_t rank, std::span<const float> values,
                             bool pre_rope = false) {
        if (kind == calibration_kind::channels)
            return status::failure(errc::invalid_argument, "channels: use add_channels()");
        for (const float v : values)
            if (!std::isfinite(v))
                return status::failure(errc::invalid_argument, "%s: a value is not finite",
                                       kind_name(kind).data());
        return append(kind, rank, std::as_bytes(values), pre_rope);
    }
    /// A gated kind and the rate that its gates were trained for.
    [[nodiscard]] status add_gated(calibration_kind kind, std::span<const float> values, float rate) {
        status s = add(kind, header_.shape.kv_heads * header_.shape.head_dim, values, true);
        if (s) table_[header_.sections - 1].rate = rate;
        return s;
    }
    /// (L, H, n) numbers of frequency pairs, below D/2, whose elements pair_elements(pair, distance) names.
    [[nodiscard]] status add_channels(std::uint32_t count, std::span<const std::uint32_t> pairs,
                                      std::uint32_t pair_distance = 1) {
        if (pair_distance < 1 || pair_distance > header_.shape.head_dim / 2)
            return status::failure(errc::invalid_argument, "channels: pair_distance %u; valid: 1 to %u",
                                   pair_distance, header_.shape.head_dim / 2);
        for (const std::uint32_t p : pairs)
            if (p >= header_.shape.head_dim / 2)
                return status::failure(errc::invalid_argument, "channels: pair %u; valid: 0 to %u", p,
                                       header_.shape.head_dim / 2 - 1);
        status s = append(calibration_kind::channels, count, std::as_bytes(pairs), false);
        if (s) table_[header_.sections - 1].pair_distance = pair_distance;
        return s;
    }

    /// Writes beside `path` and renames, so that a run that is interrupted leaves the old file or none.
    [[nodiscard]] status write(const std::string& path) {
        std::uint64_t at = sizeof header_ + header_.sections * sizeof(calibration_section);
        for (std::uint32_t i = 0; i < header_.sections; ++i) {
            table_[i].offset = at;
            at += table_[i].bytes;
        }
        header_.file_bytes = at;
        header_.checksum = checksum_of(header_, table_);

        return write_whole_file(path, {std::as_bytes(std::span(&header_, 1)),
                                       std::as_bytes(std::span(table_).first(header_.sections)), payload_});
    }

  private:
    [[nodiscard]] status append(calibration_kind kind, std::uint32_t rank, std::span<const std::byte> values,
                                bool pre_rope) {
        const char* name = kind_name(kind).data();
        const auto [least, most] = calibration_extents::ranks(kind, header_.shape);
        if (rank < least || rank > most)
            return status::failure(errc::invalid_argument, "%s: rank %u; valid: %llu to %llu", name, rank,
                                   static_cast<unsigned long long>(least),
                                   static_cast<unsigned long long>(most));
        const auto extents = calibration_extents::of(kind, header_.shape, rank);
        if (values.size() != extents.numbers() * 4)
            return status::failure(errc::invalid_argument, "%s: %zu numbers instead of %llu", name,
                                   values.size() / 4, static_cast<unsigned long long>(extents.numbers()));
        for (std::uint32_t i = 0; i < header_.sections; ++i)
            if (table_[i].kind == kind)
                return status::failure(errc::invalid_argument, "%s: the file has this section already", name);
        calibration_section& s = table_[header_.sections++];
        s.kind = kind;
        s.rank = rank;
        s.pre_rope = pre_rope ? 1 : 0;
        s.bytes = extents.file_bytes();
        const std::size_t begin = payload_.size();
        payload_.resize(begin + s.bytes);
        std::memcpy(payload_.data() + begin, values.data(), values.size());
        for (std::size_t at = begin; at < payload_.size(); at += calibration_piece)
            s.checksum =
                add_piece(s.checksum,
                          std::span(payload_).subspan(at, std::min(calibration_piece, payload_.size() - at)));
        return {};
    }

    calibration_header header_{};
    calibration_table table_{};
    std::vector<std::byte> payload_;
};

}} // namespace kvtl::v0
